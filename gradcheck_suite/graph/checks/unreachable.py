"""Explain why backward does not reach a parameter, from what a recorded forward was like."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite.findings import Finding
from gradcheck_suite.reporting.text import plural, visible
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from gradcheck_suite.graph.model import ModuleCall
    from gradcheck_suite.graph.recording.module_spans import CallRecord
    from gradcheck_suite.graph.recording.recorded_run import RecordedRun

__all__ = ["explain_unreachable", "listed"]

_LISTED = 8


def explain_unreachable(
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
        f"its {plural(len(names), 'trainable parameter')} get no gradient: {listed(names)}",
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
        f"gradient: {listed(names)}",
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


def listed(names: Sequence[str]) -> str:
    """Name the first parameters, and count the others."""
    shown = ", ".join(visible(name) for name in names[:_LISTED])
    more = len(names) - _LISTED
    return f"{shown} and {more} more" if more > 0 else shown
