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
from gradcheck_suite._torch_compat import part_of_rank, sparse_coo_parts, version_of
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import Occurrences, related
from gradcheck_suite.auditing.detectors.gradients import RESCALING, is_nonzero
from gradcheck_suite.auditing.events import (
    Attention,
    BackwardFinished,
    GradientsFound,
    StepFinished,
    StepStarted,
    WatchResumed,
)
from gradcheck_suite.auditing.object_names.optimizers import parameters_of
from gradcheck_suite.auditing.saved_tensors.checksums import fingerprint, same_content
from gradcheck_suite.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor
    from torch.optim import Optimizer

    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.object_names.tensor_names import ParameterNames
    from gradcheck_suite.auditing.recorder import Recorder
    from gradcheck_suite.auditing.saved_tensors.checksums import Fingerprint

__all__ = ["MissingZeroGradDetector"]

_NAMES_SHOWN = 5
"""Names of parameters in a finding. Chosen, for length."""


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

    def __init__(self, left: _Left, gradient: Tensor) -> None:
        self.parameter = weakref.ref(left[0])
        self.gradient = weakref.ref(gradient)
        self.version = left[2]
        self.content = left[3]
        self.seen_nonzero = False
        self.added_by: CallSite | None = None
        self.added_at = 0

    def current(self) -> Tensor | None:
        """Return the parameter's gradient now, if it is still the same tensor."""
        parameter = self.parameter()
        gradient = None if parameter is None else parameter.grad
        return gradient if gradient is not None and gradient is self.gradient() else None


_Left: TypeAlias = "tuple[Tensor, int, int, tuple[Fingerprint | None, ...] | None]"
"""A parameter, and its gradient's identity, version and contents when a step had used it. The
optimizer, which alone keeps this, keeps the parameter too."""


class _OptimizerState:
    __slots__ = ("left", "left_at", "optimizer", "proven", "stale", "used", "want_content")

    def __init__(self, optimizer: weakref.ref[Optimizer]) -> None:
        self.optimizer = optimizer
        # What the last step has used, most of which never comes to be a _Used.
        self.left: list[_Left] = []
        # The number of the backward that comes next after that step.
        self.left_at = 0
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


class MissingZeroGradDetector:
    """Reports missing-zero-grad (GCS301).

    Args:
        recorder: whose events these are.
        names: how parameters are called.
    """

    def __init__(self, recorder: Recorder, names: ParameterNames) -> None:
        self._recorder = recorder
        self._names = names
        self._states: dict[int, _OptimizerState] = {}
        self._occurrences: Occurrences[object, _Occurrence] = Occurrences()

    def subscriptions(self) -> Subscriptions:
        """Follow gradients from step to backward to step."""
        return {
            GradientsFound: self._before_backward,
            BackwardFinished: self._after_backward,
            StepStarted: self._begin_step,
            StepFinished: self._end_step,
            WatchResumed: self._begin_anew,
        }

    def is_following(self) -> bool:
        """Return whether a used gradient is being followed, or was found to be used again."""
        return bool(self._occurrences) or any(
            state.used or state.stale or state.want_content for state in self._states.values()
        )

    def _begin_anew(self, _event: WatchResumed) -> None:
        for state in self._states.values():
            state.left, state.used, state.stale = [], [], []

    def _before_backward(self, _event: GradientsFound) -> Attention | None:
        followed = False
        for state in list(self._states.values()):
            if self._recorder.optimizers.bare_at >= state.left_at:
                # What the step had used was let go of; others may have its identity by now.
                state.left = []
            if state.left or state.used or state.stale:
                _look_before_backward(state)
                followed = followed or bool(state.used or state.stale)
        return Attention.AWAKE if followed else None

    def _after_backward(self, event: BackwardFinished) -> Attention | None:
        followed = [state for state in list(self._states.values()) if state.used]
        for state in followed:
            _look_after_backward(state, event, self._recorder.state.clock.tick())
        return None if followed else Attention.ASLEEP

    def _state_of(self, optimizer: Optimizer) -> _OptimizerState:
        key = id(optimizer)
        state = self._states.get(key)
        if state is None:
            states = self._states
            alive = weakref.ref(optimizer, lambda _: states.pop(key, None))
            state = states[key] = _OptimizerState(alive)
        return state

    def _begin_step(self, event: StepStarted) -> Attention | None:
        if not any(state.used or state.stale for state in list(self._states.values())):
            return Attention.ASLEEP
        state = self._state_of(event.optimizer)
        # A gradient may be complete only now: a step called from a hook inside backward.
        for used in state.used:
            if used.seen_nonzero and _was_added_to(used):
                used.added_at = self._recorder.state.clock.tick()
                state.stale.append(used)
        if state.stale:
            self._report(state, event)
        return None

    def _end_step(self, event: StepFinished) -> None:
        state = self._state_of(event.optimizer)
        if state.stale:
            # A closure ran its backward inside this step, which then used what it left.
            self._report(state, event)
        first = max(1, self._recorder.options.checksum_first_steps)
        take = not state.proven and (state.want_content or event.number < first)
        state.want_content = False
        state.used = []
        state.left_at = self._recorder.state.backwards
        state.left = [
            (
                parameter,
                id(gradient),
                gradient._version  # noqa: SLF001 - `version_of`, spared two calls
                if gradient.__class__ is torch.Tensor
                else _version_of(gradient),
                _content(gradient) if take else None,
            )
            for parameter in parameters_of(event.optimizer)
            if (gradient := parameter.grad) is not None
        ]

    def _report(self, state: _OptimizerState, event: StepStarted | StepFinished) -> None:
        stale = [used for used in state.stale if self._still_holds_the_sum(used)]
        state.stale = []
        if not stale:
            return
        state.proven = True
        self._occurrences.note(
            (event.site, stale[0].added_by),
            lambda: _Occurrence(
                optimizer=type(event.optimizer).__name__,
                step_site=event.site,
                backward_site=stale[0].added_by,
                first_step=event.number,
                parameters=len(stale),
                of_parameters=sum(1 for _ in parameters_of(event.optimizer)),
                names=tuple(self._names_of(stale[:_NAMES_SHOWN])),
            ),
        )

    def _names_of(self, stale: list[_Used]) -> Iterator[str]:
        for used in stale:
            parameter = used.parameter()
            name = None if parameter is None else self._names.of(parameter)
            if name is not None:
                yield name

    def _still_holds_the_sum(self, used: _Used) -> bool:
        gradient = used.current()
        if gradient is None or not _is_nonzero(gradient):
            return False
        writes = self._recorder.write_log.since(used.added_at, part_of_rank(gradient))
        return all(write.operation in RESCALING for write in writes)

    def findings(self) -> list[Finding]:
        """Return one finding for each pair of a step's and a backward's line."""
        return self._occurrences.findings(_finding)


