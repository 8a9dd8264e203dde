"""What is said of parameters that no gradient reached: where, why, and how surely."""

from __future__ import annotations

import inspect
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer

from gradcheck_suite import catalogue
from gradcheck_suite._runtime.frames import definition_line
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.connectivity.watched_modules import Call, ModuleWatch
from gradcheck_suite.auditing.source_analysis.flow_cut import Cut, Flow, follow_parts, switched_off
from gradcheck_suite.auditing.source_analysis.source import function_at
from gradcheck_suite.findings import Finding, Location, Related, Severity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import CodeType

__all__ = [
    "CERTAIN",
    "LOOKED_AT",
    "MODULE",
    "Group",
    "Part",
    "Place",
    "Verdict",
    "Watched",
    "broken",
    "cut_before",
    "cut_place",
    "drawn_finding",
    "finding_of",
    "flat_finding",
    "frozen_finding",
    "is_conditional",
    "look_again",
    "none_gradient",
    "under_no_grad",
]

MODULE = "<module>"
"""Stands in a verdict for the name of the module that it is about."""

LOOKED_AT = 8
"""In so many first steps of an optimizer, each parameter is asked for its gradient. A bound on
cost, above the steps that make a finding, so that modules that take turns show as such."""

CERTAIN = 3
"""So many steps without a gradient make a finding. Chosen: one step may be a warm-up, and of two
losses or parts that take turns each comes by in two."""

_NAMES_SHOWN = 6
"""Names of parameters in a message; of more, their number is told. Chosen, for length."""

_HINT = "keep the tensor itself in the loss; convert or detach it for logging only"
_HINTS = {
    "`.sample()`": "draw with rsample(), which records; or weigh log_prob() of what was drawn",
}


@dataclass(frozen=True, slots=True)
class Part:
    """A module, by its name and class, and where the forward is that ought to call it."""

    name: str
    kind: str
    forward: Location | None


@dataclass(slots=True)
class Place:
    """Where a parameter without gradients belongs.

    ``outermost`` is the outermost module that has its module in it and no parameter with a
    gradient; None where its own module is that. ``compiled`` says whether its module is a part of
    one that ``torch.compile`` was given, of whose inner calls nobody hears.
    """

    name: str
    module: str | None
    kind: str
    modules: tuple[int, ...]
    whole: bool
    siblings: frozenset[int]
    forward: Location | None
    outermost: Part | None = None
    compiled: bool = False


