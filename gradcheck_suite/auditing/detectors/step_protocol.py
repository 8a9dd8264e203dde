"""Gradients that a step has used and that are used again: a missing ``zero_grad``.

Three facts make the mistake. An optimizer's step has used a gradient. The next backward adds to
it, though it is still there, untouched and not zero. That optimizer's next step uses the sum. An
accumulation window of any length never adds to a used gradient; a discriminator's gradients that
the generator's backward has added to are cleared before they are used.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch

from gradcheck_suite import catalogue
from gradcheck_suite._torch_compat import version_of
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.checksums import fingerprint, same_content
from gradcheck_suite.auditing.events import (
    BackwardFinished,
    BackwardStarted,
    Event,
    StepFinished,
    StepStarted,
)
from gradcheck_suite.findings import Finding, Related

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor
    from torch.optim import Optimizer

    from gradcheck_suite.auditing.checksums import Fingerprint
    from gradcheck_suite.auditing.names import ParameterNames
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["StepProtocolDetector"]

_NAMES_SHOWN = 5

_RESCALING = frozenset(
    {
        "__iadd__",
        "__imul__",
        "__itruediv__",
        "_foreach_add_",
        "_foreach_clamp_max_",
        "_foreach_clamp_min_",
        "_foreach_div_",
        "_foreach_mul_",
        "add_",
        "clamp_",
        "clamp_max_",
        "clamp_min_",
        "clip_",
        "div_",
        "mul_",
        "nan_to_num_",
    }
)
"""Writes that leave the sum a sum: clipping, averaging, weight decay. After any other (``copy_``,
``zero_``) nobody can say that the old gradient is still in it."""


class _Used:
    """A gradient that a step has used, and what has become of it since."""

    __slots__ = (
        "added_at",
        "added_by",
        "content",
        "gradient",
        "parameter",
        "seen_nonzero",
        "version",
    )

    def __init__(
        self,
        parameter: weakref.ref[Tensor],
        gradient: weakref.ref[Tensor],
        version: int,
        content: Fingerprint | None,
    ) -> None:
        self.parameter = parameter
        self.gradient = gradient
        self.version = version
        self.content = content
        self.seen_nonzero = False
        self.added_by: CallSite | None = None
        self.added_at = 0

    def current(self) -> Tensor | None:
        """Return the parameter's gradient now, if it is still the same tensor."""
        parameter = self.parameter()
        gradient = None if parameter is None else parameter.grad
        return gradient if gradient is not None and gradient is self.gradient() else None


_Left: TypeAlias = "tuple[weakref.ref[Tensor], weakref.ref[Tensor], int, Fingerprint | None]"


class _OptimizerState:
    __slots__ = ("left", "proven", "stale", "used", "want_content")

    def __init__(self) -> None:
        # What the last step has used: the arguments of _Used, most of which never comes to be one.
        self.left: list[_Left] = []
        self.used: list[_Used] = []
        self.stale: list[_Used] = []
        self.want_content = False
        self.proven = False


@dataclass(slots=True)
class _Occurrence:
    optimizer: str
    step_site: CallSite | None
    backward_site: CallSite | None
    first_step: int
    parameters: int
    of_parameters: int
    names: tuple[str, ...]
    count: int = 1


