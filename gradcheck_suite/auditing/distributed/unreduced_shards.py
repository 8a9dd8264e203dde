"""Steps while FSDP2 keeps the gradients to itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite._torch_compat import is_sharded, waiting_shards
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import Occurrences, related
from gradcheck_suite.auditing.events import (
    Attention,
    BackwardStarted,
    ForwardFinished,
    StepStarted,
)
from gradcheck_suite.auditing.object_names.optimizers import parameters_of
from gradcheck_suite.auditing.object_names.tensor_names import listed, variable_of, written
from gradcheck_suite.findings import Finding
from gradcheck_suite.reporting.text import plural

if TYPE_CHECKING:
    from torch import Tensor, nn

    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.object_names.tensor_names import ParameterNames
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["UnreducedShardsDetector"]


@dataclass(frozen=True, slots=True)
class _Unreduced:
    """A step that found none of the gradients that wait."""

    step: int
    optimizer: str
    names: tuple[str, ...]
    backward: CallSite | None
    site: CallSite | None


class UnreducedShardsDetector:
    """Reports gradient-not-synchronized where an optimizer steps shards that got no gradient yet.

    After ``set_requires_gradient_sync(False)``, FSDP2 adds gradients up and hands none to the
    shards, which are what the optimizer has.
    """

    def __init__(self, recorder: Recorder, names: ParameterNames) -> None:
        self._recorder = recorder
        self._names = names
        self._models: dict[int, nn.Module] = {}
        self._backward: CallSite | None = None
        self._looked = False
        self._seen: Occurrences[CallSite | None, _Unreduced] = Occurrences()

    def subscriptions(self) -> Subscriptions:
        """Look before each step."""
        return {
            ForwardFinished: self._call,
            BackwardStarted: self._begin_backward,
            StepStarted: self._begin_step,
        }

    def findings(self) -> list[Finding]:
        """Return one finding for each line that steps."""
        return self._seen.findings(_finding)

    def _call(self, event: ForwardFinished) -> Attention | None:
        if self._recorder.job.size == 1:
            return Attention.ASLEEP
        if hasattr(event.module, "set_requires_gradient_sync"):
            self._models[id(event.module)] = event.module
        return None

    def _begin_backward(self, event: BackwardStarted) -> Attention | None:
        if self._recorder.job.size == 1:
            return Attention.ASLEEP
        self._backward = event.site
        return None

    def _begin_step(self, event: StepStarted) -> Attention | None:
        if self._recorder.job.size == 1:
            return Attention.ASLEEP
        parameters = parameters_of(event.optimizer)
        if not any(map(is_sharded, parameters)):
            return Attention.ASLEEP
        if not self._looked:
            self._looked = True
            self._models |= {id(each): each for each in self._names.modules()}
        owned = {id(each) for each in parameters if each.grad is None}
        for model in self._models.values():
            names = {id(each): name for name, each in model.named_parameters()}
            waiting: list[Tensor] = [
                shard
                for module in model.modules()
                for shard in waiting_shards(module)
                if id(shard) in owned
            ]
            if waiting:
                self._recorder.exchanges.waiting.update(map(id, waiting))
                called = variable_of(model) or type(model).__name__
                told = tuple(written(f"{called}.{names.get(id(each), '?')}") for each in waiting)
                self._note(event, told)
                return None
        return None

    def _note(self, event: StepStarted, names: tuple[str, ...]) -> None:
        kind = type(event.optimizer).__name__
        backward = self._backward
        self._seen.note(
            event.site,
            lambda: _Unreduced(event.number, kind, names, backward, event.site),
        )


def _finding(seen: _Unreduced, count: int) -> Finding:
    here = location_of(seen.site)
    return Finding.of(
        catalogue.GRADIENT_NOT_SYNCHRONIZED,
        f"{seen.optimizer}.step() found no gradient of {plural(len(seen.names), 'parameter')} "
        f"({listed(seen.names)}): FSDP adds them up and reduces none, as "
        "set_requires_gradient_sync(False) is in force; expected it to be on again for the last "
        "backward before a step",
        detector="audit",
        location=here,
        related=related((location_of(seen.backward), "not reduced by"), apart_from=here),
        hint="call model.set_requires_gradient_sync(True) before the last backward of each step",
        evidence={"count": count, "step": seen.step, "parameters": seen.names[:_MOST_NAMED]},
    )


_MOST_NAMED = 16
"""Parameters that are listed for programs. Chosen, for length."""
