"""Judge a graph: which parameters backward can't reach and why, and what could not be seen."""

from __future__ import annotations

from collections import defaultdict
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
from gradcheck_suite.graph.model import Edge, ModuleCall, Node, Root
from gradcheck_suite.graph.trace.saved_tensors import HIDES_SAVED
from gradcheck_suite.reporting.text import plural, visible
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from gradcheck_suite.graph.recording.module_spans import CallRecord
    from gradcheck_suite.graph.recording.recorded_run import RecordedRun

__all__ = ["Observed", "report_of"]

_LISTED = 8


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
                cuts, unreached = _explained(unreached, model, recording=recording)
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
    roots = ", ".join(visible(root.name) for root in observed.roots[:_LISTED])
    few = "parameter" if len(unreached) == 1 else "parameters"
    return Finding.of(
        catalogue.PARAMETER_WITHOUT_GRADIENT,
        f"backward from {roots} does not reach {len(unreached)} of {trainable} trainable "
        f"parameters of {kind}: {_listed(unreached)}; their .grad stays as it is",
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
        f"({_listed(unreached)}): {first.op} (#{first.id}) may run a backward of its own, which "
        "no edge shows"
    )


def _explained(
    unreached: tuple[str, ...], model: torch.nn.Module, *, recording: RecordedRun
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Say of unreached parameters where the way back ends, and which have no explanation.

    Only what was seen counts: a module that ran while recording was off, or one whose output was
    detached before the next module that backward does reach.
    """
    calls, facts = recording.calls_in(model), recording.facts
    without_grad, left = _under_no_grad(unreached, calls, facts)
    findings = [_no_grad_finding(path, names) for path, names in without_grad.items()]
    if left:
        cut = _cut(left, model, calls, facts)
        if cut is not None:
            finding, names = cut
            findings.append(finding)
            left = tuple(name for name in left if name not in names)
    return tuple(findings), left


def _owner(parameter: str) -> str:
    return parameter.rpartition(".")[0]


def _under_no_grad(
    unreached: tuple[str, ...], calls: tuple[ModuleCall, ...], facts: tuple[CallRecord, ...]
) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    """Group the parameters whose modules ran only without recording by where that began."""
    by_path: dict[str, list[int]] = defaultdict(list)
    for number, call in enumerate(calls):
        by_path[call.path].append(number)
    groups: dict[str, list[str]] = defaultdict(list)
    left: list[str] = []
    for name in unreached:
        numbers = by_path.get(_owner(name), ())
        if numbers and not any(facts[number].grad_enabled for number in numbers):
            outermost = numbers[0]
            while (above := facts[outermost].parent) is not None and not facts[above].grad_enabled:
                outermost = above
            groups[calls[outermost].path or calls[outermost].kind].append(name)
        else:
            left.append(name)
    return groups, tuple(left)


def _no_grad_finding(path: str, names: list[str]) -> Finding:
    return Finding.of(
        catalogue.FORWARD_UNDER_NO_GRAD,
        f"module {visible(path)} ran while recording was off (torch.no_grad or inference_mode): "
        f"its {plural(len(names), 'trainable parameter')} get no gradient: {_listed(names)}",
        detector="graph",
        severity=Severity.WARNING,
        hint=(
            f"call {visible(path)} outside no_grad, or freeze it on purpose with "
            "requires_grad_(False)"
        ),
        evidence={"module": path, "parameters": tuple(names)},
    )


def _cut(
    unreached: tuple[str, ...],
    model: torch.nn.Module,
    calls: tuple[ModuleCall, ...],
    facts: tuple[CallRecord, ...],
) -> tuple[Finding, set[str]] | None:
    """Find where everything before is unreached, everything after is reached, and a cut is seen."""
    missing = set(unreached)
    owned: dict[str, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            owned[_owner(name)].append(name)
    owners = [number for number, call in enumerate(calls) if call.path in owned]
    is_missing = [missing.issuperset(owned[calls[number].path]) for number in owners]
    border = next((place for place, gone in enumerate(is_missing) if not gone), None)
    if not border or any(is_missing[border:]):
        return None
    last, first = owners[border - 1], owners[border]
    where = _seen_cut(last, first, calls, facts)
    if where is None:
        return None
    names = [name for number in owners[:border] for name in owned[calls[number].path]]
    names = [name for name in dict.fromkeys(names) if name in missing]
    finding = Finding.of(
        catalogue.GRAPH_BROKEN,
        f"the way back ends {where}: {plural(len(names), 'trainable parameter')} before it get no "
        f"gradient: {_listed(names)}",
        detector="graph",
        severity=Severity.WARNING,
        hint=(
            "look there for .detach(), .data, .item(), numpy, argmax or no_grad; or freeze what "
            "lies before on purpose with requires_grad_(False)"
        ),
        evidence={"where": where, "parameters": tuple(names)},
    )
    return finding, set(names)


def _seen_cut(
    last: int, first: int, calls: tuple[ModuleCall, ...], facts: tuple[CallRecord, ...]
) -> str | None:
    inside = [
        number
        for number, fact in enumerate(facts[:first])
        if number > last
        and fact.grad_enabled
        and fact.input_requires_grad
        and fact.output_requires_grad is False
    ]
    if inside:
        name = visible(calls[inside[-1]].label)
        return f"in module {name}, whose input required grad and whose output does not"
    for number in range(last, first + 1):
        source = facts[number].cut_from
        if source is not None:
            return (
                f"between module {visible(calls[source].label)}, whose output required grad, and "
                f"module {visible(calls[number].label)}, which was given it detached"
            )
    return None


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


def _listed(names: Sequence[str]) -> str:
    """Name the first parameters, and count the others."""
    shown = ", ".join(visible(name) for name in names[:_LISTED])
    more = len(names) - _LISTED
    return f"{shown} and {more} more" if more > 0 else shown
