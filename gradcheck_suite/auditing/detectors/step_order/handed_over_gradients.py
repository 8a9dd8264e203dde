"""Gradients of a network that no optimizer owns, which a step uses and which are used again.

A worker computes gradients in a network of its own and hands them to that of the optimizer, as the
same tensors or as copies. The optimizer's ``zero_grad`` lets go of what its own parameters have;
those of the worker stay, the next backward adds to them, and a later step uses the sum.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, NamedTuple

import torch

from gradcheck_suite import catalogue
from gradcheck_suite._torch_compat import version_of
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import Occurrences, related
from gradcheck_suite.auditing.detectors.gradients import RESCALING, is_nonzero, sample_of
from gradcheck_suite.auditing.events import (
    Attention,
    BackwardFinished,
    BackwardStarted,
    StepStarted,
    WatchResumed,
)
from gradcheck_suite.auditing.object_names.optimizers import parameters_of
from gradcheck_suite.auditing.user_modes import ops_are_recorded, without_user_modes
from gradcheck_suite.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from gradcheck_suite.auditing.detectors.leaf_records import LeafRecords
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["HandedOverGradientsDetector"]

_LOOKED_AT = 32
"""Steps that are looked at. A bound on cost; workers that take turns come again by then."""

_ENOUGH = 10
"""Where no leaf without an owner got gradients in so many steps, none is looked for. Chosen: leaves
are looked at in the first four of each optimizer, and in the eighth."""

_SAMPLED = 64
"""Elements of each gradient that are compared. A bound on cost, as in ``sample_of``'s other uses:
as many equal elements are no accident, twice in a row."""


class _Used:
    """A gradient of a leaf that nobody owns, as a step has used it.

    Attributes:
        leaf: the leaf.
        gradient: its gradient.
        version: the gradient's version when the step used it.
        since: the time of that step.
        added_by: the line of a backward that has added to it since; None for none.
        added: whether one has.
    """

    __slots__ = ("added", "added_by", "gradient", "leaf", "since", "version")

    def __init__(self, leaf: Tensor, gradient: Tensor, since: int) -> None:
        self.leaf = weakref.ref(leaf)
        self.gradient = weakref.ref(gradient)
        self.version = version_of(gradient)
        self.since = since
        self.added = False
        self.added_by: CallSite | None = None

    def current(self) -> Tensor | None:
        """Return the gradient, if the leaf still has it."""
        leaf = self.leaf()
        gradient = None if leaf is None else leaf.grad
        return gradient if gradient is not None and gradient is self.gradient() else None


class _Occurrence(NamedTuple):
    optimizer: str
    backward: CallSite | None
    step: CallSite | None
    number: int
    parameters: int


class HandedOverGradientsDetector:
    """Reports missing-zero-grad (GCS301) of networks whose gradients another one is given.

    Args:
        recorder: whose events these are.
        leaves: tell which leaves nobody owns.
    """

    def __init__(self, recorder: Recorder, leaves: LeafRecords) -> None:
        self._recorder = recorder
        self._leaves = leaves
        self._unowned: dict[int, weakref.ref[Tensor]] = {}
        self._used: dict[int, _Used] = {}
        self._occurrences: Occurrences[CallSite | None, _Occurrence] = Occurrences()

    def subscriptions(self) -> Subscriptions:
        """Follow such gradients from step to backward to step."""
        return {
            BackwardStarted: self._before_backward,
            BackwardFinished: self._after_backward,
            StepStarted: self._before_step,
            WatchResumed: self._begin_anew,
        }

    @property
    def backwards(self) -> frozenset[CallSite | None]:
        """The lines of the backwards that are told of."""
        return frozenset(self._occurrences)

    def findings(self) -> list[Finding]:
        """Return one finding for each line that adds to such gradients."""
        return self._occurrences.findings(_finding)

    def _begin_anew(self, _event: WatchResumed) -> None:
        self._used.clear()

    def _before_backward(self, _event: BackwardStarted) -> Attention | None:
        if self._is_over():
            self._used.clear()
            return Attention.ASLEEP
        if self._leaves.is_looking:
            for record in self._leaves.unowned:
                leaf = record.reference()
                if leaf is not None and not record.owners:
                    self._unowned[id(leaf)] = record.reference
        # What was cleared, or written to by the program, is no longer what a step has used.
        for key, used in list(self._used.items()):
            gradient = used.current()
            if not used.added and (
                gradient is None
                or version_of(gradient) != used.version
                or not without_user_modes(is_nonzero, gradient)
            ):
                del self._used[key]
        return None

    def _is_over(self) -> bool:
        """Return whether no such gradients are to be expected any more."""
        step = self._recorder.state.step
        return step >= (_LOOKED_AT if self._unowned else _ENOUGH)

    def _after_backward(self, event: BackwardFinished) -> Attention | None:
        if self._is_over():
            return Attention.ASLEEP
        for used in self._used.values():
            gradient = used.current()
            if not used.added and gradient is not None and version_of(gradient) != used.version:
                used.added, used.added_by = True, event.site
                used.since = self._recorder.state.clock.tick()
        return None

    def _before_step(self, event: StepStarted) -> Attention | None:
        if self._is_over():
            return Attention.ASLEEP
        if self._unowned and not ops_are_recorded():
            without_user_modes(self._look_for_used, event)
        return None

    def _look_for_used(self, event: StepStarted) -> None:
        """Report what is used again, and note what is used."""
        stale = []
        for leaf, gradient in self._handed_over(event):
            used = self._used.get(id(leaf))
            if used is not None and used.added and used.current() is gradient:
                writes = self._recorder.write_log.since(used.since, gradient)
                if all(write.operation in RESCALING for write in writes):
                    stale.append(used)
            since = self._recorder.state.clock.moment.sequence
            self._used[id(leaf)] = _Used(leaf, gradient, since)
        if stale:
            self._occurrences.note(
                stale[0].added_by,
                lambda: _Occurrence(
                    type(event.optimizer).__name__,
                    stale[0].added_by,
                    event.site,
                    event.number,
                    len(stale),
                ),
            )

    def _handed_over(self, event: StepStarted) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield leaves that nobody owns whose gradients the optimizer's parameters have as well."""
        owned: dict[torch.Size, list[Tensor]] = {}
        for parameter in parameters_of(event.optimizer):
            # An optimizer that was made before the audit is known from its first call on.
            self._unowned.pop(id(parameter), None)
            if parameter.grad is not None:
                owned.setdefault(parameter.shape, []).append(parameter.grad)
        for reference in list(self._unowned.values()):
            leaf = reference()
            gradient = None if leaf is None else leaf.grad
            if leaf is not None and gradient is not None:
                others = owned.get(leaf.shape, ())
                if any(_is_same(gradient, other) for other in others) and is_nonzero(gradient):
                    yield leaf, gradient


def _is_same(gradient: Tensor, other: Tensor) -> bool:
    """Return whether two gradients are one tensor, or a sample of their elements is the same."""
    if gradient is other:
        return True
    if gradient.dtype is not other.dtype or gradient.device != other.device:
        return False
    samples = sample_of(gradient, _SAMPLED), sample_of(other, _SAMPLED)
    return None not in samples and torch.equal(*samples)  # type: ignore[arg-type]


def _finding(occurrence: _Occurrence, count: int) -> Finding:
    number = occurrence.parameters
    which = "1 parameter" if number == 1 else f"{number} parameters"
    return Finding.of(
        catalogue.MISSING_ZERO_GRAD,
        f"this backward() added to gradients of {which} that no optimizer owns and that "
        f"{occurrence.optimizer}.step() had used already, handed over to its own; its next step "
        "used the sum; expected them to be cleared in between (first in step "
        f"{occurrence.number})",
        detector="audit",
        location=location_of(occurrence.backward),
        related=related((location_of(occurrence.step), "this step used the sum")),
        hint="call zero_grad() of the network that backward() fills, too: it is another one",
        evidence={
            "count": count,
            "first_step": occurrence.number,
            "optimizer": occurrence.optimizer,
            "parameters": number,
        },
    )
