"""The audits of the trainings that a framework runs, one after another."""

from __future__ import annotations

import logging
import weakref
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gradcheck_suite.auditing import Session, audit
from gradcheck_suite.auditing.output.report_delivery import say
from gradcheck_suite.reporting import concise
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import nn

    from gradcheck_suite.auditing.call_sites import CallSite
    from gradcheck_suite.findings import Report

__all__ = ["TrainingAudit", "counts_of"]

_LOGGER = logging.getLogger("gradcheck_suite")


class TrainingAudit:
    """Opens a session for each training, ends it, and tells the framework's loggers.

    Args:
        options: those of ``gs.audit``.

    Raises:
        UsageError: there is no such option, or a value is of the wrong kind.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)
        self._session = audit(**self._options)
        self._unended: weakref.finalize[..., TrainingAudit] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the session: a copy, as in a process that is spawned, has its own."""
        return {"_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_options"])  # type: ignore[misc]  # anew, with these

    @property
    def session(self) -> Session:
        """The session of the training that runs, or of the last one."""
        return self._session

    @property
    def runs(self) -> bool:
        """Whether a training is audited now."""
        return self._unended is not None

    def begin(self, model: nn.Module | None, *, configured_at: CallSite | None = None) -> None:
        """Audit what runs from here on.

        Args:
            model: names parameters, unless the options name a model.
            configured_at: the user's line that has set the training up, for what the framework
                makes by it.
        """
        self.end()
        self._session = audit(**{"model": model, **self._options})
        self._session.configured_at = configured_at
        self._session.__enter__()
        # Where nobody tells of the end, as of an exception that a framework keeps to itself.
        self._unended = weakref.finalize(self, self._session.__exit__, None, None, None)

    @contextmanager
    def around(
        self,
        model: nn.Module | None,
        *,
        configured_at: CallSite | None = None,
        log: Callable[[dict[str, float]], object] | None = None,
    ) -> Iterator[Session]:
        """Audit what runs inside; the arguments are those of ``begin`` and ``end``."""
        self.begin(model, configured_at=configured_at)
        try:
            yield self._session
        except BaseException as error:
            self.end(error, log=log)
            raise
        self.end(log=log)

    def end(
        self,
        error: BaseException | None = None,
        *,
        log: Callable[[dict[str, float]], object] | None = None,
    ) -> None:
        """End the audit, if one runs.

        Args:
            error: what has ended the training, if anything has.
            log: given the counts of findings, for what the framework draws curves with.
        """
        if self._unended is None or self._unended.detach() is None:
            return
        self._unended = None
        traceback = None if error is None else error.__traceback__
        try:
            self._session.__exit__(None if error is None else type(error), error, traceback)
        finally:
            self._tell(log)

    def _tell(self, log: Callable[[dict[str, float]], object] | None) -> None:
        try:
            report = self._session.report
            for line in concise.render(report).splitlines():
                _LOGGER.info("%s", line)
            if log is not None:
                log(counts_of(report))
        except Exception as error:  # noqa: BLE001 - the training is not ended by it
            say(f"loggers are not told of an audit: {type(error).__name__}: {error}")


def counts_of(report: Report) -> dict[str, float]:
    """Return how many findings there are of each severity, and of each code that there is.

    >>> from gradcheck_suite.findings import Report
    >>> counts_of(Report("gradcheck-suite audit"))
    {'gradcheck/errors': 0.0, 'gradcheck/warnings': 0.0, 'gradcheck/notes': 0.0}
    """
    severities = {f"{each.value}s": report.count(each) for each in Severity}
    codes = Counter(finding.code for finding in report.findings)
    return {f"gradcheck/{name}": float(number) for name, number in {**severities, **codes}.items()}
