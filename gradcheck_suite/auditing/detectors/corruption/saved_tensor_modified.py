"""Saved tensors that were overwritten before backward used them."""

from __future__ import annotations

import linecache
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

import torch

from gradcheck_suite import catalogue
from gradcheck_suite._runtime.version_error import operation_of
from gradcheck_suite._torch_compat import current_node, saved_as, version_of
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.detectors.memory.state_not_detached import Entry
from gradcheck_suite.auditing.events import (
    Attention,
    BackwardFinished,
    SavedTensorCorrupted,
    SavedTensorModified,
    WriteRefused,
)
from gradcheck_suite.auditing.object_names.tensor_names import local_name, operation_words
from gradcheck_suite.findings import JSON, Finding

if TYPE_CHECKING:
    from torch import Tensor

    from gradcheck_suite.auditing.detectors.memory.state_not_detached import StateNotDetached
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.object_names.tensor_names import ParameterNames
    from gradcheck_suite.auditing.recorder import Recorder
    from gradcheck_suite.auditing.run_state import OptimizerStep
    from gradcheck_suite.auditing.saved_tensors.saved_tensor import PackedTensor
    from gradcheck_suite.auditing.saved_tensors.write_log import Write
    from gradcheck_suite.findings import Location

__all__ = ["SavedTensorModifiedDetector", "Use", "Writer", "finding_of", "line_of", "source_words"]

_MOST_USES = 200
"""Kinds of uses, by saved tensor and writing line, that are told one by one; of more, their number
is. A bound on memory and on the length of a report."""

_Key: TypeAlias = "tuple[object, object]"
"""What was saved where and by which operation, and the line that wrote, if it is known."""


