"""Audit a test, or a part of it, and let the findings decide."""

from __future__ import annotations

import ast
import inspect
import os
import textwrap
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import pytest

from gradcheck_suite.errors import UsageError
from pytest_gradcheck_suite.isolation import note_foreign_audit, note_foreign_hooks
from pytest_gradcheck_suite.markers import allowed_codes, audit_marker
from pytest_gradcheck_suite.markers import fail_on as fail_on_severity
from pytest_gradcheck_suite.options import settings_of, severity_from
from pytest_gradcheck_suite.results import fail_on_findings, has_ended_early, keep_beside_failure
from pytest_gradcheck_suite.runtime import runtime

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from gradcheck_suite.findings import Finding
    from gradcheck_suite.severity import Severity

__all__ = ["AuditedBlock", "Auditor", "audit_of", "auditor_of", "forget_audit"]

_AUDITOR = pytest.StashKey["Auditor"]()


class AuditedBlock:
    """Audit the body of a ``with`` statement inside a test.

    Leaving it fails the test if there are findings that are severe enough, unless they are excused
    where it is ``lenient``. An exception from the body passes unchanged; the findings then become
    a section of the test's report.
    """

    def __init__(
        self,
        item: pytest.Item,
        *,
        fail_on: Severity,
        lenient: bool = False,
        with_traceback: bool = True,
        **arguments: Any,
    ) -> None:
        self._item = item
        self._fail_on = fail_on
        self._lenient = lenient
        self._with_traceback = with_traceback
        self._audit = runtime().audit(**arguments)
        self.session: Any = None
        self.dropped = False

    def __enter__(self) -> Any:
        __tracebackhide__ = True
        note_foreign_hooks(self._item)
        self.session = self._audit.__enter__()
        for what, model in auditor_of(self._item).frozen_parts:
            self.session.frozen(*what, model=model)
        return self.session

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> Literal[False]:
        __tracebackhide__ = True
        self._audit.__exit__(kind, error, traceback)
        if self.dropped:
            return False
        if not self.session.findings:
            return False
        report = self.session.report
        auditor = auditor_of(self._item)
        allow = auditor.allowed
        if error is not None or (self is auditor.whole and has_ended_early(self._item)):
            keep_beside_failure(self._item, report, allow=allow)
            return False
        fail_on_findings(
            self._item,
            report,
            fail_on=self._fail_on,
            allow=allow,
            is_excused=partial(_is_excused, item=self._item) if self._lenient else None,
            with_traceback=self._with_traceback,
        )
        return False


class Auditor:
    """What the fixture ``autograd_audit`` gives: the audit of this test, or of parts of it.

    The whole test is audited, from the end of its set-up to the end of its body. Called in a
    ``with`` statement, it audits that block instead.
    """

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        self.allowed: frozenset[str] = frozenset()
        self.frozen_parts: list[tuple[tuple[Any, ...], Any]] = []
        self.whole: AuditedBlock | None = None

    @property
    def session(self) -> Any:
        """The audit of the whole test, with its ``findings`` and ``report`` so far."""
        if self.whole is None:
            raise pytest.UsageError(
                f"{self._item.nodeid}: autograd_audit.session is there while the test runs; this "
                "was read in its set-up or tear-down"
            )
        return self.whole.session

    def allow(self, *names: str) -> None:
        """Let no finding of these slugs or codes fail this test, or be listed."""
        __tracebackhide__ = True
        self.allowed |= allowed_codes(names, subject="autograd_audit.allow(...)")

    def frozen(self, *what: Any, model: Any = None) -> None:
        """Fail the test if any of this gets a gradient or changes from here to its end.

        Args:
            *what: modules, with their buffers; parameters; or patterns of the names that ``model``
                gives them, such as ``"encoder.*"``.
            model: whose names the patterns are for.
        """
        __tracebackhide__ = True
        try:
            self.session.frozen(*what, model=model)
        except UsageError as error:
            raise error.with_traceback(None) from None
        self.frozen_parts.append((what, model))

    def __call__(
        self,
        model: Any = None,
        optimizers: Any = None,
        *,
        fail_on: str | Severity | None = None,
        **arguments: Any,
    ) -> AuditedBlock:
        """Audit the body of a ``with`` statement; takes the arguments of ``gs.audit``."""
        __tracebackhide__ = True
        severity = fail_on_severity(self._item)
        if fail_on is not None:
            severity = severity_from(fail_on, subject="fail_on of autograd_audit(...)")
        try:
            block = AuditedBlock(
                self._item, fail_on=severity, model=model, optimizers=optimizers, **arguments
            )
        except UsageError as error:
            # What was asked wrongly is on the test's line, not in ours.
            raise error.with_traceback(None) from None
        if self.whole is not None and not _whole_test_is_audited(self._item):
            self.whole.dropped = True
        return block


