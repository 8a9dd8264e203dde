"""Know with what a sum begins within the loop: ``mean = loss if mean is None else ...``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import libcst as cst

from gradcheck_lint.model.syntax import bound_names, dotted_name, integer, is_none, walk
from gradcheck_lint.model.values import sites

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gradcheck_lint.model.values import Values

__all__ = ["NO_BEGINNING", "Beginning", "Beginnings", "FirstTime", "first_time"]


class FirstTime(NamedTuple):
    """A test that tells the first iteration from those after it.

    Attributes:
        path: the name that holds nothing before; None where the test asks for the iteration.
        arm: which arm runs the first time: 0 if the test is true then, else 1.
    """

    path: str | None
    arm: int


class Beginning(NamedTuple):
    """What a name is bound to the first time.

    Attributes:
        sites: of the values.
        nodes: the assignments by ``id``; none for a choice within one, which is the sum's own.
        starts: the expressions.
    """

    sites: frozenset[int] = frozenset()
    nodes: frozenset[int] = frozenset()
    starts: tuple[cst.BaseExpression, ...] = ()


NO_BEGINNING = Beginning()


def first_time(test: cst.BaseExpression, counter: str | None) -> FirstTime | None:
    """Read a test: of a name for None, or of the counter of the innermost loop for zero."""
    # Types are compared, since isinstance() is slow for abstract classes.
    if type(test) is cst.UnaryOperation and type(test.operator) is cst.Not:
        path = dotted_name(test.expression)
        return None if path is None else FirstTime(path, 0)
    if type(test) is not cst.Comparison or len(test.comparisons) != 1:
        return None
    path = dotted_name(test.left)
    operator, operand = test.comparisons[0].operator, test.comparisons[0].comparator
    if path is None:
        return None
    if is_none(operand):
        arm = _ARMS_OF_NONE.get(type(operator))
        return None if arm is None else FirstTime(path, arm)
    if path == counter and integer(operand) == 0:
        arm = _ARMS_OF_ZERO.get(type(operator))
        return None if arm is None else FirstTime(None, arm)
    return None


_ARMS_OF_NONE: Mapping[type[cst.BaseCompOp], int] = {
    cst.Is: 0,
    cst.Equal: 0,
    cst.IsNot: 1,
    cst.NotEqual: 1,
}
_ARMS_OF_ZERO: Mapping[type[cst.BaseCompOp], int] = {
    cst.Equal: 0,
    cst.NotEqual: 1,
    cst.GreaterThan: 1,
}


class Beginnings:
    """Collects with what the names of one function begin."""

    def __init__(self) -> None:
        self._known: dict[str, Beginning] = {}

    def of(self, path: str) -> Beginning:
        """Return what is known of a name."""
        return self._known.get(path, NO_BEGINNING)

    def note(
        self,
        path: str,
        values: Values,
        start: cst.BaseExpression,
        assignment: cst.Assign | None = None,
    ) -> None:
        """Add what a name is bound to the first time."""
        before = self.of(path)
        nodes = frozenset() if assignment is None else frozenset({id(assignment)})
        starts = before.starts
        if not any(known is start for known in starts):
            starts = (*starts, start)
        self._known[path] = Beginning(before.sites | sites(values), before.nodes | nodes, starts)

    def note_arm(self, first: FirstTime, body: cst.BaseSuite, bound: Mapping[str, Values]) -> None:
        """Add what an arm that runs the first time binds; ``bound`` is what holds at its end."""
        for node in walk(body):
            if type(node) is not cst.Assign:
                continue
            for target in node.targets:
                for path in bound_names(target.target):
                    if path in bound and first.path in {None, path}:
                        self.note(path, bound[path], node.value, node)
