"""The tree without white space says what libcst's says, and answers as the whole tree does."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from typing import TYPE_CHECKING

import libcst as cst
import pytest

from gradcheck_lint import engine, skeleton
from gradcheck_lint.model import module, statements
from gradcheck_lint.model.syntax import semantic_fields
from gradcheck_lint.rules import RULES
from gradcheck_lint.skeleton import Skeleton, UnsupportedSyntaxError, _expressions
from tests.lint.fixtures_of_rules import fixtures_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_NOT_COMPARED = {"posonly_ind", "first_colon", "second_colon", "relative", "start", "end"}
_STRINGS = (cst.SimpleString, cst.ConcatenatedString, cst.FormattedString)

_SYNTAX = """\
from __future__ import annotations
import torch.nn as nn, os
from . import a
from ..b.c import d as e, f
from torch import *
@decorated(1, *args, key=2, **rest)
class A(nn.Module, metaclass=M):
    "Text."
    x: int = 1
    y: list[int]
    def forward(self, x, /, a: int = 1, *b, c, d=2, **e) -> None: return x; pass
    async def g(self):
        async with a as b, c: await d
        async for x in y: yield x
        return [x async for x in y]
def h(*, a): global q, r; nonlocal_ = 1
def i():
    v = 1
    def j():
        nonlocal v
        del v, v
if a: b
elif c: d
else:
    if e: f
for (a, b), *c in d:
    if a: break
    else: continue
else: e
while x := f(): pass
with (a as b, c): pass
try: a
except (A, B) as e: raise C from e
except D: raise
else: b
finally: c
x = y = a, *b
x += 1; x -= y; x @= z; x **= 2; x //= 3; x >>= 1; x <<= 1; x &= 1; x |= 1; x ^= 1; x %= 2; x /= 3
x[1:2, ..., ::3] = x[(i)] = x[i,] = x[a:b] = x[(1, 2)] = x[((a)), (b)] = x[((a), b)] = 1
f(x for x in y if z if w for q in r)
z = {a: 1, **b, "c": {1, 2}}, [*a, 1], {k: v for k, v in w}, {x for x in y}
z = a if b else c, lambda x, *y, k=1, **z: x, -1, +1, ~1, not a, a and b and c or d
z = a < b <= c != d is e is not f in g not in h == i > j >= k
z = a + b - c * d / e // f % g ** h @ i << j >> k & l | m ^ n
z = 1, 1.5, 2j, 0x10, 1_000, "a", b"b", "a" "b", f"{a!r:>{b}} c", ..., None, True
assert a, b
f(a, *b, c=1, *d, **e)
yield_ = lambda: (yield)
def k(): yield from x
"""
if sys.version_info >= (3, 11):
    _SYNTAX += "x[a, *b] = 1\n"


def _said(node: object) -> object:
    """Return what a tree says, without how it's spelt."""
    if isinstance(node, _STRINGS):
        return "string"
    if isinstance(node, (cst.Integer, cst.Float, cst.Imaginary)):
        return ast.literal_eval(node.value)
    if isinstance(node, (cst.Module, cst.IndentedBlock, cst.SimpleStatementSuite)):
        return _statements(node.body)
    if isinstance(node, cst.CSTNode):
        fields = [name for name in semantic_fields(type(node)) if name not in _NOT_COMPARED]
        return (type(node).__name__, *(_said(getattr(node, name)) for name in fields))
    return [_said(item) for item in node] if isinstance(node, (list, tuple)) else node


def _statements(body: object) -> list[object]:
    assert isinstance(body, (list, tuple))
    found: list[object] = []
    for statement in body:
        if isinstance(statement, cst.SimpleStatementLine):
            found.extend(map(_said, statement.body))
        else:
            found.append(_said(statement))
    return found


def _sources() -> Iterator[str]:
    for reference in RULES:
        rule = reference.load()
        yield from fixtures_of(rule.entry.slug).sources


@pytest.mark.parametrize(
    "source",
    [
        _SYNTAX,
        *map(inspect.getsource, (engine, skeleton, _expressions, module, statements, ast)),
    ],
    ids=["syntax", "engine", "skeleton", "expressions", "module", "statements", "ast"],
)
def test_it_says_what_the_whole_tree_says(source: str) -> None:
    assert _said(Skeleton(source.encode()).tree) == _said(cst.parse_module(source))


