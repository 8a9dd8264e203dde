"""Parts of a function that no_grad leaves out of its derivative by an input."""

from __future__ import annotations

import torch
from torch import nn

from gradcheck_suite.findings import Severity


def pairs(x):
    return x[:, :, None] - x[:, None, :]


def angles(distances):
    return torch.stack([distances.cos(), distances.sin()], -1)


class Energy(nn.Module):
    """An energy of points on a line: of pairs, and of what is computed of all."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.pair = nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1))
        self.angle = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1))

    def forward(self, x):
        distances = pairs(x)
        energy = self.pair(distances[..., None]).sum((1, 2, 3))
        return energy + self.how(self, x, distances)


def unrecorded(model, _x, distances):
    with torch.no_grad():  # <- here
        features = angles(distances)
    return model.angle(features).sum((1, 2, 3))


@torch.no_grad()  # <- here
def unrecorded_features(distances):
    return angles(distances)


def by_a_function(model, _x, distances):
    return model.angle(unrecorded_features(distances)).sum((1, 2, 3))


def recorded(model, _x, distances):
    return model.angle(angles(distances)).sum((1, 2, 3))


def near_alone(model, _x, distances):
    with torch.no_grad():
        length = distances.abs()
        near = (length < 1.0).float()
        first = length.topk(2, -1).indices
    chosen = distances.gather(-1, first)
    return (near[..., None] * model.angle(angles(distances))).sum((1, 2, 3)) + chosen.sum((1, 2))


def by_a_network(model, x, _distances):
    with torch.no_grad():
        shift = model.pair(x[..., None])
    return (x[..., None] - shift).square().sum((1, 2))


def forces(model, x):
    x = x.detach().requires_grad_()
    energy = model(x)
    return energy, -torch.autograd.grad(energy.sum(), x, create_graph=True)[0]  # <- asked


def train(how):
    model = Energy(how)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(6):
        energy, force = forces(model, torch.randn(5, 3))
        optimizer.zero_grad()
        (energy.square().mean() + (force - 1).square().mean()).backward()
        optimizer.step()


def test_what_is_left_out_of_a_derivative_by_an_input_is_told(audited, only, line_of):
    finding = only(audited(lambda: train(unrecorded)), "GCS402")
    assert finding.severity is Severity.WARNING
    assert finding.location.line == line_of(unrecorded)
    assert finding.message == (
        "what is computed here from `x` is part of what autograd.grad() differentiates by `x`, and "
        "recording is off: the derivative leaves it out; expected a derivative of the whole"
    )
    assert finding.related[0].location.line == line_of(forces, "asked")


def test_a_function_without_recording_is_told(audited, only, line_of):
    finding = only(audited(lambda: train(by_a_function)), "GCS402")
    assert finding.location.line == line_of(unrecorded_features)


def test_masks_and_indices_may_be_computed_without_recording(audited):
    assert not audited(lambda: train(near_alone)).findings
    assert not audited(lambda: train(recorded)).findings


def test_a_network_that_is_left_out_is_a_note(audited):
    found = [
        each for each in audited(lambda: train(by_a_network)).findings if "GCS402" in each.code
    ]
    assert [each.severity for each in found] == [Severity.NOTE]


def test_targets_of_the_same_weights_are_left_alone(audited):
    def loop():
        model = nn.Linear(3, 1)
        parameters = list(model.parameters())
        for _ in range(6):
            x = torch.randn(5, 3)
            with torch.no_grad():
                wanted = 1 + 0.9 * model(x + 1)
            loss = (model(x) - wanted).square().mean()
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for p, g in zip(parameters, gradients, strict=True):
                    p.sub_(g, alpha=0.01)

    assert not audited(loop).findings
