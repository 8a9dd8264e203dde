"""Calls of a GradScaler that are missing, doubled or out of order.

Two are silent: a step of the optimizer itself on scaled gradients, and a scaler's step on gradients
that were never scaled. At the others torch raises; told is which call is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import Occurrences
from gradcheck_suite.auditing.events import (
    Attention,
    BackwardStarted,
    GradientsUnscaled,
    LossScaled,
    ScalerStepped,
    ScalerUpdated,
    SessionEnded,
    StepFinished,
    StepStarted,
)
from gradcheck_suite.findings import Finding, Severity

if TYPE_CHECKING:
    from torch.amp import GradScaler
    from torch.optim import Optimizer

    from gradcheck_suite.auditing.detectors.accumulation_windows import AccumulationWindows
    from gradcheck_suite.auditing.detectors.step_order.scaled_losses import Kind, ScaledLosses
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.object_names.optimizers import Optimizers

__all__ = ["ScalerMisuseDetector"]

_WORDS = {
    "direct": (
        (
            "{name}.step() used gradients that were still multiplied by the loss scale; expected "
            "scaler.step(optimizer), which divides them first"
        ),
        "call scaler.step(optimizer) in place of optimizer.step()",
    ),
    "unchecked": (
        (
            "{name}.step() was called itself after scaler.unscale_(optimizer), so that gradients "
            "with inf or NaN are used too; expected scaler.step(optimizer), which leaves them out"
        ),
        "call scaler.step(optimizer) in place of optimizer.step()",
    ),
    "plain": (
        (
            "scaler.step() divided gradients of {name} by the loss scale that had never been "
            "multiplied by it: backward() ran on the loss itself; expected "
            "scaler.scale(loss).backward()"
        ),
        "call backward() on what scaler.scale(loss) returns",
    ),
    "after unscale": (
        (
            "scaled gradients were added to gradients of {name} that scaler.unscale_() had divided "
            "already; expected unscale_() after the last backward() of the window"
        ),
        "call scaler.unscale_(optimizer) once, after the last backward()",
    ),
    "unscaled twice": (
        (
            "scaler.unscale_() was called twice for {name} in one step; torch refuses; expected "
            "one unscale_() before each step() and update() after it"
        ),
        "call scaler.unscale_(optimizer) once for each step, and scaler.update() after it",
    ),
    "unscaled late": (
        (
            "scaler.unscale_() was called for {name} after scaler.step(), before scaler.update(); "
            "torch refuses; expected unscale_(), step(), update()"
        ),
        "call scaler.update() after scaler.step(optimizer), and unscale_() before it",
    ),
    "stepped twice": (
        (
            "scaler.step() was called again for {name} without scaler.update() in between; torch "
            "refuses; expected update() after each step"
        ),
        "call scaler.update() after scaler.step(optimizer)",
    ),
    "no scale": (
        (
            "a GradScaler was asked to step or unscale {name}, but has never scaled a loss; torch "
            "refuses; expected scaler.scale(loss).backward()"
        ),
        "call backward() on what scaler.scale(loss) returns",
    ),
    "no gradient": (
        (
            "scaler.step() found no gradient of {name}; torch refuses; expected "
            "scaler.scale(loss).backward() before it"
        ),
        "call scaler.scale(loss).backward() before scaler.step(optimizer)",
    ),
    "gradient gone": (
        (
            "scaler.step() found no gradient of {name}: what backward() had filled was gone before "
            "it, each .grad set to None; torch refuses; expected that before backward() or after "
            "step()"
        ),
        "set .grad to None before backward(), or after scaler.step(optimizer)",
    ),
    "early update": (
        (
            "scaler.update() was called before any scaler.step(){name}; torch refuses; expected "
            "step(), then update()"
        ),
        "call scaler.update() after scaler.step(optimizer)",
    ),
}

_REFUSED = frozenset(
    {
        "unscaled twice",
        "unscaled late",
        "stepped twice",
        "no scale",
        "no gradient",
        "gradient gone",
        "early update",
    }
)

_Key: TypeAlias = "tuple[int, int]"


@dataclass(slots=True)
class _Occurrence:
    name: str
    kind: str
    site: CallSite | None


class ScalerMisuseDetector:
    """Reports scaler-misuse (GCS310)."""

    def __init__(
        self, optimizers: Optimizers, windows: AccumulationWindows, scaled: ScaledLosses
    ) -> None:
        self._optimizers = optimizers
        self._windows = windows
        self._scaled = scaled
        self._has_scaled: set[int] = set()
        self._stages: dict[_Key, str] = {}
        self._beginning: list[Kind] = []
        # A step of an optimizer of which nobody knows yet whether the scaler has called it.
        self._pending: tuple[int, str, list[Kind], CallSite | None] | None = None
        self._occurrences: Occurrences[tuple[str, CallSite | None], _Occurrence] = Occurrences()
        # The same, of steps whose loss may turn out to be cut off from the optimizer's parameters.
        self._empty: dict[tuple[str, CallSite | None], int] = {}

    def subscriptions(self) -> Subscriptions:
        """Follow the calls on each scaler and each optimizer."""
        return {
            LossScaled: self._scale,
            GradientsUnscaled: self._unscale,
            StepStarted: self._begin_step,
            StepFinished: self._end_step,
            ScalerStepped: self._scaler_step,
            ScalerUpdated: self._update,
            BackwardStarted: self._settle,
            SessionEnded: self._settle,
        }

    def is_following(self) -> bool:
        """Return whether a scaler is at work, whose calls belong together."""
        return bool(self._has_scaled)

    def _report(self, kind: str, name: str, site: CallSite | None) -> None:
        self._occurrences.note((kind, site), lambda: _Occurrence(name, kind, site))

    def _scale(self, event: LossScaled) -> Attention | None:
        if not event.scaler.is_enabled():
            return None
        self._has_scaled.add(id(event.scaler))
        return Attention.AWAKE

    def _unscale(self, event: GradientsUnscaled) -> None:
        if not event.scaler.is_enabled():
            return
        name = type(event.optimizer).__name__
        key = _key(event.scaler, event.optimizer)
        if not event.failed:
            self._stages[key] = "unscaled"
            return
        stage = self._stages.get(key)
        if stage is not None:
            kind = "unscaled late" if stage == "stepped" else "unscaled twice"
            self._report(kind, name, event.site)
        elif id(event.scaler) not in self._has_scaled:
            self._report("no scale", name, event.site)

    def _begin_step(self, event: StepStarted) -> Attention | None:
        if not self._has_scaled:
            return Attention.ASLEEP
        self._settle(event)
        self._beginning = self._scaled.kinds(self._windows.stepped)
        return None

    def _end_step(self, event: StepFinished) -> Attention | None:
        if self._beginning:
            name = type(event.optimizer).__name__
            self._pending = (id(event.optimizer), name, self._beginning, event.site)
            self._beginning = []
        return None if self._has_scaled else Attention.ASLEEP

    def _settle(self, _event: object) -> Attention | None:
        """Judge the last step, which no scaler has called."""
        pending = self._pending
        if pending is None:
            return None if self._has_scaled else Attention.ASLEEP
        self._pending = None
        _, name, kinds, site = pending
        if "scaled" in kinds:
            self._report("direct", name, site)
        elif all(kind == "unscaled" for kind in kinds):
            self._report("unchecked", name, site)
        return None

    def _scaler_step(self, event: ScalerStepped) -> None:
        if not event.scaler.is_enabled():
            return
        key = _key(event.scaler, event.optimizer)
        name = type(event.optimizer).__name__
        if event.failed:
            self._explain_failed_step(event, key, name)
            return
        self._stages[key] = "stepped"
        pending = self._pending
        if pending is None or pending[0] != id(event.optimizer):
            return
        self._pending = None
        kinds = pending[2]
        if "unscaled" in kinds and "scaled" in kinds:
            self._report("after unscale", name, event.site)
        elif "plain" in kinds:
            self._report("plain", name, event.site)

    def _explain_failed_step(self, event: ScalerStepped, key: _Key, name: str) -> None:
        if self._stages.get(key) == "stepped":
            self._report("stepped twice", name, event.site)
            return
        if id(event.scaler) not in self._has_scaled:
            self._report("no scale", name, event.site)
            return
        window = self._windows.of(event.optimizer)
        lost = bool(window.discarded)  # by a misplaced zero_grad, which is told of as such
        if not event.stepped and not lost and all(p.grad is None for p in window.parameters()):
            kind = "gradient gone" if window.fills else "no gradient"
            self._report(kind, name, event.site)
            if not window.fills:
                self._empty[kind, event.site] = id(event.optimizer)

    def _update(self, event: ScalerUpdated) -> None:
        if not event.scaler.is_enabled():
            return
        self._settle(event)  # a step that has passed the scaler by explains a refusal
        mine = [key for key in self._stages if key[0] == id(event.scaler)]
        if not event.failed:
            for key in mine:
                del self._stages[key]
        elif not mine and not any(kind == "direct" for kind, _ in self._occurrences):
            self._report("early update", "", event.site)

    def findings(self) -> list[Finding]:
        """Return one finding for each line and kind of mistake."""
        for key, optimizer in self._empty.items():
            if optimizer in self._optimizers.cut_off:
                self._occurrences.discard(key)
        return self._occurrences.findings(_finding)


def _key(scaler: GradScaler, optimizer: Optimizer) -> _Key:
    return id(scaler), id(optimizer)


def _finding(occurrence: _Occurrence, count: int) -> Finding:
    message, hint = _WORDS[occurrence.kind]
    return Finding.of(
        catalogue.SCALER_MISUSE,
        message.format(name=occurrence.name),
        detector="audit",
        severity=Severity.WARNING if occurrence.kind == "unchecked" else Severity.ERROR,
        location=location_of(occurrence.site),
        hint=hint,
        evidence={
            "count": count,
            "kind": occurrence.kind,
            **({"refused": True} if occurrence.kind in _REFUSED else {}),
        },
    )
