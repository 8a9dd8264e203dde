"""Random number generators: the same draws in every evaluation, the user's states given back.

Besides the global ones there are generators of a program's own: ``torch.rand(..., generator=g)``,
``rng.normal()`` of NumPy and ``random.Random`` draw on objects that a function holds, in a cell, a
global, an attribute. Those that can be reached from it give the same numbers in every evaluation,
and the user gets them back as they were.
"""

from __future__ import annotations

import random
import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gradcheck_suite.verification.target.closures import read_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["OwnGenerators", "RandomState", "preserved_randomness", "reached_generators"]


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
        """Return whether no generator has drawn anything since; CUDA ones are not looked at."""
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


_CONTAINERS = (list, tuple, set, dict)
_MOST_ENTRIES = 256
"""Up to so many entries of a container are looked through for generators. A bound on cost."""
_DEEPEST = 4
"""How many steps away from a function generators are looked for: an attribute of an object in a
container that a closure holds is three away. A bound on cost."""
_LIBRARIES = ("torch", "numpy", "builtins")


@dataclass(frozen=True, slots=True)
class OwnGenerators:
    """Generators, and what gives each back the state that it had when they were collected."""

    generators: tuple[Any, ...] = ()
    states: tuple[Any, ...] = ()

    @classmethod
    def reached_from(cls, *roots: object) -> OwnGenerators:
        """Collect the generators that these functions, modules and arguments hold."""
        found = reached_generators(*roots)
        return cls(found, tuple(_state(generator) for generator in found))

    def restore(self) -> None:
        """Rewind them."""
        for generator, state in zip(self.generators, self.states, strict=True):
            _rewind(generator, state)

    def are_current(self) -> bool:
        """Return whether none has drawn anything since."""
        return all(
            _same(_state(generator), state)
            for generator, state in zip(self.generators, self.states, strict=True)
        )


def reached_generators(*roots: object) -> tuple[Any, ...]:
    """Return the generators that a few steps lead to: cells, globals, attributes, containers."""
    found: dict[int, Any] = {}
    seen: set[int] = set()
    pending = [(root, 0) for root in roots]
    while pending:
        value, depth = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if _is_generator(value):
            found[id(value)] = value
        elif depth < _DEEPEST:
            pending += [(child, depth + 1) for child in _children(value)]
    return tuple(found.values())


def _children(value: Any) -> Iterator[object]:
    if value is None or isinstance(value, (torch.Tensor, str, bytes, int, float, ModuleType)):
        return
    if isinstance(value, MethodType):
        yield value.__self__
        yield value.__func__
    elif isinstance(value, FunctionType):
        if not _is_of_a_library(value):
            yield from (read for _, read in read_names(value))
            yield from value.__defaults__ or ()
            yield from (value.__kwdefaults__ or {}).values()
    elif isinstance(value, type):
        if issubclass(value, torch.autograd.Function) and not _is_of_a_library(value):
            yield from _methods(value)
    elif isinstance(value, _CONTAINERS):
        if len(value) <= _MOST_ENTRIES:
            yield from value.values() if isinstance(value, dict) else value
    elif isinstance(value, nn.Module):
        for part in value.modules():
            yield from _attributes(part)
    elif not _is_of_a_library(type(value)):
        yield from _attributes(value)


def _attributes(value: object) -> Iterator[object]:
    yield from getattr(value, "__dict__", {}).values()
    if not _is_of_a_library(type(value)):
        yield from _methods(type(value))


def _methods(owner: type) -> Iterable[object]:
    for name, member in vars(owner).items():
        if name.startswith("__") and name != "__call__":
            continue
        function = getattr(member, "__func__", member)
        if isinstance(function, FunctionType):
            yield function


def _is_of_a_library(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).split(".", 1)[0] in _LIBRARIES


def _is_generator(value: object) -> bool:
    if isinstance(value, torch.Generator):
        return value is not torch.default_generator
    if isinstance(value, random.Random):
        return not isinstance(value, random.SystemRandom)
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(
        value, (numpy.random.Generator, numpy.random.RandomState)
    )


def _state(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if hasattr(generator, "bit_generator"):
        return generator.bit_generator.state
    return generator.get_state()


def _rewind(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict):
        return all(_same(value, two[key]) for key, value in one.items())
    if isinstance(one, tuple):
        return all(map(_same, one, two))
    return bool((one == two).all()) if hasattr(one, "all") else bool(one == two)
