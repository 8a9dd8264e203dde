"""Tensors that a call writes in place, and that its caller reads under another name afterwards.

A residual block whose first layer works in place adds what that layer made of its input and not
the input; an augmentation that returns what it was given makes target and input of a model one; an
environment that returns its own buffer gives a rollout the observation after the action. Torch
raises nothing, as no backward needs what was there.

From each write in the first steps, the frames of the program are asked for names that hold this
memory and that they read once the running call has returned. Then it takes that the values of an
activation were changed, or that what the call returned is the very same memory by another name,
and is read as well. A call whose result is thrown away or given to the same name is meant to write.

A data set whose ``__getitem__`` writes, through a variable, into what it keeps changes its data
each time that it is asked.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import (
    CallSite,
    call_site,
    is_user_code,
    location_of,
    variables_of,
)
from gradcheck_suite.auditing.detectors.base import Occurrences, related
from gradcheck_suite.auditing.detectors.gradients import sample_of
from gradcheck_suite.auditing.events import (
    Attention,
    ForwardFinished,
    OptimizerConstructed,
    StepFinished,
)
from gradcheck_suite.auditing.instrumentation.modules import FIRST_STEPS
from gradcheck_suite.auditing.object_names.tensor_names import operation_words
from gradcheck_suite.auditing.source_analysis.later_reads import reads_after, written_by
from gradcheck_suite.auditing.user_modes import ops_are_recorded
from gradcheck_suite.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import CodeType, FrameType

    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["WrittenBelowItsReaderDetector"]

_WRITES = 256
"""Writes of a step that are looked at. A bound on cost."""

_FRAMES = 8
"""Frames of the program that are asked at each write, the innermost. A bound on cost."""

_ITEMS = 32
"""Items of a list that are looked at. A bound on cost."""

_SAMPLED = 4096
"""Elements that are compared before and after a write. A bound on cost."""

_LOOKS = 6
"""Comparisons that are made for one line that reads. A bound on cost: in the first, a layer that
cuts off what is negative may have been given nothing of that kind."""

_ASKED = ("__getitem__", "__getitems__")
"""The methods by which a data set is asked for what it has."""

_ENOUGH_ITEMS = 2
"""Writes of one line into what a data set keeps before it is told. Chosen: the first may prepare
the data."""

_WAITING = 32
"""Calls whose results are waited for. A bound on cost."""


@dataclass(frozen=True, slots=True)
class _Below:
    """A write below a line of the program that reads what was written.

    Attributes:
        site: the call.
        function: what is called there.
        name: what the caller reads afterwards.
        operation: the write.
        write: where it is.
        result: what the result of the call is bound to, where that is the same memory.
    """

    site: CallSite
    function: str
    name: str
    operation: str
    write: CallSite | None
    result: str | None = None


@dataclass(frozen=True, slots=True)
class _Item:
    """A line of a data set that writes into what it keeps, and by which name."""

    site: CallSite
    kept: str
    name: str
    operation: str


@dataclass(frozen=True, slots=True)
class _Call:
    """A call that has written into what its caller reads, until it has returned."""

    below: _Below
    results: tuple[str, ...]
    written: weakref.ref[Tensor]
    address: int


class WrittenBelowItsReaderDetector:
    """Reports input-written-in-place (GCS112) of what the callers still read."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._log = recorder.write_log
        self._left = _WRITES
        self._calls: list[_Call] = []
        self._looks: Counter[tuple[CallSite, str]] = Counter()
        self._writers: set[tuple[CodeType, int]] = set()
        self._before: tuple[weakref.ref[Tensor], Tensor | None] | None = None
        self._seen: Occurrences[CallSite, _Below] = Occurrences()
        self._items: Occurrences[CallSite, _Item] = Occurrences()

    def subscriptions(self) -> Subscriptions:
        """Follow writes in the first steps."""
        return {
            OptimizerConstructed: self._begin,
            ForwardFinished: self._end_forward,
            StepFinished: self._end_step,
        }

    def findings(self) -> list[Finding]:
        """Return one finding for each call, and one for each method that changes a data set."""
        items: dict[str | None, Finding] = {}
        for each in self._items.findings(_of_item, least=_ENOUGH_ITEMS):
            items.setdefault(None if each.location is None else each.location.function, each)
        return [*self._seen.findings(_finding), *items.values()]

    def _begin(self, _event: object) -> None:
        if self._recorder.state.step < FIRST_STEPS:
            self._log.on_call = self._after_write

    def _end_forward(self, event: ForwardFinished) -> None:
        self._begin(event)
        self._look_at_results()

    def _end_step(self, _event: StepFinished) -> Attention | None:
        self._left = _WRITES
        self._look_at_results()
        self._calls.clear()
        if self._recorder.state.step + 1 < FIRST_STEPS:
            return None
        self._log.on_call = self._log.before_write = self._before = None
        return Attention.ASLEEP

    def _sample(self, tensor: Tensor, caller: FrameType) -> None:
        if (caller.f_code, caller.f_lasti) in self._writers and not ops_are_recorded():
            self._before = weakref.ref(tensor), sample_of(tensor, _SAMPLED)

    def _after_write(self, tensor: Tensor, operation: str, caller: FrameType) -> None:
        before, self._before = self._before, None
        if self._left <= 0:
            return
        self._left -= 1
        self._look_at_results()
        has_graph = _has_graph(tensor)
        if isinstance(tensor, torch.nn.Parameter) or (tensor.requires_grad and not has_graph):
            return
        self._look_at_item(tensor, operation, caller)
        # An activation, or what a layer of torch's does by itself, is no state that is carried on.
        passes = has_graph or _is_layer(caller.f_code)
        for variables, site in _callers(caller):
            reads = reads_after(*site[:2])
            if reads is None or reads.function is None or reads.function.endswith("_"):
                continue
            for name, value in _holding(reads.names, variables):
                if not any(_has_memory(each, tensor) for each in _tensors_in(value)):
                    continue
                below = _Below(site, reads.function, name, operation, call_site(caller))
                if passes:
                    self._compare(below, caller, tensor, before)
                elif isinstance(value, Tensor) and reads.results:
                    self._wait_for(below, reads.results, value)
                break

    def _look_at_item(self, tensor: Tensor, operation: str, caller: FrameType) -> None:
        """Take note where a data set writes into what it keeps, by another name."""
        if caller.f_code.co_name not in _ASKED or not is_user_code(caller.f_code):
            return
        site: CallSite = (caller.f_code, caller.f_lasti)
        key = written_by(*site)
        if key is None or "." in key or not tensor.is_floating_point():
            return
        own = getattr(variables_of(caller).get("self"), "__dict__", {})
        for name, value in list(own.items()):
            if any(_has_memory(each, tensor) for each in _tensors_in(value)):
                item = partial(_Item, site, f"self.{name}", key, operation)
                self._items.note(site, item)
                return

    def _wait_for(self, below: _Below, results: tuple[str, ...], value: Tensor) -> None:
        if len(self._calls) < _WAITING:
            call = _Call(below, results, weakref.ref(value), value.data_ptr())
            self._calls.append(call)

    def _compare(
        self,
        below: _Below,
        caller: FrameType,
        tensor: Tensor,
        before: tuple[weakref.ref[Tensor], Tensor | None] | None,
    ) -> None:
        """Take note where the write has changed something, and look before it from now on."""
        key = below.site, below.name
        if self._looks[key] >= _LOOKS:
            return
        self._writers.add((caller.f_code, caller.f_lasti))
        self._log.before_write = self._sample
        if before is None or before[0]() is not tensor or before[1] is None or ops_are_recorded():
            return
        self._looks[key] += 1
        now = sample_of(tensor, _SAMPLED)
        if now is not None and not torch.equal(before[1], now):
            self._seen.note(below.site, lambda: below)

    def _look_at_results(self) -> None:
        """Take note of calls that have returned what they wrote to, by another name."""
        if not self._calls:
            return
        running: dict[CodeType, Mapping[str, Any]] = {}
        for variables, site in _callers(None):
            running.setdefault(site[0], variables)
        calls, self._calls = self._calls, []
        for call in calls:
            written = call.written()
            variables = running.get(call.below.site[0], {})
            if written is None or not variables:
                continue
            for name, value in _holding(call.results, variables):
                if isinstance(value, Tensor) and _is_same(value, written, call.address):
                    below = call.below
                    self._seen.note(below.site, partial(replace, below, result=name))
                    break
            else:
                self._calls.append(call)
        del self._calls[:-_WAITING]


