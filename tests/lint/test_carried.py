"""Which names an iteration may use as the one before has left them."""

from __future__ import annotations

import libcst as cst
import pytest

from gradcheck_lint.model.carried import carried_names


def _carried(source: str) -> frozenset[str]:
    loop = cst.parse_module(source).body[0]
    assert isinstance(loop, (cst.For, cst.While))
    return carried_names(loop)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param("for x in xs:\n    y = f(x)\n    g(y)\n", {"f", "g"}, id="bound-first"),
        pytest.param("for x in xs:\n    g(y)\n    y = x\n", {"g", "y"}, id="used-first"),
        pytest.param("for x in xs:\n    total += x\n", {"total"}, id="added-to"),
        pytest.param("for x in xs:\n    total = total + x\n", {"total"}, id="made-of-itself"),
        pytest.param("for a, (b, *c) in xs:\n    d = a + b\n", set(), id="targets"),
        pytest.param("for x.y in xs:\n    pass\n", {"x"}, id="attribute-as-target"),
        pytest.param("while more(y):\n    y = 1\n", {"more", "y"}, id="test-of-while"),
        pytest.param(
            "for x in xs:\n    if x:\n        y = 1\n    else:\n        y = 2\n    z = y\n",
            set(),
            id="both-arms",
        ),
        pytest.param("for x in xs:\n    if x:\n        y = 1\n    z = y\n", {"y"}, id="one-arm"),
        pytest.param(
            "for x in xs:\n    if x:\n        y = 1\n    elif x.a:\n        y = 2\n    z = y\n",
            {"y"},
            id="no-else",
        ),
        pytest.param(
            "for x in xs:\n    for y in x:\n        z = y\n    w = z\n",
            {"z"},
            id="inner-loop-skipped",
        ),
        pytest.param(
            "for x in xs:\n    for y in x:\n        w = z\n        z = y\n", {"z"}, id="inner-loop"
        ),
        pytest.param(
            "for x in xs:\n    z = 0\n    for y in x:\n        w = z\n        z = y\n",
            set(),
            id="carried-by-inner-loop-alone",
        ),
        pytest.param(
            "for x in xs:\n    with f(x) as y:\n        z = y\n    w = z\n", {"f"}, id="with"
        ),
        pytest.param(
            "for x in xs:\n    try:\n        y = x\n    except E as e:\n        w = y\n    z = y\n",
            {"E", "y"},
            id="try",
        ),
        pytest.param(
            "for x in xs:\n    try:\n        f(x)\n    except E:\n        y = 1\n    z = y\n",
            {"f", "E", "y"},
            id="bound-by-a-handler-alone",
        ),
        pytest.param(
            "for x in xs:\n    try:\n        f(x)\n    except E:\n        y = 1\n"
            "    except F:\n        z = y\n",
            {"f", "E", "F", "y"},
            id="bound-by-another-handler",
        ),
        pytest.param("for x in xs:\n    f = lambda: y\n    y = x\n", {"y"}, id="lambda"),
        pytest.param(
            "for x in xs:\n    def f():\n        return y\n    y = x\n", {"f", "y"}, id="def"
        ),
        pytest.param(
            "for x in xs:\n    match x:\n        case [y]:\n            z = y\n    z\n",
            {"y", "z"},
            id="match",
        ),
        pytest.param("for x in xs:\n    y: int\n    z = y\n", {"y"}, id="annotation-alone"),
        pytest.param("for x in xs:\n    y: int = x\n    z = y\n", set(), id="annotated"),
        pytest.param("for x in xs:\n    y.a = x\n    y[i] = x\n", {"y", "i"}, id="owners"),
        pytest.param("for x in xs:\n    del y\n", {"y"}, id="del"),
    ],
)
def test_names_that_are_used_before_they_are_bound(source: str, expected: set[str]) -> None:
    assert _carried(source) == expected