class SavedTensorModifiedDetector:
    """Reports what was written where it must not be.

    A saved tensor that was modified is GCS103, or by what was saved and who wrote: an op's own
    output (GCS108), a slice whose base was assigned to (GCS107), a parameter that a step has
    changed (GCS109). One whose contents changed unseen is GCS104. A write into a leaf, which torch
    refuses, is GCS101. Results written slice by slice into one tensor are GCS106. Where a step has
    changed what an earlier step saved, and a state leads there from this one, that is GCS202.

    Args:
        recorder: whose events these are.
        names: how parameters are called.
        carried: knows whether the backward that runs goes on into the graph of an earlier step.
    """

    def __init__(
        self, recorder: Recorder, names: ParameterNames, carried: StateNotDetached
    ) -> None:
        self._recorder = recorder
        self._carried = carried
        self._names = names
        self._uses: dict[_Key, Use] = {}
        self._seen: dict[_Key, _Key] = {}
        self._refused: dict[object, Finding] = {}
        self.left_out = 0

    def subscriptions(self) -> Subscriptions:
        """Read the uses of overwritten tensors, and the writes that torch refuses."""
        return {
            SavedTensorModified: self._note,
            SavedTensorCorrupted: self._note,
            WriteRefused: self._note_refusal,
            BackwardFinished: self._recorder.write_tracer.after_backward,
        }

    def not_covered(self) -> list[str]:
        """Return how many are not listed."""
        return [f"{self.left_out} more overwritten tensors, not listed"] if self.left_out else []

    def _note(self, event: SavedTensorModified | SavedTensorCorrupted) -> Attention:
        """Note each use of an overwritten tensor, one for each line and operation that saved."""
        packed = event.packed
        tensor = packed.tensor
        noted = self._noted_writers(packed)
        guess = noted[0] if noted else None
        writer = self._seen_writer(packed, noted) or guess
        self._ask_for_a_watch(event, writer)
        same = (type(event), packed.site, event.node, tensor.shape)
        guessed = (same, line_of(guess))
        if writer is None or not writer.seen:
            key = self._seen.get(guessed, guessed)
        else:
            key = (same, line_of(writer))
        known = self._uses.get(key)
        if known is None:
            if len(self._uses) >= _MOST_USES:
                self.left_out += 1
                return Attention.AWAKE
            known = self._uses[key] = Use(
                event=event,
                subject=self._subject(tensor),
                writer=writer,
                shape=tuple(tensor.shape),
                dtype=str(tensor.dtype),
                kind=self._kind_of(event, writer),
                entry=self._carried.entry,
            )
        known.add(event, backward=self._recorder.state.backwards)
        if writer is not None and writer.seen:
            known.writer = writer
            self._replace_guess(guessed, key, known)
        return Attention.AWAKE  # the watch over writers may begin

    def _replace_guess(self, guessed: _Key, key: _Key, known: Use) -> None:
        """Let what was seen stand for what was guessed before of the same tensors, or will be."""
        self._seen[guessed] = key
        if guessed != key and guessed in self._uses:
            guess = self._uses.pop(guessed)
            known.count += guess.count
            known.steps |= guess.steps

    def _ask_for_a_watch(
        self, event: SavedTensorModified | SavedTensorCorrupted, writer: Writer | None
    ) -> None:
        watch = self._recorder.write_tracer
        if writer is not None and writer.seen:
            watch.settle(event.packed)
        elif writer is None or isinstance(event, SavedTensorCorrupted):
            # A write that took note may have left everything as it was.
            watch.suspect(event.packed, named=writer is not None)

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
            evidence={
                "operation": event.operation,
                "shape": tuple(tensor.shape),
                "refused": True,
            },
        )

    def _subject(self, tensor: Tensor) -> str | None:
        name = self._names.of(tensor) or local_name(tensor)
        return None if name is None else f"`{name}`"

    def _seen_writer(self, packed: PackedTensor, noted: list[Writer]) -> Writer | None:
        """Return the line that was seen to overwrite the tensor, if its memory was watched."""
        change = self._recorder.write_tracer.change_of(packed)
        if change is None or change.site is None:
            return None
        line = location_of(change.site)
        for writer in noted:
            inside = change.in_step and writer.by_optimizer
            if inside or location_of(writer.site) == line:
                return replace(writer, seen=True)
        words = source_words(change.site)
        return Writer(words, change.site, certain=change.certain, seen=True)

    def _noted_writers(self, packed: PackedTensor) -> list[Writer]:
        """Return who took note of a write into this memory since it was saved, oldest first."""
        found: list[tuple[int, Writer]] = []
        writes = self._recorder.write_log.since(packed.moment.sequence, packed.tensor)
        if writes and _is_savers_own(writes, packed):
            del writes[0]
        for write in writes:
            indexed = write.operation == "__setitem__"
            words = operation_words(write.operation)
            found.append((write.sequence, Writer(words, write.site, indexed=indexed)))
        step = self._step_over(packed)
        if step is not None and (optimizer := step.optimizer()) is not None:
            name = f"{type(optimizer).__name__}.step()"
            found.append((step.sequence, Writer(name, step.site, by_optimizer=True)))
        return [writer for _, writer in sorted(found, key=lambda item: item[0])]

    def _step_over(self, packed: PackedTensor) -> OptimizerStep | None:
        """Return the first step, since it was saved, of an optimizer that owns this memory.

        One whose gradient for it is there still comes before others: it has not left it out.
        """
        without: OptimizerStep | None = None
        for step in self._recorder.state.recent_steps:
            optimizer = step.optimizer()
            if step.sequence <= packed.moment.sequence or optimizer is None:
                continue
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if _shares_memory(parameter, packed.tensor):
                        if parameter.grad is not None:
                            return step
                        without = without or step
        return without

    def _kind_of(
        self, event: SavedTensorModified | SavedTensorCorrupted, writer: Writer | None
    ) -> catalogue.Entry:
        if isinstance(event, SavedTensorCorrupted):
            return catalogue.SAVED_TENSOR_CORRUPTED
        if writer is not None and writer.by_optimizer:
            if self._carried.entry is not None:
                return catalogue.STATE_NOT_DETACHED
            return catalogue.STEP_BEFORE_SECOND_BACKWARD
        if _is_result(event.packed):
            return catalogue.INPLACE_ON_SAVED_OUTPUT
        if writer is not None and writer.indexed and _is_part(event.packed.tensor):
            return catalogue.SLICE_READ_THEN_WRITE
        return catalogue.SAVED_TENSOR_MODIFIED

    def findings(self) -> list[Finding]:
        """Return one finding for each line that wrote, or for each tensor if none was seen to."""
        mistakes: dict[object, list[Use]] = {}
        for use in self._uses.values():
            mistakes.setdefault(use.mistake(), []).append(use)
        return [*self._refused.values(), *map(finding_of, mistakes.values())]


