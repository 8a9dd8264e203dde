"""Compare the gradient of each step of an accumulating loop with that of the full batch."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

import torch

from gradcheck_suite import catalogue
from gradcheck_suite.accumulation.determinism import without_clipping
from gradcheck_suite.accumulation.runs import Recording, Start, Step, TrainingLoop
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.object_names.tensor_names import listed
from gradcheck_suite.errors import UsageError
from gradcheck_suite.findings import Finding, Report, Severity
from gradcheck_suite.reporting.text import plural

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Comparison"]

TOOL = "gradcheck-suite accumulation"

Gradients: TypeAlias = "Mapping[int, torch.Tensor]"
"""Gradients by the position of their parameter, which together are one vector; one that is not
there is zero."""

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
_WELL_APART = 1e-9
"""Below this ratio of the least to the greatest eigenvalue of their products, gradients count as
linearly dependent: the products of float32 gradients are no better known."""


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


_LEAST_CLOSE, _MOST_CLOSE = 0.01, 0.1
"""Ratios and weights are told by name where they are so close, as far as rounding goes but within
these: what they tell is a small fraction or a whole number."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a step was given another gradient, and where.

    ``what`` follows "was given"; ``weights`` say how much of each micro-batch was in it.
    """

    kind: str
    what: str
    hint: str
    site: CallSite | None
    ratio: float | None = None
    weights: tuple[float, ...] = ()


def timing_of(step: Step, full: Step, number: int) -> Cause | None:
    """Return what is wrong with when it steps, or with what was there before its first backward."""
    seen, expected = len(step.backwards), number * len(full.backwards)
    if seen != expected and len(full.backwards):
        done = seen / len(full.backwards)
        return Cause(
            "timing",
            f"the gradient of {done:g} micro-batch{'' if done == 1 else 'es'} where a window has "
            f"{number}: it steps too {'early' if seen < expected else 'late'}",
            f"step where (index + 1) % {number} == 0, for an index that begins at 0",
            step.site,
        )
    if step.carried and not full.carried:
        return Cause(
            "carried",
            "the gradient of its window on top of what the window before had left: never cleared",
            "call zero_grad() after step()",
            step.site,
        )
    return None


def not_finite(step: Step) -> Cause:
    """Return what there is to say of a gradient that is not finite where the full batch's is."""
    return Cause(
        "non-finite",
        "a gradient with NaN or infinity in it, where that of the full batch is finite",
        "look for a micro-batch that is divided by the number of its elements, which may be none",
        step.backwards[-1] if step.backwards else step.site,
    )


def rate_of(step: Step, full: Step) -> Cause | None:
    """Return what is wrong with the learning rate of the first step."""
    if step.rates == full.rates:
        return None
    return Cause(
        "rate",
        f"a learning rate of {_shown(step.rates)}, where a full batch has {_shown(full.rates)}: "
        "the scheduler steps at each micro-batch",
        "call scheduler.step() after optimizer.step(), once for each window",
        step.site,
    )


def cause_of(
    step: Step, full: Gradients, parts: Sequence[Gradients], *, rounding: float
) -> Cause | None:
    """Return why the gradient is another one; None where it can't be that of the full batch.

    So it is where the gradient of the full batch is no sum over its micro-batches, and each counts
    the same: the samples of a batch depend on one another, as by the pairs of a contrastive loss.

    ``rounding`` is the part of the gradient's norm that rounding explains.
    """
    number = len(parts)
    close = min(max(rounding, _LEAST_CLOSE), _MOST_CLOSE)
    given, whole = mix_of(step.gradients, parts), mix_of(full, parts)
    is_sum = whole.rest <= close
    counts = whole.weights if is_sum and whole.is_certain else (1 / number,) * number
    if given.rest <= close:
        return _of_weights(step, given, counts, close, is_sum=is_sum)
    return _of_anything(step) if is_sum else None


def _of_weights(
    step: Step, given: Mix, counts: tuple[float, ...], close: float, *, is_sum: bool
) -> Cause | None:
    number = len(counts)
    ratios = [w / c if c else math.inf for w, c in zip(given.weights, counts, strict=True)]
    last = step.backwards[-1] if step.backwards else step.site
    if max(ratios) - min(ratios) <= close * max(map(abs, ratios)):
        ratio = sum(ratios) / number
        if abs(ratio - 1) <= close:
            return None if not is_sum else _of_anything(step)
        return _of_ratio(ratio, last, given.weights, close)
    greatest = max(map(abs, given.weights))
    there = [i for i, weight in enumerate(given.weights) if abs(weight) > close * greatest]
    if len(there) < number and given.is_certain:
        return Cause(
            "cleared",
            f"the gradient of {_counted(there, number)} alone: that of the others was cleared",
            "call zero_grad() once for each step, before the first backward() of a window",
            step.cleared or step.site,
            weights=given.weights,
        )
    if max(given.weights) - min(given.weights) <= close * greatest:
        return Cause(
            "weights",
            f"a gradient to which each micro-batch adds the same, where in the full batch they "
            f"count {', '.join(f'{each:.3g}' for each in counts)}: a mean over elements whose "
            "number differs between micro-batches",
            "divide the sum of each micro-batch by the number of elements in the whole window",
            last,
            weights=given.weights,
        )
    return _of_anything(step)


