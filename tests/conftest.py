from __future__ import annotations

import sys

import pytest

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def excepthook():
    """Put back what torch.distributed replaces for good when a process group begins."""
    before = sys.excepthook
    yield
    sys.excepthook = before
