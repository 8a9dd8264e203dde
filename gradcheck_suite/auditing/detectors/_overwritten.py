"""How an overwritten saved tensor is told of: the tensor, who saved it, who wrote, who used it."""

from __future__ import annotations

import linecache
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite._version_error import operation_of
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.carried_state import Entry
from gradcheck_suite.auditing.events import SavedTensorCorrupted, SavedTensorModified
from gradcheck_suite.findings import JSON, Finding, Related

if TYPE_CHECKING:
    from gradcheck_suite.auditing.packed import Holder
    from gradcheck_suite.findings import Location

__all__ = ["Use", "Writer", "finding_of", "line_of", "source_words"]

_LONGEST = 60


@dataclass(frozen=True, slots=True)
class Writer:
    """Who overwrote a saved tensor.

    Attributes:
        what: the operation, or the line itself.
        site: where.
        by_optimizer: whether a step of an optimizer did.
        indexed: whether by an indexed assignment.
        certain: whether nobody else can have written while this line ran.
        seen: whether the memory was watched and changed there.
    """

    what: str
    site: CallSite | None
    by_optimizer: bool = False
    indexed: bool = False
    certain: bool = True
    seen: bool = False


@dataclass(slots=True)
class Use:
    """What one line saved by one operation, overwritten and then used by backward.

    ``entry`` says where that backward had entered the graph of an earlier step, if it had.
    """

    event: SavedTensorModified | SavedTensorCorrupted
    subject: str | None
    writer: Writer | None
    shape: tuple[int, ...]
    dtype: str
    kind: catalogue.Entry
    entry: Entry | None = None
    count: int = 0
    steps: set[int] = field(default_factory=set)
    addresses: set[int] = field(default_factory=set)

    def add(self, event: SavedTensorModified | SavedTensorCorrupted) -> None:
        """Count one more use."""
        self.count += 1
        self.steps.add(event.step)
        # Later on, other tensors may lie where these did.
        if len(self.steps) == 1:
            self.addresses.add(event.holder.tensor.data_ptr())

    def mistake(self) -> object:
        """Return what is the same for all uses that tell of one mistake."""
        if self.writer is not None:
            return type(self.event), self.kind.code, line_of(self.writer)
        # Several operations may have saved what one line overwrote.
        place = self.event.holder.site if self.subject is None else self.event.site
        return type(self.event), self.subject, place


def source_words(site: CallSite | None) -> str:
    """Return the text of a line, to say what it does."""
    place = location_of(site)
    text = "" if place is None else linecache.getline(place.path, place.line).strip()
    text = text.partition("  #")[0]
    if not text:
        return "this line"
    return f"`{text if len(text) <= _LONGEST else text[: _LONGEST - 3] + '...'}`"


def line_of(writer: Writer | None) -> object:
    """Return file and line of a writer, None if there is none."""
    place = None if writer is None else location_of(writer.site)
    return None if place is None else (place.path, place.line)


def finding_of(uses: list[Use]) -> Finding:
    """Tell of one mistake that all these uses show."""
    first = uses[0]
    if isinstance(first.event, SavedTensorModified):
        return _modified(uses, first, first.event)
    return _corrupted(uses, first, first.event)


def _modified(uses: list[Use], first: Use, event: SavedTensorModified) -> Finding:
    holder = event.holder
    writer = first.writer
    message = _story(uses, first, event.node)
    moved = event.version - holder.version
    message += (
        f"; its version is {event.version}, expected {holder.version}, and backward cannot go on"
    )
    if first.kind is catalogue.INPLACE_ON_SAVED_OUTPUT:
        message += f"; {operation_of(event.node or '')} needs its own output for its gradient"
        hint = (
            "leave the output as it is (inplace=False, `y = y * 2`), or follow an op that saves "
            "its input"
        )
    elif first.kind is catalogue.SLICE_READ_THEN_WRITE:
        message += "; all slices of a tensor share one version"
        hint = "collect the slices in a list and torch.stack them, or clone() what is read"
    elif first.kind is catalogue.STATE_NOT_DETACHED:
        message += (
            "; the graph is that of an earlier step, which a state that was carried over still has"
        )
        hint = "detach the state between steps: h = h.detach()"
    elif writer is not None and writer.by_optimizer:
        hint = (
            "run every backward() that needs the old parameters before this step, or run the "
            "forward again after it"
        )
    else:
        hint = "write out of place (`x = x + y` in place of `x += y`), or clone() before writing"
    return _finding(
        uses,
        message=message,
        hint=hint if writer is not None else f"{_WATCH}; {hint}",
        evidence={
            "version": event.version,
            "expected_version": holder.version,
            "writes": moved,
            "refused": True,
        },
    )


