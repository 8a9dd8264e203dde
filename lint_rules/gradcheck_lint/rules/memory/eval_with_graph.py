"""GCS204: an evaluation that records graphs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.analyses.hidden_effects import is_handed_on
from gradcheck_lint.model.flow import Backward, Call, Event, Forward, GradMode, ModeSwitch, Return
from gradcheck_lint.model.knowledge import SAME_MODULE_METHODS
from gradcheck_lint.model.paths import bound_parameters, in_caller
from gradcheck_lint.model.syntax import dotted_name, walk
from gradcheck_lint.model.values import Kind, held_by, sites, through_all
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import FunctionScope
    from gradcheck_lint.model.values import Value


class EvalWithGraph(Rule):
    """A model runs in evaluation mode while graphs are recorded that nobody uses."""

    entry = catalogue.EVAL_WITH_GRAPH

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield the first recorded forward after eval() in a function that needs no gradient."""
        if function.mode not in {GradMode.AMBIENT, GradMode.ENABLED}:
            return
        if "eval" not in function.scope.words or _is_unit_test(function):
            return
        events = list(function.events())
        switched: dict[str, ModeSwitch] = {}
        trained: set[str] = set()
        for event in events:
            if isinstance(event, ModeSwitch) and event.receiver:
                if event.training is False:
                    switched[event.receiver] = event
                    trained = {path for path in trained if not _is_part(path, event.receiver)}
                else:
                    for path in [each for each in switched if _is_part(each, event.receiver)]:
                        del switched[path]
                    trained.add(event.receiver)
            elif (
                isinstance(event, (Forward, Call))
                and (switch := _switched(event, switched, trained, function)) is not None
                and (event.loops or _is_evaluation(function))
                and event.mode in {GradMode.AMBIENT, GradMode.ENABLED}
            ):
                if _needs_gradients(function, events, event) or (
                    _forward_differentiates(function, switch.values)
                ):
                    return
                receiver = event.receiver if isinstance(event, Forward) else switch.receiver
                yield Violation(
                    event.node,
                    f"`{receiver}` is in evaluation mode and runs while operations are "
                    "recorded: graphs are built that nobody differentiates",
                    Severity.WARNING,
                    "run it inside `with torch.no_grad():` or `torch.inference_mode()`",
                    ((switch.node, "put in evaluation mode here"),),
                )
                return


def _switched(
    event: Forward | Call,
    switched: dict[str, ModeSwitch],
    trained: set[str],
    function: FunctionModel,
) -> ModeSwitch | None:
    """Return what put a model that runs into evaluation mode, or the one that it's a wrapper of."""
    if isinstance(event, Call):
        acting = _switched_for_acting(event, switched, function)
        return acting or _switched_for_callee(event, switched, function)
    whole = next((path for path in switched if _is_part(event.receiver, path)), None)
    if whole is not None:
        parts = (path for path in trained if _is_part(event.receiver, path))
        return None if any(_is_part(path, whole) for path in parts) else switched[whole]
    inside = held_by(event.values) | sites(event.values)
    for switch in switched.values():
        same = sites(switch.values)
        if inside & same and all(
            value.site in same or _may_be_wrapper(value) for value in event.values
        ):
            return switch
    return None


def _is_part(path: str, whole: str) -> bool:
    """Tell whether `self.unet` is `self`, or a part of it."""
    return path == whole or path.startswith(f"{whole}.")


def _may_be_wrapper(value: Value) -> bool:
    """Tell whether a value is a module, or a moved copy of what may well be one."""
    if value.kind in {Kind.MODULE, Kind.INSTANCE}:
        return True
    node = value.node
    if value.kind is not Kind.UNKNOWN or type(node) is not cst.Call:
        return False
    is_class = (dotted_name(node.func) or "_").rpartition(".")[2][:1].isupper()
    return is_class or (
        type(node.func) is cst.Attribute and node.func.attr.value in SAME_MODULE_METHODS
    )


def _switched_for_acting(
    call: Call, switched: dict[str, ModeSwitch], function: FunctionModel
) -> ModeSwitch | None:
    """Return what switched the policy that is asked for an action."""
    if call.method not in _ACTS or type(call.node) is not cst.Call or not call.node.args:
        return None
    called = None if call.function is None else function.module.function(call.function)
    if called is not None and called.mode is GradMode.DISABLED:
        return None
    return next((event for event in switched.values() if sites(event.values) & call.on), None)


