"""Compare the gradient of each step of an accumulating loop with that of the full batch."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Final

import torch

from gradcheck_suite import catalogue
from gradcheck_suite.accumulation.causes import (
    Cause,
    cause_of,
    not_finite,
    of_clipping,
    rate_of,
    timing_of,
)
from gradcheck_suite.accumulation.determinism import without_clipping
from gradcheck_suite.accumulation.runs import Recording, Start, Step, TrainingLoop
from gradcheck_suite.accumulation.vectors import Gradients, distances, is_finite, norm, norms
from gradcheck_suite.auditing.call_sites import location_of
from gradcheck_suite.auditing.object_names.tensor_names import listed
from gradcheck_suite.errors import UsageError
from gradcheck_suite.findings import Finding, Report, Severity
from gradcheck_suite.reporting.text import plural

__all__ = ["Comparison"]

TOOL = "gradcheck-suite accumulation"

HEADROOM: Final = 16.0
"""How many times the measured noise a gradient may differ, as for snapshots of gradients: the noise
is the greatest of a few draws, and another order of summation rounds differently once more."""
_ROUNDINGS: Final = 8.0
"""How many roundings of a whole gradient are always allowed, in units of eps times its norm; eps is
that of the coarsest type that a parameter has or a layer computes in."""
_MOVES = 2
"""How many times the values are moved by a rounding to measure the noise, of which the greatest
counts. A bound on cost: a full step each; ``HEADROOM`` makes up for how few they are."""
_WINDOWS = 2
"""How many windows of micro-batches are run: the first shows a wrong scale, the second what the
first left behind."""
_TOO_NOISY = 0.1
"""Noise of this part of the gradient's norm would hide a micro-batch of ten that is missing."""


