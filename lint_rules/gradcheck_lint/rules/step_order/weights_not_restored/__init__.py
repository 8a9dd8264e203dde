"""GCS316: an evaluation writes the weights of a model, and training goes on from those."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.analyses.object_uses import parents_of
from gradcheck_lint.model.flow import Backward, Call, GradMode
from gradcheck_lint.model.nearness import BACKWARD
from gradcheck_lint.model.syntax import (
    assigned_pairs,
    dotted_name,
    first_word,
    last_word,
    walk,
)
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.step_order.weights_not_restored.displacements import displacements
from gradcheck_lint.rules.step_order.weights_not_restored.weight_writes import (
    Write,
    replaces_itself,
    writes_in,
)
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_lint.model.module import FunctionModel, ModuleModel
    from gradcheck_lint.model.scopes import FunctionScope


class WeightsNotRestored(Rule):
    """Weights are replaced for an evaluation that repeats, and not put back."""

    entry = catalogue.WEIGHTS_NOT_RESTORED

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every replacement that an evaluation follows, and no other write of the weights."""
        module = function.module
        for moved in displacements(function):
            yield Violation(
                moved.node,
                "the weights are moved along a vector, forth and back, and stay beside where they "
                f"were: by `{moved.rest}` times the vector, each time that this runs",
                Severity.WARNING,
                "move them back to where they were before anything goes on",
                ((moved.first, "the first of these moves"),),
            )
        if not module.mentions(b"backward"):
            return
        if not _may_replace(module):
            return  # nothing has to be read for that
        written = writes_in(function)
        if not written:
            return
        region = _Regions(function)
        for found in written:
            if not found.is_kept or _is_balanced(found.called, module):
                continue
            nodes = region.around(found.node)
            if nodes is None:
                continue
            write = _of_original(found, nodes)
            if _is_made(write, nodes) or not _is_trained(write, module):
                continue
            evaluation, purpose = _evaluation_after(write, nodes, function), "an evaluation"
            if evaluation is None:
                evaluation, purpose = _saved_after(write, nodes), "a checkpoint"
            others = [other for other in written if other.node is not write.node]
            if evaluation is None or any(_undoes(other, write, nodes) for other in others):
                continue
            if region.is_whole and _is_written_by_callers(write, function):
                continue
            yield Violation(
                write.node,
                f"the weights of `{write.owner}` are replaced for {purpose} that repeats, and "
                "nothing puts back what was trained: the next step goes on from these",
                Severity.WARNING,
                "keep a copy of the weights before, and copy them back afterwards",
                ((evaluation, purpose),),
            )


def _may_replace(module: ModuleModel) -> bool:
    """Return whether some function of the file copies what is kept into weights."""
    if not module.mentions(b"copy_(", b".data =", b"load_state_dict", b"copy_to(", b"_shadow("):
        return False
    key = "weights are replaced by what is kept"
    if key not in module.memo:
        module.memo[key] = any(map(replaces_itself, list(module.functions())))
    return bool(module.memo[key])


class _Regions:
    """Where a function does nothing but to evaluate: all of it, or an arm of a loop that trains."""

    def __init__(self, function: FunctionModel) -> None:
        self._function = function
        self._parents = parents_of(function)
        self.is_whole = not _trains(function.scope.nodes, function)

    def around(self, write: cst.CSTNode) -> Sequence[cst.CSTNode] | None:
        """Return the nodes among which an evaluation of what is written may stand."""
        if self.is_whole:
            is_beside = _is_beside_training(self._function, set())
            return self._function.scope.nodes if is_beside else None
        arm: cst.CSTNode | None = None
        node = self._parents.get(id(write))
        while node is not None and not isinstance(node, (cst.For, cst.While)):
            arm = node if type(node) is cst.If else arm
            node = self._parents.get(id(node))
        if node is None or arm is None:
            return None
        nodes = list(walk(arm))
        return None if _trains(nodes, self._function) else nodes


def _is_beside_training(function: FunctionModel, seen: set[int]) -> bool:
    """Return whether a loop of the file runs a function again, and trains as well."""
    seen.add(id(function.scope))
    near = function.module.near
    for caller in list(function.module.functions()):
        events = [each for each in caller.events() if isinstance(each, (Call, Backward))]
        for call in events:
            if not isinstance(call, Call) or call.function is not function.scope:
                continue
            if not call.loops:
                if id(caller.scope) not in seen and _is_beside_training(caller, seen):
                    return True
                continue
            for other in events:
                if call.loops[0] in other.loops and (
                    isinstance(other, Backward)
                    or (other.function is not None and near.has(other.function, BACKWARD))
                ):
                    return True
    return False


def _of_original(write: Write, nodes: Sequence[cst.CSTNode]) -> Write:
    """Return a write to the model that another name stands for there: ``unet = model``."""
    values = [
        value
        for node in nodes
        for target, value in assigned_pairs(node)
        if dotted_name(target) == write.owner
    ]
    if len(values) != 1:
        return write
    (value,) = values
    if type(value) is cst.Call and last_word(dotted_name(value.func)) in _UNWRAPPING and value.args:
        value = value.args[0].value
    original = dotted_name(value) if type(value) is cst.Name else None
    return write if original is None else write._replace(owner=original, alias=write.owner)


_UNWRAPPING: Final = frozenset({"unwrap_model", "unwrap"})


