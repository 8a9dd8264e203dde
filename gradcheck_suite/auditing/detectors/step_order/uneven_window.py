"""Steps that used other backwards than most steps of the same optimizer.

Within one run the majority is the reference. A first step that also applies a backward from before
the loop, which no other step does, has a gradient in it that was not meant for it. One window of
another length, one step without a new backward, or some with the backward of another line as well,
among many alike, are facts to know of. Where the source shows a way out between the backward and
its step, the gradients of an update that was broken off were added to those of the next.

A step that found the last part of a window, the rest of which was cleared, had as many backwards
counted for it as the others, and used fewer: whoever leaves out the rest of an epoch counts anew.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.detectors.gradients import is_nonzero
from gradcheck_suite.auditing.events import Attention, BackwardStarted, StepFinished
from gradcheck_suite.auditing.source_analysis.source import way_out
from gradcheck_suite.findings import Finding, Location, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_suite.auditing.detectors.accumulation_windows import (
        AccumulationWindow,
        AccumulationWindows,
        Fill,
        StepSummary,
    )
    from gradcheck_suite.auditing.detectors.leaf_records import LeafRecords
    from gradcheck_suite.auditing.detectors.step_order.step_without_backward import (
        StepWithoutBackwardDetector,
    )
    from gradcheck_suite.auditing.events import Subscriptions

__all__ = ["UnevenWindowDetector"]

_ENOUGH = 4
"""Steps alike before one that is not departs from them. Chosen: fewer are no majority."""

_MOST_SHAPES = 8
"""Kinds of windows of one optimizer that are told apart. A bound on memory: a program with more has
no usual one."""

_DEPARTING = 2
"""All that departs is at most one part in so many of the steps: the rest is most of them."""

_ENOUGH_CUT = 2
"""Windows that were cut short before that is a habit. Chosen: one may be a batch left out."""

_Shape: TypeAlias = "tuple[tuple[int, int], ...]"
"""The lines of a window's backwards, in order: the identity of a code object, and the offset."""


@dataclass(slots=True)
class _Kind:
    """Windows with the same backwards.

    Attributes:
        sites: their lines.
        count: how many there were.
        first: the number of the first one's step, counted from 1.
        latest: that of the last.
        added: whether its last backward added to what was there.
    """

    sites: tuple[CallSite | None, ...]
    count: int
    first: int
    latest: int
    step_site: CallSite | None
    added: bool


@dataclass(slots=True)
class _Cut:
    """Windows part of which was cleared by one line.

    Attributes:
        cleared_at: the line.
        filled_at: the line of the first backward whose gradients were cleared.
        step_site: the line of the step that used the others.
        backwards: how many there were in each, those that were cleared too.
        lost: how many of the first one's were cleared.
        first: the number of the first one's step, counted from 1.
        count: how many there were.
        used: how many backwards were left, in each.
    """

    cleared_at: CallSite | None
    filled_at: CallSite | None
    step_site: CallSite | None
    backwards: int
    lost: int
    first: int
    count: int = 0
    used: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Steps:
    """The steps of one optimizer.

    Attributes:
        name: its class.
        kinds: what they used.
        cuts: windows part of which was cleared, by the line that did it and by their backwards.
        last: the kind of the last one.
        others: whether it has other kinds than are kept.
        left_before: whether gradients other than zeros were there when a backward on another line
            began, before the first step.
    """

    name: str = ""
    kinds: dict[_Shape, _Kind] = field(default_factory=dict)
    cuts: dict[tuple[CallSite | None, _Shape], _Cut] = field(default_factory=dict)
    last: _Shape = ()
    others: bool = False
    left_before: bool = False
    asked: int = 0


