"""GCS301 where no optimizer steps: the loop updates its parameters itself."""

# ruff: noqa: PLW2901 - `p -= rate * p.grad` is how such a loop is written

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradcheck_suite.findings import Severity

STEPS = 6


def batches(count=STEPS):
    for _ in range(count):
        yield torch.randn(6, 4), torch.randn(6, 1)


def net():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def loss_of(model, x, y):
    return (model(x) - y).square().mean()


def operator_under_no_grad():
    model = net()
    for x, y in batches():
        loss_of(model, x, y).backward()  # <- backward
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.01 * p.grad  # <- here


def data_of_each_parameter():
    model = net()
    for x, y in batches():
        loss_of(model, x, y).backward()  # <- backward
        for p in model.parameters():
            p.data.add_(p.grad.data, alpha=-0.01)  # <- here


def method_under_no_grad_with_a_schedule():
    w = torch.randn(4, 1, requires_grad=True)
    for step, (x, y) in enumerate(batches()):
        (x @ w - y).square().mean().backward()  # <- backward
        with torch.no_grad():
            w.sub_(0.1 / (1 + step) * w.grad)  # <- here


def two_numbers():
    slope = torch.tensor(0.0, requires_grad=True)
    offset = torch.tensor(0.0, requires_grad=True)
    for x, _ in batches():
        (slope * x + offset - 2 * x - 1).square().mean().backward()  # <- backward
        with torch.no_grad():
            slope -= 0.001 * slope.grad
            offset -= 0.001 * offset.grad  # <- here


def one_number():
    slope = torch.tensor(0.0, requires_grad=True)
    for x, _ in batches():
        (slope * x - 2 * x).square().mean().backward()  # <- backward
        with torch.no_grad():
            slope -= 0.001 * slope.grad  # <- here


class Descent:
    """An optimizer of the program's own, which is none of torch's."""

    def __init__(self, parameters, rate):
        self.parameters, self.rate = list(parameters), rate

    @torch.no_grad()
    def step(self):
        for p in self.parameters:
            p.add_(p.grad, alpha=-self.rate)

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None


def windows_that_are_never_cleared():
    model = net()
    for step, (x, y) in enumerate(batches(12)):
        (loss_of(model, x, y) / 3).backward()  # <- backward
        if step % 3 == 2:
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.01 * p.grad  # <- here


BUGS = [
    operator_under_no_grad,
    data_of_each_parameter,
    method_under_no_grad_with_a_schedule,
    two_numbers,
    one_number,
    windows_that_are_never_cleared,
]


@pytest.mark.parametrize("loop", BUGS, ids=lambda loop: loop.__name__)
def test_gradients_that_pile_up_are_told_at_the_update(audited, only, line_of, loop):
    finding = only(audited(loop), "GCS301")
    allowed = {line_of(loop)}
    if loop is two_numbers:
        allowed.add(line_of(loop) - 1)
    assert finding.location.line in allowed
    assert [each.location.line for each in finding.related] == [line_of(loop, "backward")]
    assert finding.severity.value == "error"


def test_the_words(audited, only):
    finding = only(audited(operator_under_no_grad), "GCS301")
    assert finding.message == (
        "the update by hand of `0.bias`, `0.weight`, `2.bias`, `2.weight` used gradients that "
        "still held what the update before had already used, with the new gradient added on top; "
        "expected them to be cleared in between (first after backward 1)"
    )
    assert finding.hint == "set .grad to None (or call .grad.zero_()) after each update"
    assert finding.evidence["count"] == STEPS - 2


def test_the_variable_is_named(audited, only):
    assert "of `w` used" in only(audited(method_under_no_grad_with_a_schedule), "GCS301").message


def test_an_optimizer_of_the_programs_own(audited, only):
    def loop():
        model = net()
        descent = Descent(model.parameters(), 0.01)
        for x, y in batches():
            loss_of(model, x, y).backward()
            descent.step()

    assert only(audited(loop), "GCS301").location.function.endswith("step")


