"""Leave our own frames out of the tracebacks of what a user's code raises inside of a check."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from gradcheck_suite._frames import Owner, owner_of_file

if TYPE_CHECKING:
    import pytest

__all__ = ["without_us"]


def without_us(error: BaseException, item: pytest.Item) -> TracebackType | None:
    """Return the traceback of what a check has raised, without the frames of ours.

    They stay where ``--full-trace`` asks for all of them, and where what raised is ours.
    """
    whole = error.__traceback__
    entries = []
    entry = whole
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    if item.config.getoption("fulltrace", False) or not entries or _is_ours(entries[-1]):
        return whole
    kept: TracebackType | None = None
    for entry in reversed(entries):
        if not _is_ours(entry):
            kept = TracebackType(kept, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return kept


def _is_ours(entry: TracebackType) -> bool:
    return owner_of_file(entry.tb_frame.f_code.co_filename) is Owner.US
