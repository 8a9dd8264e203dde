"""GCS701: validation in training mode."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.analyses.repeated_calls import repeats
from gradcheck_lint.model.flow import (
    Backward,
    Call,
    Event,
    Forward,
    GradMode,
    ModeSwitch,
    Step,
)
from gradcheck_lint.model.syntax import dotted_name
from gradcheck_lint.model.values import Kind, all_are, sites
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import FunctionScope
    from gradcheck_lint.model.values import Value


class TrainModeInEval(Rule):
    """A validation runs without recording, but with dropout and batch norm in training mode."""

    entry = catalogue.TRAIN_MODE_IN_EVAL

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield the model of a validation that training runs and that no eval() reaches."""
        name = function.scope.name.rpartition(".")[2].lower()
        if function.runs_in_engine:
            return
        if not _EVALUATES.search(name):
            yield from _inside_training(function)
            return
        forwards = [
            event
            for event in function.events()
            if isinstance(event, Forward) and _is_evaluated(event, function)
        ] or list(_passes(function))
        if not forwards or not _is_called_in_training(function, function.scope):
            return
        if any(_may_switch(event, forwards[0]) for event in function.events()):
            return
        if not _is_reached_by_eval(function):
            yield _violation(forwards[0], function)


_EVALUATES = re.compile("valid|eval|test|accuracy")
_EVALUATED = re.compile(r"(?:^|[^a-z])(?:val|valid\w*|eval\w*|test|dev)(?:$|[^a-z])")
_ACTS = frozenset({"no_grad", "inference_mode"})
_MODES = re.compile(r"Dropout\w*|BatchNorm\w*|SyncBatchNorm")


_SWITCHES_OFF = re.compile(rb"\.(?:p|dropout)\s*=\s*0")
_MAKES_MODELS = re.compile(rb"nn\.Module\)|nn\.Sequential\(")
_MAY_HAVE_MODES = re.compile(
    rb"\.training\b|[Dd]ropout|(?<!Layer)(?<!RMS)(?<!Group)Norm(?!al)|[Tt]ransformer|RReLU|torchvision"
    rb"|timm|pretrained|\.load\(|import\w*\(|models?\b[^\n]* import "
)


def _violation(forward: Forward, function: FunctionModel) -> Violation:
    module = function.module
    against = ""
    if module.matches(_MAKES_MODELS) and not module.matches(_MAY_HAVE_MODES):
        against = ", if it has any: no layer of this file changes with the mode"
    elif module.matches(_SWITCHES_OFF):
        against = ", unless what this file sets in its layers switches them off"
    return Violation(
        forward.node,
        f"`{forward.receiver}` is validated in this file without eval(): dropout is active "
        "and batch norm uses, and updates, the statistics of each batch" + against,
        Severity.NOTE if against else Severity.WARNING,
        f"call `{forward.receiver}.eval()` before and `.train()` afterwards",
    )


def _inside_training(function: FunctionModel) -> Iterator[Violation]:
    """Yield the model of a validation loop that stands in the loop over the epochs."""
    words = function.scope.words
    if "backward" not in words or words.isdisjoint(_ACTS) or not _has_modes(function):
        return
    if _is_reached_by_eval(function):
        return
    events = list(function.events())
    stepping = {loop for event in events if isinstance(event, Step) for loop in event.loops}
    for loop in function.loops():
        if type(loop.node) is not cst.For or loop.identity in stepping:
            continue
        if not _EVALUATED.search(function.module.text(loop.node.iter).lower()):
            continue
        for event in events:
            if (
                isinstance(event, Forward)
                and event.mode is GradMode.DISABLED
                and loop.identity in event.loops
                and not stepping.isdisjoint(event.loops)
                and _has_mode(event, function)
                and not any(_may_switch(other, event) for other in events)
            ):
                yield _violation(event, function)
                return


def _is_evaluated(forward: Forward, function: FunctionModel) -> bool:
    """Tell whether a model that evaluation mode changes runs, as far as is known."""
    if any(map(_depends_on_mode, forward.values)) or _has_mode(forward, function):
        return True
    if function.module.mentions(b".eval()", b"train(False)"):
        return False  # whoever wrote it knows of modes, and this model may have none
    return bool(forward.loops) and forward.mode is GradMode.DISABLED


