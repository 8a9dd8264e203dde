"""The errors that gradcheck-suite raises on purpose."""

from __future__ import annotations


class GradcheckSuiteError(Exception):
    """The base of every error that gradcheck-suite raises on purpose."""


class UsageError(GradcheckSuiteError):
    """Something was asked for in a way that can't be answered.

    The message says what, where, expected against seen, and the next step. Commands print it on
    standard error without a traceback and exit with status 2.
    """


class MissingDependencyError(UsageError, ImportError):
    """A part was used whose optional dependency is not installed; the message names the extra."""
