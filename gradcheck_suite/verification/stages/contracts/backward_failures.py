"""Find out whose backward is to blame where a backward could not be run at all."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

from gradcheck_suite import _torch_compat
from gradcheck_suite.verification.diagnosis.contract_messages import (
    raises_without_output,
    refused_gradient,
    wrong_arity,
)
from gradcheck_suite.verification.numerics.directions import generator_for, random_signs
from gradcheck_suite.verification.stages.contracts.forward_declarations import find_unmarked_writes
from gradcheck_suite.verification.stages.contracts.function_nodes import custom_nodes
from gradcheck_suite.verification.target.graph_walk import custom_functions
from gradcheck_suite.verification.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.autograd.graph import Node

    from gradcheck_suite.findings import Finding
    from gradcheck_suite.verification.target.pure_function import Output, PureFunction

__all__ = ["explain_failure"]

_LONGEST = 160
"""How many characters of an exception a message quotes."""


def explain_failure(
    subject: PureFunction, outputs: Sequence[Output], error: BaseException
) -> list[Finding]:
    """Tell which Function broke which clause of its contract, where ``error`` came of it.

    Returns:
        Nothing where the exception is the user's own business, and has to reach the user.
    """
    values = [variable.value for variable in subject.variables]
    with torch.enable_grad():
        leaves = subject.leaves(values)
        produced = {output.name: output.tensor for output in subject(leaves)}
    tensors = [produced[known.name] for known in outputs if known.name in produced]
    nodes = custom_nodes(tensors)
    if not nodes:
        return []
    written = list(find_unmarked_writes(subject, values, custom_functions(nodes)))
    if written:
        return written
    for tensor in tensors:
        if tensor.requires_grad:
            entered = _failing_node(tensor, leaves, nodes)
            if entered is not None:
                found = _explained(*entered, error)
                return [] if found is None else [found]
    return []


def _failing_node(
    tensor: torch.Tensor, leaves: Sequence[torch.Tensor], nodes: Sequence[Node]
) -> tuple[Node, tuple[Any, ...]] | None:
    """Run backward of one output and return the custom node in which it failed."""
    entered: list[tuple[Node, tuple[Any, ...]]] = []
    handles = [node.register_prehook(_noter(entered, node)) for node in nodes]
    cotangent = random_signs(tensor.detach(), generator_for(0))
    try:
        torch.autograd.grad(tensor, leaves, cotangent, retain_graph=True, allow_unused=True)
    except Exception:  # noqa: BLE001 - what is looked for
        return entered[-1] if entered else None
    finally:
        for handle in handles:
            handle.remove()
    return None


def _noter(
    entered: list[tuple[Node, tuple[Any, ...]]], node: Node
) -> Callable[[Sequence[Any]], None]:
    def note(gradients: Sequence[Any]) -> None:
        entered.append((node, tuple(gradients)))

    return note


def _explained(node: Node, gradients: tuple[Any, ...], error: BaseException) -> Finding | None:
    function = _torch_compat.custom_function_class(node)
    backward: Any = getattr(function, "backward", None)
    if function is None or backward is None:
        return None
    text = one_line(error, longest=_LONGEST)
    try:
        returned = backward(node, *gradients)
    except Exception as raised:  # noqa: BLE001 - the user's own, or for want of a gradient
        if all(given is not None for given in gradients):
            return None
        if not _runs_on_zeros(node, gradients):
            return None
        return raises_without_output(function, text, raised)
    given = returned if isinstance(returned, tuple) else (returned,)
    needed = len(getattr(node, "needs_input_grad", ()))
    if needed and len(given) != needed:
        return wrong_arity(function, len(given), needed)
    return refused_gradient(function, text, _refused_argument(node, text))


def _refused_argument(node: Node, text: str) -> int | None:
    """Return the argument of forward whose gradient torch refuses, counted after ctx.

    Torch counts the tensors among the arguments: where all need a gradient, these are the same.
    """
    found = re.search(r"invalid gradient at index (\d+)", text)
    return int(found[1]) if found and all(getattr(node, "needs_input_grad", (False,))) else None


def _runs_on_zeros(node: Node, gradients: tuple[Any, ...]) -> bool:
    """Return whether the gradients that are there would do, with zeros for the others."""
    shapes = _torch_compat.node_output_types(node)
    known: torch.Tensor | None = next((given for given in gradients if given is not None), None)
    filled = []
    for number, given in enumerate(gradients):
        if given is not None:
            filled.append(given)
            continue
        kind = shapes[number] if number < len(shapes) else None
        if kind is not None:
            filled.append(torch.zeros(kind[0], dtype=kind[1]))
        elif known is not None:
            filled.append(torch.zeros_like(known))
        else:
            return False
    function: Any = _torch_compat.custom_function_class(node)
    try:
        function.backward(node, *filled)
    except Exception:  # noqa: BLE001 - not for want of a gradient, then
        return False
    return True
