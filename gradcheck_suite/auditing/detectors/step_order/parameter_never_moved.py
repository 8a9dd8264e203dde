"""Parameters that get gradients and that the steps of their optimizer never move, beside others.

A rule of the program's own that leaves out a group, ends at the first parameter without a gradient,
or gives a parameter of zeros a share of zero: what it owns has gradients in each step looked at,
and is bit for bit what it was, while others of the same optimizer move. Not judged are parameters
in 16 bits and updates that rounding may take, a rate that is 0 or unknown, and whatever a step has
changed once.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING

import torch

from gradcheck_suite import catalogue
from gradcheck_suite._runtime.memory import is_readable
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.detectors.leaf_records import next_looked_at
from gradcheck_suite.auditing.events import SessionEnded, StepFinished
from gradcheck_suite.auditing.object_names.tensor_names import listed, local_name, written
from gradcheck_suite.auditing.saved_tensors.checksums import read_answers
from gradcheck_suite.auditing.user_modes import ops_are_recorded, without_user_modes
from gradcheck_suite.findings import Finding
from gradcheck_suite.reporting.text import plural

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from gradcheck_suite.auditing.detectors.accumulation_windows import AccumulationWindows
    from gradcheck_suite.auditing.detectors.leaf_records import LeafRecord, LeafRecords  # noqa: TC004 - nobody asks for the types of the fields
    from gradcheck_suite.auditing.detectors.step_order.learning_rate_zero import (
        LearningRateZeroDetector,
    )
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.object_names.tensor_names import ParameterNames

__all__ = ["ParameterNeverMovedDetector"]

_ENOUGH = 6
"""Steps looked at in which a parameter had a gradient and stayed as it was. Chosen: the sixth is
the ninth step, by when momentum has set in and rules that take turns have come round."""

_MOST = 64
"""Parameters that are compared with their gradients in a step. A bound on cost: where more stay as
they are, these stand for them."""

_WIDE = frozenset({torch.float32, torch.float64})
"""Types of parameters that are judged: in 16 bits rounding takes most updates, which is told as
such."""


@dataclass(slots=True)
class _Unmoved:
    """A parameter that had gradients and was not moved.

    Attributes:
        record: what became of it.
        name: what the program calls it.
        optimizer: the class of the one that owns it.
        made: where that was made.
        site: where it steps.
        steps: in how many steps looked at it had a gradient that should have moved it.
        is_zero: whether it is all zeros.
    """

    record: LeafRecord
    name: str | None
    optimizer: str
    made: CallSite | None
    site: CallSite | None
    steps: int = 0
    is_zero: bool = False


class ParameterNeverMovedDetector:
    """Reports step-without-effect (GCS313) of some parameters of an optimizer that moves others."""

    def __init__(
        self,
        windows: AccumulationWindows,
        leaves: LeafRecords,
        names: ParameterNames,
        rates: LearningRateZeroDetector,
    ) -> None:
        self._windows = windows
        self._leaves = leaves
        self._names = names
        self._rates = rates
        self._unmoved: dict[int, _Unmoved] = {}
        self._moved: dict[CallSite | None, int] = {}
        self._ended = False

    def subscriptions(self) -> Subscriptions:
        """Look at the steps in which leaves are looked at."""
        return {StepFinished: self._end_step, SessionEnded: self._end}

    def findings(self) -> list[Finding]:
        """Return one finding for each line that steps, once nothing can move any more."""
        if not self._ended:
            return []
        by_line: dict[CallSite | None, list[_Unmoved]] = {}
        for each in self._unmoved.values():
            if each.steps >= _ENOUGH and each.record.changed is False:
                by_line.setdefault(each.site, []).append(each)
        return [_finding(unmoved, self._moved[site]) for site, unmoved in by_line.items()]

    def _end(self, _event: SessionEnded) -> None:
        self._ended = True

    def _end_step(self, event: StepFinished) -> int | None:
        if not self._leaves.is_looking:
            return next_looked_at(event.number)
        self._ended = False
        records = self._leaves.stepped
        still = [each for each in records if each.changed is False and not each.with_zeros]
        if not still:
            return next_looked_at(event.number) if self._leaves.turns == 1 else None
        moved = sum(each.changed is True for each in records)
        if moved and not self._rates.suspects(event.optimizer):
            without_user_modes(self._look, event, still[:_MOST], moved)
        return None

    def _look(self, event: StepFinished, records: list[LeafRecord], moved: int) -> None:
        if ops_are_recorded():
            return
        self._moved[event.site] = moved
        rates = _rates_of(event.optimizer)
        asked: list[tuple[LeafRecord, Tensor]] = []
        answers: list[Tensor] = []
        for record in records:
            parameter = record.reference()
            rate = None if parameter is None else rates.get(id(parameter))
            gradient = None if parameter is None else parameter.grad
            if parameter is None or gradient is None or not rate:
                continue
            if parameter.dtype in _WIDE and is_readable(parameter) and is_readable(gradient):
                asked.append((record, parameter))
                answers += _answers(parameter, gradient, rate)
        read = iter(read_answers(answers))
        for record, parameter in asked:
            should_move, is_zero = next(read), next(read)
            unmoved = self._unmoved.get(id(record))
            if unmoved is None:
                unmoved = self._unmoved[id(record)] = _Unmoved(
                    record,
                    self._name_of(record, parameter),
                    type(event.optimizer).__name__,
                    self._windows.of(event.optimizer).constructed_at,
                    event.site,
                )
            unmoved.steps += should_move
            unmoved.is_zero = is_zero

    def _name_of(self, record: LeafRecord, parameter: Tensor) -> str | None:
        if record.name is not None:
            return written(record.name)
        return self._names.of(parameter) or local_name(parameter)


def _rates_of(optimizer: Optimizer) -> dict[int, float]:
    """Return the rate of each parameter, by identity, where that is a number."""
    return {
        id(parameter): float(group["lr"])
        for group in optimizer.param_groups
        if isinstance(group.get("lr"), Real)
        for parameter in group["params"]
    }


def _answers(parameter: Tensor, gradient: Tensor, rate: float) -> tuple[Tensor, Tensor]:
    """Return whether an update of ``rate * gradient`` is above rounding, and whether all is zero.

    Both lie on the device of the parameter.
    """
    with torch.no_grad():
        slope = gradient.detach()
        slope = slope.coalesce().values() if slope.is_sparse else slope
        largest = slope.abs().amax() if slope.numel() else slope.new_zeros(())
        size = parameter.detach().abs().amax()
        limits = torch.finfo(parameter.dtype)
        return rate * largest > limits.eps * size + limits.tiny, size == 0


def _finding(unmoved: list[_Unmoved], moved: int) -> Finding:
    first = unmoved[0]
    where = location_of(first.site)
    names = [each.name for each in unmoved if each.name is not None]
    steps = min(each.steps for each in unmoved)
    which = plural(len(unmoved), "parameter") + (f" ({listed(tuple(names))})" if names else "")
    all_zero = all(each.is_zero for each in unmoved)
    one = len(unmoved) == 1
    hint = "see which of its parameters the rule of step() leaves out, or gives an update of 0"
    if all_zero:
        hint = "an update in proportion to the norm of a parameter is 0 where that is: use 1 there"
    return Finding.of(
        catalogue.STEP_WITHOUT_EFFECT,
        f"{first.optimizer}.step() never changed {which}, though there "
        f"{'was a gradient for it' if one else 'were gradients for them'} in each of {steps} steps "
        f"looked at and the learning rate was above 0, and moved {moved} others"
        + (f"; {'it is' if one else 'they are'} all zeros" if all_zero else "")
        + "; expected each parameter with a gradient to move",
        detector="audit",
        location=where,
        related=related(
            (location_of(first.made), f"{first.optimizer} is made here"), apart_from=where
        ),
        hint=hint,
        evidence={
            "steps": steps,
            "optimizer": first.optimizer,
            "parameters": [*names],
            "count": len(unmoved),
            "moved": moved,
            "all_zero": all_zero,
        },
    )
