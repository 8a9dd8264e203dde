"""Watch a backward: the size of every gradient on its way, read once at the end."""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, cast

import torch

from gradcheck_suite._torch_compat import (
    dispatch_mode_is_active,
    engine_entry_points,
    inside_backward,
    node_sequence_number,
    without_dispatch_modes,
    without_torch_function,
)
from gradcheck_suite.graph._deep import release_without_recursion
from gradcheck_suite.graph._roots import FoundRoots, find_roots
from gradcheck_suite.graph._walk import Walked, walk
from gradcheck_suite.graph.model import EdgeGradient

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

__all__ = ["BackwardWatch", "WatchedBackward"]

_MISSING = EdgeGradient(norm=None, zeros=0, elements=0)
_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
_WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
_HAVE_DOUBLE = frozenset({"cpu", "cuda"})
_COUNTED = 16_384
"""Zeros are counted in gradients of up to this many elements."""
_KEEP_GRAPH = 1
_INPUTS = 3


@dataclass(slots=True)
class WatchedBackward:
    """One backward: where it started, and what flowed along its edges.

    ``gradients`` go by the sequence number of an edge's source and the index of its input;
    ``incoming`` are those that backward started with, by sequence number and output index.
    """

    found: FoundRoots
    walked: Walked | None
    keeps_graph: bool
    is_partial: bool
    gradients: dict[tuple[int, int], EdgeGradient] = field(default_factory=dict)
    incoming: dict[tuple[int, int], EdgeGradient] = field(default_factory=dict)
    failed: bool = False


