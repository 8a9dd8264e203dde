"""Who watches the program, and steps aside where we run it for purposes of our own.

A gradient check evaluates a function some hundred times at points around the given one. That is no
training: an audit around it would spend more time than the check, and has nothing to learn of it.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

__all__ = ["register_watcher", "unwatched"]

_WATCHERS: list[Callable[[], AbstractContextManager[None]]] = []


def register_watcher(aside: Callable[[], AbstractContextManager[None]]) -> None:
    """Have those who watch step aside in each block that nobody is to watch.

    Args:
        aside: makes a context manager inside of which they do.
    """
    _WATCHERS.append(aside)


@contextmanager
def unwatched() -> Iterator[None]:
    """Run a block without being watched."""
    with ExitStack() as stack:
        for aside in _WATCHERS:
            stack.enter_context(aside())
        yield
