"""Random number generators of a program's own, rewound before each evaluation as the global ones.

``torch.rand(..., generator=g)``, ``rng.normal()`` of NumPy and ``random.Random`` draw on objects
that a function holds: in a cell, a global, an attribute. Those that can be reached from it give the
same numbers in every evaluation, and the user gets them back as they were.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gradcheck_suite.verification.closures import read_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["OwnGenerators", "reached_generators"]

_CONTAINERS = (list, tuple, set, dict)
_MOST_ENTRIES = 256
_DEEPEST = 4
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
        """Say whether none has drawn anything since."""
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
