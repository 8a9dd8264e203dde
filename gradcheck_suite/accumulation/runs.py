"""Run a training loop and note what gradient each step of its optimizers was given."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gradcheck_suite._runtime.memory import is_readable
from gradcheck_suite._torch_compat import version_of
from gradcheck_suite.accumulation.batches import copied
from gradcheck_suite.accumulation.determinism import deterministic
from gradcheck_suite.accumulation.signatures import mistaken_argument
from gradcheck_suite.accumulation.states import States
from gradcheck_suite.auditing.call_sites import CallSite, exact_call_site
from gradcheck_suite.auditing.events import BackwardStarted, GradientsCleared, GradientsClipped
from gradcheck_suite.auditing.options import AuditOptions
from gradcheck_suite.auditing.session import Session
from gradcheck_suite.errors import UsageError
from gradcheck_suite.verification.target.random_state import RandomState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.optim import Optimizer

    from gradcheck_suite.accumulation.states import State
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.findings import Finding

__all__ = ["Recording", "Start", "Step", "TrainingLoop"]


@dataclass(frozen=True, slots=True)
class Step:
    """A step of an optimizer in a run.

    Attributes:
        optimizer: the name of its class.
        site: where it was called.
        gradients: copies of what it was given, by the position of the parameter in the state.
        backwards: where the backwards since the optimizer's last step were called.
        cleared: where gradients were cleared between two of these.
        clipped: where gradients were clipped before the last of these.
        carried: whether there were gradients already when the first of these began.
        rates: the learning rates of its groups.
        owner: the positions of all its parameters, by which it is known again in another run.
    """

    optimizer: str
    site: CallSite | None
    gradients: dict[int, Tensor]
    backwards: tuple[CallSite | None, ...] = ()
    cleared: CallSite | None = None
    clipped: CallSite | None = None
    carried: bool = False
    rates: tuple[float, ...] = ()
    owner: frozenset[int] = frozenset()


@dataclass(slots=True)
class Recording:
    """What a run did.

    Attributes:
        steps: the steps of its optimizers.
        after: the values of the state's tensors after each.
        backwards: where all backwards were called.
        left: the gradients that are there in the end.
        clips: whether any gradients were clipped.
        excluded: what was left out of the run, in words.
        eps: the relative rounding error of the coarsest type that a layer has computed in.
    """

    steps: list[Step] = field(default_factory=list)
    after: list[list[Tensor]] = field(default_factory=list)
    backwards: list[CallSite | None] = field(default_factory=list)
    left: dict[int, Tensor] = field(default_factory=dict)
    clips: bool = False
    excluded: set[str] = field(default_factory=set)
    eps: float = 0.0


@dataclass(frozen=True, slots=True)
class Start:
    """What a run begins with.

    Attributes:
        values: the values of the state's tensors.
        force: what they are set to after each step, so that one run goes on as another did.
        moved_by: by which draw of rounding errors the parameters are moved; None for none.
        draw: counts the seeds of the random numbers that are drawn in the run.
    """

    values: Sequence[Tensor]
    force: Sequence[Sequence[Tensor]] = ()
    moved_by: int | None = None
    draw: int = 0


@dataclass(slots=True, kw_only=True)
class TrainingLoop:
    """A loop, what it trains, and the batch; see ``check_accumulation``.

    Attributes:
        parts: the micro-batches.
        runs: how many runs there were.
        eps: the relative rounding error of the coarsest type that a parameter has or that a layer
            has computed in.
        excluded: what was left out of runs, in words.
        names: what the state's tensors are called.
        buffers: the positions of those that are no parameters.
    """

    states: States
    train: Callable[[Any, list[Any], int], object]
    batch: Any
    parts: list[Any]
    loss: Callable[[Any, Any], Any] | None
    seed: int
    runs: int = 0
    eps: float = 0.0
    excluded: set[str] = field(default_factory=set)
    names: list[str] = field(default_factory=list)
    buffers: list[int] = field(default_factory=list)

    def full(self, start: Start) -> Recording:
        """Run over the full batch."""
        return self.window_of_one(self.batch, start)

    def window_of_one(self, batch: Any, start: Start) -> Recording:
        """Run over one batch, which is a window."""
        whole = copied(batch)
        if self.loss is None:
            return self._run(start, lambda given: self._train(given, [whole], 1))
        loss = self.loss
        recording = self._run(start, lambda given: loss(given, whole).backward())
        recording.steps.append(_gradient_of(recording))
        return recording

    def accumulated(self, windows: int, *, force: Sequence[Sequence[Tensor]] = ()) -> Recording:
        """Run over the micro-batches, so many times; ``force`` as in ``Start``."""
        batches = [copied(part) for _ in range(windows) for part in self.parts]
        number = len(self.parts)
        return self._run(
            Start(self.states.values, force), lambda given: self._train(given, batches, number)
        )

    def _train(self, given: Any, batches: list[Any], number: int) -> None:
        try:
            self.train(given, batches, number)
        except (AttributeError, TypeError) as error:
            mistake = mistaken_argument(error, self.train, (given, batches, number))
            if mistake is None:
                raise
            raise mistake from error

    def _run(self, start: Start, loop: Callable[[Any], object]) -> Recording:
        state = self.states.new()
        state.load(start.values, start.moved_by)
        state.clear_gradients()
        random = RandomState.from_seed(self.seed + start.draw)
        recording = _run_loop(state, loop, random, force=start.force)
        self.runs += 1
        self.names = state.names
        self.buffers = [
            position
            for position, tensor in enumerate(state.tensors)
            if not isinstance(tensor, nn.Parameter)
        ]
        self.excluded |= recording.excluded
        kinds = [each.dtype for each in state.tensors if each.requires_grad]
        self.eps = max(self.eps, recording.eps, *(torch.finfo(kind).eps for kind in kinds))
        return recording


_Present: TypeAlias = "dict[int, tuple[int, int]]"
"""The identity and version of each gradient that is not zero, by the position of its parameter."""


class _BackwardLog:
    """Hears of backwards, and of what is done to gradients between them."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.backwards: list[CallSite | None] = []
        self.gradients: list[_Present] = []
        self.cleared: list[tuple[int, CallSite | None]] = []
        self.clipped: list[tuple[int, CallSite | None]] = []

    def subscriptions(self) -> Subscriptions:
        """Follow backwards, clearing and clipping."""
        return {
            BackwardStarted: self._backward,
            GradientsCleared: self._clear,
            GradientsClipped: self._clip,
        }

    def findings(self) -> Sequence[Finding]:
        """Return nothing: what is found is found by comparing."""
        return ()

    def _backward(self, event: BackwardStarted) -> None:
        if event.accumulates:
            self.gradients.append(_present(self.state))
            self.backwards.append(event.site)

    def found_any(self, first: int, owner: frozenset[int]) -> bool:
        """Return whether there were gradients as a backward began that added to them.

        That is the first since ``first`` that has changed any of the owner's: what others' leave
        them unchanged may be cleared before.
        """
        states = [*self.gradients[first:], _present(self.state)]
        for before, after in pairwise(states):
            if any(after.get(each) not in (None, before.get(each)) for each in owner):
                return not owner.isdisjoint(before)
        return False

    def _clear(self, event: GradientsCleared) -> None:
        self.cleared.append((len(self.backwards), event.site))

    def _clip(self, event: GradientsClipped) -> None:
        self.clipped.append((len(self.backwards), event.site))


