"""Make one recorded call again, with other values for the tensors that require grad."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.func import functional_call

from gradcheck_suite.verification.target.tree import leaves_with_paths, replace_leaves

if TYPE_CHECKING:
    from gradcheck_suite.verification.target.call_recorder import Call
    from gradcheck_suite.verification.target.random_state import RandomState

__all__ = ["ReplayableCall", "copied_module", "replayable"]

_INTO_FIRST = ("__setitem__", "__delitem__")


@dataclass(frozen=True, slots=True)
class ReplayableCall:
    """A call that can be made again and again without a trace.

    Attributes:
        values: the tensors that require grad: those among the arguments, then the parameters.
        target: what is called, for the thorough check.
        args: its positional arguments, copies.
        kwargs: its keyword arguments, copies.
        evaluate: makes the call with other values; draws the same random numbers each time.
    """

    values: tuple[torch.Tensor, ...]
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    evaluate: Callable[[Sequence[torch.Tensor]], object]


def replayable(call: Call, randomness: RandomState) -> ReplayableCall:
    """Copy what a call is about to work on.

    Args:
        call: about to be made.
        randomness: the states of the generators now.
    """
    tree = (call.args, dict(call.kwargs))
    args, kwargs = replace_leaves(tree, _copied)
    wanted = [_varies(leaf) for _, leaf in leaves_with_paths(tree, "")]
    inputs = [
        leaf
        for (_, leaf), varies in zip(leaves_with_paths((args, kwargs), ""), wanted, strict=True)
        if varies
    ]
    target = call.target
    names: list[str] = []
    parameters: list[torch.Tensor] = []
    if isinstance(target, nn.Module):
        target = copied_module(target)
        named = [(name, value) for name, value in target.named_parameters() if value.requires_grad]
        names, parameters = [name for name, _ in named], [value for _, value in named]
    elif call.kind == "operation" and _writes(call.name):
        target = _as_function(call)
    pure = call.kind == "operation" and target is call.target
    buffered = isinstance(target, nn.Module) and any(True for _ in target.buffers())
    random: list[bool] = []

    def evaluate(values: Sequence[torch.Tensor]) -> object:
        remaining = iter(values[: len(inputs)])
        flags = iter(wanted)

        def fill(leaf: Any) -> Any:
            if next(flags):
                return next(remaining)
            if pure or not isinstance(leaf, torch.Tensor):
                return leaf
            return leaf.detach().clone()

        given, named = replace_leaves((args, kwargs), fill)
        if not random or random[0]:
            randomness.restore()
        try:
            if isinstance(target, nn.Module):
                state = dict(zip(names, values[len(inputs) :], strict=True))
                if buffered:
                    state.update((n, buffer.clone()) for n, buffer in target.named_buffers())
                return functional_call(target, state, given, named)
            made: Any = target
            return (made.apply if call.kind == "function" else made)(*given, **named)
        finally:
            if not random:
                random.append(not randomness.is_current())

    if call.kind == "operation" and target is call.target:
        target = _named(target, call.name)
    return ReplayableCall((*inputs, *parameters), target, args, kwargs, evaluate)


def copied_module(module: nn.Module) -> nn.Module:
    """Copy a module but for its parameters, which nobody writes; itself if it can't be copied."""
    shared: dict[int, Any] = {id(value): value for value in module.parameters()}
    try:
        return copy.deepcopy(module, shared)
    except Exception:  # noqa: BLE001 - anything can refuse to be copied
        return module


def _varies(leaf: object) -> bool:
    return (
        isinstance(leaf, torch.Tensor)
        and leaf.requires_grad
        and (leaf.is_floating_point() or leaf.is_complex())
    )


def _copied(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf.detach().clone().requires_grad_(_varies(leaf))


def _writes(name: str) -> bool:
    """Return whether an op of this name may write into its arguments."""
    if name.startswith("__"):
        return name in _INTO_FIRST or name.startswith("__i")
    return name.endswith("_")


def _named(operation: Callable[..., object], name: str) -> Callable[..., object]:
    """Give an op, which may be a builtin without a signature, the name it is reported under."""

    def call(*args: Any, **kwargs: Any) -> object:
        return operation(*args, **kwargs)

    call.__name__ = call.__qualname__ = name
    # Scripts call it by the name that it has in torch.
    call.operation = operation  # type: ignore[attr-defined]
    return call


def _as_function(call: Call) -> Callable[..., object]:
    """Make an op a function that leaves its arguments alone and returns what it wrote."""
    into_first = call.name in _INTO_FIRST

    def operation(*args: Any, **kwargs: Any) -> object:
        given, named = replace_leaves((args, kwargs), _cloned)
        result = call.target(*given, **named)
        return given[0] if into_first else result

    operation.__name__ = operation.__qualname__ = call.name
    return operation


def _cloned(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf
