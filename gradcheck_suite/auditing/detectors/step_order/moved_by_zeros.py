"""Parameters that a step moves though no backward has reached them since the last one.

Where gradients are set to zero and not to None, an optimizer can't tell a part of a model that this
batch did not use from one whose gradient happens to be zero: Adam and momentum move it on by what
they remember, and weight decay shrinks it. Asked in the steps in which leaves are looked at, of
parameters that had a gradient in another step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch.optim import Optimizer

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.detectors.gradients import is_zero
from gradcheck_suite.auditing.detectors.leaf_records import next_looked_at
from gradcheck_suite.auditing.events import (
    Attention,
    GradientsCleared,
    StepFinished,
    StepStarted,
)
from gradcheck_suite.auditing.object_names.tensor_names import listed, local_name, written
from gradcheck_suite.auditing.saved_tensors.checksums import fingerprint, same_content
from gradcheck_suite.auditing.user_modes import ops_are_recorded, without_user_modes
from gradcheck_suite.findings import Finding, Severity

if TYPE_CHECKING:
    from torch import Tensor

    from gradcheck_suite.auditing.detectors.leaf_records import LeafRecord, LeafRecords
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.object_names.optimizers import Optimizers
    from gradcheck_suite.auditing.saved_tensors.checksums import Fingerprint

__all__ = ["MovedByZerosDetector"]

_ENOUGH = 2
"""Steps looked at that have moved such parameters. Chosen: the least that shows it goes on."""
_MOST = 64
"""Parameters that are compared before and after a step. A bound on cost."""
_NAMED = 6
"""Parameters whose names are kept: one more than are listed. A bound on cost."""


@dataclass(slots=True)
class _Moved:
    """What the steps of one line have moved.

    Attributes:
        optimizer: the class of the optimizer.
        step: the line of the step.
        cleared: where gradients were set to zero; None where no ``zero_grad`` did.
        steps: in how many of the steps looked at any was moved.
        looks: how many of its steps were looked at, from the first of these on.
        names: of the first of them.
        parameters: which they are, by identity.
    """

    optimizer: str
    step: CallSite | None
    cleared: CallSite | None
    steps: int = 0
    looks: int = 0
    names: list[str] = field(default_factory=list)
    parameters: set[int] = field(default_factory=set)


class MovedByZerosDetector:
    """Reports step-without-backward (GCS303) of a part of the parameters."""

    def __init__(self, optimizers: Optimizers, leaves: LeafRecords) -> None:
        self._optimizers = optimizers
        self._leaves = leaves
        self._cleared: dict[int, CallSite | None] = {}
        self._before: list[tuple[LeafRecord, Tensor, Fingerprint]] = []
        self._moved: dict[CallSite | None, _Moved] = {}

    def subscriptions(self) -> Subscriptions:
        """Look at what has zeros for a gradient, before and after a step."""
        return {
            GradientsCleared: self._clear,
            StepStarted: self._begin_step,
            StepFinished: self._end_step,
        }

    def _clear(self, event: GradientsCleared) -> Attention | None:
        if event.set_to_none:
            return Attention.ASLEEP
        owner = event.owner
        key = self._optimizers.number_of(owner) if isinstance(owner, Optimizer) else -1
        self._cleared.setdefault(key, event.site)
        return None

    def _begin_step(self, event: StepStarted) -> Attention | int | None:
        self._before = []
        if self._leaves.is_looking and not event.has_closure:
            without_user_modes(self._look, event)
        if self._before:
            return Attention.AWAKE
        return next_looked_at(event.number) if self._leaves.turns == 1 else None

    def _look(self, event: StepStarted) -> None:
        if ops_are_recorded():
            return
        known = self._moved.get(event.site)
        if known is not None:
            known.looks += 1
        if not any(self._is_reached(record, event.number) for record in self._leaves.stepped):
            return  # a step without any backward, which step_without_backward tells
        for record in self._leaves.stepped:
            parameter = record.reference()
            if parameter is None or parameter.grad is None or not parameter.requires_grad:
                continue
            is_reached = self._is_reached(record, event.number)
            if is_reached or not record.with_gradient or not is_zero(parameter.grad):
                continue
            content = fingerprint(parameter)
            if content is not None and len(self._before) < _MOST:
                self._before.append((record, parameter, content))

    def _is_reached(self, record: LeafRecord, step: int) -> bool:
        """Return whether a backward has reached a leaf since the step before, or may have."""
        last = record.reached_last
        return last is None or last > step - self._leaves.turns

    def _end_step(self, event: StepFinished) -> Attention | None:
        before, self._before = self._before, []
        if not before:
            return Attention.ASLEEP
        if not ops_are_recorded():
            without_user_modes(self._compare, event, before)
        return None

    def _compare(
        self, event: StepFinished, before: list[tuple[LeafRecord, Tensor, Fingerprint]]
    ) -> None:
        moved = [
            (record, parameter)
            for record, parameter, content in before
            if not same_content(content, parameter)
        ]
        if not moved:
            return
        known = self._moved.get(event.site)
        if known is None:
            number = self._optimizers.number_of(event.optimizer)
            cleared = self._cleared.get(number, self._cleared.get(-1))
            kind = type(event.optimizer).__name__
            known = self._moved[event.site] = _Moved(kind, event.site, cleared, looks=1)
        known.steps += 1
        for record, parameter in moved:
            if id(parameter) not in known.parameters and len(known.names) < _NAMED:
                name = local_name(parameter) if record.name is None else written(record.name)
                known.names += [name] if name is not None else []
            known.parameters.add(id(parameter))

    def findings(self) -> list[Finding]:
        """Return one finding for each line of a step."""
        return [_finding(each) for each in self._moved.values() if each.steps >= _ENOUGH]


def _finding(moved: _Moved) -> Finding:
    step, cleared = location_of(moved.step), location_of(moved.cleared)
    where = step if cleared is None else cleared
    which = f" ({listed(moved.names)})" if moved.names else ""
    left = "zeros" if cleared is None else "the zeros that zero_grad(set_to_none=False) had left"
    return Finding.of(
        catalogue.STEP_WITHOUT_BACKWARD,
        f"{moved.optimizer}.step() moved parameters that no backward had reached since its last "
        f"step{which}: their gradients were {left}, so that momentum or weight decay alone moved "
        f"them, in {moved.steps} of {moved.looks} steps looked at; expected None, so that the step "
        "leaves out what a batch does not use",
        detector="audit",
        severity=Severity.WARNING,
        location=where,
        related=related((step, "this step moved them"), apart_from=where),
        hint="optimizer.zero_grad(), which sets gradients to None",
        evidence={
            "optimizer": moved.optimizer,
            "steps": moved.steps,
            "looks": moved.looks,
            "parameters": list(moved.names),
        },
    )