def _passes(function: FunctionModel) -> Iterator[Forward]:
    """Yield the calls of methods that run the layers of a module, in training mode as they are."""
    for event in function.events():
        if (
            not isinstance(event, Call)
            or event.function is None
            or type(event.node) is not cst.Call
        ):
            continue
        called, owner = event.node.func, event.function.owner
        path = dotted_name(called.value) if type(called) is cst.Attribute else None
        if path is None or not function.module.scopes.derives_from(owner, "torch.nn."):
            continue
        values = function.bindings.get(path, frozenset())
        run = Forward(event.node, event.mode, event.loops, event.arms, event.expects_error, path)
        run.values = values
        if _has_mode(run, function) and _runs_as_it_is(function.module.function(event.function)):
            yield run


def _runs_as_it_is(method: FunctionModel) -> bool:
    """Return whether a method of a module runs its layers, and leaves their modes alone."""
    owner = method.scope.owner
    called = (event.function for event in method.events() if isinstance(event, Call))
    inner = [scope for scope in called if scope is not None and scope.owner is owner]
    own = [method, *map(method.module.function, inner)]
    return any(map(_runs_model, own)) and not any(
        isinstance(event, ModeSwitch) for each in own for event in each.events()
    )


def _depends_on_mode(value: Value) -> bool:
    """Tell whether a value is a layer that evaluation mode changes, or a sequence with one."""
    if value.kind is not Kind.MODULE:
        return False
    if _MODES.fullmatch(value.name.rpartition(".")[2]) is not None:
        return True
    return any(_depends_on_mode(part) for parts in value.parts for part in parts)


def _is_reached_by_eval(function: FunctionModel) -> bool:
    """Tell whether a function, one that leads to it, or a helper of these sets the mode."""
    waiting, seen = [function.scope], set[int]()
    while waiting:
        scope = waiting.pop()
        if id(scope) in seen:
            continue
        seen.add(id(scope))
        known = function.module.function(scope)
        called = {
            id(event.function): function.module.function(event.function)
            for event in known.events()
            if isinstance(event, Call) and event.function is not None
        }
        helpers = [each for each in called.values() if not _runs_model(each)]
        if any(map(_sets_eval, (known, *helpers))):
            return True
        waiting += [
            caller.scope
            for caller in function.module.functions()
            for event in caller.events()
            if isinstance(event, Call) and event.function is scope
        ]
    return False


def _runs_model(function: FunctionModel) -> bool:
    return any(isinstance(event, Forward) for event in function.events())


def _sets_eval(function: FunctionModel) -> bool:
    return any(
        isinstance(event, ModeSwitch) and event.training is not True for event in function.events()
    )


def _has_modes(function: FunctionModel) -> bool:
    """Tell whether a class of the file has layers that evaluation mode changes."""
    memo = function.module.memo
    if "layers with modes" not in memo:
        memo["layers with modes"] = any(
            any(map(_MODES.fullmatch, method.words))
            for scope in function.module.scopes.classes.values()
            for method in scope.methods.values()
        )
    return bool(memo["layers with modes"])


def _has_mode(forward: Forward, function: FunctionModel) -> bool:
    """Tell whether the class of a model has such layers itself."""
    classes = [function.module.scopes.classes.get(value.name) for value in forward.values]
    return all_are(forward.values, Kind.INSTANCE) and all(
        scope is not None
        and any(any(map(_MODES.fullmatch, method.words)) for method in scope.methods.values())
        for scope in classes
    )


def _is_called_in_training(function: FunctionModel, scope: FunctionScope) -> bool:
    """Tell whether a function of the file that trains calls this one in a loop."""
    for caller in function.module.functions():
        events = list(caller.events())
        calls = any(
            isinstance(event, Call) and event.function is scope and (event.loops or repeats(caller))
            for event in events
        )
        if calls and _trains(caller):
            return True
    return False


def _trains(caller: FunctionModel) -> bool:
    """Tell whether a function, with those that it calls in loops, makes training steps."""
    waiting, seen, kinds = [(caller, False)], set[int](), set[type[Event]]()
    while waiting:
        known, is_inside = waiting.pop()
        seen.add(id(known.scope))
        for event in known.events():
            kinds.add(type(event))
            if (
                isinstance(event, Call)
                and event.function is not None
                and (event.loops or is_inside)
                and id(event.function) not in seen
            ):
                waiting.append((known.module.function(event.function), True))
    return {Step, Backward} <= kinds


def _may_switch(event: Event, forward: Forward) -> bool:
    """Tell whether a call that can't be looked into is handed the model, for a purpose."""
    if not isinstance(event, Call) or event.function is not None or event.harmless:
        return False
    return not event.is_used and not event.handed.isdisjoint(sites(forward.values))