def _whole_test_is_audited(item: pytest.Item) -> bool:
    return audit_marker(item) is not None or settings_of(item.config).audit is not None


def auditor_of(item: pytest.Item) -> Auditor:
    """Return the one auditor of a test, made when it is first asked for."""
    auditor = item.stash.get(_AUDITOR, None)
    if auditor is None:
        auditor = item.stash[_AUDITOR] = Auditor(item)
    return auditor


def forget_audit(item: pytest.Item) -> None:
    """Forget the auditor of a test that is about to run anew."""
    if _AUDITOR in item.stash:
        del item.stash[_AUDITOR]


def audit_of(item: pytest.Item) -> AuditedBlock | None:
    """Return the audit that the body of this test runs in, or None if nothing asks for one.

    An audit that a fixture holds open would get nothing more while another is open inside of it:
    where only the whole-suite mode asks, the fixture's is left in charge.
    """
    marker = audit_marker(item)
    everything = settings_of(item.config).audit
    test_asks = marker is not None or _AUDITOR in item.stash
    if not test_asks and (everything is None or note_foreign_audit(item)):
        return None
    severity = fail_on_severity(item)
    if everything is not None and (marker is None or marker.fail_on is None):
        severity = severity_from(everything, subject="audit")
    auditor = auditor_of(item)
    if marker is not None:
        auditor.allowed |= marker.allow
    auditor.whole = AuditedBlock(
        item,
        fail_on=severity,
        lenient=not test_asks,
        with_traceback=False,
    )
    return auditor.whole


_GRAPH_KEPT = "GCS201"


def _is_excused(finding: Finding, item: pytest.Item) -> bool:
    """Return whether a finding fails no test that has not asked to be audited.

    A mistake that torch itself refuses with an exception is no mistake of a test that has expected
    the exception. Losses in a list of the test that it asserts something about hold their graphs
    for as long as the test runs: in a training loop that is a leak, in a few steps of a test it
    harms nobody. Both are listed at the end of the run.
    """
    return finding.evidence.get("refused") is True or _is_kept_to_compare(finding, item)


def _is_kept_to_compare(finding: Finding, item: pytest.Item) -> bool:
    """Return whether graphs are kept in a local of the test's file that the test asserts on."""
    if finding.code != _GRAPH_KEPT or finding.evidence.get("owner_kind") != "local":
        return False
    path = str(finding.evidence.get("path"))
    if "." in path:  # in an object, whose class may be of a library
        return False
    place = finding.location
    if place is None or os.path.realpath(place.path) != os.path.realpath(item.path):
        return False
    keeper = (place.function or "").removesuffix("()").rpartition(".")[2]
    return _asserts_on(path.partition("[")[0], keeper, item)


def _asserts_on(name: str, keeper: str, item: pytest.Item) -> bool:
    """Return whether an assertion of a test reads a name, or what a function has returned."""
    try:
        source = textwrap.dedent(inspect.getsource(getattr(item, "function", None)))  # type: ignore[arg-type]
        test = ast.parse(source)
    except (OSError, TypeError, SyntaxError):
        return False
    names = {name}
    for node in ast.walk(test):
        if isinstance(node, ast.Assign) and _calls(node.value, keeper):
            names.update(_names(*node.targets))
    return any(
        not names.isdisjoint(_names(asserted)) or _calls(asserted, keeper)
        for asserted in _asserted(test)
    )


def _asserted(test: ast.AST) -> Iterator[ast.AST]:
    """Yield what ``assert`` and the methods and functions named after it are about."""
    for node in ast.walk(test):
        if isinstance(node, ast.Assert):
            yield node.test
        elif isinstance(node, ast.Call) and _last(node.func).startswith("assert"):
            yield from node.args


def _names(*nodes: ast.AST) -> set[str]:
    return {inner.id for node in nodes for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def _calls(node: ast.AST, function: str) -> bool:
    return any(
        isinstance(inner, ast.Call) and _last(inner.func) == function for inner in ast.walk(node)
    )


def _last(func: ast.expr) -> str:
    return getattr(func, "attr", getattr(func, "id", ""))
