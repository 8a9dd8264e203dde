"""What is left out without being looked at: fields of a tree, and functions without an act."""

from __future__ import annotations

import ast
import inspect
import sys

import libcst as cst
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcheck_lint.model import deferred, module, paths, statements
from gradcheck_lint.model.attributes import collect_attributes
from gradcheck_lint.model.flow import InPlace
from gradcheck_lint.model.module import FunctionModel, ModuleModel
from gradcheck_lint.model.python_tree import child_nodes, head_nodes, walk_python
from gradcheck_lint.model.scopes import Part, Scopes, walk_near
from gradcheck_lint.model.syntax import ATOMS, child_list, semantic_fields, walk
from gradcheck_lint.model.values import NOTHING, join, join_all
from gradcheck_lint.rules import RULES
from gradcheck_lint.skeleton import Skeleton, UnsupportedSyntaxError
from tests.lint.fixtures_of_rules import fixtures_of

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
y[a:b, ...][c, (*d,)] = (e), *f = [g, *h] = i = j if k else l
m(n, *o, p=q, **r).s.t(not u, -v, ~w, x and y or z, 1 < a <= b is not c not in d)
return_ = lambda: (yield)
if a: b; c
elif d: e
else: f
g += f"{h} is {i!r:>{j}}" + f"{k}"
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
        *(cst.UnaryOperation, cst.BooleanOperation, cst.Assign, cst.AssignTarget, cst.AugAssign),
        *(cst.If, cst.Else, cst.FormattedString, cst.FormattedStringText),
        cst.FormattedStringExpression,
    }
)


def _trees(source: str) -> list[cst.Module]:
    """Return the whole tree, and the one without white space where the syntax has one."""
    try:
        return [cst.parse_module(source), Skeleton(source.encode()).tree]
    except UnsupportedSyntaxError:
        return [cst.parse_module(source)]


def test_the_head_of_a_statement_has_no_block() -> None:
    (loop,) = ast.parse("for i in x:\n    y\nelse:\n    z\n").body
    assert isinstance(loop, ast.For)
    assert head_nodes(loop) == [loop.target, loop.iter]
    assert head_nodes(loop) == [loop.target, loop.iter]  # now known
    (plain,) = ast.parse("a = b = c").body
    assert head_nodes(plain) == child_nodes(plain)


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
        for program in fixtures_of(rule.entry.slug).sources:
            source = program.encode()
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
        for program in fixtures_of(rule.entry.slug).sources:
            source = program.encode()
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


@pytest.mark.parametrize(
    "text",
    [
        "a1 _b 2c 0x1f 1e5 1_000 3.5j f(x)[y]:z\nélan größe a\tb\x0bc\x1cd",
        "if 1if x else 0or yield_: 'it''s' \"q\" # noqa",
        "",
        "a=b\\\n.c@d~e!f?g$h`i",
    ],
)
def test_words_are_those_of_the_regular_expression(text: str) -> None:
    for part in (text, text.encode("ascii", "ignore").decode()):
        assert deferred._words_of(part) == frozenset(deferred._WORD.findall(part))


@given(st.text(max_size=80))
@settings(max_examples=200, deadline=None)
def test_words_of_any_text_are_those_of_the_regular_expression(text: str) -> None:
    assert deferred._words_of(text) == frozenset(deferred._WORD.findall(text))


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


def _functions(source: str) -> list[FunctionModel]:
    skeleton = Skeleton(source.encode())
    model = ModuleModel(skeleton.tree, source.encode(), outline=skeleton)
    return list(model.functions())[1:]


def test_whatever_writes_in_place_has_the_part_for_it() -> None:
    writing = 0
    for reference in RULES:
        rule = reference.load()
        for program in fixtures_of(rule.entry.slug).sources:
            for function in _functions(program):
                writes = any(isinstance(event, InPlace) for event in function.events())
                assert not writes or Part.WRITE in function.scope.parts, function.scope.name
                writing += writes
    assert writing > 40


def test_items_that_are_written_to_are_noted() -> None:
    source = """
def f(x, y):
    x[0] = 1
    x[1], (y.z[2], w) = y
    for i in y:
        x[i] += y[i]
        if i:
            x.a[i]: int = 2
    while y:
        pass
    else:
        with y as x[3]: pass
    def inner():
        x[4] = 1
"""
    (function, _) = _functions(source)
    found = [
        (ast.unparse(item.target), ast.unparse(item.source), bool(item.loops))
        for item in function.scope.item_writes
    ]
    assert found == [
        ("x[0]", "1", False),
        ("x[1]", "y", False),
        ("y.z[2]", "y", False),
        ("x[i]", "y[i]", True),
        ("x.a[i]", "2", True),
        ("x[3]", "y", True),
    ]


def test_writes_to_items_that_rules_ask_for_are_all_noted() -> None:
    checked = 0
    for reference in RULES:
        rule = reference.load()
        for program in fixtures_of(rule.entry.slug).sources:
            for function in _functions(program):
                noted = {id(item.target.slice): item for item in function.scope.item_writes}
                for write in function.writes or ():
                    if write.index is not None:
                        item = noted[id(write.index)]
                        assert (item.target.value, item.source) == (write.target, write.source)
                        assert bool(item.loops) is write.in_loop
                        checked += 1
    assert checked > 15


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


def test_small_statements_are_those_among_all_nodes() -> None:
    checked = 0
    for source in (_RARE, _BESIDES, *_SOURCES[1:]):
        for tree in _trees(source):
            for scope in Scopes(tree).functions[1:]:
                known = scope.small_statements
                assert list(map(id, known)) == [
                    id(node) for node in scope.nodes if isinstance(node, cst.BaseSmallStatement)
                ]
                checked += len(known)
    assert checked > 1000
