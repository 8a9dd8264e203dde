"""A handler for engines of Ignite that audits each ``run()``.

``GradcheckHandler().attach(trainer)`` is all that it takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradcheck_suite.integrations.audited_call import AuditedCall
from gradcheck_suite.integrations.frameworks import IGNITE, load
from gradcheck_suite.integrations.training_audit import TrainingAudit

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch import nn

    from gradcheck_suite.auditing import Session

__all__ = ["GradcheckHandler"]

_engine: Any = load(IGNITE)


class GradcheckHandler:
    """Audits each ``run()`` of the engine that trains.

    When the engine has completed, its ``state.metrics`` have how many findings there are, as
    ``gradcheck/errors``, ``gradcheck/GCS301``, and so on, for handlers that were attached later.

    Args:
        model: names parameters in findings, as in ``gs.audit``.
        **options: those of ``gs.audit``.

    Raises:
        UsageError: there is no such option, or a value is of the wrong kind.
    """

    def __init__(self, model: nn.Module | None = None, **options: Any) -> None:
        self._model = model
        self._audit = TrainingAudit(options)

    @property
    def session(self) -> Session:
        """The audit of the run that goes on, or of the last one."""
        return self._audit.session

    def attach(self, engine: Any) -> None:
        """Audit the runs of this engine."""
        AuditedCall(engine, "run", self._around)
        engine.add_event_handler(_engine.Events.COMPLETED, self._complete)

    def _around(self, engine: Any) -> AbstractContextManager[Session]:
        return self._audit.around(self._model)

    def _complete(self, engine: Any) -> None:
        self._audit.end(log=engine.state.metrics.update)