def _is_made(write: Write, nodes: Sequence[cst.CSTNode]) -> bool:
    """Return whether the model is one that is made there, as a copy for the evaluation."""
    root = first_word(write.owner)
    return any(dotted_name(target) == root for node in nodes for target, _ in assigned_pairs(node))


def _trains(nodes: Sequence[cst.CSTNode], function: FunctionModel) -> bool:
    """Return whether something is differentiated there, also in a function that is called."""
    inside = {id(node) for node in nodes}
    if any(type(node) is cst.Attribute and node.attr.value == "backward" for node in nodes):
        return True
    return any(
        isinstance(event, Call)
        and event.function is not None
        and id(event.node) in inside
        and "backward" in event.function.words
        for event in function.events()
    )


_EVALUATES: Final = frozenset({"eval", "no_grad", "inference_mode"})
_NAMED: Final = ("eval", "valid", "test")


def _evaluation_after(
    write: Write, nodes: Sequence[cst.CSTNode], function: FunctionModel
) -> cst.CSTNode | None:
    """Return the call after a write that evaluates the model."""
    called = {
        id(event.node): event.function for event in function.events() if isinstance(event, Call)
    }
    is_after = False
    inside = set(_within(write.node))
    here = _evaluates(function) or _is_named(function.scope.name)
    for node in nodes:
        is_after = is_after or node is write.node
        if not is_after or type(node) is not cst.Call or id(node) in inside:
            continue
        name = dotted_name(node.func) or ""
        given = {dotted_name(each.value) for each in node.args} - {None}
        scope = called.get(id(node))
        evaluates = scope is not None and _evaluates_in(scope, function)
        is_of_model = not given.isdisjoint({write.owner, write.alias}) or write.is_of_object
        if name in {write.owner, write.alias} or (
            write.is_of_object and scope is None and _is_model(name)
        ):
            if here:
                return node
        elif (evaluates or _is_named(name)) and (is_of_model or name.startswith("self.")):
            return node
    return None


def _saved_after(write: Write, nodes: Sequence[cst.CSTNode]) -> cst.CSTNode | None:
    """Return what asks for the state of the model after a write, to keep it."""
    owner, is_after = last_word(write.owner), False
    inside = set(_within(write.node))
    for node in nodes:
        is_after = is_after or node is write.node
        name = dotted_name(node.func) if type(node) is cst.Call and is_after else None
        if name is None or id(node) in inside or last_word(name) != "state_dict":
            continue
        if last_word(name.rpartition(".")[0]) == owner:
            return node
    return None


def _evaluates(function: FunctionModel) -> bool:
    """Return whether a function records nothing, or switches to that or to evaluation."""
    return function.mode is GradMode.DISABLED or not _EVALUATES.isdisjoint(function.scope.words)


def _evaluates_in(scope: FunctionScope, function: FunctionModel) -> bool:
    """Return whether a function evaluates, or what an object does that a constructor makes."""
    is_made = scope.owner is not None and last_word(scope.name) == "__init__"
    scopes = scope.owner.methods.values() if is_made and scope.owner is not None else [scope]
    return any(_evaluates(function.module.function(each)) for each in scopes)


def _within(node: cst.CSTNode) -> Iterator[int]:
    return (id(each) for each in walk(node))


def _is_named(name: str) -> bool:
    return any(word in last_word(name).lower() for word in _NAMED)


def _is_model(name: str) -> bool:
    return any(word in last_word(name).lower() for word in ("model", "net"))


def _undoes(other: Write, write: Write, nodes: Sequence[cst.CSTNode]) -> bool:
    """Return whether another write may put the weights back."""
    if not _is_of_same(other, write):
        return False
    return other.is_kept or any(node is other.node for node in nodes)


def _is_of_same(other: Write, write: Write) -> bool:
    names = {last_word(write.owner), last_word(write.alias or write.owner)}
    return other.is_of_object or write.is_of_object or last_word(other.owner) in names


def _is_trained(write: Write, module: ModuleModel) -> bool:
    """Return whether an optimizer of the file is given the model, or a loop differentiates it."""
    if write.is_of_object:
        return True
    key = "words of what optimizers are given"
    if key not in module.memo:
        module.memo[key] = frozenset(
            name.value
            for scope in module.scopes.functions
            for node in scope.nodes_of(cst.Call)
            if module.makes_optimizer(node)
            for name in walk(node)
            if type(name) is cst.Name
        )
    known: frozenset[str] = module.memo[key]
    last = last_word(write.owner)
    if known:
        return last in known
    return any(
        "backward" in scope.words
        and any(last_word(dotted_name(node.func)) == last for node in scope.nodes_of(cst.Call))
        for scope in module.scopes.functions
    )


def _is_written_by_callers(write: Write, function: FunctionModel) -> bool:
    """Return whether what a caller does beside may put the weights back.

    A function that writes them twice puts back itself what it has replaced.
    """
    module = function.module
    for caller in list(module.functions()):
        if not any(
            isinstance(event, Call) and event.function is function.scope
            for event in caller.events()
        ):
            continue
        for other in writes_in(caller):
            if other.called is function.scope or not _is_of_same(other, write):
                continue
            if not _is_balanced(other.called, module):
                return True
    return False


def _is_balanced(called: FunctionScope | None, module: ModuleModel) -> bool:
    """Return whether a function writes weights twice, and so puts back what it has replaced."""
    return called is not None and len(writes_in(module.function(called))) > 1
