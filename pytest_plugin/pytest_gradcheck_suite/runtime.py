"""Reach the half of gradcheck-suite that needs torch, when a test first asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import gradcheck_suite
from gradcheck_suite.errors import MissingDependencyError
from pytest_gradcheck_suite.settings import settings_of

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["runtime", "seed_for"]


def runtime(needed_by: str = "gradcheck-suite") -> ModuleType:
    """Return ``gradcheck_suite`` with torch loaded; fail the running test if there is no torch.

    Args:
        needed_by: what of ours the test uses, for the message.
    """
    __tracebackhide__ = True
    try:
        gradcheck_suite.audit  # noqa: B018 - loads it
    except MissingDependencyError as error:
        complaint = (
            f"{needed_by} needs PyTorch, which is not installed here; install it with: "
            "pip install 'gradcheck-suite[torch]'"
            if isinstance(error.__cause__, ModuleNotFoundError) and error.__cause__.name == "torch"
            else f"{needed_by} can't be used: {error}"
        )
    else:
        return gradcheck_suite
    # Out here, so that pytest shows no chain.
    pytest.fail(complaint, pytrace=False)


def seed_for(item: pytest.Item) -> int:
    """Return the seed of a test: the same for the same ``--gradcheck-suite-seed`` and test id."""
    import hashlib  # noqa: PLC0415 - for tests that draw

    text = f"{settings_of(item.config).seed}:{item.nodeid}".encode("utf-8", "backslashreplace")
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big")
