"""Nested containers of tensors: take the leaves out under readable names, put others in.

Known containers are tuples (named ones too), lists, mappings and dataclass instances. Everything
else is a leaf and travels unchanged.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["leaves_with_paths", "replace_leaves"]


def leaves_with_paths(tree: object, root: str) -> Iterator[tuple[str, Any]]:
    """Yield every leaf of ``tree`` with the expression that reaches it from ``root``.

    >>> list(leaves_with_paths({"mask": [1, 2]}, "batch"))
    [("batch['mask'][0]", 1), ("batch['mask'][1]", 2)]

    Raises:
        RecursionError: a container holds itself.
    """
    children = _children(tree)
    if children is None:
        yield root, tree
        return
    for suffix, child in children:
        yield from leaves_with_paths(child, root + suffix)


def replace_leaves(tree: Any, replace: Callable[[Any], Any]) -> Any:
    """Return a copy of ``tree`` with every leaf replaced by ``replace(leaf)``, in order.

    >>> replace_leaves([1, (2, {"a": 3})], lambda leaf: leaf * 10)
    [10, (20, {'a': 30})]
    """
    children = _children(tree)
    if children is None:
        return replace(tree)
    values = [replace_leaves(child, replace) for _, child in children]
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return tuple.__new__(type(tree), values)
    if isinstance(tree, (tuple, list)):
        return type(tree)(values)
    twin = copy.copy(tree)
    if isinstance(tree, Mapping):
        for key, value in zip(tree, values, strict=True):
            twin[key] = value
        return twin
    for field, value in zip(dataclasses.fields(tree), values, strict=True):
        # Frozen dataclasses refuse setattr, and replace() would run __post_init__ again.
        object.__setattr__(twin, field.name, value)
    return twin


def _children(tree: object) -> list[tuple[str, Any]] | None:
    """List the children of a container with the suffix that names each; None for a leaf."""
    names = getattr(tree, "_fields", None)
    if isinstance(tree, tuple) and names is not None:
        return [(f".{name}", child) for name, child in zip(names, tree, strict=True)]
    if isinstance(tree, (tuple, list)):
        return [(f"[{index}]", child) for index, child in enumerate(tree)]
    if isinstance(tree, Mapping):
        return [(f"[{key!r}]", tree[key]) for key in tree]
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return [(f".{field.name}", getattr(tree, field.name)) for field in dataclasses.fields(tree)]
    return None
