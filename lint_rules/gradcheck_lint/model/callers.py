"""Say what the parameters of a function are, as far as the calls in its own file agree.

A parameter keeps a site of its own, since its callers may hand over many objects; what is known of
the objects is their kind, what a dictionary or tuple has in it, and who of them holds whom.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.arguments import parameters_given
from gradcheck_lint.model.flow import Call, Forward
from gradcheck_lint.model.syntax import is_none
from gradcheck_lint.model.values import (
    NO_SITES,
    NOTHING,
    Kind,
    Origin,
    Value,
    Values,
    all_are,
    join,
    replace,
    through_all,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gradcheck_lint.model.module import ModuleModel
    from gradcheck_lint.model.scopes import FunctionScope
    from gradcheck_lint.model.state import Recorder

_TOLD: Final = frozenset(
    {
        Kind.LEAF,
        Kind.HISTORY,
        Kind.PLAIN,
        Kind.NUMBER,
        Kind.OPTIMIZER,
        Kind.SCALER,
        Kind.SCHEDULER,
        Kind.MODULE,
        Kind.INSTANCE,
        Kind.CONTAINER,
        Kind.TUPLE,
        Kind.PARAMETERS,
    }
)
"""What is handed on. That a tensor has no graph is no promise to a function: it isn't certain."""
_WITHOUT_GRAPH: Final = frozenset({Kind.PLAIN, Kind.NUMBER})
_TENSORS: Final = frozenset({Kind.HISTORY, Kind.UNKNOWN, Kind.PLAIN, Kind.NUMBER})
_MOST_LEVELS: Final = 3


def given_by_callers(
    module: ModuleModel, scope: FunctionScope, recorder: Recorder
) -> Mapping[int, Values]:
    """Return what each parameter is in all calls of a function in its file, by its ``id``."""
    found: dict[int, Values] | None = None
    for given in _calls_of(module, scope):
        told = _Parameters(recorder, given).told(_defaults_of(scope))
        if found is None:
            found = told
        else:
            found = {
                parameter: _agreed(found.get(parameter, NOTHING), told.get(parameter, NOTHING))
                for parameter in found.keys() | told.keys()
            }
    return {parameter: values for parameter, values in (found or {}).items() if values}


def _calls_of(module: ModuleModel, scope: FunctionScope) -> Iterator[Mapping[int, Values]]:
    """Yield what each call of a function in the file gives to its parameters."""
    for caller in module.callers_of(scope):
        for event in caller.events():
            if isinstance(event, Forward) and _runs(event, scope, module):
                yield _passed(event, scope)
            if not isinstance(event, Call) or event.function is not scope or event.referenced:
                continue
            is_method = event.method is not None or bool(scope.owner and event.is_constructor)
            yield parameters_given(scope, event.arguments, is_method=is_method)


def _runs(forward: Forward, scope: FunctionScope, module: ModuleModel) -> bool:
    """Return whether the model that is called is of the class whose ``forward`` this is."""
    scopes = module.scopes
    return all_are(forward.values, Kind.INSTANCE) and all(
        scopes.method(scopes.classes.get(value.name), "forward") is scope
        for value in forward.values
    )


def _passed(forward: Forward, scope: FunctionScope) -> Mapping[int, Values]:
    assert type(forward.node) is cst.Call
    if any(argument.star or argument.keyword for argument in forward.node.args):
        return {}
    return parameters_given(scope, enumerate(forward.passed), is_method=True)


def _defaults_of(scope: FunctionScope) -> frozenset[int]:
    """Return the parameters whose default is more than None: without it they are something else."""
    node = scope.node
    if isinstance(node, cst.Module):
        return frozenset()
    return frozenset(
        id(parameter)
        for parameter in (*node.params.params, *node.params.kwonly_params)
        if parameter.default is not None and not is_none(parameter.default)
    )


def _agreed(left: Values, right: Values) -> Values:
    """Return what two calls have in common, nothing if they hand over different things."""
    if not left or not right:
        # What one call hands over is not known: it may be the same, if that is no promise.
        known = [value for value in (*left, *right) if value.kind not in _WITHOUT_GRAPH]
        return frozenset(replace(value, certain=False) for value in known)
    left, right = _with_graph_in_one(left, right)
    both = join(left, right)
    if len(both) != 1:
        return NOTHING
    names = {value.name for value in (*left, *right)}
    return both if len(names) == 1 or all_are(both, Kind.MODULE) else NOTHING