class UnevenWindowDetector:
    """Reports what departs: GCS302, GCS309, GCS311 and, of single steps, GCS303."""

    def __init__(
        self,
        windows: AccumulationWindows,
        leaves: LeafRecords,
        without: StepWithoutBackwardDetector,
    ) -> None:
        self._windows = windows
        self._leaves = leaves
        self._without = without
        self._steps: dict[int, tuple[weakref.ref[AccumulationWindow], _Steps]] = {}
        self._all: list[_Steps] = []

    def subscriptions(self) -> Subscriptions:
        """Compare what each step has used."""
        return {BackwardStarted: self._begin_backward, StepFinished: self._end_step}

    def _of(self, window: AccumulationWindow) -> _Steps:
        found = self._steps.get(id(window))
        if found is None or found[0]() is not window:
            found = self._steps[id(window)] = (weakref.ref(window), _Steps())
            self._all.append(found[1])
        return found[1]

    def _begin_backward(self, event: BackwardStarted) -> Attention | None:
        waiting = [window for window in self._windows.all() if not window.steps]
        if not waiting:
            return Attention.ASLEEP
        for window in waiting:
            if window.fills and event.accumulates:
                known = self._of(window)
                # Twice will do: this may wait for a device.
                if known.asked < 2:  # noqa: PLR2004 - as said
                    known.asked += 1
                    known.left_before = any(is_nonzero(each.grad) for each in window.parameters())
        return None

    def _end_step(self, event: StepFinished) -> None:
        window = self._windows.stepped
        summary = window.summary
        if summary is None or summary.failed:
            return
        known = self._of(window)
        known.name = type(event.optimizer).__name__
        if summary.fills and (summary.discarded or summary.dismissed):
            _note_cut(known, summary, window.steps)
        if summary.discarded:
            return
        shape = _shape_of(summary.fills)
        kind = known.kinds.get(shape)
        known.last = shape
        if kind is not None:
            kind.count += 1
            kind.latest = window.steps
        elif len(known.kinds) >= _MOST_SHAPES:
            known.others = True
        else:
            sites = tuple(fill.site for fill in summary.fills)
            added = bool(summary.fills) and summary.fills[-1].added
            known.kinds[shape] = _Kind(sites, 1, window.steps, window.steps, event.site, added)

    def findings(self) -> list[Finding]:
        """Return one finding for each kind of step that departs from most."""
        attacks = {
            _key(site)
            for leaf in self._leaves.all()
            if not leaf.is_parameter and not leaf.owners
            for site in leaf.sites
        }
        told = {(finding.code, finding.location) for finding in self._without.findings()}
        found = {}
        for steps in self._all:
            for finding in self._judge(steps, attacks):
                if (finding.code, finding.location) not in told:
                    found[finding.code, finding.location] = finding
        return list(found.values())

    def _judge(self, steps: _Steps, attacks: set[tuple[int, int]]) -> Iterator[Finding]:
        if not steps.kinds or steps.others:
            return
        at_will = {site for site, whole in steps.cuts if whole not in steps.kinds}
        for (site, whole), cut in steps.cuts.items():
            if site not in at_will:
                yield _cut_short(steps, cut, steps.kinds[whole].count)
        shape, usual = max(steps.kinds.items(), key=lambda each: each[1].count)
        total = sum(kind.count for kind in steps.kinds.values())
        if usual.count < _ENOUGH:
            return
        attack = next((site for site in shape if site in attacks), None)
        if attack is not None and any(site not in attacks for site in shape):
            yield _attack(steps, usual, usual.sites[shape.index(attack)])
        departing = [pair for pair in steps.kinds.items() if pair[1] is not usual]
        if not usual.sites or sum(kind.count for _, kind in departing) * _DEPARTING > total:
            return
        for other, kind in departing:
            yield from _departing(steps, (shape, usual), (other, kind))


def _key(site: CallSite | None) -> tuple[int, int]:
    # By identity: the hash of a code object goes through all its constants.
    return (0, 0) if site is None else (id(site[0]), site[1])


def _shape_of(fills: tuple[Fill, ...]) -> _Shape:
    return tuple([_key(fill.site) for fill in fills])


def _note_cut(known: _Steps, summary: StepSummary, number: int) -> None:
    """Note a window part of which was cleared."""
    lost = (*summary.dismissed, *summary.discarded)
    fills = tuple(fill for each in lost for fill in each.fills)
    whole = _shape_of((*fills, *summary.fills))
    key = (lost[-1].site, whole)
    cut = known.cuts.get(key)
    if cut is None:
        if len(known.cuts) >= _MOST_SHAPES:
            return
        sites = (lost[-1].site, fills[0].site, summary.site)
        cut = known.cuts[key] = _Cut(*sites, len(whole), len(fills), number)
    cut.count += 1
    cut.used.add(len(summary.fills))


