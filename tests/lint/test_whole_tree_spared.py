"""What is answered from the tree without white space is what the whole tree would answer."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import TYPE_CHECKING

import libcst as cst
import pytest

from gradcheck_lint import engine, positions
from gradcheck_lint.model import module, statements
from gradcheck_lint.model.module import ModuleModel
from gradcheck_lint.model.syntax import plain_string, walk
from gradcheck_lint.positions import Positions
from gradcheck_lint.rules import RULES
from gradcheck_lint.skeleton import Skeleton, UnsupportedSyntaxError, _expressions
from tests.lint.fixtures_of_rules import fixtures_of

if TYPE_CHECKING:
    from collections.abc import Callable

_EXAMPLES = [example.source for rule in RULES for example in fixtures_of(rule.slug).invalid]
_COMPARED = (cst.BaseExpression, cst.BaseSmallStatement, cst.BaseCompoundStatement)


def _with_calls_in_parentheses(source: str) -> str:
    """Put each call in two pairs of parentheses, with blanks and without."""
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    tree = ast.parse(source)
    hidden = {
        id(node)
        for string in ast.walk(tree)
        if isinstance(string, ast.JoinedStr)
        for node in ast.walk(string)
    }
    places: list[tuple[int, int, bytes]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and id(node) not in hidden:
            places.append((node.lineno, node.col_offset, b"( ("))
            places.append((node.end_lineno, node.end_col_offset, b")\t)"))
    for line, column, text in sorted(places, key=lambda place: place[:2], reverse=True):
        old = lines[line - 1]
        lines[line - 1] = old[:column] + text + old[column:]
    return b"".join(lines).decode()


def _behind_other_letters(source: str) -> str:
    """Put a string of letters beyond ASCII before every simple statement."""
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Expr, ast.Assign, ast.AugAssign, ast.Return)):
            indent = len(lines[node.lineno - 1]) - len(lines[node.lineno - 1].lstrip())
            if indent == node.col_offset:
                old = lines[node.lineno - 1]
                lines[node.lineno - 1] = f'{old[:indent]}"é\U0001f600"; {old[indent:]}'
    return "".join(lines)


_VARIATIONS: dict[str, Callable[[str], str]] = {
    "as it is": lambda source: source,
    "line ends of Windows": lambda source: source.replace("\n", "\r\n"),
    "old line ends": lambda source: source.replace("\n", "\r"),
    "byte order mark": lambda source: "\ufeff" + source,
    "byte order mark at the first statement": lambda source: "\ufeff" + source.lstrip(),
    "comments": lambda source: source.replace("\n", "  # (é)\n"),
    "comments before closing parentheses": lambda source: source.replace(")\n", "  # (\n)\n"),
    "tabs": lambda source: source.replace("    ", "\t"),
    "blanks behind": lambda source: source.replace("\n", " \t\n"),
    "in a block": lambda source: "if a:\n" + textwrap.indent(source, "\t"),
    "form feeds": lambda source: source.replace("\n\n", "\n\f\n"),
    "broken lines": lambda source: source.replace("(", "(\n    "),
    "backslashes": lambda source: source.replace(" = ", " = \\\n  "),
    "parentheses": _with_calls_in_parentheses,
    "other letters": _behind_other_letters,
    "semicolons": lambda source: source.replace(")\n", ");\n"),
    "decorators": lambda source: source.replace("\ndef ", "\n@a.b(\n1)\ndef "),
    "Latin 1": lambda source: "# coding: latin-1\n" + source,
    "noqa": lambda source: source.replace(")\n", ")  # noqa\n"),
}


def _can_be_parsed(source: bytes) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


@pytest.mark.parametrize("name", _VARIATIONS)
def test_findings_are_the_same_to_the_last_field(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole: list[bytes] = []
    inspect_whole = engine._inspect
    monkeypatch.setattr(
        engine,
        "_inspect",
        lambda source, *rest: whole.append(source) or inspect_whole(source, *rest),
    )
    varied = [_VARIATIONS[name](source).encode() for source in _EXAMPLES]
    parsed = [source for source in varied if _can_be_parsed(source)]
    assert len(parsed) > len(varied) * 3 // 4
    for source in parsed:
        found = engine.lint_source(source, "x.py")
        was_whole = whole[-1:] == [source]
        if not was_whole:
            assert found == engine.inspect_source(source, "x.py").findings, source.decode()
    if name in {"as it is", "tabs", "line ends of Windows", "parentheses", "other letters"}:
        count = sum(1 for source in parsed if engine.lint_source(source, "y.py"))
        whole.clear()
        for source in parsed:
            engine.lint_source(source, "z.py")
        assert len(whole) < count // 5


_PLACES = """\
import torch
@a  # one
@(b)
async def f(x, *y, **z): return (x)
class A(
    B, metaclass=(C)
): x: int = (1); y = (((2)))
if (a  # (
    and b): pass
