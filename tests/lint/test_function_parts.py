"""What a function is known to have before it is read, and how values are joined."""

from __future__ import annotations

import libcst as cst
import pytest

from gradcheck_lint.model.flow import InPlace
from gradcheck_lint.model.module import FunctionModel, ModuleModel
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.model.syntax import assigned_pairs, walk
from gradcheck_lint.model.values import NOTHING, join, join_all
from gradcheck_lint.rules import RULES
from tests.lint.fixtures_of_rules import fixtures_of

_SOURCES = [source for rule in RULES for source in fixtures_of(rule.slug).sources]


def _functions(source: str) -> list[FunctionModel]:
    model = ModuleModel(cst.parse_module(source), source.encode())
    return list(model.functions())[1:]


_WRITING = """
import torch
from torch.nn import functional as F

def f(self, x, y, out):
    for _ in y:
        {statement}
"""


@pytest.mark.parametrize(
    "statement",
    [
        "x += 1",
        "x[0] = 1",
        "x[y] -= 2",
        "x[0]: int = 1",
        "x.add_(1)",
        "torch.relu_(x)",
        "F.relu(x, inplace=True)",
        "torch.add(x, 1, out=y)",
        "torch.add(x, 1,\n            # where to\n            out = y)",
        "torch.add(x, 1, \\\n            out=y)",
        "z = lambda: x.mul_(2)",
    ],
)
def test_a_write_in_place_is_a_part(statement: str) -> None:
    (function,) = _functions(_WRITING.format(statement=statement))
    assert Part.WRITE in function.scope.parts


@pytest.mark.parametrize(
    "statement",
    [
        "out = x(y)",
        "x = y(out)",
        "type_ = x.requires_grad_()",
        "x.detach_()",
        "torch.nn.init.xavier_uniform_(x)",
        "assert out == x",
    ],
)
def test_names_like_those_of_writes_are_none(statement: str) -> None:
    (function,) = _functions(_WRITING.format(statement=statement))
    assert Part.WRITE not in function.scope.parts
    assert not any(isinstance(event, InPlace) for event in function.events())


@pytest.mark.slow
def test_whatever_writes_in_place_has_the_part_for_it() -> None:
    writing = 0
    for source in _SOURCES:
        for function in _functions(source):
            writes = any(isinstance(event, InPlace) for event in function.events())
            assert not writes or Part.WRITE in function.scope.parts, function.scope.name
            writing += writes
    assert writing > 40


def test_values_are_joined_all_at_once_as_they_are_in_pairs() -> None:
    checked = 0
    for reference in RULES[:12]:
        for example in fixtures_of(reference.slug).invalid:
            for function in _functions(example.source):
                sets = [*function.bindings.values(), NOTHING]
                for number in range(len(sets) + 1):
                    one_by_one = NOTHING
                    for values in sets[:number]:
                        one_by_one = join(one_by_one, values)
                    assert join_all(sets[:number]) == one_by_one
                    checked += number > 2
    assert checked > 30


@pytest.mark.slow
def test_small_statements_are_those_among_all_nodes() -> None:
    checked = 0
    for source in _SOURCES:
        for function in _functions(source):
            known = function.scope.small_statements
            assert list(map(id, known)) == [
                id(node)
                for node in function.scope.nodes
                if isinstance(node, cst.BaseSmallStatement)
            ]
            checked += len(known)
    assert checked > 1000


def test_nodes_are_found_by_their_types_in_order() -> None:
    checked = 0
    for source in _SOURCES[::20]:
        model = ModuleModel(cst.parse_module(source), source.encode())
        for function in model.functions():
            nodes = function.scope.nodes
            for kinds in ((cst.Call,), (cst.Assign, cst.AnnAssign), (cst.If, cst.For, cst.Call)):
                found = function.scope.nodes_of(*kinds)
                assert list(map(id, found)) == [id(node) for node in nodes if type(node) in kinds]
                checked += len(found)
            pairs = [pair for node in nodes for pair in assigned_pairs(node)]
            assert list(function.scope.assignments) == pairs
        assert list(model.nodes_of(cst.Call)) == [
            node for node in walk(model.tree) if type(node) is cst.Call
        ]
    assert checked > 200


def test_calls_are_found_by_their_nodes() -> None:
    (function,) = _functions("def f(g, x):\n    y = g(x)\n    return y + 1\n")
    (call,) = function.scope.nodes_of(cst.Call)
    known = function.call_at(call)
    assert known is not None
    assert known.node is call
    assert function.call_at(call.func) is None