def _departing(
    steps: _Steps, most: tuple[_Shape, _Kind], one: tuple[_Shape, _Kind]
) -> Iterator[Finding]:
    """Yield what is to be told of steps of another kind than most."""
    (shape, usual), (other, kind) = most, one
    is_first = kind.first == 1 and kind.count == 1
    extra = [site for key, site in zip(other, kind.sites, strict=True) if key not in shape]
    if not other:
        # The very first may come before any backward, to begin a schedule.
        goes_on = usual.latest > kind.latest
        if not is_first and goes_on and kind.count * _ENOUGH <= usual.count:
            yield _idle(steps, usual, kind)
    elif is_first and len(other) > len(shape) and (extra or len(shape) == 1):
        yield _left_before(steps, usual, kind, extra[0] if extra else kind.sites[0])
    elif extra and kind.added and kind.count >= _ENOUGH and set(shape) < set(other):
        yield _beside(steps, usual, kind, extra)
    elif not extra and set(other) == set(shape) and len(other) != len(shape):
        is_remainder = len(other) < len(shape) and (not is_first or steps.last == other)
        # One length after the other is a schedule.
        takes_turns = usual.first < kind.latest and kind.first < usual.latest
        if not is_remainder and (is_first or takes_turns):
            left_at = _left_at(kind) if len(shape) == 1 and kind.added else None
            yield (
                _uneven(steps, usual, kind)
                if left_at is None
                else _broken_off(steps, usual, kind, left_at)
            )


def _left_at(kind: _Kind) -> Location | None:
    """Return the line by which the program may go from a backward past the step that uses it."""
    backward, step = location_of(kind.sites[0]), location_of(kind.step_site)
    if backward is None or step is None or backward.path != step.path:
        return None
    line = way_out(step.path, backward.line, step.line)
    return None if line is None else Location(step.path, line, function=step.function)


def _cut_short(steps: _Steps, cut: _Cut, full: int) -> Finding:
    used = f"{min(cut.used)} to {max(cut.used)}" if len(cut.used) > 1 else str(*cut.used)
    return Finding.of(
        catalogue.ZERO_GRAD_MISPLACED,
        f"in {cut.count} of {cut.count + full} windows of {cut.backwards} backward() calls, "
        f"gradients of the first of them were cleared here, and {steps.name}.step() used {used} "
        f"alone (first in its step {cut.first}): the window went on, and was not begun anew; "
        "expected each window to be cleared where it begins",
        detector="audit",
        severity=Severity.WARNING if cut.count >= _ENOUGH_CUT else Severity.NOTE,
        location=location_of(cut.cleared_at) or location_of(cut.step_site),
        related=related(
            (location_of(cut.filled_at), "this backward filled them"),
            (location_of(cut.step_site), "this step used the rest"),
        ),
        hint=(
            "clear them after step() alone; or step before clearing, or begin to count again here"
        ),
        evidence={
            "count": cut.count,
            "step": cut.first,
            "optimizer": steps.name,
            "backwards_lost": cut.lost,
            "usual_backwards": cut.backwards,
            "usual_steps": full,
        },
    )


def _left_before(steps: _Steps, usual: _Kind, kind: _Kind, site: CallSite | None) -> Finding:
    doubts = []
    if not steps.left_before or not kind.added:
        doubts.append("its gradients may have been set to zero by hand in between")
    return Finding.of(
        catalogue.LEFTOVER_GRADIENT,
        f"the first {steps.name}.step() also applied the gradients that this backward() had left, "
        f"from before the loop: it used {len(kind.sites)} backward() calls, and each of "
        f"{usual.count} later steps {len(usual.sites)}; expected the gradients to be cleared after "
        "this backward()",
        detector="audit",
        doubts=doubts,
        location=location_of(site),
        related=related(
            (location_of(usual.sites[-1]), "this backward added to them"),
            (location_of(kind.step_site), "this step applied both"),
        ),
        hint="call zero_grad() after this backward(), or before each backward() of the loop",
        evidence={
            "count": 1,
            "optimizer": steps.name,
            "backwards": len(kind.sites),
            "usual_backwards": len(usual.sites),
            "usual_steps": usual.count,
        },
    )