def test_a_tree_that_says_something_else_would_be_seen() -> None:
    assert _said(cst.parse_module("x = a + b")) != _said(cst.parse_module("x = a - b"))
    assert _said(cst.parse_module("f(a, b=1)")) != _said(cst.parse_module("f(a, c=1)"))


def test_nothing_is_found_in_it_exactly_where_nothing_is_found() -> None:
    for source in _sources():
        silent = _look(source.encode()).suspects == frozenset()
        found = engine.inspect_source(source.encode(), "x.py").findings
        assert silent == (not found), source


def _look(source: bytes) -> engine._Look:
    return engine._look(source, "x.py", engine._Plan(tuple(rule.code for rule in RULES), None))


def test_files_whose_comments_may_matter_get_it_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    monkeypatch.setattr(engine, "_inspect", lambda source, *_: parsed.append(source) or _NOTHING)
    silent = (
        b"import torch\nfor x in y:\n    opt.zero_grad()\n    f(x).backward()\n    opt.step()\n"
    )
    assert engine.lint_source(silent, "x.py") == ()
    assert not parsed
    found = b"import torch\nw = torch.ones(3, requires_grad=True)\nw += 1\n"
    assert engine.lint_source(found, "x.py")
    assert not parsed
    engine.lint_source(found + b"# noqa\n", "x.py")
    engine.lint_source(silent + b"# gradcheck: ignore[leaf-inplace]\n", "x.py")
    assert len(parsed) == 2


class _Nothing:
    findings = ()


_NOTHING = _Nothing()


def test_the_source_of_an_expression_is_as_written() -> None:
    source = "if (a  and\n    b(c, 'é')): pass\nx = (y)\nz = (é + 1)\n"
    light = Skeleton(source.encode())
    test, value, last = (
        light.tree.body[0].test,
        light.tree.body[1].body[0].value,
        light.tree.body[2].body[0].value,
    )
    assert light.text(test) == "a and b(c, 'é')"
    assert light.text(value) == "y"
    assert light.text(last) == "é + 1"
    whole = cst.parse_module(source)
    model = module.ModuleModel(whole, source.encode())
    assert model.text(whole.body[0].test) == "a and b(c, 'é')"
    assert model.text(whole.body[1].body[0].value) == "y"
    assert model.code(whole.body[1].body[0].value) == "(y)"


@pytest.mark.parametrize(
    "source",
    [
        "match x:\n    case 1: pass\n",
        "x[(1  # one\n), (2)]\n",
    ],
)
def test_some_syntax_is_left_to_libcst(source: str) -> None:
    with pytest.raises(UnsupportedSyntaxError):
        Skeleton(source.encode())


@pytest.mark.parametrize(
    ("source", "pick"),
    [
        (b"# coding: latin-1\nif a: pass\n", lambda tree: tree.body[0].test),
        (b"a = b\rif a: pass\n", lambda tree: tree.body[1].test),
        (b"if (a, b): pass\n", lambda tree: tree.body[0].test),
    ],
)
def test_some_sources_of_expressions_are_not_told(source: bytes, pick) -> None:
    light = Skeleton(source)
    with pytest.raises(UnsupportedSyntaxError):
        light.text(pick(light.tree))


@pytest.mark.parametrize(
    "source",
    [
        b"import torch\nprint 'a'\n",
        b"import torch\n\x00",
        b"import torch\nx = " + b"(" * 300 + b")" * 300,
        b"import torch\nx = " + b"-" * 3000 + b"1",
        b"import torch\nmatch x:\n    case 1: pass\n",
        b"import torch\ntype A = int\n",
        b"import torch\ndef f(*a: *A): pass\n",
    ],
    ids=["python2", "nul", "brackets", "signs", "match", "alias", "starred"],
)
def test_what_it_refuses_is_never_called_silent(source: bytes) -> None:
    assert _look(source) == engine._Look()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="new syntax of Python 3.11")
def test_expressions_that_it_does_not_know_are_refused() -> None:
    with pytest.raises(UnsupportedSyntaxError, match="Starred"):
        Skeleton(b"def f(*a: *A): pass\n")


def test_invalid_escapes_are_no_warnings(recwarn: pytest.WarningsRecorder) -> None:
    Skeleton(textwrap.dedent(r"x = '\d'").encode())
    assert not recwarn.list
