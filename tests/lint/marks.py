"""Programs written in a test, whose expected findings stand on their lines as in fixtures."""

from __future__ import annotations

import textwrap

from gradcheck_lint.engine import lint_source
from gradcheck_suite.severity import Severity
from tests.lint.fixtures_of_rules import Expected, fixture_of


def check_marked(text: str) -> None:
    """Assert that exactly what the comments say is found: code, line and severity."""
    fixture = fixture_of("program", textwrap.dedent(text).lstrip("\n"))
    compile(fixture.source, "program.py", "exec")
    found = lint_source(fixture.source.encode(), "program.py")
    told = {Expected(f.code, f.location.line, f.severity): f.message for f in found}
    expected = set(fixture.expected)
    assert not expected - told.keys()
    assert not {known: told[known] for known in told.keys() - expected}


def check_quiet(text: str) -> None:
    """Assert that nothing worse than a note is found in a correct program."""
    source = textwrap.dedent(text).lstrip("\n")
    compile(source, "program.py", "exec")
    found = lint_source(source.encode(), "program.py")
    assert [finding for finding in found if finding.severity > Severity.NOTE] == []