elif not(c): pass
elif (d): x = 1;
else: x  # )
for (a, b), [c] in ((d), e, ): a; b;
else:
    while(a): break
with (a): b
with (a), (b) as (c): d
with (a, b): c
with (a as b): c
x = (  # (
  a.b((c), *(d), e=(f))[(g)] [h]
)
x = (
    (a)
    (b)
)
(a).b = c = ( a  ) ; y = f (a) ; z = (f)(a)
é = f(é)(é); è = [é, (é)]; x = f(
    "é", é)
(x)[(a, b)] = a, (b)
x = ("a"  'b' # (
   r'\\d')
x = f"{a(b)}" "a" rf'\\d{(b)!r}' # (
x = '''a
é''', f"{a(b)} {x[(c)]}", "\\n", b"\\x00", u"é", r"\\("
x = 1if(a)else 2
x = lambda a=(1): (a)
x = (yield), (a := b), (not a), (-b), (a < b), (a + b) * c
print((x for x in (y)), [(x) for x in(y)], {(a): (b)})
try: (a)
except (A): raise (B) from (C)
finally:
\tassert (a), (b)
\tdel (a), b
\tx += (yield (a))
\tx[(a):(b)] = x[(1, 2)] = x[(1), (2)]
\treturn_((((a))))
"""


@pytest.mark.parametrize(
    "source",
    [
        _PLACES,
        "\ufeff" + _PLACES,
        _PLACES.replace("\n", "\r\n"),
        *_EXAMPLES,
        *map(
            inspect.getsource,
            (engine, positions, _expressions, module, statements, ast, textwrap, inspect),
        ),
    ],
)
def test_texts_and_places_are_those_of_the_whole_tree(source: str) -> None:
    encoded = source.encode()
    tree, skeleton = cst.parse_module(encoded), Skeleton(encoded)
    model = ModuleModel(tree, encoded)
    nodes = [node for node in walk(tree) if isinstance(node, _COMPARED)]
    light = [node for node in walk(skeleton.tree) if isinstance(node, _COMPARED)]
    if not skeleton.is_spelt_out:  # quotes in quotes
        return
    assert list(map(type, light)) == list(map(type, nodes))
    places, told = Positions(tree, nodes), 0
    for node, made in zip(nodes, light, strict=True):
        if isinstance(node, cst.SimpleString):
            assert isinstance(made, cst.SimpleString)
            assert plain_string(made) == plain_string(node)
            assert made.evaluated_value == node.evaluated_value
        for ask, answer in (
            (skeleton.text, model.text),
            (skeleton.code, model.code),
            (
                lambda one: skeleton.location(one, "x.py", "f"),
                lambda one: places.location(one, "x.py", "f"),
            ),
        ):
            try:
                said = ask(made)
            except UnsupportedSyntaxError:
                continue
            told += 1
            assert said == answer(node), type(node)
    assert told > len(nodes)


@pytest.mark.parametrize(
    ("head", "is_told"),
    [
        (b"# coding: utf-8", True),
        (b"# -*- coding: UTF8 -*-", True),
        (b"#!python\n# coding=utf-8", True),
        (b"# coding: latin-1", False),
        (b"#\n# coding: cp1252", False),
    ],
)
def test_places_are_told_in_utf_8_alone(head: bytes, is_told: bool) -> None:
    assert (Skeleton(head + b"\nx = 1\n").top is not None) == is_told


def test_fixes_that_lose_comments_are_still_seen() -> None:
    source = b"import torch\nfrom torch.autograd import Variable\nx = Variable(torch.ones(%b))\n"
    (safe,) = engine.lint_source(source % b"1", "x.py")
    (lossy,) = engine.lint_source(source % b"1  # one\n", "x.py")
    assert safe.fixable
    assert lossy == engine.inspect_source(source % b"1  # one\n", "x.py").findings[0]


@pytest.mark.parametrize(
    "comment",
    ["# gradchec\u212a: \u0130gnore[leaf-inplace]", "# NOQA", "#gradcheck: ignore[GCS101]"],
)
def test_comments_in_any_letters_silence(comment: str) -> None:
    source = f"import torch\nw = torch.ones(3, requires_grad=True)\nw += 1  {comment}\n".encode()
    assert engine.lint_source(source, "x.py") == engine.inspect_source(source, "x.py").findings
