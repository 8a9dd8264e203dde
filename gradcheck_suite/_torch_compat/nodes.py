"""Nodes of the autograd graph: their numbers, what they lead to and what they have saved."""

# ruff: noqa: SLF001 - private names are what this package is for
# pyright: reportAttributeAccessIssue=false
# (torch's stubs leave some of them out)
from __future__ import annotations

import operator
import weakref
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.autograd.graph import Node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

__all__ = [
    "HOOKED",
    "NO_SEQUENCE_NUMBER",
    "Following",
    "HookedType",
    "RawSaved",
    "custom_function_class",
    "keeps_its_size",
    "next_sequence_number",
    "node_metadata",
    "node_output_types",
    "node_sequence_number",
    "read_saved",
    "saved_as",
    "saved_attribute_names",
    "saved_attributes",
    "saved_input_edge",
    "saves_under",
    "sequence_number_of",
    "sequence_numbers",
]


Following: TypeAlias = "tuple[tuple[Node | None, int], ...]"
"""What a node leads to: its ``next_functions``."""


def node_sequence_number(node: Node) -> int | None:
    """Return when the forward pass made this node, or None for a leaf (torch 2.13).

    Numbers rise with every op that a thread records; backward runs high numbers first. Leaves
    carry the greatest unsigned 64-bit number, which says nothing about the forward pass.
    """
    number = getattr(node, "_sequence_nr", None)
    if number is None:
        return None
    value: int = number()
    return None if value == NO_SEQUENCE_NUMBER else value


NO_SEQUENCE_NUMBER = 2**64 - 1

sequence_number_of: Callable[[Node], int] = (
    operator.methodcaller("_sequence_nr")
    if hasattr(Node, "_sequence_nr")
    else lambda _: NO_SEQUENCE_NUMBER
)
"""Return what ``node_sequence_number`` does, or ``NO_SEQUENCE_NUMBER`` (torch 2.13).

Not a function of Python's own, because it is called for each node of many graphs.
"""


def sequence_numbers(nodes: Iterable[Node]) -> tuple[int, ...]:
    """Return when the forward pass made each of many nodes, -1 where that can't be told.

    As ``node_sequence_number`` does for one, in half the time (torch 2.13).
    """
    asked = tuple(nodes)
    try:
        found = [node._sequence_nr() for node in asked]
    except AttributeError:
        return (-1,) * len(asked)
    return tuple([-1 if number == NO_SEQUENCE_NUMBER else number for number in found])


next_sequence_number: Callable[[], int] | None = getattr(
    torch._C._autograd, "_get_sequence_nr", None
)
"""Return the sequence number that the next node made on this thread will get (torch 2.13).

None where torch does not tell. Not a function of Python's own, because it is called twice for each
module and once for each saved tensor.
"""


def node_output_types(
    node: Node,
) -> tuple[tuple[tuple[int, ...], torch.dtype] | None, ...]:
    """Return shape and dtype of each forward output of this node (torch 2.13).

    torch keeps them to check the incoming gradients with. An entry is None where it cannot be
    told (nested tensors); the tuple is empty where torch does not expose it.
    """
    return tuple(_type_of(metadata) for metadata in getattr(node, "_input_metadata", ()))


def _type_of(metadata: Any) -> tuple[tuple[int, ...], torch.dtype] | None:
    try:
        return tuple(int(size) for size in metadata.shape), metadata.dtype
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return None


def saved_attribute_names(node_type: type) -> tuple[str, ...]:
    """Return the attributes under which nodes of this class give their saved tensors (torch 2.13).

    They are sorted, and include those that hold no tensor in a particular node.
    """
    names = _SAVED_NAMES.get(node_type)
    if names is None:
        names = tuple(name for name in sorted(dir(node_type)) if name.startswith(_RAW_SAVED))
        _SAVED_NAMES[node_type] = names
    return names


# Weakly: a custom Function's class of nodes may be one of a function that runs often.
_SAVED_NAMES: weakref.WeakKeyDictionary[type, tuple[str, ...]] = weakref.WeakKeyDictionary()


_RAW_SAVED = "_raw_saved_"


@dataclass(frozen=True, slots=True)
class RawSaved:
    """What one saved-tensor attribute of a node holds, read without unpacking.

    ``tensors`` has one entry for each saved tensor: the tensor itself, None where the op saved
    nothing in this place, or ``HOOKED`` where saved-tensor hooks hold it in a form of their own.
    ``freed`` says that a backward has released them. ``modified`` are the places of tensors that
    were overwritten since, so that torch refuses to hand them out.
    """

    name: str
    tensors: tuple[torch.Tensor | HookedType | None, ...]
    freed: bool
    modified: tuple[int, ...] = ()


class HookedType(Enum):
    """Stand for a saved tensor that saved-tensor hooks hold."""

    HOOKED = "hooked"


HOOKED = HookedType.HOOKED


