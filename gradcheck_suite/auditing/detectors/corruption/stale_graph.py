"""Backwards through what was computed of weights that a step has changed since.

Part of a forward stands before the loop, retain_graph=True keeps it for the next backward, and the
optimizer steps in between. Where an op of it has saved a weight, torch refuses; sums, means, sparse
products with a constant and lookups save none, and nothing is said: values and gradients are those
of the weights as they were. A state that is carried over from step to step is another mistake,
whose graph grows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.detectors.memory.state_not_detached import edge_of, leaves_under
from gradcheck_suite.auditing.events import BackwardFinished, GraphReused
from gradcheck_suite.auditing.object_names.held_tensors import (
    HeldTensor,
    held_over,
    only_assignment,
)
from gradcheck_suite.auditing.object_names.optimizers import parameters_of
from gradcheck_suite.auditing.object_names.tensor_names import listed, written
from gradcheck_suite.findings import Finding, Severity

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from gradcheck_suite.auditing.detectors.leaf_records import LeafRecords
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["StaleGraphDetector"]

_ENOUGH = 2
"""Backwards on one line before it is told. Chosen: the least that shows it goes on."""

_CAST = "ToCopyBackward"

_LOOKS = 8
"""Backwards that reach an earlier graph and are looked at. A bound on cost: each goes through the
old part of it."""


@dataclass(slots=True)
class _Stale:
    """Backwards on one line.

    Attributes:
        site: the line.
        given: the line that was given the old part.
        held: what the program has it in.
        names: of parameters under it that were stepped since.
        optimizer: the class of what stepped them.
        stepped: where.
        count: how many there were.
    """

    site: CallSite | None
    given: CallSite | None
    held: HeldTensor | None
    names: tuple[str, ...]
    optimizer: str
    stepped: CallSite | None
    count: int = 0


class StaleGraphDetector:
    """Reports step-before-second-backward (GCS109) where torch has nothing to compare."""

    def __init__(self, recorder: Recorder, leaves: LeafRecords) -> None:
        self._recorder = recorder
        self._leaves = leaves
        self._looks = 0
        self._pending: tuple[int, _Stale] | None = None
        self._found: dict[CallSite | None, _Stale] = {}

    def subscriptions(self) -> Subscriptions:
        """Look at graphs that reach an earlier one, if a step lies between."""
        return {GraphReused: self._reuse, BackwardFinished: self._finish}

    def findings(self) -> list[Finding]:
        """Return one finding for each line that calls such backwards."""
        return [_finding(each) for each in self._found.values() if each.count >= _ENOUGH]

    def _reuse(self, event: GraphReused) -> None:
        started, generation = event.started, self._recorder.generations.newest()
        if generation is None or generation.index != started.number or self._looks >= _LOOKS:
            return
        reused = [each for reference in generation.reused if (each := reference()) is not None]
        steps = generation.step - min((each.step for each in reused), default=generation.step)
        if started.chain > 1 or not started.accumulates or steps < 1:
            return
        self._looks += 1
        found, given, _, _ = edge_of(started, generation.known)
        # What autocast has cast and keeps is told of where its region begins (GCS314).
        nodes = [node for node in found if not node.name().startswith(_CAST)]
        under = [getattr(node, "variable", None) for node in leaves_under([*nodes])]
        step = self._last_step([each for each in under if each is not None], steps)
        if step is None:
            return
        optimizer, site, stepped = step
        known = (self._leaves.of(each) for each in stepped)
        names = tuple(written(each.name) for each in known if each is not None and each.name)
        stale = _Stale(
            started.site, given, held_over(set(nodes)), names, type(optimizer).__name__, site
        )
        self._pending = started.number, stale

    def _last_step(
        self, leaves: list[Tensor], steps: int
    ) -> tuple[Optimizer, CallSite | None, list[Tensor]] | None:
        """Return the latest of the last steps that was of the optimizer of some of these."""
        for step in list(self._recorder.state.recent_steps)[-steps:][::-1]:
            optimizer = step.optimizer()
            mine = set() if optimizer is None else set(map(id, parameters_of(optimizer)))
            owned = [leaf for leaf in leaves if id(leaf) in mine]
            if optimizer is not None and owned:
                return optimizer, step.site, owned
        return None

    def _finish(self, event: BackwardFinished) -> None:
        pending, self._pending = self._pending, None
        if pending is not None and pending[0] == event.number and not event.failed:
            self._found.setdefault(pending[1].site, pending[1]).count += 1


def _finding(stale: _Stale) -> Finding:
    where = location_of(stale.site)
    made = None if stale.held is None or stale.held.key is None else only_assignment(stale.held.key)
    what = "a part of the forward" if stale.held is None else f"`{stale.held.name}`"
    names = listed(stale.names) if stale.names else "the parameters"
    return Finding.of(
        catalogue.STEP_BEFORE_SECOND_BACKWARD,
        f"{what} was computed before {stale.optimizer}.step() changed {names} "
        "under it, and backward() went through its graph again: loss and gradients are those of "
        "weights that are no longer there, and no op has saved one by which torch could tell; "
        "expected it to be computed anew after each step",
        detector="audit",
        severity=Severity.WARNING,
        location=where,
        related=related(
            (made, "it is computed here"),
            (location_of(stale.given), "it is used here"),
            (location_of(stale.stepped), "the parameters were changed here"),
            apart_from=where,
        ),
        hint="compute it inside the loop, without retain_graph=True; or step once, after the last "
        "backward",
        evidence={"count": stale.count, "parameters": list(stale.names)},
    )
