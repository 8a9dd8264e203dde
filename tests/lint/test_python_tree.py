"""What is left out without being looked at: fields of a tree, and functions without an act."""

from __future__ import annotations

import ast
import inspect
import sys

import pytest

from gradcheck_lint.model import module, paths, statements
from gradcheck_lint.model.module import ModuleModel
from gradcheck_lint.model.python_tree import child_nodes, walk_python
from gradcheck_lint.rules import RULES
from gradcheck_lint.skeleton import Skeleton

_RARE = """
from a import b as c
import d
def f(a: int, /, b=1, *c, d, e=2, **g) -> int:
    global h
    return lambda x, y=3: {**x, 1: y, 'k': [*c, f'{a!r:>{b}}']}
async def k():
    async with a as b, c: [x async for x in y if x]
    await (yield)
    return {i: j for i in k}, {l for l in m}, (yield from n)
for i, (j, *k) in l:
    try: pass
    except E as e: raise x from y
    else: del a, b
    finally: assert a, b
while (w := -1) < x <= y and not z: x[1:2, ...] = 1 if a else b; x.y @= z
class C(B, metaclass=M):
    n: int = 1
match x:
    case {'a': 1, **rest} | [P(1, b=2), *_] if g: pass
    case None | True as t: pass
"""

_SOURCES = [_RARE, *map(inspect.getsource, (module, paths, statements, ast))]
_PASSED_OVER = (ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context, ast.alias)


@pytest.mark.parametrize("source", _SOURCES, ids=["rare", "module", "paths", "statements", "ast"])
def test_no_node_is_passed_over(source: str) -> None:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if not isinstance(node, _PASSED_OVER):
            below = [
                known for known in ast.iter_child_nodes(node) if not isinstance(known, _PASSED_OVER)
            ]
            assert child_nodes(node) == below
    everything = [node for node in ast.walk(tree) if not isinstance(node, _PASSED_OVER)]
    assert {id(node) for node in walk_python(tree)} == {id(node) for node in everything}


def test_fields_can_be_skipped() -> None:
    (loop,) = ast.parse("for i in x:\n    y\nelse:\n    z\n").body
    assert isinstance(loop, ast.For)
    assert child_nodes(loop, skip=frozenset({"body", "orelse"})) == [loop.target, loop.iter]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type parameters")
def test_type_parameters_are_nodes() -> None:
    (made,) = ast.parse("def f[T: int](x: T): pass").body
    assert {"T", "int"} <= {
        getattr(node, "name", None) or getattr(node, "id", None) for node in walk_python(made)
    }


def test_words_pass_over_no_function_that_acts() -> None:
    acting = 0
    for reference in RULES:
        rule = reference.load()
        for example in (*rule.invalid, *rule.valid):
            source = example.source.encode()
            skeleton = Skeleton(source)
            model = ModuleModel(skeleton.tree, source, outline=skeleton)
            for function in model.functions():
                acts = any(isinstance(event, paths.PROTOCOL) for event in function.events())
                assert paths.matters(function) is acts, (reference.code, function.scope.name)
                acting += acts
    assert acting > 100
