"""Take the figures of many gradients at once: norms, zeros, NaN and infinity.

One operator call on one small tensor costs more than the arithmetic in it. Gradients are therefore
held until some megabytes have come together, and those of one size are measured as rows of one
matrix. A gradient that is handed on unchanged (a transpose, a view, both inputs of a sum) is
measured once.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, TypeAlias, cast

import torch

from gradcheck_suite._torch_compat import (
    flattened,
    without_dispatch_modes,
    without_torch_function,
)
from gradcheck_suite.graph.model import EdgeGradient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

__all__ = ["Figures"]

_HELD = 2 << 20
"""So many elements are held at most, apart from the gradient that exceeds it."""
_MANY = 4_096
"""So many gradients are held at most."""
_STACKED = 1 << 14
"""Gradients of more elements are measured one by one: copying them would cost more than calls."""
_BLOCK = 1 << 17
"""So many elements are copied into one block at most: more would leave the cache."""
_EXACT_IN_FLOAT = 1 << 24
"""Counting up to here in float32 is exact."""
_MISSING = EdgeGradient(norm=None, zeros=0, elements=0)
_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
_WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
_HAVE_DOUBLE = frozenset({"cpu", "cuda"})
_COUNTED_IN = {torch.float64: torch.float64}

_Stream: TypeAlias = "torch.cuda.Stream | None"
_Gradients: TypeAlias = "Sequence[torch.Tensor | None]"
_Hook: TypeAlias = "Callable[[_Gradients, _Gradients], None]"
_State: TypeAlias = "tuple[int | None, _Stream]"
_Taken: TypeAlias = "tuple[int, _Gradients, Sequence[_State] | None]"
"""Gradients that wait to be measured: of which node, they, and the version and stream of each."""
_Group: TypeAlias = "tuple[torch.dtype, int, torch.device | None, _Stream]"
"""Dtype, number of elements, device (None for the CPU) and stream."""
_Groups: TypeAlias = "dict[_Group, tuple[list[int], list[torch.Tensor]]]"
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
    meanwhile; what it computes instead has the same bits. One that somebody else writes into
    while it waits is counted in ``unread``.
    """

    def __init__(self) -> None:
        self.unread = 0
        self._taken: list[_Taken] = []
        self._size = 0
        self._entries: list[tuple[int, int, int | None, int]] = []
        self._figures: list[_Figure] = []
        self._pending: list[_Pending] = []
        self._lock = threading.Lock()

    def leaving(self, node: int, looks_back: bool = False) -> _Hook:
        """Return a hook that takes what leaves a node; and what entered it, if it looks back."""
        note = self._taken.append

        # Called for many nodes, and so without a call of its own for what it shares with others.
        def hook(gradients: _Gradients, given: _Gradients) -> None:
            if looks_back:
                note((~node, given, _states(given)))
            note((node, gradients, _states(gradients)))
            for gradient in gradients:
                if type(gradient) is torch.Tensor:
                    self._size += gradient.numel()
            if self._size > _HELD or len(self._taken) > _MANY:
                with _unseen():
                    self._measure()

        return hook

    def leaving_quickly(self, node: int, looks_back: bool) -> _Hook:
        """Do what ``leaving`` does, where nobody writes into gradients and there are no streams."""
        return partial(self._note_both if looks_back else self._note, node)

    def _note_both(self, node: int, gradients: _Gradients, given: _Gradients) -> None:
        self._taken.append((~node, given, None))
        self._note(node, gradients, given)

    def _note(self, node: int, gradients: _Gradients, _given: _Gradients) -> None:
        self._taken.append((node, gradients, None))
        size = self._size
        for gradient in gradients:
            if type(gradient) is torch.Tensor:
                size += gradient.numel()
        self._size = size
        if size > _HELD or len(self._taken) > _MANY:
            with _unseen():
                self._measure()

    def entering(self, node: int) -> Callable[[_Gradients], None]:
        """Return a hook that takes what enters a node."""
        hook = self.leaving(~node)
        return lambda gradients: hook(gradients, ())

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
        self.unread = sum(
            row is not None and self._figures[row] is None for _, _, row, _ in self._entries
        )

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
        known: dict[tuple[int, int, int | None], tuple[int, torch.Tensor]] = {}
        groups: _Groups = {}
        entries, figures = self._entries, self._figures
        alone: list[tuple[int, torch.Tensor]] = []
        row = len(figures)
        for node, gradients, states in taken:
            version, stream = None, None
            for index, gradient in enumerate(gradients):
                if gradient is None:
                    entries.append((node, index, None, 0))
                    continue
                if states is not None:
                    version, stream = states[index]
                address = _address(gradient)
                elements = gradient.numel() if address is not None else _elements(gradient)
                if address is None:
                    alone.append((row, gradient))
                elif version is None or gradient._version == version:  # noqa: SLF001 - documented by torch
                    place = address, elements, version
                    first = known.get(place)
                    if first is not None and _hold_the_same(first[1], gradient):
                        entries.append((node, index, first[0], elements))
                        continue
                    known[place] = row, gradient
                    device = None if gradient.is_cpu else gradient.device
                    group = gradient.dtype, elements, device, stream
                    members = groups.get(group)
                    if members is None:
                        members = groups[group] = [], []
                    members[0].append(row)
                    members[1].append(gradient if gradient.is_contiguous() else _in_order(gradient))
                figures.append(None)
                entries.append((node, index, row, elements))
                row += 1
        return groups, alone

    def _measure_all(self, groups: _Groups, alone: Sequence[tuple[int, torch.Tensor]]) -> None:
        for (*_, stream), (rows, tensors) in groups.items():
            with _whatever_it_raises(), _on(stream):
                self._measure_group(rows, tensors, stream)
        for row, gradient in alone:
            with _whatever_it_raises():
                self._measure_alone(row, gradient)

    def _measure_group(
        self, rows: Sequence[int], tensors: Sequence[torch.Tensor], stream: _Stream
    ) -> None:
        for some_rows, some in _blocks(rows, tensors):
            norms, nonzero = _measured(some)
            if norms.device.type == "cpu":
                self._read(some_rows, norms.tolist(), nonzero.tolist(), some)
            else:
                self._pending.append(_Pending(some_rows, norms, nonzero, stream))

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
        self,
        rows: Sequence[int],
        norms: Sequence[float],
        nonzero: Sequence[float],
        tensors: Sequence[torch.Tensor],
    ) -> None:
        figures = self._figures
        for row, norm, count, tensor in zip(rows, norms, nonzero, tensors, strict=True):
            if not (0.0 < norm < math.inf) and (norm or count):
                norm = _rescued(torch.tensor(norm), tensor).item()  # noqa: PLW2901 - a better one
            figures[row] = norm, int(count)


