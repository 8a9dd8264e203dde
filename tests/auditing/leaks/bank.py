"""Ways to keep the graph of every step, each with what the report has to call the holder.

A way is a function of a session and of ``take``: what it puts away is ``take(tensor)``, which is
the tensor itself for the leak and ``tensor.detach()`` for its repaired twin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["LEAKS", "LOOK_ALIKES", "Leak", "leak", "look_alike", "steps"]

STEPS = 3


@dataclass(frozen=True)
class Leak:
    """A way to leak.

    ``owner`` is what the message has to contain; ``codes`` are the right codes; ``repaired`` is
    False where detaching is not the repair, and the twin is another entry's.
    """

    name: str
    run: Callable[[Any, Callable[[Tensor], Tensor]], object]
    owner: str
    codes: frozenset[str]
    repaired: bool


LEAKS: dict[str, Leak] = {}
LOOK_ALIKES: dict[str, Callable[[Any], object]] = {}


def leak(owner: str, *codes: str, repaired: bool = True) -> Callable[[Any], Any]:
    """Add a way to leak to the bank."""

    def add(run: Any) -> Any:
        chosen = frozenset(codes or ("GCS201",))
        LEAKS[run.__name__] = Leak(run.__name__, run, owner, chosen, repaired)
        return run

    return add


def look_alike(run: Any) -> Any:
    """Add a correct loop to the bank."""
    LOOK_ALIKES[run.__name__] = run
    return run


def steps(count: int = STEPS, net: nn.Module | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """Train for some steps and yield output and loss of each."""
    net = net or nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for _ in range(count):
        optimizer.zero_grad()
        out = net(torch.randn(3, 4))
        loss = out.pow(2).mean()
        loss.backward()
        optimizer.step()
        yield out, loss
        del out, loss
