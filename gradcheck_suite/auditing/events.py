"""What a training loop did, in order: the stream that every detector reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from torch.optim import Optimizer

from gradcheck_suite.auditing.call_sites import CallSite
from gradcheck_suite.auditing.packed import Holder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradcheck_suite.findings import Finding

__all__ = [
    "BackwardFinished",
    "BackwardStarted",
    "Detector",
    "Event",
    "SavedTensorCorrupted",
    "SavedTensorModified",
    "SessionEnded",
    "StepFinished",
    "StepStarted",
]


@dataclass(frozen=True, slots=True)
class BackwardStarted:
    """An outermost backward or ``autograd.grad`` is about to run.

    ``index`` counts these from 0. ``chain`` is how many earlier backwards, each through the graph
    of the one before, this graph goes back through; 0 for a graph of its own.
    """

    index: int
    site: CallSite | None
    chain: int


@dataclass(frozen=True, slots=True)
class BackwardFinished:
    """That backward has ended; ``creates_graph`` says that it recorded a graph of its own."""

    index: int
    site: CallSite | None
    creates_graph: bool
    failed: bool


@dataclass(frozen=True, slots=True)
class StepStarted:
    """An optimizer's ``step()`` has begun. ``index`` counts finished steps of any optimizer."""

    index: int
    optimizer: Optimizer
    site: CallSite | None


@dataclass(frozen=True, slots=True)
class StepFinished:
    """An optimizer's ``step()`` has ended, without an exception."""

    index: int
    optimizer: Optimizer
    site: CallSite | None


@dataclass(frozen=True, slots=True)
class SavedTensorModified:
    """Backward asked for a saved tensor whose version counter has moved; torch's error follows."""

    holder: Holder
    step: int
    node: str | None
    version: int
    site: CallSite | None


@dataclass(frozen=True, slots=True)
class SavedTensorCorrupted:
    """Backward used a saved tensor whose contents differ while its version counter does not.

    ``change`` says whether the contents of its memory changed, or whether the tensor was given
    other memory (``tensor.data = ...``).
    """

    holder: Holder
    step: int
    node: str | None
    change: Literal["content", "memory"]
    site: CallSite | None


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The audit is over; ``failed`` says that an exception ended it."""

    failed: bool


Event: TypeAlias = (
    BackwardStarted
    | BackwardFinished
    | StepStarted
    | StepFinished
    | SavedTensorModified
    | SavedTensorCorrupted
    | SessionEnded
)


class Detector(Protocol):
    """Reads the stream and says what was wrong."""

    def handle(self, event: Event) -> None:
        """Take note of one event."""
        ...

    def findings(self) -> Sequence[Finding]:
        """Return what is certain by now."""
        ...
