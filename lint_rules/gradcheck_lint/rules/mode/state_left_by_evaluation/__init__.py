"""GCS706: what a layer sets, or lets follow its inputs, in evaluation mode as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.analyses.source_text import source_of
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.model.syntax import (
    assigned_once,
    children,
    dotted_name,
    integer,
    last_word,
    plain_string,
    positional,
    walk,
)
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.mode.state_left_by_evaluation.overwritten_settings import (
    overwritten_settings,
)
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import ClassScope, FunctionScope


class StateLeftByEvaluation(Rule):
    """A pass in evaluation mode writes what training goes on with."""

    entry = catalogue.STATE_LEFT_BY_EVALUATION

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield what a pass in evaluation mode sets or updates, once for each forward."""
        for setting in overwritten_settings(function):
            last = setting.name.rpartition(".")[2]
            yield Violation(
                setting.node,
                f"a pass in evaluation mode overwrites `{setting.name}`, and nothing sets it back: "
                "after the first evaluation the layer trains with the number of evaluation",
                Severity.WARNING,
                f"give the number a name of its own: `{last} = ...`",
            )
        scope, owner, module = function.scope, function.scope.owner, function.module
        if owner is None or owner.methods.get("forward") is not scope:
            return
        if not module.mentions(b".eval()") or not module.mentions(b".backward("):
            return
        if not module.scopes.derives_from(owner, "torch.nn.Module") or _asks_for_mode(owner):
            return
        buffers = frozenset(_buffers(owner))
        if not buffers or _is_of_training_alone(owner, function):
            return
        reached = {id(each.scope): each for each in _reached(scope, owner, buffers)}
        for found in reached.values():
            for node, buffer in _updates(found.scope, buffers):
                if _is_written_elsewhere(buffer, reached, function):
                    continue
                if not _is_read(buffer, reached):
                    continue
                yield Violation(
                    found.call or node,
                    f"`{source_of(module, node)}` lets `{buffer}` follow the inputs, in evaluation "
                    "mode as well: what training goes on with depends on what it was evaluated on",
                    Severity.WARNING,
                    "do it `if self.training`",
                    () if found.call is None else ((node, "written here"),),
                )
                return


def _is_of_training_alone(owner: ClassScope, function: FunctionModel) -> bool:
    """Return whether nothing but what differentiates runs a module, as a penalty."""
    names: set[str] = set()
    for known in function.module.functions():
        scope = known.scope
        made = [call for call in scope.nodes_of(cst.Call) if dotted_name(call.func) == owner.name]
        kept = {id(value): dotted_name(target) for target, value in scope.assignments}
        is_layer = function.module.scopes.derives_from(scope.owner, "torch.nn.")
        if made and (is_layer or any(kept.get(id(call)) is None for call in made)):
            return False
        names.update(last_word(kept[id(call)]) for call in made)
    runs = [
        known.scope
        for known in function.module.functions()
        for call in known.scope.nodes_of(cst.Call)
        if last_word(dotted_name(call.func)) in names
    ]
    return bool(runs) and all(Part.BACKWARD in scope.parts for scope in runs)


class _Reached(NamedTuple):
    scope: FunctionScope
    call: cst.CSTNode | None


_MODES: Final = frozenset({"training", "is_grad_enabled", "train", "eval", "enabled"})


def _asks_for_mode(owner: ClassScope) -> bool:
    return any(not _MODES.isdisjoint(method.words) for method in owner.methods.values())


def _buffers(owner: ClassScope) -> Iterator[str]:
    for method in owner.methods.values():
        for call in method.nodes_of(cst.Call):
            if dotted_name(call.func) == f"{method.first_parameter}.register_buffer":
                name = positional(call)[:1]
                if name and type(name[0]) is cst.SimpleString:
                    yield plain_string(name[0]) or ""


def _reached(
    scope: FunctionScope, owner: ClassScope, buffers: frozenset[str]
) -> Iterator[_Reached]:
    """Yield a forward, and the methods that it always runs with the call that leads there."""
    yield _Reached(scope, None)
    for call in scope.nodes_of(cst.Call):
        base, _, name = (dotted_name(call.func) or "").rpartition(".")
        called = owner.methods.get(name) if base == scope.first_parameter else None
        if called is not None and called is not scope and _is_always_run(call, scope, buffers):
            yield _Reached(called, call)


def _is_always_run(node: cst.CSTNode, scope: FunctionScope, buffers: frozenset[str]) -> bool:
    """Return whether all that decides about a node is what the layer has counted or seen."""
    parents = {id(child): each for each in scope.nodes for child in children(each)}
    inner, outer = node, parents.get(id(node))
    while outer is not None:
        if isinstance(outer, (cst.If, cst.IfExp)) and inner is not outer.test:
            names = {dotted_name(each) for each in walk(outer.test)} - {None}
            own = {f"{scope.first_parameter}.{buffer}" for buffer in buffers}
            if not names & own:
                return False
        inner, outer = outer, parents.get(id(outer))
    return True


def _updates(scope: FunctionScope, buffers: frozenset[str]) -> Iterator[tuple[cst.CSTNode, str]]:
    """Yield what makes the next value of a buffer of the one before and of something else."""
    for node, buffer, value in _writes(scope):
        if buffer.rpartition(".")[2] not in buffers or not _is_always_run(node, scope, buffers):
            continue
        if type(node) is cst.Call:
            assert type(node.func) is cst.Attribute
            method = node.func.attr.value
            is_made_anew = method in {"copy_", "fill_", "zero_"}
        else:
            is_made_anew = type(node) is not cst.AugAssign
        is_of_itself = any(dotted_name(each) == buffer for part in value for each in walk(part))
        is_number = all(integer(part) is not None for part in value)
        if (is_of_itself or not is_made_anew) and not is_number:
            yield node, buffer


def _writes(
    scope: FunctionScope,
) -> Iterator[tuple[cst.CSTNode, str, list[cst.BaseExpression]]]:
    """Yield each write to an attribute, its name, and what it is given."""
    for node in scope.nodes_of(cst.Call, cst.AugAssign, cst.Assign):
        if type(node) is cst.Call:
            if type(node.func) is cst.Attribute and node.func.attr.value.endswith("_"):
                name = (dotted_name(node.func.value) or "").removesuffix(".data")
                yield node, name, [argument.value for argument in node.args]
        elif type(node) is cst.AugAssign:
            yield node, dotted_name(node.target) or "", [node.value]
        else:
            target, value = assigned_once(node)
            if value is not None:
                yield node, dotted_name(target) or "", [value]


def _is_read(buffer: str, reached: dict[int, _Reached]) -> bool:
    """Return whether a forward makes anything of a buffer but its next value."""
    name = buffer.rpartition(".")[2]
    for each in reached.values():
        own = f"{each.scope.first_parameter}.{name}"
        writing = {
            id(inner)
            for node, written, _ in _writes(each.scope)
            if written == own
            for inner in walk(node)
        }
        attributes = each.scope.nodes_of(cst.Attribute)
        if any(dotted_name(node) == own and id(node) not in writing for node in attributes):
            return True
    return False


def _is_written_elsewhere(
    buffer: str, reached: dict[int, _Reached], function: FunctionModel
) -> bool:
    """Return whether anything else sets a buffer: a reset, before each sequence or evaluation."""
    name = buffer.rpartition(".")[2]
    return any(
        written.rpartition(".")[2] == name
        for scope in function.module.scopes.functions
        if name in scope.words and id(scope) not in reached and "register_buffer" not in scope.words
        for _, written, _ in _writes(scope)
    )
