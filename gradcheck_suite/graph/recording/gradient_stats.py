"""Take the figures of many gradients at once: norms, zeros, NaN and infinity.

One operator call on one small tensor costs more than the arithmetic in it. Of a small gradient the
bytes are copied when it passes, and nothing more; when somebody looks, those of one size become the
rows of a matrix. Large gradients, and those on other devices, are held until some megabytes have
come together. Then large ones are measured one by one, and what is small is copied into one block,
which waits as the bytes do. Of those held, one that is handed on unchanged (a transpose, a view,
both inputs of a sum) is measured once.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import count, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from gradcheck_suite._runtime.memory import copy_of_memory, has_room, is_readable, memory_of_size
from gradcheck_suite._torch_compat import (
    dispatch_mode_is_active,
    flattened,
    function_mode_is_active,
    without_dispatch_modes,
    without_torch_function,
    without_transforms,
)
from gradcheck_suite.graph.model import EdgeGradient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

__all__ = ["MOST_COPIED", "GradientStats"]

_HELD = 1 << 20
"""So many elements are held at most, apart from the gradient that exceeds it."""
_MANY = 4_096
"""So many gradients are held at most."""
_SMALL = 1 << 16
"""Gradients of more bytes are held: copying them would cost more than calls."""
_ALONE = 1 << 14
"""Gradients of more elements that were held are measured one by one, for the same reason."""
_BLOCK = 1 << 17
"""So many elements are put into one block at most: more would leave the cache."""
MOST_COPIED = 16 << 20
"""So many bytes of copies wait at most until somebody looks at their figures."""
_COPY = 128
"""So many bytes a copy takes beside its elements."""
_MISSING = EdgeGradient(norm=None, zeros=0, elements=0)
_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
_WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
_HAVE_DOUBLE = frozenset({"cpu", "cuda"})
_EXACT_IN_FLOAT = 1 << 24
"""Counting up to here in float32 is exact."""
_COUNTED_BY_THEMSELVES = frozenset({torch.float32, torch.float64})
_ADDED = 128
_TINY = 1e-15
"""Squares of what is smaller lose digits in float32."""

_NormAndCount: TypeAlias = "tuple[float, int]"
"""Norm, and number of elements that are not zero."""
_Stream: TypeAlias = "torch.cuda.Stream | None"
_Gradients: TypeAlias = "Sequence[torch.Tensor | None]"
_Hook: TypeAlias = "Callable[[_Gradients, _Gradients], None]"
_Held: TypeAlias = "tuple[int, int, int, torch.Tensor, int | None, _Stream]"
"""A gradient that waits: node, index, row of its figures, it, its version and its stream."""
_Group: TypeAlias = "tuple[torch.dtype, torch.device | None, _Stream]"
"""Dtype, device (None for the CPU) and stream."""
_Member: TypeAlias = "tuple[int, int, torch.Tensor]"
"""The number of elements of a gradient, the row of its figures, and it."""
_Groups: TypeAlias = "dict[_Group, list[_Member]]"


@dataclass(slots=True)
class _Block:
    """Copies of gradients, one after another in the order of their sizes."""

    sizes: Sequence[int]
    rows: Sequence[int]
    elements: torch.Tensor
    stream: _Stream


@dataclass(slots=True)
class _Queued:
    """Figures that are still on their device."""

    rows: Sequence[int]
    norms: torch.Tensor
    nonzero: torch.Tensor


class GradientStats:
    """Takes gradients as they come, from any thread, and gives their figures when asked.

    Small gradients on the CPU (up to 64 KiB) are copied at once, so that nobody can change what was
    seen. The copies wait for somebody to ask, up to 16 MiB of them; when there are more,
    all of them are worked out there and then.

    Others are held for a while, so that torch neither writes into them nor takes them for ``.grad``
    meanwhile; what it computes instead has the same bits. It may take a view of one for ``.grad``.
    One that somebody writes into while it waits is counted in ``unread``. After ``finish`` none is
    held any more.

    Args:
        has_streams: whether gradients may be on a device whose work is queued.
    """

    def __init__(self, *, has_streams: bool = False) -> None:
        self._has_streams = has_streams
        self._entries: list[Any] = []
        self._stats: dict[int, _NormAndCount] = {}
        self._copies: list[Any] = []
        self._held: list[_Held] = []
        self._size = 0
        self._blocks: list[_Block] = []
        self._queued: dict[tuple[torch.device, _Stream], list[_Queued]] = {}
        self._lock = threading.Lock()
        self._next_row = count().__next__
        self.copied_bytes = 0
        self._take = self._taker()

    def leaving(self, node: int, *, takes_incoming: bool = False) -> _Hook:
        """Return a hook that takes what leaves a node.

        Args:
            node: the number that it goes by.
            takes_incoming: whether to take what entered the node too.
        """
        take = self._take
        if not takes_incoming:
            return partial(take, node)

        def both(gradients: _Gradients, given: _Gradients) -> None:
            take(~node, given)
            take(node, gradients)

        return both

    def entering(self, node: int) -> Callable[[_Gradients], None]:
        """Return a hook that takes what enters a node."""
        return partial(self._take, ~node)

    def _taker(self) -> Callable[..., None]:
        """Return what is called at each hook: it copies what is small, and holds the rest.

        All that it uses is at hand, and it leaves nothing that Python's collector has to visit.
        """
        copies, hold = self._copies, self._hold
        plain, strided = torch.Tensor, torch.strided
        is_seen = function_mode_is_active

        def take(node: int, gradients: _Gradients) -> None:
            last = dtype = numbers = None
            copied = 0
            for index, gradient in enumerate(gradients):
                if gradient is None:
                    copies.extend((node, index, None, b""))
                elif gradient is last:
                    copies.extend((node, index, dtype, numbers))
                elif (
                    type(gradient) is plain
                    and gradient.is_cpu
                    and gradient.layout is strided
                    and not gradient.is_nested
                    and (size := gradient.nbytes) <= _SMALL
                    and (address := gradient.data_ptr())
                ):
                    is_whole = has_room(gradient, size) or is_readable(gradient)
                    if not is_whole:
                        hold(node, index, gradient)
                        continue
                    if gradient.is_contiguous() or _has_no_gaps(gradient):
                        numbers = memory_of_size[size](address).raw
                    else:
                        numbers = _numbers_in_a_row(gradient, size)
                    dtype = gradient.dtype
                    copies.extend((node, index, dtype, numbers))
                    last = gradient
                    copied += size + _COPY
                else:
                    hold(node, index, gradient)
            self.copied_bytes += copied
            if self.copied_bytes > MOST_COPIED:
                self._compute_now()

        def take_unseen(node: int, gradients: _Gradients, _given: _Gradients = ()) -> None:
            # Before torch 2.11, a torch-function mode of the user's is in force in backward.
            if is_seen():
                with without_torch_function():
                    take(node, gradients)
            else:
                take(node, gradients)

        return take_unseen

    def _hold(self, node: int, index: int, gradient: torch.Tensor) -> None:
        """Hold a gradient for a while."""
        stream = _stream(gradient) if self._has_streams else None
        row = self._next_row()
        self._held.append((node, index, row, gradient, _version(gradient), stream))
        self._size += _kept_by(gradient)
        if self._size > _HELD or len(self._held) > _MANY:
            with _without_modes():
                self._release_held()

    def results(self) -> Iterator[tuple[int, int, EdgeGradient]]:
        """Yield the node, the index and the figures of each gradient; ``finish`` comes first.

        What entered a node goes by the complement of its number (``~node``).
        """
        self.compute()
        for node, index, row, elements in _in_fours(self._entries):
            if row is None:
                yield node, index, _MISSING
                continue
            figure = self._stats.get(row)
            if figure is None:
                continue
            norm, nonzero = figure
            gradient = EdgeGradient(
                norm=norm if math.isfinite(norm) else None,
                zeros=max(0, elements - nonzero),
                elements=elements,
                non_finite="nan" if math.isnan(norm) else "inf" if math.isinf(norm) else None,
            )
            yield node, index, gradient

    @property
    def unread(self) -> int:
        """Count the gradients that were taken and could not be measured."""
        self.compute()
        stats = self._stats
        rows = self._entries[2::4]
        return sum(row is not None and row not in stats for row in rows)

    def finish(self) -> None:
        """Take no gradient, and hold none, from now on."""
        self._take = _take_nothing
        if self._held:
            with _without_modes():
                self._release_held()

    def compute(self) -> None:
        """Work out all figures that wait, and fetch them from their devices."""
        with self._lock:
            if self._copies or self._blocks or self._queued:
                with _without_modes(), without_transforms():
                    self._compute_copies()
                    self._fetch()

    def _release_held(self) -> None:
        """Copy or measure what was held, each piece of memory once."""
        with self._lock:
            held = self._held[:]
            del self._held[: len(held)]
            self._size = 0
            groups, alone = self._sort(held)
            for (*_, stream), members in groups.items():
                for some in _in_blocks(members):
                    with _without_errors(), _on(stream):
                        self._add_block(some, stream)
            for row, gradient in alone:
                with _without_errors():
                    self._measure_alone(row, gradient)
            if self.copied_bytes > MOST_COPIED:
                self._compute_copies()

    def _sort(self, held: Sequence[_Held]) -> tuple[_Groups, list[tuple[int, torch.Tensor]]]:
        """Group what was held by what can be copied together, and give out rows."""
        known: dict[int, tuple[int, int, int | None, torch.Tensor]] = {}
        groups: _Groups = {}
        alone: list[tuple[int, torch.Tensor]] = []
        for node, index, row, gradient, version, stream in held:
            address = _address(gradient)
            if address is None:
                elements = _elements(gradient)
                alone.append((row, gradient))
            else:
                elements = gradient.numel()
                is_same = version is None or gradient._version == version  # noqa: SLF001 - documented by torch
                # Its memory may have been freed while it waited.
                if is_same and is_readable(gradient):
                    first = known.setdefault(address, (row, elements, version, gradient))
                    if (
                        first[0] != row
                        and first[1] == elements
                        and first[2] == version
                        and (first[3] is gradient or _hold_the_same(first[3], gradient))
                    ):
                        self._entries.extend((node, index, first[0], elements))
                        continue
                    device = None if gradient.is_cpu else gradient.device
                    members = groups.setdefault((gradient.dtype, device, stream), [])
                    members.append((elements, row, _in_order(gradient)))
            self._entries.extend((node, index, row, elements))
        return groups, alone

    def _add_block(self, members: Sequence[_Member], stream: _Stream) -> None:
        """Copy several gradients, or measure one."""
        block = _block(members, stream)
        (row, *others) = block.rows
        if others:
            self._blocks.append(block)
            self.copied_bytes += block.elements.numel() * block.elements.element_size()
        elif block.elements.is_cpu:
            self._stats[row] = _measure_one(block.elements, members[0][-1])
        else:
            self._queue(block.rows, block.elements.view(1, -1), stream)

    def _measure_alone(self, row: int, gradient: torch.Tensor) -> None:
        """Measure a gradient without memory of its own: sparse, a subclass, under a transform."""
        whole = gradient.detach()
        if not is_readable(whole.values() if whole.is_nested else whole):
            return
        values = _values(whole)
        if values.device.type == "cpu":
            self._stats[row] = _measure_any(values)
        else:
            self._queue((row,), values.reshape(1, -1), _stream(values))

    def _compute_now(self) -> None:
        with self._lock, _without_modes():
            self._compute_copies()

    def _compute_copies(self) -> None:
        """Work out the figures of what was copied."""
        copies = self._copies[:]
        del self._copies[: len(copies)]
        blocks = self._blocks[:]
        del self._blocks[: len(blocks)]
        self.copied_bytes = 0
        alike: dict[tuple[torch.dtype, int], tuple[list[int], list[bytes]]] = {}
        last, kind, row, elements = None, None, 0, 0
        for node, index, dtype, copy in _in_fours(copies):
            if dtype is None:
                self._entries.extend((node, index, None, 0))
                continue
            # Python keeps one object for all copies of a single byte, whatever its dtype.
            if copy is not last or dtype is not kind:
                last, kind = copy, dtype
                row, elements = self._next_row(), len(copy) // dtype.itemsize
                rows, numbers = alike.setdefault((dtype, elements), ([], []))
                rows.append(row)
                numbers.append(copy)
            self._entries.extend((node, index, row, elements))
        for (dtype, elements), (rows, numbers) in alike.items():
            with _without_errors():
                matrix = torch.frombuffer(bytearray().join(numbers), dtype=dtype)
                found = _measure_rows(matrix.view(-1, elements))
                self._stats.update(zip(rows, found, strict=True))
        for block in blocks:
            with _without_errors(), _on(block.stream):
                self._measure(block)

    def _measure(self, block: _Block) -> None:
        """Measure the gradients of a block, those of one size as the rows of a matrix."""
        start = at = 0
        for elements, run in groupby(block.sizes):
            end = start + sum(1 for _ in run)
            rows = block.rows[start:end]
            matrix = block.elements.as_strided((len(rows), elements), (elements, 1), at)
            self._queue(rows, matrix, block.stream)
            start = end
            at += matrix.numel()

    def _fetch(self) -> None:
        """Fetch what devices have worked out, and wait for each of their streams once."""
        for (_, stream), queued in self._queued.items():
            with _without_errors(), _on(stream):
                norms = torch.cat([each.norms for each in queued]).tolist()
                nonzero = torch.cat([each.nonzero for each in queued]).tolist()
                rows = (row for each in queued for row in each.rows)
                self._stats.update(zip(rows, zip(norms, nonzero, strict=True), strict=True))
        self._queued.clear()

    def _queue(self, rows: Sequence[int], matrix: torch.Tensor, stream: _Stream) -> None:
        wider = _WIDE if matrix.device.type in _HAVE_DOUBLE else _WIDER
        norms = torch.linalg.vector_norm(matrix, dim=1, dtype=wider.get(matrix.dtype))
        nonzero = torch.count_nonzero(matrix, dim=1)
        self._queued.setdefault((matrix.device, stream), []).append(_Queued(rows, norms, nonzero))


def _without_errors() -> AbstractContextManager[object]:
    """Go on without a figure: what can't be measured must not end the user's backward.

    Tensor subclasses raise what they like; tensors on the meta device have no numbers at all.
    """
    return contextlib.suppress(Exception)


def _take_nothing(*_: object) -> None:
    """Take nothing: what takes refers to its owner, and would keep it from going at once."""


def _numbers_in_a_row(gradient: torch.Tensor, size: int) -> bytes:
    """Copy the numbers of a small gradient that lie apart."""
    is_seen = dispatch_mode_is_active() or torch.is_grad_enabled()
    with _without_modes() if is_seen else contextlib.nullcontext():
        numbers = gradient.contiguous()
    return copy_of_memory(numbers.data_ptr(), size)


def _version(gradient: torch.Tensor) -> int | None:
    try:
        return gradient._version  # noqa: SLF001 - documented by torch
    except RuntimeError:  # inference tensors have none
        return None


def _kept_by(gradient: torch.Tensor) -> int:
    """Return for how many elements there is room in the memory that a gradient keeps.

    A small part of something large counts with all of it.
    """
    if type(gradient) is not torch.Tensor:
        return 0
    try:
        return gradient.untyped_storage().nbytes() // gradient.element_size()
    except (NotImplementedError, RuntimeError):  # sparse
        return 0


def _address(gradient: torch.Tensor) -> int | None:
    """Return where a gradient lies; None if it has no memory of its own that can be told."""
    if type(gradient) is not torch.Tensor or gradient.layout is not torch.strided:
        return None
    if gradient.is_nested:
        return None
    try:
        return gradient.data_ptr() or None
    except RuntimeError:  # wrapped by a transform of torch.func
        return None


def _in_order(gradient: torch.Tensor) -> torch.Tensor:
    """Return the same numbers in the order of memory, if they lie without gaps: quicker to read."""
    if gradient.is_contiguous() or not _has_no_gaps(gradient):
        return gradient
    return gradient.as_strided((gradient.numel(),), (1,))


def _has_no_gaps(gradient: torch.Tensor) -> bool:
    """Return whether the numbers of a gradient that is not contiguous lie one after another."""
    shape, strides = gradient.shape, gradient.stride()
    if len(strides) == 2:  # noqa: PLR2004 - a matrix, mostly of the gradients of weights
        return strides == (1, shape[0])
    return _span(shape, strides) == ((1, gradient.numel()),)


def _values(gradient: torch.Tensor) -> torch.Tensor:
    """Return the numbers of a gradient that is sparse or nested as a tensor of their own."""
    if gradient.is_nested:
        return gradient.values()
    return gradient if gradient.layout == torch.strided else gradient.coalesce().values()


def _elements(gradient: torch.Tensor) -> int:
    """Count the elements of a gradient whose size may not be a plain number."""
    try:
        return (gradient.values() if gradient.is_nested else gradient).numel()
    except Exception:  # noqa: BLE001 - subclasses raise what they like
        return 0


def _hold_the_same(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether gradients that begin at one place hold the same numbers, in some order."""
    if first.dtype is not second.dtype:
        return False
    return _span(first.shape, first.stride()) == _span(second.shape, second.stride())


