"""What decides before the parse, or before a function is read, that a rule finds nothing there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gradcheck_lint import engine
from gradcheck_lint.model.scopes import FunctionScope, Part
from gradcheck_lint.rules import RULES, RuleReference
from gradcheck_lint.rules._signs import (
    LEAF_WORD,
    OPTIMIZER_NAME,
    SUBSCRIPT_WRITE,
    WRITE_IN_PLACE,
    Signs,
)

if TYPE_CHECKING:
    from gradcheck_lint.rules._signs import Pattern


@pytest.fixture
def unfiltered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apply every rule to the whole tree of every function of every file."""
    monkeypatch.setattr(engine, "_finds_nothing", lambda _source, _codes: False)
    monkeypatch.setattr(RuleReference, "concerns", lambda _self, _source: True)
    monkeypatch.setattr(FunctionScope, "parts", frozenset(Part))
    for reference in RULES:
        monkeypatch.setattr(type(reference.load()), "may_find", lambda _self, _function: True)


def _sources() -> list[str]:
    rules = [reference.load() for reference in RULES]
    return [example.source for rule in rules for example in (*rule.invalid, *rule.valid[::3])]


def _found(sources: list[str]) -> list[list[tuple[str, int]]]:
    return [
        [
            (finding.code, finding.location.line if finding.location else 0)
            for finding in engine.lint_source(source.encode(), "x.py")
        ]
        for source in sources
    ]


def test_filters_lose_no_finding(request: pytest.FixtureRequest) -> None:
    sources = _sources()
    filtered = _found(sources)
    request.getfixturevalue("unfiltered")
    assert filtered == _found(sources)


def test_a_filter_that_is_too_strict_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = _sources()[:20]
    before = _found(sources)
    monkeypatch.setattr(FunctionScope, "parts", frozenset())
    assert before != _found(sources)


@pytest.mark.parametrize(
    ("sign", "source"),
    [
        (SUBSCRIPT_WRITE, "x[0] = 1"),
        (SUBSCRIPT_WRITE, "x[i, j] += y"),
        (SUBSCRIPT_WRITE, "x[\n    i,\n] = 3"),
        (SUBSCRIPT_WRITE, "x[\n  i: j[0]] = 3"),
        (SUBSCRIPT_WRITE, "if a: b[0] = 1"),
        (SUBSCRIPT_WRITE, "else: b[0] = 1"),
        (SUBSCRIPT_WRITE, "with a, b: c[0] = 1"),
        (SUBSCRIPT_WRITE, "def f(a: list[int] = None): b[0] = 1"),
        (SUBSCRIPT_WRITE, "x[f('(')] = 1"),
        (SUBSCRIPT_WRITE, "x[d['a']] = 1"),
        (WRITE_IN_PLACE, "x.add_(1)"),
        (WRITE_IN_PLACE, "x -= 1"),
        (WRITE_IN_PLACE, "torch.mul(a, b, out=c)"),
        (WRITE_IN_PLACE, "torch.mul(a, b,  # product\n    out = c)"),
        (WRITE_IN_PLACE, "F.relu(x, inplace=True)"),
        (LEAF_WORD, "x.requires_grad_()"),
        (LEAF_WORD, "x.requires_grad = True"),
        (LEAF_WORD, "layer. weight"),
        (OPTIMIZER_NAME, "from torch import optim as o"),
        (OPTIMIZER_NAME, "self.gen_optimizer.step()"),
        (OPTIMIZER_NAME, "scaler.step(self.optimizer)"),
        (OPTIMIZER_NAME, "opt.step()"),
    ],
)
def test_signs_are_seen(sign: Pattern, source: str) -> None:
    assert Signs(source.encode()).has(sign)


@pytest.mark.parametrize(
    ("sign", "source"),
    [
        (SUBSCRIPT_WRITE, "def f(a: list[int] = None):"),
        (SUBSCRIPT_WRITE, "    sizes: dict[str, list[int]] = {}"),
        (SUBSCRIPT_WRITE, "options['a'] = 1"),
        (SUBSCRIPT_WRITE, "if x[0] == 1:"),
        (WRITE_IN_PLACE, "if a <= b or a >= c: super().__init__()"),
        (WRITE_IN_PLACE, "out = layer(x)"),
        (LEAF_WORD, "x.requires_grad_(False)"),
        (OPTIMIZER_NAME, "# optimized for speed; scheduler.step()"),
    ],
)
def test_signs_are_no_wider_than_they_must_be(sign: Pattern, source: str) -> None:
    assert not Signs(source.encode()).has(sign)


@pytest.mark.parametrize(
    "text", ["optim", "step(", "x,#", "x: [", ",a:[", "x[ ", "step( optim.", "]= ", "out=,\n"]
)
def test_looking_for_signs_takes_no_longer_on_hostile_text(text: str) -> None:
    signs = Signs((text * 20_000).encode())
    for rule in RULES:
        rule.concerns(signs)
