"""Which process of how many this is, and how it reaches the others."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from gradcheck_suite._torch_compat import (
    another_connection,
    connect_to,
    default_store,
    file_of,
    is_shared,
)
from gradcheck_suite.auditing.distributed.channel import Channel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Job", "rank_in_environment"]

_AVAILABLE = dist.is_available()


def rank_in_environment(variables: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """Return rank and world size as launchers hand them over, or None for a process of its own.

    >>> rank_in_environment({"RANK": "1", "WORLD_SIZE": "4"})
    (1, 4)
    >>> rank_in_environment({"RANK": "0", "WORLD_SIZE": "1"}) is None
    True
    """
    try:
        rank, size = int(variables["RANK"]), int(variables["WORLD_SIZE"])
    except (KeyError, ValueError):
        return None
    return (rank, size) if size > 1 and 0 <= rank < size else None


class Job:
    """The processes that train together, seen from one of them.

    What ``torch.distributed`` was told counts; before that, what the launcher has put into the
    environment. Nothing here ever asks for a collective.

    Attributes:
        rank: this process, from 0.
        size: how many there are; 1 for a process of its own.
        initialized: whether the program was seen to have a process group.
        told: under which keys this rank has told of steps, by optimizer and step.
    """

    def __init__(self) -> None:
        self.rank, self.size = rank_in_environment() or (0, 1)
        self._remarks: list[str] = []
        self.initialized = False
        self.told: dict[int, dict[int, str]] = {}
        self._prefix = "gradcheck_suite/"
        self._channel: Channel | None = None
        self._store: Any = None

    @property
    def is_shared(self) -> bool:
        """Return whether there are other ranks."""
        return self.size > 1

    def name(self, session: str) -> None:
        """Say which audit of the process this is: the ranks' audits of one name belong together."""
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._prefix = f"gradcheck_suite/{attempt}/{session}/"

    def remarks(self) -> list[str]:
        """Return what to say of it where the environment names another rank or size."""
        return list(self._remarks)

    def look(self) -> bool:
        """Take up a process group, if there is one by now; return whether there are other ranks."""
        if not self.initialized and _AVAILABLE and dist.is_initialized():
            self.initialized = True
            told = self.rank, self.size
            self.rank, self.size = dist.get_rank(), dist.get_world_size()
            if rank_in_environment() is not None and told != (self.rank, self.size):
                self._remarks.append(
                    f"the environment names rank {told[0]} of {told[1]}, the process group rank "
                    f"{self.rank} of {self.size}, which is what is told here"
                )
            if self._channel is None and self.is_shared:
                self._connect()
        return self.is_shared

    def channel(self) -> Channel | None:
        """Return what reaches the other ranks, or None where nothing does."""
        self.look()
        if self._channel is None and self.is_shared:
            self._connect()
        return self._channel

    def why_alone(self) -> str | None:
        """Return why the other ranks can't be reached, or None where they can."""
        channel = self.channel()
        if channel is not None:
            return channel.trouble
        if not self.initialized:
            return "no process group with a store was made, and the launcher serves none"
        return (
            f"the process group ({dist.get_backend() if dist.is_initialized() else 'now gone'}) "
            f"has a {type(self._store).__name__}, which no other process reaches"
        )

    def file(self) -> str | None:
        """Return the file that the ranks meet in, or None where they meet by an address."""
        return None if self._store is None else file_of(self._store)

    def _connect(self) -> None:
        opening = self._connection()
        if opening is not None:
            self._channel = Channel(opening, self._prefix)

    def _connection(self) -> Callable[[], Any] | None:
        """Return what opens a connection: to the launcher's store, which outlives each rank.

        Else to that of the program's process group, which the first rank serves as long as it runs.
        """
        variables = os.environ
        if variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and "MASTER_PORT" in variables:
            host, port = variables.get("MASTER_ADDR", "localhost"), int(variables["MASTER_PORT"])
            return partial(connect_to, host, port)
        # Kept: a store that this process serves is gone with the last reference to it.
        self._store = default_store()
        if not is_shared(self._store):
            return None
        return partial(another_connection, self._store)