@dataclass(slots=True)
class Watched:
    """An optimizer, its identity, and its parameters without a gradient so far.

    ``site`` is where it was made; where nobody saw that, where it steps.
    """

    identity: int
    optimizer: weakref.ref[Optimizer]
    name: str
    site: CallSite | None
    steps: int = 0
    parameters: int = 0
    missing: dict[int, weakref.ref[Tensor]] = field(default_factory=dict)
    frozen: dict[int, weakref.ref[Tensor]] = field(default_factory=dict)
    had: dict[int, int] = field(default_factory=dict)
    places: dict[int, Place] = field(default_factory=dict)
    watch: ModuleWatch | None = None
    asked: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a parameter got no gradient, and what is to be done about it.

    What is said of a module has ``MODULE`` for its name, and ``outermost`` is then the name of the
    module that this may be said of as a whole. ``is_cut`` says that the expression that cuts all
    ways to the loss is known.
    """

    entry: catalogue.Entry
    location: Location | None
    reason: str
    hint: str
    severity: Severity | None = Severity.WARNING
    related: tuple[Related, ...] = ()
    doubts: tuple[str, ...] = ()
    outermost: str | None = None
    is_cut: bool = False


@dataclass(slots=True)
class Group:
    """The parameters of which one verdict is given."""

    verdict: Verdict
    places: list[Place] = field(default_factory=list)


def is_conditional(watched: Watched, place: Place) -> bool:
    """Return whether the siblings in a list of modules take turns: experts, random depth."""
    every = (1 << (min(watched.steps, LOOKED_AT) + 1)) - 2
    masks = {watched.had.get(identity, 0) for identity in place.siblings}
    return any(mask not in (0, every) for mask in masks)


def called(places: Sequence[Place]) -> str:
    """Return words for the module of some parameters, or the outermost where they have several."""
    name, kind = places[0].module, places[0].kind
    outermost = places[0].outermost
    if outermost is not None and any(place.module != name for place in places):
        name, kind = outermost.name, outermost.kind
    if name is None:
        return "its module"
    # A layer in a list has but a number.
    return f"the {kind} `{name}`" if name.endswith("]") else f"`{name}`"


def none_gradient(function: type) -> Verdict:
    """Return what is said of a parameter for which this Function returns None."""
    backward: Any = getattr(function, "backward", None)
    method = inspect.unwrap(backward) if callable(backward) else None
    code = getattr(method, "__code__", None)
    where = None
    if method is not None and code is not None:
        name = method.__qualname__
        where = Location(path=code.co_filename, line=definition_line(code), function=name)
    return Verdict(
        catalogue.NONE_GRADIENT,
        where,
        f"backward of {function.__name__} returns None for it",
        "return the gradient of each input that needs one; None stands for `no gradient`",
    )


def cut_before(
    stack: tuple[CallSite, ...], frames: Mapping[CodeType, Mapping[str, object]] | None = None
) -> Flow:
    """Return where the loss of this backward was cut, if any of the calling functions shows it.

    While they run, ``frames`` are their variables.
    """
    places = [(site[0], place) for site in stack if (place := location_of(site)) is not None]
    sinks = {(place.path, place.line) for _, place in places}
    for code, place in places:
        variables = None if frames is None else frames.get(code)
        flow = follow_parts(place, from_calls=True, sinks=sinks, variables=variables).flow
        if isinstance(flow, Cut):
            return flow
    return "unknown"


def broken(flow: Flow, seen: Location | None) -> Verdict:
    """Return what is said of a parameter whose way to the loss was cut."""
    where, related = cut_place(flow, seen)
    if isinstance(flow, Cut) and flow.under:
        return Verdict(
            catalogue.FORWARD_UNDER_NO_GRAD,
            where,
            "what depends on it is computed while recording is switched off",
            "compute it with recording on, or freeze the parameter",
            related=related,
            is_cut=True,
        )
    if isinstance(flow, Cut) and flow.forced:
        return Verdict(
            catalogue.FORCED_REQUIRES_GRAD,
            where,
            f"{flow.what} with requires_grad makes a leaf of its own out of numbers, and "
            "backward() goes no further",
            "keep the tensors themselves: torch.stack(losses); find what cut off the loss",
            None,
            related,
        )
    what = flow.what.rstrip(",") if isinstance(flow, Cut) else ""
    return Verdict(
        catalogue.GRAPH_BROKEN,
        where,
        f"the way from there to the loss is cut by {what}".removesuffix(" by "),
        _HINTS.get(
            what, "keep the tensor itself in the loss; convert or detach it for logging only"
        ),
        related=related,
        is_cut=isinstance(flow, Cut),
    )


def cut_place(
    flow: Flow, seen: Location | None, words: str = "what was cut off is used here"
) -> tuple[Location | None, tuple[Related, ...]]:
    """Return the line that cut a graph, and the one that uses what was cut off."""
    if not isinstance(flow, Cut):
        return seen, ()
    where = Location(path=flow.path, line=flow.line, function=function_at(flow.path, flow.line))
    if seen is None or (seen.path == where.path and seen.line == where.line):
        return where, ()
    return where, (Related(seen, words),)


def finding_of(watched: Watched, group: Group) -> Finding:
    """Return what is said of the parameters of a group."""
    verdict = group.verdict
    names = [place.name for place in group.places]
    shown = ", ".join(f"`{name}`" for name in names[:_NAMES_SHOWN])
    if len(names) > _NAMES_SHOWN:
        shown += f" and {len(names) - _NAMES_SHOWN} more"
    many = len(names) > 1
    reason = verdict.reason.replace(MODULE, called(group.places))
    cut_off = verdict.is_cut and len(names) == watched.parameters
    return Finding.of(
        verdict.entry,
        f"{shown} got no gradient in the {watched.steps} steps of {watched.name} that own"
        f"{'s' if watched.steps == 1 else ''} {'them' if many else 'it'}: {reason}",
        detector="audit",
        severity=Severity.ERROR if cut_off else verdict.severity,
        doubts=verdict.doubts,
        location=verdict.location,
        related=verdict.related,
        hint=verdict.hint,
        evidence={
            "parameters": tuple(names),
            "of_parameters": watched.parameters,
            "steps": watched.steps,
            "optimizer": watched.name,
        },
    )


def flat_finding(
    count: int, operations: Sequence[str], where: Location | None, related: tuple[Related, ...]
) -> Finding:
    """Return what is said of parameters that only ops of zero slope connect to the loss."""
    parameters, whose = ("1 parameter", "its") if count == 1 else (f"{count} parameters", "their")
    return Finding.of(
        catalogue.GRAPH_BROKEN,
        f"every way from {parameters} to the loss goes through {' or '.join(operations)}, whose "
        f"slope is zero: {whose} gradients are there and always exactly zero",
        detector="audit",
        severity=Severity.WARNING,
        location=where,
        related=related,
        hint="pass the gradient straight through: x + (x.round() - x).detach()",
        evidence={"parameters": count, "operations": tuple(operations)},
    )


def drawn_finding(
    operations: Sequence[str], where: Location | None, related: tuple[Related, ...]
) -> Finding:
    """Return what is said of values drawn from what has a graph."""
    names = " and ".join(f"{each}()" for each in operations)
    return Finding.of(
        catalogue.GRAPH_BROKEN,
        f"{names} draws from a distribution whose parameters have a graph, and its derivative is "
        "zero: what the loss sends back through the drawn values never arrives; expected a draw "
        "that keeps the gradient",
        detector="audit",
        severity=Severity.WARNING,
        location=where,
        related=related,
        hint="mean + std * torch.randn_like(std), or rsample() of the distribution",
        evidence={"operations": tuple(operations)},
    )


def frozen_finding(watched: Watched) -> list[Finding]:
    """Return what is said of parameters that never required a gradient."""
    frozen = watched.frozen
    if watched.steps < CERTAIN or not frozen:
        return []
    nothing_trains = len(frozen) == watched.parameters
    message = (
        f"{len(frozen)} of {watched.parameters} parameters of {watched.name} did not require grad "
        f"in any of its {watched.steps} steps: "
    )
    message += (
        "no step changes anything" if nothing_trains else "the optimizer skips them in silence"
    )
    return [
        Finding.of(
            catalogue.FROZEN_PARAMETER,
            message,
            detector="audit",
            severity=Severity.WARNING if nothing_trains else Severity.NOTE,
            location=location_of(watched.site),
            hint="hand over what trains: [p for p in model.parameters() if p.requires_grad]",
            evidence={"parameters": len(frozen), "of_parameters": watched.parameters},
        )
    ]


def look_again(watched: Watched) -> None:
    """Forget what has a gradient by now, or is not what it was: a phase of the training."""
    for kept, frozen in ((watched.missing, False), (watched.frozen, True)):
        for identity, reference in list(kept.items()):
            parameter = reference()
            if parameter is not None and (
                parameter.grad is not None or parameter.requires_grad is frozen
            ):
                del kept[identity]


def under_no_grad(call: Call) -> Verdict:
    """Return what is said of a module that is called while recording is switched off."""
    site = location_of(call.sites[0]) if call.sites else None
    where, related = _switched_off_at(call, site)
    return Verdict(
        catalogue.FORWARD_UNDER_NO_GRAD,
        where,
        "its module is called while recording is switched off (no_grad, inference_mode)",
        "call it with recording on; or freeze it with requires_grad_(False) and keep it "
        "out of the optimizer",
        Severity.WARNING,
        related,
    )


def _switched_off_at(
    call: Call, site: Location | None
) -> tuple[Location | None, tuple[Related, ...]]:
    """Return the line that switches recording off around a call, or else the call."""
    for frame in call.sites:
        at = location_of(frame)
        flow = "unknown" if at is None else switched_off(at)
        if isinstance(flow, Cut):
            return cut_place(flow, site, "its module is called here")
    return site, ()
