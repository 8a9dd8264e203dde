"""Parameter groups that a schedule of the program's own leaves out.

``for group, lr in zip(optimizer.param_groups, values)`` ends with the shorter of the two: with
fewer values than groups, the last groups keep the rate that they began with. A rate that is set
anew is another object, also where it is the same number: that tells a group whose rate stays from
one that nothing sets. Once a group is suspected, its rate is replaced by an equal number, which
nobody else can set it to, and put back in the end.
"""

from __future__ import annotations

import ast
import math
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.detectors.leaf_records import next_looked_at
from gradcheck_suite.auditing.events import SessionEnded, StepStarted
from gradcheck_suite.auditing.source_analysis.source import only_line
from gradcheck_suite.findings import Finding, Location, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.optim import Optimizer  # noqa: TC004 - nobody asks for the types of the fields

    from gradcheck_suite.auditing.detectors.accumulation_windows import AccumulationWindows
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.object_names.optimizers import Optimizers

__all__ = ["GroupsNotScheduledDetector"]

_ENOUGH = 2
"""Looks that find the first groups at another rate and the others untouched, before those are
suspected, and as many afterwards before it is told. Chosen: the least that shows it goes on."""


@dataclass(slots=True)
class _Followed:
    """The rates of an optimizer's groups, as they were when they were last looked at.

    Attributes:
        optimizer: itself.
        kind: its class.
        made_at: where it was made.
        rates: the objects.
        scheduled: how many groups, the first ones, were given others.
        moved: how many looks found them so.
        own: the numbers that replace those of the other groups, from when these are suspected.
        before: what was there.
        set_at: the loop that sets the rates.
    """

    optimizer: weakref.ref[Optimizer]
    kind: str
    made_at: CallSite | None
    rates: list[float]
    scheduled: int = 0
    moved: int = 0
    own: list[float] | None = None
    before: tuple[float, ...] = ()
    set_at: Location | None = None

    def is_shown(self) -> bool:
        """Return whether the last groups were left out for long enough."""
        return self.own is not None and self.moved >= 2 * _ENOUGH


class GroupsNotScheduledDetector:
    """Reports schedule-not-stepped (GCS320) of some of an optimizer's groups."""

    def __init__(self, optimizers: Optimizers, windows: AccumulationWindows) -> None:
        self._optimizers = optimizers
        self._windows = windows
        # None: each of its groups was given a rate, or it has one alone.
        self._followed: dict[int, _Followed | None] = {}

    def subscriptions(self) -> Subscriptions:
        """Look at the first steps, those that are powers of two, and at the end."""
        return {StepStarted: self._begin_step, SessionEnded: self._end}

    def findings(self) -> list[Finding]:
        """Return one finding for each line of the program that sets the rates of some groups."""
        followed = [each for each in self._followed.values() if each is not None]
        shown = {each.set_at: each for each in followed if each.set_at and each.is_shown()}
        return [_finding(each, where) for where, each in shown.items()]

    def put_back(self) -> None:
        """Give the groups the very objects that they had."""
        for each in self._followed.values():
            optimizer = None if each is None else each.optimizer()
            if each is None or each.own is None or optimizer is None:
                continue
            groups = optimizer.param_groups[each.scheduled :]
            for group, own, before in zip(groups, each.own, each.before, strict=False):
                if group.get("lr") is own:
                    group["lr"] = before

    def _begin_step(self, event: StepStarted) -> int | None:
        self._look()
        return next_looked_at(event.number)

    def _end(self, _event: SessionEnded) -> None:
        self._look()

    def _look(self) -> None:
        for optimizer in self._optimizers.known():
            groups = optimizer.param_groups
            key = id(optimizer)
            known = self._followed.get(key)
            if known is not None and known.optimizer() is not optimizer:
                known = None
            elif known is None and key in self._followed:
                continue
            rates = [rate for group in groups if _is_plain(rate := group.get("lr"))]
            if not 1 < len(rates) == len(groups):
                continue
            if known is None or len(known.rates) != len(rates):
                made_at = self._windows.of(optimizer).constructed_at
                kind = type(optimizer).__name__
                self._followed[key] = _Followed(weakref.ref(optimizer), kind, made_at, rates)
            elif not _still_leaves_some_out(known, groups, rates):
                self._followed[key] = None


def _still_leaves_some_out(
    known: _Followed, groups: list[dict[str, Any]], rates: list[float]
) -> bool:
    """Return whether the first groups, and always as many, are all that were given other rates."""
    given = [now is not before for now, before in zip(rates, known.rates, strict=True)]
    count = sum(given)
    if not count:
        return True
    is_another = not all(given) and all(given[:count]) and known.scheduled in {0, count}
    if not is_another:
        return False
    known.scheduled = count
    known.moved += rates[0] != known.rates[0]
    known.rates = rates
    if known.own is None and known.moved >= _ENOUGH:
        known.set_at = _set_at()
        if known.set_at is None:
            return False
        known.before = tuple(rates[count:])
        known.own = [float.fromhex(rate.hex()) for rate in known.before]
        for group, own in zip(groups[count:], known.own, strict=True):
            group["lr"] = own
        known.rates = [*rates[:count], *known.own]
    return True


def _is_plain(rate: object) -> TypeGuard[float]:
    return type(rate) is float and math.isfinite(rate)


def _set_at() -> Location | None:
    """Return the loop over groups and values that is all of the program to set a rate."""
    found = only_line("param_groups", _lines_setting_rates)
    return None if found is None or found.line < 0 else found


def _lines_setting_rates(tree: ast.Module) -> Iterator[int]:
    in_pairs: dict[ast.AST, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.For) and (group := _group_in_pairs(node)) is not None:
            for inner in ast.walk(node):
                if _is_rate(inner) and ast.unparse(inner.value) == group:
                    in_pairs[inner] = node.lineno
    for node in ast.walk(tree):
        if _is_rate(node) and isinstance(node.ctx, ast.Store):
            # One elsewhere is another line, by which none is named.
            yield in_pairs.get(node, -node.lineno)


def _is_rate(node: ast.AST) -> TypeGuard[ast.Subscript]:
    return (
        isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Constant)
        and node.slice.value == "lr"
    )


def _group_in_pairs(loop: ast.For) -> str | None:
    """Return the variable of the groups in a loop over a zip of all groups and something."""
    call, target = loop.iter, loop.target
    if not (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "zip"
        and not call.keywords
        and isinstance(target, ast.Tuple)
        and len(target.elts) == len(call.args)
    ):
        return None
    for argument, variable in zip(call.args, target.elts, strict=True):
        if isinstance(argument, ast.Attribute) and argument.attr == "param_groups":
            return ast.unparse(variable)
    return None


def _finding(left: _Followed, where: Location) -> Finding:
    groups = len(left.rates)
    others = "the last one has" if groups - left.scheduled == 1 else "the others have"
    return Finding.of(
        catalogue.SCHEDULE_NOT_STEPPED,
        f"the schedule sets the learning rate of {left.scheduled} of {groups} parameter groups of "
        f"{left.kind} alone, and {others} kept the rate of the beginning: this `zip` ends with the "
        "shorter of the two, and has fewer values than groups; expected a value for each group",
        detector="audit",
        severity=Severity.WARNING,
        location=where,
        related=related((location_of(left.made_at), "the groups are made here")),
        hint="give a value for each of optimizer.param_groups, and write zip(..., strict=True)",
        evidence={"groups": groups, "scheduled": left.scheduled, "optimizer": left.kind},
    )
