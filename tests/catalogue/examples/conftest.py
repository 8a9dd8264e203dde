from __future__ import annotations

import sys
import types
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch

from gradcheck_suite import catalogue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def _executed(code: str, which: str) -> SimpleNamespace:
    entry = catalogue.find(code)
    assert entry is not None
    module = types.ModuleType(f"{code.lower()}_{which}")
    # torch.compile of torch 2.6 imports the module of what it compiles.
    sys.modules[module.__name__] = module
    exec(compile(getattr(entry, which), f"<{code} {which}>", "exec"), vars(module))
    return SimpleNamespace(**vars(module))


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def warn_always() -> Iterator[None]:
    """Let torch repeat the warnings that it gives once per process, whatever ran before."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


@pytest.fixture
def example() -> Callable[[str], SimpleNamespace]:
    """Execute the example of an entry and return its names."""
    return lambda code: _executed(code, "example")


@pytest.fixture
def instead() -> Callable[[str], SimpleNamespace]:
    """Execute the corrected example of an entry and return its names."""
    return lambda code: _executed(code, "instead")


@pytest.fixture
def snapshot() -> Callable[[torch.nn.Module], list[torch.Tensor]]:
    """Copy the values of a module's parameters."""
    return lambda module: [parameter.detach().clone() for parameter in module.parameters()]


@pytest.fixture
def same() -> Callable[..., bool]:
    """Compare two lists of tensors bit for bit."""

    def compare(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
        return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))

    return compare


@pytest.fixture
def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Make three batches for a regression from 8 features to 1."""
    return [(torch.randn(4, 8), torch.randn(4, 1)) for _ in range(3)]
