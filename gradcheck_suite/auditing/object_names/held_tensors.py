"""The variable, attribute or item that running functions hold a tensor by, and who sets it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gradcheck_suite.auditing.call_sites import user_frames, variables_of
from gradcheck_suite.auditing.source_analysis.source import only_line

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from torch.autograd.graph import Node

    from gradcheck_suite.findings import Location

__all__ = ["HeldTensor", "held_over", "only_assignment"]

_FRAMES = 12
"""Running functions of the user's that are looked through. A bound on cost, as in
``tensor_names``."""

_ITEMS = 100
"""Items of one container that are looked at. A bound on cost."""


@dataclass(frozen=True, slots=True)
class HeldTensor:
    """How the program reaches a tensor.

    Attributes:
        name: as it would be written where it is used, such as ``state["features"]``.
        key: the part of the name that an assignment sets; None for an item of a list.
    """

    name: str
    key: str | None


def held_over(nodes: Container[Node]) -> HeldTensor | None:
    """Return what holds a tensor whose graph begins at one of these nodes, or None."""
    for count, frame in enumerate(user_frames()):
        if count >= _FRAMES:
            return None
        for name, value in variables_of(frame).items():
            for held, tensor in _tensors_in(name, value):
                node = tensor.grad_fn
                if node is not None and node in nodes:
                    return held
    return None


def _tensors_in(name: str, value: Any) -> Iterator[tuple[HeldTensor, torch.Tensor]]:
    """Yield the tensors in a variable, in its items or in its attributes."""
    if type(value) is torch.Tensor:
        yield HeldTensor(name, name), value
    elif type(value) is dict:
        for key, item in list(value.items())[:_ITEMS]:
            if type(item) is torch.Tensor:
                yield HeldTensor(f"{name}[{key!r}]", key if isinstance(key, str) else None), item
    elif type(value) in (list, tuple):
        for index, item in enumerate(value[:_ITEMS]):
            if type(item) is torch.Tensor:
                yield HeldTensor(f"{name}[{index}]", None), item
    else:
        own = getattr(value, "__dict__", None)
        for key, item in list(own.items())[:_ITEMS] if type(own) is dict else ():
            if type(item) is torch.Tensor:
                yield HeldTensor(f"{name}.{key}", key), item


def only_assignment(key: str) -> Location | None:
    """Return the one line of the user's modules that sets this name, attribute or key."""
    return only_line(key, lambda tree: _lines_setting(tree, key))


def _lines_setting(tree: ast.Module, key: str) -> Iterator[int]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) if name == key:
                yield node.lineno
            case ast.Attribute(attr=name, ctx=ast.Store()) if name == key:
                yield node.lineno
            case ast.Subscript(slice=ast.Constant(value=name), ctx=ast.Store()) if name == key:
                yield node.lineno
            case ast.Dict(keys=keys, values=values):
                for each, value in zip(keys, values, strict=True):
                    if isinstance(each, ast.Constant) and each.value == key:
                        yield value.lineno
            case _:
                pass
