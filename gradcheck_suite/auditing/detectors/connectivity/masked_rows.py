"""Rows of a parameter whose gradients the program sets to zero, and which a step moves anyway.

To train the new rows of an embedding alone, a hook or an assignment zeroes the gradient of the
others. Weight decay needs no gradient, nor does momentum that was there before: the rows that were
to stay move at each step.
"""

from __future__ import annotations

import dis
import functools
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradcheck_suite import catalogue
from gradcheck_suite._runtime.frames import code_of
from gradcheck_suite._runtime.memory import is_readable
from gradcheck_suite._torch_compat import hooks_of
from gradcheck_suite.auditing.call_sites import CallSite, is_user_code, location_of
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.detectors.leaf_records import is_looked_at
from gradcheck_suite.auditing.events import StepFinished, StepStarted
from gradcheck_suite.auditing.object_names.tensor_names import written
from gradcheck_suite.auditing.user_modes import ops_are_recorded, without_user_modes
from gradcheck_suite.findings import Finding, Severity

if TYPE_CHECKING:
    from types import CodeType

    from gradcheck_suite.auditing.detectors.accumulation_windows import AccumulationWindows
    from gradcheck_suite.auditing.detectors.leaf_records import LeafRecords
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.object_names.tensor_names import ParameterNames
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["MaskedRowsDetector"]

_ENOUGH = 3
"""Steps looked at in which the same rows had no gradient and were moved. Chosen: after so many, the
rows that a batch happens to leave out are others."""
_MOST_PARAMETERS = 16
"""Parameters of one optimizer that are followed. A bound on cost: each is read once in a look."""
_MOST_ROWS = 64
"""Rows that are compared before and after a step. A bound on cost and memory."""
_FIRST_STEPS = 4
"""From this step on, powers of two alone are looked at: ``is_looked_at`` of ``leaf_records``."""

_ZEROING = frozenset({"__setitem__", "zero_", "masked_fill_", "index_fill_", "fill_"})
"""In-place functions that set elements of a gradient to zero; clipping, which scales, is none."""


@dataclass(slots=True)
class _Masked:
    """What is known of a parameter whose gradient the program masks.

    Attributes:
        parameter: itself.
        rows: those that had no gradient in any step looked at.
        masked_at: the line that sets them to zero, or that of the hook which does.
        site: of the step.
        optimizer: its class.
        decay: its weight decay.
        moved: in how many steps the step has moved such rows.
    """

    parameter: weakref.ref[Tensor]
    rows: Tensor
    masked_at: CallSite
    site: CallSite | None
    optimizer: str
    decay: float
    moved: int = 0


