from __future__ import annotations

import signal
import sys

import pytest

pytest_plugins = ["pytester"]


def pytest_configure():
    """Let commands hear of Ctrl-C: a shell has what it starts in the background ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def excepthook():
    """Put back what torch.distributed replaces for good when a process group begins."""
    before = sys.excepthook
    yield
    sys.excepthook = before