def read_saved(
    node: Node,
    attribute: str,
    unwrap: Callable[[object], tuple[torch.Tensor, bool] | None] | None = None,
) -> RawSaved:
    """Read one of ``saved_attribute_names`` without running anybody's unpack hook (torch 2.13).

    ``SavedTensor.data`` is None both for a tensor that backward has freed and for a place that
    the op left empty. Unpacking tells them apart, and runs no hook, as there is none.

    Args:
        node: the node to read.
        attribute: one of its ``saved_attribute_names``.
        unwrap: tells, from what a pack hook returned, the tensor and whether it was overwritten
            since; None where the hook is a stranger's.
    """
    name = attribute.removeprefix(_RAW_SAVED)
    try:
        raw = getattr(node, attribute)
    except RuntimeError:
        return RawSaved(name=name, tensors=(), freed=True)
    tensors: list[torch.Tensor | HookedType | None] = []
    modified: list[int] = []
    freed = False
    for place, saved in enumerate(raw if isinstance(raw, (list, tuple)) else (raw,)):
        if saved is None:
            tensors.append(None)
        elif getattr(saved, "unpack_hook", None) is not None:
            known = unwrap(saved.data) if unwrap is not None else None
            tensors.append(HOOKED if known is None else known[0])
            if known is not None and known[1]:
                modified.append(place)
        elif saved.data is not None:
            tensors.append(saved.data)
            if _was_modified(saved, node, name):
                modified.append(place)
        else:
            freed = freed or _unpacking_fails(saved)
            tensors.append(None)
    return RawSaved(name=name, tensors=tuple(tensors), freed=freed, modified=tuple(modified))


def _was_modified(saved: Any, node: Node, name: str) -> bool:
    """Say whether torch refuses to unpack, its version counter having moved since.

    A saved output can be unpacked only through its node.
    """
    if saved.data.is_inference():
        return False
    try:
        saved.unpack()
    except RuntimeError as error:
        if _MODIFIED in str(error):
            return True
        try:
            getattr(node, f"_saved_{name}", None)
        except RuntimeError as refused:
            return _MODIFIED in str(refused)
    return False


_MODIFIED = "modified by an inplace operation"


def node_metadata(node: Node) -> dict[str, Any]:
    """Return the dict that a node carries for Python code, made when first asked for.

    The attribute is public; torch 2.13 annotates it as a method, which it is not.
    """
    return node.metadata  # type: ignore[return-value]  # as said above


def _unpacking_fails(saved: Any) -> bool:
    try:
        saved.unpack()
    except RuntimeError:
        return True
    return False


def saved_attributes(node: Node) -> tuple[tuple[str, str], ...]:
    """Return names and values of what a node keeps apart from tensors (torch 2.13).

    These are the arguments that the derivative needs: dimensions, sizes, flags. What can't be
    read, as after backward, is left out.
    """
    found: list[tuple[str, str]] = []
    for attribute in dir(node):
        name = attribute.removeprefix("_saved_")
        if name == attribute or f"{_RAW_SAVED}{name}" in dir(type(node)):
            continue
        try:
            found.append((name, str(getattr(node, attribute))))
        except RuntimeError:
            continue
    return tuple(found)


def custom_function_class(node: Node) -> type | None:
    """Return the autograd.Function subclass whose apply made this node, or None (torch 2.13)."""
    return getattr(type(node), "_forward_cls", None)


def saved_as(node: Node, packed: object) -> str | None:
    """Return the name under which ``node`` saved what a pack hook returned (torch 2.13).

    Returns:
        The name in torch's derivative formula: ``"self"``, ``"result"``, ``"running_mean"``;
        ``"tensors"`` for a custom Function; None where it isn't found.
    """
    for name in saved_attribute_names(type(node)):
        try:
            value = getattr(node, name)
        except RuntimeError:  # already freed
            continue
        for saved in value if isinstance(value, (tuple, list)) else (value,):
            if getattr(saved, "data", None) is packed:
                return name.removeprefix(_RAW_SAVED)
    return None


def saves_under(node: Node, name: str, packed: object) -> bool:
    """Return whether ``node`` saved what a pack hook returned under this name (torch 2.13)."""
    try:
        return getattr(getattr(node, _RAW_SAVED + name, None), "data", None) is packed
    except RuntimeError:  # already freed
        return False


def saved_input_edge(node: Node, name: str | None, tensor: Tensor) -> tuple[Node, int] | None:
    """Return the node and output number that the input saved under ``name`` came from (torch 2.13).

    The edges of a node are its inputs in the order of its arguments; those whose shape and type
    are the tensor's own are looked at.

    Returns:
        None where no edge or several fit and the name does not tell.
    """
    fitting = []
    for place, (maker, number) in enumerate(node.next_functions):
        if maker is None or not maker.next_functions:
            continue
        kinds = node_output_types(maker)
        kind = kinds[number] if number < len(kinds) else None
        if kind is None or kind == (tuple(tensor.shape), tensor.dtype):
            fitting.append((place, maker, number))
    if len({(maker, number) for _, maker, number in fitting}) > 1:
        wanted = _ARGUMENT_PLACES.get(name or "")
        fitting = [found for found in fitting if found[0] == wanted]
    return (fitting[0][1], fitting[0][2]) if fitting else None


_ARGUMENT_PLACES = {"self": 0, "input": 0, "other": 1, "exponent": 1, "weight": 1}
"""The edge of an argument, where it is the same for every op that saves one of this name."""


def keeps_its_size(node: Node) -> bool:
    """Return whether ``expand``, which made this node, changed no size (torch 2.13).

    False where torch can't tell.
    """
    before = getattr(node, "_saved_self_sym_sizes", None)
    outputs: Sequence[Any] = getattr(node, "_input_metadata", ())
    return len(outputs) == 1 and before is not None and tuple(outputs[0].shape) == tuple(before)