def test_without_the_names_of_writers_the_backward_is_named(audited, only, line_of):
    finding = only(audited(operator_under_no_grad, name_writers=False), "GCS301")
    assert finding.location.line == line_of(operator_under_no_grad, "backward")
    assert not finding.related


def updated(clear, update=None, model=None, count=STEPS):
    model = net() if model is None else model
    for x, y in batches(count):
        loss_of(model, x, y).backward()
        with torch.no_grad():
            for p in model.parameters():
                if update is None:
                    p -= 0.01 * p.grad
                else:
                    update(p)
        clear(model)


def none_by_hand(model):
    for p in model.parameters():
        p.grad = None


def zero_by_hand(model):
    for p in model.parameters():
        p.grad.zero_()


def zero_data_by_hand(model):
    for p in model.parameters():
        p.grad.data.zero_()


def zero_without_a_version(model):
    for p in model.parameters():
        p.grad.numpy()[...] = 0


def nothing(_model):
    pass


def own_optimizer_that_clears():
    model = net()
    descent = Descent(model.parameters(), 0.01)
    for x, y in batches():
        descent.zero_grad()
        loss_of(model, x, y).backward()
        descent.step()


def gradients_that_are_returned():
    model = net()
    parameters = list(model.parameters())
    for x, y in batches():
        gradients = torch.autograd.grad(loss_of(model, x, y), parameters)
        with torch.no_grad():
            for p, g in zip(parameters, gradients, strict=True):
                p -= 0.01 * g


def gradients_that_are_returned_beside_a_sum_that_nobody_uses():
    model = net()
    parameters = list(model.parameters())
    for x, y in batches():
        loss_of(model, x, y).backward()
        gradients = torch.autograd.grad(loss_of(model, x, y), parameters)
        with torch.no_grad():
            for p, g in zip(parameters, gradients, strict=True):
                p -= 0.01 * g


def momentum_kept_in_grad():
    def decay(model):
        for p in model.parameters():
            p.grad.mul_(0.9)

    updated(decay)


def dual_averaging():
    """The parameter is the start less the sum of all gradients, which ``.grad`` holds."""
    model = net()
    starts = [p.detach().clone() for p in model.parameters()]
    for x, y in batches():
        loss_of(model, x, y).backward()
        with torch.no_grad():
            for p, start in zip(model.parameters(), starts, strict=True):
                p.copy_(start - 0.01 * p.grad)


def windows():
    model = net()
    for step, (x, y) in enumerate(batches(12)):
        loss_of(model, x, y).backward()
        if step % 3 == 2:
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.01 * p.grad
            none_by_hand(model)


def clipped_weights_while_gradients_pile_up():
    updated(nothing, lambda p: p.clamp_(-0.1, 0.1))


def statistics_of_a_model_that_stays():
    updated(nothing, lambda _: None)


def leaves_made_anew():
    w = torch.randn(4, 1, requires_grad=True)
    for x, y in batches():
        (x @ w - y).square().mean().backward()
        w = (w - 0.1 * w.grad).detach().requires_grad_()


def one_update_of_two_sums():
    model = net()
    for _ in range(2):
        for x, y in batches(4):
            loss_of(model, x, y).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.01 * p.grad
        model.zero_grad()


def position_of_a_picture():
    image = torch.rand(1, 4, requires_grad=True)
    model = net().requires_grad_(False)
    for _ in range(STEPS):
        model(image).sum().backward()
        with torch.no_grad():
            image += 0.1 * image.grad.sign()
            image.grad = None


