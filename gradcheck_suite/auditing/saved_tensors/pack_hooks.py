"""Watch every tensor that autograd saves, from the op that saves it to the backward that uses it.

A pair of saved-tensors hooks, any pair, switches off torch's own version check: a real in-place
error would become a silently wrong gradient. The unpack hook therefore makes that check itself
and raises torch's error in torch's words.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections import Counter
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from gradcheck_suite._runtime.memory import compare_memory, has_room, memory_of_size
from gradcheck_suite._runtime.version_error import OUTPUT_NAMES, operation_of, version_error
from gradcheck_suite._torch_compat import (
    answering,
    current_node,
    dispatch_mode_is_active,
    inside_backward,
    jit_is_tracing,
    module_call_frames,
    never_compiled,
    saved_as,
    saved_input_edge,
    saves_under,
    version_of,
    without_dispatch_modes,
)
from gradcheck_suite.auditing.call_sites import call_site, kind_of_file
from gradcheck_suite.auditing.events import SavedTensorCorrupted, SavedTensorModified
from gradcheck_suite.auditing.saved_tensors import checksums
from gradcheck_suite.auditing.saved_tensors.checksums import (
    COPIED,
    SMALL,
    WIDTHS,
    Columns,
    columns_of,
    fingerprint,
    read_answers,
    same_columns,
    whether_same,
)
from gradcheck_suite.auditing.saved_tensors.saved_tensor import CHECKSUMMED, PackedTensor
from gradcheck_suite.auditing.user_modes import (
    graph_is_captured,
    without_user_modes,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    from torch import Tensor
    from torch.autograd.graph import Node

    from gradcheck_suite.auditing.event_bus import EventBus
    from gradcheck_suite.auditing.run_state import Birth, RunState
    from gradcheck_suite.auditing.saved_tensors.checksums import Fingerprint
    from gradcheck_suite.auditing.saved_tensors.write_log import WriteLog
    from gradcheck_suite.auditing.write_tracing import WriteTracer

__all__ = ["SavedTensors"]

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})
_WRITTEN_BY_THEIR_OP = frozenset(
    {
        # The op draws its noise into an argument that it has saved before.
        ("RreluWithNoise", "noise"),
        # The state of cuDNN's dropout generator, which every forward advances.
        ("CudnnRnn", "dropout_state"),
        ("BatchNormWithUpdate", "running_mean"),
        ("BatchNormWithUpdate", "running_var"),
    }
)
_COPIED_OF_ALL = 4 << 20
"""So many bytes of an iteration may be kept as copies, where sums take longer and no memory. A
bound on memory, with room for 32 tensors of the size ``COPIED``."""

_HELD = 256 << 20
"""So many bytes of saved tensors on an accelerator are kept alive, longer than backward would,
until what they were compared to is read. A bound on memory; chosen."""

_THOROUGH_ITERATIONS = 3
"""A mistake that happens once is likeliest in these; one that goes on is seen in those after. As
many as have checksums by default (``checksum_first_steps``)."""

_BATCH_NORM_STATISTICS = ("running_mean", "running_var")


class SavedTensors:
    """The pair of hooks, and what they counted.

    Attributes:
        used: how many times a backward has asked for one.
        fingerprinted: of how many the contents were noted.
        is_thorough: whether that is to notice any edit, also one that is never made again.
        copied: how many bytes of this iteration's contents were kept as they are.
        unread: how many contents could not be read, by reason.
        checksum_seconds: the time spent on contents so far.
        asked: answers on an accelerator, yet to be read, and what to tell if they are a no.
    """

    def __init__(
        self, bus: EventBus, state: RunState, write_log: WriteLog, write_tracer: WriteTracer
    ) -> None:
        self._bus = bus
        self._state = state
        self._write_log = write_log
        self._write_tracer = write_tracer
        self.used = 0
        self.fingerprinted = 0
        self.copied = 0
        self.is_thorough = True
        self._width = 0
        self._shares = True
        self._recent: dict[int, weakref.ref[PackedTensor]] = {}
        self._recent_birth: Birth | None = None
        self.asked: list[tuple[Tensor, SavedTensorCorrupted]] = []
        self._held = 0
        self.unread: Counter[str] = Counter()
        self.checksum_seconds = 0.0

    def make_hooks(self) -> tuple[Callable[[Tensor], PackedTensor], Callable[[Any], Tensor]]:
        """Return the pair, which the graphs keep: nothing here refers to it."""
        return self._pack_hook(), answering(self._unpack)

    def _pack_hook(self) -> Callable[[Tensor], PackedTensor]:
        # Runs for every tensor that autograd saves: each line here is a line of the overhead.
        outer = self
        state = self._state
        clock = state.clock
        write_log = self._write_log
        weak_reference = weakref.ref
        kinds = kind_of_file
        plain = _PLAIN
        running_frame = sys._getframe  # noqa: SLF001 - the only cheap way
        outer_frame, inner_frame = _module_frames()

        # The tensor is called `self` because torch.jit.trace names values after the variables of
        # the frame that runs an operator, all but this one.
        def pack(self: Tensor) -> PackedTensor:
            packed = PackedTensor()
            if self.is_leaf:
                packed.tensor = self
                packed.original = None
                try:
                    packed.address = self.data_ptr() if type(self) in plain else None
                except RuntimeError:  # no storage of its own: wrapped by a transform
                    packed.address = None
            else:
                packed.tensor = _alias_of(self) if dispatch_mode_is_active() else self.detach()
                packed.original = weak_reference(self)
                packed.address = None
            packed.version = self._version
            packed.moment = clock.moment
            frame: FrameType | None = running_frame(1)
            while frame is not None:
                code = frame.f_code
                if (
                    code is not inner_frame
                    and code is not outer_frame
                    and not kinds[code.co_filename]
                ):
                    packed.site = (code, frame.f_lasti)
                    break
                frame = frame.f_back
            else:
                packed.site = call_site()
            state.saved += 1
            write_log.listening = True
            if state.take_fingerprints:
                outer._take_fingerprint(packed)
            return packed

        return never_compiled(pack)

    def _take_fingerprint(self, packed: PackedTensor) -> None:
        began = perf_counter()
        tensor = packed.tensor
        address = packed.address or _address_of(tensor)
        is_watched = self._write_tracer.armed
        taken: Fingerprint | None = None
        first: PackedTensor | None = None
        if address is not None and not (dispatch_mode_is_active() or jit_is_tracing()):
            size = tensor.nbytes
            if (
                size <= SMALL
                and address
                and tensor.is_cpu
                and checksums.READS_MEMORY
                and tensor.is_contiguous()
                and not (tensor.is_nested or tensor.is_quantized)
            ):
                # Bytes side by side in the CPU's memory: no operator is needed to copy them. So
                # few are there if any are, as torch puts a storage of another size elsewhere.
                taken = memory_of_size[size](address).raw
            elif _may_read(tensor):
                # What a watch compares with each other is all noted in one way.
                if size > SMALL and not is_watched and self._shares:
                    first = self._saved_before(packed, address)
                if first is None:
                    taken = self._contents_of(packed, is_watched=is_watched)
                else:
                    taken = first.fingerprint
        if taken is None or address is None:
            self.unread[_why_unread(tensor)] += 1
        else:
            self.fingerprinted += 1
            if first is None and isinstance(taken, bytes):
                self.copied += len(taken)
            packed.fingerprint = taken
            packed.first = first
            packed.proven_at = None
            packed.checked_address = address
            packed.address = CHECKSUMMED
            if is_watched:
                self._write_tracer.add(packed)
        self.checksum_seconds += perf_counter() - began

    def _contents_of(self, packed: PackedTensor, *, is_watched: bool) -> Fingerprint | None:
        tensor = packed.tensor
        size = tensor.nbytes
        room = SMALL if is_watched or self.copied + size > _COPIED_OF_ALL else COPIED
        try:
            if size > room and not (self.is_thorough or is_watched):
                # A leaf may be given other memory, and what it had is then to be free.
                keep = packed.original is not None
                columns = without_user_modes(columns_of, tensor, WIDTHS[self._width], keep=keep)
                if columns is not None:
                    return columns
            return without_user_modes(fingerprint, tensor, room)
        except RuntimeError:  # zero tensors, or no memory left for the sums
            return None

    def begin_iteration(self, iteration: int, *, is_suspicious: bool) -> None:
        """Make room for the copies of an iteration, and choose how its contents are noted."""
        if self.asked:
            self.read_answers()
        self.copied = 0
        self.is_thorough = is_suspicious or iteration < _THOROUGH_ITERATIONS
        if self._state.take_fingerprints:
            self._width = (self._width + 1) % len(WIDTHS)

    def _saved_before(self, packed: PackedTensor, address: int) -> PackedTensor | None:
        """Return who has saved the same tensor since the last backward: mostly the op before."""
        birth = packed.moment.birth
        if self._recent_birth is not birth:
            self._recent.clear()
            self._recent_birth = birth
        known = self._recent.get(address)
        first = None if known is None else known()
        # Where its contents could not be read (on the meta device), there is nothing to share.
        if first is None or first.version != packed.version or first.address != CHECKSUMMED:
            self._recent[address] = weakref.ref(packed)
            return None
        tensor, other = packed.tensor, first.tensor
        same = other.shape == tensor.shape and other.stride() == tensor.stride()
        return first if same and other.dtype == tensor.dtype else None

    def _unpack(self, packed: PackedTensor) -> Tensor:
        tensor = packed.tensor
        self.used += 1
        if tensor._version != packed.version:  # noqa: SLF001 - `version_of`, spared a call
            raise self._modified(packed, version_of(tensor))
        address = packed.address
        if address is None:
            return tensor
        if address == CHECKSUMMED:
            self._compare(packed)
        elif tensor.data_ptr() != address:
            # Other memory with the same contents is harmless (sharded parameters do that): the
            # next step will tell.
            self._state.want_fingerprints = True
        return tensor

    def _modified(self, packed: PackedTensor, version: int) -> RuntimeError:
        node = current_node() if inside_backward() else None
        if node is not None:
            self._bus.emit(
                SavedTensorModified(
                    packed=packed,
                    step=self._state.step,
                    node=node.name(),
                    producer=_producer_when_saved(packed, node),
                    version=version,
                    site=self._state.told_for(call_site()),
                )
            )
        return version_error(packed, version)

    def _compare(self, packed: PackedTensor) -> None:
        began = perf_counter()
        tensor = packed.tensor
        first = packed.first or packed
        now = self._state.clock.moment
        in_place = tensor.data_ptr() == packed.checked_address
        if in_place and first.proven_at is now:
            return
        unchanged: bool | Tensor | None = None  # as long as it could not be read
        content = packed.fingerprint
        if (
            type(content) is bytes
            and in_place
            and ((size := len(content)) <= SMALL or has_room(tensor, size))
        ):
            # A copy of memory that is still at its place: no operator is needed to compare them.
            address = packed.checked_address
            if size <= SMALL:
                unchanged = memory_of_size[size](address).raw == content
            else:
                unchanged = compare_memory(content, address, size) == 0
        elif _may_read(tensor):
            with contextlib.suppress(RuntimeError):
                if in_place and type(content) is Columns and content.words is not None:
                    unchanged = without_user_modes(same_columns, content, content.words)
                else:
                    unchanged = without_user_modes(whether_same, content, tensor)
        if unchanged is not None:
            first.proven_at = now if unchanged is True else None
        self.checksum_seconds += perf_counter() - began
        if unchanged is not None and unchanged is not True and inside_backward():
            self._note_change(packed, unchanged, in_place=in_place)

    def _note_change(
        self, packed: PackedTensor, unchanged: bool | Tensor, *, in_place: bool
    ) -> None:
        """Tell of contents that differ, or will once an accelerator's answer is read."""
        node = current_node()
        if node is not None and _is_rewritten_by_its_op(node, packed):
            return
        event = SavedTensorCorrupted(
            packed=packed,
            step=self._state.step,
            node=None if node is None else node.name(),
            producer=_producer_when_saved(packed, node),
            change="content" if in_place else "memory",
            site=self._state.told_for(call_site()),
        )
        if isinstance(unchanged, bool):
            self._tell(event)
        else:
            self.asked.append((unchanged, event))
            self._held += packed.tensor.nbytes
            if self._held > _HELD:
                self.read_answers()

    def read_answers(self) -> None:
        """Read what comparisons on an accelerator have come to: all at once, as that waits."""
        asked, self.asked, self._held = self.asked, [], 0
        began = perf_counter()
        unchanged = without_user_modes(read_answers, [answer for answer, _ in asked])
        self.checksum_seconds += perf_counter() - began
        for (_, event), same in zip(asked, unchanged, strict=True):
            if not same:
                self._tell(event)

    def _tell(self, event: SavedTensorCorrupted) -> None:
        packed = event.packed
        written = self._write_log.since(packed.moment.sequence, packed.tensor)
        if packed.first is not None and not written:
            # Perhaps it was changed before this one was saved, by a write that nobody saw: what is
            # certain is only that the first was changed. From the next iteration on, each has its
            # own.
            self._shares = False
            self._state.want_fingerprints = True
            return
        self._bus.emit(event)


