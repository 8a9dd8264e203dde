"""Weights that torch computes from other parameters at each use, and what writes into them.

Weight norm, spectral norm, pruning and parametrizations make ``module.weight`` a result: the next
use computes it anew. Its memory is followed by a weak reference, so that it is known for certain
that what is written is this result, and whether anything still has it later on.
"""

from __future__ import annotations

import functools
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from gradcheck_suite._torch_compat import module_call_frames, parametrizations_are_cached
from gradcheck_suite.auditing.events import ComputedWeightWritten
from gradcheck_suite.auditing.instrumentation.base import EventSource, is_compiling
from gradcheck_suite.auditing.instrumentation.modules import FIRST_STEPS

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradcheck_suite._runtime.patches import Patches
    from gradcheck_suite.auditing.call_sites import CallSite
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["COMPUTING", "SETTING", "ComputedWeightSource"]

# By name, as `torch.nn.utils.weight_norm` is a function.
COMPUTING = (
    ("torch.nn.utils.parametrize", "ParametrizationList", "forward"),
    ("torch.nn.utils.weight_norm", "WeightNorm", "compute_weight"),
    ("torch.nn.utils.spectral_norm", "SpectralNorm", "compute_weight"),
    ("torch.nn.utils.prune", "BasePruningMethod", "apply_mask"),
)
"""The methods of torch that compute a weight from others, by module and class."""

SETTING = frozenset(
    {"bernoulli_", "copy_", "exponential_", "fill_", "log_normal_", "normal_", "random_"}
    | {"trunc_normal_", "uniform_", "zero_"}
)
"""In-place functions whose result has nothing to do with what was there before."""

_MOST = 64
"""Computed weights that are followed at a time. A bound on cost and memory: what nobody has any
more is dropped then, and where all are in use, all are."""


class ComputedWeightSource(EventSource):
    """Replaces the methods of torch that compute a weight, and asks for writes after them."""

    kinds = (ComputedWeightWritten,)

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._computed: dict[int, tuple[StorageWeakRef, str]] = {}

    def install(self, patches: Patches) -> None:
        """Replace the methods."""
        for module, kind, name in COMPUTING:
            owner = getattr(import_module(module), kind, None)
            if owner is not None and name in vars(owner):
                patches.replace(owner, name, self._computing(vars(owner)[name]))

    def _computing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def compute(computing: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(computing, *args, **kwargs)
            if is_compiling():
                return result
            source: ComputedWeightSource = self.acting
            if source.state.step < FIRST_STEPS and source.state.running:
                source.follow(result, computing)
            return result

        return compute

    def follow(self, weight: object, computing: object) -> None:
        """Wait for writes into ``weight``."""
        if type(weight) is not Tensor or parametrizations_are_cached():
            return
        try:
            storage = weight.untyped_storage()
        except (RuntimeError, NotImplementedError):  # sparse, or wrapped by a transform
            return
        if len(self._computed) >= _MOST:
            living = {k: each for k, each in self._computed.items() if not each[0].expired()}  # type: ignore[no-untyped-call]
            self._computed = living if len(living) < _MOST else {}
        memory = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        # An address that is used again belongs to the younger one.
        self._computed[memory.cdata] = memory, _name_of(computing)
        self.recorder.write_log.on_write = self._after_write

    def _after_write(self, tensor: Tensor, operation: str, site: CallSite | None) -> None:
        if self.state.step >= FIRST_STEPS:
            self._computed.clear()
            self.recorder.write_log.on_write = None
            return
        if operation not in SETTING or is_compiling():
            return
        storage = tensor.untyped_storage()
        computed = self._computed.get(StorageWeakRef(storage).cdata)  # type: ignore[no-untyped-call]
        is_whole = tensor.nbytes == storage.nbytes()
        if computed is not None and is_whole and not _inside_a_module():
            self.recorder.bus.emit(ComputedWeightWritten(*computed, operation, site))


def _name_of(computing: object) -> str:
    """Return what the program knows it by: `weight_norm`, or the class of a parametrization."""
    kinds = [computing]
    if hasattr(computing, "original0") or hasattr(computing, "original"):
        kinds = list(computing)  # type: ignore[call-overload]  # a ParametrizationList
    name = " and ".join(dict.fromkeys(type(each).__name__.lstrip("_") for each in kinds))
    return {"WeightNorm": "weight_norm", "SpectralNorm": "spectral_norm"}.get(name, name)


def _inside_a_module() -> bool:
    """Return whether a module is being called, which may use what it writes."""
    frames = {code for code in module_call_frames() if code is not None}
    frame = sys._getframe(1)  # noqa: SLF001 - rare: only for writes into computed weights
    while frame is not None:
        if frame.f_code in frames:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
