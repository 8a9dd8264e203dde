"""Know the line of the user's code that made a node, from what torch's anomaly mode notes."""

from __future__ import annotations

import re
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from gradcheck_suite._runtime.frames import Owner, owner_of_file
from gradcheck_suite._torch_compat import node_metadata
from gradcheck_suite.findings import Location

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.autograd.graph import Node

__all__ = ["source_lines_noted", "source_of"]

_TRACEBACK = "traceback_"
_FRAME = re.compile(r'\s*File "(?P<path>.*)", line (?P<line>\d+), in (?P<function>.*)')


@contextmanager
def source_lines_noted() -> Iterator[None]:
    """Let torch note a traceback in every node that is made meanwhile, and check nothing."""
    was_on = torch.is_anomaly_enabled()
    if was_on:
        yield
        return
    checked = torch.is_anomaly_check_nan_enabled()
    torch.autograd.set_detect_anomaly(True, check_nan=False)
    try:
        yield
    finally:
        torch.autograd.set_detect_anomaly(False, check_nan=checked)


def source_of(node: Node) -> Location | None:
    """Return the innermost line of the user's on the way to this node; None if none was noted."""
    traceback = node_metadata(node).get(_TRACEBACK)
    if not isinstance(traceback, list):
        return None
    for entry in reversed(traceback):
        location = _location(entry)
        if location is not None and owner_of_file(location.path) is Owner.USER:
            return location
    return None


@lru_cache(maxsize=10_000)
def _location(entry: str) -> Location | None:
    found = _FRAME.match(entry.partition("\n")[0])
    if found is None:
        return None
    return Location(
        path=found["path"], line=int(found["line"]), function=found["function"].strip() or None
    )
