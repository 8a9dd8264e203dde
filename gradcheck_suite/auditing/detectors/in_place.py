"""Saved tensors that were overwritten before backward used them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from gradcheck_suite import catalogue
from gradcheck_suite._torch_compat import current_node, saved_as
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.events import (
    SavedTensorCorrupted,
    SavedTensorModified,
    WriteRefused,
)
from gradcheck_suite.auditing.names import local_name, operation_words
from gradcheck_suite.auditing.saved_tensors import operation_of
from gradcheck_suite.findings import JSON, Finding, Related

if TYPE_CHECKING:
    from torch import Tensor

    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.names import ParameterNames
    from gradcheck_suite.auditing.packed import Holder
    from gradcheck_suite.auditing.recorder import Recorder
    from gradcheck_suite.findings import Location

__all__ = ["InPlaceDetector"]

_MOST_FINDINGS = 50


@dataclass(frozen=True, slots=True)
class _Writer:
    what: str
    site: CallSite | None
    by_optimizer: bool = False
    indexed: bool = False


@dataclass(slots=True)
class _Occurrence:
    event: SavedTensorModified | SavedTensorCorrupted
    subject: str
    writer: _Writer | None
    shape: tuple[int, ...]
    dtype: str
    kind: catalogue.Entry
    count: int = 1
    steps: set[int] = field(default_factory=set)


class InPlaceDetector:
    """Reports what was written where it must not be.

    A saved tensor that was modified is GCS103, or by what was saved and who wrote: an op's own
    output (GCS108), a slice whose base was assigned to (GCS107), a parameter that a step has
    changed (GCS109). One whose contents changed unseen is GCS104. A write into a leaf, which torch
    refuses, is GCS101.
    """

    def __init__(self, recorder: Recorder, names: ParameterNames) -> None:
        self._recorder = recorder
        self._names = names
        self._occurrences: dict[object, _Occurrence] = {}
        self._refused: dict[object, Finding] = {}
        self.left_out = 0

    def subscriptions(self) -> Subscriptions:
        """Read the uses of overwritten tensors, and the writes that torch refuses."""
        return {
            SavedTensorModified: self._note,
            SavedTensorCorrupted: self._note,
            WriteRefused: self._note_refusal,
        }

    def _note(self, event: SavedTensorModified | SavedTensorCorrupted) -> None:
        """Note each use of an overwritten tensor, one occurrence for each pair of lines."""
        writer = self._writer_of(event.holder)
        subject = self._subject(event.holder.tensor)
        # Several ops may have saved what one line overwrote: that is one mistake.
        place = event.holder.site if subject is None else event.site
        key = (type(event), subject, place if writer is None else writer.site)
        known = self._occurrences.get(key)
        if known is None:
            if len(self._occurrences) >= _MOST_FINDINGS:
                self.left_out += 1
                return
            tensor = event.holder.tensor
            known = self._occurrences[key] = _Occurrence(
                event=event,
                subject=subject or "a tensor",
                writer=writer,
                shape=tuple(tensor.shape),
                dtype=str(tensor.dtype),
                kind=_kind_of(event, writer),
            )
        else:
            known.count += 1
        known.steps.add(event.step)

    def _note_refusal(self, event: WriteRefused) -> None:
        """Note a write into a leaf, or a view of one; torch's error goes on unchanged."""
        if "leaf Variable that requires grad" not in str(event.error):
            return
        tensor = event.tensor
        if not isinstance(tensor, torch.Tensor):
            return
        through = "a view of " if "a view of a leaf" in str(event.error) else ""
        base = tensor._base if through and tensor._base is not None else tensor  # noqa: SLF001
        name = self._subject(base) or self._subject(tensor) or "a leaf tensor"
        shape = "x".join(map(str, tensor.shape)) or "scalar"
        written = location_of(event.site)
        self._refused[event.site, event.operation] = Finding.of(
            catalogue.LEAF_INPLACE,
            f"{through}{name} ({shape}), a leaf that requires grad, was written to by "
            f"{operation_words(event.operation)} while gradients are recorded; torch refuses",
            detector="audit",
            location=written,
            hint="with torch.no_grad(): around the write; or write to a copy, x.clone()",
            evidence={"operation": event.operation, "shape": tuple(tensor.shape)},
        )

    def _subject(self, tensor: Tensor) -> str | None:
        name = self._names.of(tensor) or local_name(tensor)
        return None if name is None else f"`{name}`"

    def _writer_of(self, holder: Holder) -> _Writer | None:
        """Return who wrote into the saved tensor's memory first after it was saved."""
        found: list[tuple[int, _Writer]] = []
        for write in self._recorder.writers.since(holder.moment.sequence, holder.tensor):
            indexed = write.operation == "__setitem__"
            words = operation_words(write.operation)
            found.append((write.sequence, _Writer(words, write.site, indexed=indexed)))
            break
        for step in self._recorder.recent_steps:
            optimizer = step.optimizer()
            if step.sequence <= holder.moment.sequence or optimizer is None:
                continue
            if any(
                _shares_memory(parameter, holder.tensor)
                for group in optimizer.param_groups
                for parameter in group["params"]
                if parameter.grad is not None
            ):
                name = f"{type(optimizer).__name__}.step()"
                found.append((step.sequence, _Writer(name, step.site, by_optimizer=True)))
                break
        return min(found, key=lambda item: item[0])[1] if found else None

    def findings(self) -> list[Finding]:
        """Return one finding for each pair of a saving and a writing line."""
        return list(self._refused.values()) + [
            _modified(occurrence, occurrence.event)
            if isinstance(occurrence.event, SavedTensorModified)
            else _corrupted(occurrence, occurrence.event)
            for occurrence in self._occurrences.values()
        ]


