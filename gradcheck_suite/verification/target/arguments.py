"""Read what the user gave to be checked: what to call, with which arguments under which names."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from gradcheck_suite._runtime.memory import require_memory
from gradcheck_suite.errors import UsageError
from gradcheck_suite.verification.target.closures import with_read_parameters
from gradcheck_suite.verification.text import describe

__all__ = ["BoundMethod", "name_arguments", "resolve_target", "split_arguments"]

# The class that torch.sin and its like say they are methods of.
_TORCH_FUNCTIONS = "_VariableFunctionsClass."


class BoundMethod(nn.Module):
    """Let a method of a module be called with other parameters, as ``forward`` can be."""

    def __init__(self, owner: nn.Module, name: str) -> None:
        super().__init__()
        self.owner = owner
        self.method_name = name

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method."""
        return getattr(self.owner, self.method_name)(*args, **kwargs)


def resolve_target(
    target: Any, *, closures: bool = True
) -> tuple[Callable[..., object], nn.Module | None, Any, str]:
    """Tell how to call what the user gave.

    Args:
        target: a function, a module, a bound method of a module or an ``autograd.Function`` class.
        closures: whether parameters that a function reads without being given them count.

    Returns:
        What to call; a copy of the module whose parameters it uses, if there is one; what has the
        signature; and its name.

    Raises:
        UsageError: it can't be called.
    """
    if isinstance(target, type) and issubclass(target, torch.autograd.Function):
        return target.apply, None, target, target.__name__
    if isinstance(target, type) and issubclass(target, nn.Module):
        raise UsageError(
            f"{target.__name__} is a module class; give an instance of it, such as "
            f"{target.__name__}(...)"
        )
    if not callable(target):
        raise UsageError(
            "expected a function, a module or an autograd.Function to check, got "
            f"{describe(target)}"
        )
    owner = getattr(target, "__self__", None)
    if isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
        return target, None, owner, owner.__name__
    if isinstance(target, nn.DataParallel):
        raise UsageError(
            "torch can't replace the parameters of a DataParallel module; check the module that it "
            "wraps, its attribute .module"
        )
    if isinstance(target, torch.jit.ScriptModule):
        return _isolated(target), None, target.forward, type(target).__name__
    if isinstance(target, nn.Module):
        return target, _isolated(target), target.forward, type(target).__name__
    if isinstance(owner, nn.Module):
        title = f"{type(owner).__name__}.{target.__name__}"
        return target, BoundMethod(_isolated(owner), target.__name__), target, title
    name = getattr(target, "__qualname__", type(target).__name__)
    reading = with_read_parameters(target) if closures else None
    module = None if reading is None else _isolated(reading)
    return target, module, target, name.replace(_TORCH_FUNCTIONS, "torch.")


def _isolated(module: nn.Module) -> nn.Module:
    """Copy a module, so that what its forward writes on itself is not written on the user's.

    Raises:
        UsageError: the memory of a parameter or buffer was freed: copying ends the process.
    """
    for kind, named in (("parameter", module.named_parameters), ("buffer", module.named_buffers)):
        for name, tensor in named():
            require_memory(tensor, f"{kind} `{name}`")
    try:
        return copy.deepcopy(module)
    except Exception:  # noqa: BLE001 - anything can refuse to be copied
        return module


def split_arguments(
    inputs: object, kwargs: Mapping[str, object] | None
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Split the user's inputs into positional and keyword arguments.

    Raises:
        UsageError: names are no names, or given twice.
    """
    if not _is_named(kwargs or {}):
        raise UsageError(
            f"kwargs must map argument names to values, got {describe(kwargs)}; give positional "
            "arguments as `inputs`"
        )
    keyword = dict(kwargs or {})
    # Subclasses are one argument: a named tuple or a list with a meaning of its own.
    if type(inputs) is tuple or type(inputs) is list:
        return tuple(inputs), keyword
    if type(inputs) is dict:
        if not _is_named(inputs):
            raise UsageError(
                "a dict of inputs holds keyword arguments, so its keys must be names; to pass one "
                "dict as an argument write inputs=(the_dict,)"
            )
        twice = sorted(keyword.keys() & inputs.keys())
        if twice:
            raise UsageError(f"argument {twice[0]!r} is given both in inputs and in kwargs")
        return (), {**inputs, **keyword}
    return (inputs,), keyword


def name_arguments(
    signature_of: Any, positional: tuple[object, ...], keyword: dict[str, object], title: str
) -> list[str]:
    """Name the positional arguments as the signature does.

    Raises:
        UsageError: the arguments do not fit the signature.
    """
    names = [f"inputs[{index}]" for index in range(len(positional))]
    leading: tuple[object, ...] = ()
    if isinstance(signature_of, type) and issubclass(signature_of, torch.autograd.Function):
        if signature_of.setup_context is torch.autograd.Function.setup_context:
            leading = (None,)
        signature_of = signature_of.forward
    try:
        signature = inspect.signature(signature_of)
    except (TypeError, ValueError):
        return names
    try:
        bound = signature.bind(*leading, *positional, **keyword)
    except TypeError as error:
        raise UsageError(
            f"{title}{signature} can't be called with the given inputs: {error}"
        ) from error
    found: list[str] = []
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            found += [f"{name}[{index}]" for index in range(len(value))]
        elif kind is not inspect.Parameter.VAR_KEYWORD and name not in keyword:
            found.append(name)
    found = found[len(leading) :]
    return found if len(found) == len(positional) else names


def _is_named(arguments: object) -> bool:
    return isinstance(arguments, Mapping) and all(isinstance(name, str) for name in arguments)