def _run_loop(
    state: State, loop: Callable[[Any], object], random: RandomState, *, force: Sequence[Any] = ()
) -> Recording:
    """Run ``loop(state.given)`` and return what it did.

    Args:
        state: whose tensors are followed.
        loop: the user's.
        random: what the generators of random numbers start from.
        force: the values of the state's tensors after each step, where those of another run are
            to be gone on from.

    Raises:
        UsageError: it steps an optimizer of other parameters.
    """
    recording = Recording()
    log = _BackwardLog(state)
    recorder = _StepRecorder(state, recording, log, force)
    session = Session(
        None,
        None,
        AuditOptions(name_writers=False, report=False),
        make=lambda _recorder, _names: (log,),
    )
    random.restore()
    with (
        deterministic(state.modules) as excluded,
        recorder.hooks(),
        session,
        warnings.catch_warnings(),
    ):
        # A scheduler that was copied takes its optimizer's step for another one.
        warnings.filterwarnings("ignore", message=r"Seems like `optimizer\.step\(\)` has been over")
        loop(state.given)
    recording.left = state.gradients()
    recording.backwards = log.backwards
    recording.clips = bool(log.clipped)
    recording.excluded = excluded
    return recording


def _gradient_of(recording: Recording) -> Step:
    """Return the gradients that a run without a step has left, as those of a step."""
    return Step("", None, recording.left, tuple(recording.backwards))


class _StepRecorder:
    """Copies gradients before each step, and values after it."""

    def __init__(
        self, state: State, recording: Recording, log: _BackwardLog, force: Sequence[Any]
    ) -> None:
        self._state = state
        self._recording = recording
        self._log = log
        self._force = force
        self._seen: dict[int, int] = {}

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Follow all optimizers, and the types that layers compute in."""
        handles = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
            torch.nn.modules.module.register_module_forward_hook(self._forward),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _forward(self, _module: object, _arguments: object, output: object) -> None:
        if isinstance(output, torch.Tensor) and output.is_floating_point():
            self._recording.eps = max(self._recording.eps, torch.finfo(output.dtype).eps)

    def _before(self, optimizer: Optimizer, *_: Any) -> None:
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        positions = [self._state.position(each) for each in parameters]
        known = frozenset(position for position in positions if position is not None)
        if not known:
            raise UsageError(
                f"check_accumulation: {type(optimizer).__name__}.step() in the loop has none of "
                "the parameters that the loop was given; expected it to train what its first "
                "argument holds, as in lambda state, batches, steps: train(*state, batches, steps)"
            )
        log = self._log
        first = self._seen.get(id(optimizer), 0)
        last = self._seen[id(optimizer)] = len(log.backwards)
        self._recording.steps.append(
            Step(
                type(optimizer).__name__,
                exact_call_site(),
                self._state.gradients(known),
                tuple(log.backwards[first:last]),
                _between(log.cleared, first, last),
                _between(log.clipped, first, last),
                log.found_any(first, known),
                tuple(float(group.get("lr", 0.0)) for group in optimizer.param_groups),
                known,
            )
        )

    def _after(self, _optimizer: Optimizer, *_: Any) -> None:
        index = len(self._recording.after)
        if index < len(self._force):
            self._state.load(self._force[index])
        self._recording.after.append(self._state.values())


def _present(state: State) -> _Present:
    return {
        position: (id(tensor.grad), version_of(tensor.grad))
        for position, tensor in enumerate(state.tensors)
        if tensor.grad is not None and is_readable(tensor.grad) and bool(tensor.grad.any())
    }


def _between(events: list[tuple[int, CallSite | None]], first: int, last: int) -> CallSite | None:
    """Return where the last of these events was that came after one backward and before another."""
    inside = [site for number, site in events if first < number < last]
    return inside[-1] if inside else None