def _module_frames() -> list[CodeType | None]:
    """Return what runs in the two frames of torch's own that the call of each module adds.

    They are most of the frames between an op and the user's line, and told from it by identity in
    a third of the time that looking up their file takes. None where somebody has replaced them.
    """
    return [
        code if code and kind_of_file[code.co_filename] else None for code in module_call_frames()
    ]


def _address_of(tensor: Tensor) -> int | None:
    """Return where the contents of ``tensor`` lie, or None for what has no memory of its own."""
    if type(tensor) not in _PLAIN:
        return None
    try:
        return tensor.data_ptr()
    except RuntimeError:  # no storage of its own: wrapped by a transform
        return None


def _alias_of(self: Tensor) -> Tensor:
    """Alias a tensor out of sight of the user's dispatch modes; called ``self`` as above."""
    with without_dispatch_modes():
        return self.detach()


def _may_read(tensor: Tensor) -> bool:
    """Return whether reading ``tensor`` now goes unnoticed; ``ops_are_recorded`` in fewer calls."""
    if dispatch_mode_is_active() or jit_is_tracing():
        return False
    return not (tensor.is_cuda and graph_is_captured())


def _why_unread(tensor: Tensor) -> str:
    """Say what kept the contents of ``tensor`` from being read."""
    reasons = {
        "meta": tensor.is_meta,
        "nested": tensor.is_nested,
        "sparse": tensor.layout is not torch.strided,
        "quantised": tensor.is_quantized,
        "of a tensor subclass": type(tensor) not in _PLAIN,
        "under a dispatch mode": dispatch_mode_is_active(),
        "while torch.jit traced": jit_is_tracing(),
        "in a CUDA graph": graph_is_captured(),
    }
    return next((reason for reason, holds in reasons.items() if holds), "without memory")


