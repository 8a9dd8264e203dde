"""Find terms of a loss that were computed for it, and are detached where they are added."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.flow import Backward
from gradcheck_lint.model.grad_mode import unrecorded_by_with
from gradcheck_lint.model.syntax import assigned_once, bound_names, dotted_name, positional, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel

__all__ = ["detached_objectives"]


def detached_objectives(function: FunctionModel) -> Iterator[tuple[Backward, cst.CSTNode]]:
    """Yield what is detached as a whole term of a loss, and depends on what the others train.

    As in ``(alpha * log_prob - q.detach()).mean()``, where ``q`` was computed of the actions that
    ``log_prob`` belongs to. A constant that has nothing in common with the other terms, such as the
    log-probability of another model, is none.
    """
    backwards = [event for event in function.events() if isinstance(event, Backward)]
    if not backwards or function.scope.words.isdisjoint(_CUTTING):
        return
    made = _Definitions.of(function)
    for backward in backwards:
        node = backward.node
        if backward.expects_error or type(node) is not cst.Call:
            continue
        receiver = node.func.value if type(node.func) is cst.Attribute else None
        start = positional(node)[0] if backward.by_engine and positional(node) else receiver
        terms = [] if start is None else _terms(start, made)
        for term, cut in terms:
            if cut is None or _OTHER_MODEL.search(function.module.text(term)) is not None:
                continue
            others = [other for other, its_cut in terms if other is not term and its_cut is None]
            if _depends_on_same(term, others, made):
                yield backward, cut


_CUTTING: Final = frozenset({"detach", "no_grad", "inference_mode"})
_OTHER_MODEL: Final = re.compile(r"ref|old|prev|target|base|teacher|frozen|prior|_t\b|behavi")
"""How values are called that another model, or an earlier state of this one, has given."""
_MOST_TERMS = 40
_MOST_STEPS = 200


@dataclass(slots=True)
class _Definitions:
    """The one assignment of each name that has one, and what is computed without recording."""

    values: dict[str, tuple[cst.CSTNode, cst.BaseExpression, bool]] = field(default_factory=dict)
    unrecorded: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, function: FunctionModel) -> _Definitions:
        """Return those of a function."""
        made, several = cls(), set[str]()
        nodes = function.scope.nodes
        made.unrecorded = unrecorded_by_with(nodes, function.module.scopes)
        for node in nodes:
            target, value = assigned_once(node)
            if target is not None and value is not None:
                names = list(bound_names(target))
                for name in names:
                    several.update({name} & made.values.keys())
                    made.values[name] = (node, value, len(names) == 1)
            elif isinstance(node, (cst.Assign, cst.AugAssign, cst.For)):
                rebound = (
                    [each.target for each in node.targets]
                    if isinstance(node, cst.Assign)
                    else [node.target]
                )
                several.update(name for each in rebound for name in bound_names(each))
        for name in several:
            made.values.pop(name, None)
        return made

    def value_of(self, node: cst.BaseExpression) -> cst.BaseExpression | None:
        """Return what a name is bound to, once and by itself."""
        name = dotted_name(node)
        known = self.values.get(name or "")
        return known[1] if known is not None and known[2] else None


def _terms(
    start: cst.BaseExpression, made: _Definitions
) -> list[tuple[cst.BaseExpression, cst.CSTNode | None]]:
    """Return the terms that a loss is the sum or mean of, and what cut each off, if anything."""
    found: list[tuple[cst.BaseExpression, cst.CSTNode | None]] = []
    waiting = [start]
    for _ in range(_MOST_STEPS):
        if not waiting or len(found) >= _MOST_TERMS:
            break
        term = waiting.pop()
        below = _summed(term)
        if below:
            waiting += below
            continue
        if _method_of(term) == "detach":
            found.append((term, term))
            continue
        value = made.value_of(term)
        if value is None:
            found.append((term, None))
        elif id(value) in made.unrecorded:
            found.append((term, value))
        else:
            waiting.append(value)
    return found


def _method_of(term: cst.BaseExpression) -> str:
    """Return the name of the method that a term calls, or nothing."""
    is_method = type(term) is cst.Call and type(term.func) is cst.Attribute
    return term.func.attr.value if is_method else ""  # type: ignore[attr-defined]


def _summed(term: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return what a term is a sum, a mean or a multiple by a number of; nothing for others."""
    if type(term) is cst.UnaryOperation:
        return [term.expression]
    if type(term) is cst.BinaryOperation:
        sides = [term.left, term.right]
        if isinstance(term.operator, (cst.Add, cst.Subtract)):
            return sides
        rest = [side for side in sides if not isinstance(side, (cst.Integer, cst.Float))]
        is_product = isinstance(term.operator, (cst.Multiply, cst.Divide))
        return rest if is_product and len(rest) == 1 else []
    if type(term) is cst.Call and _method_of(term) in {"mean", "sum"}:
        assert type(term.func) is cst.Attribute
        is_function = dotted_name(term.func.value) == "torch"
        return positional(term)[:1] if is_function else [term.func.value]
    return []


def _depends_on_same(
    term: cst.BaseExpression, others: list[cst.BaseExpression], made: _Definitions
) -> bool:
    """Return whether a term and another are computed of what one recorded call has returned."""
    own = _names_in(term)
    around = {name for other in others for name in _names_in(other)}
    if own & around:
        # Straight-through: the value is that of the detached part, the gradient the other's.
        return False
    return bool(_calls_behind(own, made) & _calls_behind(around, made))


def _names_in(node: cst.CSTNode) -> set[str]:
    """Return the names in an expression that values go by, not those of functions."""
    called = {id(inner.func) for inner in walk(node) if type(inner) is cst.Call}
    return {
        inner.value for inner in walk(node) if type(inner) is cst.Name and id(inner) not in called
    }


def _calls_behind(names: set[str], made: _Definitions) -> set[int]:
    """Return the recorded calls with several results that values are made of, by way of names."""
    found: set[int] = set()
    waiting, seen = list(names), set(names)
    while waiting and len(seen) < _MOST_STEPS:
        known = made.values.get(waiting.pop())
        if known is None:
            continue
        node, value, is_alone = known
        if type(value) is cst.Call and not is_alone and id(value) not in made.unrecorded:
            found.add(id(node))
        fresh = _names_in(value) - seen
        seen |= fresh
        waiting += fresh
    return found
