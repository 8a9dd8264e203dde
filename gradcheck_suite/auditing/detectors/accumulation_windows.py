"""What each optimizer's gradients went through between two of its steps.

Several detectors ask the same: which backwards have filled these gradients, were they cleared
before a step has used them, has the optimizer stepped at all? It is followed once, here.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, NamedTuple

from torch.optim import Optimizer

from gradcheck_suite.auditing.detectors.gradients import is_zero
from gradcheck_suite.auditing.events import (
    BackwardFinished,
    GradientsCleared,
    GradientsDiscarded,
    OptimizerConstructed,
    ParameterGroupAdded,
    ScalerStepped,
    StepFinished,
    StepStarted,
    StepSummarized,
    WatchResumed,
)
from gradcheck_suite.auditing.object_names.optimizers import parameters_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from gradcheck_suite.auditing.call_sites import CallSite
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder
    from gradcheck_suite.findings import Finding

__all__ = ["AccumulationWindow", "AccumulationWindows", "Discarded", "Fill", "StepSummary"]

_MOST_KEPT = 64
"""Of one window, so many backwards, the first and the latest, and so many clearings, the first, are
kept. A bound on memory where no step ends a window."""


class Fill(NamedTuple):
    """A backward that has filled gradients of an optimizer.

    Attributes:
        number: which backward, as in ``BackwardFinished``.
        site: where it was called.
        added: whether it added to gradients that were there.
        saved: how many tensors had been saved for some backward by its end.
        others: the identities of the other windows whose gradients it has filled.
    """

    number: int
    site: CallSite | None
    added: bool
    saved: int = 0
    others: frozenset[int] = frozenset()


class Discarded(NamedTuple):
    """A call that cleared gradients which no step had used.

    Its site is None where it is not known, such as of an assignment of None to ``.grad``.
    """

    site: CallSite | None
    fills: tuple[Fill, ...]


class StepSummary(NamedTuple):
    """What had become of an optimizer's gradients when its step ended.

    Attributes:
        fills: the backwards whose gradients the step found.
        discarded: what was cleared since the step before, unused, oldest first.
        dismissed: what of this was cleared for a reason of its own, as far as one step tells.
        backwards: how many outermost backwards of any kind have begun since the step before.
        site: where the step was called.
        cleared_last: whether no backward has begun since they were cleared, by this optimizer
            or for it.
        forward_since: whether a forward was recorded after the last backward whose gradients
            were cleared.
        backward_inside: whether a closure ran a backward inside the step.
        failed: whether a backward has failed since the step before.
    """

    fills: tuple[Fill, ...]
    discarded: tuple[Discarded, ...]
    backwards: int
    site: CallSite | None
    backward_inside: bool
    cleared_last: bool = False
    forward_since: bool = False
    failed: bool = False
    dismissed: tuple[Discarded, ...] = ()


class AccumulationWindow:
    """The time since an optimizer's last step.

    Attributes:
        optimizer: whose it is.
        constructed_at: where the optimizer was made; None where nobody saw it.
        ids: the identities of its parameters, which it keeps alive.
        fills: the backwards that have filled its gradients, since the last step or clearing.
        consumed: how many of these another optimizer, which owns all of the parameters, has used.
        others: the numbers of backwards in this window that another optimizer's step has used.
        discarded: what was cleared unused in this window.
        dismissed: what was taken out of these, as ``dismiss`` says.
        steps: the number of its finished steps.
        stepped_at: the time of the last of these; -1 if none was seen.
        met_late: whether it was made before the audit, and backwards had run by the time it was
            first seen.
        stepping: whether its step is running.
        whole: whether it was known from the beginning of this window on.
        used: whether its gradients, if there, are those that its last step has used.
        cleared: whether they were cleared since.
        cleared_at: how many backwards had begun when they were cleared last.
        summary: of the last finished step.
        is_followed: whether somebody wants to be told of the usual steps as well.
        awaited: how many backwards somebody follows until its next step.
        filled_at: the time of the last backward, where gradients were discarded before.
        gradients: the identities of the gradients at that time.
    """

    __slots__ = (
        "__weakref__",
        "awaited",
        "backwards",
        "cleared",
        "cleared_at",
        "constructed_at",
        "consumed",
        "discarded",
        "dismissed",
        "filled_at",
        "fills",
        "gradients",
        "ids",
        "is_followed",
        "met_late",
        "optimizer",
        "others",
        "stepped_at",
        "stepping",
        "stepping_backwards",
        "steps",
        "summary",
        "used",
        "whole",
    )

    def __init__(self, optimizer: Optimizer, *, whole: bool, backwards: int) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.constructed_at: CallSite | None = None
        self.met_late = backwards > 0
        self.ids = _ids_of(optimizer)
        self.fills: list[Fill] = []
        self.consumed = 0
        self.others: set[int] = set()
        self.discarded: list[Discarded] = []
        self.dismissed: tuple[Discarded, ...] = ()
        self.steps = 0
        self.stepped_at = -1
        self.stepping = False
        self.stepping_backwards = 0
        self.whole = whole
        self.used = self.cleared = False
        self.cleared_at = -1
        self.backwards = backwards
        self.summary: StepSummary | None = None
        self.is_followed = False
        self.awaited = 0
        self.filled_at = 0
        self.gradients: list[int] = []

    def parameters(self) -> Sequence[Tensor]:
        """Return the parameters that the optimizer has now."""
        optimizer = self.optimizer()
        return () if optimizer is None else parameters_of(optimizer)

    def versions(self) -> list[int]:
        """Return the versions of these parameters now."""
        return [parameter._version for parameter in self.parameters()]  # noqa: SLF001 - `version_of`, spared a call

    def dismiss(self) -> None:
        """Take it that what was cleared so far was cleared for a reason of its own."""
        self.dismissed += tuple(self.discarded)
        self.discarded.clear()

    def empty(self, backwards: int) -> None:
        """Forget what went before, when so many backwards have begun."""
        self.fills.clear()
        self.consumed = 0
        if self.others:
            self.others.clear()
        self.discarded.clear()
        self.dismissed = ()
        self.backwards = backwards


class AccumulationWindows:
    """Follows every watched optimizer; the detectors that read it come after it.

    Attributes:
        stepped: the window of the optimizer whose step has begun or ended last.
        stepped_at: the time of the last step of any that has ended; of one that nobody saw, 0.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._windows: dict[int, AccumulationWindow] = {}
        self._failed_at = -1
        self.stepped_at = 0
        self.stepped: AccumulationWindow

    def subscriptions(self) -> Subscriptions:
        """Follow gradients from backward to step."""
        return {
            OptimizerConstructed: self._construct,
            ParameterGroupAdded: self._add_group,
            BackwardFinished: self._fill,
            GradientsCleared: self._clear,
            StepStarted: self._begin_step,
            StepFinished: self._end_step,
            ScalerStepped: self._skip_step,
            WatchResumed: self._begin_anew,
        }

    def findings(self) -> Sequence[Finding]:
        """Return nothing: others find."""
        return ()

    def all(self) -> list[AccumulationWindow]:
        """Return the windows of the optimizers that live."""
        return list(self._windows.values())

    def is_following(self) -> bool:
        """Return whether anybody wants to be told of each turn."""
        return any(window.is_followed or window.discarded for window in self._windows.values())

    def is_alone(self) -> bool:
        """Return whether there is one optimizer only, also among those yet to step."""
        return len(self._windows) == len(self._recorder.optimizers.known()) == 1

    def anything_to_learn(self) -> bool:
        """Return whether a backward has run, or anything was recorded for one.

        Where nothing was, steps are there for a schedule of learning rates to be looked at.
        """
        return self._recorder.state.backwards > 0 or self._recorder.state.saved > 0

    def any_discarded(self) -> bool:
        """Return whether any optimizer has lost gradients since its last step."""
        return any(window.discarded for window in self._windows.values())

    def of(self, optimizer: Optimizer, *, whole: bool = False) -> AccumulationWindow:
        """Return the window of an optimizer; ``whole`` says whether a new one begins here."""
        key = id(optimizer)
        window = self._windows.get(key)
        if window is None:
            window = AccumulationWindow(
                optimizer, whole=whole, backwards=self._recorder.state.backwards
            )
            windows = self._windows
            window.optimizer = weakref.ref(optimizer, lambda _: windows.pop(key, None))
            windows[key] = window
        return window

    def _construct(self, event: OptimizerConstructed) -> None:
        # A constructor that runs twice, or an address used again.
        self._windows.pop(id(event.optimizer), None)
        window = self.of(event.optimizer, whole=True)
        window.constructed_at, window.met_late = event.site, False

    def _add_group(self, event: ParameterGroupAdded) -> None:
        self.of(event.optimizer).ids = _ids_of(event.optimizer)

    def _fill(self, event: BackwardFinished) -> None:
        if event.failed:
            self._failed_at = self._recorder.state.backwards
        if not event.created and not event.accumulated:
            return
        created, accumulated = event.created, event.accumulated
        alone = len(self._windows) == 1
        everybody: list[AccumulationWindow] = []
        for window in list(self._windows.values()):
            ids = window.ids
            # The first will do where all parameters are one optimizer's.
            if alone and id((accumulated or created)[0]) in ids:
                filled, added = True, bool(accumulated)
            else:
                added = not ids.isdisjoint(map(id, accumulated))
                filled = added or not ids.isdisjoint(map(id, created))
            if filled:
                saved = self._recorder.state.saved
                window.fills.append(Fill(event.number, event.site, added, saved))
                window.used = False
                everybody.append(window)
                if window.discarded:
                    window.filled_at = self._recorder.state.clock.moment.sequence
                    window.gradients = [id(each.grad) for each in window.parameters()]
                if len(window.fills) > _MOST_KEPT:
                    del window.fills[1]
        if len(everybody) > 1:
            for window in everybody:
                others = frozenset(id(each) for each in everybody if each is not window)
                window.fills[-1] = window.fills[-1]._replace(others=others)

    def _clear(self, event: GradientsCleared) -> None:
        owner = event.owner
        if isinstance(owner, Optimizer):
            own = self.of(owner, whole=True)
            self._discard(own, event)
            if len(self._windows) == 1:
                return
            others = [
                window
                for window in self._windows.values()
                if window is not own and window.fills and not window.ids.isdisjoint(own.ids)
            ]
        else:
            others = [window for window in self._windows.values() if window.fills or window.used]
        for window in others:
            if all(is_zero(parameter.grad) for parameter in window.parameters()):
                self._discard(window, event)

    def _discard(self, window: AccumulationWindow, event: GradientsCleared) -> None:
        window.used = False
        window.cleared = True
        window.cleared_at = self._recorder.state.backwards
        # A closure clears what an earlier evaluation of it has left.
        self._lose(window, event.site, by_closure=window.stepping)

    def _lose(
        self, window: AccumulationWindow, site: CallSite | None, *, by_closure: bool = False
    ) -> None:
        """Take note that a window's gradients are gone, cleared at ``site`` if that is known."""
        unused = tuple(window.fills[window.consumed :])
        if unused and not by_closure and len(window.discarded) < _MOST_KEPT:
            window.discarded.append(Discarded(site, unused))
            self._recorder.bus.emit(GradientsDiscarded(site))
        window.fills.clear()
        window.consumed = 0

    def _begin_step(self, event: StepStarted) -> None:
        window = self.stepped = self.of(event.optimizer)
        if window.fills:
            for parameter in window.parameters():
                if parameter.grad is not None:
                    break
            else:
                self._lose(window, None)
        window.stepping = True
        window.stepping_backwards = self._recorder.state.backwards

    def _end_step(self, event: StepFinished) -> None:
        window = self.stepped
        if window.optimizer() is not event.optimizer:  # a closure has stepped another one
            window = self.stepped = self.of(event.optimizer)
        now = self._recorder.state.backwards
        discarded = window.discarded
        is_usual = bool(window.whole and window.fills and not discarded)
        window.summary = (
            StepSummary(
                tuple(window.fills),
                tuple(discarded),
                now - window.backwards,
                event.site,
                backward_inside=window.stepping and now > window.stepping_backwards,
                cleared_last=window.cleared and window.cleared_at == now,
                forward_since=bool(discarded)
                and self._recorder.state.saved > discarded[-1].fills[-1].saved,
                failed=self._failed_at > window.backwards,
                dismissed=window.dismissed,
            )
            if window.whole
            else None
        )
        has_others = len(self._windows) > 1
        numbers = {fill.number for fill in window.fills} if has_others else set()
        window.steps += 1
        window.stepped_at = self.stepped_at = self._recorder.state.clock.moment.sequence
        window.stepping = window.cleared = False
        window.whole = window.used = True
        window.empty(now)
        if has_others:
            for other in list(self._windows.values()):
                if not other.fills or other is window:
                    continue
                if other.ids <= window.ids:
                    other.consumed = len(other.fills)
                other.others.update(numbers.intersection(fill.number for fill in other.fills))
        if not is_usual or window.is_followed or window.awaited or window.steps == 1:
            self._recorder.bus.emit(StepSummarized(event))

    def _begin_anew(self, _event: WatchResumed) -> None:
        for window in self._windows.values():
            window.empty(self._recorder.state.backwards)
            window.whole = window.used = window.cleared = window.stepping = False
            window.summary = None
            window.stepped_at = -1

    def _skip_step(self, event: ScalerStepped) -> None:
        """Begin anew where a scaler has left a step out: these gradients were dealt with."""
        window = self._windows.get(id(event.optimizer))
        if window is not None and not event.stepped and not event.failed:
            window.empty(self._recorder.state.backwards)
            window.used = True


def _ids_of(optimizer: Optimizer) -> frozenset[int]:
    return frozenset(map(id, parameters_of(optimizer)))
