"""Run a training loop once and note what gradient each step of its optimizers was given."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gradcheck_suite._memory import is_readable
from gradcheck_suite._torch_compat import version_of
from gradcheck_suite.accumulation.quiet import quiet
from gradcheck_suite.auditing.call_sites import CallSite, exact_call_site
from gradcheck_suite.auditing.events import BackwardStarted, GradientsCleared, GradientsClipped
from gradcheck_suite.auditing.options import AuditOptions
from gradcheck_suite.auditing.session import Session
from gradcheck_suite.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch.optim import Optimizer

    from gradcheck_suite.accumulation.states import State
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.findings import Finding
    from gradcheck_suite.verification.target.random_state import RandomState

__all__ = ["Recording", "Step", "gradient_of", "run_loop"]


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
        concerned: what was left out of the run, in words.
        eps: the relative rounding error of the coarsest type that a layer has computed in.
    """

    steps: list[Step] = field(default_factory=list)
    after: list[list[Tensor]] = field(default_factory=list)
    backwards: list[CallSite | None] = field(default_factory=list)
    left: dict[int, Tensor] = field(default_factory=dict)
    clips: bool = False
    concerned: set[str] = field(default_factory=set)
    eps: float = 0.0


_Present: TypeAlias = "dict[int, tuple[int, int]]"
"""The identity and version of each gradient that is not zero, by the position of its parameter."""


class _Witness:
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


def run_loop(
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
    witness = _Witness(state)
    recorder = _StepRecorder(state, recording, witness, force)
    session = Session(
        None,
        None,
        AuditOptions(name_writers=False, report=False),
        make=lambda _recorder, _names: (witness,),
    )
    random.restore()
    with (
        quiet(state.modules) as concerned,
        recorder.hooks(),
        session,
        warnings.catch_warnings(),
    ):
        # A scheduler that was copied takes its optimizer's step for another one.
        warnings.filterwarnings("ignore", message=r"Seems like `optimizer\.step\(\)` has been over")
        loop(state.given)
    recording.left = state.gradients()
    recording.backwards = witness.backwards
    recording.clips = bool(witness.clipped)
    recording.concerned = concerned
    return recording


def gradient_of(recording: Recording) -> Step:
    """Return the gradients that a run without a step has left, as those of a step."""
    return Step("", None, recording.left, tuple(recording.backwards))


class _StepRecorder:
    """Copies gradients before each step, and values after it."""

    def __init__(
        self, state: State, recording: Recording, witness: _Witness, force: Sequence[Any]
    ) -> None:
        self._state = state
        self._recording = recording
        self._witness = witness
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
        witness = self._witness
        first = self._seen.get(id(optimizer), 0)
        last = self._seen[id(optimizer)] = len(witness.backwards)
        self._recording.steps.append(
            Step(
                type(optimizer).__name__,
                exact_call_site(),
                self._state.gradients(known),
                tuple(witness.backwards[first:last]),
                _between(witness.cleared, first, last),
                _between(witness.clipped, first, last),
                witness.found_any(first, known),
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
