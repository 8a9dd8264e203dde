"""Generators that are given the same seed between steps, over and over.

What is drawn after it, dropout, noise, the order of the batches, is the same each time. A seed that
differs, a state that is put back afterwards, and a seed for each of several trainings are what
others do on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.events import Attention, GeneratorSet, StepStarted
from gradcheck_suite.auditing.user_modes import ops_are_recorded, without_user_modes
from gradcheck_suite.findings import Finding

if TYPE_CHECKING:
    from torch import Tensor

    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.object_names.optimizers import Optimizers

__all__ = ["SeededAgainDetector"]

_ENOUGH = 3
"""Times that a line gives the same seed before steps of one optimizer. Chosen: the first may be
where the program begins, and two more show that it goes on."""

_MOST = 64
"""Lines and seeds that are followed. A bound on memory: others are not looked at."""


@dataclass(slots=True)
class _Seeding:
    """A line that gives one seed.

    Attributes:
        seed: which.
        site: the line.
        stepped: where the optimizer stepped next.
        step: the number of that step, the last time.
        count: how often it was given, before different steps of the optimizer.
        in_a_row: before how many steps, one after the other, at most.
        row: before how many up to now.
    """

    seed: int
    site: CallSite | None
    stepped: CallSite | None
    step: int = -1
    count: int = 0
    in_a_row: int = 0
    row: int = 0


class SeededAgainDetector:
    """Reports seeded-again (GCS705)."""

    def __init__(self, optimizers: Optimizers) -> None:
        self._optimizers = optimizers
        self._given: tuple[int, CallSite | None, Tensor] | None = None
        self._seedings: dict[tuple[int, int, CallSite | None], _Seeding] = {}

    def subscriptions(self) -> Subscriptions:
        """Wait for a seed, and for the step that follows."""
        return {GeneratorSet: self._set, StepStarted: self._begin_step}

    def findings(self) -> list[Finding]:
        """Return one finding for each line."""
        found: dict[CallSite | None, _Seeding] = {}
        for each in self._seedings.values():
            if each.count >= _ENOUGH and each.in_a_row >= found.get(each.site, each).in_a_row:
                found[each.site] = each
        return [_finding(each) for each in found.values()]

    def _set(self, event: GeneratorSet) -> Attention | None:
        if event.seed is None or ops_are_recorded():
            self._given = None
            return None
        self._given = event.seed, event.site, without_user_modes(_state)
        return Attention.AWAKE

    def _begin_step(self, event: StepStarted) -> Attention:
        given, self._given = self._given, None
        if given is None or ops_are_recorded():
            return Attention.ASLEEP
        seed, site, state = given
        if without_user_modes(lambda: torch.equal(_state(), state)):
            return Attention.ASLEEP  # nothing was drawn since
        key = self._optimizers.number_of(event.optimizer), seed, site
        known = self._seedings.get(key)
        if known is None:
            if len(self._seedings) >= _MOST:
                return Attention.ASLEEP
            known = self._seedings[key] = _Seeding(seed, site, event.site)
        known.count += 1
        known.row = known.row + 1 if event.number == known.step + 1 else 1
        known.in_a_row = max(known.in_a_row, known.row)
        known.step = event.number
        return Attention.ASLEEP


def _state() -> Tensor:
    return torch.default_generator.get_state()


def _finding(seeding: _Seeding) -> Finding:
    where = location_of(seeding.site)
    doubts = []
    if seeding.in_a_row < _ENOUGH:
        doubts.append("many steps lie between, as between evaluations with the same noise")
    return Finding.of(
        catalogue.SEEDED_AGAIN,
        f"torch's generator was given the seed {seeding.seed} here {seeding.count} times between "
        "steps of one optimizer, and random numbers were drawn before the next one: dropout, noise "
        "and the order of batches are the same each time; expected one seed, before training",
        detector="audit",
        location=where,
        doubts=doubts,
        related=related((location_of(seeding.stepped), "the next step"), apart_from=where),
        hint="seed once; draw what is to be the same each time from a torch.Generator of its own, "
        "or inside torch.random.fork_rng()",
        evidence={"count": seeding.count, "in_a_row": seeding.in_a_row, "seed": seeding.seed},
    )