def _kind_of(
    event: SavedTensorModified | SavedTensorCorrupted, writer: _Writer | None
) -> catalogue.Entry:
    if isinstance(event, SavedTensorCorrupted):
        return catalogue.SAVED_TENSOR_CORRUPTED
    if writer is not None and writer.by_optimizer:
        return catalogue.STEP_BEFORE_SECOND_BACKWARD
    node = current_node()
    saved = None if node is None else saved_as(node, event.holder)
    if saved is not None and saved.startswith("result"):
        return catalogue.INPLACE_ON_SAVED_OUTPUT
    if writer is not None and writer.indexed and _is_part(event.holder.tensor):
        return catalogue.SLICE_READ_THEN_WRITE
    return catalogue.SAVED_TENSOR_MODIFIED


def _is_part(tensor: Tensor) -> bool:
    """Whether the storage holds more than this tensor."""
    try:
        return tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size()
    except (RuntimeError, NotImplementedError):
        return False


def _shares_memory(one: Tensor, other: Tensor) -> bool:
    try:
        return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return False


def _modified(occurrence: _Occurrence, event: SavedTensorModified) -> Finding:
    holder = event.holder
    writer = occurrence.writer
    message = _story(occurrence, holder, event.node)
    moved = event.version - holder.version
    message += (
        f"; its version is {event.version}, expected {holder.version}, and backward cannot go on"
    )
    if occurrence.kind is catalogue.INPLACE_ON_SAVED_OUTPUT:
        message += f"; {operation_of(event.node or '')} needs its own output for its gradient"
        hint = (
            "leave the output as it is (inplace=False, `y = y * 2`), or follow an op that saves "
            "its input"
        )
    elif occurrence.kind is catalogue.SLICE_READ_THEN_WRITE:
        message += "; all slices of a tensor share one version"
        hint = "collect the slices in a list and torch.stack them, or clone() what is read"
    elif writer is not None and writer.by_optimizer:
        hint = (
            "run every backward() that needs the old parameters before this step, or run the "
            "forward again after it"
        )
    else:
        hint = "write out of place (`x = x + y` in place of `x += y`), or clone() before writing"
    return _finding(
        occurrence,
        entry=occurrence.kind,
        message=message,
        hint=hint,
        evidence={"version": event.version, "expected_version": holder.version, "writes": moved},
    )


def _corrupted(occurrence: _Occurrence, event: SavedTensorCorrupted) -> Finding:
    holder = event.holder
    if event.change == "memory":
        route = "the tensor was given other memory (.data = ... or set_()), with other contents"
    else:
        route = (
            "version counter unchanged: written through .data, numpy, DLPack, the storage or an "
            "extension"
        )
    message = _story(occurrence, holder, event.node)
    message += f", so that the gradient is silently wrong ({route})"
    if occurrence.writer is None:
        message += "; the writer was not seen"
    return _finding(
        occurrence,
        entry=catalogue.SAVED_TENSOR_CORRUPTED,
        message=message,
        hint=(
            "move the write after backward(), or give it a copy: "
            "tensor.detach().clone(), numpy().copy()"
        ),
        evidence={
            "route": "other memory" if event.change == "memory" else "no version bump",
            "version": holder.version,
        },
    )


def _story(occurrence: _Occurrence, holder: Holder, node: str | None) -> str:
    shape = "x".join(map(str, occurrence.shape)) or "scalar"
    saver = location_of(holder.site)
    op = "" if node is None else f" by {operation_of(node)}"
    producer = occurrence.event.producer
    made = "" if producer is None else f", made by {producer}"
    text = f"{occurrence.subject} ({shape}{made}) was saved for backward{op}{_at(saver)}"
    writer = occurrence.writer
    if writer is None:
        return f"{text} and overwritten before backward used it"
    return f"{text} and overwritten by {writer.what}{_at(location_of(writer.site))}"


def _at(place: Location | None) -> str:
    if place is None:
        return ""
    return f" at {place.path.replace(chr(92), '/').rpartition('/')[2]}:{place.line}"


def _finding(
    occurrence: _Occurrence,
    *,
    entry: catalogue.Entry,
    message: str,
    hint: str,
    evidence: dict[str, JSON],
) -> Finding:
    holder = occurrence.event.holder
    saved = location_of(holder.site)
    used = location_of(occurrence.event.site)
    written = location_of(occurrence.writer.site) if occurrence.writer else None
    related = []
    if saved is not None:
        related.append(Related(saved, "saved for backward here"))
    if written is not None:
        related.append(Related(written, "overwritten here"))
    if used is not None:
        related.append(Related(used, "used by this backward"))
    return Finding.of(
        entry,
        message,
        detector="audit",
        location=written or saved or used,
        related=[place for place in related if place.location != (written or saved or used)],
        hint=hint,
        evidence={
            "count": occurrence.count,
            "first_step": min(occurrence.steps),
            "shape": occurrence.shape,
            "dtype": occurrence.dtype,
            "operation": occurrence.event.node,
            "writer": occurrence.writer.what if occurrence.writer else None,
            **evidence,
        },
    )
