"""A term of a loss that carries no gradient, beside others that do.

The graph tells it for certain: where the top of it, as far as it is sums, has an operand without a
node, that operand is a constant. Which term it is, and what made it one, the source tells; that it
is no number or target, but depends on what is trained, makes it a mistake.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch.autograd.graph import Node

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of, user_frames
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.detectors.reachable_parameters import reachable_graph
from gradcheck_suite.auditing.events import BackwardStarted
from gradcheck_suite.auditing.source_analysis.loss_terms import (
    FollowedLoss,
    LossTerm,
    terms_of_loss,
)
from gradcheck_suite.auditing.source_analysis.source import function_at
from gradcheck_suite.findings import Finding, Location, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import CodeType

    from torch import Tensor

    from gradcheck_suite.auditing.detectors.connectivity.parameter_without_gradient import (
        ParameterWithoutGradientDetector,
    )
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.run_state import RunState

__all__ = ["ConstantLossTermDetector", "LossTerms", "live_terms"]

_MOST_LOSSES = 32
"""Lines with a backward whose losses are looked at. A bound on cost."""
_LOOKED_AT = 4
"""Backwards of one line whose graphs are looked at, before it is one in ``_EVERY``."""
_EVERY = 64
"""After the first backwards of a line, one of so many is looked at. A bound on cost."""
_MOST_NODES = 512
"""Nodes of the top of a graph that are looked at. A bound on cost."""
_REGULARISER = 0.1
"""Terms that are multiplied by no more than this, and a tenth of what the others are, do not stand
for the loss. Chosen: weights of regularisers lie between 1e-5 and 1e-2."""
_SHOWN = 3
"""Terms that a message lists. Chosen, for length."""

_PASSING = frozenset(
    f"{name}Backward"
    for name in (
        *("Alias", "Clone", "Div", "Mean", "Mul", "Neg", "Rsub", "Squeeze", "Sum", "ToCopy"),
        *("Unsqueeze", "View", "Reshape", "UnsafeView", "ReshapeAlias"),
    )
)
"""What multiplies by constants, reduces or reshapes; with two operands that have a graph, none
does."""
_ADDING = frozenset({"AddBackward", "SubBackward"})
_LISTING = frozenset({"StackBackward", "CatBackward"})


@dataclass(frozen=True, slots=True)
class LossTerms:
    """What is known of the loss that the backwards of a line start from.

    Attributes:
        backward: the line.
        backwards: how many were looked at.
        with_constants: in how many of them some term had no graph.
        live: the greatest number of terms with a graph.
        constants: the greatest number of terms without one; a number that is added is one.
        terms: the terms as the source has them; empty where it could not be followed.
    """

    backward: Location | None
    backwards: int
    with_constants: int
    live: int
    constants: int
    terms: tuple[LossTerm, ...]


@dataclass(slots=True)
class _Top:
    """The sums at the top of a graph: operands with a node, and without.

    ``beginnings`` are those of the latter that are the first operand but one of their sum, as the
    zero is that ``sum()`` begins with; ``elementwise`` those that come before a reduction;
    ``terms`` are the nodes of the former, each once.
    """

    live: int = 0
    constants: int = 0
    beginnings: int = 0
    elementwise: int = 0
    terms: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class _Loss:
    """What was seen of the backwards of one line."""

    seen: int = 0
    looked_at: int = 0
    with_constants: int = 0
    top: _Top = field(default_factory=_Top)
    flat: set[str] = field(default_factory=set)
    source: FollowedLoss = field(default_factory=FollowedLoss)

    @property
    def terms(self) -> tuple[LossTerm, ...]:
        """The terms as the source has them."""
        return self.source.terms


class ConstantLossTermDetector:
    """Reports GCS411, and tells what the terms of each loss are.

    Args:
        state: how far the run has come.
        others: tells of parameters that no gradient reaches: a cut that it names has been told.
    """

    def __init__(self, state: RunState, others: ParameterWithoutGradientDetector) -> None:
        self._state = state
        self._others = others
        self._losses: dict[CallSite | None, _Loss] = {}

    def subscriptions(self) -> Subscriptions:
        """Look at the first backwards of each line, and at one now and then."""
        return {BackwardStarted: self._before_backward}

    @property
    def terms(self) -> tuple[LossTerms, ...]:
        """The terms of each loss that is a sum, by the line of its backward."""
        return tuple(
            LossTerms(
                location_of(site),
                loss.looked_at,
                loss.with_constants,
                loss.top.live,
                loss.top.constants,
                loss.terms,
            )
            for site, loss in self._losses.items()
            if loss.top.live + loss.top.constants > 1
        )

    def findings(self) -> list[Finding]:
        """Return one finding for each line that cuts a term off."""
        found: dict[object, Finding] = {}
        told = {
            (each.location.path, each.location.line)
            for each in self._others.findings()
            if each.location is not None
        }
        for site, loss in self._losses.items():
            place = location_of(site)
            cut = _by_cut(loss)
            for key, terms in cut.items():
                if key not in told:
                    found.setdefault(key, _finding(loss, terms, place))
            if not cut and (count := _unexplained(loss)):
                found.setdefault(place, _note(loss, count, place))
        return list(found.values())

    def _before_backward(self, event: BackwardStarted) -> None:
        loss = self._losses.get(event.site)
        if loss is None:
            if len(self._losses) >= _MOST_LOSSES:
                return
            loss = self._losses[event.site] = _Loss()
        loss.seen += 1
        if loss.looked_at < _LOOKED_AT or loss.seen % _EVERY == 0:
            loss.looked_at += 1
            forward = self._state.last_forward
            _look(loss, event, None if forward is None else forward[0][-1][0])


def _look(loss: _Loss, event: BackwardStarted, step: CodeType | None) -> None:
    top = _top_of(event.roots)
    if top.live + top.constants <= 1:
        return
    if loss.looked_at <= _LOOKED_AT:
        loss.flat |= reachable_graph(event).flat
    is_first = bool(top.constants) and not loss.with_constants
    loss.with_constants += bool(top.constants)
    if top.constants > loss.top.constants or top.live > loss.top.live:
        loss.top = top
    if is_first or not loss.terms:
        loss.source = terms_of_loss(list(user_frames()), step)


def _top_of(roots: Iterable[Tensor]) -> _Top:
    """Count the operands of the sums that a graph begins with, seen from the loss."""
    top = _Top()
    waiting = [(node, False) for root in roots if (node := root.grad_fn) is not None]
    seen: set[Node] = set()
    while waiting and len(seen) < _MOST_NODES:
        node, reduced = waiting.pop()
        if node in seen:
            top.live += 1
            continue
        seen.add(node)
        kind = type(node).__name__.rstrip("0123456789")
        behind = [function for function, _ in node.next_functions]
        graphs = [function for function in behind if function is not None]
        if kind in _ADDING or kind in _LISTING:
            missing = len(behind) - len(graphs)
            top.constants += missing
            if kind in _ADDING:
                top.elementwise += missing if reduced else 0
                top.beginnings += missing if not _is_sum(graphs[0]) else 0
            waiting.extend((each, reduced and kind in _ADDING) for each in graphs)
        elif kind in _PASSING and len(graphs) == 1:
            is_reduction = kind in ("MeanBackward", "SumBackward")
            waiting.append((graphs[0], reduced or is_reduction))
        else:
            top.live += 1
            top.terms.append(node)
    return top


def live_terms(roots: Iterable[Tensor]) -> list[Node]:
    """Return the operands with a graph, of the sums that a graph begins with."""
    return _top_of(roots).terms


def _is_sum(node: Node) -> bool:
    return type(node).__name__.rstrip("0123456789") in _ADDING


def _by_cut(loss: _Loss) -> dict[object, list[LossTerm]]:
    """Return the terms that are cut off by mistake, by the line that does it."""
    found: dict[object, list[LossTerm]] = {}
    if not any(term.state == "live" for term in loss.terms):
        return found
    for term in loss.terms:
        cut = term.cut
        if cut is None or term.on_purpose is not None:
            continue
        if loss.flat if cut.flat else loss.with_constants:
            found.setdefault((cut.path, cut.line), []).append(term)
    return found


def _finding(loss: _Loss, terms: list[LossTerm], place: Location | None) -> Finding:
    first = terms[0]
    cut = first.cut
    assert cut is not None
    live = [term for term in loss.terms if term.state == "live"]
    where = Location(cut.path, cut.line, function=function_at(cut.path, cut.line))
    one = len(terms) == 1
    doubts = list(first.doubts)
    if loss.with_constants < loss.looked_at and not cut.flat:
        every = loss.looked_at - loss.with_constants
        doubts.append(f"in {every} of {loss.looked_at} backwards every term has a gradient")
    if cut.under:
        reason = f"recording is off where {'it is' if one else 'they are'} computed"
    elif cut.flat:
        reason = cut.what
    else:
        reason = f"{cut.what} cuts {'it' if one else 'them'} off from what is trained"
    return Finding.of(
        catalogue.CONSTANT_LOSS_TERM,
        f"{_listed(terms)} add{'s' if one else ''} to the value of the loss and nothing to its "
        f"gradients: {reason}; {_listed(live)} alone carr{'ies' if len(live) == 1 else 'y'} any",
        detector="audit",
        severity=Severity.ERROR if _is_nearly_all(terms, live) else Severity.WARNING,
        doubts=doubts,
        location=where,
        related=related(
            (first.location, "it is added to the loss here"),
            (place if place != first.location else None, "backward() starts from that loss"),
            apart_from=where,
        ),
        hint="compute it with operations that have a gradient, or leave it out of the loss",
        evidence={
            "terms": tuple(term.text for term in terms),
            "live": tuple(term.text for term in live),
            "cut": cut.what,
            "backwards": loss.looked_at,
            "with_constants": loss.with_constants,
        },
    )


def _is_nearly_all(terms: list[LossTerm], live: list[LossTerm]) -> bool:
    """Return whether what has a gradient is a regulariser beside what has none."""
    factors = [term.factor for term in terms]
    others = [term.factor for term in live]
    if None in factors or None in others:
        return False
    greatest = max(abs(factor or 0.0) for factor in factors)
    beside = max(abs(factor or 0.0) for factor in others)
    return beside <= _REGULARISER and beside <= _REGULARISER * greatest


def _unexplained(loss: _Loss) -> int:
    """Return how many constant terms the graph has that the source does not account for."""
    source = loss.source
    constants = loss.top.constants - loss.top.elementwise - source.begins_at_zero
    if not loss.terms:
        return max(constants - loss.top.beginnings, 0)
    known = sum(term.state in ("constant", "cut") for term in loss.terms)
    begun = loss.top.beginnings if source.begins_at_numbers else 0
    return max(constants - known - begun, 0)


def _note(loss: _Loss, count: int, place: Location | None) -> Finding:
    total = loss.top.live + loss.top.constants
    unknown = [term for term in loss.terms if term.state == "unknown"]
    which = f", perhaps {_listed(unknown)}" if unknown else ""
    return Finding.of(
        catalogue.CONSTANT_LOSS_TERM,
        f"{count} of {total} terms of the loss carr{'ies' if count == 1 else 'y'} no gradient"
        f"{which}: expected numbers and targets alone to be constants",
        detector="audit",
        severity=Severity.NOTE,
        location=place,
        hint="look which terms have no grad_fn",
        evidence={
            "constants": loss.top.constants,
            "live_terms": loss.top.live,
            "backwards": loss.looked_at,
            "with_constants": loss.with_constants,
        },
    )


def _listed(terms: list[LossTerm]) -> str:
    texts = list(dict.fromkeys(f"`{term.text}`" for term in terms))
    if len(texts) > _SHOWN:
        return f"{', '.join(texts[:_SHOWN])} and {len(texts) - _SHOWN} more"
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if texts[1:] else texts)
