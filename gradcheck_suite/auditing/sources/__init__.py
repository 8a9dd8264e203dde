"""Where events come from: one module for each part of torch that is watched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_suite.auditing.sources._base import Source
from gradcheck_suite.auditing.sources.backward import BackwardSource
from gradcheck_suite.auditing.sources.child_processes import ChildProcessSource
from gradcheck_suite.auditing.sources.clipping import ClippingSource
from gradcheck_suite.auditing.sources.grad_mode import GradModeSource
from gradcheck_suite.auditing.sources.hook_regions import HookRegions
from gradcheck_suite.auditing.sources.legacy_functions import LegacyFunctionSource
from gradcheck_suite.auditing.sources.mode_layers import ModeLayerSource
from gradcheck_suite.auditing.sources.modules import ForwardSource, ModeSource
from gradcheck_suite.auditing.sources.optimizers import OptimizerSource
from gradcheck_suite.auditing.sources.scaling import ScalingSource
from gradcheck_suite.auditing.sources.schedulers import SchedulerSource
from gradcheck_suite.auditing.sources.torch_warnings import TorchWarningSource
from gradcheck_suite.auditing.sources.warning_lines import WarningLineSource

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SOURCES", "Source"]

SOURCES: Sequence[type[Source]] = (
    HookRegions,
    BackwardSource,
    OptimizerSource,
    ClippingSource,
    ScalingSource,
    SchedulerSource,
    ModeSource,
    ModeLayerSource,
    ForwardSource,
    GradModeSource,
    TorchWarningSource,
    LegacyFunctionSource,
    WarningLineSource,
    ChildProcessSource,
)
