"""All detectors of an audit, and what stands for them until there is something to tell them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from gradcheck_suite.auditing.detectors.accumulation_windows import AccumulationWindows
from gradcheck_suite.auditing.detectors.connectivity.frozen_but_changed import (
    DeclaredFrozenDetector,
    FrozenParameterDetector,
    FrozenStatisticsDetector,
)
from gradcheck_suite.auditing.detectors.connectivity.grad_read_on_non_leaf import (
    GradReadOnNonLeafDetector,
)
from gradcheck_suite.auditing.detectors.connectivity.parameter_without_gradient import (
    ParameterWithoutGradientDetector,
)
from gradcheck_suite.auditing.detectors.corruption.non_finite_gradient import (
    NonFiniteGradientDetector,
)
from gradcheck_suite.auditing.detectors.corruption.saved_tensor_modified import (
    SavedTensorModifiedDetector,
)
from gradcheck_suite.auditing.detectors.functions.function_calls import FunctionCallDetector
from gradcheck_suite.auditing.detectors.functions.function_contract import FunctionContractDetector
from gradcheck_suite.auditing.detectors.memory.graph_kept import GraphKeptDetector
from gradcheck_suite.auditing.detectors.memory.retain_graph import RetainGraphDetector
from gradcheck_suite.auditing.detectors.memory.state_not_detached import StateNotDetached
from gradcheck_suite.auditing.detectors.memory.unused_graphs import UnusedGraphDetector
from gradcheck_suite.auditing.detectors.mode.train_mode_in_eval import ModeDetector
from gradcheck_suite.auditing.detectors.step_order.clip_misplaced import ClipMisplacedDetector
from gradcheck_suite.auditing.detectors.step_order.leftover_gradient import LeftoverGradientDetector
from gradcheck_suite.auditing.detectors.step_order.missing_zero_grad import MissingZeroGradDetector
from gradcheck_suite.auditing.detectors.step_order.missing_zero_grad_by_hand import (
    MissingZeroGradByHandDetector,
)
from gradcheck_suite.auditing.detectors.step_order.parameter_in_two_optimizers import (
    ParameterInTwoOptimizersDetector,
)
from gradcheck_suite.auditing.detectors.step_order.parameter_not_optimized import (
    ParameterNotOptimizedDetector,
)
from gradcheck_suite.auditing.detectors.step_order.scaled_losses import ScaledLosses
from gradcheck_suite.auditing.detectors.step_order.scaler_misuse import ScalerMisuseDetector
from gradcheck_suite.auditing.detectors.step_order.scheduler_before_step import (
    SchedulerBeforeStepDetector,
)
from gradcheck_suite.auditing.detectors.step_order.step_without_backward import (
    StepWithoutBackwardDetector,
)
from gradcheck_suite.auditing.detectors.step_order.step_without_effect import (
    StepWithoutEffectDetector,
)
from gradcheck_suite.auditing.detectors.step_order.zero_grad_misplaced import (
    ZeroGradMisplacedDetector,
)
from gradcheck_suite.auditing.events import SessionEnded
from gradcheck_suite.auditing.object_names.tensor_names import ParameterNames
from gradcheck_suite.auditing.options import AuditOptions
from gradcheck_suite.auditing.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from torch import Tensor

    from gradcheck_suite.auditing.call_sites import CallSite
    from gradcheck_suite.auditing.events import Detector, Event, Subscriptions
    from gradcheck_suite.findings import Finding

__all__ = ["DeferredDetectors", "all_detectors", "training_detectors"]


def all_detectors(recorder: Recorder, names: ParameterNames) -> tuple[Detector, ...]:
    """Make the detectors of an audit."""
    carried = StateNotDetached(recorder)
    return (
        SavedTensorModifiedDetector(recorder, names, carried),
        MissingZeroGradDetector(recorder, names),
        MissingZeroGradByHandDetector(recorder, names),
        *training_detectors(recorder, names),
        GraphKeptDetector(recorder, carried),
        ParameterWithoutGradientDetector(recorder, names),
        NonFiniteGradientDetector(recorder, names),
        UnusedGraphDetector(recorder),
        RetainGraphDetector(),
        FunctionContractDetector(recorder),
        FunctionCallDetector(recorder),
    )


class DeferredDetectors:
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
        told = self._recorder.write_log.on_indexed
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


def training_detectors(recorder: Recorder, names: ParameterNames) -> tuple[Detector, ...]:
    """Make the detectors that follow each optimizer's turns; what they share comes first."""
    windows = AccumulationWindows(recorder)
    scaled = ScaledLosses(windows)
    return (
        windows,
        scaled,
        ZeroGradMisplacedDetector(recorder, windows),
        StepWithoutBackwardDetector(windows, recorder.optimizers),
        ClipMisplacedDetector(windows, scaled),
        ScalerMisuseDetector(windows, scaled),
        SchedulerBeforeStepDetector(windows),
        LeftoverGradientDetector(windows),
        ModeDetector(windows),
        ParameterNotOptimizedDetector(recorder, windows),
        ParameterInTwoOptimizersDetector(windows, names),
        StepWithoutEffectDetector(recorder.optimizers),
        DeclaredFrozenDetector(recorder),
        FrozenParameterDetector(windows, names),
        FrozenStatisticsDetector(names),
        GradReadOnNonLeafDetector(),
    )
