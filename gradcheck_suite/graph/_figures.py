"""Take the figures of many gradients at once: norms, zeros, NaN and infinity.

One operator call on one small tensor costs more than the arithmetic in it. Gradients are therefore
held until some megabytes have come together; small ones are copied into one block, where those of
one size are the rows of a matrix, and large ones are measured one by one. A gradient that is handed
on unchanged (a transpose, a view, both inputs of a sum) is measured once.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, TypeAlias, cast

import torch

from gradcheck_suite._torch_compat import (
    flattened,
    without_dispatch_modes,
    without_torch_function,
)
from gradcheck_suite.graph.model import EdgeGradient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

__all__ = ["Figures"]

_HELD = 1 << 20
"""So many elements are held at most, apart from the gradient that exceeds it."""
_MANY = 4_096
"""So many gradients are held at most."""
_STACKED = 1 << 14
"""Gradients of more elements are measured one by one: copying them would cost more than calls."""
_BLOCK = 1 << 17
"""So many elements are copied into one block at most: more would leave the cache."""
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

_Stream: TypeAlias = "torch.cuda.Stream | None"
_Gradients: TypeAlias = "Sequence[torch.Tensor | None]"
_Hook: TypeAlias = "Callable[[_Gradients, _Gradients], None]"
_Taken: TypeAlias = "tuple[int, _Gradients, Sequence[int | None], Sequence[_Stream] | None]"
"""Gradients that wait to be measured: of which node, they, and the version and stream of each."""
_Group: TypeAlias = "tuple[torch.dtype, torch.device | None, _Stream]"
"""Dtype, device (None for the CPU) and stream."""
_Member: TypeAlias = "tuple[int, int, torch.Tensor]"
"""The number of elements of a gradient, the row of its figures, and it."""
_Groups: TypeAlias = "dict[_Group, list[_Member]]"
_Figure: TypeAlias = "tuple[float, int] | None"
"""Norm and number of elements that are not zero; None for what could not be read."""


@dataclass(slots=True)
class _Pending:
    """Figures that are still on their device."""

    rows: Sequence[int]
    norms: torch.Tensor
    nonzero: torch.Tensor
    stream: _Stream


class Figures:
    """Takes gradients as they come, from any thread, and gives their figures at the end.

    Gradients are held, so that torch neither writes into them nor takes them for ``.grad``
    meanwhile; what it computes instead has the same bits. It may take a view of one for ``.grad``.
    One that somebody writes into while it waits is counted in ``unread``.

    Args:
        has_streams: whether gradients may be on a device whose work is queued.
    """

    def __init__(self, *, has_streams: bool = False) -> None:
        self._has_streams = has_streams
        self._taken: list[_Taken] = []
        self._size = 0
        self._entries: list[tuple[int, int, int | None, int]] = []
        self._figures: list[_Figure] = []
        self._pending: list[_Pending] = []
        self._lock = threading.Lock()

    def leaving(self, node: int, *, looks_back: bool = False, views: bool = False) -> _Hook:
        """Return a hook that takes what leaves a node.

        Args:
            node: the number that it goes by.
            looks_back: whether to take what entered the node too.
            views: whether what leaves it may be small parts of something large.
        """
        if looks_back or views:
            return partial(self._note_more, node, looks_back, views)
        return partial(self._note, node)

    def entering(self, node: int) -> Callable[[_Gradients], None]:
        """Return a hook that takes what enters a node."""
        return lambda gradients: self._note(~node, gradients, ())

    def _note_more(
        self, node: int, looks_back: bool, views: bool, gradients: _Gradients, given: _Gradients
    ) -> None:
        if looks_back:
            streams = _streams(given) if self._has_streams else None
            self._taken.append((~node, given, _versions(given), streams))
        if views:
            # Each counts with all the memory that it keeps.
            self._size += max(map(_kept_by, gradients), default=0)
        self._note(node, gradients, given)

    def _note(self, node: int, gradients: _Gradients, _given: _Gradients) -> None:
        streams = _streams(gradients) if self._has_streams else None
        self._taken.append((node, gradients, _versions(gradients), streams))
        size = self._size
        for gradient in gradients:
            if type(gradient) is torch.Tensor:
                size += gradient.numel()
        self._size = size
        if size > _HELD or len(self._taken) > _MANY:
            with _unseen():
                self._measure()

    def results(self) -> Iterator[tuple[int, int, EdgeGradient]]:
        """Yield the node, the index and the figures of each gradient; ``finish`` comes first.

        What entered a node goes by the complement of its number (``~node``).
        """
        for node, index, row, elements in self._entries:
            if row is None:
                yield node, index, _MISSING
                continue
            figure = self._figures[row]
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

    def finish(self) -> None:
        """Measure what is left, and fetch all figures from their devices; hold nothing more."""
        with _unseen():
            self._measure()
            for pending in self._pending:
                with _whatever_it_raises(), _on(pending.stream):
                    found = zip(
                        pending.rows,
                        pending.norms.tolist(),
                        pending.nonzero.tolist(),
                        strict=True,
                    )
                    for row, norm, nonzero in found:
                        self._figures[row] = norm, int(nonzero)
        self._pending.clear()

    @property
    def unread(self) -> int:
        """Count the gradients that were taken and could not be measured."""
        return sum(row is not None and self._figures[row] is None for _, _, row, _ in self._entries)

    def _measure(self) -> None:
        """Measure what was taken, each piece of memory once."""
        with self._lock:
            count = len(self._taken)
            taken = self._taken[:count]
            del self._taken[:count]
            self._size = 0
            self._measure_all(*self._sort(taken))

    def _sort(self, taken: Sequence[_Taken]) -> tuple[_Groups, list[tuple[int, torch.Tensor]]]:
        """Group what was taken by what it can be measured together with, and give out rows."""
        known: dict[int, tuple[int, int, int | None, torch.Tensor]] = {}
        groups: _Groups = {}
        members: list[_Member] = []
        group: _Group | None = None
        entries, figures = self._entries, self._figures
        alone: list[tuple[int, torch.Tensor]] = []
        row = len(figures)
        stream: _Stream = None
        for node, gradients, versions, streams in taken:
            index = -1
            for gradient in gradients:
                index += 1
                if gradient is None:
                    entries.append((node, index, None, 0))
                    continue
                version = versions[index]
                if streams is not None:
                    stream = streams[index]
                address = _address(gradient)
                if address is None:
                    elements = _elements(gradient)
                    alone.append((row, gradient))
                else:
                    elements = gradient.numel()
                    if version is None or gradient._version == version:  # noqa: SLF001 - documented by torch
                        first = known.get(address)
                        if first is None:
                            known[address] = row, elements, version, gradient
                        elif (
                            first[1] == elements
                            and first[2] == version
                            and (first[3] is gradient or _hold_the_same(first[3], gradient))
                        ):
                            entries.append((node, index, first[0], elements))
                            continue
                        device = None if gradient.is_cpu else gradient.device
                        its_group = gradient.dtype, device, stream
                        if its_group != group:
                            group = its_group
                            members = groups.setdefault(group, [])
                        members.append(
                            (
                                elements,
                                row,
                                gradient if gradient.is_contiguous() else _in_order(gradient),
                            )
                        )
                figures.append(None)
                entries.append((node, index, row, elements))
                row += 1
        return groups, alone

    def _measure_all(self, groups: _Groups, alone: Sequence[tuple[int, torch.Tensor]]) -> None:
        for (*_, stream), members in groups.items():
            members.sort(key=_size_of)
            for some in _blocks(members):
                with _whatever_it_raises(), _on(stream):
                    self._measure_block(some, stream)
        for row, gradient in alone:
            with _whatever_it_raises():
                self._measure_alone(row, gradient)

    def _measure_block(self, members: Sequence[_Member], stream: _Stream) -> None:
        """Measure gradients in the order of their sizes, those of one size as rows of a matrix."""
        whole = flattened([gradient for _, _, gradient in members])
        if len(members) == 1 and whole.is_cpu:
            self._read(members, [_norm_of_many(whole)], [_nonzero_of_many(whole)])
            return
        runs = [len(list(run)) for _, run in groupby(members, _size_of)]
        starts = [0, *accumulate(runs)]
        blocks = []
        at = 0
        for start, count in zip(starts, runs, strict=False):
            elements = members[start][0]
            blocks.append(whole.as_strided((count, elements), (elements, 1), at))
            at += count * elements
        norms = [_norms(block) for block in blocks]
        may_write = len(members) > 1
        nonzero = [_nonzero(block, may_write=may_write) for block in blocks]
        if whole.is_cpu:
            for start, some, counts in zip(starts, norms, nonzero, strict=False):
                self._read(members[start:], some.tolist(), counts.tolist())
            return
        for start, count, some, counts in zip(starts, runs, norms, nonzero, strict=False):
            rows = [row for _, row, _ in members[start : start + count]]
            self._pending.append(_Pending(rows, some, counts, stream))

    def _measure_alone(self, row: int, gradient: torch.Tensor) -> None:
        """Measure a gradient without memory of its own: sparse, a subclass, under a transform."""
        values = _values(gradient.detach())
        norm = torch.linalg.vector_norm(values, dtype=_WIDER.get(values.dtype))
        nonzero = torch.count_nonzero(values)
        if values.device.type == "cpu":
            self._figures[row] = _rescued(norm, values).item(), int(nonzero.item())
        else:
            pending = _Pending((row,), norm.reshape(1), nonzero.reshape(1), _stream(values))
            self._pending.append(pending)

    def _read(
        self, members: Sequence[_Member], norms: Sequence[float], nonzero: Sequence[float]
    ) -> None:
        figures = self._figures
        for (_, row, gradient), norm, count in zip(members, norms, nonzero, strict=False):
            if not (_TINY < norm < math.inf) and (norm or count):
                norm = _rescued(torch.tensor(norm), gradient).item()  # noqa: PLW2901 - a better one
            figures[row] = norm, int(count)


def _whatever_it_raises() -> AbstractContextManager[object]:
    """Go on without a figure: what can't be measured must not end the user's backward.

    Tensor subclasses raise what they like; tensors on the meta device have no numbers at all.
    """
    return contextlib.suppress(Exception)


def _versions(gradients: _Gradients) -> Sequence[int | None]:
    try:
        return [None if each is None else each._version for each in gradients]  # noqa: SLF001 - documented by torch
    except RuntimeError:  # inference tensors have none
        return [
            None if each is None or each.is_inference() else each._version  # noqa: SLF001 - documented by torch
            for each in gradients
        ]


def _streams(gradients: _Gradients) -> Sequence[_Stream]:
    return [None if gradient is None else _stream(gradient) for gradient in gradients]


def _kept_by(gradient: torch.Tensor | None) -> int:
    """Return for how many elements there is room in the memory that a gradient keeps."""
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
    if gradient.dim() == 2 and (turned := gradient.t()).is_contiguous():  # noqa: PLR2004 - a matrix
        return turned
    elements = gradient.numel()
    if _span(gradient.shape, gradient.stride()) == ((1, elements),):
        return gradient.as_strided((elements,), (1,))
    return gradient


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
    """Whether two gradients that begin at the same place hold the same numbers, in some order."""
    if first.dtype is not second.dtype:
        return False
    return _span(first.shape, first.stride()) == _span(second.shape, second.stride())


_size_of = itemgetter(0)


def _blocks(members: Sequence[_Member]) -> Iterator[Sequence[_Member]]:
    """Split gradients into those that are measured together."""
    start = held = 0
    for at, (elements, _, _) in enumerate(members):
        if at > start and (elements > _STACKED or held + elements > _BLOCK):
            yield members[start:at]
            start, held = at, 0
        held += elements
    yield members[start:]


def _norms(rows: torch.Tensor) -> torch.Tensor:
    """Return the norm of each row."""
    wide = _WIDER.get(rows.dtype)
    if not rows.is_cpu and rows.device.type in _HAVE_DOUBLE:
        wide = _WIDE.get(rows.dtype)
    norms: torch.Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=wide)
    return norms


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


def _rescued(norm: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return the norm: NaN or infinite only where ``values`` are, zero only where all are.

    The sum of squares of finite numbers overflows and underflows sooner than they do, but not in
    double precision, and there only where they are scaled first. That is slow on CPUs, where a
    look at the first result costs nothing instead.
    """
    if _TINY < norm.item() < math.inf:
        return norm
    values = values.detach()
    wide = _WIDE.get(values.dtype)
    if wide is not None:
        return cast("torch.Tensor", torch.linalg.vector_norm(values, dtype=wide))
    largest = torch.linalg.vector_norm(values, math.inf)
    if not 0.0 < largest.item() < math.inf:
        return cast("torch.Tensor", largest)
    return cast("torch.Tensor", largest * torch.linalg.vector_norm(values / largest))


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
def _unseen() -> Iterator[None]:
    """Compute out of sight of the user's modes, and record no graph of it."""
    with torch.no_grad(), without_dispatch_modes(), without_torch_function():
        yield
