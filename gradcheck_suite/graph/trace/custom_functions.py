"""What can be known of a custom autograd.Function: where it is, and what its backward may call."""

from __future__ import annotations

import inspect
from types import CellType, CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import torch

from gradcheck_suite._runtime.frames import definition_line
from gradcheck_suite.findings import Location

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["CustomFunctions"]

# Names without which Python code can't start a backward of its own from within backward: grad
# mode is off there, and has to be switched on before anything can be recorded.
_STARTS_A_BACKWARD = frozenset({"enable_grad", "set_grad_enabled", "set_grad_enabled_no_warn"})
# Functions that torch.compile generates: all that they depend on is an input of theirs.
_COMPILED = "torch._functorch."
_CALLS_FOLLOWED = 200


class CustomFunctions:
    """Answer questions about custom Functions, reading each class once."""

    def __init__(self) -> None:
        self._locations: dict[type, Location | None] = {}
        self._switches_grad_mode_on: dict[type, bool] = {}

    def location(self, function: type) -> Location | None:
        """Tell where a custom Function is defined; None where there is no Python source to name."""
        if function not in self._locations:
            self._locations[function] = _location(function)
        return self._locations[function]

    def may_run_backward_inside(self, function: type, context: object) -> bool:
        """Return whether backward here may reach tensors that no edge of the graph shows.

        Reentrant checkpointing and reversible layers call a module again within backward and run
        a backward through that. True as well where it can't be ruled out: the node (``context``)
        holds a callable or a module, or the code of backward, or of a Python function that it
        calls, switches grad mode on.
        """
        if function.__module__.startswith(_COMPILED):
            return False
        if any(_is_callable_state(value) for value in vars(context).values()):
            return True
        if function not in self._switches_grad_mode_on:
            backward = getattr(function, "backward", None)
            self._switches_grad_mode_on[function] = any(
                not _STARTS_A_BACKWARD.isdisjoint(code.co_names)
                for start in (backward, getattr(function, "vjp", None))
                for code in _reachable(start)
            )
        return self._switches_grad_mode_on[function]


def _location(function: type) -> Location | None:
    """Tell where its forward is defined."""
    forward = inspect.unwrap(getattr(function, "forward", None) or function)
    code = getattr(forward, "__code__", None)
    if not isinstance(code, CodeType) or code.co_filename.startswith("<"):
        return None
    return Location(code.co_filename, definition_line(code), function=function.__qualname__)


def _is_callable_state(value: object) -> bool:
    return isinstance(value, torch.nn.Module) or (
        callable(value) and not isinstance(value, (type, torch.Tensor))
    )


def _reachable(start: Any) -> Iterator[CodeType]:
    """Yield the code of ``start`` and of the Python functions that it names, outside torch."""
    seen: set[CodeType] = set()
    pending = list(_python_functions(start))
    while pending and len(seen) < _CALLS_FOLLOWED:
        function = pending.pop()
        if function.__code__ in seen:
            continue
        nested = [function.__code__]
        while nested:
            code = nested.pop()
            seen.add(code)
            yield code
            nested.extend(constant for constant in code.co_consts if isinstance(constant, CodeType))
            for name in code.co_names:
                pending.extend(_python_functions(function.__globals__.get(name)))
        for cell in function.__closure__ or ():
            pending.extend(_python_functions(_contents(cell)))


def _contents(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # nothing has been assigned to the variable yet
        return None


def _python_functions(value: object) -> Iterator[FunctionType]:
    seen = 0
    while isinstance(value, FunctionType) and seen < _CALLS_FOLLOWED:
        if not value.__module__ or not value.__module__.startswith("torch."):
            yield value
        value = getattr(value, "__wrapped__", None)
        seen += 1