def _switched_for_callee(
    call: Call, switched: dict[str, ModeSwitch], function: FunctionModel
) -> ModeSwitch | None:
    """Return what switched the model that a function of the file runs and records."""
    if not switched or call.function is None or call.referenced or call.is_constructor:
        return None
    called = function.module.function(call.function)
    if called is function or called.mode is not GradMode.AMBIENT or _differentiates(called):
        return None
    binding = bound_parameters(call, called)
    ran = frozenset[int]().union(
        *(
            in_caller(value.site, binding, called)
            for event in called.events()
            if isinstance(event, Forward) and event.mode is GradMode.AMBIENT
            for value in event.values
        )
    )
    return next((event for event in switched.values() if sites(event.values) & ran), None)


_ACTS = frozenset({"get_action", "get_actions", "get_action_and_value", "get_value"})
"""What reinforcement learning calls the forwards of its policies."""


def _is_unit_test(function: FunctionModel) -> bool:
    """Tell whether this is a unit test, which runs a model once or twice."""
    if not function.scope.name.rpartition(".")[2].startswith("test_"):
        return False
    if function.scope.owner is not None or function.module.mentions(b"pytest"):
        return True
    return any(type(node) is cst.Assert for node in walk(function.scope.node))


def _is_evaluation(function: FunctionModel) -> bool:
    """Tell whether a function is named after what it evaluates, and is no unit test."""
    name = function.scope.name.rpartition(".")[2].lower()
    return not function.module.mentions(b"unittest") and _EVALUATES.search(name) is not None


def _needs_gradients(function: FunctionModel, events: list[Event], forward: Forward | Call) -> bool:
    """Tell whether gradients may be used, or may be off for reasons that lie elsewhere."""
    if (
        function.module.sets_mode_for_all
        or _records_nothing(function, forward)
        or _is_handed_over(function, events, forward)
    ):
        return True
    inside = {id(known) for known in function.scope.nested.values()}
    result = sites(forward.result) if isinstance(forward, Forward) else frozenset()
    is_top = isinstance(function.scope.node, cst.Module)
    backwards = [event for event in events if isinstance(event, Backward)]
    if any(
        not event.values or id(forward.node) in through_all(event.values) for event in backwards
    ):
        return True
    for event in events:
        if isinstance(event, Call) and event.function is not None:
            if event.mentions & result and _differentiates(
                function.module.function(event.function)
            ):
                return True
            if not is_top and id(event.function) in inside:
                return True
    if not _comes_after_training(events, backwards, forward):
        around = _statements_around(function, backwards, forward)
        if around is None or any(_is_gradient_word(node) for node in walk(around)):
            return True
    modes = function.module.modes_of_callers(function.scope)
    return forward.mode is GradMode.AMBIENT and bool(modes) and GradMode.ENABLED not in modes


def _comes_after_training(
    events: list[Event], backwards: list[Backward], forward: Forward | Call
) -> bool:
    """Tell whether the backwards of an iteration are over, and known to be of other forwards."""
    if not backwards or not all(through_all(event.values) for event in backwards):
        return False
    return not any(
        isinstance(event, Backward)
        or (isinstance(event, Call) and any(map(_is_gradient_word, walk(event.node))))
        for event in events[events.index(forward) + 1 :]
    )


def _is_handed_over(function: FunctionModel, events: list[Event], forward: Forward | Call) -> bool:
    """Tell whether somebody who isn't known is given what may be differentiated."""
    if isinstance(forward, Forward) and _is_explained(function, events, forward):
        return True
    if forward.loops or not _returns_graph(events, forward):
        return False
    return not function.module.modes_of_callers(function.scope)


def _returns_graph(events: list[Event], forward: Forward | Call) -> bool:
    """Tell whether callers, which are not known, are given what may be differentiated."""
    return any(
        isinstance(event, Return) and id(forward.node) in through_all(event.values)
        for event in events
    )