class Comparison:
    """Runs the loop over the full batch and over micro-batches, and keeps what differs."""

    def __init__(self, loop: TrainingLoop) -> None:
        self._loop = loop
        self._parts = Recording()
        self._windows = _WINDOWS
        self._steps = 0
        self._findings: dict[object, Finding] = {}

    def run(self) -> None:
        """Compare each step of each window."""
        loop = self._loop
        first = loop.full(Start(loop.states.values))
        per_window = len(first.steps)
        if not per_window:
            raise UsageError(
                "check_accumulation: train(state, [batch], 1) stepped no optimizer of torch.optim; "
                "expected a step for each window of 1, or give loss=, the loss of a full batch, "
                "where the loop can't be told how many steps to accumulate"
            )
        parts = loop.accumulated(_WINDOWS)
        if loop.loss is None and _is_other_order(parts, first):
            # Such as all windows of one optimizer before those of another.
            self._windows = 1
            parts = loop.accumulated(1)
        if len(parts.steps) != per_window * self._windows:
            self._report_count(parts, per_window)
            return
        self._parts = parts
        for window in range(self._windows):
            if not self._compare_window(window, first):
                return

    def _compare_window(self, window: int, first: Recording) -> bool:
        """Compare the steps of a window; return whether there is any use in the next."""
        per_window = len(first.steps)
        begin = window * per_window
        loop, parts = self._loop, self._parts
        start = Start(
            parts.after[begin - 1] if window else loop.states.values,
            parts.after[begin : begin + per_window],
        )
        full = loop.full(start) if window or per_window > 1 else first
        for index, (step, whole) in enumerate(
            zip(parts.steps[begin : begin + per_window], full.steps, strict=False)
        ):
            place = _Place(window, index, begin + index, start)
            rate = None if window or loop.loss else rate_of(step, whole)
            if rate is not None:
                self._report(step, rate, place)
            if not is_finite(step.gradients) and is_finite(whole.gradients):
                self._report(step, not_finite(step), place)
                return False
            self._compare(step, whole, place)
        return True

    def report(self) -> Report:
        """Return what differs and what was left out."""
        return Report(
            tool=TOOL,
            findings=tuple(self._findings.values()),
            summary={
                "micro_batches": len(self._loop.parts),
                "windows": self._windows,
                "steps": self._steps,
                "runs": self._loop.runs,
            },
            not_covered=tuple(sorted(self._loop.excluded)),
        )

    def _compare(self, step: Step, full: Step, place: _Place) -> None:
        self._steps += 1
        if not full.backwards:
            self._set_aside(
                step, "its backward runs inside of step(), each time at other parameters"
            )
            return
        if not is_finite(full.gradients):
            self._set_aside(step, "that of the full batch has NaN or infinity in it")
            return
        apart = distances(step.gradients, full.gradients)
        allowed = self._rounding(step, full)
        if not _beyond(apart, allowed):
            return
        for position, noise in self._noise(full, place).items():
            allowed[position] = allowed.get(position, 0.0) + HEADROOM * noise
        beyond = _beyond(apart, allowed)
        if not beyond:
            if math.hypot(*allowed.values()) > _TOO_NOISY * norm(full.gradients):
                self._set_aside(
                    step, "that of the full batch changes as much by rounding, or each time"
                )
            return
        why = self._why_not_comparable(full, place, allowed)
        cause = None
        if why is None:
            cause = timing_of(step, full, len(self._loop.parts))
            cause = cause or self._from_parts(step, full, place, allowed)
        if cause is not None and cause.kind == "other":
            why = self._why_each_forward_differs(place)
            cause = None if why else cause
        if cause is None:
            self._set_aside(step, why or _COUPLED)
            return
        most = max(beyond, key=lambda position: apart[position] / (allowed[position] or 1e-300))
        self._report(
            step,
            cause,
            place,
            f"; {len(beyond)} of {len(apart)} parameters differ, `{self._loop.names[most]}` by "
            f"{apart[most]:.2g} from a gradient of norm {norms(full.gradients).get(most, 0.0):.2g},"
            f" where rounding explains {allowed[most]:.1g}",
        )

    def _rounding(self, step: Step, full: Step) -> dict[int, float]:
        sizes = (norms(step.gradients), norms(full.gradients))
        positions = sizes[0].keys() | sizes[1].keys()
        return {
            position: _ROUNDINGS * self._loop.eps * max(each.get(position, 0.0) for each in sizes)
            for position in positions
        }

    def _noise(self, full: Step, place: _Place) -> dict[int, float]:
        noise: dict[int, float] = {}
        for move in range(_MOVES):
            moved = self._loop.full(replace(place.start, moved_by=move))
            for position, distance in distances(place.of(moved), full.gradients).items():
                noise[position] = max(noise.get(position, 0.0), distance)
        return noise

    def _why_not_comparable(
        self, full: Step, place: _Place, allowed: dict[int, float]
    ) -> str | None:
        """Return why the gradient of the full batch is not the same each time, if it isn't."""
        again = self._loop.full(replace(place.start, draw=1))
        if _beyond(distances(place.of(again), full.gradients), allowed):
            return (
                "that of the full batch is another one with other random numbers, or each time: "
                "switch off what draws them, such as dropout that is called as a function"
            )
        return None

    def _why_each_forward_differs(self, place: _Place) -> str | None:
        """Name the buffers that a forward leaves other than it found them, if there are any."""
        after = self._parts.after[place.number]
        changed = [
            self._loop.names[position]
            for position in self._loop.buffers
            if not torch.equal(after[position], place.start.values[position])
        ]
        if not changed:
            return None
        return f"each forward changes {listed(changed)}, which the next one uses"

    def _from_parts(
        self, step: Step, full: Step, place: _Place, allowed: dict[int, float]
    ) -> Cause | None:
        """Find the cause in how the gradients of the micro-batches make up both.

        Clipping would hide that: where there is any, all is run again without.
        """
        loop = self._loop
        gradients: Gradients = full.gradients
        with without_clipping() if self._parts.clips else nullcontext():
            if self._parts.clips:
                gradients = place.of(loop.full(place.start))
                again = loop.accumulated(self._windows, force=self._parts.after)
                unclipped = replace(step, gradients=again.steps[place.number].gradients)
                if not _beyond(
                    distances(unclipped.gradients, gradients), _larger(allowed, gradients, full)
                ):
                    return of_clipping(step)
                step = unclipped
            parts = [place.of(loop.window_of_one(part, place.start)) for part in loop.parts]
        size = norm(full.gradients)
        rounding = math.hypot(*allowed.values()) / size if size else math.inf
        return cause_of(step, gradients, parts, rounding=rounding)

    def _report_count(self, parts: Recording, per_window: int) -> None:
        number, seen = len(self._loop.parts), len(parts.steps)
        expected = per_window * self._windows
        last = parts.steps[-1] if parts.steps else None
        site = parts.backwards[-1] if last is None and parts.backwards else None
        name = "optimizers" if last is None else f"{last.optimizer}.step()"
        finding = Finding.of(
            catalogue.ACCUMULATION_MISMATCH,
            f"{name} ran {plural(seen, 'time')} over {self._windows} windows of "
            f"{number} micro-batches; expected {expected}, as a full batch takes {per_window}",
            detector="verify",
            location=location_of(site if last is None else last.site),
            hint=f"step where (index + 1) % {number} == 0, for an index that begins at 0",
            evidence={"steps": seen, "expected": expected, "micro_batches": number},
        )
        self._findings["count"] = finding

    def _report(self, step: Step, cause: Cause, place: _Place, proof: str = "") -> None:
        self._keep(
            (cause.kind, cause.site),
            Finding.of(
                catalogue.ACCUMULATION_MISMATCH,
                f"{step.optimizer}.step() was given {cause.what} (window "
                f"{place.window + 1}{proof})",
                detector="verify",
                location=location_of(cause.site),
                hint=cause.hint,
                evidence={
                    "cause": cause.kind,
                    "optimizer": step.optimizer,
                    "window": place.window + 1,
                    "micro_batches": len(self._loop.parts),
                    "ratio": cause.ratio,
                    "weights": cause.weights,
                },
            ),
        )

    def _set_aside(self, step: Step, why: str) -> None:
        self._loop.excluded.add(f"the gradient of {step.optimizer}.step(): {why}")
        self._keep(
            (why, step.site),
            Finding.of(
                catalogue.ACCUMULATION_MISMATCH,
                f"the gradient of {step.optimizer}.step() can't be compared with that of the full "
                f"batch: {why}",
                detector="verify",
                severity=Severity.NOTE,
                location=location_of(step.site),
                evidence={"optimizer": step.optimizer},
            ),
        )

    def _keep(self, key: object, finding: Finding) -> None:
        self._findings.setdefault(key, finding)