class StepProtocolDetector:
    """Reports missing-zero-grad (GCS301).

    Args:
        recorder: whose events these are.
        names: how parameters are called.
        optimizers: look at these only; None means every optimizer that steps.
    """

    def __init__(
        self,
        recorder: Recorder,
        names: ParameterNames,
        optimizers: Iterable[Optimizer] | None = None,
    ) -> None:
        self._recorder = recorder
        self._names = names
        self._only = None if optimizers is None else weakref.WeakSet(optimizers)
        self._states: weakref.WeakKeyDictionary[Optimizer, _OptimizerState] = (
            weakref.WeakKeyDictionary()
        )
        self._occurrences: dict[object, _Occurrence] = {}

    def handle(self, event: Event) -> None:
        """Follow gradients from step to backward to step."""
        if isinstance(event, BackwardStarted):
            for state in list(self._states.values()):
                _look_before_backward(state)
        elif isinstance(event, BackwardFinished):
            for state in list(self._states.values()):
                _look_after_backward(state, event, self._recorder.tick())
        elif isinstance(event, StepStarted):
            self._begin_step(event)
        elif isinstance(event, StepFinished):
            self._end_step(event)

    def _state_of(self, optimizer: Optimizer) -> _OptimizerState | None:
        if self._only is not None and optimizer not in self._only:
            return None
        state = self._states.get(optimizer)
        if state is None:
            state = self._states[optimizer] = _OptimizerState()
        return state

    def _begin_step(self, event: StepStarted) -> None:
        state = self._state_of(event.optimizer)
        if state is None:
            return
        # A gradient may be complete only now: a step called from a hook inside backward.
        for used in state.used:
            if used.seen_nonzero and _was_added_to(used):
                used.added_at = self._recorder.tick()
                state.stale.append(used)
        self._report(state, event)

    def _end_step(self, event: StepFinished) -> None:
        state = self._state_of(event.optimizer)
        if state is None:
            return
        # A closure ran its backward inside this step, which then used what it left.
        self._report(state, event)
        first = max(1, self._recorder.options.checksum_first_steps)
        take = not state.proven and (state.want_content or event.index < first)
        state.want_content = False
        state.used = []
        state.left = left = []
        reference = weakref.ref
        for parameter in _parameters(event.optimizer):
            gradient = parameter.grad
            if gradient is not None:
                content = fingerprint(gradient) if take else None
                left.append(
                    (reference(parameter), reference(gradient), version_of(gradient), content)
                )

    def _report(self, state: _OptimizerState, event: StepStarted | StepFinished) -> None:
        stale = [used for used in state.stale if self._still_holds_the_sum(used)]
        state.stale = []
        if not stale:
            return
        state.proven = True
        key = (event.site, stale[0].added_by)
        known = self._occurrences.get(key)
        if known is not None:
            known.count += 1
            return
        names = []
        for used in stale[:_NAMES_SHOWN]:
            parameter = used.parameter()
            name = None if parameter is None else self._names.of(parameter)
            if name is not None:
                names.append(name)
        self._occurrences[key] = _Occurrence(
            optimizer=type(event.optimizer).__name__,
            step_site=event.site,
            backward_site=stale[0].added_by,
            first_step=event.index,
            parameters=len(stale),
            of_parameters=sum(1 for _ in _parameters(event.optimizer)),
            names=tuple(names),
        )

    def _still_holds_the_sum(self, used: _Used) -> bool:
        gradient = used.current()
        if gradient is None or not _is_nonzero(gradient):
            return False
        writes = self._recorder.writers.since(used.added_at, gradient)
        return all(write.operation in _RESCALING for write in writes)

    def findings(self) -> list[Finding]:
        """Return one finding for each pair of a step's and a backward's line."""
        return [_finding(occurrence) for occurrence in self._occurrences.values()]


def _look_before_backward(state: _OptimizerState) -> None:
    """Keep the used gradients that are still there as the step left them, and not zero."""
    # Mostly gone by now: zero_grad lets go of the gradients.
    state.used += [_Used(*left) for left in state.left if left[1]() is not None]
    state.left = []
    if not state.used and not state.stale:
        return
    state.stale = [used for used in state.stale if _is_nonzero(used.current())]
    kept: list[_Used] = []
    with torch.no_grad():
        for used in state.used:
            gradient = used.current()
            # Whoever has written to the gradient since (a decay, a manual momentum) means it.
            if gradient is None or version_of(gradient) != used.version:
                continue
            if not _is_nonzero(gradient):
                continue
            if used.content is None and not state.proven:
                # A write through .data moves no version. From the next step on, contents tell.
                state.want_content = True
                continue
            if used.content is not None and not same_content(used.content, gradient):
                continue
            used.seen_nonzero = True
            kept.append(used)
    state.used = kept


def _look_after_backward(state: _OptimizerState, event: BackwardFinished, now: int) -> None:
    waiting: list[_Used] = []
    for used in state.used:
        if not used.seen_nonzero:
            waiting.append(used)
        elif _was_added_to(used) or (event.creates_graph and _was_replaced(used)):
            used.added_by = event.site
            used.added_at = now
            state.stale.append(used)
        else:
            waiting.append(used)
    state.used = waiting


def _was_added_to(used: _Used) -> bool:
    gradient = used.current()
    return gradient is not None and version_of(gradient) != used.version


def _was_replaced(used: _Used) -> bool:
    """Whether a backward that records its own graph has put the sum in a new tensor."""
    parameter = used.parameter()
    gradient = None if parameter is None else parameter.grad
    if gradient is None or gradient is used.gradient() or gradient.grad_fn is None:
        return False
    used.gradient = weakref.ref(gradient)
    used.version = version_of(gradient)
    return True


def _is_nonzero(gradient: Tensor | None) -> bool:
    if gradient is None:
        return False
    gradient = gradient.detach()
    if gradient.is_sparse:
        gradient = gradient.coalesce().values()
    return bool(gradient.any()) if gradient.numel() else False


def _parameters(optimizer: Optimizer) -> Iterable[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _finding(occurrence: _Occurrence) -> Finding:
    related = []
    added = location_of(occurrence.backward_site)
    if added is not None:
        related.append(Related(added, "this backward added to the gradients already used"))
    return Finding.of(
        catalogue.MISSING_ZERO_GRAD,
        f"{occurrence.optimizer}.step() used gradients of {occurrence.parameters} of "
        f"{occurrence.of_parameters} parameters that still held what its previous step had "
        f"already used, with the new gradient added on top; expected them to be cleared in "
        f"between (first in step {occurrence.first_step})",
        detector="audit",
        location=location_of(occurrence.step_site),
        related=related,
        hint="call optimizer.zero_grad() once for each step, before the first backward()",
        evidence={
            "count": occurrence.count,
            "first_step": occurrence.first_step,
            "optimizer": occurrence.optimizer,
            "parameters": occurrence.parameters,
            "of_parameters": occurrence.of_parameters,
            "names": list(occurrence.names),
        },
    )
