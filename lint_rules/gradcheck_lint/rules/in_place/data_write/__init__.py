"""GCS105: a write that autograd does not see."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.analyses.source_text import source_of
from gradcheck_lint.model.flow import (
    Backward,
    Call,
    Event,
    Forward,
    GradMode,
    InPlace,
    Return,
    Save,
    SetData,
)
from gradcheck_lint.model.syntax import dotted_name
from gradcheck_lint.model.values import Kind, Origin, Value, Values, all_are, sites
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.in_place.data_write.inner_steps import graphs_thrown_away
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_lint.model.module import FunctionModel


class DataWrite(Rule):
    """A tensor is written through ``.data``, a detached alias, or where nothing is recorded."""

    entry = catalogue.DATA_WRITE

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every write that backward does not know of, and which changes what it computes."""
        events = list(function.events())
        known = {value.site: value for bound in function.bindings.values() for value in bound}
        for place, event in enumerate(events):
            if isinstance(event, SetData):
                yield from _put_back_too_early(event, events[place + 1 :], function)
            if not isinstance(event, InPlace) or event.target is None or event.expects_error:
                continue
            written = _written_unseen(event)
            graphs = [known[site] for site in written if site in known and _has_graph(known[site])]
            later = events[place + 1 :]
            if graphs and any(_goes_on(other, sites(frozenset(graphs))) for other in later):
                yield _of_computed(event, graphs[0], function)
            elif (
                _is_through_data(event, function)
                and not _fills_new_tensor(event, function)
                and (around := _in_between(events, place)) is not None
            ):
                yield _of_training(event, around, function)
            elif (saved := _saved_later(written, later, event)) is not None:
                yield _of_workspace(event, saved, function)
        yield from graphs_thrown_away(function)


def _written_unseen(event: InPlace) -> list[int]:
    """Return the sites of the tensors whose values change without backward knowing of it."""
    if all_are(event.values, Kind.PLAIN, Kind.NUMBER):
        aliased = frozenset[int]().union(*(value.aliases for value in event.values))
        return sorted(aliased - sites(event.values))
    if event.mode is GradMode.DISABLED and all(map(_has_graph, event.values)):
        return sorted(sites(event.values))
    return []


def _has_graph(value: Value) -> bool:
    return value.kind is Kind.HISTORY or (value.kind is Kind.UNKNOWN and bool(value.through))


def _goes_on(event: Event, written: frozenset[int]) -> bool:
    """Tell whether a tensor is used afterwards for what is returned or differentiated."""
    used: tuple[Values, ...] = ()
    if isinstance(event, (Return, Backward)):
        used = (event.values,)
    elif isinstance(event, Forward):
        used = event.passed
    return any(
        (value.site in written or value.carries & written or value.mentions & written)
        and value.kind in {Kind.HISTORY, Kind.UNKNOWN}
        and (value.cut is None or value.through)
        for values in used
        for value in _within(values)
    )


def _within(values: Values) -> Iterator[Value]:
    for value in values:
        yield value
        for part in value.parts:
            yield from part


def _of_computed(event: InPlace, written: Value, function: FunctionModel) -> Violation:
    module = function.module
    where = "where nothing is recorded" if event.mode is GradMode.DISABLED else "past autograd"
    target = source_of(module, event.target) if event.target is not None else "it"
    made = None if written.origin is Origin.ARGUMENT else written.node
    related = () if made is None else ((made, "computed here"),)
    return Violation(
        event.node,
        f"`{target}` is written {where}: backward goes through it as if it had not been changed, "
        "and what an operation has saved of it is another value now",
        Severity.NOTE if _passes_straight_through(event, written) else Severity.WARNING,
        "change it out of place, where it is recorded: torch.where, clamp, a product",
        related,
    )


def _passes_straight_through(event: InPlace, written: Value) -> bool:
    """Tell whether the gradient may well pass by the change: a clone that gets other values."""
    made = written.node
    is_clone = type(made) is cst.Call and (dotted_name(made.func) or "").endswith("clone")
    if is_clone and event.operation in {"copy_()", "subscript assignment"}:
        return True
    # What softmax makes of a score of minus infinity has no gradient anyway.
    return event.operation == "masked_fill_()"


