"""A callback for the ``Trainer`` of Transformers that audits each ``train()``.

``Trainer(callbacks=[GradcheckCallback()], ...)`` is all that it takes.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from gradcheck_suite.auditing.call_sites import is_user_code, user_frames, variables_of
from gradcheck_suite.integrations.audited_call import AuditedCall
from gradcheck_suite.integrations.frameworks import TRANSFORMERS, load
from gradcheck_suite.integrations.training_audit import TrainingAudit

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gradcheck_suite.auditing import Session
    from gradcheck_suite.auditing.call_sites import CallSite

__all__ = ["GradcheckCallback"]

_transformers: Any = load(TRANSFORMERS)


class GradcheckCallback(_transformers.TrainerCallback):  # type: ignore[misc]  # as is installed
    """Audits each ``Trainer.train()``, from before its optimizer is made to its end.

    At the end, those that ``report_to`` names are told how many findings there are, as
    ``gradcheck/errors``, ``gradcheck/GCS301``, and so on.

    Given to ``Trainer(callbacks=[...])``, it sees the whole of ``train()``. One that is added
    later, by ``add_callback``, sees the first training without the making of its optimizer, and
    hears of an exception that ends it as late as at the next training or the end of the program:
    a ``Trainer`` tells its callbacks of none.

    Args:
        **options: those of ``gs.audit``.

    Raises:
        UsageError: there is no such option, or a value is of the wrong kind.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._audit = TrainingAudit(options)
        self._configured_at: CallSite | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what a copy, as in another process, can't have: a line of running code."""
        return {**self.__dict__, "_configured_at": None}

    @property
    def session(self) -> Session:
        """The audit of the training that runs, or of the last one."""
        return self._audit.session

    def on_init_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Let each ``train()`` of this trainer run inside an audit."""
        trainer = _trainer_that_calls()
        if trainer is not None:
            self._take_up(trainer)

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Begin the audit, where it has not begun with ``train()``."""
        if self._audit.runs:
            return
        trainer = _trainer_that_calls()
        if trainer is not None:
            self._take_up(trainer)
        self._audit.begin(others.get("model"))

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """End the audit, while those that ``report_to`` names still listen."""
        trainer = _trainer_that_calls()
        known = [] if trainer is None else trainer.callback_handler.callbacks

        def log(counts: dict[str, float]) -> None:
            for each in known:
                if type(each).__module__.startswith(_REPORTERS):
                    each.on_log(args, state, control, logs=dict(counts), **others)

        self._audit.end(log=log)

    def _take_up(self, trainer: Any) -> None:
        self._configured_at = _line_that_makes(trainer)
        AuditedCall(trainer, "train", self._around)
        # Before those that close their files when the training ends.
        callbacks = trainer.callback_handler.callbacks
        callbacks.remove(self)
        callbacks.insert(0, self)

    def _around(self, trainer: Any) -> AbstractContextManager[object]:
        if self not in trainer.callback_handler.callbacks:
            return nullcontext()
        return self._audit.around(trainer.model, configured_at=self._configured_at)


_REPORTERS = "transformers.integrations"
"""Where the callbacks are that ``report_to`` names: TensorBoard's, W&B's and so on."""


def _trainer_that_calls() -> Any:
    """Return the ``Trainer`` whose method is calling its callbacks, which are not told which."""
    for frame in user_frames():
        owner = variables_of(frame).get("self")
        if isinstance(owner, _transformers.Trainer):
            return owner
    return None


def _line_that_makes(trainer: Any) -> CallSite | None:
    """Return the user's line that calls the constructor, that of a class of the user's included."""
    for frame in user_frames():
        if is_user_code(frame.f_code) and variables_of(frame).get("self") is not trainer:
            return frame.f_code, frame.f_lasti
    return None
