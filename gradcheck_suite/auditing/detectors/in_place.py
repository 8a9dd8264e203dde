"""Saved tensors that were overwritten before backward used them."""

from __future__ import annotations

import weakref
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import torch

from gradcheck_suite import catalogue
from gradcheck_suite._torch_compat import current_node, saved_as, version_of
from gradcheck_suite.auditing.call_sites import location_of
from gradcheck_suite.auditing.detectors._overwritten import (
    Use,
    Writer,
    finding_of,
    line_of,
    source_words,
)
from gradcheck_suite.auditing.detectors._slice_writes import SliceWrites
from gradcheck_suite.auditing.events import (
    Attention,
    BackwardFinished,
    BackwardStarted,
    SavedTensorCorrupted,
    SavedTensorModified,
    WriteRefused,
)
from gradcheck_suite.auditing.names import local_name, operation_words
from gradcheck_suite.findings import Finding

if TYPE_CHECKING:
    from torch import Tensor

    from gradcheck_suite.auditing.detectors.carried_state import CarriedState
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.names import ParameterNames
    from gradcheck_suite.auditing.packed import Holder
    from gradcheck_suite.auditing.recorder import OptimizerStep, Recorder
    from gradcheck_suite.auditing.writers import Write

__all__ = ["InPlaceDetector"]

_MOST_USES = 200

_Key: TypeAlias = "tuple[object, object]"
"""What was saved where and by which operation, and the line that wrote, if it is known."""


class InPlaceDetector:
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

    def __init__(self, recorder: Recorder, names: ParameterNames, carried: CarriedState) -> None:
        self._recorder = recorder
        self._carried = carried
        self._names = names
        self._uses: dict[_Key, Use] = {}
        self._seen: dict[_Key, _Key] = {}
        self._refused: dict[object, Finding] = {}
        self._slices = SliceWrites(partial(_rouse, recorder, weakref.ref(self)))
        recorder.writers.on_indexed = self._slices.note
        self.left_out = 0

    def subscriptions(self) -> Subscriptions:
        """Read the uses of overwritten tensors, and the writes that torch refuses."""
        return {
            SavedTensorModified: self._note,
            SavedTensorCorrupted: self._note,
            WriteRefused: self._note_refusal,
            BackwardStarted: self._slices.before_backward,
            BackwardFinished: self._recorder.watch.after_backward,
        }

    def not_covered(self) -> list[str]:
        """Return how many are not listed."""
        return [f"{self.left_out} more overwritten tensors, not listed"] if self.left_out else []

    def _note(self, event: SavedTensorModified | SavedTensorCorrupted) -> Attention:
        """Note each use of an overwritten tensor, one for each line and operation that saved."""
        holder = event.holder
        tensor = holder.tensor
        noted = self._noted_writers(holder)
        guess = noted[0] if noted else None
        writer = self._seen_writer(holder, noted) or guess
        self._ask_for_a_watch(event, writer)
        same = (type(event), holder.site, event.node, tensor.shape)
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
        known.add(event)
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
        watch = self._recorder.watch
        if writer is not None and writer.seen:
            watch.settle(event.holder)
        elif writer is None or isinstance(event, SavedTensorCorrupted):
            # A write that took note may have left everything as it was.
            watch.suspect(event.holder, named=writer is not None)

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

    def _seen_writer(self, holder: Holder, noted: list[Writer]) -> Writer | None:
        """Return the line that was seen to overwrite the tensor, if its memory was watched."""
        change = self._recorder.watch.change_of(holder)
        if change is None or change.site is None:
            return None
        line = location_of(change.site)
        for writer in noted:
            inside = change.in_step and writer.by_optimizer
            if inside or location_of(writer.site) == line:
                return replace(writer, seen=True)
        words = source_words(change.site)
        return Writer(words, change.site, certain=change.certain, seen=True)

    def _noted_writers(self, holder: Holder) -> list[Writer]:
        """Return who took note of a write into this memory since it was saved, oldest first."""
        found: list[tuple[int, Writer]] = []
        writes = self._recorder.writers.since(holder.moment.sequence, holder.tensor)
        if writes and _is_savers_own(writes, holder):
            del writes[0]
        for write in writes:
            indexed = write.operation == "__setitem__"
            words = operation_words(write.operation)
            found.append((write.sequence, Writer(words, write.site, indexed=indexed)))
        step = self._step_over(holder)
        if step is not None and (optimizer := step.optimizer()) is not None:
            name = f"{type(optimizer).__name__}.step()"
            found.append((step.sequence, Writer(name, step.site, by_optimizer=True)))
        return [writer for _, writer in sorted(found, key=lambda item: item[0])]

    def _step_over(self, holder: Holder) -> OptimizerStep | None:
        """Return the first step, since it was saved, of an optimizer that owns this memory.

        One whose gradient for it is there still comes before others: it has not left it out.
        """
        without: OptimizerStep | None = None
        for step in self._recorder.recent_steps:
            optimizer = step.optimizer()
            if step.sequence <= holder.moment.sequence or optimizer is None:
                continue
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if _shares_memory(parameter, holder.tensor):
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
        if _is_result(event.holder):
            return catalogue.INPLACE_ON_SAVED_OUTPUT
        if writer is not None and writer.indexed and _is_part(event.holder.tensor):
            return catalogue.SLICE_READ_THEN_WRITE
        return catalogue.SAVED_TENSOR_MODIFIED

    def findings(self) -> list[Finding]:
        """Return one finding for each line that wrote, or for each tensor if none was seen to."""
        mistakes: dict[object, list[Use]] = {}
        for use in self._uses.values():
            mistakes.setdefault(use.mistake(), []).append(use)
        return [
            *self._refused.values(),
            *map(finding_of, mistakes.values()),
            *self._slices.findings(),
        ]


def _rouse(recorder: Recorder, reference: weakref.ref[InPlaceDetector]) -> None:
    detector = reference()
    if detector is not None:
        recorder.rouse(detector)


def _is_result(holder: Holder) -> bool:
    """Return whether the operation whose backward runs saved its own output."""
    node = current_node()
    saved = None if node is None else saved_as(node, holder)
    return saved is not None and saved.startswith("result")


def _is_savers_own(writes: list[Write], holder: Holder) -> bool:
    """Return whether the first write since a tensor was saved is that of what saved it.

    An operation such as ``relu_`` saves its output before it returns, and the write is noted after
    that. Only what it saved so had been written to by then. Where it wrote into a view, torch hides
    the operation; but then more writes are noted than the version has moved by.
    """
    if not holder.version or writes[0].site != holder.site:
        return False
    node = current_node()
    if node is not None and node.name().endswith("CopySlices"):
        return len(writes) > version_of(holder.tensor) - holder.version
    return _is_result(holder)


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
