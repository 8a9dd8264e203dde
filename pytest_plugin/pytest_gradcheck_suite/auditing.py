"""Audit a test, or a part of it, and let the findings decide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pytest

from pytest_gradcheck_suite.marks import allowed_codes, audit_mark
from pytest_gradcheck_suite.marks import fail_on as severity_of
from pytest_gradcheck_suite.outcomes import fail_on_findings, has_ended_early, keep_beside_failure
from pytest_gradcheck_suite.runtime import runtime
from pytest_gradcheck_suite.settings import settings_of
from pytest_gradcheck_suite.upkeep import note_foreign_audit, note_foreign_hooks

if TYPE_CHECKING:
    from types import TracebackType

    from gradcheck_suite.severity import Severity

__all__ = ["AuditedBlock", "Auditor", "audit_of", "auditor_of", "forget_audit"]

_AUDITOR = pytest.StashKey["Auditor"]()


class AuditedBlock:
    """Audit the body of a ``with`` statement inside a test.

    Leaving it fails the test if there are findings that are severe enough, unless it is ``lenient``
    (see ``leniency``). An exception from the body passes unchanged; the findings then become a
    section of the test's report.
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
            lenient=self._lenient,
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
        """Let no finding of these slugs or codes fail this test, or be told of."""
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
        from gradcheck_suite.errors import UsageError  # noqa: PLC0415 - loaded long ago

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
        from gradcheck_suite.errors import UsageError  # noqa: PLC0415 - loaded long ago
        from pytest_gradcheck_suite.settings import severity_from  # noqa: PLC0415

        severity = severity_of(self._item)
        if fail_on is not None:
            severity = severity_from(fail_on, subject="fail_on of autograd_audit(...)")
        try:
            block = AuditedBlock(
                self._item, fail_on=severity, model=model, optimizers=optimizers, **arguments
            )
        except UsageError as error:
            # What was asked wrongly is on the test's line, not in ours.
            raise error.with_traceback(None) from None
        if self.whole is not None and not _asked_for_the_whole(self._item):
            self.whole.dropped = True
        return block


def _asked_for_the_whole(item: pytest.Item) -> bool:
    return audit_mark(item) is not None or settings_of(item.config).audit is not None


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

    An audit that a fixture holds open would hear nothing more while another is open inside of it:
    where only the whole-suite mode asks, the fixture's is left in charge.
    """
    mark = audit_mark(item)
    everything = settings_of(item.config).audit
    asked_by_the_test = mark is not None or _AUDITOR in item.stash
    if not asked_by_the_test and (everything is None or note_foreign_audit(item)):
        return None
    severity = None if mark is None else mark.fail_on
    if severity is None:
        severity = settings_of(item.config).fail_on if everything is None else everything
    auditor = auditor_of(item)
    if mark is not None:
        auditor.allowed |= mark.allow
    auditor.whole = AuditedBlock(
        item,
        fail_on=severity,
        lenient=not asked_by_the_test,
        with_traceback=False,
    )
    return auditor.whole
