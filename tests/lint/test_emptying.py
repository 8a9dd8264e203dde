"""Containers of losses that a loop fills: those that it empties again pile nothing up."""

from __future__ import annotations

import textwrap

import pytest

from gradcheck_lint.engine import lint_source

_LOOP = """
import torch

def fit(model, optimizer, loader, flush, queue):
    losses = []
    total = 0.0
{before}
    for i, x in enumerate(loader):
        optimizer.zero_grad()
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss)
{inside}
    return losses
"""

_OBJECT = """
import torch

class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.losses = []

    def advance(self, x):
        self.optimizer.zero_grad()
        loss = self.model(x).mean()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss)

    def report(self):
{inside}

    def fit(self, loader):
        for i, x in enumerate(loader):
            self.advance(x)
            if i % 10 == 0:
                self.report()
"""

_EMPTYING = [
    "losses.clear()",
    "del losses[:]",
    "losses[:] = []",
    "losses = []",
    "losses = losses[-10:]",
    "losses = [known.detach() for known in losses]",
    "losses[-1] = losses[-1].item()",
    "while len(losses) > 10:\n    losses.pop(0)",
    "if len(losses) > 10:\n    del losses[0]",
    "if i % 10 == 0:\n    print(sum(known.item() for known in losses))\n    losses.clear()",
    "flush(losses)",
    "queue.push(losses)",
]
_KEEPING = [
    "pass",
    "print(len(losses))",
    "best = min(known.item() for known in losses)",
    "total += loss.item()",
    "others = losses[-10:]",
    "losses.sort(key=float)",
]


def _codes(source: str) -> list[str]:
    compile(source, "train.py", "exec")
    return [finding.code for finding in lint_source(source.encode(), "train.py")]


def _filled(template: str, *, before: str = "pass", inside: str, level: int) -> str:
    return template.format(
        before=textwrap.indent(before, "    "), inside=textwrap.indent(inside, "    " * level)
    )


@pytest.mark.parametrize("inside", _EMPTYING)
def test_a_list_that_the_loop_empties(inside: str) -> None:
    assert _codes(_filled(_LOOP, inside=inside, level=2)) == []


@pytest.mark.parametrize("inside", _KEEPING)
def test_a_list_that_the_loop_only_looks_at(inside: str) -> None:
    assert _codes(_filled(_LOOP, inside=inside, level=2)) == ["GCS201"]


@pytest.mark.parametrize(
    ("before", "inside"),
    [
        ("def report():\n    print(len(losses))\n    losses.clear()", "report()"),
        ("def report(known):\n    known.clear()", "report(losses)"),
        ("report = lambda: losses.clear()", "report()"),
        ("def drop():\n    losses.pop(0)\ntodo = [drop]", "todo[0]()"),
    ],
    ids=["closure", "argument", "lambda", "in a list"],
)
def test_a_list_that_a_function_empties(before: str, inside: str) -> None:
    assert _codes(_filled(_LOOP, before=before, inside=inside, level=2)) == []


def test_a_list_that_is_emptied_before_the_loop_alone() -> None:
    source = _filled(_LOOP, before="losses.clear()", inside="pass", level=2)
    assert _codes(source) == ["GCS201"]


@pytest.mark.parametrize(
    "inside",
    [
        "self.losses.clear()",
        "self.losses = []",
        "del self.losses[:]",
        "self.steps, self.losses = 0, []",
        "self.steps = self.losses = []",
    ],
)
def test_a_list_of_an_object_that_another_method_empties(inside: str) -> None:
    assert _codes(_filled(_OBJECT, inside=inside, level=2)) == []


def test_a_list_of_an_object_that_nothing_empties() -> None:
    assert _codes(_filled(_OBJECT, inside="print(len(self.losses))", level=2)) == ["GCS201"]