def _put_back_too_early(
    event: SetData, later: Sequence[Event], function: FunctionModel
) -> Iterator[Violation]:
    """Yield a parameter whose memory is exchanged for a forward alone."""
    if not all_are(event.values, Kind.LEAF) or event.mode is GradMode.DISABLED:
        return
    owner = function.scope.owner
    if owner is None or not function.module.scopes.derives_from(owner, "torch.nn."):
        return  # whoever moves or quantises the parameters of others computes nothing with them
    own = sites(event.values)
    used: Event | None = None
    for other in later:
        if isinstance(other, Backward):
            return
        if isinstance(other, SetData) and sites(other.values) & own:
            if used is not None:
                yield Violation(
                    event.node,
                    f"`{source_of(function.module, event.node)}` is exchanged for this forward and "
                    "put back before backward(), which then computes with the values put back",
                    Severity.WARNING,
                    "compute with another tensor: `w + (quantised - w).detach()`",
                    ((used.node, "used here"), (other.node, "put back here")),
                )
            return
        is_use = isinstance(other, (Call, Forward, Save)) and other.mode is not GradMode.DISABLED
        if is_use and _uses(other, own):
            used = other


def _uses(event: Event, wanted: frozenset[int]) -> bool:
    if isinstance(event, Save):
        return bool(sites(event.values) & wanted)
    return isinstance(event, Call) and bool(event.mentions & wanted)


def _is_through_data(event: InPlace, function: FunctionModel) -> bool:
    """Tell whether what is written has the memory of a ``.data``, but for that of a gradient."""
    node: cst.CSTNode | None = event.target
    while isinstance(node, (cst.Attribute, cst.Subscript, cst.Call)):
        if isinstance(node, cst.Attribute):
            if "grad" in node.attr.value:
                return False
            if node.attr.value == "data":
                return True
            node = node.value
        else:
            node = node.value if isinstance(node, cst.Subscript) else node.func
    aliased = frozenset[int]().union(*(value.aliases for value in event.values))
    taken = [function.module.taken_from(site) for site in aliased | sites(event.values)]
    names = {known[2] for known in taken if known is not None and known[0] == "attribute"}
    return "data" in names and "grad" not in names


def _fills_new_tensor(event: InPlace, function: FunctionModel) -> bool:
    """Tell whether a write is the first use of a tensor without a graph that was just made."""
    root: cst.CSTNode | None = event.target
    while isinstance(root, (cst.Attribute, cst.Subscript)):
        root = root.value
    if type(root) is not cst.Name:
        return False
    named = [node for node in function.scope.nodes_of(cst.Name) if node.value == root.value]
    if not all_are(function.bindings.get(root.value, frozenset()), Kind.PLAIN):
        return False
    is_second = len(named) > 1 and named[1] is root
    return is_second and any(
        target.target is named[0] for target in function.scope.nodes_of(cst.AssignTarget)
    )


def _in_between(events: Sequence[Event], place: int) -> tuple[Forward, Backward] | None:
    """Return the forward and the backward that a write stands between, if it does."""
    event = events[place]
    forward = backward = None
    for other in reversed(events[:place]):
        if isinstance(other, Backward):
            return None
        if isinstance(other, Forward) and _together(other, event):
            forward = other
            break
    for other in events[place + 1 :]:
        if isinstance(other, Forward):
            return None
        if isinstance(other, Backward) and _together(other, event):
            backward = other
            break
    return None if forward is None or backward is None else (forward, backward)


def _together(other: Event, event: Event) -> bool:
    """Tell whether an event comes in the same iteration as a write, or in a loop around it."""
    return event.loops[: len(other.loops)] == other.loops and (
        event.arms[: len(other.arms)] == other.arms
    )


def _of_training(
    event: InPlace, around: tuple[Forward, Backward], function: FunctionModel
) -> Violation:
    assert event.target is not None
    return Violation(
        event.node,
        f"`{source_of(function.module, event.target)}` is written between a forward and its "
        "backward, where torch can't see it: gradients are computed with the new values",
        Severity.WARNING,
        "write after backward() and step(), under `with torch.no_grad():`",
        ((around[0].node, "the forward"), (around[1].node, "its backward")),
    )


def _saved_later(written: Sequence[int], later: Sequence[Event], event: InPlace) -> Save | None:
    """Return what saves a buffer of the object after this write: each call overwrites the last."""
    if event.mode is GradMode.DISABLED:
        return None
    for other in later:
        if isinstance(other, Save) and any(
            value.site in written
            and value.origin is Origin.ATTRIBUTE
            and value.kind in {Kind.UNKNOWN, Kind.PLAIN}
            for value in other.values
        ):
            return other
    return None


def _of_workspace(event: InPlace, saved: Save, function: FunctionModel) -> Violation:
    assert event.target is not None
    return Violation(
        event.node,
        f"`{source_of(function.module, event.target)}` is written past autograd and then saved for "
        "backward: a second call before backward() changes what the first has saved, unnoticed",
        Severity.WARNING,
        "make a new tensor in each call",
        ((saved.node, "saved here"),),
    )