def _in_fours(flat: list[Any]) -> Iterator[tuple[Any, Any, Any, Any]]:
    each = iter(flat)
    return zip(each, each, each, each, strict=True)


_size_of = itemgetter(0)


def _in_blocks(members: list[_Member]) -> Iterator[Sequence[_Member]]:
    """Split gradients, which are sorted by their sizes, into those that are measured together."""
    members.sort(key=_size_of)
    start = held = 0
    for at, (elements, _, _) in enumerate(members):
        if at > start and (elements > _ALONE or held + elements > _BLOCK):
            yield members[start:at]
            start, held = at, 0
        held += elements
    yield members[start:]


def _block(members: Sequence[_Member], stream: _Stream) -> _Block:
    sizes, rows, gradients = zip(*members, strict=True)
    return _Block(sizes, rows, flattened(gradients), stream)


@lru_cache(maxsize=4096)
def _span(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Return the strides and sizes of a tensor, the shortest stride first, as few as will do."""
    joined: list[tuple[int, int]] = []
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size == 1:
            continue
        if joined and stride == joined[-1][0] * joined[-1][1]:
            joined[-1] = joined[-1][0], joined[-1][1] * size
        else:
            joined.append((stride, size))
    return tuple(joined)


def _stream(tensor: torch.Tensor) -> _Stream:
    """Return the stream that holds this gradient's kernels: within a hook the current one."""
    return torch.cuda.current_stream(tensor.device) if tensor.is_cuda else None


def _on(stream: _Stream) -> AbstractContextManager[object]:
    return contextlib.nullcontext() if stream is None else torch.cuda.stream(stream)


@contextlib.contextmanager
def _without_modes() -> Iterator[None]:
    """Compute out of sight of the user's modes, and record no graph of it."""
    with torch.inference_mode(), without_dispatch_modes(), without_torch_function():
        yield


def _measure_rows(rows: torch.Tensor) -> list[_NormAndCount]:
    """Return the figures of each row of a matrix on the CPU, which may be overwritten."""
    measured = torch.linalg.vector_norm(rows, dim=1, dtype=_WIDER.get(rows.dtype))
    norms: list[float] = measured.tolist()
    are_usual = all(map(_is_usual, norms))
    counts = [int(count) for count in _nonzero(rows, may_write=are_usual).tolist()]
    if not are_usual:
        norms = [
            norm if _is_usual(norm) or not (norm or count) else _rescued(row)
            for norm, count, row in zip(norms, counts, rows, strict=True)
        ]
    return list(zip(norms, counts, strict=True))


def _measure_one(values: torch.Tensor, gradient: torch.Tensor) -> _NormAndCount:
    """Return the figures of one gradient on the CPU; ``values`` are its numbers in a row."""
    norm, nonzero = _norm_of_many(values), _nonzero_of_many(values)
    if not _is_usual(norm) and (norm or nonzero):
        norm = _rescued(gradient)
    return norm, nonzero


def _measure_any(values: torch.Tensor) -> _NormAndCount:
    """Return the figures of one gradient of any kind on the CPU."""
    norm = torch.linalg.vector_norm(values, dtype=_WIDER.get(values.dtype)).item()
    return norm if _is_usual(norm) else _rescued(values), int(torch.count_nonzero(values).item())


def _is_usual(norm: float) -> bool:
    return _TINY < norm < math.inf


def _nonzero(rows: torch.Tensor, *, may_write: bool) -> torch.Tensor:
    """Count in each row the numbers that are not zero; rows that may be written are written."""
    if rows.is_complex() or rows.shape[1] > _EXACT_IN_FLOAT:
        return torch.count_nonzero(rows, dim=1)
    if may_write and rows.dtype in _COUNTED_BY_THEMSELVES:
        return rows.ne_(0).sum(dim=1)
    marks = torch.empty(rows.shape, dtype=torch.float32, device=rows.device)
    return torch.ne(rows, 0, out=marks).sum(dim=1)


def _norm_of_many(values: torch.Tensor) -> float:
    """Return the norm of a tensor by itself."""
    if values.dtype in _COUNTED_BY_THEMSELVES:
        # Quicker than a norm, as it leaves more to the processor at a time.
        return math.sqrt(torch.dot(values, values).item())
    return float(torch.linalg.vector_norm(values, dtype=_WIDER.get(values.dtype)).item())


def _nonzero_of_many(values: torch.Tensor) -> int:
    """Count the numbers that are not zero of a tensor by itself."""
    if values.is_complex() or values.numel() % (8 * _ADDED):
        return int(torch.count_nonzero(values).item())
    # Bytes that are 0 or 1 are added up eight at a time, as many as a byte can count.
    eights = values.to(torch.bool).view(torch.int64).view(_ADDED, -1)
    return int(eights.sum(dim=0).view(torch.uint8).sum().item())


def _rescued(values: torch.Tensor) -> float:
    """Return the norm: NaN or infinite only where ``values`` are, zero only where all are.

    The sum of squares of finite numbers overflows and underflows sooner than they do, but not in
    double precision, and there only where they are scaled first. That is slow on CPUs, where a
    look at the first result costs nothing instead.
    """
    wide = _WIDE.get(values.dtype)
    if wide is not None:
        return float(torch.linalg.vector_norm(values, dtype=wide).item())
    largest = torch.linalg.vector_norm(values, math.inf)
    if not 0.0 < largest.item() < math.inf:
        return float(largest.item())
    return float((largest * torch.linalg.vector_norm(values / largest)).item())
