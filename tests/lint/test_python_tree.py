"""What is left out without being looked at: fields of a tree, and functions without an act."""

from __future__ import annotations

import ast
import inspect
import sys

import libcst as cst
import pytest

from gradcheck_lint.model import module, paths, statements
from gradcheck_lint.model.attributes import collect_attributes
from gradcheck_lint.model.module import ModuleModel
from gradcheck_lint.model.python_tree import child_nodes, walk_python
from gradcheck_lint.model.scopes import walk_near
from gradcheck_lint.model.syntax import ATOMS, child_list, semantic_fields, walk
from gradcheck_lint.rules import RULES
from gradcheck_lint.skeleton import Skeleton, UnsupportedSyntaxError

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


_BESIDES = """
def f(x): return
def f(x): return x + 1
x: int
y[a:b, ...][c, *d] = (e), *f = [g, *h] = i = j if k else l
m(n, *o, p=q, **r).s.t(not u, -v, ~w, x and y or z, 1 < a <= b is not c not in d)
return_ = lambda: (yield)
if a: b; c
elif d: e
else: f
"""


@pytest.mark.parametrize(
    "source",
    [_RARE, _BESIDES, *_SOURCES[1:]],
    ids=["rare", "besides", "module", "paths", "statements", "ast"],
)
def test_what_lies_below_a_node_is_what_its_fields_hold(source: str) -> None:
    kinds = set()
    for tree in _trees(source):
        for node in walk(tree):
            kinds.add(type(node))
            below = []
            for name in () if type(node) in ATOMS else semantic_fields(type(node)):
                value = getattr(node, name)
                known = value if isinstance(value, (list, tuple)) else [value]
                below.extend(item for item in known if isinstance(item, cst.CSTNode))
            assert list(map(id, child_list(node))) == list(map(id, below)), type(node)
    if source is _BESIDES:
        assert kinds >= _COMMON


_COMMON = frozenset(
    {
        *(cst.Attribute, cst.Call, cst.Arg, cst.Subscript, cst.SubscriptElement, cst.Index),
        *(cst.BinaryOperation, cst.Tuple, cst.List, cst.Element, cst.SimpleStatementLine),
        *(cst.IndentedBlock, cst.Expr, cst.Comparison, cst.ComparisonTarget, cst.Return),
        *(cst.UnaryOperation, cst.BooleanOperation, cst.Assign, cst.AssignTarget),
    }
)


def _trees(source: str) -> list[cst.Module]:
    """Return the whole tree, and the one without white space where the syntax has one."""
    try:
        return [cst.parse_module(source), Skeleton(source.encode()).tree]
    except UnsupportedSyntaxError:
        return [cst.parse_module(source)]


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


_NEAR = """
import torch
from torch.autograd import Variable as V

def plain(x):
    return x + 1

class A:
    word = 1

    def method(self, x):
        def inner():
            return x.word
        return inner()

@decorated(word)
def other(x=word):
    pass
"""


def test_a_walk_near_words_passes_over_functions_without_them_alone() -> None:
    tree = Skeleton(_NEAR.encode()).tree
    assert [id(node) for node in walk_near(tree, frozenset({"word", "x", "pass"}))] == [
        id(node) for node in walk(tree)
    ]
    near = [
        node.value for node in walk_near(tree, frozenset({"word"})) if isinstance(node, cst.Name)
    ]
    assert near.count("word") == 4
    whole = cst.parse_module(_NEAR)
    assert list(walk_near(whole, frozenset())) == list(walk(whole))


def test_words_tell_what_attributes_a_method_may_bind_and_whether_it_returns() -> None:
    checked = 0
    for reference in RULES:
        rule = reference.load()
        for example in (*rule.invalid, *rule.valid):
            source = example.source.encode()
            skeleton = Skeleton(source)
            for scope in ModuleModel(skeleton.tree, source, outline=skeleton).scopes.functions[1:]:
                found: dict[str, list[cst.BaseExpression | None]] = {}
                collect_attributes(scope, found)
                for name in found:
                    assert scope.may_bind_attribute(name), (reference.code, scope.name, name)
                checked += len(found)
                returns = any(isinstance(node, cst.Return) for node in scope.nodes)
                assert scope.may_return is returns, (reference.code, scope.name)
    assert checked > 100


@pytest.mark.parametrize(
    "statement",
    [
        "self.a = x",
        "self.a: int = x",
        "b, self.a = x",
        "(self.a, [self.c]) = x, [y]",
        "if x: self.a = x",
        "for i in x:\n            try: y\n            finally: self.a = x",
        "self.register_parameter('a', x)",
        "def inner(): self.a = x",
    ],
)
def test_an_attribute_is_bound_in_many_ways(statement: str) -> None:
    source = f"class A:\n    def f(self, x):\n        {statement}\n".encode()
    skeleton = Skeleton(source)
    *_, scope = (
        scope
        for scope in ModuleModel(skeleton.tree, source, outline=skeleton).scopes.functions
        if scope.name == "A.f"
    )
    found: dict[str, list[cst.BaseExpression | None]] = {}
    collect_attributes(scope, found)
    assert "a" in found
    assert scope.may_bind_attribute("a")


def test_other_attributes_are_not_looked_for() -> None:
    source = b"class A:\n    def f(self, x):\n        self.a = self.b\n        x.c(self.d)\n"
    skeleton = Skeleton(source)
    scope = ModuleModel(skeleton.tree, source, outline=skeleton).scopes.functions[-1]
    assert scope.may_bind_attribute("a")
    assert not any(map(scope.may_bind_attribute, "bcd"))
    assert not scope.may_return
