"""The register of correct Functions that mutants are made of, and their inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Arguments = tuple[Any, ...]


class Draw:
    """Draw inputs, the same for the same seed: normal float64 tensors that require grad."""

    def __init__(self, seed: int, dtype: torch.dtype = torch.float64) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._dtype = dtype

    def __call__(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        drawn = scale * torch.randn(*shape, generator=self._generator, dtype=torch.float64)
        return drawn.to(self._dtype).requires_grad_()

    def positive(self, *shape: int) -> torch.Tensor:
        return (self(*shape).detach().abs() + 0.5).requires_grad_()

    def well_conditioned(self, size: int) -> torch.Tensor:
        drawn = self(size, size).detach() + 3.0 * torch.eye(size, dtype=self._dtype)
        return drawn.requires_grad_()

    def complex(self, *shape: int) -> torch.Tensor:
        return torch.complex(self(*shape).detach(), self(*shape).detach()).requires_grad_()

    def index(self, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(high, shape, generator=self._generator)


@dataclass(frozen=True)
class Original:
    """A Function whose backward is right.

    ``inputs`` makes arguments of ``apply``; ``call`` wraps ``apply`` where the Function can't be
    called by itself.
    """

    function: type[torch.autograd.Function]
    inputs: Callable[[Draw], Arguments]
    call: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None

    def target(self, function: type[torch.autograd.Function]) -> Any:
        """Return what is checked: ``function`` stands for the original's own."""
        return function if self.call is None else self.call(function.apply)


ORIGINALS: dict[str, Original] = {}


def original(
    inputs: Callable[[Draw], Arguments],
    call: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
) -> Callable[[type[torch.autograd.Function]], type[torch.autograd.Function]]:
    """Register a Function with the inputs that it is checked at."""

    def register(function: type[torch.autograd.Function]) -> type[torch.autograd.Function]:
        ORIGINALS[function.__name__] = Original(function, inputs, call)
        return function

    return register
