"""The loop that is checked: run over the full batch as a window of one, or over micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gradcheck_suite.accumulation.batches import copied
from gradcheck_suite.accumulation.runs import Recording, gradient_of, run_loop
from gradcheck_suite.accumulation.signatures import mistaken_argument
from gradcheck_suite.accumulation.states import States
from gradcheck_suite.verification.target.random_state import RandomState

__all__ = ["Start", "Subject"]


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
class Subject:
    """A loop, what it trains, and the batch; see ``check_accumulation``.

    Attributes:
        parts: the micro-batches.
        runs: how many runs there were.
        eps: the relative rounding error of the coarsest type that a parameter has or that a layer
            has computed in.
        concerned: what was left out of runs, in words.
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
    concerned: set[str] = field(default_factory=set)
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
        recording.steps.append(gradient_of(recording))
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
        recording = run_loop(state, loop, random, force=start.force)
        self.runs += 1
        self.names = state.names
        self.buffers = [
            position
            for position, tensor in enumerate(state.tensors)
            if not isinstance(tensor, nn.Parameter)
        ]
        self.concerned |= recording.concerned
        kinds = [each.dtype for each in state.tensors if each.requires_grad]
        self.eps = max(self.eps, recording.eps, *(torch.finfo(kind).eps for kind in kinds))
        return recording
