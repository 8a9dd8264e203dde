"""A callback for Lightning's ``Trainer`` that audits each ``fit``.

``Trainer(callbacks=[GradcheckCallback()])`` is all that it takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradcheck_suite.integrations.frameworks import LIGHTNING, load
from gradcheck_suite.integrations.training_audit import TrainingAudit

if TYPE_CHECKING:
    from gradcheck_suite.auditing import Session

__all__ = ["GradcheckCallback"]

_pytorch: Any = load(LIGHTNING)


class GradcheckCallback(_pytorch.Callback):  # type: ignore[misc]  # the class of what is installed
    """Audits each ``Trainer.fit``, from before ``configure_optimizers`` to its end.

    What runs in ``validate``, ``test`` and ``predict`` alone is not audited. At the end, the
    trainer's loggers are told how many findings there are, as ``gradcheck/errors``,
    ``gradcheck/GCS301``, and so on.

    Args:
        **options: those of ``gs.audit``.

    Raises:
        UsageError: there is no such option, or a value is of the wrong kind.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._audit = TrainingAudit(options)

    @property
    def session(self) -> Session:
        """The audit of the ``fit`` that runs, or of the last one."""
        return self._audit.session

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Begin the audit of a ``fit``."""
        if stage == "fit":
            self._audit.begin(pl_module)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End it."""
        self._end(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End it, before the exception goes on."""
        self._end(trainer, exception)

    def _end(self, trainer: Any, error: BaseException | None = None) -> None:
        def log(counts: dict[str, float]) -> None:
            for logger in trainer.loggers:
                logger.log_metrics(counts, step=trainer.global_step)

        self._audit.end(error, log=log)
