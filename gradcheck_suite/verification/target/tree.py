"""Nested containers of tensors: take the leaves out under readable names, put others in.

Known containers are tuples (named ones too), lists, mappings and dataclass instances. Everything
else is a leaf and travels unchanged.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gradcheck_suite.errors import UsageError

__all__ = ["leaves_with_paths", "replace_leaves"]


def leaves_with_paths(tree: object, root: str) -> Iterator[tuple[str, Any]]:
    """Yield every leaf of ``tree`` with the expression that reaches it from ``root``.

    >>> list(leaves_with_paths({"mask": [1, 2]}, "batch"))
    [("batch['mask'][0]", 1), ("batch['mask'][1]", 2)]

    Raises:
        UsageError: a container holds itself.
    """
    yield from _leaves(tree, root, ())


def _leaves(tree: object, path: str, above: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    children = _children(tree)
    if children is None:
        yield path, tree
        return
    if id(tree) in above:
        raise UsageError(
            f"`{path}` is a {type(tree).__name__} that holds itself, so it can't be taken apart "
            "into tensors; hand over the tensors without that loop"
        )
    for suffix, child in children:
        yield from _leaves(child, path + suffix, (*above, id(tree)))


def replace_leaves(tree: Any, replace: Callable[[Any], Any]) -> Any:
    """Return a copy of ``tree`` with every leaf replaced by ``replace(leaf)``, in order.

    >>> replace_leaves([1, (2, {"a": 3})], lambda leaf: leaf * 10)
    [10, (20, {'a': 30})]
    """
    children = _children(tree)
    if children is None:
        return replace(tree)
    values = [replace_leaves(child, replace) for _, child in children]
    if isinstance(tree, tuple) and _field_names(tree) is not None:
        return tuple.__new__(type(tree), values)
    if isinstance(tree, (tuple, list)):
        return type(tree)(values)
    copied = copy.copy(tree)
    if isinstance(tree, Mapping):
        for key, value in zip(tree, values, strict=True):
            copied[key] = value
        return copied
    for field, value in zip(dataclasses.fields(tree), values, strict=True):
        # Frozen dataclasses refuse setattr, and replace() would run __post_init__ again.
        object.__setattr__(copied, field.name, value)
    return copied


def _children(tree: object) -> list[tuple[str, Any]] | None:
    """List the children of a container with the suffix that names each; None for a leaf."""
    if isinstance(tree, (tuple, list)):
        names = _field_names(tree)
        if names is not None:
            return [(f".{name}", child) for name, child in zip(names, tree, strict=True)]
        return [(f"[{index}]", child) for index, child in enumerate(tree)]
    if isinstance(tree, Mapping):
        return [(f"[{key!r}]", tree[key]) for key in tree]
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return [(f".{field.name}", getattr(tree, field.name)) for field in dataclasses.fields(tree)]
    return None


def _field_names(tree: object) -> Sequence[str] | None:
    """Return the fields of a named tuple; its class is asked, as instances may answer anything."""
    return getattr(type(tree), "_fields", None)
