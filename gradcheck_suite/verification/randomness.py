"""Random number generators: the same draws in every evaluation, the user's states given back."""

from __future__ import annotations

import random
import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["RandomState", "preserved_randomness"]


@dataclass(frozen=True, slots=True)
class RandomState:
    """The states of torch's, Python's and NumPy's global generators at one moment.

    CUDA generators are held where CUDA is in use. Asking for them before would start CUDA, and
    NumPy counts only where the program has imported it. ``seed`` is what they were seeded with just
    before, if anything: to seed NumPy's takes a thirtieth of the time of setting its state.
    """

    cpu: torch.Tensor
    cuda: tuple[torch.Tensor, ...]
    python: Any
    numpy: Any
    seed: int | None = None

    @classmethod
    def capture(cls) -> RandomState:
        """Read the states as they are now."""
        numpy = sys.modules.get("numpy")
        cuda = tuple(torch.cuda.get_rng_state_all()) if _cuda_is_used() else ()
        return cls(
            cpu=torch.get_rng_state(),
            cuda=cuda,
            python=random.getstate(),
            numpy=None if numpy is None else numpy.random.get_state(),
        )

    def restore(self) -> None:
        """Put the states back."""
        torch.set_rng_state(self.cpu)
        for device, state in enumerate(self.cuda):
            torch.cuda.set_rng_state(state, device)
        random.setstate(self.python)
        if self.numpy is None:
            return
        generator = sys.modules["numpy"].random
        if self.seed is None:
            generator.set_state(self.numpy)
        else:
            generator.seed(self.seed % 2**32)

    def is_current(self) -> bool:
        """Say whether no generator has drawn anything since; CUDA ones are not looked at."""
        if not torch.equal(self.cpu, torch.get_rng_state()) or self.cuda:
            return False
        if self.python != random.getstate():
            return False
        if self.numpy is None:
            return True
        now = sys.modules["numpy"].random.get_state()
        return bool(self.numpy[2:] == now[2:] and (self.numpy[1] == now[1]).all())

    @classmethod
    def from_seed(cls, seed: int) -> RandomState:
        """Make the states that seeding every generator in use with ``seed`` gives.

        The generators themselves are left as they are.
        """
        before = cls.capture()
        try:
            # torch.manual_seed would queue a seed for devices that nobody has started yet.
            torch.set_rng_state(torch.Generator().manual_seed(seed).get_state())
            if _cuda_is_used():
                torch.cuda.manual_seed_all(seed)
            random.seed(seed)
            if before.numpy is not None:
                sys.modules["numpy"].random.seed(seed % 2**32)
            return replace(cls.capture(), seed=seed)
        finally:
            before.restore()


@contextmanager
def preserved_randomness() -> Iterator[None]:
    """Give every global generator its state back on the way out, whatever happens inside."""
    before = RandomState.capture()
    try:
        yield
    finally:
        before.restore()


def _cuda_is_used() -> bool:
    # Untyped in torch 2.13.
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
