"""GCS802: an optimizer steps on gradients that were not reduced over ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.flow import Backward, Step
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.model.syntax import dotted_name, walk
from gradcheck_lint.model.values import NOTHING, Kind, Value, Values, mentioned_by
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from gradcheck_lint.model.module import FunctionModel


class GradientNotSynchronized(Rule):
    """Every forward of a step leaves the gradients of each rank as they are."""

    entry = catalogue.GRADIENT_NOT_SYNCHRONIZED

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield models that only run under ``no_sync()``, or only without their wrapper."""
        source = function.module.source
        if (
            Part.BACKWARD not in function.scope.parts
            or function.runs_in_engine
            or b"all_reduce" in source
        ):
            return
        events = list(function.events())
        backwards = [event for event in events if isinstance(event, Backward)]
        steps = [event for event in events if isinstance(event, Step)]
        if not backwards or not steps:
            return
        for name, uses in _uses_of_models(function).items():
            if uses.others or bool(uses.unsynchronized) == bool(uses.bypassed):
                continue
            if uses.bypassed and not _is_distributed(function, name):
                continue
            for call in (*uses.unsynchronized, *uses.bypassed):
                step = _step_on(call, backwards, steps)
                if step is not None:
                    yield _violation(name, call, step, bypassed=bool(uses.bypassed))
                    break


@dataclass(slots=True)
class _Uses:
    """How a function calls a model: under ``no_sync()``, as ``model.module(...)``, or otherwise."""

    unsynchronized: list[cst.Call] = field(default_factory=list)
    bypassed: list[cst.Call] = field(default_factory=list)
    others: int = 0


def _uses_of_models(function: FunctionModel) -> dict[str, _Uses]:
    """Return how each model is used that has a ``no_sync()`` or a ``module``.

    Handing the model on counts as another use: what is called may run it.
    """
    nodes = function.scope.nodes
    inside: dict[str, set[int]] = {}
    for node in nodes:
        if type(node) is cst.With:
            for item in node.items:
                name = _suffixed(item.item, ".no_sync")
                if name is not None:
                    inside.setdefault(name, set()).update(map(id, walk(node.body)))
    wrapped = {name for node in nodes if (name := _suffixed(node, ".module")) is not None}
    uses = {name: _Uses() for name in inside.keys() | wrapped}
    made = _calls_bound_to(uses, nodes)
    for node in nodes:
        if type(node) is not cst.Call:
            continue
        called = dotted_name(node.func) or ""
        for argument in node.args:
            handed = dotted_name(argument.value)
            if handed in uses and id(node) not in made.get(handed, ()):
                uses[handed].others += 1
        if called in uses:
            if id(node) in inside.get(called, ()):
                uses[called].unsynchronized.append(node)
            else:
                uses[called].others += 1
        elif called.endswith(".module") and called.removesuffix(".module") in uses:
            uses[called.removesuffix(".module")].bypassed.append(node)
    return uses


def _calls_bound_to(names: Container[str], nodes: Sequence[cst.CSTNode]) -> dict[str, set[int]]:
    """Return what makes each name anew: of ``model = DDP(model)`` it is the wrapper's."""
    made: dict[str, set[int]] = {}
    for node in nodes:
        if type(node) is not cst.Assign:
            continue
        for target in node.targets:
            name = dotted_name(target.target)
            if name is not None and name in names:
                made.setdefault(name, set()).add(id(node.value))
    return made


def _suffixed(node: cst.CSTNode, suffix: str) -> str | None:
    """Return ``x`` of the call ``x.suffix(...)``."""
    name = dotted_name(node.func) if type(node) is cst.Call else None
    return name.removesuffix(suffix) if name is not None and name.endswith(suffix) else None


def _is_distributed(function: FunctionModel, name: str) -> bool:
    """Tell whether a name holds ``DistributedDataParallel`` in this function, and nothing else."""
    values = function.bindings.get(name) or _on_self(function, name)
    wrappers = frozenset(
        value
        for value in values
        if value.kind is Kind.MODULE and value.name.endswith("DistributedDataParallel")
    )
    # `model = DDP(model)`: what the name held before is what is wrapped.
    return bool(wrappers) and all(
        value in wrappers
        or any(value.site in wrapper.holds or _is_made_of(wrapper, name) for wrapper in wrappers)
        for value in values
    )


def _is_made_of(wrapper: Value, name: str) -> bool:
    """Tell whether a wrapper is made of what its own name held before: ``DDP(model.to(rank))``."""
    return wrapper.node is not None and any(
        isinstance(node, (cst.Name, cst.Attribute)) and dotted_name(node) == name
        for node in walk(wrapper.node)
    )


def _on_self(function: FunctionModel, name: str) -> Values:
    """Return what the methods of a class give an attribute of ``self``."""
    root, _, attribute = name.partition(".")
    owner = function.scope.owner
    if owner is None or root != function.scope.first_parameter:
        return NOTHING
    return function.module.class_attribute(owner.name, attribute)


def _step_on(call: cst.Call, backwards: list[Backward], steps: list[Step]) -> Step | None:
    """Return the step that uses what a backward through this call leaves."""
    for backward in backwards:
        if id(call) in mentioned_by(backward.values):
            for step in steps:
                if step.loops[:1] == backward.loops[:1]:
                    return step
    return None


def _violation(name: str, call: cst.Call, step: Step, *, bypassed: bool) -> Violation:
    how = (
        f"the forward goes past `{name}` itself"
        if bypassed
        else f"`{name}` only runs under no_sync()"
    )
    hint = f"call `{name}(...)`" if bypassed else "leave no_sync() for the last forward of a window"
    return Violation(
        call,
        f"{how}, so its gradients are not reduced over ranks when the optimizer steps: every rank "
        "trains a model of its own",
        Severity.ERROR,
        hint,
        ((step.node, "the optimizer steps here"),),
    )
