"""An audit for training loops that Accelerate has prepared, which tells its trackers.

``with audit(accelerator):`` around the loop is all that it takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradcheck_suite.errors import UsageError
from gradcheck_suite.integrations.frameworks import ACCELERATE, load
from gradcheck_suite.integrations.training_audit import TrainingAudit

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch import nn

    from gradcheck_suite.auditing import Session

__all__ = ["audit"]

_accelerate: Any = load(ACCELERATE)


def audit(
    accelerator: Any, model: nn.Module | None = None, **options: Any
) -> AbstractContextManager[Session]:
    """Audit what runs inside, as ``gs.audit`` does, and tell the accelerator's trackers.

    They are told at the end of the block how many findings there are, as ``gradcheck/errors``,
    ``gradcheck/GCS301``, and so on: ``accelerator.end_training()`` comes after it.

    Args:
        accelerator: whose trackers are told.
        model: names parameters in findings, as in ``gs.audit``.
        **options: those of ``gs.audit``.

    Returns:
        The context, or decorator of a function; entering it gives the session.

    Raises:
        UsageError: there is no such option, a value is of the wrong kind, or the first argument is
            no ``Accelerator``.
    """
    if not isinstance(accelerator, _accelerate.Accelerator):
        raise UsageError(
            "gradcheck_suite.integrations.accelerate.audit: expected an accelerate.Accelerator, "
            f"got {type(accelerator).__name__}; gs.audit(...) needs none"
        )
    return TrainingAudit(options).around(model, log=accelerator.log)
