"""Walk autograd's graph: what backward may run, and the custom Functions on the way to a leaf."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gradcheck_suite import _torch_compat
from gradcheck_suite._runtime.frames import definition_line
from gradcheck_suite.findings import Location
from gradcheck_suite.verification.target.non_derivatives import log_probabilities

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    import torch
    from torch.autograd.graph import Node


__all__ = [
    "GraphPath",
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
        arguments: of each Function on the way, the arguments of forward, counted after ctx, that
            lead to the leaf.
        incoming: of each Function on the way, the outputs that lead to it.
    """

    connected: bool
    functions: tuple[type, ...]
    log_probabilities: bool | None = None
    alone: bool = False
    arguments: Mapping[type, tuple[int, ...]] = field(default_factory=dict)
    incoming: Mapping[type, tuple[int, ...]] = field(default_factory=dict)

    @property
    def argument(self) -> int | None:
        """The one argument of the one Function in question through which the gradient goes."""
        return _single(self.arguments, self.functions)

    @property
    def arrives_at(self) -> int | None:
        """The one output of the one Function in question through which the gradient arrives."""
        return _single(self.incoming, self.functions)


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
    edges: list[tuple[Node | None, int]] = [(output.grad_fn, output.output_nr)]
    edges += [edge for node in between for edge in node.next_functions if edge[0] is not None]
    return GraphPath(
        connected=True,
        functions=custom_functions(between),
        arguments=_by_function(between, lambda node: _arguments_towards(node, set(between))),
        incoming=_by_function(
            between, lambda node: [number for child, number in edges if child is node]
        ),
        log_probabilities=log_probabilities(between),
        alone=len(between) == _FUNCTION_AND_LEAF
        and len(custom_functions(between)) == 1
        and all(all(getattr(node, "needs_input_grad", ())) for node in between),
    )


def _by_function(
    nodes: Iterable[Node], numbers: Callable[[Node], Iterable[int]]
) -> dict[type, tuple[int, ...]]:
    found: dict[type, set[int]] = {}
    for node in nodes:
        function = _torch_compat.custom_function_class(node)
        if function is not None:
            found.setdefault(function, set()).update(numbers(node))
    return {function: tuple(sorted(of)) for function, of in found.items()}


def _arguments_towards(node: Node, wanted: Collection[Node]) -> list[int]:
    """Return the arguments of a custom Function's forward behind which one of some nodes lies.

    A node has edges for tensors alone; those that need a gradient come in the order of the
    arguments that do.
    """
    needed = [place for place, needs in enumerate(getattr(node, "needs_input_grad", ())) if needs]
    children = [child for child, _ in node.next_functions if child is not None]
    if len(needed) != len(children):
        return []
    return [place for place, child in zip(needed, children, strict=True) if child in wanted]


def _single(numbers: Mapping[type, tuple[int, ...]], functions: Sequence[type]) -> int | None:
    function = only(functions)
    found = () if function is None else numbers.get(function, ())
    return found[0] if len(found) == 1 else None


def only(functions: Sequence[type]) -> type | None:
    """Return the Function that alone is in question; None where there are none or several."""
    return functions[0] if len(functions) == 1 else None


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
