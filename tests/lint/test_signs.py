"""What a source must have for a rule to be asked: signs in its bytes."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcheck_lint.rules import RULES, _container_signs, _signs
from gradcheck_lint.rules._signs import Pattern, Signs, beginning

PATTERNS = {
    sign: None
    for rule in RULES
    for group in rule.needs
    for sign in group
    if isinstance(sign, Pattern)
}
EXPRESSIONS = sorted({expression for sign in PATTERNS for expression in sign.expressions})


@pytest.mark.parametrize(
    ("expression", "spelt"),
    [
        (rb"sqrt_?\s*\(", b"sqrt"),
        (rb"exp2\s*\(", b"exp2"),
        (rb"\+=[ \t]*", b"+="),
        (rb"\*\*", b"**"),
        (rb"\.\s*step", b"."),
        (rb"x\{?y", b"x"),
        (rb"ab|cd", b""),
        (rb"(?:ab|cd)e", b""),
        (rb"a(?:b|c)", b"a"),
        (rb"a[|]b", b"a"),
    ],
)
def test_beginning(expression, spelt):
    assert beginning(expression) == spelt


@pytest.mark.parametrize("expression", EXPRESSIONS)
@given(data=st.data())
def test_every_match_has_the_beginning_of_its_expression(expression, data):
    # What a match may not follow says nothing about what is in it.
    plain = re.sub(rb"\(\?<[!=](?:[^()\\]|\\.)*\)", b"", expression)
    matched = data.draw(st.from_regex(plain))
    assert re.search(plain, matched)[0].startswith(beginning(expression))


@pytest.mark.parametrize(
    ("bound", "is_list"),
    [
        ("layers = [1]", True),
        ("layers: list = [\n1]", True),
        ("layers: list[\n1] = [2]", True),
        ("layers \\\n  = \\\n  [2]", True),
        ("layers \\\n  : list = [2]", True),
        ("layers = 1", False),
        ("other = [1]", False),
        ("layers == [1]", False),
    ],
)
def test_names_of_lists_on_attributes(bound, is_list):
    source = f"class A:\n    def f(self, layers):\n        self.a = layers\n{bound}\n"
    assert Signs(source.encode()).has(_container_signs.CONTAINER_ON_ATTRIBUTE) is is_list


def test_all_patterns_share_their_item_writes():
    signs = Signs(b"for i in x:\n    y[i] = y[i - 1] * 2\n")
    assert signs.has(_signs.SUBSCRIPT_WRITE)
    assert [
        signs.has(sign)
        for sign in PATTERNS
        if sign.expressions == _signs.SUBSCRIPT_WRITE.expressions
    ]
