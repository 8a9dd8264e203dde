"""The backward nodes of custom Functions in a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_suite import _torch_compat
from gradcheck_suite.verification.contracts.pullback import Recording

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import torch
    from torch.autograd.graph import Node

    from gradcheck_suite.verification.stages import Known

__all__ = ["custom_nodes", "has_custom_code"]


def custom_nodes(tensors: Iterable[torch.Tensor]) -> list[Node]:
    """List the nodes of Python Functions, the user's and not torch's own, nearest output first."""
    found = []
    for node in _nodes(tensors):
        function = _torch_compat.custom_function_class(node)
        if function is not None and not function.__module__.startswith("torch."):
            found.append(node)
    return found


def has_custom_code(known: Known) -> bool:
    """Say whether backward runs anything that is not torch's own."""
    recording = Recording.of(known.subject, known.survey.point)
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
