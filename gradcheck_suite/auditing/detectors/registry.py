"""All detectors of an audit."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from gradcheck_suite.auditing.detectors.accumulation_windows import AccumulationWindows
from gradcheck_suite.auditing.detectors.connectivity.computed_weight_written import (
    ComputedWeightWrittenDetector,
)
from gradcheck_suite.auditing.detectors.connectivity.constant_loss_term import (
    ConstantLossTermDetector,
)
from gradcheck_suite.auditing.detectors.connectivity.copied_before_load import (
    CopiedBeforeLoadDetector,
)
from gradcheck_suite.auditing.detectors.connectivity.copy_left_behind import (
    CopyLeftBehindDetector,
)
from gradcheck_suite.auditing.detectors.connectivity.derivative_left_out import (
    DerivativeLeftOutDetector,
)
from gradcheck_suite.auditing.detectors.connectivity.frozen_but_changed import (
    DeclaredFrozenDetector,
    FrozenParameterDetector,
    FrozenStatisticsDetector,
)
from gradcheck_suite.auditing.detectors.connectivity.frozen_leaves import FrozenLeavesDetector
from gradcheck_suite.auditing.detectors.connectivity.grad_read_on_non_leaf import (
    GradReadOnNonLeafDetector,
)
from gradcheck_suite.auditing.detectors.connectivity.loaded_and_overwritten import (
    LoadedAndOverwrittenDetector,
)
from gradcheck_suite.auditing.detectors.connectivity.masked_rows import MaskedRowsDetector
from gradcheck_suite.auditing.detectors.connectivity.nothing_loaded import NothingLoadedDetector
from gradcheck_suite.auditing.detectors.connectivity.padding_row_set import PaddingRowSetDetector
from gradcheck_suite.auditing.detectors.connectivity.parameter_without_gradient import (
    ParameterWithoutGradientDetector,
)
from gradcheck_suite.auditing.detectors.connectivity.repeated_layer import RepeatedLayerDetector
from gradcheck_suite.auditing.detectors.connectivity.unused_loss_term import (
    UnusedLossTermDetector,
)
from gradcheck_suite.auditing.detectors.connectivity.zero_derivative import (
    ZeroDerivativeDetector,
)
from gradcheck_suite.auditing.detectors.connectivity.zero_factors import ZeroFactorsDetector
from gradcheck_suite.auditing.detectors.corruption.copy_onto_itself import CopyOntoItselfDetector
from gradcheck_suite.auditing.detectors.corruption.hooked_output import HookedOutputDetector
from gradcheck_suite.auditing.detectors.corruption.input_written_in_place import (
    InputWrittenInPlaceDetector,
)
from gradcheck_suite.auditing.detectors.corruption.non_finite_gradient import (
    NonFiniteGradientDetector,
)
from gradcheck_suite.auditing.detectors.corruption.one_network import OneNetworkDetector
from gradcheck_suite.auditing.detectors.corruption.outer_broadcast import OuterBroadcastDetector
from gradcheck_suite.auditing.detectors.corruption.recomputed_differently import (
    RecomputedDifferentlyDetector,
)
from gradcheck_suite.auditing.detectors.corruption.saved_tensor_modified import (
    SavedTensorModifiedDetector,
)
from gradcheck_suite.auditing.detectors.corruption.shared_state import SharedStateDetector
from gradcheck_suite.auditing.detectors.corruption.slice_write_in_loop import (
    SliceWriteInLoopDetector,
)
from gradcheck_suite.auditing.detectors.corruption.stale_graph import StaleGraphDetector
from gradcheck_suite.auditing.detectors.corruption.written_below_its_reader import (
    WrittenBelowItsReaderDetector,
)
from gradcheck_suite.auditing.detectors.functions.function_calls import FunctionCallDetector
from gradcheck_suite.auditing.detectors.functions.function_contract import FunctionContractDetector
from gradcheck_suite.auditing.detectors.functions.loss_given_as_gradient import (
    LossGivenAsGradientDetector,
)
from gradcheck_suite.auditing.detectors.functions.parameters_left_out import (
    ParametersLeftOutDetector,
)
from gradcheck_suite.auditing.detectors.leaf_records import LeafRecords
from gradcheck_suite.auditing.detectors.memory.graph_kept import GraphKeptDetector
from gradcheck_suite.auditing.detectors.memory.graph_without_backward import (
    GraphWithoutBackwardDetector,
)
from gradcheck_suite.auditing.detectors.memory.growing_graph import GrowingGraphDetector
from gradcheck_suite.auditing.detectors.memory.hook_piles_up import HookPilesUpDetector
from gradcheck_suite.auditing.detectors.memory.retain_graph import RetainGraphDetector
from gradcheck_suite.auditing.detectors.memory.state_not_detached import StateNotDetached
from gradcheck_suite.auditing.detectors.memory.unused_graphs import UnusedGraphDetector
from gradcheck_suite.auditing.detectors.mode.dropout_ignores_eval import DropoutIgnoresEvalDetector
from gradcheck_suite.auditing.detectors.mode.initial_statistics import (
    InitialStatisticsDetector,
)
from gradcheck_suite.auditing.detectors.mode.left_in_training import LeftInTrainingDetector
from gradcheck_suite.auditing.detectors.mode.seeded_again import SeededAgainDetector
from gradcheck_suite.auditing.detectors.mode.state_left_by_evaluation import (
    StateLeftByEvaluationDetector,
)
from gradcheck_suite.auditing.detectors.mode.stuck_in_eval import StuckInEvalDetector
from gradcheck_suite.auditing.detectors.mode.train_mode_in_eval import TrainModeInEvalDetector
from gradcheck_suite.auditing.detectors.refusals.refused_by_torch import RefusedByTorchDetector
from gradcheck_suite.auditing.detectors.step_order.clip_misplaced import ClipMisplacedDetector
from gradcheck_suite.auditing.detectors.step_order.closure_without_zero_grad import (
    ClosureWithoutZeroGradDetector,
)
from gradcheck_suite.auditing.detectors.step_order.handed_over_gradients import (
    HandedOverGradientsDetector,
)
from gradcheck_suite.auditing.detectors.step_order.learning_rate_zero import (
    LearningRateZeroDetector,
)
from gradcheck_suite.auditing.detectors.step_order.leftover_gradient import LeftoverGradientDetector
from gradcheck_suite.auditing.detectors.step_order.loaded_moments import LoadedMomentsDetector
from gradcheck_suite.auditing.detectors.step_order.lost_state import LostStateDetector
from gradcheck_suite.auditing.detectors.step_order.lost_updates import LostUpdatesDetector
from gradcheck_suite.auditing.detectors.step_order.missing_zero_grad import MissingZeroGradDetector
from gradcheck_suite.auditing.detectors.step_order.missing_zero_grad_by_hand import (
    MissingZeroGradByHandDetector,
)
from gradcheck_suite.auditing.detectors.step_order.moved_by_zeros import MovedByZerosDetector
from gradcheck_suite.auditing.detectors.step_order.no_effect import NoEffectDetector
from gradcheck_suite.auditing.detectors.step_order.optimizer_made_anew import (
    OptimizerMadeAnewDetector,
)
from gradcheck_suite.auditing.detectors.step_order.parameter_in_two_optimizers import (
    ParameterInTwoOptimizersDetector,
)
from gradcheck_suite.auditing.detectors.step_order.parameter_never_moved import (
    ParameterNeverMovedDetector,
)
from gradcheck_suite.auditing.detectors.step_order.parameter_not_optimized import (
    ParameterNotOptimizedDetector,
)
from gradcheck_suite.auditing.detectors.step_order.perturbation_left import (
    PerturbationLeftDetector,
)
from gradcheck_suite.auditing.detectors.step_order.scaled_losses import ScaledLosses
from gradcheck_suite.auditing.detectors.step_order.scaler_misuse import ScalerMisuseDetector
from gradcheck_suite.auditing.detectors.step_order.schedule_not_restored import (
    ScheduleNotRestoredDetector,
)
from gradcheck_suite.auditing.detectors.step_order.schedule_not_stepped import (
    ScheduleNotSteppedDetector,
)
from gradcheck_suite.auditing.detectors.step_order.scheduler_before_step import (
    SchedulerBeforeStepDetector,
)
from gradcheck_suite.auditing.detectors.step_order.shared_memory import SharedMemoryDetector
from gradcheck_suite.auditing.detectors.step_order.short_window import ShortWindowDetector
from gradcheck_suite.auditing.detectors.step_order.step_inside_autocast import (
    StepInsideAutocastDetector,
)
from gradcheck_suite.auditing.detectors.step_order.step_without_backward import (
    StepWithoutBackwardDetector,
)
from gradcheck_suite.auditing.detectors.step_order.step_without_effect import (
    StepWithoutEffectDetector,
)
from gradcheck_suite.auditing.detectors.step_order.uneven_means import UnevenMeansDetector
from gradcheck_suite.auditing.detectors.step_order.uneven_window import UnevenWindowDetector
from gradcheck_suite.auditing.detectors.step_order.unused_gradients import (
    UnusedGradientsDetector,
)
from gradcheck_suite.auditing.detectors.step_order.weights_not_restored import (
    WeightsNotRestoredDetector,
)
from gradcheck_suite.auditing.detectors.step_order.weights_set_back import (
    WeightsSetBackDetector,
)
from gradcheck_suite.auditing.detectors.step_order.zero_grad_misplaced import (
    ZeroGradMisplacedDetector,
)
from gradcheck_suite.auditing.distributed.step_records import StepRecords
from gradcheck_suite.auditing.distributed.unreduced_shards import UnreducedShardsDetector
from gradcheck_suite.auditing.events import SessionEnded
from gradcheck_suite.auditing.ledger.observer import LedgerObserver
from gradcheck_suite.auditing.object_names.tensor_names import ParameterNames
from gradcheck_suite.auditing.options import AuditOptions
from gradcheck_suite.auditing.recorder import Recorder

if TYPE_CHECKING:
    from typing import Any

    from gradcheck_suite.auditing.events import Detector

__all__ = ["all_detectors", "kinds_of_events"]


def all_detectors(recorder: Recorder, names: ParameterNames) -> tuple[Detector, ...]:
    """Make the detectors of an audit; what others read comes before them."""
    leaves = LeafRecords(recorder)
    carried = StateNotDetached(recorder)
    handed_over = HandedOverGradientsDetector(recorder, leaves)
    windows = AccumulationWindows(recorder)
    scaled = ScaledLosses(windows)
    without_backward = StepWithoutBackwardDetector(windows, recorder.optimizers)
    contract = FunctionContractDetector(recorder)
    without_gradient = ParameterWithoutGradientDetector(recorder, windows, names)
    losses = ConstantLossTermDetector(recorder.state, without_gradient)
    kept, unused = GraphKeptDetector(recorder, carried), GraphWithoutBackwardDetector(recorder)
    rates = LearningRateZeroDetector(recorder.optimizers, windows, leaves, names)
    return (
        leaves,
        UnreducedShardsDetector(recorder, names),
        SavedTensorModifiedDetector(recorder, names, carried),
        StaleGraphDetector(recorder, leaves),
        SliceWriteInLoopDetector(recorder.write_log),
        CopyOntoItselfDetector(recorder, names),
        OuterBroadcastDetector(recorder),
        RecomputedDifferentlyDetector(),
        MissingZeroGradDetector(recorder, names),
        ClosureWithoutZeroGradDetector(recorder.optimizers),
        handed_over,
        MissingZeroGradByHandDetector(recorder, names, handed_over),
        windows,
        scaled,
        ZeroGradMisplacedDetector(recorder, windows),
        UnusedGradientsDetector(recorder.optimizers, windows, leaves),
        without_backward,
        MovedByZerosDetector(recorder.optimizers, leaves),
        UnevenMeansDetector(recorder, windows),
        ShortWindowDetector(recorder, windows),
        UnevenWindowDetector(windows, leaves, without_backward),
        ClipMisplacedDetector(windows, scaled),
        ScalerMisuseDetector(recorder.optimizers, windows, scaled),
        SchedulerBeforeStepDetector(recorder, windows),
        ScheduleNotRestoredDetector(windows, recorder.schedules),
        ScheduleNotSteppedDetector(recorder.schedules),
        LeftoverGradientDetector(windows),
        TrainModeInEvalDetector(recorder, windows),
        LeftInTrainingDetector(recorder),
        StuckInEvalDetector(recorder, windows, leaves),
        DropoutIgnoresEvalDetector(),
        InitialStatisticsDetector(recorder),
        SeededAgainDetector(recorder.optimizers),
        StateLeftByEvaluationDetector(recorder, windows),
        ParameterNotOptimizedDetector(recorder, windows, leaves),
        ParameterInTwoOptimizersDetector(windows, names),
        OptimizerMadeAnewDetector(recorder),
        LoadedMomentsDetector(recorder, windows),
        LostStateDetector(recorder.optimizers, leaves),
        NoEffectDetector(recorder.optimizers),
        SharedMemoryDetector(recorder.optimizers, names),
        SharedStateDetector(recorder.optimizers, windows),
        OneNetworkDetector(recorder),
        HookedOutputDetector(recorder),
        InputWrittenInPlaceDetector(recorder),
        WrittenBelowItsReaderDetector(recorder),
        rates,
        StepWithoutEffectDetector(recorder.optimizers, rates),
        ParameterNeverMovedDetector(windows, leaves, names, rates),
        LostUpdatesDetector(windows),
        StepInsideAutocastDetector(),
        WeightsNotRestoredDetector(recorder, windows),
        WeightsSetBackDetector(recorder),
        PerturbationLeftDetector(recorder, windows),
        DeclaredFrozenDetector(recorder),
        FrozenParameterDetector(windows, names),
        MaskedRowsDetector(recorder, windows, leaves, names),
        PaddingRowSetDetector(recorder, leaves, names),
        FrozenStatisticsDetector(names),
        FrozenLeavesDetector(windows, leaves),
        CopyLeftBehindDetector(recorder, leaves, names),
        GradReadOnNonLeafDetector(),
        RepeatedLayerDetector(recorder),
        NothingLoadedDetector(),
        LoadedAndOverwrittenDetector(recorder, leaves),
        CopiedBeforeLoadDetector(recorder, leaves),
        ComputedWeightWrittenDetector(),
        kept,
        unused,
        GrowingGraphDetector(recorder, kept, unused),
        HookPilesUpDetector(leaves),
        without_gradient,
        losses,
        UnusedLossTermDetector(windows),
        ZeroDerivativeDetector(recorder),
        ZeroFactorsDetector(leaves),
        DerivativeLeftOutDetector(),
        NonFiniteGradientDetector(recorder, names),
        UnusedGraphDetector(recorder),
        RetainGraphDetector(),
        contract,
        FunctionCallDetector(recorder, contract),
        ParametersLeftOutDetector(recorder),
        LossGivenAsGradientDetector(),
        RefusedByTorchDetector(),
        StepRecords(recorder, windows, leaves, names),
        LedgerObserver(recorder, windows, leaves, losses, contract),
    )


@cache
def kinds_of_events() -> frozenset[type[Any]]:
    """Return what any of them reads; an audit without such an event has nothing to end."""
    recorder = Recorder(AuditOptions())
    read = {
        kind for each in all_detectors(recorder, ParameterNames()) for kind in each.subscriptions()
    }
    return frozenset(read - {SessionEnded})
