"""All detectors of an audit, and what stands for them until there is something to tell them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from gradcheck_suite.auditing.detectors._training import training_detectors
from gradcheck_suite.auditing.detectors.carried_state import CarriedState
from gradcheck_suite.auditing.detectors.connectivity import ConnectivityDetector
from gradcheck_suite.auditing.detectors.doubled_backwards import DoubledBackwardDetector
from gradcheck_suite.auditing.detectors.function_calls import FunctionCallDetector
from gradcheck_suite.auditing.detectors.function_contract import FunctionContractDetector
from gradcheck_suite.auditing.detectors.hand_updates import HandUpdateDetector
from gradcheck_suite.auditing.detectors.in_place import InPlaceDetector
from gradcheck_suite.auditing.detectors.lifetime import LifetimeDetector
from gradcheck_suite.auditing.detectors.non_finite import NonFiniteDetector
from gradcheck_suite.auditing.detectors.step_protocol import StepProtocolDetector
from gradcheck_suite.auditing.detectors.unused_graphs import UnusedGraphDetector
from gradcheck_suite.auditing.events import SessionEnded
from gradcheck_suite.auditing.names import ParameterNames
from gradcheck_suite.auditing.options import AuditOptions
from gradcheck_suite.auditing.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from torch import Tensor

    from gradcheck_suite.auditing.call_sites import CallSite
    from gradcheck_suite.auditing.events import Detector, Event, Subscriptions
    from gradcheck_suite.findings import Finding

__all__ = ["Unmade", "all_detectors"]


def all_detectors(recorder: Recorder, names: ParameterNames) -> tuple[Detector, ...]:
    """Make the detectors of an audit."""
    carried = CarriedState(recorder)
    return (
        InPlaceDetector(recorder, names, carried),
        StepProtocolDetector(recorder, names),
        HandUpdateDetector(recorder, names),
        *training_detectors(recorder, names),
        LifetimeDetector(recorder, carried),
        ConnectivityDetector(recorder, names),
        NonFiniteDetector(recorder, names),
        UnusedGraphDetector(recorder),
        DoubledBackwardDetector(),
        FunctionContractDetector(recorder),
        FunctionCallDetector(recorder),
    )


class Unmade:
    """Stands for all detectors until the first event, as many a test of a suite has none.

    Args:
        recorder: whose events these are.
        make: makes the detectors.
    """

    def __init__(self, recorder: Recorder, make: Callable[[], tuple[Detector, ...]]) -> None:
        self._recorder = recorder
        self._make = make

    def subscriptions(self) -> Subscriptions:
        """Read what any of them reads; an audit without an event has nothing to end."""
        return dict.fromkeys(_kinds(), self._tell)

    def findings(self) -> tuple[Finding, ...]:
        """Return nothing: where nothing was told, nothing is found."""
        return ()

    def note_indexed(self, tensor: Tensor, site: CallSite | None) -> None:
        """Make way for the one that is to be told of indexed assignments."""
        self.make_way()
        told = self._recorder.writers.on_indexed
        if told is not None:
            told(tensor, site)

    def _tell(self, event: Event) -> None:
        self._recorder.emit(event, only=self.make_way())

    def make_way(self) -> tuple[Detector, ...]:
        """Make them, and let them be told in place of this."""
        made = self._make()
        self._recorder.replace(self, made)
        return made


@cache
def _kinds() -> frozenset[type[Any]]:
    recorder = Recorder(AuditOptions())
    read = {
        kind for each in all_detectors(recorder, ParameterNames()) for kind in each.subscriptions()
    }
    return frozenset(read - {SessionEnded})