class BackwardWatch:
    """Stands where every backward and autograd.grad of one thread passes through."""

    def __init__(self) -> None:
        self.backwards: list[WatchedBackward] = []
        self._thread = 0
        self._active = False
        self._replaced: list[tuple[ModuleType, str, Any, Any]] = []

    def start(self) -> None:
        """Stand in the way."""
        self._thread = threading.get_ident()
        self._active = True
        for module, name in engine_entry_points():
            original = getattr(module, name)
            ours = self._watching(original)
            setattr(module, name, ours)
            self._replaced.append((module, name, original, ours))

    def stop(self) -> None:
        """Go away; where somebody else has stepped in since, let everything through."""
        self._active = False
        for module, name, original, ours in reversed(self._replaced):
            if getattr(module, name) is ours:
                setattr(module, name, original)
        self._replaced.clear()

    def _watching(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def run(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._active or threading.get_ident() != self._thread or inside_backward():
                return original(outputs, *args, **kwargs)
            watched = self._prepare(outputs, args)
            if watched is None:
                return original(outputs, *args, **kwargs)
            measured = _Measured()
            handles = _hook(watched, measured)
            try:
                return original(outputs, *args, **kwargs)
            except BaseException:
                watched.failed = True
                raise
            finally:
                for handle in handles:
                    handle.remove()
                measured.read_into(watched)
                self.backwards.append(watched)

        return run

    def _prepare(self, outputs: Any, args: Sequence[Any]) -> WatchedBackward | None:
        """Walk the graph; None where there is none, which torch itself will say."""
        roots = outputs if isinstance(outputs, torch.Tensor) else tuple(outputs)
        if isinstance(roots, tuple) and len(roots) == 1:
            roots = roots[0]
        try:
            found = find_roots(roots)
        except Exception:  # noqa: BLE001 - whatever is wrong with it, torch's words come first
            return None
        walked = walk(start.node for start in found.starts)
        release_without_recursion(walked)
        return WatchedBackward(
            found=found,
            walked=walked,
            keeps_graph=len(args) > _KEEP_GRAPH and bool(args[_KEEP_GRAPH]),
            is_partial=len(args) > _INPUTS and bool(args[_INPUTS]),
        )


def _hook(watched: WatchedBackward, measured: _Measured) -> list[Any]:
    assert watched.walked is not None
    starts = {start.node for start in watched.found.starts}
    handles: list[Any] = []
    for node, links in zip(watched.walked.order, watched.walked.links, strict=True):
        number = node_sequence_number(node)
        if number is None:
            continue
        if any(target is not None for target, _ in links):
            present = tuple(target is not None for target, _ in links)
            handles.append(node.register_hook(partial(measured.outgoing, number, present)))
        if node in starts:
            handles.append(node.register_prehook(partial(measured.incoming, number)))
    return handles


class _Measured:
    """Figures of gradients, left on their device until backward is over."""

    def __init__(self) -> None:
        self._keys: list[tuple[str, int, int, int, int | None]] = []
        self._norms: list[torch.Tensor] = []
        self._nonzeros: list[torch.Tensor] = []
        self._missing: list[tuple[str, int, int]] = []
        self._wants = {True: self._measure_plain, False: self._measure_apart}

    def outgoing(
        self, number: int, present: tuple[bool, ...], gradients: Sequence[Any], _given: Any
    ) -> None:
        self._note("out", number, present, gradients)

    def incoming(self, number: int, gradients: Sequence[Any]) -> None:
        self._note("in", number, None, gradients)

    def _note(
        self, way: str, number: int, present: tuple[bool, ...] | None, gradients: Sequence[Any]
    ) -> None:
        plain = not torch.is_grad_enabled() and not dispatch_mode_is_active()
        measure = self._wants[plain]
        for index, gradient in enumerate(gradients):
            if gradient is None:
                if present is not None and index < len(present) and present[index]:
                    self._missing.append((way, number, index))
            else:
                measure((way, number, index), gradient)

    def _measure_apart(self, key: tuple[str, int, int], gradient: torch.Tensor) -> None:
        """Measure out of sight of the user's modes, and record no graph of it."""
        with torch.no_grad(), without_dispatch_modes(), without_torch_function():
            self._measure_plain(key, gradient)

    def _measure_plain(self, key: tuple[str, int, int], gradient: torch.Tensor) -> None:
        try:
            values = gradient
            if gradient.layout != torch.strided:
                values = gradient.coalesce().values()
            norm = _norm(values)
            nonzero = torch.count_nonzero(values) if values.numel() <= _COUNTED else None
        except (RuntimeError, NotImplementedError, TypeError):
            return  # a layout or subclass whose numbers can't be read: nothing is said of it
        counted = None
        if nonzero is not None:
            counted = len(self._nonzeros)
            self._nonzeros.append(nonzero)
        self._keys.append((*key, gradient.numel(), counted))
        self._norms.append(norm)

    def read_into(self, watched: WatchedBackward) -> None:
        """Fetch all figures at once from each device."""
        norms = _fetched(self._norms)
        nonzeros = _fetched(self._nonzeros)
        for (way, number, index, elements, counted), norm in zip(self._keys, norms, strict=True):
            zeros: int | None = elements if norm == 0 else None
            if counted is not None:
                zeros = max(0, elements - int(nonzeros[counted]))
            where = watched.gradients if way == "out" else watched.incoming
            where[number, index] = EdgeGradient(
                norm=norm if math.isfinite(norm) else None,
                zeros=zeros,
                elements=elements,
                non_finite="nan" if math.isnan(norm) else "inf" if math.isinf(norm) else None,
            )
        for way, number, index in self._missing:
            where = watched.gradients if way == "out" else watched.incoming
            where[number, index] = _MISSING


def _norm(values: torch.Tensor) -> torch.Tensor:
    """Return the norm: NaN or infinite only where ``values`` are, zero only where all are.

    The sum of squares of finite numbers overflows and underflows sooner than they do, but not in
    double precision. That is slow on CPUs, where a look at the result costs nothing instead.
    """
    wide = _WIDE.get(values.dtype)
    if values.device.type == "cpu":
        norm: torch.Tensor = torch.linalg.vector_norm(values, dtype=_WIDER.get(values.dtype))
        if wide is None or 0.0 < norm.item() < float("inf"):
            return norm
    elif values.device.type not in _HAVE_DOUBLE:
        wide = None
    return cast("torch.Tensor", torch.linalg.vector_norm(values, dtype=wide))


def _fetched(figures: list[torch.Tensor]) -> list[float]:
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = defaultdict(list)
    for place, figure in enumerate(figures):
        groups[figure.device, figure.dtype].append(place)
    fetched = [0.0] * len(figures)
    with torch.no_grad(), without_dispatch_modes(), without_torch_function():
        for places in groups.values():
            values = torch.stack([figures[place] for place in places]).tolist()
            for place, value in zip(places, values, strict=True):
                fetched[place] = value
    return fetched
