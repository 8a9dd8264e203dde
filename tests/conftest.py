from __future__ import annotations

import signal
import sys
from collections import Counter

import pytest

pytest_plugins = ["pytester"]


def pytest_configure():
    """Let commands hear of Ctrl-C: a shell has what it starts in the background ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark what a bank has beyond its sample as slow: ``sampled(every=4)`` leaves one of four."""
    met = Counter()
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark is not None:
            test = item.nodeid.partition("[")[0]
            if met[test] % mark.kwargs["every"]:
                item.add_marker("slow")
            met[test] += 1


@pytest.fixture(autouse=True)
def excepthook():
    """Put back what torch.distributed replaces for good when a process group begins."""
    before = sys.excepthook
    yield
    sys.excepthook = before
