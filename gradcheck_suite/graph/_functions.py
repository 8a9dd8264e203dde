"""What can be known of a custom autograd.Function: where it is, and what its backward may call."""

from __future__ import annotations

import inspect
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import torch

from gradcheck_suite.findings import Location

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["function_location", "may_run_backward_inside"]

# Names without which Python code can't start a backward of its own from within backward: grad
# mode is off there, and has to be switched on before anything can be recorded.
_STARTS_A_BACKWARD = frozenset({"enable_grad", "set_grad_enabled", "set_grad_enabled_no_warn"})
# Functions that torch.compile generates: all that they depend on is an input of theirs.
_COMPILED = "torch._functorch."
_CALLS_FOLLOWED = 200


def function_location(function: type) -> Location | None:
    """Tell where a custom Function is defined: the line of its class, or else of its forward.

    None where there is no Python source to name.
    """
    forward = inspect.unwrap(getattr(function, "forward", None) or function)
    code = getattr(forward, "__code__", None)
    if not isinstance(code, CodeType) or code.co_filename.startswith("<"):
        return None
    line = code.co_firstlineno
    try:
        lines, first = inspect.getsourcelines(function)
        file = inspect.getsourcefile(function)
    except (OSError, TypeError):
        file, first, lines = None, 0, []
    # Source text is looked up by name: trust it only if forward lies within what it found.
    if file == code.co_filename and first <= line < first + len(lines):
        line = first
    return Location(path=code.co_filename, line=line, function=function.__qualname__)


def may_run_backward_inside(function: type, context: object) -> bool:
    """Say whether this Function's backward may reach tensors that no edge of the graph shows.

    Reentrant checkpointing and reversible layers call a module again within backward and run a
    backward through that. True as well where it can't be ruled out: the node holds a callable or
    a module, or the code of backward, or of a Python function that it calls, switches grad mode
    on.
    """
    if function.__module__.startswith(_COMPILED):
        return False
    if any(_is_callable_state(value) for value in vars(context).values()):
        return True
    backward = getattr(function, "backward", None) or getattr(function, "vjp", None)
    return any(not _STARTS_A_BACKWARD.isdisjoint(code.co_names) for code in _reachable(backward))


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
        for value in inspect.getclosurevars(function).nonlocals.values():
            pending.extend(_python_functions(value))


def _python_functions(value: object) -> Iterator[FunctionType]:
    seen = 0
    while isinstance(value, FunctionType) and seen < _CALLS_FOLLOWED:
        if not value.__module__ or not value.__module__.startswith("torch."):
            yield value
        value = getattr(value, "__wrapped__", None)
        seen += 1
