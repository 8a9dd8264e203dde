"""Graphs that pile up and that no backward goes through.

A state that goes from call to call with its history, in inference or while streaming; a buffer of
what another network has computed; exceptions that are kept with their frames; a graph that was
retained once more than it was used.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from gradcheck_suite.auditing.detectors.memory.kept_graphs import KeptGraphs, Unused, UnusedCalls
from gradcheck_suite.auditing.events import (
    Attention,
    BackwardFinished,
    ForwardFinished,
    SessionEnded,
    StepFinished,
)
from gradcheck_suite.auditing.instrumentation.modules import FIRST_STEPS

if TYPE_CHECKING:
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder
    from gradcheck_suite.auditing.run_state import Birth
    from gradcheck_suite.findings import Finding

__all__ = ["GraphWithoutBackwardDetector"]

_FEW = 3
"""Times between backwards of which something lives in a usual loop: this, that of the loss, and one
more. With more, it is looked at which these are."""

_FIRST_CALLS = 8
"""Calls of modules whose graphs all live, in a program without any backward or optimizer, before
anybody looks who keeps them. Chosen, as ``LIKELY`` steps."""

_CALLS = 64
"""The same where a backward may come: a sequence or an episode is a call for each of its elements.
Chosen; where more have been seen between two backwards, twice as many."""


class GraphWithoutBackwardDetector:
    """Reports graph-kept (GCS201) of graphs that no backward goes through.

    Those are told apart by the step in which they were recorded, and where no backward comes at
    all, by the call of an outermost module. What a later backward may yet go through is never
    certain: what is told is taken back when one comes.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._by_step = KeptGraphs(recorder, Unused(recorder))
        self._by_call = KeptGraphs(recorder, UnusedCalls(recorder))
        self._turns = recorder.generations.turns
        self._last_call = self._longest = 0
        self._next_look = 0
        self._most = 0
        self._oldest: weakref.ref[Birth] | None = None

    def subscriptions(self) -> Subscriptions:
        """Look after each step, or each backward if none steps, or each call if there is none."""
        return {
            ForwardFinished: self._after_call,
            BackwardFinished: self._after_backward,
            StepFinished: self._after_step,
            SessionEnded: self._at_the_end,
        }

    def _after_step(self, _event: StepFinished) -> Attention | None:
        by_step = self._by_step
        by_step.stepped = True
        # As long as there are few, this is all.
        if self._turns.count <= _FEW and not by_step.is_following():
            return None
        by_step.count_living()
        return Attention.AWAKE if by_step.any_kept else None

    def _after_backward(self, _event: BackwardFinished) -> Attention | None:
        call = self._recorder.state.clock.moment.birth.call
        self._longest = max(self._longest, call - self._last_call)
        self._last_call = call
        if self._oldest is not None:
            self._begin_phase()
        if self._by_step.any_kept:
            self._by_step.take_back()
        if not self._by_step.stepped:
            self._by_step.count_living()
        elif self._recorder.state.step >= FIRST_STEPS and not self._by_step.any_kept:
            return Attention.ASLEEP  # no more calls are told of
        return None

    def _begin_phase(self) -> None:
        """Forget who kept the graphs of calls: a backward has come, or they were let go of."""
        self._by_call.forget()
        self._oldest = None
        self._next_look = self._most = 0

    def _after_call(self, _event: ForwardFinished) -> None:
        if self._oldest is not None and self._oldest() is None:
            self._begin_phase()
        generations = self._recorder.generations
        count = generations.births.count
        if count <= _FIRST_CALLS or count < self._next_look:
            self._most = max(self._most, count)
            return
        may_train = self._recorder.state.backwards or self._recorder.optimizers.any_known
        if count <= (max(_CALLS, 2 * self._longest) if may_train else _FIRST_CALLS):
            return
        self._next_look, self._most = 2 * count, count
        self._by_call.count_living()
        alive = generations.births_since_backward()
        self._oldest = weakref.ref(alive[0])

    def _at_the_end(self, _event: SessionEnded) -> None:
        self._by_step.end()
        if not self._by_step.any_kept:
            self._by_call.end(most=self._most)

    def is_following(self) -> bool:
        """Return whether graphs are kept, so that more of them are to be counted."""
        return self._by_step.is_following() or self._oldest is not None

    def findings(self) -> list[Finding]:
        """Return who keeps graphs."""
        return [*self._by_step.findings(), *self._by_call.findings()]
