"""Parameter groups whose learning rate is never anything but 0, beside others that are trained.

A group is followed from its optimizer's first step on, until it is seen with another rate: that is
its first step in nearly every run, and nothing is looked at from then on. While it stays at 0, a
few of its parameters with gradients are compared before and after some steps, as there are rules
that move a parameter at a rate of 0. A schedule may raise the rate at any time, so that nothing is
told before the audit ends. Where all groups of an optimizer are at 0, none of its steps changes
anything, which is told as step-without-effect.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.detectors.gradients import is_nonzero
from gradcheck_suite.auditing.events import (
    Attention,
    ParameterGroupAdded,
    SessionEnded,
    StepFinished,
    StepStarted,
    WatchResumed,
)
from gradcheck_suite.auditing.object_names.tensor_names import listed, local_name, written
from gradcheck_suite.auditing.saved_tensors.checksums import fingerprint, same_content
from gradcheck_suite.auditing.user_modes import ops_are_recorded, without_user_modes
from gradcheck_suite.findings import Finding
from gradcheck_suite.reporting.text import plural

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from gradcheck_suite.auditing.detectors.accumulation_windows import AccumulationWindows
    from gradcheck_suite.auditing.detectors.leaf_records import LeafRecords
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.object_names.optimizers import Optimizers
    from gradcheck_suite.auditing.object_names.tensor_names import ParameterNames
    from gradcheck_suite.auditing.saved_tensors.checksums import Fingerprint

__all__ = ["LearningRateZeroDetector"]

_ENOUGH = 4
"""Steps at a rate of 0, all there were. Chosen, as many as step-without-effect takes: a few may be
a warm-up that the run ends in."""

_ENOUGH_OF_A_SCHEDULE = 13
"""Under a scheduler that has a rate above 0 to start from, a note until so many. Chosen, as in
step-without-effect."""

_SEEN = 2
"""Steps in which parameters of the group were seen to have gradients and to stay as they were.
Chosen: the least that shows it goes on."""

_FEW = 4
"""Parameters of a group that are compared, the smallest that have gradients. A bound on cost: a
rule that moves one of a group moves them all."""

_NAMED = 6
"""Parameters of a group whose names are asked for: one more than are listed. A bound on cost."""


@dataclass(slots=True)
class _Group:
    """A parameter group that was at a rate of 0 in each step so far.

    Attributes:
        index: its place in ``param_groups``.
        added: where it was added, if that was after its optimizer was made.
        title: what the program calls it, in its entry "name".
        parameters: how many there are.
        names: of the first of them.
        steps: how many steps of the optimizer were watched.
        seen: in how many of them some had gradients and stayed as they were.
        scheduled: whether a scheduler has a rate above 0 to set it from.
    """

    index: int
    added: CallSite | None = None
    title: str | None = None
    parameters: int = 0
    names: tuple[str, ...] = ()
    steps: int = 0
    seen: int = 0
    scheduled: bool = False


@dataclass(slots=True)
class _Followed:
    """An optimizer, and those of its groups that were at 0 in each of its steps so far."""

    kind: str
    made: CallSite | None
    site: CallSite | None
    count: int
    groups: dict[int, _Group] = field(default_factory=dict)

    def told(self) -> list[_Group]:
        """Return the groups that train nothing, where another one may."""
        if len(self.groups) == self.count:
            return []
        return [each for each in self.groups.values() if each.seen]


class LearningRateZeroDetector:
    """Reports learning-rate-zero (GCS315)."""

    def __init__(
        self,
        optimizers: Optimizers,
        windows: AccumulationWindows,
        leaves: LeafRecords,
        names: ParameterNames,
    ) -> None:
        self._optimizers = optimizers
        self._windows = windows
        self._leaves = leaves
        self._names = names
        self._followed: dict[int, _Followed] = {}
        self._before: dict[int, list[tuple[Tensor, Fingerprint]]] = {}
        self._ended = False

    def subscriptions(self) -> Subscriptions:
        """Read the rates of each step, until every group has had one above 0."""
        return {
            StepStarted: self._begin_step,
            StepFinished: self._end_step,
            ParameterGroupAdded: self._add_group,
            WatchResumed: self._begin_anew,
            SessionEnded: self._end,
        }

    def suspects(self, optimizer: Optimizer) -> bool:
        """Return whether a group of this optimizer, and not all, is at 0 and has gradients."""
        followed = self._followed.get(self._optimizers.number_of(optimizer))
        return followed is not None and (any(each.seen >= _SEEN for each in followed.told()))

    def _add_group(self, event: ParameterGroupAdded) -> Attention:
        followed = self._of(event.optimizer, None)
        followed.count = len(event.optimizer.param_groups)
        index = followed.count - 1
        followed.groups[index] = _Group(index, event.site)
        return Attention.AWAKE

    def _begin_anew(self, _event: WatchResumed) -> None:
        self._before = {}

    def _end(self, _event: SessionEnded) -> None:
        self._before = {}
        self._ended = True

    def _of(self, optimizer: Optimizer, site: CallSite | None) -> _Followed:
        number = self._optimizers.number_of(optimizer)
        known = self._followed.get(number)
        if known is None:
            count = len(optimizer.param_groups)
            known = self._followed[number] = _Followed(
                type(optimizer).__name__,
                self._windows.of(optimizer).constructed_at,
                site,
                count,
                {index: _Group(index) for index in range(count)},
            )
        return known

    def _all_have_moved(self) -> bool:
        """Return whether each group of the optimizers that live was seen at a rate above 0."""
        for optimizer in self._optimizers.known():
            followed = self._followed.get(self._optimizers.number_of(optimizer))
            if followed is None or followed.groups:
                return False
        return True

    def _begin_step(self, event: StepStarted) -> Attention | None:
        self._before = {}
        followed = self._of(event.optimizer, event.site)
        if not followed.groups:
            return Attention.ASLEEP if self._all_have_moved() else None
        self._ended = False
        groups = event.optimizer.param_groups
        if len(groups) != followed.count:  # taken away or put there by hand: nobody knows which
            followed.count = len(groups)
            followed.groups = {}
        at_zero = [each for each in followed.groups.values() if _is_zero(groups[each.index])]
        if len(at_zero) < len(followed.groups):
            followed.groups = {each.index: each for each in at_zero}
        if at_zero and len(at_zero) < len(groups) and self._leaves.is_looking:
            without_user_modes(self._look, groups, at_zero)
        return None

    def _look(self, groups: list[dict[str, Any]], at_zero: list[_Group]) -> None:
        """Take down a few parameters of these groups that have gradients."""
        if ops_are_recorded():
            return
        for each in at_zero:
            parameters = sorted(groups[each.index]["params"], key=torch.Tensor.numel)
            filled = (one for one in parameters if is_nonzero(one.grad))
            contents = [(one, fingerprint(one)) for one in itertools.islice(filled, _FEW)]
            known = [(one, content) for one, content in contents if content is not None]
            if known:
                self._before[each.index] = known

    def _end_step(self, event: StepFinished) -> Attention | None:
        before, self._before = self._before, {}
        followed = self._followed.get(self._optimizers.number_of(event.optimizer))
        if followed is None or not followed.groups:
            return Attention.ASLEEP if self._all_have_moved() else None
        followed.site = event.site
        for each in followed.groups.values():
            each.steps += 1
        if before:
            without_user_modes(self._compare, event.optimizer, followed, before)
        return None

    def _compare(
        self,
        optimizer: Optimizer,
        followed: _Followed,
        before: dict[int, list[tuple[Tensor, Fingerprint]]],
    ) -> None:
        """Note which groups have stayed as they were, and let go of those that move all the same.

        A closure may have stepped another optimizer meanwhile, whose parameters these are then.
        """
        for index, contents in before.items():
            group = followed.groups.get(index)
            parameters = optimizer.param_groups[index]["params"] if group is not None else []
            if group is None or not any(contents[0][0] is each for each in parameters):
                continue
            if not all(same_content(content, parameter) for parameter, content in contents):
                del followed.groups[index]
                continue
            group.seen += 1
            # A scheduler that multiplies what is 0 from the start never raises it.
            group.scheduled = bool(optimizer.param_groups[index].get("initial_lr"))
            if not group.names:
                self._describe(group, optimizer.param_groups[index])

    def _describe(self, group: _Group, options: dict[str, Any]) -> None:
        title = options.get("name")
        group.title = title if isinstance(title, str) else None
        group.parameters = len(options["params"])
        group.names = tuple(
            name for each in options["params"][:_NAMED] if (name := self._name_of(each)) is not None
        )

    def _name_of(self, parameter: Tensor) -> str | None:
        record = self._leaves.of(parameter)
        if record is not None and record.name is not None:
            return written(record.name)
        return self._names.of(parameter) or local_name(parameter)

    def findings(self) -> list[Finding]:
        """Return one finding for each line that makes optimizers with such groups."""
        if not self._ended:
            return []
        by_line: dict[object, tuple[_Followed, list[_Group]]] = {}
        for followed in self._followed.values():
            groups = [
                each for each in followed.told() if each.steps >= _ENOUGH and each.seen >= _SEEN
            ]
            if groups:
                key = followed.made or followed.site, *(each.index for each in groups)
                by_line.setdefault(key, (followed, groups))
        return [_finding(followed, groups) for followed, groups in by_line.values()]


def _is_zero(group: dict[str, Any]) -> bool:
    """Return whether the rate is the number 0; one kept in a tensor may lie on a GPU."""
    rate = group.get("lr")
    return isinstance(rate, Real) and rate == 0


def _finding(followed: _Followed, groups: list[_Group]) -> Finding:
    steps = max(each.steps for each in groups)
    which = " and ".join(map(_words, groups))
    was = "was 0" if len(groups) == 1 else "were 0"
    rates = "learning rate" if len(groups) == 1 else "learning rates"
    may_rise = all(each.scheduled and each.steps < _ENOUGH_OF_A_SCHEDULE for each in groups)
    where = location_of(followed.made) or location_of(followed.site)
    return Finding.of(
        catalogue.LEARNING_RATE_ZERO,
        f"the {rates} of {which} of {followed.kind} {was} in each of {steps} steps, though there "
        "were gradients, so that nothing of it was trained; expected a rate above 0",
        detector="audit",
        doubts=["its schedule may begin with a rate of 0"] if may_rise else [],
        location=where,
        related=related(
            *(
                (location_of(each.added), f"`param_groups[{each.index}]` is added here")
                for each in groups
            ),
            (location_of(followed.site), "this step leaves it as it is"),
            apart_from=where,
        ),
        hint="give it a learning rate above 0; if it is to stay as it is, leave it out of the "
        "optimizer and call requires_grad_(False) on it, which also saves its gradients",
        evidence={
            "steps": steps,
            "optimizer": followed.kind,
            "groups": [each.index for each in groups],
            "parameters": sum(each.parameters for each in groups),
            "names": [name for each in groups for name in each.names],
        },
    )


def _words(group: _Group) -> str:
    """Return what to call a group: its place, the name it has, and its parameters."""
    title = "" if group.title is None else f' "{group.title}"'
    names = f": {listed(group.names)}" if group.names else ""
    return f"`param_groups[{group.index}]`{title} ({plural(group.parameters, 'parameter')}{names})"