def _is_result(packed: PackedTensor) -> bool:
    """Return whether the operation whose backward runs saved its own output."""
    node = current_node()
    saved = None if node is None else saved_as(node, packed)
    return saved is not None and saved.startswith("result")


def _is_savers_own(writes: list[Write], packed: PackedTensor) -> bool:
    """Return whether the first write since a tensor was saved is that of what saved it.

    An operation such as ``relu_`` saves its output before it returns, and the write is noted after
    that. Only what it saved so had been written to by then. Where it wrote into a view, torch hides
    the operation; but then more writes are noted than the version has moved by.
    """
    if not packed.version or writes[0].site != packed.site:
        return False
    node = current_node()
    if node is not None and node.name().endswith("CopySlices"):
        return len(writes) > version_of(packed.tensor) - packed.version
    return _is_result(packed)


def _is_part(tensor: Tensor) -> bool:
    """Return whether the storage holds more than this tensor."""
    try:
        return tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size()
    except (RuntimeError, NotImplementedError):
        return False


def _shares_memory(one: Tensor, other: Tensor) -> bool:
    try:
        return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return False


_LONGEST = 60
"""Characters of a source line in a message. Chosen, so that the message stays readable."""


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

    ``entry`` says where that backward had entered the graph of an earlier step, if it had;
    ``addresses``, where the tensors lay that the first such ``backward`` used.
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
    backward: int | None = None
    addresses: set[int] = field(default_factory=set)

    def add(self, event: SavedTensorModified | SavedTensorCorrupted, *, backward: int) -> None:
        """Count one more use."""
        self.count += 1
        self.steps.add(event.step)
        if self.backward is None:
            self.backward = backward
        # In a later one, others may lie where these did, and these elsewhere.
        if self.backward == backward:
            self.addresses.add(event.packed.tensor.data_ptr())

    def mistake(self) -> object:
        """Return what is the same for all uses that tell of one mistake."""
        if self.writer is not None:
            return type(self.event), self.kind.code, line_of(self.writer)
        # Several operations may have saved what one line overwrote.
        place = self.event.packed.site if self.subject is None else self.event.site
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
    packed = event.packed
    writer = first.writer
    message = _story(uses, first, event.node)
    moved = event.version - packed.version
    message += (
        f"; its version is {event.version}, expected {packed.version}, and backward cannot go on"
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
            "expected_version": packed.version,
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
            "version": event.packed.version,
        },
    )


def _story(uses: list[Use], first: Use, node: str | None) -> str:
    shape = "x".join(map(str, first.shape)) or "scalar"
    op = "" if node is None else f" by {_short(operation_of(node))}"
    producer = first.event.producer
    made = "" if producer is None else f", made by {_short(producer)}"
    saved = _at(location_of(first.event.packed.site))
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
    """Return how many tensors there were in that of the first backwards which had most of them."""
    together: dict[int | None, set[int]] = {}
    for use in uses:
        together.setdefault(use.backward, set()).update(use.addresses)
    return max(map(len, together.values()))


def _at(place: Location | None) -> str:
    if place is None:
        return ""
    return f" at {place.path.replace(chr(92), '/').rpartition('/')[2]}:{place.line}"


def _finding(uses: list[Use], *, message: str, hint: str, evidence: dict[str, JSON]) -> Finding:
    first = uses[0]
    packed: PackedTensor = first.event.packed
    writer = first.writer
    saved = location_of(packed.site)
    used = location_of(first.event.site)
    written = None if writer is None else location_of(writer.site)
    where = written or saved or used
    later = None
    if first.kind is catalogue.STATE_NOT_DETACHED:
        entry = None if first.entry is None else location_of(first.entry.site)
        where = entry or saved or used
        later = written
    return Finding.of(
        first.kind,
        message,
        detector="audit",
        location=where,
        related=related(
            (later, "overwritten here, after that step"),
            (saved, "saved for backward here"),
            (used, "used by this backward"),
            apart_from=where,
        ),
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