def _with_graph_in_one(left: Values, right: Values) -> tuple[Values, Values]:
    """Return tensors as what has a graph, if one of two calls hands over one that has."""
    for one, other in ((left, right), (right, left)):
        has_graph = all_are(one, Kind.HISTORY) or bool(through_all(one))
        if has_graph and all_are(other, Kind.PLAIN, Kind.NUMBER):
            return one, one
    return left, right


class _Parameters:
    """The objects of one call, as the called function knows them."""

    def __init__(self, recorder: Recorder, given: Mapping[int, Values]) -> None:
        self._recorder = recorder
        self._given = given
        self._sites: dict[int, int] = {}
        """What the sites of the caller are called in the function."""
        for parameter, values in given.items():
            self._place(parameter, values, _MOST_LEVELS)

    def told(self, apart: frozenset[int]) -> dict[int, Values]:
        """Return what each parameter is, but for those that are left ``apart``."""
        return {
            parameter: self._told(parameter, values, Origin.ARGUMENT, _MOST_LEVELS)
            for parameter, values in self._given.items()
            if parameter not in apart
        }

    def _place(self, site: int, values: Values, levels: int) -> None:
        value = _only(values)
        if value is None or not levels:
            return
        self._sites.setdefault(value.site, site)
        for key, held in _elements(value):
            self._place(self._site_of(site, value, key), held, levels - 1)

    def _site_of(self, site: int, value: Value, key: str | int) -> int:
        """Return the site that an item or attribute of a parameter has."""
        if value.kind is Kind.INSTANCE:
            return self._recorder.intern(("attribute", site, key, NO_SITES))
        return self._recorder.intern(("item", site, key))

    def _told(self, site: int, values: Values, origin: Origin, levels: int) -> Values:
        value = _only(values)
        if value is None or not levels:
            return NOTHING
        if value.kind not in _TOLD and not (value.kind is Kind.UNKNOWN and value.through):
            return NOTHING
        inside = {
            key: self._told(self._site_of(site, value, key), held, Origin.ELEMENT, levels - 1)
            for key, held in _elements(value)
        }
        held_inside = [inner.holds for held in inside.values() for inner in held]
        held_here = {self._sites[held] for held in value.holds if held in self._sites}
        made = self._recorder.value(
            value.kind,
            value.node or cst.Name("_"),
            site=site,
            loops=(),
            origin=origin,
            name=value.name,
            certain=value.certain and value.kind is not Kind.PLAIN,
            holds=frozenset({site}).union(held_here, *held_inside),
            entries=tuple((key, inside[key]) for key, _ in value.entries if inside[key]),
            parts=self._parts(site, value, inside),
            cut=value.cut,
            through=value.through,
        )
        return frozenset({made})

    def _parts(
        self, site: int, value: Value, inside: Mapping[str | int, Values]
    ) -> tuple[Values, ...]:
        if value.kind is not Kind.TUPLE and value.name != "torch.nn.Sequential":
            return ()
        return tuple(
            inside[index] or self._unknown(site, index) for index in range(len(value.parts))
        )

    def _unknown(self, site: int, index: int) -> Values:
        place = self._recorder.intern(("item", site, index))
        made = self._recorder.value(
            Kind.UNKNOWN, cst.Name("_"), site=place, loops=(), origin=Origin.ELEMENT
        )
        return frozenset({made})


def _only(values: Values) -> Value | None:
    """Return the one thing that is held, beside None, or a tensor that may have a graph."""
    known = [value for value in values if not is_none(value.node)]
    if len(known) > 1 and all(value.kind in _TENSORS for value in known):
        known = [value for value in known if value.kind is Kind.HISTORY][:1]
    return known[0] if len(known) == 1 else None


def _elements(value: Value) -> Iterator[tuple[str | int, Values]]:
    """Yield what a dictionary has under known keys, and what a tuple has at each place."""
    yield from value.entries
    if value.kind is Kind.TUPLE or value.name == "torch.nn.Sequential":
        yield from enumerate(value.parts)
