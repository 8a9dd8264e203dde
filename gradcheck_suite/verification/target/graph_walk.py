"""Walk autograd's graph: what backward may run, and the custom Functions on the way to a leaf."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gradcheck_suite import _torch_compat
from gradcheck_suite._runtime.frames import definition_line
from gradcheck_suite.findings import Location
from gradcheck_suite.verification.target.non_derivatives import log_probabilities

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch.autograd.graph import Node


__all__ = [
    "GraphPath",
    "backward_location",
    "custom_functions",
    "graph_path",
    "method_codes",
    "method_location",
    "only",
    "reachable",
]


def reachable(*roots: Node | None) -> list[Node]:
    """List every node that backward from some nodes may run."""
    seen = {root for root in roots if root is not None}
    pending = list(seen)
    while pending:
        for child, _ in pending.pop().next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                pending.append(child)
    return list(seen)


_FUNCTION_AND_LEAF = 2
"""How many nodes lie between output and input where a custom Function is alone: its own, and the
one that accumulates the leaf's gradient."""


@dataclass(frozen=True, slots=True)
class GraphPath:
    """What lies between an output and a leaf.

    Attributes:
        connected: whether autograd's graph leads from the output to the leaf at all.
        functions: the user's custom Functions on the way, or in the output's whole graph where
            there is no way.
        log_probabilities: whether what a ``ctc_loss`` on the way is given is normalised; None
            where there is none.
        alone: whether a custom Function is all that there is on the way, and needs a gradient for
            all that it is given, so that nothing else can have a part in it.
    """

    connected: bool
    functions: tuple[type, ...]
    log_probabilities: bool | None = None
    alone: bool = False


def graph_path(output: torch.Tensor, leaf: torch.Tensor | None) -> GraphPath:
    """Walk the graph of ``output`` and tell what leads to ``leaf``, or to anything at all."""
    if output.grad_fn is None:
        return GraphPath(connected=output is leaf, functions=())
    nodes = reachable(output.grad_fn)
    if leaf is None:
        return GraphPath(connected=True, functions=custom_functions(nodes))
    ends = [node for node in nodes if getattr(node, "variable", None) is leaf]
    if not ends:
        return GraphPath(connected=False, functions=custom_functions(nodes))
    between = _ancestors(nodes, ends)
    return GraphPath(
        connected=True,
        functions=custom_functions(between),
        log_probabilities=log_probabilities(between),
        alone=len(between) == _FUNCTION_AND_LEAF
        and len(custom_functions(between)) == 1
        and all(all(getattr(node, "needs_input_grad", ())) for node in between),
    )


def only(functions: Sequence[type]) -> type | None:
    """Return the Function that alone is in question; None where there are none or several."""
    return functions[0] if len(functions) == 1 else None


def backward_location(function: type | None) -> Location | None:
    """Return where a custom Function defines its backward, or None without Python source."""
    backward = getattr(function, "backward", None)
    overridden = backward is not torch.autograd.Function.backward
    return method_location(function, "backward" if overridden else "vjp")


def method_location(function: type | None, name: str) -> Location | None:
    """Return where a custom Function defines one of its methods, or None without Python source."""
    method: Any = getattr(function, name, None)
    method = inspect.unwrap(method) if callable(method) else None
    code = getattr(method, "__code__", None)
    if code is None or code.co_filename.startswith("<"):
        return None
    return Location(code.co_filename, definition_line(code), function=method.__qualname__)


def method_codes(function: type, name: str) -> set[object]:
    """Return the code of a custom Function's method, and of what decorators have put around it."""
    method: Any = getattr(function, name, None)
    codes = set()
    while callable(method):
        codes.add(getattr(method, "__code__", None))
        method = getattr(method, "__wrapped__", None)
    return codes - {None}


def _ancestors(nodes: Iterable[Node], ends: Iterable[Node]) -> list[Node]:
    parents: dict[Node, list[Node]] = {}
    for node in nodes:
        for child, _ in node.next_functions:
            if child is not None:
                parents.setdefault(child, []).append(node)
    seen = set(ends)
    pending = list(seen)
    while pending:
        for parent in parents.get(pending.pop(), ()):
            if parent not in seen:
                seen.add(parent)
                pending.append(parent)
    return list(seen)


def custom_functions(nodes: Iterable[Node]) -> tuple[type, ...]:
    """Return the custom Functions of these nodes, the user's and not torch's own, by name."""
    found = {_torch_compat.custom_function_class(node) for node in nodes}
    users = {
        function
        for function in found
        if function is not None and not function.__module__.startswith("torch.")
    }
    return tuple(sorted(users, key=lambda function: function.__qualname__))
