"""Which gradients are multiplied by a loss scale now.

``GradScaler.scale`` marks the graph node of its result; a backward whose graph holds such a mark
fills scaled gradients, one whose whole graph does not fills plain ones.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch

from gradcheck_suite._torch_compat import node_metadata
from gradcheck_suite.auditing.events import (
    Attention,
    BackwardFinished,
    BackwardStarted,
    GradientsUnscaled,
    LossScaled,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch.amp import GradScaler
    from torch.autograd.graph import Node

    from gradcheck_suite.auditing.detectors.accumulation_windows import (
        AccumulationWindow,
        AccumulationWindows,
    )
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.findings import Finding

__all__ = ["Kind", "ScaledLosses"]

Kind: TypeAlias = "Literal['scaled', 'unscaled', 'plain', 'unknown']"
"""What one backward has filled: multiplied, multiplied and divided again, or never multiplied."""

_MARK = "gradcheck_suite.scaled_by"
_MOST_NODES = 20_000
"""Nodes that are looked at for a scaled loss below a root. A bound on cost, see ``MOST_NODES`` of
``reachable_parameters``; beyond, it is unknown whether it was scaled."""

_MOST_WALKS = 32
"""Such walks in all. A bound on cost; after those, a loss that is not itself the scaled one is of
unknown kind."""


class ScaledLosses:
    """Follows loss scaling; the detectors that read it come after it."""

    def __init__(self, windows: AccumulationWindows) -> None:
        self._windows = windows
        self._kinds: weakref.WeakKeyDictionary[AccumulationWindow, dict[int, Kind]] = (
            weakref.WeakKeyDictionary()
        )
        self._scaler: weakref.ref[GradScaler] | None = None
        self._kind: Kind | None = None
        self._walks = 0

    def subscriptions(self) -> Subscriptions:
        """Follow a loss from scaling to backward to unscaling."""
        return {
            LossScaled: self._scale,
            BackwardStarted: self._before_backward,
            BackwardFinished: self._after_backward,
            GradientsUnscaled: self._unscale,
        }

    def findings(self) -> Sequence[Finding]:
        """Return nothing: others find."""
        return ()

    def kinds(self, window: AccumulationWindow) -> list[Kind]:
        """Return what each backward of this window has filled; empty without a scaler."""
        known = self._kinds.get(window)
        return [] if known is None else [known.get(fill.number, "unknown") for fill in window.fills]

    def scale_of(self, window: AccumulationWindow) -> float | None:
        """Return the scale by which this window's gradients are multiplied, or None."""
        scaler = None if self._scaler is None else self._scaler()
        if scaler is None or "scaled" not in self.kinds(window):
            return None
        return float(scaler.get_scale())

    def _scale(self, event: LossScaled) -> Attention | None:
        if not event.scaler.is_enabled():
            return None
        reference = weakref.ref(event.scaler)
        for result in _tensors(event.result):
            if result.grad_fn is not None:
                node_metadata(result.grad_fn)[_MARK] = reference
                self._scaler = reference
        return Attention.AWAKE

    def _before_backward(self, event: BackwardStarted) -> Attention | None:
        if self._scaler is None:
            return Attention.ASLEEP
        nodes = [root.grad_fn for root in event.roots if root.grad_fn is not None]
        if any(_MARK in node_metadata(node) for node in nodes):
            self._kind = "scaled"
        elif self._walks < _MOST_WALKS:
            self._walks += 1
            self._kind = _kind_of(nodes)
        else:
            self._kind = "unknown"
        return None

    def _after_backward(self, event: BackwardFinished) -> Attention | None:
        if self._kind is None:
            return Attention.ASLEEP if self._scaler is None else None
        for window in self._windows.all():
            if window.fills and window.fills[-1].number == event.number:
                known = self._kinds.get(window)
                if known is None or len(window.fills) == 1:
                    known = self._kinds[window] = {}
                known[event.number] = self._kind
        self._kind = None
        return None

    def _unscale(self, event: GradientsUnscaled) -> None:
        if event.failed or not event.scaler.is_enabled():
            return
        window = self._windows.of(event.optimizer)
        known = self._kinds.get(window, {})
        for number, kind in known.items():
            if kind == "scaled":
                known[number] = "unscaled"


def _tensors(result: Any) -> Iterator[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, (list, tuple)):
        for item in result:
            yield from _tensors(item)


def _kind_of(nodes: list[Node]) -> Kind:
    seen = set(nodes)
    waiting = list(nodes)
    while waiting:
        for child, _ in waiting.pop().next_functions:
            if child is None or child in seen:
                continue
            if _MARK in node_metadata(child):
                return "scaled"
            if len(seen) >= _MOST_NODES:
                return "unknown"
            seen.add(child)
            waiting.append(child)
    return "plain"