def _callers(start: FrameType | None) -> Iterator[tuple[Mapping[str, Any], CallSite]]:
    """Yield the variables and the running calls of the program's functions, above one of them."""
    frame = sys._getframe(1) if start is None else start.f_back  # noqa: SLF001 - the only cheap way
    found = 0
    while frame is not None and found < _FRAMES:
        if is_user_code(frame.f_code):
            found += 1
            yield variables_of(frame), (frame.f_code, frame.f_lasti)
        frame = frame.f_back


def _holding(names: tuple[str, ...], variables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    own = getattr(variables.get("self"), "__dict__", {})
    for name in names:
        first, _, attribute = name.partition(".")
        value = own.get(attribute) if attribute else variables.get(first)
        if value is not None:
            yield name, value


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif type(value) in (list, tuple) and len(value) <= _ITEMS:
        yield from (each for each in value if isinstance(each, Tensor))


def _has_graph(tensor: Tensor) -> bool:
    try:
        return tensor.grad_fn is not None
    except RuntimeError:  # a view of a leaf that was made without recording, and written with
        return False


def _is_layer(code: CodeType) -> bool:
    """Return whether code is that of torch's layers and their functions."""
    path = code.co_filename.replace("\\", "/")
    return "/torch/nn/modules/" in path or path.endswith("/torch/nn/functional.py")


def _has_memory(held: Tensor, written: Tensor) -> bool:
    """Return whether a tensor lies in the storage that was written, in part or whole."""
    try:
        one, other = held.untyped_storage().data_ptr(), written.untyped_storage().data_ptr()
        start, end = held.data_ptr(), held.data_ptr() + held.nbytes
        first, last = written.data_ptr(), written.data_ptr() + written.nbytes
    except (RuntimeError, NotImplementedError):  # sparse, or wrapped by a transform
        return False
    return one == other != 0 and start < last and first < end


def _is_same(value: Tensor, written: Tensor, address: int) -> bool:
    try:
        return value.data_ptr() == written.data_ptr() == address and value.shape == written.shape
    except (RuntimeError, NotImplementedError):
        return False


def _finding(below: _Below, count: int) -> Finding:
    where = location_of(below.site)
    words = operation_words(below.operation)
    by = f"`{below.function}`"
    if below.result is None:
        what = (
            f"`{below.name}` is written in place by {words} inside the call of {by}, and read "
            "again after it: what is read there is not what was given to the call; expected the "
            "call to leave it as it was"
        )
    else:
        what = (
            f"`{below.result}`, which {by} returns, and `{below.name}` are one memory, which the "
            f"call has written in place by {words}, and both are read afterwards; expected "
            f"`{below.name}` to keep what it had"
        )
    return Finding.of(
        catalogue.INPUT_WRITTEN_IN_PLACE,
        what,
        detector="audit",
        location=where,
        related=related((location_of(below.write), "written here"), apart_from=where),
        hint="give the call a copy, as x.clone(), or let it work out of place (inplace=False)",
        evidence={"count": count, "operation": below.operation, "variable": below.name},
    )


def _of_item(item: _Item, count: int) -> Finding:
    where = location_of(item.site)
    words = operation_words(item.operation)
    return Finding.of(
        catalogue.INPUT_WRITTEN_IN_PLACE,
        f"`{item.name}` lies in the memory of `{item.kept}`, and {words} writes into it each time "
        "that the data set is asked for an item: the data are others after each epoch; expected "
        "a copy to be written",
        detector="audit",
        location=where,
        hint=f"{item.name} = {item.name}.clone() before, or an operation that returns a new tensor",
        evidence={"count": count, "operation": item.operation, "variable": item.kept},
    )