@dataclass(frozen=True, slots=True)
class _Place:
    """Which step of which window is looked at, and what the full batch is run from.

    ``number`` counts steps through all windows.
    """

    window: int
    index: int
    number: int
    start: Start

    def of(self, recording: Recording) -> Gradients:
        """Return the gradients of this step in another run; none where it has fewer steps."""
        has_it = self.index < len(recording.steps)
        return recording.steps[self.index].gradients if has_it else {}


def _is_other_order(parts: Recording, full: Recording) -> bool:
    """Return whether the same optimizers step as often as they should, but in another order."""
    expected = [step.owner for step in full.steps] * _WINDOWS
    seen = [step.owner for step in parts.steps]
    return seen != expected and Counter(seen) == Counter(expected)


_COUPLED = (
    "it is no sum over micro-batches, as the samples of a batch depend on one another (statistics "
    "of the batch, pairs within it)"
)


def _larger(allowed: dict[int, float], gradients: Gradients, clipped: Step) -> dict[int, float]:
    """Return as much more as these gradients are greater than those that were clipped."""
    size = norm(clipped.gradients)
    factor = max(1.0, norm(gradients) / size) if size else 1.0
    return {position: factor * limit for position, limit in allowed.items()}


def _beyond(apart: dict[int, float], allowed: dict[int, float]) -> list[int]:
    # Written so that a NaN is beyond.
    return [
        position
        for position, distance in apart.items()
        if not distance <= allowed.get(position, 0.0)
    ]
