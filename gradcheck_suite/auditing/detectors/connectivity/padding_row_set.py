"""Rows of `padding_idx` that an initialization has overwritten, where padding reaches the loss.

An embedding sets the row of its `padding_idx` to zeros when it is made, and masks its gradient.
Whoever initializes all of the weight afterwards gives padding a random vector, which no step
changes. Where padding is left out of all that follows, the gradient at its positions is zero, and
the row has no part in anything.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite._runtime.memory import is_readable
from gradcheck_suite._torch_compat import padding_of
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.reachable_parameters import nodes_of
from gradcheck_suite.auditing.events import Attention, BackwardStarted
from gradcheck_suite.auditing.object_names.tensor_names import listed, written
from gradcheck_suite.auditing.saved_tensors.saved_tensor import packed_tensors_of
from gradcheck_suite.auditing.user_modes import ops_are_recorded, without_user_modes
from gradcheck_suite.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from torch.utils.hooks import RemovableHandle

    from gradcheck_suite.auditing.detectors.leaf_records import LeafRecords
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.object_names.tensor_names import ParameterNames
    from gradcheck_suite.auditing.recorder import Recorder
    from gradcheck_suite.auditing.saved_tensors.write_log import Write  # noqa: TC004 - nobody asks for the types of the fields

__all__ = ["PaddingRowSetDetector"]

_FIRST_STEPS = 2
"""Steps whose backwards are looked at. A bound on cost: each goes through the nodes of a graph. The
initialization comes before them, and the first batch may be one without padding."""

_MOST = 16
"""Embeddings of a graph that are looked at. A bound on cost."""

_PART = 1e-3
"""Part of the largest gradient of an embedding's output that the largest one at padding has, at
least. Chosen, far above what a large negative number in place of minus infinity lets through."""

_FILLING = frozenset(
    {"bernoulli_", "exponential_", "fill_", "log_normal_", "normal_", "random_"}
    | {"trunc_normal_", "uniform_"}
)
_SCALING = frozenset({"add_", "clamp_", "div_", "mul_", "sub_"})
"""In-place functions that leave it an initialization: `normal_().mul_(0.1)`, `erfinv_` and its
like are parts of one."""


@dataclass(slots=True)
class _Rows:
    """What one line has initialized.

    Attributes:
        write: the last that it wrote.
        row: the first one's row of `padding_idx`.
        names: what the weights are called, where that is known.
    """

    write: Write
    row: int
    names: list[str] = field(default_factory=list)


class PaddingRowSetDetector:
    """Reports frozen-parameter (GCS406) of rows of `padding_idx`.

    Args:
        recorder: whose write log tells what was written into weights.
        leaves: name parameters, as far as they do.
        names: name the others.
    """

    def __init__(self, recorder: Recorder, leaves: LeafRecords, names: ParameterNames) -> None:
        self._recorder = recorder
        self._leaves = leaves
        self._names = names
        self._handles: list[RemovableHandle] = []
        self._found: dict[CallSite | None, _Rows] = {}

    def subscriptions(self) -> Subscriptions:
        """Look at the embeddings of the first backwards."""
        return {BackwardStarted: self._begin_backward}

    def findings(self) -> list[Finding]:
        """Return one finding for each line that initializes."""
        return [_finding(site, rows) for site, rows in self._found.items()]

    def _begin_backward(self, event: BackwardStarted) -> Attention | None:
        # On a graph that is gone through again, those of each time would add up.
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._recorder.state.iteration >= _FIRST_STEPS:
            return Attention.ASLEEP
        if event.accumulates and not ops_are_recorded():
            without_user_modes(self._look, event)
        return None

    def _look(self, event: BackwardStarted) -> None:
        for node in nodes_of(event):
            padding = padding_of(node)
            if padding is None or len(self._handles) >= _MOST:
                continue
            weight, row = padding
            write = self._initialized(weight, row)
            if write is None or not is_readable(weight) or not bool(weight.detach()[row].any()):
                continue
            indices = [
                each.tensor
                for each in packed_tensors_of(node, type(node))
                if not each.tensor.is_floating_point()
            ]
            if len(indices) == 1 and is_readable(indices[0]):
                is_padding = indices[0] == row
                if bool(is_padding.any()):
                    look = self._hook(weakref.ref(weight), row, is_padding, write)
                    self._handles.append(node.register_prehook(look))

    def _initialized(self, weight: Tensor, row: int) -> Write | None:
        """Return the write that set the whole of a weight, if it is the last that set its row."""
        try:
            start = weight.data_ptr()
        except (RuntimeError, NotImplementedError):
            return None
        size = weight.nbytes // len(weight)
        first = start + row * size
        for write in reversed(self._recorder.write_log.since(-1, weight)):
            if write.start >= first + size or write.end <= first:
                continue
            is_whole = write.start <= start and write.end >= start + weight.nbytes
            if not is_whole or write.operation not in _SCALING:
                return write if is_whole and write.operation in _FILLING else None
        return None

    def _hook(
        self, weight: weakref.ref[Tensor], row: int, is_padding: Tensor, write: Write
    ) -> Callable[..., None]:
        def look(gradients: tuple[Tensor | None, ...]) -> None:
            tensor = weight()
            if tensor is None or ops_are_recorded() or not self._recorder.state.running:
                return
            if without_user_modes(_reaches, gradients[0], is_padding):
                self._note(tensor, row, write)

        return look

    def _note(self, weight: Tensor, row: int, write: Write) -> None:
        record = self._leaves.of(weight)
        name = None if record is None else record.name
        called = self._names.of(weight) if name is None else written(name)
        rows = self._found.setdefault(write.site, _Rows(write, row))
        if called is not None and called not in rows.names:
            rows.names.append(called)


def _reaches(gradient: Tensor | None, is_padding: Tensor) -> bool:
    """Return whether the gradient at padding is a part of it that counts."""
    if gradient is None or gradient.shape[:-1] != is_padding.shape or not is_readable(gradient):
        return False
    sizes = gradient.detach().abs().amax(-1)
    return bool(sizes[is_padding].amax() > _PART * sizes.amax())


def _finding(site: CallSite | None, rows: _Rows) -> Finding:
    what = listed(rows.names) if rows.names else "the weight of an embedding"
    which = "in each" if len(rows.names) > 1 else f"({rows.row})"
    return Finding.of(
        catalogue.FROZEN_PARAMETER,
        f"{rows.write.operation}() set all of {what} here, the row of `padding_idx` {which} too: "
        "it has no gradient, so that it keeps what was set for ever, and padding has a part in the "
        "loss; expected a row of zeros",
        detector="audit",
        severity=Severity.WARNING,
        location=location_of(site),
        hint="module.weight.data[module.padding_idx].zero_() after the initialization",
        evidence={"names": list(rows.names), "row": rows.row, "operation": rows.write.operation},
    )
