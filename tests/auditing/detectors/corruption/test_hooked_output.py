"""Outputs that a forward hook keeps and a later layer overwrites (GCS111), and those that stay."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from gradcheck_suite.findings import Severity

FEATURES = {}


class Tap:
    def __init__(self):
        self.value = None

    def save(self, _module, _inputs, output):
        self.value = output  # <- here

    def pop(self):
        value, self.value = self.value, None
        return value


class Caller(Tap):
    def __call__(self, _module, _inputs, output):
        self.value = output.detach()  # <- here


def into_the_globals(_module, _inputs, output):
    FEATURES["block"] = output  # <- here


def into_a_list(found, _module, _inputs, output):
    found.append(output)  # <- here


def network(*, inplace):
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=inplace), nn.Linear(8, 1)
    )


def train(hook, take, *, inplace=True, at=1, steps=3):
    model = network(inplace=inplace)
    model[at].register_forward_hook(hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        loss = model(torch.randn(6, 4)).square().mean() + take().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def by_a_method(**options):
    tap = Tap()
    train(tap.save, tap.pop, **options)


def by_an_object(**options):
    tap = Caller()
    train(tap, lambda: tap.value, **options)


def by_a_global(**options):
    train(into_the_globals, lambda: FEATURES["block"], **options)


def by_a_partial(**options):
    found = []
    train(functools.partial(into_a_list, found), found.pop, **options)


@pytest.mark.parametrize(
    ("loop", "place"),
    [
        (by_a_method, Tap),
        (by_an_object, Caller),
        (by_a_global, into_the_globals),
        (by_a_partial, into_a_list),
    ],
)
def test_the_next_layer_works_in_place(audited, only, line_of, loop, place):
    finding = only(audited(loop), "GCS111")
    # What is kept without its graph is for a log.
    assert finding.severity is (Severity.NOTE if loop is by_an_object else Severity.WARNING)
    assert finding.location.line == line_of(place)
    assert "the output of BatchNorm1d that a forward hook has kept" in finding.message
    assert "by relu_()" in finding.message


@pytest.mark.parametrize("loop", [by_a_method, by_an_object, by_a_global, by_a_partial])
def test_the_next_layer_makes_a_tensor_of_its_own(audited, loop):
    assert not audited(lambda: loop(inplace=False)).findings


@pytest.mark.parametrize("loop", [by_a_method, by_an_object])
def test_the_layer_in_place_itself(audited, loop):
    assert not audited(lambda: loop(at=2)).findings


def a_copy():
    found = []
    train(lambda _module, _inputs, output: found.append(output.clone()), found.pop)


def a_statistic():
    found = []
    train(lambda _module, _inputs, output: found.append(output.mean()), found.pop)


def a_hook_that_changes_the_output():
    found = []

    def double(_module, _inputs, output):
        found.append(output * 2)
        return found[-1]

    train(double, found.pop, inplace=False)


def in_inference_mode():
    tap = Tap()
    model = network(inplace=True).eval()
    model[1].register_forward_hook(tap.save)
    with torch.inference_mode():
        model(torch.randn(6, 4))


@pytest.mark.parametrize(
    "loop", [in_inference_mode, a_copy, a_statistic, a_hook_that_changes_the_output]
)
def test_what_stays_as_it_was(audited, loop):
    assert not audited(loop).findings
