"""Turn the graph behind some tensors into plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradcheck_suite._torch_compat import (
    custom_function_class,
    node_output_types,
    node_sequence_number,
    saved_attributes,
    storage_key,
)
from gradcheck_suite.errors import UsageError
from gradcheck_suite.graph.checks.report import Observed, report_of
from gradcheck_suite.graph.model import (
    AutogradGraph,
    Edge,
    Node,
    NodeKind,
    Root,
)
from gradcheck_suite.graph.recording.recorded_run import RecordedRun
from gradcheck_suite.graph.trace.custom_functions import CustomFunctions
from gradcheck_suite.graph.trace.leaves import ModelNames, leaf_of, names_among, names_of, type_of
from gradcheck_suite.graph.trace.roots import FoundRoots, find_roots
from gradcheck_suite.graph.trace.safe_release import release_without_recursion
from gradcheck_suite.graph.trace.saved_tensors import HIDES_SAVED, RecordedSaves, SavedReader
from gradcheck_suite.graph.trace.source_lines import source_of
from gradcheck_suite.graph.trace.walk import Walked, collector_paused, progress_if_large, walk
from gradcheck_suite.reporting.text import plural

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from torch.autograd.graph import Node as TorchNode

    from gradcheck_suite.graph.recording.backward import RecordedBackward
    from gradcheck_suite.graph.trace.module_tree import Member

_LEAF_OP = "AccumulateGrad"
# What torch puts where no gradient can come from, or where to ask for one is an error.
_UNDEFINED_OPS = frozenset(
    {"UndefinedGrad", "UndefinedGradBackward", "Error", "DelayedError", "NotImplemented"}
)


def trace_graph(
    tensors: object,
    model: torch.nn.Module | None = None,
    *,
    recording: RecordedRun | None = None,
) -> AutogradGraph:
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
        recording: what :func:`gradcheck_suite.record` noted of the forward that made the tensors.
            Without ``model`` it also gives leaves their names.

    Returns:
        The graph from all the given tensors together.

    Raises:
        UsageError: no tensor with a graph was given, ``model`` is not a module, or ``recording``
            is not a recording.
    """
    return trace_called(tensors, model, recording=recording, called="the tensor you passed")


def trace_called(
    tensors: object, model: torch.nn.Module | None, *, recording: RecordedRun | None, called: str
) -> AutogradGraph:
    """Do what :func:`trace_graph` does, with a name for a tensor that is not in a container."""
    if recording is not None and not isinstance(recording, RecordedRun):
        raise UsageError(
            f"recording= expected what gs.record() returns, got {type(recording).__name__}; "
            "leave it out to trace tensors whose forward was not recorded"
        )
    names = _names(model, recording)
    roots = find_roots(tensors, called=called)
    with collector_paused():
        walked = walk(start.node for start in roots.starts)
        release_without_recursion(walked)
        return _describe(walked, roots, names=names, model=model, recording=recording)


def trace_named(
    tensors: object, members: Iterable[Member], *, with_attributes: bool
) -> AutogradGraph:
    """Trace the graph behind ``tensors``, whose leaves have these names."""
    roots = find_roots(tensors)
    with collector_paused():
        walked = walk(start.node for start in roots.starts)
        release_without_recursion(walked)
        return _describe(
            walked,
            roots,
            names=names_among(members),
            model=None,
            recording=None,
            with_attributes=with_attributes,
        )


def graph_of_backward(
    recorded: RecordedBackward, *, model: torch.nn.Module | None, recording: RecordedRun
) -> AutogradGraph:
    """Describe the graph that a recorded backward went through, and release it."""
    if not recorded.links:
        raise RuntimeError("a watched backward is described once")
    with collector_paused():
        graph = _describe(
            recorded.walked(),
            recorded.found,
            names=_names(model, recording),
            model=model,
            recording=recording,
        )
    recorded.release()
    return graph


def _names(model: torch.nn.Module | None, recording: RecordedRun | None) -> ModelNames:
    if model is None and recording is not None:
        return names_among(recording.members())
    return names_of(model)


def _describe(
    walked: Walked,
    found: FoundRoots,
    *,
    names: ModelNames,
    model: torch.nn.Module | None,
    recording: RecordedRun | None,
    with_attributes: bool = False,
) -> AutogradGraph:
    nodes = plural(len(walked.order), "node")
    with progress_if_large(len(walked.order), f"Reading a graph of {nodes}"):
        return _described(
            walked,
            found,
            names=names,
            model=model,
            recording=recording,
            with_attributes=with_attributes,
        )