def _look_before_backward(state: _OptimizerState) -> None:
    """Keep the used gradients that are still there as the step left them, and not zero."""
    for left in state.left:
        gradient = left[0].grad
        if gradient is not None and id(gradient) == left[1]:
            state.used.append(_Used(left, gradient))
    state.left = []
    if not state.used and not state.stale:
        return
    state.stale = [used for used in state.stale if _is_nonzero(used.current())]
    kept: list[_Used] = []
    with torch.no_grad():
        for used in state.used:
            gradient = used.current()
            # Whoever has written to the gradient since (a decay, a manual momentum) means it.
            if gradient is None or _version_of(gradient) != used.version:
                continue
            if not _is_nonzero(gradient):
                continue
            if used.content is None and not state.proven:
                # A write through .data moves no version. From the next step on, contents tell.
                state.want_content = True
                continue
            if used.content is not None and not _is_content(used.content, gradient):
                continue
            used.seen_nonzero = True
            kept.append(used)
    state.used = kept


def _content(gradient: Tensor) -> tuple[Fingerprint | None, ...]:
    return tuple(map(fingerprint, _parts(gradient)))


def _is_content(content: tuple[Fingerprint | None, ...], gradient: Tensor) -> bool:
    """Return whether a gradient is known to be what it was."""
    parts = _parts(gradient)
    return len(parts) == len(content) and all(
        old is not None and same_content(old, now) for old, now in zip(content, parts, strict=True)
    )


def _parts(gradient: Tensor) -> tuple[Tensor, ...]:
    """Return what a gradient consists of: itself, or the indices and values of a sparse one."""
    if gradient.layout is torch.sparse_coo:
        return sparse_coo_parts(gradient)
    return (part_of_rank(gradient),)


def _version_of(gradient: Tensor) -> int:
    """Return a number that grows with each write: of a sharded one, to the whole or to the part."""
    part = part_of_rank(gradient)
    return version_of(gradient) + (0 if part is gradient else version_of(part))


def _is_nonzero(gradient: Tensor | None) -> bool:
    """Return whether a gradient is known not to be zero, in what this rank has of it."""
    return gradient is not None and is_nonzero(part_of_rank(gradient))


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
    return gradient is not None and _version_of(gradient) != used.version


def _was_replaced(used: _Used) -> bool:
    """Return whether a backward that records its own graph has put the sum in a new tensor."""
    parameter = used.parameter()
    gradient = None if parameter is None else parameter.grad
    if gradient is None or gradient is used.gradient() or gradient.grad_fn is None:
        return False
    used.gradient = weakref.ref(gradient)
    used.version = _version_of(gradient)
    return True


def _finding(occurrence: _Occurrence, count: int) -> Finding:
    added = location_of(occurrence.backward_site)
    return Finding.of(
        catalogue.MISSING_ZERO_GRAD,
        f"{occurrence.optimizer}.step() used gradients of {occurrence.parameters} of "
        f"{occurrence.of_parameters} parameters that still held what its previous step had "
        f"already used, with the new gradient added on top; expected them to be cleared in "
        f"between (first in step {occurrence.first_step})",
        detector="audit",
        location=location_of(occurrence.step_site),
        related=related((added, "this backward added to the gradients already used")),
        hint="call optimizer.zero_grad() once for each step, before the first backward()",
        evidence={
            "count": count,
            "first_step": occurrence.first_step,
            "optimizer": occurrence.optimizer,
            "parameters": occurrence.parameters,
            "of_parameters": occurrence.of_parameters,
            "names": list(occurrence.names),
        },
    )