class MaskedRowsDetector:
    """Reports frozen-but-changed (GCS409) of rows.

    Args:
        recorder: whose write log tells what was written into gradients.
        windows: tell whether there are several optimizers.
        leaves: name parameters, as far as they do.
        names: name the others.
    """

    def __init__(
        self,
        recorder: Recorder,
        windows: AccumulationWindows,
        leaves: LeafRecords,
        names: ParameterNames,
    ) -> None:
        self._recorder = recorder
        self._windows = windows
        self._leaves = leaves
        self._names = names
        self._known: dict[int, _Masked] = {}
        self._found: list[tuple[str, int, _Masked]] = []
        self._before: list[tuple[Tensor, Tensor, Tensor]] = []
        self._next: int | None = None

    def subscriptions(self) -> Subscriptions:
        """Compare before and after a few steps."""
        return {StepStarted: self._begin_step, StepFinished: self._end_step}

    def findings(self) -> list[Finding]:
        """Return one finding for each parameter."""
        return [
            _finding(name, rows, masked)
            for name, rows, masked in self._found
            if masked.moved >= _ENOUGH
        ]

    def _begin_step(self, event: StepStarted) -> int | None:
        self._before = []
        steps = self._windows.stepped.steps
        if is_looked_at(steps) and not ops_are_recorded():
            without_user_modes(self._look, event)
        is_soon = steps < _FIRST_STEPS or not self._windows.is_alone()
        self._next = None if is_soon else event.number + (1 << steps.bit_length()) - steps
        return self._next

    def _look(self, event: StepStarted) -> None:
        followed = 0
        for group in event.optimizer.param_groups:
            for parameter in group["params"]:
                by = self._masked_by(parameter)
                if by is not None and followed < _MOST_PARAMETERS:
                    followed += 1
                    self._note(event, parameter, by, float(group.get("weight_decay") or 0))

    def _masked_by(self, parameter: Tensor) -> CallSite | None:
        """Return the hook, or the line since the last backward, that zeroes part of a gradient."""
        gradient = parameter.grad
        if gradient is None or gradient.layout is not torch.strided or not gradient.dim():
            return None
        for _, hook in hooks_of(parameter):
            code = code_of(hook)
            if code is not None and is_user_code(code) and _masks(code):
                return code, 0
        # Before that backward, another tensor may have had this memory.
        since = self._recorder.state.clock.moment.birth.sequence
        writes = self._recorder.write_log.since(since, gradient)
        return next((each.site for each in writes if each.operation in _ZEROING), None)

    def _note(self, event: StepStarted, parameter: Tensor, by: CallSite, decay: float) -> None:
        gradient = parameter.grad
        if gradient is None or not (is_readable(gradient) and is_readable(parameter)):
            return
        rows = ~gradient.detach().reshape(len(gradient), -1).any(1)
        known = self._known.get(id(parameter))
        if known is None or known.parameter() is not parameter:
            kind = type(event.optimizer).__name__
            known = _Masked(weakref.ref(parameter), rows, by, event.site, kind, decay)
            self._known[id(parameter)] = known
        if known.rows.shape == rows.shape:
            known.rows = known.rows & rows
        if bool(known.rows.all()) or not bool(known.rows.any()):
            return
        some = known.rows.nonzero().flatten()[:_MOST_ROWS]
        self._before.append((parameter, some, parameter.detach()[some]))

    def _end_step(self, _event: StepFinished) -> int | None:
        before, self._before = self._before, []
        if before:
            without_user_modes(self._compare, before)
        return self._next

    def _compare(self, before: list[tuple[Tensor, Tensor, Tensor]]) -> None:
        for parameter, some, was in before:
            known = self._known[id(parameter)]
            if is_readable(parameter) and not torch.equal(parameter.detach()[some], was):
                known.moved += 1
                if known.moved == _ENOUGH:
                    record = self._leaves.of(parameter)
                    name = None if record is None else record.name
                    told = (
                        (self._names.of(parameter) or "a parameter")
                        if name is None
                        else written(name)
                    )
                    self._found.append((told, int(known.rows.sum()), known))


@functools.lru_cache(maxsize=256)
def _masks(code: CodeType) -> bool:
    """Return whether a hook sets elements, or multiplies by what is no number."""
    loaded = ""
    for each in dis.get_instructions(code):
        is_product = each.opname == "BINARY_MULTIPLY" or (
            each.opname == "BINARY_OP" and each.argrepr in {"*", "*="}
        )
        is_write = each.opname in {"STORE_SUBSCR", "STORE_SLICE"}
        if is_write or (is_product and loaded != "LOAD_CONST"):
            return True
        if each.argval in _ZEROING or each.argval in {
            "where",
            "mul",
            "mul_",
            "masked_fill",
            "index_fill",
        }:
            return True
        loaded = each.opname
    return False


def _finding(name: str, rows: int, masked: _Masked) -> Finding:
    zeroed = location_of(masked.masked_at)
    step = location_of(masked.site)
    why = (
        f"weight decay ({masked.decay:g}) needs no gradient"
        if masked.decay
        else "what the optimizer remembers of earlier gradients needs none"
    )
    return Finding.of(
        catalogue.FROZEN_BUT_CHANGED,
        f"the gradients of {rows} rows of {name} are set to zero, and {masked.optimizer}.step() "
        f"moved these rows all the same, in each of {masked.moved} steps looked at: {why}",
        detector="audit",
        severity=Severity.WARNING,
        location=zeroed or step,
        related=related((step, "the step that moves them"), apart_from=zeroed or step),
        hint=(
            "put the parameter into a group with weight_decay=0, train the new rows as a parameter "
            "of their own, or copy the old rows back after each step"
        ),
        evidence={"rows": rows, "weight_decay": masked.decay, "steps": masked.moved},
    )