def _of_ratio(
    ratio: float, site: CallSite | None, weights: tuple[float, ...], close: float
) -> Cause:
    number = len(weights)
    if math.isclose(ratio, number, rel_tol=close):
        what = (
            f"{number} times the gradient of the full batch: the loss is not divided by the number "
            "of micro-batches"
        )
        hint = f"divide the loss of each micro-batch by {number} before backward()"
    elif math.isclose(ratio, 1 / number, rel_tol=close):
        what = (
            f"1/{number} of the gradient of the full batch: the loss is divided by the number of "
            "micro-batches once too often"
        )
        hint = f"divide by {number} in one place"
    else:
        what = f"{ratio:.4g} times the gradient of the full batch"
        hint = "look at what the loss of a micro-batch is multiplied and divided by"
    return Cause("ratio", what, hint, site, ratio=ratio, weights=weights)


def of_clipping(step: Step) -> Cause | None:
    """Return what is wrong with where it was clipped, if it was clipped too early."""
    if step.clipped is None:
        return None
    return Cause(
        "clipped",
        "a gradient that was clipped between the backwards of its window",
        "clip once for each step, after the last backward() of a window",
        step.clipped,
    )


def _of_anything(step: Step) -> Cause:
    return Cause(
        "other",
        "another gradient than that of the full batch",
        "look at what differs between a micro-batch and the full batch: what the loss is divided "
        "by, what is cleared, and what the model keeps from one call to the next",
        step.backwards[-1] if step.backwards else step.site,
    )


def _counted(there: list[int], number: int) -> str:
    *others, last = (str(index + 1) for index in there)
    names = f"{', '.join(others)} and {last}" if others else last
    return f"micro-batch{'' if len(there) == 1 else 'es'} {names} of {number}"


def _shown(rates: tuple[float, ...]) -> str:
    return ", ".join(f"{rate:.4g}" for rate in rates)


@dataclass(frozen=True, slots=True)
class Mix:
    """How a gradient is made of others.

    Attributes:
        weights: how much of each is in it.
        rest: the part of its norm that no weights explain.
        is_certain: whether other weights would not do as well.
    """

    weights: tuple[float, ...]
    rest: float
    is_certain: bool


def norms(gradients: Gradients) -> dict[int, float]:
    """Return the norm of each."""
    return {position: _flat(each).norm().item() for position, each in gradients.items()}


def norm(gradients: Gradients) -> float:
    """Return the norm of all of them together."""
    return math.hypot(*norms(gradients).values())


def is_finite(gradients: Gradients) -> bool:
    """Return whether there is no NaN and no infinity."""
    return math.isfinite(norm(gradients))


def distances(left: Gradients, right: Gradients) -> dict[int, float]:
    """Return the norm of the difference, for each parameter of either."""
    return norms(without(left, right))


def without(left: Gradients, right: Gradients, times: float = 1.0) -> dict[int, torch.Tensor]:
    """Return ``left - times * right``."""
    differences = {}
    for position in sorted({*left, *right}):
        a, b = left.get(position), right.get(position)
        if a is None:
            assert b is not None
            differences[position] = -times * _flat(b)
        else:
            differences[position] = _flat(a) - (0.0 if b is None else times * _flat(b))
    return differences


def mix_of(gradient: Gradients, parts: Sequence[Gradients]) -> Mix:
    """Return the weights of ``parts`` whose sum comes closest to ``gradient``."""
    products = torch.tensor([[_inner(a, b) for b in parts] for a in parts], dtype=torch.float64)
    sides = torch.tensor([_inner(part, gradient) for part in parts], dtype=torch.float64)
    weights = (torch.linalg.pinv(products, rcond=_WELL_APART, hermitian=True) @ sides).tolist()
    rest: Gradients = gradient
    for weight, part in zip(weights, parts, strict=True):
        rest = without(rest, part, weight)
    values = torch.linalg.eigvalsh(products)
    is_certain = bool(values[0] > _WELL_APART * values[-1])
    return Mix(tuple(weights), norm(rest) / max(norm(gradient), 1e-300), is_certain)


def _inner(left: Gradients, right: Gradients) -> float:
    return math.fsum(
        torch.dot(_flat(left[position]), _flat(right[position])).item()
        for position in left.keys() & right.keys()
    )


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    whole = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return whole.detach().to(device="cpu", dtype=torch.float64).reshape(-1)
