"""Branches of a loop that are taken every so many iterations."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.flow import Block, Branch, Loop
from gradcheck_lint.model.syntax import (
    assigned_once,
    dotted_name,
    integer,
    last_word,
    plain_string,
    string_index,
    walk,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["come_round", "may_be_whole"]


def come_round(arms: Iterable[tuple[int, int]], block: Block, around: cst.CSTNode) -> bool:
    """Tell whether all of these branches in a block are taken every so many times.

    ``around`` is the loop or function whose block it is.
    """
    arms = tuple(arms)
    tests = _tests_in(block) if arms else {}
    return all(
        arm == 0 and (test := tests.get(branch)) is not None and _comes_round(_meant(test, around))
        for branch, arm in arms
    )


def _meant(test: cst.BaseExpression, around: cst.CSTNode) -> cst.BaseExpression:
    """Return what a test stands for that is the name of something that is worked out once."""
    if type(test) is not cst.Name:
        return test
    given = [
        value
        for target, value in map(assigned_once, walk(around))
        if target is not None and value is not None and dotted_name(target) == test.value
    ]
    return given[0] if len(given) == 1 else test


def _tests_in(block: Block) -> dict[int, cst.BaseExpression]:
    """Return the tests of the branches in a block, by the identity of the branch."""
    found: dict[int, cst.BaseExpression] = {}
    for item in block.items:
        if isinstance(item, Branch):
            if item.test is not None:
                found[item.identity] = item.test
            for arm in item.arms:
                found.update(_tests_in(arm))
        elif isinstance(item, Loop):
            found.update(_tests_in(item.body))
    return found


def _comes_round(test: cst.BaseExpression) -> bool:
    """Tell whether a test holds every so many iterations: ``step % 100 == 0``.

    A number of iterations that may be all of them, such as the length of the data, says nothing.
    """
    return any(
        type(node) is cst.BinaryOperation
        and type(node.operator) is cst.Modulo
        and _is_interval(node.right)
        for node in walk(test)
    )


def may_be_whole(loop: Loop) -> bool:
    """Tell whether a loop may have no more iterations than such a test counts to.

    As one over the parts of a batch has, or over a ``range``.
    """
    each = loop.node.for_in if isinstance(loop.node, cst.BaseComp) else loop.node
    if not isinstance(each, (cst.For, cst.CompFor)):
        return False
    return any(
        type(node) is cst.Name and _PARTS.search(node.value.lower()) is not None
        for part in (each.iter, each.target)
        for node in walk(part)
    )


def _is_interval(node: cst.BaseExpression) -> bool:
    if integer(node) is not None:
        return True
    return _INTERVAL.search(_setting_name(node).lower()) is not None


def _setting_name(node: cst.BaseExpression) -> str:
    """Return the last name of a setting: of ``args.every``, ``cfg["every"]``, ``cfg.get("every")``.

    Empty for anything else.
    """
    if type(node) is cst.Subscript:
        return string_index(node) or ""
    if type(node) is cst.Call and node.args and last_word(dotted_name(node.func)) == "get":
        key = node.args[0].value
        return (plain_string(key) or "") if type(key) is cst.SimpleString else ""
    return last_word(dotted_name(node) or "")


_INTERVAL: Final = re.compile(
    r"every|interval|freq|accum|period(?!s)"
    r"|(?:^|_)(?:eval|val|valid\w*|test|log\w*|save|check\w*|print|report)_(?:steps?|iters?|n)$"
)
_PARTS: Final = re.compile(r"range$|micro|chunk|split|accum|sub_?batch|mini_?batch")
