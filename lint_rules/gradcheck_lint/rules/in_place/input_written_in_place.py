"""GCS112: data that is used again is written in place on its way to the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.analyses.object_uses import argument_for
from gradcheck_lint.analyses.repeated_calls import repeats
from gradcheck_lint.analyses.source_text import source_of
from gradcheck_lint.model.flow import Call, InPlace, Return
from gradcheck_lint.model.knowledge import INPLACE_METHODS, TENSOR_METHODS
from gradcheck_lint.model.name_sources import sources_of
from gradcheck_lint.model.syntax import (
    assigned_pairs,
    bound_names,
    dotted_name,
    first_word,
    last_word,
    place_name,
    string_index,
    walk,
)
from gradcheck_lint.model.values import Origin, aliased_by
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.in_place.residual_inputs import residual_inputs
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import FunctionScope


class InputWrittenInPlace(Rule):
    """A function that is used for its result writes into what it is given, which is used again."""

    entry = catalogue.INPUT_WRITTEN_IN_PLACE

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield each write of a data set into its own items, and each call that overwrites data."""
        yield from _items(function)
        for found in residual_inputs(function):
            text = source_of(function.module, found.layer)
            yield Violation(
                found.layer,
                f"this layer overwrites `{found.name}`, which is added to the result afterwards: "
                f"the sum gets what `{text}` has made of it, not the input",
                Severity.WARNING,
                "leave out `inplace=True` at the first layer",
                ((found.call, "overwritten here"), (found.added, "added here")),
            )
        for event in function.events():
            if not isinstance(event, Call) or event.function is None or not event.is_used:
                continue
            if type(event.node) is cst.Call and not event.is_constructor:
                yield from _call(event, event.function, function)


def _call(event: Call, scope: FunctionScope, function: FunctionModel) -> Iterator[Violation]:
    assert type(event.node) is cst.Call
    for parameter, write in _written(function.module.function(scope)).items():
        given = argument_for(parameter, event.node, scope)
        path = place_name(given)
        if given is None or path is None:
            continue
        target = _target_of(event.node, function)
        if target == path:
            continue
        why = _lasts(path, event, function) or _is_read_later(path, event, function, target)
        if why is not None:
            text = source_of(function.module, given)
            yield Violation(
                event.node,
                f"`{last_word(scope.name)}` writes into `{text}` itself, {why}",
                Severity.WARNING,
                f"write into a copy: `{parameter} = {parameter}.clone()`",
                ((write, "written here"),),
            )


def _written(function: FunctionModel) -> dict[str, cst.CSTNode]:
    """Return the parameters that a function writes in place and returns, with where it does."""
    memo, key = function.module.memo, ("arguments written", id(function.scope))
    if key not in memo:
        memo[key] = {}
        memo[key] = dict(_find_written(function))
    found: dict[str, cst.CSTNode] = memo[key]
    return found


def _find_written(function: FunctionModel) -> Iterator[tuple[str, cst.CSTNode]]:
    scope = function.scope
    if isinstance(scope.node, cst.Module) or last_word(scope.name).endswith("_"):
        return
    own = scope.first_parameter if scope.owner is not None else None
    events = list(function.events())
    writes = [event for event in events if isinstance(event, InPlace)]
    returned = [event.values for event in events if isinstance(event, Return)] if writes else []
    for parameter in scope.parameters - {own}:
        held = [
            value
            for value in function.bindings.get(parameter, frozenset())
            if value.origin is Origin.ARGUMENT
        ]
        places = {value.site for value in held}
        if not any(places & aliased_by(values) for values in returned):
            continue
        for event in writes:
            if places & aliased_by(event.values) and _is_of_tensor(event, parameter, scope):
                yield parameter, event.node
                break


_SAME_TWICE: Final = frozenset(
    {"clamp_", "clip_", "clamp_min_", "clamp_max_", "nan_to_num_", "relu_", "abs_"}
)
"""What changes nothing when it is done a second time."""


def _is_of_tensor(event: InPlace, parameter: str, scope: FunctionScope) -> bool:
    """Return whether what is written is a tensor, by how it is used, and changes each time."""
    node = event.node
    if type(node) is cst.Call and type(node.func) is cst.Attribute:
        method = node.func.attr.value
        return method in INPLACE_METHODS and method not in _SAME_TWICE
    if type(event.target) is cst.Subscript and string_index(event.target) is not None:
        return False
    target = node.target if isinstance(node, (cst.AugAssign, cst.AssignTarget)) else node
    if type(target) is cst.Subscript and (
        len(target.slice) > 1 or type(target.slice[0].slice) is cst.Slice
    ):
        return True
    return _is_used_as_tensor(parameter, scope.nodes)


