"""Saved tensors that were overwritten before backward used them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.events import (
    SavedTensorCorrupted,
    SavedTensorModified,
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


@dataclass(slots=True)
class _Occurrence:
    event: SavedTensorModified | SavedTensorCorrupted
    subject: str
    writer: _Writer | None
    shape: tuple[int, ...]
    dtype: str
    count: int = 1
    steps: set[int] = field(default_factory=set)


class InPlaceDetector:
    """Reports saved-tensor-modified (GCS103) and saved-tensor-corrupted (GCS104)."""

    def __init__(self, recorder: Recorder, names: ParameterNames) -> None:
        self._recorder = recorder
        self._names = names
        self._occurrences: dict[object, _Occurrence] = {}
        self.left_out = 0

    def subscriptions(self) -> Subscriptions:
        """Read the uses of overwritten tensors."""
        return {SavedTensorModified: self._note, SavedTensorCorrupted: self._note}

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
            )
        else:
            known.count += 1
        known.steps.add(event.step)

    def _subject(self, tensor: Tensor) -> str | None:
        name = self._names.of(tensor) or local_name(tensor)
        return None if name is None else f"`{name}`"

    def _writer_of(self, holder: Holder) -> _Writer | None:
        """Return who wrote into the saved tensor's memory first after it was saved."""
        found: list[tuple[int, _Writer]] = []
        for write in self._recorder.writers.since(holder.moment.sequence, holder.tensor):
            found.append((write.sequence, _Writer(operation_words(write.operation), write.site)))
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
        return [
            _modified(occurrence, occurrence.event)
            if isinstance(occurrence.event, SavedTensorModified)
            else _corrupted(occurrence, occurrence.event)
            for occurrence in self._occurrences.values()
        ]


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
    if writer is not None and writer.by_optimizer:
        hint = (
            "run every backward() that needs the old parameters before this step, or run the "
            "forward again after it"
        )
    else:
        hint = "write out of place (`x = x + y` in place of `x += y`), or clone() before writing"
    return _finding(
        occurrence,
        entry=catalogue.SAVED_TENSOR_MODIFIED,
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