def _whatever_it_raises() -> AbstractContextManager[object]:
    """Go on without a figure: what can't be measured must not end the user's backward.

    Tensor subclasses raise what they like; tensors on the meta device have no numbers at all.
    """
    return contextlib.suppress(Exception)


def _states(gradients: _Gradients) -> list[_State]:
    return [(None, None) if gradient is None else _state(gradient) for gradient in gradients]


def _state(gradient: torch.Tensor) -> _State:
    version = None if gradient.is_inference() else gradient._version  # noqa: SLF001 - documented by torch
    return version, _stream(gradient) if gradient.is_cuda else None


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


def _blocks(
    rows: Sequence[int], tensors: Sequence[torch.Tensor]
) -> Iterable[tuple[Sequence[int], Sequence[torch.Tensor]]]:
    """Split gradients of one size into those that are measured together."""
    elements = tensors[0].numel()
    many = 1 if elements > _STACKED else max(1, _BLOCK // (elements or 1))
    if len(rows) <= many:
        return ((rows, tensors),)
    return (
        (rows[start : start + many], tensors[start : start + many])
        for start in range(0, len(rows), many)
    )


def _measured(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the norms of some tensors of one size, and how many elements are not zero in each."""
    elements = tensors[0].numel()
    if len(tensors) > 1:
        block = flattened(tensors).view(len(tensors), elements)
    else:
        block = tensors[0].reshape(1, elements)
    on_cpu = block.device.type == "cpu"
    wide = _WIDER.get(block.dtype)
    if not on_cpu and block.device.type in _HAVE_DOUBLE:
        wide = _WIDE.get(block.dtype)
    norms = torch.linalg.vector_norm(block, dim=1, dtype=wide)
    count_in = _COUNTED_IN.get(block.dtype, torch.float32)
    if block.is_complex() or (elements > _EXACT_IN_FLOAT and count_in is torch.float32):
        return norms, torch.count_nonzero(block, dim=1)
    if len(tensors) > 1 and block.dtype is count_in:
        return norms, block.ne_(0).sum(dim=1)
    marks = torch.empty(block.shape, dtype=count_in, device=block.device)
    return norms, torch.ne(block, 0, out=marks).sum(dim=1)


def _rescued(norm: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return the norm: NaN or infinite only where ``values`` are, zero only where all are.

    The sum of squares of finite numbers overflows and underflows sooner than they do, but not in
    double precision, and there only where they are scaled first. That is slow on CPUs, where a
    look at the first result costs nothing instead.
    """
    if 0.0 < norm.item() < math.inf:
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