def _is_used_as_tensor(name: str, nodes: Sequence[cst.CSTNode]) -> bool:
    return any(
        (
            type(node) is cst.Attribute
            and dotted_name(node.value) == name
            and (node.attr.value in TENSOR_METHODS or node.attr.value in {"shape", "ndim", "size"})
        )
        or (
            type(node) is cst.Call
            and last_word(dotted_name(node.func)).endswith("_like")
            and any(dotted_name(argument.value) == name for argument in node.args)
        )
        for node in nodes
    )


def _target_of(call: cst.Call, function: FunctionModel) -> str | None:
    """Return what the result of a call is assigned to, by itself."""
    for target, value in function.scope.assignments:
        if value is call:
            return place_name(target)
    return None


def _lasts(path: str, event: Call, function: FunctionModel) -> str | None:
    """Say that a call writes the same object each time that it repeats, None if it does not."""
    root = first_word(path)
    around = [loop for loop in function.loops() if loop.identity in event.loops]
    names = {root, path}
    for loop in around[-1:]:
        if not names & _bound_in(loop.node):
            return "which is the same in each iteration: what was written stays for the next"
    is_of_object = "." in path and (
        root == function.scope.first_parameter or root in function.scope.parameters
    )
    inside = {name for loop in around for name in _bound_in(loop.node)}
    if (
        is_of_object
        and not names & inside
        and repeats(function)
        and not _is_set_here(path, function)
    ):
        return "which lasts from call to call: what was written stays for the next"
    return None


def _bound_in(node: cst.CSTNode) -> set[str]:
    found: set[str] = set()
    for each in walk(node):
        if isinstance(each, _BINDING):
            found |= set(bound_names(each.target))
    return found | {first_word(name) for name in found if "." not in name}


_BINDING: Final = (
    *(cst.For, cst.CompFor, cst.AssignTarget, cst.NamedExpr),
    *(cst.AnnAssign, cst.AugAssign),
)


def _is_set_here(path: str, function: FunctionModel) -> bool:
    bound = _bound_in(function.scope.node)
    return path in bound or first_word(path) in bound


def _is_read_later(
    path: str, event: Call, function: FunctionModel, target: str | None
) -> str | None:
    """Say that what was written is read afterwards under its own name, beside the result."""
    if target is None:
        return None
    seen = False
    for node in function.scope.nodes:
        if node is event.node:
            seen = True
        elif seen and path in _operands(node):
            if not any(node is each for each in event.node.args):  # type: ignore[attr-defined]
                return f"and it is read again after this: it is the same as `{target}` by then"
        elif seen and any(place_name(name) == path for name, _ in assigned_pairs(node)):
            return None
    return None


def _operands(node: cst.CSTNode) -> set[str | None]:
    """Return the names that are handed to a call here, or computed with."""
    if type(node) is cst.Arg:
        return {place_name(node.value)}
    if type(node) is cst.BinaryOperation:
        return {place_name(node.left), place_name(node.right)}
    return set()


def _items(function: FunctionModel) -> Iterator[Violation]:
    """Yield where a data set writes into a view of what it keeps each time that it is asked."""
    if last_word(function.scope.name) != "__getitem__":
        return
    for event in function.events():
        root = event.target if isinstance(event, InPlace) else None
        while type(root) is cst.Subscript:
            root = root.value
        name = dotted_name(root)
        if not isinstance(event, InPlace) or name is None:
            continue
        kept = _view_of(name, function)
        if kept is not None and _changes_view(event, name, kept, function):
            text = source_of(function.module, kept)
            yield Violation(
                event.node,
                f"`{name}` is a part of `{text}`, not a copy: each access writes into the data "
                "set, and the next one finds what this one has made of it",
                Severity.WARNING,
                f"copy it first: `{name} = {name}.clone()`",
                ((kept, "taken from here"),),
            )
            return


def _view_of(name: str, function: FunctionModel) -> cst.Subscript | None:
    """Return the item of an attribute of self that a name is, and nothing else."""
    sources = sources_of(function.scope).get(name) or ()
    source = sources[0] if len(sources) == 1 else None
    if type(source) is not cst.Subscript:
        return None
    held = dotted_name(source.value) or ""
    is_own = held.startswith(f"{function.scope.first_parameter}.")
    return source if is_own and string_index(source) is None else None


def _changes_view(event: InPlace, name: str, kept: cst.Subscript, function: FunctionModel) -> bool:
    """Return whether a write is one of a tensor that shares memory with what is kept."""
    if type(event.node) is cst.Call:
        return _is_of_tensor(event, name, function.scope)
    is_slice = any(type(each.slice) is cst.Slice for each in kept.slice)
    return is_slice or _is_used_as_tensor(name, function.scope.nodes)
