"""Reach the half of gradcheck-suite that needs torch, when a test first asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import gradcheck_suite
from gradcheck_suite.errors import MissingDependencyError

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["runtime"]


def runtime() -> ModuleType:
    """Return ``gradcheck_suite`` with torch loaded; fail the running test if there is no torch."""
    __tracebackhide__ = True
    try:
        gradcheck_suite.audit  # noqa: B018 - loads it
    except MissingDependencyError as error:
        pytest.fail(f"gradcheck-suite: {error}", pytrace=False)
    return gradcheck_suite
