"""What a loop trains: its modules, made anew or copied for each run, and their values."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from gradcheck_suite._runtime.memory import require_memory
from gradcheck_suite.errors import UsageError
from gradcheck_suite.verification.target.random_state import RandomState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from torch import Tensor

__all__ = ["State", "States", "is_made_by"]

_DEEPEST = 4
"""How many levels of containers and objects are searched for modules. A bound on cost."""


class State:
    """What one run trains.

    Attributes:
        given: what the loop is given.
        modules: the modules in it, outermost ones only.
        tensors: their parameters and buffers, in an order that is the same in each run.
        names: what these are called.
    """

    def __init__(self, given: Any) -> None:
        self.given = given
        self.modules = tuple(_modules_in(given))
        found: dict[int, tuple[str, Tensor]] = {}
        for module in self.modules:
            for named in (module.named_parameters, module.named_buffers):
                for name, tensor in named():
                    found.setdefault(id(tensor), (name, tensor))
        self.tensors = [tensor for _, tensor in found.values()]
        self.names = [name for name, _ in found.values()]
        self._positions = {key: position for position, key in enumerate(found)}

    def position(self, tensor: Tensor) -> int | None:
        """Return which of ``tensors`` this is."""
        return self._positions.get(id(tensor))

    def values(self) -> list[Tensor]:
        """Return copies of all tensors."""
        for name, tensor in zip(self.names, self.tensors, strict=True):
            require_memory(tensor, f"check_accumulation: `{name}`")
        return [tensor.detach().clone() for tensor in self.tensors]

    def load(self, values: Sequence[Tensor], moved_by: int | None = None) -> None:
        """Give the tensors these values, parameters each moved by a rounding error if asked for.

        Raises:
            UsageError: they are of other shapes.
        """
        if [each.shape for each in values] != [each.shape for each in self.tensors]:
            raise UsageError(
                "check_accumulation: make() returned a model of another shape than before; expected"
                " the same model each time"
            )
        for index, (tensor, value) in enumerate(zip(self.tensors, values, strict=True)):
            is_moved = moved_by is not None and tensor.requires_grad
            # Past the version counters: a graph that a loop keeps has its own opinion of them.
            tensor.data.copy_(_moved(value, moved_by, index) if is_moved else value)

    def gradients(self, positions: Collection[int] | None = None) -> dict[int, Tensor]:
        """Return copies of the gradients there are, or of those at ``positions``."""
        return {
            position: _dense_copy(tensor.grad)
            for position, tensor in enumerate(self.tensors)
            if tensor.grad is not None and (positions is None or position in positions)
        }

    def clear_gradients(self) -> None:
        """Let no parameter have a gradient."""
        for tensor in self.tensors:
            tensor.grad = None


class States:
    """Makes the same state again and again; nothing of the user's is trained.

    Args:
        make: makes it, or is it; what it holds a second time is copied before each run.
        seed: of the random numbers that are drawn for it.

    Raises:
        UsageError: there is no model in it.
    """

    def __init__(self, make: Any, seed: int) -> None:
        is_made = is_made_by(make)
        self._make: Callable[[], Any] = make if is_made else partial(_same, make)
        self._random = RandomState.from_seed(seed)
        self._first = self._made()
        self.values = self._first.values()
        if not any(tensor.requires_grad for tensor in self._first.tensors):
            raise UsageError(
                "check_accumulation: no trainable parameter in what "
                f"{'make() returned' if is_made else 'was given'}; expected the model and its "
                "optimizer, as in lambda: (model, optimizer), or an object that holds them"
            )

    def new(self) -> State:
        """Return a state that no run has touched."""
        state = self._made()
        known = set(map(id, self._first.modules))
        if known.isdisjoint(map(id, state.modules)):
            return state
        try:
            return State(copy.deepcopy(state.given))
        except Exception as error:
            raise UsageError(
                f"check_accumulation: the model and what trains it can't be copied ({error}); give "
                "a function that makes them anew at each call"
            ) from error

    def _made(self) -> State:
        self._random.restore()
        return State(self._make())


def is_made_by(make: Any) -> bool:
    """Return whether what a loop trains is to be made by a call, and not this itself."""
    return callable(make) and not isinstance(make, (nn.Module, Optimizer))


def _dense_copy(gradient: Tensor) -> Tensor:
    require_memory(gradient, "check_accumulation: the gradient of a parameter")
    whole = gradient.detach()
    return whole.to_dense() if whole.layout != torch.strided else whole.clone()


def _same(given: Any) -> Any:
    return given


def _moved(value: Tensor, by: int | None, index: int) -> Tensor:
    generator = torch.Generator().manual_seed((by or 0) * 65_537 + index)
    signs = torch.rand(value.shape, generator=generator, dtype=torch.float64).mul_(2).sub_(1)
    factor = signs.mul_(torch.finfo(value.dtype).eps).add_(1).to(value.device)
    wide = torch.complex128 if value.is_complex() else torch.float64
    return (value.to(wide) * factor).to(value.dtype)


def _modules_in(value: Any) -> Iterator[nn.Module]:
    seen: set[int] = set()
    level = [value]
    for _ in range(_DEEPEST):
        below: list[Any] = []
        for each in level:
            if id(each) in seen:
                continue
            seen.add(id(each))
            if isinstance(each, nn.Module):
                yield each
            else:
                below += _held_by(each)
        level = below


def _held_by(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, (str, bytes, type, ModuleType, torch.Tensor, Optimizer)):
        return []
    if dataclasses.is_dataclass(value):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    return list(getattr(value, "__dict__", {}).values())
