"""Parameters that a program updates by hand, by gradients that it never clears.

No optimizer says what a step uses. What moved the parameter does: if it changed by a multiple of
its ``.grad``, that gradient was used. The next backward adds to it, though it is still there,
untouched and not zero; and then the parameter moves by a multiple of the sum.

Likewise if its elements moved by one distance, the way that their gradients' signs say, as in an
attack by signed gradients (PGD).

A program that scales ``.grad`` between the two keeps a momentum by hand, one that takes an average
of gradients moves by something else than the sum: of both nothing is said. Looked at are leaves
that no optimizer owns, in the first backwards.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gradcheck_suite import catalogue
from gradcheck_suite._torch_compat import version_of
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import Occurrences, related
from gradcheck_suite.auditing.detectors.gradients import sample_of
from gradcheck_suite.auditing.detectors.reachable_parameters import (
    ALWAYS_WALKED,
    nodes_under,
    reachable_graph,
)
from gradcheck_suite.auditing.events import Attention, BackwardFinished, BackwardStarted
from gradcheck_suite.auditing.object_names.optimizers import parameters_of
from gradcheck_suite.auditing.object_names.tensor_names import listed, local_name
from gradcheck_suite.auditing.user_modes import ops_are_recorded, without_user_modes
from gradcheck_suite.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from gradcheck_suite.auditing.detectors.step_order.handed_over_gradients import (
        HandedOverGradientsDetector,
    )
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.object_names.tensor_names import ParameterNames
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["MissingZeroGradByHandDetector"]

_LOOKED_AT = 32
"""Backwards from the first on that are looked at: ``_BACKWARDS_OF_THE_FIRST_STEP`` of the recorder,
after which detectors are told of each eighth only. A bound on cost."""

_MOST_NODES = 2_000
"""Nodes of a graph whose leaves are asked for. A bound on cost, a tenth of ``MOST_NODES`` as it is
walked for each of these backwards; programs that step by hand are small."""

_SAMPLED = 64
"""Elements of each gradient and parameter that are compared, from all over it. A bound on cost: a
multiple of the gradient in 64 elements is no accident."""

_MOVED = 8
"""Elements that must have moved to show that they follow a sign. Chosen: by accident, as many fit
one time in 128, and they have to twice."""

_ALONG = 0.95
"""The part of those that must have moved along their gradient, or all against it. Chosen: bounds
on what is attacked, such as those of an image, turn a few back."""

_ALIKE = 0.75
"""The part of those that must have moved by one distance. Chosen: others met a bound halfway."""

_NAMES_SHOWN = 5
"""Names of parameters in a finding. Chosen, for length."""

_CLOSE = 1e-3
"""By how much, as a share, two rates may differ that were meant to be the same. Chosen: the
rounding of elements is allowed for besides, and by less no other rate shows."""

_ROUNDED = 64
"""A change is told from rounding only if it is so many times greater. Chosen: rounding, of a unit
or less, is then at most a 64th of the greatest change."""


@dataclass(slots=True)
class _Followed:
    """A leaf and its gradient as a backward has left them, in samples.

    Attributes:
        leaf: the parameter.
        gradient: its gradient.
        version: the gradient's version.
        slope: some elements of the gradient.
        value: the same elements of the parameter.
        since: the time of that backward.
        used: whether an update has used what is in the gradient, all or in part.
        added: whether a backward has added to what was used.
        rate: what the last update multiplied the gradient by.
        updated: where that was.
    """

    leaf: weakref.ref[torch.Tensor]
    gradient: weakref.ref[torch.Tensor]
    version: int
    slope: torch.Tensor
    value: torch.Tensor
    since: int
    used: bool = False
    added: bool = False
    rate: float | None = None
    updated: CallSite | None = None


@dataclass(slots=True)
class _Moved:
    """What an update did to a leaf: ``rate`` times its gradient; ``alone`` if that is proven.

    The rate is None where it followed the gradient's sign alone.
    """

    followed: _Followed
    leaf: torch.Tensor
    rate: float | None
    alone: bool


@dataclass(slots=True)
class _Occurrence:
    update: CallSite | None
    backward: CallSite | None
    first_backward: int
    parameters: int
    names: tuple[str, ...]
    signed: bool


class MissingZeroGradByHandDetector:
    """Reports missing-zero-grad (GCS301) of updates by hand.

    Args:
        recorder: whose events these are.
        names: how parameters are called.
        handed_over: tells of gradients that an optimizer is given.
    """

    def __init__(
        self, recorder: Recorder, names: ParameterNames, handed_over: HandedOverGradientsDetector
    ) -> None:
        self._recorder = recorder
        self._handed_over = handed_over
        self._names = names
        self._followed: dict[int, _Followed] = {}
        self._reached: list[weakref.ref[torch.Tensor]] = []
        self._any = False
        self._backward: CallSite | None = None
        self._occurrences: Occurrences[object, _Occurrence] = Occurrences()

    def subscriptions(self) -> Subscriptions:
        """Look at leaves before and after each backward."""
        return {BackwardStarted: self._before_backward, BackwardFinished: self._after_backward}

    def findings(self) -> list[Finding]:
        """Return one finding for each line that updates parameters so."""
        return self._occurrences.findings(_finding)

    def _before_backward(self, event: BackwardStarted) -> Attention | None:
        known = self._recorder.optimizers.any_known
        # Where optimizers own all that the first backwards reach, there is nothing to follow.
        if event.number >= (ALWAYS_WALKED if known and not self._any else _LOOKED_AT):
            self._followed.clear()
            self._reached = []
            return Attention.ASLEEP
        self._reached = []
        if event.accumulates and not ops_are_recorded():
            if self._followed:
                without_user_modes(self._look_at_updates, event)
            self._reached = [weakref.ref(leaf) for leaf in self._unowned(_leaves_under(event))]
            self._any = self._any or bool(self._reached)
        return None

    def _unowned(self, leaves: list[Tensor]) -> list[Tensor]:
        """Return the leaves that no optimizer owns."""
        optimizers = self._recorder.optimizers.known()
        owned = {id(each) for optimizer in optimizers for each in parameters_of(optimizer)}
        return [leaf for leaf in leaves if id(leaf) not in owned]

    def _after_backward(self, event: BackwardFinished) -> Attention | None:
        if event.number >= _LOOKED_AT:
            return Attention.ASLEEP
        if event.failed or event.creates_graph:
            self._followed.clear()
        elif self._reached:
            without_user_modes(self._follow, event)
        return None

    def _follow(self, event: BackwardFinished) -> None:
        """Take samples of the leaves that this backward has reached."""
        now = self._recorder.state.clock.tick()
        self._backward = event.site
        for reference in self._reached:
            leaf = reference()
            if leaf is None:
                continue
            known = self._followed.pop(id(leaf), None)
            gradient = leaf.grad
            samples = None if gradient is None else _samples(leaf, gradient)
            if gradient is None or samples is None:
                continue
            version = version_of(gradient)
            followed = _Followed(reference, weakref.ref(gradient), version, *samples, now)
            if known is not None and known.gradient() is gradient and known.leaf() is leaf:
                followed.used, followed.rate = known.used, known.rate
                followed.added = known.added or (known.used and known.version != version)
            self._followed[id(leaf)] = followed

    def _look_at_updates(self, event: BackwardStarted) -> None:
        """Tell which leaves have moved by a multiple of their gradient since the last backward."""
        moved: list[_Moved] = []
        for key, followed in list(self._followed.items()):
            leaf, gradient = followed.leaf(), followed.gradient()
            untouched = (
                leaf is not None
                and gradient is not None
                and leaf.grad is gradient
                and version_of(gradient) == followed.version
            )
            samples = _samples(leaf, gradient) if untouched else None
            if leaf is None or samples is None or not torch.equal(samples[0], followed.slope):
                del self._followed[key]
                continue
            if torch.equal(samples[1], followed.value):
                continue  # no update yet: a window of several backwards
            change = _rate_of(followed.value, samples[1], followed.slope)
            if change is None and _follows_sign(followed.value, samples[1], followed.slope):
                change = (None, True)
            if change is None:
                del self._followed[key]
                continue
            moved.append(_Moved(followed, leaf, *change))
        stale = []
        for each in moved:
            if _is_proven(each, moved):
                if each.followed.added:
                    stale.append(each)
                each.followed.used = True
            each.followed.rate = each.rate
        if stale:
            self._report(event, stale)

    def _report(self, event: BackwardStarted, stale: list[_Moved]) -> None:
        if self._backward in self._handed_over.backwards:
            return  # An optimizer had made the update.
        first = stale[0]
        writes = self._recorder.write_log.since(first.followed.since, first.leaf)
        update = writes[-1].site if writes else None

        def describe() -> _Occurrence:
            names = sorted(
                name
                for each in stale[:_NAMES_SHOWN]
                if (name := self._names.of(each.leaf) or local_name(each.leaf)) is not None
            )
            return _Occurrence(
                update,
                self._backward,
                event.number - 1,
                len(stale),
                tuple(names),
                signed=all(each.rate is None for each in stale),
            )

        self._occurrences.note((update, self._backward), describe)


def _leaves_under(event: BackwardStarted) -> list[Tensor]:
    """Return the leaves that a backward gives gradients, if its graph is not too large."""
    if event.number < ALWAYS_WALKED:
        # Others ask for the same.
        found = reachable_graph(event)
        return [] if len(found.nodes) > _MOST_NODES else _plain(found.leaves.values())
    nodes = nodes_under(event.roots, most=_MOST_NODES + 1)
    if len(nodes) > _MOST_NODES:
        return []
    return _plain(getattr(node, "variable", None) for node in nodes if not node.next_functions)


def _plain(leaves: Iterable[Any]) -> list[Tensor]:
    return [leaf for leaf in leaves if type(leaf) in (torch.Tensor, torch.nn.Parameter)]


def _samples(leaf: Tensor | None, gradient: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """Return some elements of a gradient and of its leaf; None for what is laid out otherwise."""
    if leaf is None or gradient is None:
        return None
    if not (leaf.is_floating_point() and gradient.is_floating_point()):
        return None
    slope, value = sample_of(gradient, _SAMPLED), sample_of(leaf, _SAMPLED)
    return None if slope is None or value is None else (slope, value)


def _follows_sign(before: Tensor, after: Tensor, slope: Tensor) -> bool:
    """Return whether elements moved by one distance, along their gradient or all against it."""
    if before.is_complex():
        return False
    rounding = torch.finfo(after.dtype).eps * torch.maximum(before.abs(), after.abs())
    change = after - before
    moved = (change.abs() > _ROUNDED * rounding) & (slope != 0)
    total = int(moved.sum())
    if total < _MOVED:
        return False
    change, slope, rounding = change[moved], slope[moved], rounding[moved]
    along, rising = int((change * slope > 0).sum()), int((slope > 0).sum())
    # A shift of all elements alike would fit signs that are all the same.
    both = min(rising, total - rising) * _MOVED >= total
    distance = change.abs().median()
    alike = int(((change.abs() - distance).abs() <= 4 * rounding + _CLOSE * distance).sum())
    return both and alike >= _ALIKE * total and max(along, total - along) >= _ALONG * total


def _rate_of(before: Tensor, after: Tensor, slope: Tensor) -> tuple[float | None, bool] | None:
    """Return what a gradient was multiplied by to make the change, and whether only that fits.

    A gradient of one element, or of the same everywhere, fits any change of that form.
    """
    rounding = torch.finfo(after.dtype).eps * torch.maximum(before.abs(), after.abs()).double()
    change, gradient = after.double() - before.double(), slope.double()
    square = float(gradient.square().sum())
    if not square > 0 or not bool((change.abs() > _ROUNDED * rounding).any()):
        return None
    rate = float((change * gradient).sum()) / square
    expected = rate * gradient
    tolerance = 4 * rounding + _CLOSE * expected.abs()
    if not bool(((change - expected).abs() <= tolerance).all()):
        return None
    spread = float((gradient.abs().max() - gradient.abs().min()) * abs(rate))
    return rate, spread > _ROUNDED * float(rounding.max())


def _is_proven(moved: _Moved, others: list[_Moved]) -> bool:
    """Return whether the gradient was used: the rate fits others', or that of the time before."""
    before = moved.followed.rate
    if moved.rate is None:
        return True
    return (
        moved.alone
        or (before is not None and _is_close(before, moved.rate))
        or any(
            other.rate is not None
            and _is_close(other.rate, moved.rate)
            and (other.alone or not torch.equal(other.followed.slope, moved.followed.slope))
            for other in others
            if other is not moved
        )
    )


def _is_close(first: float, second: float) -> bool:
    return abs(first - second) <= 2 * _CLOSE * max(abs(first), abs(second))


def _finding(occurrence: _Occurrence, count: int) -> Finding:
    backward, update = location_of(occurrence.backward), location_of(occurrence.update)
    added = (backward, "this backward added to the gradients already used")
    number = occurrence.parameters
    what = listed(occurrence.names) or ("1 tensor" if number == 1 else f"{number} tensors")
    return Finding.of(
        catalogue.MISSING_ZERO_GRAD,
        f"the update by hand of {what} used gradients that still held what the update before had "
        "already used, with the new gradient added on top; expected them to be cleared in "
        f"between (first after backward {occurrence.first_backward})",
        detector="audit",
        doubts=["it followed the signs of these gradients"] if occurrence.signed else [],
        location=update or backward,
        related=[] if update is None else related(added),
        hint="set .grad to None (or call .grad.zero_()) after each update",
        evidence={
            "count": count,
            "first_backward": occurrence.first_backward,
            "parameters": number,
            "names": list(occurrence.names),
        },
    )