CLEAN = [
    lambda: updated(none_by_hand),
    lambda: updated(zero_by_hand),
    lambda: updated(zero_data_by_hand),
    lambda: updated(zero_without_a_version),
    lambda: updated(nn.Module.zero_grad),
    lambda: updated(nothing, model=net().to(torch.bfloat16).float(), count=2),
    own_optimizer_that_clears,
    gradients_that_are_returned,
    gradients_that_are_returned_beside_a_sum_that_nobody_uses,
    momentum_kept_in_grad,
    dual_averaging,
    windows,
    clipped_weights_while_gradients_pile_up,
    statistics_of_a_model_that_stays,
    leaves_made_anew,
    one_update_of_two_sums,
    position_of_a_picture,
]


@pytest.mark.parametrize("number", range(len(CLEAN)))
def test_nothing_is_said_of_correct_updates(audited, number):
    assert audited(CLEAN[number]).findings == ()


def test_odd_leaves_are_left_alone(audited):
    def loop():
        sparse = nn.Embedding(8, 2, sparse=True)
        turned = torch.randn(4, 3).t().requires_grad_()
        numbers = torch.randn(3, dtype=torch.complex64, requires_grad=True)
        empty = torch.randn(0, requires_grad=True)
        for _ in range(4):
            loss = sparse(torch.tensor([1, 2])).sum() + turned.square().sum() + empty.sum()
            (loss + numbers.abs().sum()).backward()
            with torch.no_grad():
                for p in (sparse.weight, turned, numbers, empty):
                    p -= 0.01 * p.grad

    assert {each.code for each in audited(loop).findings} <= {"GCS301"}


def test_what_an_optimizer_owns_is_not_followed(audited):
    other = torch.randn(4, 1, requires_grad=True)

    def loop():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for x, y in batches():
            optimizer.zero_grad()
            (loss_of(model, x, y) + (x @ other).square().mean()).backward()
            optimizer.step()

    session = audited(loop)
    (detector,) = [
        each
        for each in session._detectors
        if type(each).__name__ == "MissingZeroGradByHandDetector"
    ]
    assert [each.leaf() for each in detector._followed.values()] == [other]
    assert session.report.at_least(Severity.WARNING) == ()


def signed_attack(clear=nothing, assign=False):
    model, x = net(), torch.randn(6, 4)
    delta = torch.zeros_like(x, requires_grad=True)
    for _ in range(STEPS):
        model(x + delta).square().mean().backward()
        if assign:
            delta.data = (delta + 0.01 * delta.grad.sign()).clamp(-0.1, 0.1)
        else:
            delta.data.add_(delta.grad.sign(), alpha=0.01).clamp_(-0.1, 0.1)
        clear(delta)


def signed_attack_while_training():
    model, x = net(), torch.randn(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        delta = torch.zeros_like(x, requires_grad=True)
        for _ in range(4):
            model(x + delta).square().mean().backward()
            with torch.no_grad():
                delta += 0.01 * delta.grad.sign()
        optimizer.zero_grad()
        model(x + delta.detach()).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize(
    "loop",
    [
        signed_attack,
        lambda: signed_attack(assign=True),
        signed_attack_while_training,
        lambda: updated(nothing, lambda p: p.sub_(0.01 * p.grad.sign())),
    ],
)
def test_signs_of_gradients_that_pile_up_are_told(audited, loop):
    (finding,) = [each for each in audited(loop).findings if each.code == "GCS301"]
    assert finding.severity is Severity.WARNING
    assert finding.evidence["lowered"] == ("it followed the signs of these gradients",)


def gradient_zeroed(delta):
    delta.grad.zero_()


def test_signs_of_gradients_that_are_cleared_are_not(audited):
    assert audited(lambda: signed_attack(gradient_zeroed)).findings == ()


def test_the_parameters_are_the_same_bits(audited):
    def run():
        torch.manual_seed(1)
        w = torch.randn(4, 1, requires_grad=True)
        for x, y in batches():
            (x @ w - y).square().mean().backward()
            with torch.no_grad():
                w -= 0.1 * w.grad
        return w.detach().clone(), torch.rand(1)

    alone = run()
    seen = []
    audited(lambda: seen.append(run()))
    assert all(map(torch.equal, alone, seen[0]))
