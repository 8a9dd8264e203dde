"""Judge a graph: which parameters backward can't reach, and what could not be seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite.findings import Finding, Report
from gradcheck_suite.graph.checks.findings import (
    born_non_finite,
    dtype_changes,
    modified_since_saved,
    never_given,
    slice_write_chains,
)
from gradcheck_suite.graph.checks.unreachable import explain_unreachable, listed
from gradcheck_suite.graph.model import Edge, Node, Root
from gradcheck_suite.graph.trace.saved_tensors import HIDES_SAVED
from gradcheck_suite.reporting.text import plural, visible

if TYPE_CHECKING:
    import torch

    from gradcheck_suite.graph.recording.recorded_run import RecordedRun

__all__ = ["Observed", "report_of"]

_NAMES_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Observed:
    """What the walk has seen.

    ``reached`` holds the ``id`` of each leaf tensor. ``may_reach_further`` are the nodes whose
    backward may run a backward of its own.
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    roots: tuple[Root, ...]
    reached: frozenset[int]
    may_reach_further: tuple[int, ...]


def report_of(
    observed: Observed, *, model: torch.nn.Module | None, recording: RecordedRun | None = None
) -> Report:
    """Report what is wrong with a graph, its figures, and what could not be looked at."""
    nodes = observed.nodes
    not_covered = _not_visible(nodes)
    if recording is not None:
        not_covered += (*_not_recorded(observed, recording), *recording.not_recorded)
    findings = (
        *modified_since_saved(nodes),
        *slice_write_chains(nodes, observed.edges),
        *dtype_changes(nodes, observed.edges, observed.roots),
    )
    if recording is not None:
        findings += tuple(
            born_non_finite(
                nodes,
                observed.edges,
                incoming=recording.incoming(),
                calls=recording.calls_in(model),
            )
        )
        if not recording.is_partial:
            findings += tuple(never_given(nodes, observed.edges, observed.roots))
    if model is not None:
        unreached = _unreached_parameters(model, observed.reached)
        if unreached and observed.may_reach_further:
            not_covered += (_not_judged(unreached, observed),)
        elif unreached:
            cuts: tuple[Finding, ...] = ()
            if recording is not None:
                cuts, unreached = explain_unreachable(unreached, model, recording=recording)
            findings += cuts
            if unreached:
                findings += (_without_gradient(unreached, model, observed),)
    return Report(
        tool="gradcheck-suite graph",
        findings=findings,
        summary={
            "nodes": len(nodes),
            "edges": len(observed.edges),
            "roots": len(observed.roots),
            "leaves": sum(node.leaf is not None for node in nodes),
            "saved_bytes": sum(node.saved_bytes for node in nodes),
        },
        not_covered=not_covered,
    )


def _unreached_parameters(model: torch.nn.Module, reached: frozenset[int]) -> tuple[str, ...]:
    """Name the trainable parameters that no path reaches, each tensor once."""
    return tuple(
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and id(parameter) not in reached
    )


def _without_gradient(
    unreached: tuple[str, ...], model: torch.nn.Module, observed: Observed
) -> Finding:
    trainable = sum(parameter.requires_grad for parameter in model.parameters())
    kind = type(model).__name__
    roots = ", ".join(visible(root.name) for root in observed.roots[:_NAMES_SHOWN])
    few = "parameter" if len(unreached) == 1 else "parameters"
    return Finding.of(
        catalogue.PARAMETER_WITHOUT_GRADIENT,
        f"backward from {roots} does not reach {len(unreached)} of {trainable} trainable "
        f"parameters of {kind}: {listed(unreached)}; their .grad stays as it is",
        detector="graph",
        hint=(
            f"use the {few} in forward, trace every loss that you call backward on, or freeze "
            "what is not to be trained with requires_grad_(False)"
        ),
        evidence={
            "module": kind,
            "parameters": unreached,
            "trainable": trainable,
            "roots": tuple(root.name for root in observed.roots),
        },
    )


def _not_judged(unreached: tuple[str, ...], observed: Observed) -> str:
    first = observed.nodes[observed.may_reach_further[0] - 1]
    return (
        f"{plural(len(unreached), 'trainable parameter')} not reached by an edge of the graph "
        f"({listed(unreached)}): {first.op} (#{first.id}) may run a backward of its own, which "
        "no edge shows"
    )


def _not_visible(nodes: tuple[Node, ...]) -> tuple[str, ...]:
    lines: list[str] = []
    hidden = sum(not node.saved_is_visible and node.op == HIDES_SAVED for node in nodes)
    if hidden:
        lines.append(
            f"what {plural(hidden, 'CopySlices node')} saved: torch does not show it, so the saved "
            "bytes are at least those given"
        )
    hooked = sum(saved.hooked for node in nodes for saved in node.saved)
    if hooked:
        lines.append(
            f"{plural(hooked, 'saved tensor')} held by saved-tensor hooks (checkpointing, "
            "offloading): shape and bytes are known only to the hooks"
        )
    unsized = sum(
        saved.storage_bytes is None and not saved.hooked for node in nodes for saved in node.saved
    )
    if unsized:
        lines.append(
            f"the bytes of {plural(unsized, 'saved tensor')} without a storage of its own "
            "(sparse tensors, tensor subclasses)"
        )
    return tuple(lines)


def _not_recorded(observed: Observed, recording: RecordedRun) -> tuple[str, ...]:
    """Say what was asked for of this graph and not seen: most often, it was made outside."""
    lines: list[str] = []
    ops = [node for node in observed.nodes if node.kind in {"op", "custom function"}]
    without_line = sum(node.source is None for node in ops)
    if recording.notes_sources and without_line:
        lines.append(
            f"the source lines of {without_line} of {plural(len(ops), 'op')}: they were made "
            "outside of the recording, or by no code of yours"
        )
    gone = sum(node.freed and not recording.saw_saving_at(node.sequence_number) for node in ops)
    if recording.notes_saved and gone:
        lines.append(
            f"what {plural(gone, 'op')} saved: a backward has freed it, and the recording did not "
            "see it: it was made outside, or other hooks held it (checkpointing, offloading)"
        )
    edges = observed.edges
    went_elsewhere = edges and all(edge.gradient is None for edge in edges)
    if recording.notes_gradients and went_elsewhere and not recording.unread_gradients:
        forgotten = recording.forgotten_backwards
        also = f", or only the first {forgotten}, which are not kept" if forgotten else ""
        lines.append(
            f"the gradients of this graph: no backward within the recording ran through it{also}"
        )
    return tuple(lines)
