"""Optimizers none of whose steps has changed anything, and scalers that skip every step.

From an optimizer's first step on, the contents of a few parameters with gradients are compared
before and after, until a step has changed one: that is the first in nearly every run, and nothing
is looked at from then on. Where none of the few has changed, all of them are compared. A schedule
may begin with a learning rate of zero: with one, more steps are waited for.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.optim import Optimizer

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.gradients import is_nonzero
from gradcheck_suite.auditing.events import Attention, ScalerStepped, StepFinished, StepStarted
from gradcheck_suite.auditing.object_names.optimizers import parameters_of
from gradcheck_suite.auditing.saved_tensors.checksums import fingerprint, same_content
from gradcheck_suite.findings import Finding

if TYPE_CHECKING:
    from torch import Tensor

    from gradcheck_suite.auditing.detectors.step_order.learning_rate_zero import (
        LearningRateZeroDetector,
    )
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.object_names.optimizers import Optimizers
    from gradcheck_suite.auditing.saved_tensors.checksums import Fingerprint

__all__ = ["StepWithoutEffectDetector"]

_FEW = 4
"""Parameters compared at an optimizer's first step, the smallest. A bound on cost: where one of
them moves, as in nearly every run, no more is looked at."""

_ENOUGH = 3
"""Steps without effect, after a first that gave reason to look. Chosen: one or two may be on
purpose."""

_ENOUGH_OF_A_SCHEDULE = 12
"""Under a scheduler, a note until so many. Chosen, four times the usual: a schedule may hold a rate
of zero for more than one step, as where it steps once for several batches."""

_ENOUGH_SKIPPED = 4
"""Steps left out by a scaler, all there were. Chosen: a new ``GradScaler`` halves its scale of
65,536 at each until it fits, so that the first few are usual."""


@dataclass(slots=True)
class _Still:
    """An optimizer whose steps have changed nothing so far; ``steps`` had all parameters compared.

    ``rates`` are the learning rates of its groups.
    """

    reference: weakref.ref[Optimizer]
    optimizer: str
    site: CallSite | None
    steps: int = 0
    scheduled: bool = False
    rates: tuple[float | None, ...] = ()


@dataclass(slots=True)
class _Skipped:
    """An optimizer that a scaler was asked to step, and has not by now."""

    optimizer: str
    site: CallSite | None
    first_scale: float
    scale: float
    count: int = 0


class StepWithoutEffectDetector:
    """Reports step-without-effect (GCS313)."""

    def __init__(self, optimizers: Optimizers, rates: LearningRateZeroDetector) -> None:
        self._optimizers = optimizers
        self._rates = rates
        self._still: list[_Still] = []
        self._moved: dict[int, weakref.ref[Optimizer]] = {}
        self._before: list[tuple[Tensor, Fingerprint]] = []
        self._skipped: dict[int, _Skipped] = {}
        self._stepped: set[int] = set()

    def subscriptions(self) -> Subscriptions:
        """Compare before and after steps, until one has changed anything."""
        return {
            StepStarted: self._begin_step,
            StepFinished: self._end_step,
            ScalerStepped: self._scaler_step,
        }

    def is_following(self) -> bool:
        """Return whether an optimizer has changed nothing so far."""
        return any(still.steps for still in self._still)

    def _begin_step(self, event: StepStarted) -> Attention | None:
        self._before = []
        optimizer = event.optimizer
        if self._has_moved(optimizer):
            every = all(map(self._has_moved, self._optimizers.known()))
            return Attention.ASLEEP if every else None
        still = self._still_of(optimizer)
        parameters = [each for each in parameters_of(optimizer) if each.grad is not None]
        if still is None:
            # Whether their gradients are zero is asked where there is reason to, as that waits for
            # a GPU, and as modes of the program see it.
            parameters = sorted(parameters, key=torch.Tensor.numel)[:_FEW]
        else:
            parameters = [each for each in parameters if is_nonzero(each.grad)]
        for parameter in parameters:
            content = fingerprint(parameter)
            if content is not None:
                self._before.append((parameter, content))
        return None

    def _end_step(self, event: StepFinished) -> Attention | None:
        before, self._before = self._before, []
        if not before:
            every = all(map(self._has_moved, self._optimizers.known()))
            return Attention.ASLEEP if every else None
        optimizer = event.optimizer
        still = self._still_of(optimizer)
        if not all(same_content(content, parameter) for parameter, content in before):
            self._moved[id(optimizer)] = weakref.ref(optimizer)
            if still is not None:
                self._still.remove(still)
            return None
        if still is None:
            still = _Still(weakref.ref(optimizer), type(optimizer).__name__, event.site)
            self._still.append(still)
            return None
        if self._rates.suspects(optimizer):  # that tells of the group, and why
            still.steps = 0
            return None
        still.steps += 1
        still.scheduled = any("initial_lr" in group for group in optimizer.param_groups)
        rates = [group.get("lr", 0.0) for group in optimizer.param_groups]
        # None where the optimizer finds its own, as Adafactor does.
        still.rates = tuple(None if rate is None else float(rate) for rate in rates)
        return None

    def _has_moved(self, optimizer: Optimizer) -> bool:
        known = self._moved.get(id(optimizer))
        return known is not None and known() is optimizer

    def _still_of(self, optimizer: Optimizer) -> _Still | None:
        return next((each for each in self._still if each.reference() is optimizer), None)

    def _scaler_step(self, event: ScalerStepped) -> None:
        key = id(event.optimizer)
        if event.failed or not event.scaler.is_enabled():
            return
        if event.stepped:
            self._stepped.add(key)
            self._skipped.pop(key, None)
        elif key not in self._stepped:
            scale = event.scaler.get_scale()
            skipped = self._skipped.get(key)
            if skipped is None:
                skipped = _Skipped(type(event.optimizer).__name__, event.site, scale, scale)
                self._skipped[key] = skipped
            skipped.count += 1
            skipped.scale = scale

    def findings(self) -> list[Finding]:
        """Return one finding for each optimizer."""
        return [
            *(_of_still(still) for still in self._still if still.steps >= _ENOUGH),
            *(
                _of_skipped(skipped)
                for skipped in self._skipped.values()
                if skipped.count >= _ENOUGH_SKIPPED
            ),
        ]


def _of_still(still: _Still) -> Finding:
    steps = still.steps + 1  # the first, which has shown that there is reason to look
    is_zero = all(rate == 0 for rate in still.rates)
    why = "its learning rate is 0" if is_zero else "each update was less than rounding"
    hint = "give it a learning rate above 0"
    if not is_zero:
        hint = "raise the learning rate, or keep the parameters in a wider type than updates need"
    may_begin_so = still.scheduled and still.steps < _ENOUGH_OF_A_SCHEDULE
    return Finding.of(
        catalogue.STEP_WITHOUT_EFFECT,
        f"none of {steps} calls of {still.optimizer}.step() changed a parameter, though there were "
        f"gradients: {why}; expected the parameters to move",
        detector="audit",
        doubts=["its schedule may begin with a rate of 0"] if may_begin_so else [],
        location=location_of(still.site),
        hint=hint,
        evidence={"steps": steps, "optimizer": still.optimizer, "learning_rates": still.rates},
    )


def _of_skipped(skipped: _Skipped) -> Finding:
    return Finding.of(
        catalogue.STEP_WITHOUT_EFFECT,
        f"GradScaler.step() left out {skipped.optimizer}.step() each of {skipped.count} times: the "
        "gradients had infinity or NaN in them (the scale went from "
        f"{skipped.first_scale:g} to {skipped.scale:g}); expected steps once the scale has come "
        "down",
        detector="audit",
        location=location_of(skipped.site),
        hint="look for the first infinity in the forward or the loss; if there is none, give "
        "GradScaler a smaller init_scale",
        evidence={
            "skipped": skipped.count,
            "optimizer": skipped.optimizer,
            "first_scale": skipped.first_scale,
            "scale": skipped.scale,
        },
    )