def _beside(steps: _Steps, usual: _Kind, kind: _Kind, extra: Sequence[CallSite | None]) -> Finding:
    total = usual.count + kind.count
    return Finding.of(
        catalogue.LEFTOVER_GRADIENT,
        f"{kind.count} of {total} calls of {steps.name}.step() applied the sum of this backward() "
        f"and of what was there before it, the others {len(usual.sites)} backward() each; if the "
        "later one is to be applied alone, gradients are to be cleared in between",
        detector="audit",
        severity=Severity.NOTE,
        location=location_of(extra[0]),
        related=related(
            (location_of(usual.sites[0]), "this backward filled them before"),
            (location_of(kind.step_site), "this step applied both"),
        ),
        hint="call zero_grad() before this backward(), unless it is a term of the same loss",
        evidence={
            "count": kind.count,
            "step": kind.first,
            "optimizer": steps.name,
            "backwards": len(kind.sites),
            "usual_backwards": len(usual.sites),
            "usual_steps": usual.count,
        },
    )


def _broken_off(steps: _Steps, usual: _Kind, kind: _Kind, left_at: Location) -> Finding:
    total = usual.count + kind.count
    return Finding.of(
        catalogue.LEFTOVER_GRADIENT,
        f"{kind.count} of {total} calls of {steps.name}.step() also applied what an earlier "
        f"backward() had left: they used {_calls(kind)} of one line, the others 1 (first in its "
        f"step {kind.first}), and here the program goes from that line past the step; expected "
        "the gradients to be cleared first",
        detector="audit",
        severity=Severity.WARNING,
        location=left_at,
        related=related(
            (location_of(kind.sites[0]), "this backward's gradients are left"),
            (location_of(kind.step_site), "this step applied them with the next"),
        ),
        hint="call zero_grad() before each backward(), or before leaving here",
        evidence={
            "count": kind.count,
            "step": kind.first,
            "optimizer": steps.name,
            "backwards": len(kind.sites),
            "usual_backwards": 1,
            "usual_steps": usual.count,
        },
    )


def _calls(kind: _Kind) -> str:
    number = len(kind.sites)
    return f"{number} backward() {'call' if number == 1 else 'calls'}"


def _attack(steps: _Steps, usual: _Kind, site: CallSite | None) -> Finding:
    return Finding.of(
        catalogue.LEFTOVER_GRADIENT,
        f"each of {usual.count} calls of {steps.name}.step() also applied the gradients that this "
        "backward() had left in its parameters; it gave a gradient to a tensor that is no "
        "parameter, as for an attack, and the backward() after it does not; if only the later one "
        "is to be applied, gradients are to be cleared in between",
        detector="audit",
        severity=Severity.NOTE,
        location=location_of(site),
        related=related((location_of(usual.step_site), "this step applied both")),
        hint="call zero_grad() after this backward(), or use torch.autograd.grad(loss, tensor)",
        evidence={"count": usual.count, "optimizer": steps.name},
    )


def _uneven(steps: _Steps, usual: _Kind, kind: _Kind) -> Finding:
    total = usual.count + kind.count
    which = "the first" if kind.first == 1 and kind.count == 1 else str(kind.count)
    return Finding.of(
        catalogue.ACCUMULATION_MISMATCH,
        f"{which} of {total} calls of {steps.name}.step() used {_calls(kind)}, the others "
        f"{len(usual.sites)} (first in its step {kind.first})",
        detector="audit",
        severity=Severity.NOTE,
        location=location_of(kind.step_site),
        related=related((location_of(kind.sites[0]), "these backwards were added up")),
        hint=(
            "step after each full window, and after what is left at the end of an epoch: "
            "`if (i + 1) % accumulate == 0 or i + 1 == len(loader)`"
        ),
        evidence={
            "count": kind.count,
            "step": kind.first,
            "optimizer": steps.name,
            "backwards": len(kind.sites),
            "usual_backwards": len(usual.sites),
            "usual_steps": usual.count,
        },
    )


def _idle(steps: _Steps, usual: _Kind, kind: _Kind) -> Finding:
    return Finding.of(
        catalogue.STEP_WITHOUT_BACKWARD,
        f"{kind.count} of {usual.count + kind.count} calls of {steps.name}.step() came without a "
        f"new backward() (first its step {kind.first}); the others used {len(usual.sites)} each",
        detector="audit",
        severity=Severity.NOTE,
        location=location_of(kind.step_site),
        hint="leave step() out where backward() is left out",
        evidence={"count": kind.count, "step": kind.first, "optimizer": steps.name},
    )
