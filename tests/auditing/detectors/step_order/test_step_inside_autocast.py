"""Steps inside one autocast region, whose cached casts are stale after the first."""

from __future__ import annotations

import pytest
import torch
from torch import nn


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def turn(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(3, 4)).float().pow(2).mean().backward()
    optimizer.step()


def codes(session):
    return [finding.code for finding in session.findings]


def test_a_whole_epoch_in_one_region(audited, only, line_of, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train():
        for _ in range(2):
            with torch.autocast("cpu", dtype=torch.bfloat16):  # <- here
                for _ in range(5):
                    turn(model, optimizer)

    finding = only(audited(train), "GCS314")
    assert finding.severity.value == "error"
    assert finding.location.line == line_of(train)
    assert (
        "SGD.step() ran after another step inside one autocast region, 8 times" in finding.message
    )
    assert finding.related[0].message == "stepped here, inside the region"


def region_for_each_step(model, optimizer):
    for _ in range(5):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            turn(model, optimizer)


def region_around_the_forward(model, optimizer):
    for _ in range(5):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.ones(3, 4)).float().pow(2).mean()
        loss.backward()
        optimizer.step()


def without_the_cache(model, optimizer):
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        for _ in range(5):
            turn(model, optimizer)


def switched_off(model, optimizer):
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
        for _ in range(5):
            turn(model, optimizer)


def for_another_device(model, optimizer):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.ones(3, 4))
    for _ in range(5):
        turn(model, optimizer)


@pytest.mark.parametrize(
    "loop",
    [
        region_for_each_step,
        region_around_the_forward,
        without_the_cache,
        switched_off,
        for_another_device,
    ],
)
def test_look_alikes(audited, model, loop):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert "GCS314" not in codes(audited(lambda: loop(model, optimizer)))


def test_narrow_parameters_are_not_cast(audited, model):
    model = model.to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for _ in range(5):
                optimizer.zero_grad()
                model(torch.ones(3, 4, dtype=torch.bfloat16)).float().mean().backward()
                optimizer.step()

    assert "GCS314" not in codes(audited(train))
