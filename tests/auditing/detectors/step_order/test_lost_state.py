"""States that do not carry over (GCS319, GCS318, GCS112), and those that do."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from gradcheck_suite.auditing.source_analysis import optimizer_source
from gradcheck_suite.auditing.source_analysis.optimizer_source import state_uses
from gradcheck_suite.findings import Severity


class Averaging(torch.optim.Optimizer):
    def __init__(self, params, update, **options):
        super().__init__(params, {"lr": 0.1, "momentum": 0.9, **options})
        self.update = update

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    step = self.update(self.state[parameter], parameter.grad, group)
                    parameter.add_(step, alpha=-group["lr"])


class Renewed(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.02, "momentum": 0.9})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if group["momentum"] > 0:
                    state["momentum_buffer"] = torch.zeros_like(parameter)  # <- here
                buffer = state["momentum_buffer"]
                buffer.mul_(group["momentum"]).add_(parameter.grad, alpha=1 - group["momentum"])
                parameter.add_(buffer.sign(), alpha=-group["lr"])


class Orthogonal(torch.optim.Optimizer):
    def __init__(self, params, convert):
        super().__init__(params, {"lr": 0.01, "momentum": 0.95})
        self.convert = convert

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["kept"] = torch.zeros_like(parameter)
                kept = state["kept"]
                kept.lerp_(parameter.grad, 1 - group["momentum"])  # <- here
                direction = self.convert(kept)
                direction.div_(direction.norm().clamp(min=1e-7))
                parameter.add_(direction, alpha=-group["lr"])


class OfRows(torch.optim.Optimizer):
    def __init__(self, params, *, writes_back=False, amsgrad=True):
        super().__init__(params, {"lr": 0.01, "rate": 0.9, "amsgrad": amsgrad})
        self.writes_back = writes_back

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["squares"] = torch.zeros_like(parameter)
                    state["largest"] = torch.zeros_like(parameter)
                rows = parameter.grad.abs().sum(1).nonzero().flatten()
                gradient = parameter.grad[rows]
                squares = state["squares"][rows].mul_(group["rate"])
                squares.addcmul_(gradient, gradient, value=1 - group["rate"])
                state["squares"][rows] = squares
                if group["amsgrad"]:
                    largest = state["largest"][rows]  # <- here
                    torch.maximum(largest, squares, out=largest)
                    if self.writes_back:
                        state["largest"][rows] = largest
                    squares = largest
                step = gradient / squares.sqrt().add_(1e-8)
                parameter.index_add_(0, rows, step, alpha=-group["lr"])


def train(make, *, steps=8):
    model = nn.Sequential(nn.Linear(5, 6, bias=False), nn.Tanh(), nn.Linear(6, 1, bias=False))
    optimizer = make(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(9, 5)).square().mean().backward()
        optimizer.step()


def test_an_average_that_is_made_anew_in_each_step(audited, only, line_of):
    finding = only(audited(lambda: train(Renewed)), "GCS319")
    assert finding.severity is Severity.WARNING
    assert finding.location.line == line_of(Renewed)
    assert 'state["momentum_buffer"] of Renewed is made anew in each step' in finding.message
    assert "it was 0.1 times this step's gradient" in finding.message
    assert finding.evidence["rate"] == 0.9


@pytest.mark.parametrize("convert", [torch.Tensor.float, lambda kept: kept.T])
def test_an_average_that_is_written_as_if_it_were_a_copy(audited, only, line_of, convert):
    made = lambda parameters: Orthogonal(parameters, lambda kept: convert(kept).view_as(kept))  # noqa: E731
    if convert is not torch.Tensor.float:
        made = lambda parameters: Orthogonal(parameters, lambda kept: kept.detach())  # noqa: E731
    finding = only(audited(lambda: train(made)), "GCS112")
    assert finding.severity is Severity.WARNING
    assert finding.location.line == line_of(Orthogonal)
    assert 'state["kept"] of Orthogonal is an average of gradients at the rate 0.95' in (
        finding.message
    )


def test_an_average_of_which_a_copy_is_written(audited):
    assert not audited(lambda: train(lambda each: Orthogonal(each, torch.clone))).findings


def test_an_entry_that_is_read_and_never_written(audited, only, line_of):
    finding = only(audited(lambda: train(OfRows)), "GCS318")
    assert finding.severity is Severity.WARNING
    assert finding.location.line == line_of(OfRows)
    assert 'state["largest"] of OfRows is read here and was nothing but zeros' in finding.message


@pytest.mark.parametrize("options", [{"writes_back": True}, {"amsgrad": False}])
def test_an_entry_that_is_written_or_not_read(audited, options):
    assert not audited(lambda: train(lambda each: OfRows(each, **options))).findings


def usual(state, gradient, group):
    buffer = state.setdefault("buffer", torch.zeros_like(gradient))
    return buffer.mul_(group["momentum"]).add_(gradient)


def average(state, gradient, group):
    buffer = state.setdefault("buffer", torch.zeros_like(gradient))
    return buffer.lerp_(gradient, 1 - group["momentum"])


def corrected(state, gradient, group):
    state["steps"] = state.get("steps", 0) + 1
    return average(state, gradient, group) / (1 - group["momentum"] ** state["steps"])


def kept_corrected(state, gradient, group):
    rate = group["momentum"]
    steps = state["steps"] = state.get("steps", 0) + 1
    buffer = state.setdefault("buffer", torch.zeros_like(gradient))
    old = buffer * (1 - rate ** (steps - 1)) * rate
    return buffer.copy_((old + (1 - rate) * gradient) / (1 - rate**steps))


def clipped(state, gradient, group):
    return average(state, gradient * (0.1 / gradient.norm()).clamp(max=1), group)


def decayed(state, gradient, group):
    return usual(state, gradient + 0.1 * torch.ones_like(gradient), group)


def last(state, gradient, _group):
    state["last"] = gradient.clone()
    return gradient


def last_step(state, gradient, group):
    state["step"] = group["lr"] * gradient
    return gradient


def squares_and_unused(state, gradient, group):
    state.setdefault("unused", torch.zeros_like(gradient))
    squares = state.setdefault("squares", torch.zeros_like(gradient))
    squares.mul_(group["momentum"]).addcmul_(gradient, gradient, value=1 - group["momentum"])
    return gradient / squares.sqrt().add(1e-6)


def signs(state, gradient, group):
    buffer = state.setdefault("buffer", torch.zeros_like(gradient))
    step = (group["momentum"] * buffer + (1 - group["momentum"]) * gradient).sign()
    buffer.lerp_(gradient, 0.01)
    return step


@pytest.mark.parametrize(
    "update",
    [
        *(usual, average, corrected, kept_corrected, clipped, decayed, last, last_step),
        *(squares_and_unused, signs),
    ],
)
def test_states_that_carry_over(audited, update):
    assert not audited(lambda: train(lambda each: Averaging(each, update), steps=12)).findings


def test_one_gradient_again_and_again(audited):
    def full_batch():
        weight = nn.Parameter(torch.ones(6))
        optimizer = Averaging([weight], average)
        direction = torch.arange(1.0, 7)
        for _ in range(9):
            optimizer.zero_grad()
            (weight * direction).sum().backward()
            optimizer.step()

    assert not audited(full_batch).findings


def grow(optimizer, model, key_of):
    group = optimizer.param_groups[0]
    for index, old in enumerate(list(group["params"])):
        new = nn.Parameter(old.detach().clone())
        state = optimizer.state.pop(key_of(index, old), None)  # <- here
        if state is not None:
            optimizer.state[new] = state
        group["params"][index] = new
        model[index] = new


def grown(key_of, *, times=8):
    model = [nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))]
    optimizer = torch.optim.Adam(model, lr=0.01)
    for turn in range(3 * (times + 1)):
        optimizer.zero_grad()
        (model[0] * torch.randn(4) + model[1].square()).sum().backward()
        optimizer.step()
        if turn % 3 == 2 and turn // 3 < times:
            grow(optimizer, model, key_of)


def test_states_of_parameters_that_were_replaced(audited, only, line_of, monkeypatch):
    monkeypatch.setattr(optimizer_source, "user_files_with", lambda *_words: [__file__])
    finding = only(audited(lambda: grown(lambda index, _old: index)), "GCS319")
    assert finding.severity is Severity.WARNING
    assert finding.location.line == line_of(grow)
    assert finding.message.startswith(
        "6 parameters, put into the groups of Adam in place of others"
    )


def test_replaced_once(audited, only):
    finding = only(audited(lambda: grown(lambda index, _old: index, times=1)), "GCS319")
    assert finding.severity is Severity.NOTE


def test_states_that_are_moved(audited):
    assert not audited(lambda: grown(lambda _index, old: old)).findings


def test_parameters_that_join_and_that_come_late(audited):
    def loop():
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
        optimizer = torch.optim.Adam(model[1].parameters(), lr=0.01)
        for turn in range(8):
            if turn == 4:
                optimizer.add_param_group({"params": list(model[0].parameters())})
            optimizer.zero_grad()
            model(torch.randn(5, 3)).square().mean().backward()
            optimizer.step()

    assert not [each for each in audited(loop).findings if each.code == "GCS319"]


def test_a_state_that_is_loaded(audited):
    def loop():
        model = nn.Linear(3, 1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for turn in range(8):
            if turn == 4:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            optimizer.zero_grad()
            model(torch.randn(5, 3)).square().mean().backward()
            optimizer.step()

    assert not audited(loop).findings


def test_what_the_source_does_with_an_entry():
    uses = state_uses(OfRows, "largest", {"amsgrad": True})
    assert [len(each) for each in (uses.made, uses.read, uses.written)] == [1, 1, 1]
    assert not state_uses(OfRows, "largest", {"amsgrad": False}).read
    assert len(state_uses(Orthogonal, "kept", {}).written) == 1
