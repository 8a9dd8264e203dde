"""GCS706: what a layer sets, or lets follow its inputs, in evaluation mode as well."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.analyses.object_uses import parents_of
from gradcheck_lint.analyses.source_text import source_of
from gradcheck_lint.model.syntax import (
    assigned_once,
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
        owner, module = function.scope.owner, function.module
        if owner is None or owner.methods.get("forward") is not function.scope:
            return
        if not module.mentions(b".eval()") or not module.mentions(b".backward("):
            return
        if not module.scopes.derives_from(owner, "torch.nn.Module"):
            return
        if any(not _MODES.isdisjoint(method.words) for method in owner.methods.values()):
            return
        for call, node, buffer in _followed(owner, function):
            text = source_of(module, node)
            yield Violation(
                call or node,
                f"`{text}` lets `{buffer}` follow the inputs, in evaluation mode as well: what "
                "training goes on with depends on what it was evaluated on",
                Severity.WARNING,
                "do it `if self.training`",
                () if call is None else ((node, "written here"),),
            )


_OF_TRAINING: Final = re.compile("Loss|Penalty|Criterion|Regular")
_MODES: Final = frozenset({"training", "is_grad_enabled", "train", "eval", "enabled"})


def _followed(
    owner: ClassScope, function: FunctionModel
) -> Iterator[tuple[cst.CSTNode | None, cst.CSTNode, str]]:
    """Yield the first update of a buffer by a forward, and the call that leads there."""
    buffers = {
        plain_string(given[0]) or ""
        for method in owner.methods.values()
        for call in method.nodes_of(cst.Call)
        if dotted_name(call.func) == f"{method.first_parameter}.register_buffer"
        if (given := positional(call)) and type(given[0]) is cst.SimpleString
    }
    if not buffers or _OF_TRAINING.search(owner.name):
        return
    reached = [(None, function), *_methods_run(owner, function, buffers)]
    others = [
        scope
        for scope in function.module.scopes.functions
        if "register_buffer" not in scope.words and all(scope is not f.scope for _, f in reached)
    ]
    set_by_others = {last_word(name) for scope in others for _, name, _ in _writes(scope)}
    for call, method in reached:
        for node, name, given in _writes(method.scope):
            buffer = last_word(name)
            if buffer not in buffers - set_by_others or not _is_always_run(node, method, buffers):
                continue
            is_of_itself = any(dotted_name(each) == name for part in given for each in walk(part))
            if not is_of_itself and not _adds_to(node):
                continue
            if all(integer(part) is not None for part in given):
                continue
            if any(_is_read(buffer, known.scope) for _, known in reached):
                yield call, node, name
                return


def _methods_run(
    owner: ClassScope, function: FunctionModel, buffers: set[str]
) -> Iterator[tuple[cst.CSTNode, FunctionModel]]:
    """Yield the methods that each forward runs, with the call that leads there."""
    for call in function.scope.nodes_of(cst.Call):
        base, _, name = (dotted_name(call.func) or "").rpartition(".")
        called = owner.methods.get(name) if base == function.scope.first_parameter else None
        if called not in {None, function.scope} and _is_always_run(call, function, buffers):
            assert called is not None
            yield call, function.module.function(called)


def _is_always_run(node: cst.CSTNode, function: FunctionModel, buffers: set[str]) -> bool:
    """Return whether all that decides about a node is what the layer has counted or seen."""
    parents = parents_of(function)
    inner, outer = node, parents.get(id(node))
    while outer is not None:
        if isinstance(outer, (cst.If, cst.IfExp)) and inner is not outer.test:
            words = {each.value for each in walk(outer.test) if type(each) is cst.Name}
            if words.isdisjoint(buffers):
                return False
        inner, outer = outer, parents.get(id(outer))
    return True


def _writes(
    scope: FunctionScope,
) -> Iterator[tuple[cst.CSTNode, str, list[cst.BaseExpression]]]:
    """Yield each write to an attribute, its name, and what it is given."""
    for node in scope.nodes_of(cst.Call, cst.AugAssign, cst.Assign):
        name, given = None, list[cst.BaseExpression]()
        if type(node) is cst.AugAssign:
            name, given = dotted_name(node.target), [node.value]
        elif type(node) is cst.Assign:
            target, value = assigned_once(node)
            name, given = dotted_name(target), [node.value] if value is not None else []
        elif type(node) is cst.Call and (dotted_name(node.func) or "").endswith("_"):
            name = (dotted_name(node.func) or "").rpartition(".")[0]
            given = [each.value for each in node.args]
        if name is not None and "." in name:
            yield node, name.removesuffix(".data"), given


def _adds_to(node: cst.CSTNode) -> bool:
    """Return whether a write makes the new value of the old one, whatever else it is given."""
    if type(node) is cst.Call:
        return last_word(dotted_name(node.func)) not in {"copy_", "fill_", "zero_"}
    return type(node) is cst.AugAssign


def _is_read(buffer: str, scope: FunctionScope) -> bool:
    """Return whether a method makes anything of a buffer but its next value."""
    own = f"{scope.first_parameter}.{buffer}"
    writing = {id(inner) for node, name, _ in _writes(scope) if name == own for inner in walk(node)}
    attributes = scope.nodes_of(cst.Attribute)
    return any(dotted_name(node) == own and id(node) not in writing for node in attributes)
