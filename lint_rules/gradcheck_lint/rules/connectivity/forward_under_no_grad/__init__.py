"""GCS402: the forward pass is not recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.analyses.cuts import cut_backwards, is_certain
from gradcheck_lint.analyses.hidden_effects import RECORDING, may_act_elsewhere
from gradcheck_lint.analyses.source_text import source_of
from gradcheck_lint.model.flow import Backward, Call, Forward, GradMode, Step
from gradcheck_lint.model.knowledge import HARMLESS_BUILTINS
from gradcheck_lint.model.syntax import boolean, dotted_name
from gradcheck_lint.model.values import Kind, all_are, held_by, parts_of, sites
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.connectivity.forward_under_no_grad.unrecorded_inputs import (
    unrecorded_inputs,
)
from gradcheck_lint.rules.connectivity.untrained_layers import unrecorded_layers
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel, ModuleModel


class ForwardUnderNoGrad(Rule):
    """A model to be trained runs where nothing is recorded."""

    entry = catalogue.FORWARD_UNDER_NO_GRAD

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every forward without recording that a training step relies on."""
        if function.module.sets_mode_for_all and may_act_elsewhere(function, RECORDING):
            return
        unrecorded = function.module.unrecorded
        module = function.module
        reported: set[int] = set()
        for backward, cut in cut_backwards(function):
            if id(cut) in unrecorded and id(cut) not in reported and not _records(function, cut):
                reported.add(id(cut))
                yield Violation(
                    cut,
                    f"`{source_of(module, cut)}` runs without recording, and backward() is called "
                    "on what comes of it: torch raises, because nothing requires a gradient",
                    Severity.ERROR if is_certain(backward) else Severity.WARNING,
                    "move the forward pass out of no_grad",
                    ((backward.node, "backward() is called here"),),
                )
        yield from _never_recorded(function, reported)
        yield from _left_off(function)
        yield from unrecorded_layers(function)
        for found in unrecorded_inputs(function):
            yield Violation(
                found.node,
                f"`{found.name}` is computed of the input of this model where nothing is recorded, "
                "and the output is differentiated by the input: what goes through "
                f"`{found.name}` is left out of that derivative",
                Severity.WARNING,
                "compute it outside of no_grad; only what has no derivative belongs there",
                ((found.derivative, "differentiated by the input here"),),
            )


def _records(function: FunctionModel, call: cst.CSTNode) -> bool:
    """Tell whether the model that is called turns recording on itself."""
    scopes = function.module.scopes
    return any(
        isinstance(event, Forward)
        and event.node is call
        and any(not _TURNING_ON.isdisjoint(method.words) for method in owner.methods.values())
        for event in function.events()
        for value in (event.values if isinstance(event, Forward) else ())
        if (owner := scopes.classes.get(value.name)) is not None
    )


_TURNING_ON = frozenset({"enable_grad", "set_grad_enabled"})


def _left_off(function: FunctionModel) -> Iterator[Violation]:
    """Yield where a function turns recording off for all that comes after it in a training run."""
    module = function.module
    if "set_grad_enabled" not in function.scope.words or isinstance(
        function.scope.node, cst.Module
    ):
        return
    switches = [
        event
        for event in function.events()
        if isinstance(event, Call)
        and type(event.node) is cst.Call
        and not event.is_used
        and module.scopes.resolve_import(dotted_name(event.node.func) or "")
        == "torch.set_grad_enabled"
    ]
    if not switches or not all(map(_turns_off, switches)) or _turns_on_again(module):
        return
    backward = next(
        (
            event
            for other in module.functions()
            if other is not function
            for event in other.events()
            if isinstance(event, Backward)
        ),
        None,
    )
    if backward is not None:
        yield Violation(
            switches[-1].node,
            "recording is turned off here and stays off after the function returns: what is "
            "computed from then on has no graph, and backward() raises",
            Severity.WARNING,
            "use `with torch.no_grad():`, which ends by itself",
            ((backward.node, "backward() is called here"),),
        )


def _turns_off(switch: Call) -> bool:
    assert type(switch.node) is cst.Call
    return bool(switch.node.args) and boolean(switch.node.args[0].value) is False


def _turns_on_again(module: ModuleModel) -> bool:
    """Tell whether anything of the file turns recording on, or may do so."""
    return any(
        "enable_grad" in scope.words
        or any(
            type(node) is cst.Call
            and (dotted_name(node.func) or "").endswith("set_grad_enabled")
            and not (node.args and boolean(node.args[0].value) is False)
            for node in scope.nodes_with_lambdas
        )
        for scope in module.scopes.functions
    )


def _handed_on(call: Call, function: FunctionModel, optimizers: frozenset[int]) -> frozenset[int]:
    """Return what a function is given that may run it, and have that recorded."""
    if call.mode is GradMode.DISABLED or type(call.node) is not cst.Call:
        return frozenset()
    if call.function is None:
        name = function.module.scopes.resolve_import(dotted_name(call.node.func) or "") or ""
        is_harmless = name.startswith("torch.") or dotted_name(call.node.func) in HARMLESS_BUILTINS
        # Who has the optimizer can reach all that it owns, and need not run it.
        return frozenset() if is_harmless or call.handed & optimizers else call.handed
    if function.module.function(call.function).mode is GradMode.DISABLED:
        return frozenset()
    given = [parts for _, values in call.arguments for parts in parts_of(values)]
    return frozenset[int]().union(*map(sites, given))


def _never_recorded(function: FunctionModel, reported: set[int]) -> Iterator[Violation]:
    """Yield models that an optimizer owns, but that only run where nothing is recorded."""
    if function.module.may_freeze:
        return
    events = list(function.events())
    steps = [event for event in events if isinstance(event, Step)]
    backwards = [event for event in events if isinstance(event, Backward)]
    owned = frozenset[int]().union(
        *(held_by(step.values) for step in steps if all_are(step.values, Kind.OPTIMIZER))
    )
    optimizers = frozenset[int]().union(*(sites(step.values) for step in steps))
    forwards = [event for event in events if isinstance(event, Forward)]
    recorded = frozenset[int]().union(
        *(sites(event.values) for event in forwards if event.mode is not GradMode.DISABLED),
        *(_handed_on(event, function, optimizers) for event in events if isinstance(event, Call)),
    )
    for event in forwards:
        if event.mode is not GradMode.DISABLED or id(event.node) in reported:
            continue
        if not backwards or not event.loops or not sites(event.values) & owned - recorded:
            continue
        if not any(step.loops[:1] == event.loops[:1] for step in steps):
            continue
        reported.add(id(event.node))
        yield Violation(
            event.node,
            f"the optimizer owns the parameters of `{event.receiver}`, but it only runs where "
            "nothing is recorded, so they never get a gradient",
            Severity.WARNING,
            "run it outside of no_grad, or give the optimizer the other parameters alone",
        )
