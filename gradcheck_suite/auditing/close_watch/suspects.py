"""Which saved tensors are worth a close watch: those that the same lines save again."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import torch

    from gradcheck_suite.auditing.call_sites import CallSite
    from gradcheck_suite.auditing.packed import Holder

__all__ = ["Suspects"]

_Kind: TypeAlias = "tuple[torch.Size, torch.dtype]"
_ALL_OF_THE_LINE = 2
_EVERYTHING = 3


class Suspects:
    """The tensors that somebody unseen has overwritten, by the line that saved them.

    A line of a loop saves many tensors, and not the same ones on every turn: the first watch is
    over those of the same shape and type, the second over all that the line saves, the third and
    last over everything.
    """

    def __init__(self) -> None:
        self._open: dict[CallSite | None, set[_Kind]] = {}
        self._watches: dict[CallSite | None, int] = {}
        self._settled: set[tuple[CallSite | None, _Kind]] = set()

    def __bool__(self) -> bool:
        return bool(self._open)

    def add(self, holder: Holder) -> None:
        """Suspect what is saved like this tensor, unless it was watched often enough."""
        site, kind = holder.site, _kind_of(holder)
        if self._watches.get(site, 0) < _EVERYTHING and (site, kind) not in self._settled:
            self._open.setdefault(site, set()).add(kind)

    def settle(self, holder: Holder) -> None:
        """Let go of what is saved like this tensor: its writer is known."""
        site, kind = holder.site, _kind_of(holder)
        self._settled.add((site, kind))
        kinds = self._open.get(site)
        if kinds is None:
            return
        kinds.discard(kind)
        # Shapes that change from turn to turn are one suspect.
        if not kinds or self._watches.get(site, 0) >= _ALL_OF_THE_LINE:
            del self._open[site]

    def begin_watch(self) -> None:
        """Count a watch over all that are suspected, which begins or has missed one."""
        for site in self._open:
            self._watches[site] = self._watches.get(site, 0) + 1

    def end_watch(self) -> None:
        """Let go of those that are still not settled; they are suspected anew when they recur."""
        self._open.clear()

    def cover(self, holder: Holder) -> bool:
        """Return whether a tensor that was just saved is to be watched."""
        kinds = self._open.get(holder.site)
        if kinds is not None and (
            self._watches.get(holder.site, 0) >= _ALL_OF_THE_LINE or _kind_of(holder) in kinds
        ):
            return True
        return any(self._watches.get(site, 0) >= _EVERYTHING for site in self._open)


def _kind_of(holder: Holder) -> _Kind:
    return holder.tensor.shape, holder.tensor.dtype