_WATCH = 'to have the writer named, audit with watch_writers="from_start"'


def _corrupted(uses: list[Use], first: Use, event: SavedTensorCorrupted) -> Finding:
    if event.change == "memory":
        route = "the tensor was given other memory (.data = ... or set_()), with other contents"
    else:
        route = (
            "version counter unchanged: written through .data, numpy, DLPack, the storage or an "
            "extension"
        )
    message = _story(uses, first, event.node)
    message += f", so that the gradient is silently wrong ({route})"
    hint = (
        "move the write after backward(), or give it a copy: "
        "tensor.detach().clone(), numpy().copy()"
    )
    if first.writer is None:
        message += "; the writer was not seen"
        hint = f"{_WATCH}; {hint}"
    return _finding(
        uses,
        message=message,
        hint=hint,
        evidence={
            "route": "other memory" if event.change == "memory" else "no version bump",
            "version": event.holder.version,
        },
    )


def _story(uses: list[Use], first: Use, node: str | None) -> str:
    shape = "x".join(map(str, first.shape)) or "scalar"
    op = "" if node is None else f" by {_short(operation_of(node))}"
    producer = first.event.producer
    made = "" if producer is None else f", made by {_short(producer)}"
    saved = _at(location_of(first.event.holder.site))
    text = f"{first.subject or 'a tensor'} ({shape}{made}) was saved for backward{op}{saved}"
    writer = first.writer
    if writer is None:
        return f"{text} and overwritten before backward used it"
    place = _at(location_of(writer.site))
    if not writer.certain:
        return f"{text} and overwritten{place}, by {writer.what} or by a thread that ran beside it"
    text = f"{text} and overwritten by {writer.what}{place}"
    more = _count_tensors(uses) - 1
    return f"{text} (and {more} more like it)" if more else text


def _short(operation: str) -> str:
    """Return an operation without the namespace that some of torch's own nodes have."""
    return operation.rpartition("::")[2].removesuffix("Backwards")


def _count_tensors(uses: list[Use]) -> int:
    return len(set[int]().union(*(use.addresses for use in uses)))


def _at(place: Location | None) -> str:
    if place is None:
        return ""
    return f" at {place.path.replace(chr(92), '/').rpartition('/')[2]}:{place.line}"


def _finding(uses: list[Use], *, message: str, hint: str, evidence: dict[str, JSON]) -> Finding:
    first = uses[0]
    holder: Holder = first.event.holder
    writer = first.writer
    saved = location_of(holder.site)
    used = location_of(first.event.site)
    written = None if writer is None else location_of(writer.site)
    where = written or saved or used
    related = []
    if first.kind is catalogue.STATE_NOT_DETACHED:
        entry = None if first.entry is None else location_of(first.entry.site)
        where = entry or saved or used
        if written is not None:
            related.append(Related(written, "overwritten here, after that step"))
    if saved is not None:
        related.append(Related(saved, "saved for backward here"))
    if used is not None:
        related.append(Related(used, "used by this backward"))
    return Finding.of(
        first.kind,
        message,
        detector="audit",
        location=where,
        related=[place for place in related if place.location != where],
        hint=hint,
        evidence={
            "count": sum(use.count for use in uses),
            "first_step": min(step for use in uses for step in use.steps),
            "shape": first.shape,
            "dtype": first.dtype,
            "operation": first.event.node,
            "writer": None if writer is None else writer.what,
            "tensors": _count_tensors(uses),
            **evidence,
        },
    )
