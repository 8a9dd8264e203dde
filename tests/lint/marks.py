"""Programs whose expected findings stand on their lines: ``# ! GCS301 warning``."""

from __future__ import annotations

import re
import textwrap

from gradcheck_lint.engine import lint_source
from gradcheck_suite.severity import Severity

_MARK = re.compile(r"(GCS\d+) (error|warning|note)")


def check_marked(source: str) -> None:
    """Assert that exactly what is marked is found: code, line and severity."""
    text = textwrap.dedent(source).lstrip("\n")
    compile(text, "sample.py", "exec")
    found = lint_source(text.encode(), "sample.py")
    expected = [
        (code, line, severity)
        for line, written in enumerate(text.splitlines(), 1)
        for code, severity in _MARK.findall(written.partition("# !")[2])
    ]
    assert sorted((f.code, f.location.line, f.severity.value) for f in found) == sorted(expected)


def check_quiet(source: str) -> None:
    """Assert that nothing worse than a note is found in a correct program."""
    text = textwrap.dedent(source).lstrip("\n")
    compile(text, "sample.py", "exec")
    found = lint_source(text.encode(), "sample.py")
    assert [finding for finding in found if finding.severity > Severity.NOTE] == []
