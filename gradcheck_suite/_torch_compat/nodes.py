"""Nodes of the autograd graph: their numbers, what they lead to and what they have saved."""

# ruff: noqa: SLF001 - private names are what this package is for
# pyright: reportAttributeAccessIssue=false
# (torch's stubs leave some of them out)
from __future__ import annotations

import gc
import operator
import sys
import threading
import weakref
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import CodeType, FrameType

    from torch import Tensor
    from torch.autograd.graph import Node

__all__ = [
    "HOOKED",
    "NO_SEQUENCE_NUMBER",
    "SAVED_TENSORS_TELL",
    "Following",
    "HookedType",
    "RawSaved",
    "answering",
    "custom_function_class",
    "is_leaf_node",
    "keeps_its_size",
    "next_sequence_number",
    "node_metadata",
    "node_output_types",
    "node_sequence_number",
    "number_of",
    "padding_of",
    "read_saved",
    "reduces_to_mean",
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


def _a_node() -> Node:
    with torch.enable_grad():
        made = torch.ones((), device="cpu", requires_grad=True).exp().grad_fn
    assert made is not None
    return made


sequence_number_of: Callable[[Node], int] = (
    operator.methodcaller("_sequence_nr")
    if hasattr(_a_node(), "_sequence_nr")
    else lambda _: NO_SEQUENCE_NUMBER
)
"""Return what ``node_sequence_number`` does, or ``NO_SEQUENCE_NUMBER`` (torch 2.6 to 2.15).

A node is asked, as the class ``Node`` has the name from torch 2.11 on only. Not a function of
Python's own, because it is called for each node of many graphs.
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
    """Read one of ``saved_attribute_names`` without running anybody's unpack hook.

    ``SavedTensor.data`` (torch 2.10 to 2.15) is None both for a tensor that backward has freed and
    for a place that the op left empty. Unpacking tells them apart, and runs no hook, as there is
    none. Where torch does not give ``data`` (2.6 to 2.9), all is told by unpacking, in which hooks
    of others are kept from running; what was overwritten is then known without its type.

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
    places: Sequence[Any] = raw if isinstance(raw, (list, tuple)) else (raw,)
    known = unwrap if unwrap is not None else _stranger
    if SAVED_TENSORS_TELL:
        return _told(node, name, places, known)
    return _unpacked(node, name, len(places), known)


def _stranger(_: object) -> None:
    return None


_SavedTensor: Any = getattr(torch._C._autograd, "SavedTensor", None)
SAVED_TENSORS_TELL = hasattr(_SavedTensor, "data") and hasattr(_SavedTensor, "unpack_hook")
"""Whether torch tells what a saved tensor holds without unpacking it (2.10 and later)."""
SAVED_TENSORS_UNPACK = hasattr(_SavedTensor, "unpack")
"""Whether a saved tensor can be asked to unpack itself (2.12 and later)."""


def _told(
    node: Node,
    name: str,
    places: Sequence[Any],
    unwrap: Callable[[object], tuple[torch.Tensor, bool] | None],
) -> RawSaved:
    tensors: list[torch.Tensor | HookedType | None] = []
    modified: list[int] = []
    freed = False
    if any(saved is not None and saved.unpack_hook is not None for saved in places):
        # One of them may be held by a hook, which unpacking through the node would run.
        name_to_ask = None
    else:
        name_to_ask = name
    for place, saved in enumerate(places):
        if saved is None:
            tensors.append(None)
        elif saved.unpack_hook is not None:
            known = unwrap(saved.data)
            tensors.append(HOOKED if known is None else known[0])
            if known is not None and known[1]:
                modified.append(place)
        elif saved.data is not None:
            tensors.append(saved.data)
            if _was_modified(saved, node, name_to_ask):
                modified.append(place)
        else:
            freed = freed or _was_freed(saved, node, name_to_ask)
            tensors.append(None)
    return RawSaved(name=name, tensors=tuple(tensors), freed=freed, modified=tuple(modified))


def _was_modified(saved: Any, node: Node, name: str | None) -> bool:
    """Say whether torch refuses to unpack, its version counter having moved since.

    A saved output can be unpacked only through its node, and before torch 2.12 all else too: of
    several, the one is meant whose version and shape the error names.
    """
    data: Tensor = saved.data
    if data.is_inference():
        return False
    if SAVED_TENSORS_UNPACK:
        try:
            saved.unpack()
        except RuntimeError as error:
            if _MODIFIED in str(error):
                return True
        else:
            return False
    refusal = _refusal(node, name) or ""
    named = f"is at version {data._version};" in refusal and f" {list(data.shape)}]" in refusal
    return _MODIFIED in refusal and named


def _was_freed(saved: Any, node: Node, name: str | None) -> bool:
    """Say whether a backward has released what was saved here, where nothing is by now."""
    if SAVED_TENSORS_UNPACK:
        try:
            saved.unpack()
        except RuntimeError:
            return True
        return False
    return _FREED in (_refusal(node, name) or "")


def _refusal(node: Node, name: str | None) -> str | None:
    """Return why torch refuses to unpack what the node saved under a name; None if it does not."""
    if name is None:
        return None
    try:
        getattr(node, _unpacking_attribute(node, name))
    except RuntimeError as error:
        return str(error)
    return None


def _unpacking_attribute(node: Node, name: str) -> str:
    """Return the attribute that unpacks what a node saved under a name, hooks and all."""
    attribute = f"_saved_{name}"
    # A custom Function has the public name alone.
    return attribute if hasattr(type(node), attribute) else f"saved_{name}"


_MODIFIED = "modified by an inplace operation"
_FREED = "already been freed"


def _unpacked(
    node: Node,
    name: str,
    places: int,
    unwrap: Callable[[object], tuple[torch.Tensor, bool] | None],
) -> RawSaved:
    """Read what a node saved under a name by unpacking it, out of sight of hooks of others."""
    heard, result, refusal = _listen(node, name)
    if refusal is not None:
        freed = _FREED in refusal
        modified = (0,) if _MODIFIED in refusal else ()
        return RawSaved(name=name, tensors=(None,) * places, freed=freed, modified=modified)
    if result is HOOKED:
        return RawSaved(name=name, tensors=(HOOKED,) * places, freed=False)
    values: Sequence[Tensor | None] = cast(
        "Any", result if isinstance(result, (list, tuple)) else (result,)
    )
    # Hooks of ours have answered in the order of the places that are not empty.
    answers = iter(map(unwrap, heard))
    tensors: list[torch.Tensor | HookedType | None] = []
    modified_places: list[int] = []
    for place, value in enumerate(values):
        known = next(answers, None) if heard and value is not None else None
        if known is not None and known[1]:
            modified_places.append(place)
        tensors.append(value if known is None else known[0])
    return RawSaved(name=name, tensors=tuple(tensors), freed=False, modified=tuple(modified_places))


class _Reader(threading.local):
    """What the hooks of ours on this thread are to tell; None while nobody reads."""

    heard: list[Any] | None = None


_reader = _Reader()


class _Refused(BaseException):
    """Raised in place of the first line of a hook that is not to run."""


def answering(unpack: Callable[[Any], Tensor]) -> Callable[[Any], Tensor]:
    """Return the unpack hook to install so that ``read_saved`` and ``saved_as`` see what it holds.

    The hook itself where torch tells what is saved; else (2.6 to 2.9) one that gives the packed
    object, which must have the tensor as its ``tensor``, to whoever reads.
    """
    if SAVED_TENSORS_TELL:
        return unpack
    return _answering(unpack)


def _answering(unpack: Callable[[Any], Tensor]) -> Callable[[Any], Tensor]:
    def answer(packed: Any) -> Tensor:
        heard = _reader.heard
        if heard is None:
            return unpack(packed)
        heard.append(packed)
        tensor: Tensor = packed.tensor
        return tensor

    _ANSWERS.add(answer.__code__)
    return answer


_ANSWERS: set[CodeType] = set()


def _listen(node: Node, name: str) -> tuple[list[Any], object, str | None]:
    """Unpack what a node saved under a name, and note what hooks of ours hold.

    A profile function is told of every Python function that begins, and ends it by raising before
    its first line: so a hook of somebody else's is known, and does not run.

    Returns:
        What hooks of ours hold; what was unpacked, ``HOOKED`` where somebody else's hooks hold it,
        or where a profiler at work does not let us see; why torch refuses, if it does. The error
        itself would keep, by its traceback, the frames that it is handed to, and so itself.
    """
    if sys.getprofile() is not None:
        return [], HOOKED, None

    def refuse(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code not in _ANSWERS:
            raise _Refused

    attribute = _unpacking_attribute(node, name)
    heard: list[Any] = []
    # A collection could run code of the user's, which is to run.
    collects = gc.isenabled()
    gc.disable()
    _reader.heard = heard
    try:
        sys.setprofile(refuse)
        result = getattr(node, attribute)
    except _Refused:
        return [], HOOKED, None
    except RuntimeError as error:
        return [], None, str(error)
    finally:
        sys.setprofile(None)
        _reader.heard = None
        if collects:
            gc.enable()
    return heard, result, None


def node_metadata(node: Node) -> dict[str, Any]:
    """Return the dict that a node carries for Python code, made when first asked for.

    The attribute is public; torch 2.13 annotates it as a method, which it is not.
    """
    return node.metadata  # type: ignore[return-value]  # as said above


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


def is_leaf_node(node: Node) -> bool:
    """Return whether backward ends at this node, in the ``.grad`` of a leaf.

    The class is asked: before torch 2.7, a node whose leaf is gone raises when it is.
    """
    return hasattr(type(node), "variable")


def custom_function_class(node: Node) -> type | None:
    """Return the autograd.Function subclass whose apply made this node, or None (torch 2.13)."""
    return getattr(type(node), "_forward_cls", None)


def saved_as(node: Node, packed: object) -> str | None:
    """Return the name under which ``node`` saved what a pack hook returned (torch 2.13).

    Returns:
        The name in torch's derivative formula: ``"self"``, ``"result"``, ``"running_mean"``;
        ``"tensors"`` for a custom Function; None where it isn't found.
    """
    return next(
        (
            name.removeprefix(_RAW_SAVED)
            for name in saved_attribute_names(type(node))
            if any(held is packed for held in _held_by_hooks(node, name))
        ),
        None,
    )


def saves_under(node: Node, name: str, packed: object) -> bool:
    """Return whether ``node`` saved what a pack hook returned under this name."""
    return any(held is packed for held in _held_by_hooks(node, _RAW_SAVED + name))


def _held_by_hooks(node: Node, attribute: str) -> Sequence[object]:
    """Return what pack hooks returned for the places of a saved-tensor attribute."""
    try:
        raw = getattr(node, attribute, None)
    except RuntimeError:  # already freed
        return ()
    if raw is None:
        return ()
    if not SAVED_TENSORS_TELL:
        return _listen(node, attribute.removeprefix(_RAW_SAVED))[0]
    places = raw if isinstance(raw, (tuple, list)) else (raw,)
    return [getattr(saved, "data", None) for saved in places]


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


def number_of(node: Node) -> float | None:
    """Return the Python number of a product or quotient (torch 2.13); None for a tensor.

    Numbers are saved past all saved-tensors hooks.
    """
    number = getattr(node, "_saved_other", None)
    return abs(float(number)) if isinstance(number, torch.Tensor) and not number.dim() else None


def padding_of(node: Node) -> tuple[Tensor, int] | None:
    """Return the weight of an embedding, a leaf, and its row of padding (torch 2.6 to 2.15).

    None for any other node, one without padding, and where torch can't tell.
    """
    if type(node).__name__ != "EmbeddingBackward0":
        return None
    row = int(getattr(node, "_saved_padding_idx", -1))
    weight = getattr(node.next_functions[0][0], "variable", None)
    # It is -1 without padding, which torch tells as an unsigned number.
    if not isinstance(weight, torch.Tensor) or not 0 <= row < len(weight):
        return None
    return weight, row


def reduces_to_mean(node: Node) -> bool:
    """Return whether the loss that made this node is a mean (torch 2.13), so where not told."""
    return int(getattr(node, "_saved_reduction", _MEAN)) == _MEAN


_MEAN = 1
"""How torch numbers ``reduction="mean"``: none is 0, a sum 2."""
