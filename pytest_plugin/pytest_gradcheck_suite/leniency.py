"""What fails no test that has not asked to be audited, though an audit of every test finds it.

A mistake that torch itself refuses with an exception is no mistake of a test that has expected the
exception. Losses in a list of the test, kept to compare them in the end, hold their graphs for as
long as the test runs: in a training loop that is a leak, in a few steps of a test it harms nobody.
Both are told of at the end of the run.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

    from gradcheck_suite.findings import Finding

__all__ = ["fails_only_who_asks"]

_GRAPH_KEPT = "GCS201"


def fails_only_who_asks(finding: Finding, item: pytest.Item) -> bool:
    """Return whether a finding fails this test only if the test itself asks for an audit."""
    return finding.evidence.get("refused") is True or _is_kept_by_the_test(finding, item)


def _is_kept_by_the_test(finding: Finding, item: pytest.Item) -> bool:
    """Return whether graphs are kept in a local variable, by a statement in the test's file."""
    if finding.code != _GRAPH_KEPT or finding.evidence.get("owner_kind") != "local":
        return False
    if "." in str(finding.evidence.get("path")):  # in an object, whose class may be of a library
        return False
    place = finding.location
    return place is not None and os.path.realpath(place.path) == os.path.realpath(item.path)
