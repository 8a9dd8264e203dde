"""The backward nodes of custom Functions in a graph, each by itself.

What a custom backward is given in the middle of a model is not what the user can hand in. Here the
gradients that arrive at each node are caught once; then the node is run with others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import GradientEdge, Node

from gradcheck_suite import _torch_compat
from gradcheck_suite.verification.numerics.recorded_call import RecordedCall
from gradcheck_suite.verification.target.dense_views import dense

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gradcheck_suite.verification.numerics.recorded_call import Row
    from gradcheck_suite.verification.stage import CheckState

__all__ = ["BareNode", "CaughtNode", "catch_nodes", "custom_nodes", "has_custom_code"]


def custom_nodes(tensors: Iterable[torch.Tensor]) -> list[Node]:
    """List the nodes of Python Functions, the user's and not torch's own, nearest output first."""
    found = []
    for node in _nodes(tensors):
        function = _torch_compat.custom_function_class(node)
        if function is not None and not function.__module__.startswith("torch."):
            found.append(node)
    return found


def has_custom_code(state: CheckState) -> bool:
    """Return whether backward runs anything that is not torch's own."""
    recording = RecordedCall.of(state.subject, state.context.point)
    return any(
        _torch_compat.custom_function_class(node) is not None or "CppNode" in node.name()
        for node in _nodes(recording.tensors)
    )


def _nodes(tensors: Iterable[torch.Tensor]) -> Iterator[Node]:
    pending = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    seen = set(pending)
    while pending:
        node = pending.pop()
        yield node
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                pending.append(child)


@dataclass(frozen=True, slots=True)
class CaughtNode:
    """A custom Function's node with the gradients that arrived at it.

    It is run by itself through the engine, so that torch's own checks and zero-filling apply.

    Attributes:
        node: the node, in a graph that is kept.
        function: the user's Function.
        given: the gradients that arrived, by number of the Function's output.
        recording: what keeps the graph alive, which on torch 2.6 to 2.10 the node does not do.
    """

    node: Node
    function: type
    given: Mapping[int, torch.Tensor]
    recording: RecordedCall

    def pull(self, cotangents: Mapping[int, torch.Tensor]) -> Row:
        """Return the gradients for the inputs of the Function."""
        edges = dict.fromkeys(
            (child, number) for child, number in self.node.next_functions if child is not None
        )
        row: Sequence[torch.Tensor | None] = torch.autograd.grad(
            [GradientEdge(self.node, number) for number in cotangents],
            [GradientEdge(child, number) for child, number in edges],
            list(cotangents.values()),
            retain_graph=True,
            allow_unused=True,
        )
        return tuple(None if part is None else dense(part.detach()) for part in row)


@dataclass(frozen=True, slots=True)
class BareNode:
    """A custom Function's node whose ``backward`` is called as the Python function that it is.

    The engine runs hooks on its output and on its inputs as well, which are not the Function's.
    """

    node: Node
    function: type

    def pull(self, cotangents: Mapping[int, torch.Tensor]) -> Row:
        """Return the gradients for the inputs of the Function, in the order of its arguments."""
        function: Any = self.function
        with torch.no_grad():
            given = function.backward(self.node, *(cotangents[key] for key in sorted(cotangents)))
        row = given if isinstance(given, tuple) else (given,)
        return tuple(None if part is None else dense(part.detach()) for part in row)


def catch_nodes(
    recording: RecordedCall,
    record_again: Callable[[], RecordedCall],
    cotangents: Sequence[torch.Tensor],
) -> list[CaughtNode]:
    """Run backward once and catch what arrives at the nodes of custom Functions.

    A Function that is used often is looked at in three places. What is returned are the nodes of
    the same call recorded again: no backward has run there, which a Function that is right the
    first time alone would remember.
    """
    caught: dict[Node, dict[int, torch.Tensor]] = {}
    handles = []
    uses: Counter[type] = Counter()
    nodes = []
    for node in custom_nodes(recording.tensors):
        function = _torch_compat.custom_function_class(node)
        assert function is not None
        uses[function] += 1
        if uses[function] <= _MOST_USES:
            nodes.append((node, function))
            handles.append(node.register_prehook(_catcher(caught, node)))
    if not nodes:
        return []
    try:
        recording.pull({index: given.clone() for index, given in enumerate(cotangents)})
    finally:
        for handle in handles:
            handle.remove()
    again = record_again()
    unused = dict(zip(custom_nodes(recording.tensors), custom_nodes(again.tensors), strict=True))
    return [
        CaughtNode(unused[node], function, caught[node], again)
        for node, function in nodes
        if node in caught
    ]


_MOST_USES = 3
"""In how many places a Function that is used often is looked at. A bound on cost."""


def _catcher(
    caught: dict[Node, dict[int, torch.Tensor]], node: Node
) -> Callable[[Sequence[torch.Tensor]], None]:
    def catch(gradients: Sequence[torch.Tensor]) -> None:
        caught[node] = {
            number: given.detach().clone(memory_format=torch.contiguous_format)
            for number, given in enumerate(gradients)
            if _is_strided(given)
        }

    return catch


def _is_strided(given: object) -> bool:
    # torch hands None for an undefined gradient, though its annotation has none.
    return isinstance(given, torch.Tensor) and given.layout == torch.strided
