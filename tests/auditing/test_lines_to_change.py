"""A finding stands at the line to change, where another line only shows what it does."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody writes it
from torch.utils.checkpoint import checkpoint

from gradcheck_suite import check_gradients

POINT = torch.tensor([0.3, -0.8, 1.1], dtype=torch.float64, requires_grad=True)


def batches(count):
    for _ in range(count):
        yield torch.randn(6, 4), torch.randn(6, 1)


def train(model, optimizer, count=4):
    for x, y in batches(count):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


def weights_cast_to_sixteen_bits():
    model = nn.Linear(4, 1)
    nn.init.zeros_(model.bias)  # which moves
    model = model.to(torch.bfloat16)  # <- here
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    for x, y in batches(40):
        optimizer.zero_grad()
        F.mse_loss(model(x.bfloat16()), y.bfloat16()).backward()
        optimizer.step()


def write_into(model, values):
    for parameter, value in zip(model.parameters(), values, strict=True):
        parameter.data.copy_(value)


def average_swapped_in_for_an_evaluation():
    model = nn.Linear(4, 1)
    average = [torch.zeros_like(each) for each in model.parameters()]
    write_into(model, average)  # the same helper
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        train(model, optimizer)
        average = [each + 0.1 for each in average]
        write_into(model, average)  # <- here
        model.eval()
        with torch.no_grad():
            model(torch.randn(6, 4))
        model.train()


def masks_drawn_anew():
    run = functools.partial(
        checkpoint,
        use_reentrant=False,
        preserve_rng_state=False,  # <- here
    )
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    for x, _ in batches(4):
        run(model, x.requires_grad_()).sum().backward()


def means_of_unlike_micro_batches():
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(12):
        optimizer.zero_grad()
        for kept in (2, 12):
            targets = torch.full((12,), -100)
            targets[:kept] = 1
            mean = F.cross_entropy(model(torch.randn(12, 4)), targets)
            loss = mean / 2  # <- here
            loss.backward()
        optimizer.step()


class Keeper:
    best = None

    def run(self):
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train(model, optimizer)
        state = dict(model.named_parameters())
        self.best = {key: each.detach().cpu() for key, each in state.items()}  # <- here
        train(model, optimizer)
        model.load_state_dict(self.best)


def make_optimizer_of_a_small_model(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def enlarge(model):
    model[0] = nn.Linear(4, 8)
    model[2] = nn.Linear(8, 1)


def replaced_after_the_optimizer_was_made():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = make_optimizer_of_a_small_model(model)  # <- here
    enlarge(model)
    train(model, optimizer, 12)


@pytest.mark.parametrize(
    ("code", "loop"),
    [
        ("GCS110", Keeper.run),
        ("GCS308", replaced_after_the_optimizer_was_made),
        ("GCS311", means_of_unlike_micro_batches),
        ("GCS313", weights_cast_to_sixteen_bits),
        ("GCS316", average_swapped_in_for_an_evaluation),
        ("GCS613", masks_drawn_anew),
    ],
)
def test_the_line_is_that_of_the_cause(audited, line_of, code, loop):
    run = functools.partial(loop, Keeper()) if loop is Keeper.run else loop
    (finding,) = [each for each in audited(run).findings if each.code == code]
    assert finding.location.line == line_of(loop)
    assert finding.related


def fixed_point(x):
    z = torch.tanh(x)

    def doubled(gradient):
        return 2 * gradient  # <- here

    z.register_hook(doubled)
    return z


def test_a_hook_that_changes_a_gradient_is_told(line_of):
    (finding,) = check_gradients(fixed_point, POINT).findings
    assert finding.location.line == line_of(fixed_point)
    assert "a hook returns another gradient there" in finding.message


def made_inside(x):
    layer = nn.Linear(3, 3, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(3))
        layer.bias.zero_()
    return layer(x) + x.detach()  # <- here


def test_weights_that_are_set_before_they_are_used_are_no_overwritten_tensors(line_of):
    (finding,) = check_gradients(made_inside, POINT).findings
    assert finding.location.line == line_of(made_inside)


class Scaled(torch.autograd.Function):
    buffer = torch.empty(3, dtype=torch.float64)

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = Scaled.buffer.fill_(factor)  # <- here
        return x * factor

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


def twice_scaled(x):
    return Scaled.apply(Scaled.apply(x, 2.0).sin(), 3.0)


def test_what_calls_keep_in_one_place_is_told_where_they_keep_it(line_of):
    (finding,) = check_gradients(twice_scaled, POINT).findings
    assert finding.location.line == line_of(Scaled.forward)
