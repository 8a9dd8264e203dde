"""Parameters that a function reads without being given them: captured and global ones.

``lambda x: net(x)`` and ``def loss(x): return (x * scale).sum()`` depend on tensors that are no
arguments. They are made parameters of a module, so that they can be given other values: the
function is rebuilt around them, and the user's own function, cells and globals are only read.
"""

from __future__ import annotations

import dis
from types import CellType, CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gradcheck_suite.verification.target.tree import leaves_with_paths, replace_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["ReadParameters", "read_names", "with_read_parameters"]

_CONTAINERS = (list, tuple, dict)
_MOST = 256
"""Up to so many entries of a captured container are looked through for tensors. A bound on cost."""
_LOADS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_STORES = frozenset({"STORE_DEREF", "DELETE_DEREF"})
_GLOBAL_STORES = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})


class ReadParameters(nn.Module):
    """A function as a module whose parameters are those that it reads of its own accord.

    Each call hands the function the parameters and modules that this module holds at the time,
    under the names by which it knows them.
    """

    def __init__(self, function: FunctionType, read: dict[str, object]) -> None:
        super().__init__()
        self.owner = _Held()
        self._function = function
        self._values: dict[str, object] = {}
        for name, value in read.items():
            if self.owner.holds(name, value):
                self._values[name] = None if isinstance(value, nn.Module) else value

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        values = {name: self.owner.current(name, value) for name, value in self._values.items()}
        return _rebuilt(self._function, values)(*args, **kwargs)


class _Held(nn.Module):
    """Parameters and modules under the names that a function knows them by."""

    def holds(self, name: str, value: object) -> bool:
        """Take what can be varied in a value; False where a name is not to be had."""
        parts = [(name, value)] if isinstance(value, nn.Module) else list(_parts(value, name))
        if any(hasattr(self, path) or "." in path for path, _ in parts):
            return False
        for path, part in parts:
            if isinstance(part, nn.Module):
                self.add_module(path, part)
            elif isinstance(part, nn.Parameter):
                self.register_parameter(path, part)
            elif isinstance(part, torch.Tensor):
                self.register_parameter(path, nn.Parameter(part.detach()))
        return True

    def current(self, name: str, value: Any) -> object:
        """Return what stands in the place of a value now."""
        if value is None:
            return getattr(self, name)
        held = iter([path if _varies(leaf) else None for path, leaf in _leaves(value, name)])

        def fill(leaf: object) -> object:
            path = next(held)
            return leaf if path is None else getattr(self, path)

        return replace_leaves(value, fill)


def with_read_parameters(function: object) -> ReadParameters | None:
    """Return a function as a module of the parameters that it reads; None if it reads none."""
    if not isinstance(function, FunctionType):
        return None
    read = {name: value for name, value in read_names(function) if _is_varied(value)}
    module = ReadParameters(function, read) if read else None
    return module if module is not None and any(True for _ in module.parameters()) else None


def _is_varied(value: object) -> bool:
    if isinstance(value, nn.Module):
        refused = (torch.jit.ScriptModule, nn.DataParallel)
        return not isinstance(value, refused) and any(
            parameter.requires_grad and not isinstance(parameter, nn.UninitializedParameter)
            for parameter in value.parameters()
        )
    return any(True for _ in _parts(value, ""))


def _parts(value: object, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    for path, leaf in _leaves(value, name):
        if _varies(leaf):
            yield path, leaf


def _leaves(value: Any, name: str) -> list[tuple[str, Any]]:
    """Take apart a tensor, or a container of a few tensors and nothing else."""
    if type(value) not in _CONTAINERS:
        return [(name, value)] if isinstance(value, torch.Tensor) else []
    if len(value) > _MOST or any(type(child) in _CONTAINERS for child in _children(value)):
        return []
    leaves = list(leaves_with_paths(value, name))
    return leaves if all(isinstance(leaf, torch.Tensor) for _, leaf in leaves) else []


def _children(value: Any) -> Iterable[object]:
    return value.values() if isinstance(value, dict) else value


def _varies(leaf: object) -> bool:
    return (
        isinstance(leaf, torch.Tensor)
        and leaf.requires_grad
        and leaf.is_leaf
        and not isinstance(leaf, nn.UninitializedParameter)
        and leaf.layout is torch.strided
    )


def read_names(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Yield what a function reads from its cells and from its module, unless it writes there."""
    loaded, stored, writes = set[str](), set[str](), False
    for code in _codes(function.__code__):
        for instruction in dis.get_instructions(code):
            if instruction.opname in _LOADS:
                loaded.add(instruction.argval)
            elif instruction.opname in _STORES:
                stored.add(instruction.argval)
            writes = writes or instruction.opname in _GLOBAL_STORES
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    captured = {name: _contents(cell) for name, cell in cells}
    for name, value in captured.items():
        if name not in stored:
            yield name, value
    for name in () if writes else sorted(loaded - captured.keys()):
        if name in function.__globals__:
            yield name, function.__globals__[name]


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _contents(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return None


class _Overlay(dict[str, object]):
    """Globals of which some have other values; the others are looked up where they are."""

    def __init__(self, values: dict[str, object], below: dict[str, object]) -> None:
        super().__init__(values)
        self._below = below

    def __missing__(self, name: str) -> object:
        return self._below[name]


def _rebuilt(function: FunctionType, values: dict[str, object]) -> Callable[..., Any]:
    """Make the function anew, with other values for some of the names that it reads."""
    captured = function.__code__.co_freevars
    closure = tuple(
        CellType(values[name]) if name in values else cell
        for name, cell in zip(captured, function.__closure__ or (), strict=True)
    )
    others = {name: value for name, value in values.items() if name not in captured}
    names = _Overlay(others, function.__globals__) if others else function.__globals__
    rebuilt = FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, closure or None
    )
    rebuilt.__kwdefaults__ = function.__kwdefaults__
    vars(rebuilt).update(vars(function))
    return rebuilt
