"""Turn the graph behind some tensors into plain data."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gradcheck_suite._torch_compat import (
    custom_function_class,
    node_output_types,
    node_sequence_number,
    storage_key,
)
from gradcheck_suite.graph._deep import release_without_recursion
from gradcheck_suite.graph._functions import CustomFunctions
from gradcheck_suite.graph._leaves import ModelNames, leaf_of, names_of, type_of
from gradcheck_suite.graph._report import Observed, report_of
from gradcheck_suite.graph._roots import FoundRoots, find_roots
from gradcheck_suite.graph._saved import SavedReader
from gradcheck_suite.graph._walk import Walked, walk
from gradcheck_suite.graph.model import (
    AutogradGraph,
    Edge,
    Node,
    NodeKind,
    Root,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch.autograd.graph import Node as TorchNode

_LEAF_OP = "AccumulateGrad"
_HIDES_SAVED = "CopySlices"
# What torch puts where no gradient can come from, or where to ask for one is an error.
_UNDEFINED_OPS = frozenset(
    {"UndefinedGrad", "UndefinedGradBackward", "Error", "DelayedError", "NotImplemented"}
)


def trace_graph(tensors: object, model: torch.nn.Module | None = None) -> AutogradGraph:
    """Tell what backward will do from ``tensors``: a picture to print, to save or to ask.

    Nothing is run and nothing changes: no hook of yours is called, gradients stay as they are, and
    the result keeps no tensor alive.

    >>> import torch
    >>> weight = torch.ones(3, requires_grad=True)
    >>> graph = trace_graph((weight * weight).sum())
    >>> [node.op for node in graph.nodes]
    ['SumBackward0', 'MulBackward0', 'AccumulateGrad']
    >>> graph.saved_bytes  # mul saves weight twice, which is alive anyway
    0

    Args:
        tensors: a tensor, or a list, dict or any object that holds tensors; those that don't
            require grad are listed in ``ignored``. A node (``loss.grad_fn``) or a GradientEdge
            may stand for a tensor.
        model: gives leaves the names of its parameters. Its trainable parameters that backward
            can't reach are reported as ``GCS403 parameter-without-gradient``.

    Returns:
        The graph from all the given tensors together.

    Raises:
        UsageError: no tensor with a graph was given, or ``model`` is not a module.
    """
    names = names_of(model)
    roots = find_roots(tensors)
    with _collector_paused():
        walked = walk(start.node for start in roots.starts)
        release_without_recursion(walked)
        return _describe(walked, roots, names=names, model=model)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause cyclic garbage collection, which doubles the time that a large graph takes."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _describe(
    walked: Walked, found: FoundRoots, *, names: ModelNames, model: torch.nn.Module | None
) -> AutogradGraph:
    ids = {node: number for number, node in enumerate(walked.order, start=1)}
    variables = [
        getattr(node, "variable", None) if op_name(node) == _LEAF_OP else None
        for node in walked.order
    ]
    reader = SavedReader(_storage_owners(variables, names))
    functions = CustomFunctions()
    nodes = tuple(
        _describe_node(
            ids[node],
            node,
            variable,
            reader=reader,
            functions=functions,
            names=names,
            inputs=inputs,
        )
        for node, variable, inputs in zip(walked.order, variables, _inputs(walked), strict=True)
    )
    edges = tuple(
        Edge(ids[node], ids[target], input_index, output_index)
        for node, links in zip(walked.order, walked.links, strict=True)
        for input_index, (target, output_index) in enumerate(links)
        if target is not None
    )
    roots = tuple(
        Root(
            name=start.name,
            node=ids[start.node],
            output_index=start.output_index,
            type=(
                type_of(start.shape, start.dtype)
                if start.shape is not None and start.dtype is not None
                else None
            ),
        )
        for start in found.starts
    )
    observed = Observed(
        nodes=nodes,
        edge_count=len(edges),
        roots=roots,
        reached=frozenset(id(variable) for variable in variables if variable is not None),
        may_reach_further=tuple(
            ids[node]
            for node in walked.order
            if (function := custom_function_class(node)) is not None
            and functions.may_run_backward_inside(function, node)
        ),
    )
    return AutogradGraph(
        nodes=nodes,
        edges=edges,
        roots=roots,
        report=report_of(observed, model=model),
        ignored=found.ignored,
    )


def op_name(node: TorchNode) -> str:
    """Return torch's name of a node without its namespace."""
    return node.name().rpartition("::")[-1]


def _inputs(walked: Walked) -> list[int]:
    return [sum(target is None for target, _ in links) for links in walked.links]


def _storage_owners(variables: list[torch.Tensor | None], names: ModelNames) -> dict[int, str]:
    owners = dict(names.storage_owners)
    for variable in variables:
        if variable is not None:
            key = storage_key(variable)
            if key is not None:
                owners.setdefault(key, "leaf")
    return owners


def _describe_node(
    node_id: int,
    node: TorchNode,
    variable: torch.Tensor | None,
    *,
    reader: SavedReader,
    functions: CustomFunctions,
    names: ModelNames,
    inputs: int,
) -> Node:
    op = op_name(node)
    function = custom_function_class(node)
    saved, freed = reader.read(node, node_id)
    return Node(
        id=node_id,
        op=op,
        kind=_kind(op, is_custom=function is not None),
        sequence_number=node_sequence_number(node),
        outputs=tuple(
            None if known is None else type_of(*known) for known in node_output_types(node)
        ),
        saved=saved,
        leaf=None if variable is None else leaf_of(variable, names),
        location=None if function is None else functions.location(function),
        inputs_without_gradient=inputs,
        freed=freed,
        saved_is_visible=op != _HIDES_SAVED,
    )


def _kind(op: str, *, is_custom: bool) -> NodeKind:
    if is_custom:
        return "custom function"
    if op == _LEAF_OP:
        return "leaf"
    return "undefined" if op in _UNDEFINED_OPS else "op"
