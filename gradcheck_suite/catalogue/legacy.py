"""Relics of old torch (GCS9xx)."""

from __future__ import annotations

from gradcheck_suite.catalogue._entry import Entry
from gradcheck_suite.severity import Severity

LEGACY_VARIABLE = Entry(
    code="GCS901",
    slug="legacy-variable",
    severity=Severity.NOTE,
    in_source=True,
    at_run_time=False,
    title="",  # autograd.Variable (fix)
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

LEGACY_VOLATILE = Entry(
    code="GCS902",
    slug="legacy-volatile",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="",  # volatile= is ignored: graphs are built (fix)
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

LEGACY_SCALAR_INDEX = Entry(
    code="GCS903",
    slug="legacy-scalar-index",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=False,
    title="",  # loss.data[0] (fix)
    what="",
    why="",
    example="",
    instead="",
    detection="",
)

ENTRIES = (
    LEGACY_VARIABLE,
    LEGACY_VOLATILE,
    LEGACY_SCALAR_INDEX,
)
