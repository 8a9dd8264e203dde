"""Inputs of a model that lie in memory which lasts, and are written in place for each call.

An augmentation that writes into what it is given, and is given the data set's own tensor, changes
the data: what one step has masked stays masked in all that follow. Torch raises nothing, as nobody
has saved the data for backward by then. A buffer that is filled anew for each batch is none of
these, nor a state that a simulation or a chain of samples carries on, which is another at each
step: what was written has to show in what the next call was given.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import Occurrences
from gradcheck_suite.auditing.detectors.gradients import sample_of
from gradcheck_suite.auditing.events import ForwardFinished
from gradcheck_suite.auditing.object_names.tensor_names import local_name
from gradcheck_suite.auditing.saved_tensors.write_log import Write
from gradcheck_suite.auditing.user_modes import ops_are_recorded, without_user_modes
from gradcheck_suite.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["InputWrittenInPlaceDetector"]

_SAMPLED = 4096
"""Elements of an input that are compared. A bound on cost."""
_MOST_INPUTS = 64
"""Inputs that are followed. A bound on memory."""
_ENOUGH = 2
"""Calls that found the input changed by a write before it is told. Chosen: the least that shows a
habit; the first may prepare the data."""
_MATRIX = 2
"""Dimensions of an input at least. Chosen: a clock or a counter that goes on has fewer."""
_ALIKE = 0.5
"""The correlation with what the call before was given, from which on arithmetic in place has added
to it. Chosen: noise of the size of the data leaves 0.7."""
_ROUNDING = 1e-3
"""The relative change up to which an element is the same. Chosen: data that are normalized a second
time change by less."""

_OVERWRITE = frozenset(
    (
        *("bernoulli_", "cauchy_", "copy_", "exponential_", "fill_", "geometric_", "log_normal_"),
        *("normal_", "random_", "uniform_", "zero_"),
    )
)
"""Writes that leave nothing of what was there."""
_ASSIGNMENTS = frozenset(
    ("__setitem__", "index_copy_", "index_fill_", "index_put_", "masked_fill_", "scatter_")
)
"""Writes that replace some elements: they mask where all of these become one number."""


@dataclass(slots=True)
class _Input:
    """A tensor that was given to a model, or what it is a view of.

    Attributes:
        tensor: it.
        sequence: of the last write before the last call.
        given: elements of what the last calls were given, by where it lies in the tensor.
        is_leaf: whether a call asked for its gradient, as an attack or a chain of samples does.
    """

    tensor: weakref.ref[Tensor]
    sequence: int
    given: dict[tuple[object, ...], Tensor] = field(default_factory=dict)
    is_leaf: bool = False


@dataclass(frozen=True, slots=True)
class _Occurrence:
    write: Write
    model: str
    name: str | None
    step: int


class InputWrittenInPlaceDetector:
    """Reports input-written-in-place (GCS112)."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._inputs: dict[int, _Input] = {}
        self._seen: Occurrences[CallSite | None, _Occurrence] = Occurrences()

    def subscriptions(self) -> Subscriptions:
        """Look at what models are given in the first steps."""
        return {ForwardFinished: self._end_forward}

    def findings(self) -> list[Finding]:
        """Return one finding for each line that writes."""
        return self._seen.findings(_finding, least=_ENOUGH)

    def _end_forward(self, event: ForwardFinished) -> None:
        if event.inference or ops_are_recorded():
            return
        for tensor in _tensors_in(event.given):
            self._look(tensor, event)

    def _look(self, tensor: Tensor, event: ForwardFinished) -> None:
        if tensor.dim() < _MATRIX or not tensor.is_floating_point() or tensor.grad_fn is not None:
            return
        base = tensor._base  # noqa: SLF001 - public in all but name
        whole = tensor if base is None else base
        log = self._recorder.write_log
        known = self._inputs.get(id(whole))
        if known is None or known.tensor() is not whole:
            if len(self._inputs) >= _MOST_INPUTS:
                self._inputs.pop(next(iter(self._inputs)))
            known = self._inputs[id(whole)] = _Input(weakref.ref(whole), -1)
        known.is_leaf = known.is_leaf or tensor.requires_grad
        # In most loops there is none, and nothing is read.
        writes = [] if known.is_leaf else log.since(known.sequence, tensor)
        known.sequence = log.latest
        if not writes or writes[-1].site is None:
            return
        where = (tensor.storage_offset(), *tensor.shape, *tensor.stride())
        now = without_user_modes(sample_of, tensor.detach(), _SAMPLED)
        before = known.given.get(where)
        if now is None or len(known.given) >= _MOST_INPUTS:
            return
        known.given[where] = now
        if before is None or not event.grad_enabled:
            return
        if any(write.operation in _OVERWRITE for write in writes):
            return
        written = writes[-1]
        if without_user_modes(_shows, written.operation, before, now):
            self._seen.note(
                written.site,
                lambda: _Occurrence(
                    written,
                    type(event.module).__name__,
                    local_name(tensor),
                    self._recorder.state.step,
                ),
            )


def _tensors_in(given: Iterable[Any]) -> Iterator[Tensor]:
    """Return the tensors among arguments, and in the collections among them."""
    for each in given:
        if type(each) is Tensor:
            yield each
        elif isinstance(each, (list, tuple, Mapping)):
            items = each.values() if isinstance(each, Mapping) else each
            yield from (item for item in items if type(item) is Tensor)


def _shows(operation: str, before: Tensor, now: Tensor) -> bool:
    """Return whether a call was given what the call before was, but for what was written to it."""
    if before.device != now.device or before.dtype != now.dtype:
        return False
    changed = (now - before).abs() > _ROUNDING * before.abs()
    if operation in _ASSIGNMENTS:
        new = now[changed]
        return bool(new.numel()) and not bool(changed.all()) and bool((new == new[0]).all())
    if not changed.any():
        return False
    one, other = before.double() - before.double().mean(), now.double() - now.double().mean()
    length = one.norm() * other.norm()
    return bool(length > 0) and bool((one * other).sum() >= _ALIKE * length)


def _finding(first: _Occurrence, count: int) -> Finding:
    name = f" `{first.name}`" if first.name else ""
    return Finding.of(
        catalogue.INPUT_WRITTEN_IN_PLACE,
        f"{first.write.operation} writes into the input{name} of {first.model} in memory that "
        f"lasts: {count + 1} calls were given what the writes before them had left of it; "
        "expected a copy to be written",
        detector="audit",
        location=location_of(first.write.site),
        hint="write into a copy: x = x.clone() before, or an operation that returns a new tensor",
        evidence={"count": count, "step": first.step, "operation": first.write.operation},
    )
