"""What is said of leaves that nobody owns, and of those that an optimizer owns in vain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.object_names.leaf_places import LeafPlace
from gradcheck_suite.auditing.object_names.tensor_names import listed
from gradcheck_suite.auditing.source_analysis.assignments import (
    layers_made_in_forward,
    replaced_after,
)
from gradcheck_suite.auditing.source_analysis.source import only_call_of
from gradcheck_suite.findings import Finding, Location, Severity

if TYPE_CHECKING:
    from gradcheck_suite.auditing.detectors.leaf_records import (
        LeafRecord,  # noqa: TC004 - nobody asks for the types of the fields
    )

__all__ = [
    "Emptied",
    "MadeAnew",
    "Maker",
    "Passing",
    "Stale",
    "Unowned",
    "anew_finding",
    "empty_finding",
    "finding_of",
    "passing_findings",
    "stale_finding",
    "wasted_finding",
]

_USED_UP = "give each group a list: an iterator such as model.parameters() serves once only"

_EVALUATION = "its module is in evaluation mode"
_BELOW = "nothing that is trained comes before it, as where a head is fine-tuned"
_APART = "nothing that is trained takes part in the losses that reach it"
_INPUT = "what the optimizers own is no module's: an input is optimized"
_VARIABLE = "it is no attribute of a module, and may be an input whose gradient is wanted"
_COPIES = "an optimizer owns parameters of the same shapes: these may be copies"
_HIDDEN = "a list of one is also how a helper is hidden from a model"


@dataclass(frozen=True, slots=True)
class Maker:
    """An optimizer: its class, and where it was made and stepped."""

    kind: str
    made: CallSite | None
    stepped: CallSite | None

    @property
    def site(self) -> CallSite | None:
        """The line to change: where it was made, if that was seen."""
        return self.stepped if self.made is None else self.made


@dataclass(slots=True)
class Unowned:
    """A leaf that gets gradients and that nobody owns.

    Attributes:
        record: what became of it.
        place: where it is kept; None for what no module has.
        name: what the program calls it.
        maker: the optimizer that would own it.
        beside_trained: whether others of its model are trained.
        beside_modules: whether anything that an optimizer owns is a module's.
        beside_plain: whether any of that is a tensor and no ``nn.Parameter``.
        replaced: whether the optimizer owns what it has replaced.
        emptied: whether the optimizer has a group without parameters.
        doubled: whether two optimizers own just the same.
    """

    record: LeafRecord
    place: LeafPlace | None
    name: str
    maker: Maker
    beside_trained: bool
    beside_modules: bool
    beside_plain: bool
    replaced: bool = False
    emptied: bool = False
    doubled: bool = False

    @property
    def is_thawed(self) -> bool:
        """Whether it was frozen when it was first seen."""
        return not self.record.asked

    def doubts(self) -> tuple[str, ...]:
        """Return what speaks against a mistake."""
        place, record = self.place, self.record
        if self.replaced:
            return ()
        if place is None:
            return () if record.is_parameter or self.beside_plain else (_VARIABLE,)
        doubts = []
        if not place.training:
            doubts.append(_EVALUATION)
        if place.kind == "container":
            if place.container is not None and place.container[1] == 1:
                doubts.append(_HIDDEN)
            return tuple(doubts)
        if not self.beside_modules:
            doubts.append(_INPUT)
        is_meant = place.kind == "computed" or self.is_thawed or self.emptied or self.doubled
        if not record.after_owned and not is_meant:
            doubts.append(_BELOW if self.beside_trained else _APART)
        return tuple(doubts)


@dataclass(frozen=True, slots=True)
class Emptied:
    """A step of an optimizer with a group of no parameters.

    ``orphans`` are what had a gradient then and was owned by optimizers that are no more.
    """

    step: int
    orphans: tuple[str, ...]


@dataclass(slots=True)
class Stale:
    """Leaves that an optimizer owns, and that neither a loss nor a module has."""

    maker: Maker
    count: int
    step: int


@dataclass(slots=True)
class Passing:
    """A parameter of one shape that comes anew in each step, and that only the graph has.

    ``is_as_owned`` says whether an optimizer owns one of that shape.
    """

    shape: tuple[int, ...]
    steps: int
    backward: CallSite | None
    is_as_owned: bool


@dataclass(slots=True)
class MadeAnew:
    """A leaf that is another in each step, of which an optimizer owns the first.

    ``location`` is the line that binds the name anew, and ``since`` the first step of another.
    """

    maker: Maker
    name: str | None
    location: Location | None
    backward: CallSite | None
    since: int
    steps: int


def wasted_finding(site: CallSite | None, group: list[Unowned], maker: Maker | None) -> Finding:
    """Return what is said of a line whose backward fills nothing but what nobody owns."""
    names = [each.name for each in group]
    number, them = _counted(len(names))
    place = location_of(site)
    where = place if maker is None else location_of(maker.site)
    doubts = [_EVALUATION] if not any(e.place and e.place.training for e in group) else []
    return Finding.of(
        catalogue.PARAMETER_NOT_OPTIMIZED,
        f"this backward() gives gradients to {number} ({listed(names)}) and to nothing else, "
        f"and no optimizer owns {them} and nothing changes {them}, so that it trains nothing; "
        f"expected an optimizer to own {them}"
        if maker is None
        else f"{maker.kind} steps after a backward() that fills none of what it owns, but "
        f"{number} ({listed(names)}) that no optimizer owns; expected {maker.kind} to own "
        f"{them}",
        detector="audit",
        severity=Severity.WARNING,
        doubts=doubts,
        location=where,
        related=related((place, "this backward fills them"), apart_from=where),
        hint="give their optimizer the parameters of this model",
        evidence={"count": len(names), "names": tuple(names)},
    )


def _counted(count: int) -> tuple[str, str]:
    return ("1 parameter", "it") if count == 1 else (f"{count} parameters", "them")


def stale_finding(stale: Stale) -> Finding:
    """Return what is said of leaves that were replaced or removed."""
    maker = stale.maker
    number, _ = _counted(stale.count)
    they_were = "it was" if stale.count == 1 else "they were"
    made = location_of(maker.site)
    replaced = None if made is None else replaced_after(made)
    where = replaced or only_call_of(made) or made
    return Finding.of(
        catalogue.STALE_PARAMETER,
        f"{maker.kind} owns {number} that no loss depends on and that the model that runs does not "
        f"have: {they_were} replaced or removed after the optimizer was made; expected the "
        "parameters of the model",
        detector="audit",
        location=where,
        related=related(
            (made, f"{maker.kind} is made here"),
            (location_of(maker.stepped), "this step skips them"),
            apart_from=where,
        ),
        hint="make the optimizer after the model is complete",
        evidence={"count": stale.count, "step": stale.step, "optimizer": maker.kind, "names": []},
    )


def anew_finding(anew: MadeAnew) -> Finding:
    """Return what is said of a leaf that each step replaces."""
    what = "a leaf" if anew.name is None else f"`{anew.name}`"
    location = anew.location or location_of(anew.maker.site)
    kind = anew.maker.kind
    return Finding.of(
        catalogue.PARAMETER_NOT_OPTIMIZED,
        f"{what} is another tensor in each step, and {kind} still owns the first, which no loss "
        f"depends on since step {anew.since}: nothing changes what is used; expected the leaf that "
        f"{kind} owns to be written to",
        detector="audit",
        location=location,
        related=related(
            (location_of(anew.maker.made), f"{kind} is made here"),
            (location_of(anew.backward), "this backward fills the new one"),
            apart_from=location,
        ),
        hint="with torch.no_grad(): leaf.copy_(new)",
        evidence={
            "count": anew.steps,
            "step": anew.since,
            "optimizer": kind,
            "names": [] if anew.name is None else [anew.name],
        },
    )


def passing_findings(passing: list[Passing]) -> list[Finding]:
    """Return one finding for all parameters that pass by."""
    if not passing:
        return []
    backward = location_of(passing[0].backward)
    files = [] if backward is None else [backward.path]
    made = layers_made_in_forward(files)
    where = made[0] if made else backward
    shapes = ", ".join("x".join(map(str, each.shape)) or "a scalar" for each in passing)
    number, _ = _counted(len(passing))
    are = "is" if len(passing) == 1 else "are"
    return [
        Finding.of(
            catalogue.PARAMETER_NOT_OPTIMIZED,
            f"{number} ({shapes}) {are} made anew in each step: backward() gives them gradients, "
            "and nothing but the graph has them, so that no optimizer owns them; expected layers "
            "that are made once, in the constructor",
            detector="audit",
            severity=Severity.WARNING,
            doubts=[_COPIES] if all(each.is_as_owned for each in passing) else [],
            location=where,
            related=related((backward, "this backward fills them"), apart_from=where),
            hint="make the layer in __init__, as an attribute",
            evidence={"count": len(passing), "names": [], "steps": passing[0].steps},
        )
    ]


def empty_finding(maker: Maker, emptied: Emptied) -> Finding:
    """Return what is said of a group without parameters."""
    orphans = emptied.orphans
    number, them = _counted(len(orphans))
    lost = (
        f": {number} ({listed(orphans)}) that an earlier optimizer has trained still "
        f"get{'s' if len(orphans) == 1 else ''} gradients, and no optimizer owns {them} any more"
        if orphans
        else ""
    )
    return Finding.of(
        catalogue.PARAMETER_NOT_OPTIMIZED,
        f"a group of {maker.kind} has no parameters; an iterator that was used up leaves it "
        f"so{lost}",
        detector="audit",
        severity=Severity.WARNING if orphans else Severity.NOTE,
        location=location_of(maker.site),
        hint=_USED_UP,
        evidence={
            "count": len(orphans),
            "step": emptied.step,
            "optimizer": maker.kind,
            "names": orphans,
        },
    )


def finding_of(group: list[Unowned]) -> Finding:
    """Return what is said of the leaves of one model, attribute or variable."""
    first = group[0]
    place, maker = first.place, first.maker
    if place is not None and place.kind == "container":
        return _container_finding(place, group)
    names = [each.name for each in group]
    number, them = _counted(len(group))
    if not first.record.is_parameter:
        number = "a tensor" if len(group) == 1 else f"{len(group)} tensors"
    why, hint = _reason(first, len(group))
    location = place.location if place is not None else None
    location = location or location_of(maker.site)
    return Finding.of(
        catalogue.PARAMETER_NOT_OPTIMIZED,
        f"backward() gives gradients to {number} ({listed(names)}) that no optimizer owns and "
        f"nothing changes{why}; expected an optimizer to own {them}, or requires_grad_(False)",
        detector="audit",
        severity=Severity.ERROR if first.replaced else Severity.WARNING,
        doubts=first.doubts(),
        location=location,
        related=related(
            (location_of(first.record.sites[0]), f"this backward fills {them}"),
            (location_of(maker.made), f"{maker.kind} is made here"),
            apart_from=location,
        ),
        hint=hint,
        evidence={
            "count": len(group),
            "step": first.record.first_seen,
            "optimizer": maker.kind,
            "names": tuple(names),
        },
    )


def _reason(first: Unowned, count: int) -> tuple[str, str]:
    """Return why nobody owns it, as far as that is known, and what to do."""
    place, kind = first.place, first.maker.kind
    complete = "make the optimizer after the model is complete, from all that is to be trained"
    if place is not None and place.kind in {"attribute", "computed"}:
        is_made = "was computed from an nn.Parameter that nothing else has, and is none itself"
        is_made = is_made if place.kind == "computed" else "is a tensor and no nn.Parameter"
        why = f": `{place.attribute}` of {place.module} {is_made}, so that parameters() misses it"
        hint = f"self.{place.attribute} = nn.Parameter(tensor), of a tensor that is converted"
    elif first.replaced:
        have = "it has" if count == 1 else "they have"
        why, hint = f"; {kind} still owns what {have} replaced", complete
    elif first.emptied:
        why, hint = f", and a group of {kind} has no parameters at all", _USED_UP
    elif first.doubled:
        why, hint = ", and two optimizers own just the same", "give each its own network"
    elif first.is_thawed:
        were = "it was" if count == 1 else "they were"
        why = f": {were} frozen when {kind} was made, and thawed later"
        hint = "optimizer.add_param_group({'params': ...}) where it is thawed"
    elif first.beside_trained:
        why, hint = f", though {kind} trains other parameters of the same model", complete
    else:
        why, hint = "", "give an optimizer what is to be trained: [*model.parameters(), ...]"
    return why, hint


def _container_finding(place: LeafPlace, group: list[Unowned]) -> Finding:
    kind = "list" if place.container is None else place.container[0]
    better = "ModuleDict" if kind == "dict" else "ModuleList"
    return Finding.of(
        catalogue.UNREGISTERED_MODULE,
        f"{len(group)} parameters in the {kind} `{place.attribute}` of {place.module} get "
        "gradients, but a plain container is not registered: no optimizer owns them, and "
        "parameters() and state_dict() miss them",
        detector="audit",
        doubts=group[0].doubts(),
        location=place.location,
        hint=f"self.{place.attribute} = nn.{better}(...)",
        evidence={
            "attribute": place.attribute,
            "container": kind,
            "parameters": len(group),
        },
    )