def _is_explained(function: FunctionModel, events: list[Event], forward: Forward) -> bool:
    """Tell whether something unknown is handed what a model has computed, and from what it has.

    ``operator(x, net(x))`` may differentiate the one by the other.
    """
    if type(forward.node) is not cst.Call:
        return False
    inputs = {dotted_name(argument.value) for argument in forward.node.args} - {None}
    result = sites(forward.result)
    for event in events:
        if not isinstance(event, Call) or event.function is not None or event.harmless:
            continue
        if not event.is_used or type(event.node) is not cst.Call:
            continue
        handed = {dotted_name(argument.value) for argument in event.node.args} - {None}
        if handed & inputs and any(
            sites(function.bindings.get(name or "", frozenset())) & result
            for name in handed - inputs
        ):
            return True
    return False


def _records_nothing(function: FunctionModel, forward: Forward | Call) -> bool:
    """Tell whether the model, an engine or whoever runs the function may turn recording off."""
    if forward.mode is GradMode.AMBIENT and is_handed_on(function):
        return True
    name = function.scope.name.rpartition(".")[2]
    if function.runs_in_engine and name in _STEPS_OF_ENGINE:
        return True
    scopes = function.module.scopes
    for value in forward.values if isinstance(forward, Forward) else ():
        method = scopes.method(scopes.classes.get(value.name), "forward")
        if method is not None and function.module.function(method).mode is GradMode.DISABLED:
            return True
        if method is not None and any(
            known.words >= _DIFFERENTIATES for known in _own_methods(method, function)
        ):
            return True  # as forces are of an energy: what it returns needs the graph
    return False


def _own_methods(method: FunctionScope, function: FunctionModel) -> list[FunctionScope]:
    """Return a method, and those of the same object that it leads to."""
    found = [method]
    for known in found:
        owner, first = known.owner, known.first_parameter
        for node in known.nodes_of(cst.Call):
            name = dotted_name(node.func) or ""
            if owner is not None and name.startswith(f"{first}.") and name.count(".") == 1:
                called = function.module.scopes.method(owner, name.partition(".")[2])
                if called is not None and called not in found:
                    found.append(called)
    return found


_DIFFERENTIATES = frozenset({"autograd", "grad"})


_STEPS_OF_ENGINE = frozenset({"validation_step", "test_step", "predict_step"})


def _statements_around(
    function: FunctionModel, backwards: list[Backward], forward: Forward | Call
) -> cst.CSTNode | None:
    """Return the function, or the outermost loop round a forward that trains nothing."""
    if not backwards:
        return function.scope.node
    training = {loop for backward in backwards for loop in backward.loops}
    for loop in function.loops():
        if loop.identity in forward.loops and loop.identity not in training:
            return loop.node
    return None


def _differentiates(called: FunctionModel) -> bool:
    """Tell whether a function of the file, or one that it calls, may use gradients."""
    memo = called.module.memo
    key = ("differentiates", id(called.scope))
    if key not in memo:
        memo[key] = False
        memo[key] = any(map(_is_gradient_word, walk(called.scope.node))) or any(
            _differentiates(called.module.function(event.function))
            for event in called.events()
            if isinstance(event, Call) and event.function is not None
        )
    return bool(memo[key])


def _forward_differentiates(function: FunctionModel, models: Iterable[Value]) -> bool:
    """Tell whether one of these may be of a class of the file whose forward uses gradients."""
    scopes = function.module.scopes
    for value in models:
        name = dotted_name(value.node.func) if type(value.node) is cst.Call else None
        known = None if name is None else scopes.classes.get(name)
        forward = None if known is None else scopes.method(known, "forward")
        if forward is not None and _differentiates(function.module.function(forward)):
            return True
    return False


def _is_gradient_word(node: cst.CSTNode) -> bool:
    if type(node) is cst.Attribute:
        if node.attr.value == "step":
            # `env.step(action)` trains nothing.
            return _TRAINS.search((dotted_name(node.value) or "optimizer").lower()) is not None
        return node.attr.value in _GRADIENT_WORDS
    return type(node) is cst.Name and node.value in _GRADIENT_WORDS


_EVALUATES = re.compile("test|eval|valid|predict|infer")
_TRAINS = re.compile(r"opt|engine|accelerat|trainer|scaler|closure")
_GRADIENT_WORDS = frozenset(
    {
        "backward",
        "grad",
        "requires_grad",
        "requires_grad_",
        "enable_grad",
        "attack",
        "jacrev",
    }
)
