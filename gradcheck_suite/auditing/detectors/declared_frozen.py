"""What was declared frozen and gets a gradient, or changes.

Each tensor is told of once, at the first that happens to it: the backward that gives it a gradient,
the step that moves it, the forward that updates a buffer, or the write, where the audit knows it.
Parameters are compared where a version counter has moved, and all of them when the audit ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, call_site, location_of
from gradcheck_suite.auditing.events import (
    Attention,
    BackwardFinished,
    SessionEnded,
    StepFinished,
    StepStarted,
)
from gradcheck_suite.auditing.names import listed, operation_words
from gradcheck_suite.findings import Finding
from gradcheck_suite.reporting.text import plural

if TYPE_CHECKING:
    from torch import nn

    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.frozen import FrozenTensor
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["DeclaredFrozenDetector"]

_Kind = Literal["gradient", "step", "forward", "write", "unknown"]


@dataclass(slots=True)
class _Occurrence:
    kind: _Kind
    by: str
    site: CallSite | None
    names: list[str] = field(default_factory=list)


class DeclaredFrozenDetector:
    """Reports frozen-but-changed (GCS409) of what was declared."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._frozen = recorder.frozen
        self._occurrences: dict[object, _Occurrence] = {}

    def subscriptions(self) -> Subscriptions:
        """Look again after whatever may give a gradient or change something."""
        return {
            BackwardFinished: self._after_backward,
            StepStarted: self._before_step,
            StepFinished: self._after_step,
            SessionEnded: self._end,
        }

    def is_following(self) -> bool:
        """Return whether anything was declared."""
        return bool(self._frozen.tensors)

    def _after_backward(self, event: BackwardFinished) -> Attention | None:
        if not self._frozen.tensors:
            return Attention.ASLEEP
        got = [each for each in self._frozen.tensors if each.got_gradient()]
        self._report("gradient", "backward()", event.site, got)
        return None

    def _before_step(self, event: StepStarted) -> Attention | None:
        if not self._frozen.tensors:
            return Attention.ASLEEP
        self._look_for_writes(event.site, thoroughly=False)
        return None

    def _after_step(self, event: StepFinished) -> Attention | None:
        if not self._frozen.tensors:
            return Attention.ASLEEP
        changed = self._changed(thoroughly=False)
        self._report("step", f"{type(event.optimizer).__name__}.step()", event.site, changed)
        return None

    def listen_to(self, module: nn.Module) -> None:
        """Look at buffers after each call of a module that has some of them."""
        self._recorder.module_calls.listen(module, self._after_call)

    def _after_call(self, module: nn.Module, _result: object) -> None:
        # The statistics of batch norm move no version counter.
        buffers = [
            each
            for each in self._frozen.tensors
            if each.is_buffer and each.has_changed(thoroughly=True)
        ]
        self._report("forward", f"a forward of {type(module).__name__}", call_site(), buffers)

    def _end(self, _event: SessionEnded) -> None:
        self._look_for_writes(None, thoroughly=True)

    def _look_for_writes(self, site: CallSite | None, *, thoroughly: bool) -> None:
        for each in self._changed(thoroughly=thoroughly):
            tensor = each.tensor()
            writes = [] if tensor is None else self._recorder.writers.since(each.since, tensor)
            if writes:
                last = writes[-1]
                self._report("write", operation_words(last.operation), last.site, [each])
            else:
                self._report("unknown", "something", site, [each])

    def _changed(self, *, thoroughly: bool) -> list[FrozenTensor]:
        return [
            each
            for each in self._frozen.tensors
            if each.has_changed(thoroughly=thoroughly or each.is_buffer)
        ]

    def _report(
        self, kind: _Kind, by: str, site: CallSite | None, found: list[FrozenTensor]
    ) -> None:
        if not found:
            return
        occurrence = self._occurrences.setdefault((kind, by, site), _Occurrence(kind, by, site))
        occurrence.names += [each.name for each in found]
        self._frozen.tensors = [each for each in self._frozen.tensors if each not in found]

    def findings(self) -> list[Finding]:
        """Return one finding for each line."""
        return [_finding(occurrence) for occurrence in self._occurrences.values()]


_HINTS: dict[str, str] = {
    "gradient": "call requires_grad_(False) on it, or run the frozen part under torch.no_grad()",
    "step": "leave it out of the optimizer, or set its .grad to None",
    "forward": "keep the frozen part in evaluation mode: train() sets all of a model to training",
    "write": "leave it out of what is written",
    "unknown": "look for what writes through .data, numpy or an extension",
}


def _finding(occurrence: _Occurrence) -> Finding:
    names = listed(occurrence.names)
    what = f"{names}, {plural(len(occurrence.names), 'tensor')} declared frozen"
    if occurrence.kind == "gradient":
        message = f"backward() gave a gradient to {what}; expected none"
    elif occurrence.kind == "unknown":
        message = f"{what}, changed while nothing told of it; expected the same contents"
    else:
        message = f"{occurrence.by} changed {what}; expected the same contents"
    return Finding.of(
        catalogue.FROZEN_BUT_CHANGED,
        message,
        detector="audit",
        location=location_of(occurrence.site),
        hint=_HINTS[occurrence.kind],
        evidence={"by": occurrence.by, "names": list(occurrence.names), "declared": True},
    )
