"""The detectors of the training loop's order, modes and owners, with what they share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_suite.auditing.detectors._scaled import ScaledLosses
from gradcheck_suite.auditing.detectors._windows import Windows
from gradcheck_suite.auditing.detectors.clipping import ClippingDetector
from gradcheck_suite.auditing.detectors.declared_frozen import DeclaredFrozenDetector
from gradcheck_suite.auditing.detectors.frozen_parameters import FrozenParameterDetector
from gradcheck_suite.auditing.detectors.frozen_statistics import FrozenStatisticsDetector
from gradcheck_suite.auditing.detectors.idle_step import IdleStepDetector
from gradcheck_suite.auditing.detectors.leftover import LeftoverGradientDetector
from gradcheck_suite.auditing.detectors.mode import ModeDetector
from gradcheck_suite.auditing.detectors.no_effect import NoEffectDetector
from gradcheck_suite.auditing.detectors.non_leaf import NonLeafDetector
from gradcheck_suite.auditing.detectors.ownership import OwnershipDetector
from gradcheck_suite.auditing.detectors.scaling import ScalingDetector
from gradcheck_suite.auditing.detectors.schedulers import SchedulerDetector
from gradcheck_suite.auditing.detectors.shared_parameters import SharedParameterDetector
from gradcheck_suite.auditing.detectors.zero_grad import MisplacedZeroGradDetector

if TYPE_CHECKING:
    from gradcheck_suite.auditing.events import Detector
    from gradcheck_suite.auditing.names import ParameterNames
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["training_detectors"]


def training_detectors(recorder: Recorder, names: ParameterNames) -> tuple[Detector, ...]:
    """Make the detectors that follow each optimizer's turns; what they share comes first."""
    windows = Windows(recorder)
    scaled = ScaledLosses(windows)
    return (
        windows,
        scaled,
        MisplacedZeroGradDetector(recorder, windows),
        IdleStepDetector(windows, recorder.optimizers),
        ClippingDetector(windows, scaled),
        ScalingDetector(windows, scaled),
        SchedulerDetector(windows),
        LeftoverGradientDetector(windows),
        ModeDetector(windows),
        OwnershipDetector(recorder, windows),
        SharedParameterDetector(windows, names),
        NoEffectDetector(recorder.optimizers),
        DeclaredFrozenDetector(recorder),
        FrozenParameterDetector(windows, names),
        FrozenStatisticsDetector(names),
        NonLeafDetector(),
    )
