"""GCS409: what is frozen, or was declared so, and changes all the same."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import nn

import gradcheck_suite as gs
from gradcheck_suite.findings import Severity

CODE = "GCS409"
STEPS = 5


def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8, 4, generator=generator)
    return x, x.sum(1, keepdim=True)


def network(*layers):
    return nn.Sequential(nn.Linear(4, 8), *layers, nn.Tanh(), nn.Linear(8, 1))


def loss_of(model):
    x, y = data()
    return (model(x) - y).pow(2).mean()


def train(model, optimizer, *, frozen_at=None, set_to_none=False, steps=STEPS):
    for index in range(steps):
        if index == frozen_at:
            model[0].requires_grad_(False)
        loss_of(model).backward()
        optimizer.step()  # <- here
        optimizer.zero_grad(set_to_none=set_to_none)


OPTIMIZERS = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "decay": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
}


@pytest.mark.parametrize("made", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_zeros_that_are_left_move_a_frozen_parameter(audited, only, line_of, made):
    model = network()
    optimizer = made(model.parameters())
    session = audited(lambda: train(model, optimizer, frozen_at=2))
    finding = only(session, CODE)
    assert finding.severity is Severity.WARNING
    assert finding.location.line == line_of(train)
    assert (
        "moved 2 parameters (`0.weight`, `0.bias`) that no longer require grad" in finding.message
    )
    assert "all zero, are still there" in finding.message


def never_cleared(model, optimizer):
    for index in range(STEPS):
        if index == 1:
            model[0].requires_grad_(False)
        for parameter in model[2].parameters():
            parameter.grad = None
        loss_of(model).backward()
        optimizer.step()  # <- here


def test_a_gradient_that_is_left_moves_it(audited, only, line_of):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    finding = only(audited(lambda: never_cleared(model, optimizer)), CODE)
    assert finding.location.line == line_of(never_cleared)
    assert "the gradients from before they were frozen are still there" in finding.message


def none_left():
    model = network()
    train(model, OPTIMIZERS["momentum"](model.parameters()), frozen_at=2, set_to_none=True)


def zeros_without_momentum():
    model = network()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), frozen_at=2)


def frozen_from_the_start():
    model = network()
    model[0].requires_grad_(False)
    train(model, OPTIMIZERS["decay"](model.parameters()))


def gradients_put_by_the_program():
    model = network().requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(STEPS):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()


def frozen_and_thawed_in_turns():
    g, d = nn.Linear(4, 4), nn.Linear(4, 1)
    of_g, of_d = (torch.optim.Adam(each.parameters()) for each in (g, d))
    x, y = data()
    for _ in range(STEPS):
        d.requires_grad_(False)
        of_g.zero_grad()
        d(g(x)).mean().backward()
        of_g.step()
        d.requires_grad_(True)
        of_d.zero_grad(set_to_none=False)
        (d(g(x).detach()) - y).pow(2).mean().backward()
        of_d.step()


def left_out_of_a_new_optimizer():
    model = network()
    train(model, OPTIMIZERS["momentum"](model.parameters()))
    model[0].requires_grad_(False)
    train(model, OPTIMIZERS["momentum"](model[2].parameters()))


@pytest.mark.parametrize(
    "loop",
    [
        none_left,
        zeros_without_momentum,
        frozen_from_the_start,
        gradients_put_by_the_program,
        frozen_and_thawed_in_turns,
        left_out_of_a_new_optimizer,
    ],
    ids=lambda loop: loop.__name__,
)
def test_parameters_that_stay_are_not_told_of(audited, loop):
    assert CODE not in {finding.code for finding in audited(loop).findings}


def with_batch_norm(prepare, *, between=None, steps=STEPS):
    model = network(nn.BatchNorm1d(8))
    prepare(model)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()  # <- here
        if between is not None:
            between(model)


def freeze_the_first_layers(model):
    model[:2].requires_grad_(False)


def freeze_and_set_to_evaluation(model):
    model[:2].requires_grad_(False).eval()


def freeze_without_parameters(model):
    model[1] = nn.BatchNorm1d(8, affine=False)
    model[0].requires_grad_(False)


def freeze_all_but_the_norm(model):
    model.requires_grad_(False)
    model[1].requires_grad_(True)


def follow(model):
    with torch.no_grad():
        model[1].weight.mul_(0.9).add_(0.1)
        model[1].bias.mul_(0.9).add_(0.01)


def test_statistics_of_a_frozen_layer_are_a_note(audited, only, line_of):
    session = audited(lambda: with_batch_norm(freeze_the_first_layers))
    finding = only(session, CODE)
    assert finding.severity is Severity.NOTE
    assert "running statistics of 1 frozen layer (`model[1]`) change" in finding.message
    assert finding.location.line == line_of(with_batch_norm)


@pytest.mark.parametrize(
    ("prepare", "between"),
    [
        (freeze_and_set_to_evaluation, None),
        (freeze_without_parameters, None),
        (freeze_all_but_the_norm, None),
        (freeze_the_first_layers, follow),
        (lambda _: None, None),
    ],
    ids=["evaluation", "no parameters", "adapts", "follows another", "nothing frozen"],
)
def test_statistics_that_may_move_are_not_told_of(audited, prepare, between):
    session = audited(lambda: with_batch_norm(prepare, between=between))
    assert CODE not in {finding.code for finding in session.findings}


def test_a_model_of_which_nothing_trains_is_not_told_of(audited):
    teacher = network(nn.BatchNorm1d(8)).requires_grad_(False)
    student = network()

    def loop():
        optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
        for _ in range(STEPS):
            optimizer.zero_grad()
            (student(data()[0]) - teacher(data()[0])).pow(2).mean().backward()
            optimizer.step()

    assert CODE not in {finding.code for finding in audited(loop).findings}


class Declared:
    """Loops that change something declared, at the line that ends in the marker."""

    @staticmethod
    def gradient(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(model).backward()  # <- here
            optimizer.step()

    @staticmethod
    def step(model):
        model[0].requires_grad_(False)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for parameter in model[0].parameters():
            parameter.grad = torch.zeros_like(parameter)
        loss_of(model).backward()
        optimizer.step()  # <- here

    @staticmethod
    def forward(model):
        model[0].requires_grad_(False)
        x, y = data()
        (model(x) - y).pow(2).mean().backward()  # <- here

    @staticmethod
    def write(model):
        model[0].requires_grad_(False)
        loss_of(model).backward()
        with torch.no_grad():
            model[0][0].weight.mul_(0.5)  # <- here

    @staticmethod
    def data_write(model):
        model[0].requires_grad_(False)
        loss_of(model).backward()
        model[0][0].weight.data.mul_(0.5)  # <- here


def nested(*layers):
    return nn.Sequential(nn.Sequential(nn.Linear(4, 8), *layers), nn.Tanh(), nn.Linear(8, 1))


@pytest.mark.parametrize(
    ("loop", "layers", "said"),
    [
        (
            Declared.gradient,
            (),
            "backward() gave a gradient to `0.0.weight`, `0.0.bias`, 2 tensors",
        ),
        (Declared.step, (), "AdamW.step() changed `0.0.weight`, `0.0.bias`, 2 tensors declared"),
        (
            Declared.forward,
            (nn.BatchNorm1d(8),),
            "a forward of Sequential changed `0.1.running_mea",
        ),
        (Declared.write, (), "mul_() changed `0.0.weight`, 1 tensor declared frozen"),
        (Declared.data_write, (), "mul_() changed `0.0.weight`, 1 tensor declared frozen"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_was_declared_is_told_of_with_the_line(only, line_of, loop, layers, said):
    model = nested(*layers)
    with gs.audit(model) as session:
        session.frozen(model[0])
        loop(model)
    finding = only(session, CODE)
    assert finding.severity is Severity.ERROR
    assert said in finding.message
    assert finding.location.line == line_of(loop)
    assert finding.evidence["declared"] is True
    assert finding.hint


def trains_the_rest(model):
    model[0].requires_grad_(False).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(20):
        optimizer.zero_grad(set_to_none=False)
        loss_of(model).backward()
        optimizer.step()


def test_what_stays_is_not_told_of():
    model = nested(nn.BatchNorm1d(8))
    with gs.audit() as session:
        session.frozen(model[0])
        trains_the_rest(model)
    assert CODE not in {finding.code for finding in session.findings}
    assert session.report.ok


@pytest.mark.parametrize(
    "what",
    [
        lambda _: ("0",),
        lambda _: ("0.*",),
        lambda _: ("*.weight", "0.0.bias"),
        lambda model: (model[0].parameters(),),
        lambda model: tuple(model[0].parameters()),
        lambda model: ([model[0]],),
    ],
)
def test_modules_parameters_and_patterns_of_names(what):
    model = nested()
    with gs.audit(model) as session:
        session.frozen(*what(model))
        Declared.gradient(model)
    (finding,) = [each for each in session.findings if each.code == CODE]
    assert "0.0.weight" in finding.evidence["names"]


def test_a_write_that_nothing_tells_of_is_found_in_the_end():
    model = nested()
    with gs.audit() as session:
        session.frozen(model)
        model[0][0].weight.detach().numpy()[0] += 1.0
    (finding,) = session.findings
    assert "changed while nothing told of it" in finding.message
    assert finding.location is None


def test_a_gradient_from_before_and_one_of_zeros_are_none():
    model = nested()
    loss_of(model).backward()
    with gs.audit() as session:
        session.frozen(model)
        (loss_of(model) * 0.0).backward()
    found = [each for each in session.findings if each.code == CODE]
    assert len(found) == 1  # added to what was there, which is not zero
    with gs.audit() as session:
        model.zero_grad()
        session.frozen(model)
        (loss_of(model) * 0.0).backward()
    assert CODE not in {finding.code for finding in session.findings}


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ((), "got nothing that has a parameter"),
        ((3,), "got int"),
        ((nn.Tanh(),), "got nothing that has a parameter"),
        (
            ("encoder.*",),
            "no parameter and no buffer of the Sequential fits 'encoder.*'; its",
        ),
    ],
)
def test_wrong_declarations_are_refused(what, said):
    with gs.audit(network()) as session, pytest.raises(gs.UsageError, match=re.escape(said)):
        session.frozen(*what)


def test_a_pattern_needs_a_model():
    with gs.audit() as session, pytest.raises(gs.UsageError, match=r"frozen\('a', model=model\)"):
        session.frozen("a")


def test_declaring_changes_nothing(audited):
    def run(*, declares):
        torch.manual_seed(0)
        model = nested(nn.BatchNorm1d(8))
        with gs.audit() as session:
            if declares:
                session.frozen(model[0])
            trains_the_rest(model)
        return copy.deepcopy(model.state_dict())

    plain, declared = run(declares=False), run(declares=True)
    assert all(torch.equal(plain[name], declared[name]) for name in plain)
