"""Word torch's error about a saved tensor that was modified in place, as this torch does.

A pair of saved-tensors hooks, any pair, switches off torch's own check. Who installs one makes the
check in its place.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol

import torch

from gradcheck_suite._torch_compat import (
    current_node,
    inside_backward,
    saved_as,
    saved_input_edge,
)

if TYPE_CHECKING:
    import weakref

    from torch import Tensor
    from torch.autograd.graph import Node

__all__ = ["OUTPUT_NAMES", "Kept", "operation_of", "version_error"]

OUTPUT_NAMES = ("result", "output", "out")
"""How the names begin under which nodes save what they returned."""


class Kept(Protocol):
    """What is kept in the graph in place of a saved tensor.

    Attributes:
        tensor: the saved tensor itself for a leaf, and an alias cut from the graph for any other.
        version: its version when it was saved.
        original: finds the saved tensor while it lives; None for a leaf.
    """

    tensor: Tensor
    version: int

    @property
    def original(self) -> weakref.ref[Tensor] | None: ...


def version_error(kept: Kept, version: int) -> RuntimeError:
    """Return the error that torch would raise for what is at another ``version`` by now."""
    node = current_node() if inside_backward() else None
    try:
        return RuntimeError(_words(kept, version, _producer_now(kept, node)))
    except RuntimeError as error:
        # A view that may not be modified in place: torch's own words on that.
        return error


def operation_of(node_name: str) -> str:
    """Return the operation that a backward node belongs to.

    >>> operation_of("MulBackward0"), operation_of("MyFunctionBackward")
    ('Mul', 'MyFunction')
    """
    return re.sub(r"Backward\d*$", "", node_name)


def _producer_now(kept: Kept, node: Node | None) -> tuple[str, int] | None:
    """Return the op and the output that torch's message names: what the tensor is by now."""
    if kept.original is None:
        return None
    name = None if node is None else saved_as(node, kept)
    original = kept.original()
    if node is not None and name is not None and name.startswith(OUTPUT_NAMES):
        return _torch_word(node.name()), 0 if original is None else original.output_nr
    if original is not None:
        maker = original.grad_fn
        return "" if maker is None else _torch_word(maker.name()), original.output_nr
    edge = None if node is None else saved_input_edge(node, name, kept.tensor)
    if edge is None:
        return None
    maker, number = edge
    # torch rebuilds the node of a view whose base has been written to.
    rebuilt = type(maker).__name__ in _VIEWS
    return _torch_word("AsStridedBackward0" if rebuilt else maker.name()), number


_VIEWS = frozenset(
    f"{name}Backward0"
    for name in (
        "AsStrided",
        "Diagonal",
        "Expand",
        "Permute",
        "Select",
        "Slice",
        "Squeeze",
        "Squeeze_",
        "T",
        "Transpose",
        "Unfold",
        "Unsqueeze",
        "View",
    )
)


def _own_words() -> str:
    """Return this torch's error for an output of a multiplication; "" where it can't be had.

    Versions differ in how they name a node and in their hint (torch 2.11 and 2.12). It is asked
    for at import, because by the time that the words are needed our own hooks are in place.
    """
    try:
        with torch.inference_mode(mode=False), torch.enable_grad():
            product = torch.ones((), device="cpu", requires_grad=True) * 1.0
            result = product * product
            product.detach().add_(1.0)
            torch.autograd.backward(result)
    except RuntimeError as error:
        return str(error)
    return ""


_OWN_WORDS = _own_words()
_NAMES_NODES = "MulBackward0" in _OWN_WORDS


def _torch_word(node_name: str) -> str:
    """Return what this torch calls a backward node in its errors: ``Mul`` or ``MulBackward0``."""
    return node_name if _NAMES_NODES else _short_name(node_name)


def _short_name(node_name: str) -> str:
    """Return what torch 2.12 and later call a backward node in their errors.

    >>> [_short_name(name) for name in ("MulBackward0", "SumBackward1", "MyFunctionBackward")]
    ['Mul', 'Sum1', 'MyFunction']
    """
    return re.sub(r"Backward(?:0|([1-9]\d*))?$", r"\1", node_name)


def _words(kept: Kept, version: int, producer: tuple[str, int] | None) -> str:
    tensor = kept.tensor
    origin = "" if producer is None else f", which is output {producer[1]} of {producer[0]},"
    if torch.is_anomaly_enabled():
        hint = (
            "the backtrace further above shows the operation that failed to compute its gradient. "
            "The variable in question was changed in there or anywhere later. Good luck!"
        )
    else:
        hint = _OWN_WORDS.partition("Hint: ")[2] or (
            "enable anomaly detection to find the operation that failed to compute its gradient, "
            "with torch.autograd.set_detect_anomaly(True, check_nan=False)."
        )
    return (
        "one of the variables needed for gradient computation has been modified by an inplace "
        f"operation: [{_type_of(tensor)} {list(tensor.shape)}]{origin} is at version {version}; "
        f"expected version {kept.version} instead. Hint: {hint}"
    )


def _type_of(tensor: Tensor) -> str:
    kind = tensor.type()
    if kind.rpartition(".")[2] in _LEGACY_TYPES:
        return kind
    name = kind.rpartition(".")[2].removesuffix("Tensor")
    return f"{tensor.device.type.upper()}{name}Type"


_LEGACY_TYPES = frozenset(
    f"{name}Tensor"
    for name in ("Float", "Double", "Half", "Byte", "Char", "Short", "Int", "Long", "Bool")
)
