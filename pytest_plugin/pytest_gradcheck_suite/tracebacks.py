"""Leave our own frames out of the tracebacks of what a user's code raises inside of a check."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_suite._runtime.frames import is_ours, without_ours

if TYPE_CHECKING:
    from types import TracebackType

    import pytest

__all__ = ["without_us"]


def without_us(error: BaseException, item: pytest.Item) -> TracebackType | None:
    """Return the traceback of what a check has raised, without the frames of ours.

    They stay where ``--full-trace`` asks for all of them, and where what raised is ours.
    """
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if item.config.getoption("fulltrace", False) or last is None or is_ours(last):
        return error.__traceback__
    return without_ours(error.__traceback__)
