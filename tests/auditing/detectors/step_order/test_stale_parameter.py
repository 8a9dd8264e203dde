"""Models that are replaced or cut down long after their optimizer was made."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody writes it

from gradcheck_suite.findings import Severity


def mlp():
    return nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 1))


def train(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        F.mse_loss(model(torch.randn(4, 4)), torch.randn(4, 1)).backward()
        optimizer.step()


def copied():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)  # <- made
    train(model, optimizer, 21)
    model = copy.deepcopy(model)  # <- here
    train(model, optimizer, 9)


def copied_and_trained_by_another_line():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)  # <- made
    train(model, optimizer, 4)
    model = copy.deepcopy(model)  # <- here
    for _ in range(8):
        optimizer.zero_grad()
        model(torch.randn(4, 4)).mean().backward()
        optimizer.step()


def best_trained_on():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)  # <- made
    train(model, optimizer, 37)
    best = copy.deepcopy(model)
    train(best, optimizer, 9)
    return model


def loaded_into_a_new_one():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)  # <- made
    train(model, optimizer, 21)
    state = model.state_dict()
    model = mlp()  # <- here
    model.load_state_dict(state)
    train(model, optimizer, 12)


def head_replaced():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)  # <- made
    train(model, optimizer, 21)
    model[2] = nn.Linear(8, 1)  # <- here
    train(model, optimizer, 9)


@pytest.mark.parametrize(
    "loop",
    [
        copied,
        copied_and_trained_by_another_line,
        loaded_into_a_new_one,
        head_replaced,
    ],
)
def test_a_model_replaced_after_many_steps_is_found(audited, line_of, loop):
    session = audited(loop)
    found = {(finding.code, finding.location.line) for finding in session.findings}
    assert found == {("GCS308", line_of(loop)), ("GCS307", line_of(loop, "made"))}


def test_another_model_that_is_trained_on_is_found_where_the_optimizer_was_made(audited, line_of):
    session = audited(best_trained_on)
    made = line_of(best_trained_on, "made")
    found = {(finding.code, finding.location.line) for finding in session.findings}
    assert found == {("GCS308", made), ("GCS307", made)}


class WithHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.body(x).tanh())


def test_a_head_for_another_number_of_classes_is_an_error(audited):
    def loop():
        model = WithHead()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        model.head = nn.Linear(8, 3)
        for _ in range(8):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(4, 4)), torch.randint(3, (4,))).backward()
            optimizer.step()

    told = {each.code: each for each in audited(loop).findings}
    assert told.keys() == {"GCS307", "GCS308"}
    finding = told["GCS307"]
    assert finding.severity is Severity.ERROR
    assert "`model.head.weight`, `model.head.bias`" in finding.message


def test_layers_taken_out_are_found(audited):
    def pruned():
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        train(model, optimizer, 21)
        del model[0]
        train(model, optimizer, 9)

    (finding,) = audited(pruned).findings
    assert finding.code == "GCS308"
    assert "owns 2 parameters" in finding.message


def alternating_models():
    models = [mlp(), mlp()]
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-3) for model in models]
    for step in range(40):
        for optimizer in optimizers:
            optimizer.zero_grad()
        models[step % 10 < 5](torch.randn(4, 4)).mean().backward()
        for optimizer in optimizers:
            optimizer.step()


def second_phase_with_an_optimizer_of_its_own():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    train(model, optimizer, 20)
    student = copy.deepcopy(model)
    train(student, torch.optim.SGD(student.parameters(), lr=1e-3), 20)


def layers_dropped_at_random():
    draws = random.Random(0)
    layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(6))
    optimizer = torch.optim.Adam(layers.parameters(), lr=1e-3)
    for _ in range(60):
        x = torch.randn(4, 4)
        for layer in layers:
            if draws.random() > 0.3:
                x = x + layer(x)
        optimizer.zero_grad()
        x.pow(2).mean().backward()
        optimizer.step()


def layers_taken_out_with_a_new_optimizer():
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)), nn.Linear(4, 1))
    for _ in range(4):
        train(model, torch.optim.Adam(model.parameters(), lr=1e-3), 12)
        del model[0]


def codes_of_images():
    decoder = mlp()
    codes = [nn.Parameter(torch.zeros(4)) for _ in range(50)]
    optimizer = torch.optim.Adam([*decoder.parameters(), *codes], lr=1e-3)
    for step in range(40):
        optimizer.zero_grad()
        decoder(codes[step]).mean().backward()
        optimizer.step()


def some_codes_at_random():
    draws = random.Random(0)
    decoder = mlp()
    codes = [nn.Parameter(torch.zeros(4)) for _ in range(50)]
    optimizer = torch.optim.Adam(codes, lr=1e-3)
    for _ in range(40):
        optimizer.zero_grad()
        sum(decoder(code).mean() for code in draws.sample(codes, 3)).backward()
        optimizer.step()


def gradients_taken_from_a_copy():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    train(model, optimizer, 10)
    worker = copy.deepcopy(model)
    for _ in range(20):
        worker.load_state_dict(model.state_dict())
        worker.zero_grad()
        worker(torch.randn(4, 4)).mean().backward()
        optimizer.zero_grad()
        for own, theirs in zip(model.parameters(), worker.parameters(), strict=True):
            own.grad = theirs.grad
        optimizer.step()


@pytest.mark.parametrize(
    "loop",
    [
        alternating_models,
        second_phase_with_an_optimizer_of_its_own,
        layers_dropped_at_random,
        layers_taken_out_with_a_new_optimizer,
        codes_of_images,
        some_codes_at_random,
        gradients_taken_from_a_copy,
    ],
)
def test_what_has_its_turn_now_and_then_is_no_finding(audited, loop):
    assert not audited(loop).report.at_least(Severity.WARNING)


def overwritten_for_its_backward():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(4):
        y = model(torch.randn(4, 4)).sigmoid()
        y *= 2  # <- here
        optimizer.zero_grad()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.mean().backward()
        optimizer.step()


def weights_stepped_before_the_second_backward():
    critic, actor = mlp(), nn.Linear(4, 4)
    of_critic = torch.optim.SGD(critic.parameters(), lr=1e-3)
    of_actor = torch.optim.SGD(actor.parameters(), lr=1e-3)
    for _ in range(4):
        value = critic(actor(torch.randn(8, 4)).tanh())
        of_critic.zero_grad()
        value.pow(2).mean().backward(retain_graph=True)
        of_critic.step()  # <- here
        of_actor.zero_grad()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            (-value.mean()).backward()
        of_actor.step()


@pytest.mark.parametrize(
    ("loop", "code"),
    [
        (overwritten_for_its_backward, "GCS108"),
        (weights_stepped_before_the_second_backward, "GCS109"),
    ],
)
def test_a_backward_that_fails_is_the_only_thing_told(audited, line_of, loop, code):
    (finding,) = audited(loop).findings
    assert (finding.code, finding.location.line) == (code, line_of(loop))