def _described(
    walked: Walked,
    found: FoundRoots,
    *,
    names: ModelNames,
    model: torch.nn.Module | None,
    recording: RecordedRun | None,
    with_attributes: bool,
) -> AutogradGraph:
    ids = {node: number for number, node in enumerate(walked.order, start=1)}
    variables = [
        getattr(node, "variable", None) if op_name(node) == _LEAF_OP else None
        for node in walked.order
    ]
    describe = _Describer(
        reader=SavedReader(_storage_owners(variables, names)),
        functions=CustomFunctions(),
        names=names,
        recording=recording,
        recorded_saves=_recorded_saves(walked, recording),
        with_attributes=with_attributes,
    )
    nodes = tuple(
        describe.node(ids[node], node, variable, inputs=inputs)
        for node, variable, inputs in zip(walked.order, variables, _inputs(walked), strict=True)
    )
    gradients = {} if recording is None else recording.gradients()
    edges = tuple(
        Edge(
            ids[node],
            ids[target],
            input_index,
            output_index,
            gradients.get((number, input_index)) if gradients and number is not None else None,
        )
        for node, links, number in zip(
            walked.order, walked.links, (node.sequence_number for node in nodes), strict=True
        )
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
        edges=edges,
        roots=roots,
        reached=frozenset(id(variable) for variable in variables if variable is not None),
        may_reach_further=tuple(
            ids[node]
            for node in walked.order
            if (function := custom_function_class(node)) is not None
            and describe.functions.may_run_backward_inside(function, node)
        ),
    )
    return AutogradGraph(
        nodes=nodes,
        edges=edges,
        roots=roots,
        report=report_of(observed, model=model, recording=recording),
        ignored=found.ignored,
        calls=() if recording is None else recording.calls_in(model),
    )


def _recorded_saves(walked: Walked, recording: RecordedRun | None) -> RecordedSaves | None:
    if recording is None:
        return None
    ops = {
        number: op_name(node)
        for node in walked.order
        if (number := node_sequence_number(node)) is not None
    }
    return RecordedSaves(recording.packed, ops)


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


@dataclass(slots=True)
class _Describer:
    """Turn nodes into plain data, one after another."""

    reader: SavedReader
    functions: CustomFunctions
    names: ModelNames
    recording: RecordedRun | None
    recorded_saves: RecordedSaves | None
    with_attributes: bool

    def node(
        self, node_id: int, node: TorchNode, variable: torch.Tensor | None, *, inputs: int
    ) -> Node:
        op = op_name(node)
        function = custom_function_class(node)
        number = node_sequence_number(node)
        saved, freed, places = self.reader.read(node, node_id)
        was_seen = was_missed = False
        if self.recording is not None and self.recorded_saves is not None:
            was_seen = self.recording.saw_saving_at(number)
            was_missed = freed and self.recording.missed_saving_at(number)
            if was_seen and (freed or op == HIDES_SAVED):
                # What else was saved before the next node is not this one's: checkpoint's inputs.
                recorded = self.recorded_saves.of(number)[:places]
                saved = self.reader.describe_recorded(recorded, node_id)
        return Node(
            id=node_id,
            op=op,
            kind=_kind(op, is_custom=function is not None),
            sequence_number=number,
            outputs=tuple(
                None if known is None else type_of(*known) for known in node_output_types(node)
            ),
            saved=saved,
            leaf=None if variable is None else leaf_of(variable, self.names),
            location=None if function is None else self.functions.location(function),
            inputs_without_gradient=inputs,
            freed=freed,
            saved_is_visible=not was_missed and (was_seen or op != HIDES_SAVED),
            call=None if self.recording is None else self.recording.call_at(number),
            source=(
                source_of(node)
                if self.recording is not None and self.recording.notes_sources
                else None
            ),
            attributes=saved_attributes(node) if self.with_attributes else (),
        )


def _kind(op: str, *, is_custom: bool) -> NodeKind:
    if is_custom:
        return "custom function"
    if op == _LEAF_OP:
        return "leaf"
    return "undefined" if op in _UNDEFINED_OPS else "op"