def _is_rewritten_by_its_op(node: Node, packed: PackedTensor) -> bool:
    # In training mode the op itself rewrites the running statistics that it saves, without moving
    # their version counter; backward does not read them then. In evaluation mode it does.
    if getattr(node, "_saved_training", getattr(node, "_saved_train", False)) and any(
        saves_under(node, name, packed) for name in _BATCH_NORM_STATISTICS
    ):
        return True
    name = saved_as(node, packed)
    if (operation_of(node.name()), name) in _WRITTEN_BY_THEIR_OP:
        return True
    # The workspace of a fused kernel, such as oneDNN's LSTM: bytes that nobody else is given, and
    # that its backward uses as scratch memory.
    is_output = name is not None and name.startswith(OUTPUT_NAMES)
    return is_output and packed.tensor.dtype is torch.uint8


def _producer_when_saved(packed: PackedTensor, node: Node | None) -> str | None:
    """Return the op that had made the tensor when it was saved; None for a leaf or if unknown."""
    if packed.original is None or node is None:
        return None
    name = saved_as(node, packed)
    if name is not None and name.startswith(OUTPUT_NAMES):
        return operation_of(node.name())
    edge = saved_input_edge(node, name, packed.tensor)
    return None if edge is None else operation_of(edge[0].name())
