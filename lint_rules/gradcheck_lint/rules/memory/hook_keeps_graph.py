"""GCS207: a hook that stores tensors with their graph."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.analyses.container_clearing import is_emptied_anywhere
from gradcheck_lint.model.function_class import assignments, returns
from gradcheck_lint.model.knowledge import SAME_GRAPH_METHODS
from gradcheck_lint.model.name_sources import sources_of
from gradcheck_lint.model.syntax import dotted_name, keyword, last_word, positional
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.name_sources import Sources


class HookKeepsGraph(Rule):
    """A hook appends what it is given to a list, with its graph."""

    entry = catalogue.HOOK_KEEPS_GRAPH

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every append of an undetached argument in a function that is used as a hook."""
        yield from _in_lambdas(function)
        if isinstance(function.scope.node, cst.Module) or function.module.mentions(b".clear()"):
            return
        name = function.scope.name.rpartition(".")[2]
        if function.scope.nested or not (name in _hooks(function) or _is_made_hook(function)):
            return
        given = _given(function, is_partial=name in _hooks(function, partial=True))
        bound = sources_of(function.scope)
        for node in function.scope.nodes:
            target, kept = _kept(node)
            stored = _with_graph(kept, bound)
            if target is None or stored is None or stored not in given:
                continue
            if _goes_with_the_hook(function, target) or _may_stay_small(function, target):
                continue
            yield _violation(node, stored)


def _in_lambdas(function: FunctionModel) -> Iterator[Violation]:
    """Yield every `register_forward_hook(lambda m, i, o: outputs.append(o))` that lasts."""
    if "register_forward_hook" not in function.scope.words:
        return
    if function.module.mentions(b".clear()"):
        return
    local = assignments(function.scope)
    for node in function.scope.nodes_of(cst.Call):
        if type(node.func) is not cst.Attribute:
            continue
        handed = positional(node)
        hook = handed[0] if handed else None
        if hook is None:
            hook = keyword(node, "hook")
        if node.func.attr.value != "register_forward_hook" or type(hook) is not cst.Lambda:
            continue
        target, kept = _kept(hook.body)
        given = [known.name.value for known in hook.params.params if known.default is None]
        path = dotted_name(target)
        if len(given) != _HOOK_ARGUMENTS or path is None or path in local:
            continue
        assert target is not None
        if _with_graph(kept, {}) == given[-1] and not _may_stay_small(function, target):
            yield _violation(hook.body, given[-1])


def _given(function: FunctionModel, *, is_partial: bool) -> list[str]:
    """Return the parameters of a hook that hold inputs and outputs of what is hooked.

    The first is the module, which has no graph; ``partial`` puts what it likes before that.
    """
    if isinstance(function.scope.node, cst.Module):
        return []
    parameters = [parameter.name.value for parameter in function.scope.node.params.params]
    if is_partial:
        return parameters[-2:]
    return parameters[1 if function.scope.owner is None else 2 :]


def _kept(
    node: cst.CSTNode,
) -> tuple[cst.BaseExpression, cst.BaseExpression] | tuple[None, None]:
    """Return the list and what is put in it by ``x.append(y)`` or ``x += [y]``."""
    if type(node) is cst.Call and type(node.func) is cst.Attribute:
        handed = positional(node)
        if node.func.attr.value == "append" and len(handed) == 1:
            return node.func.value, handed[0]
    elif type(node) is cst.AugAssign and type(node.operator) is cst.AddAssign:
        value = node.value
        if isinstance(value, (cst.List, cst.Tuple)) and len(value.elements) == 1:
            return node.target, value.elements[0].value
    return None, None


def _with_graph(node: cst.BaseExpression | None, bound: Sources) -> str | None:
    """Return the name of whose graph this expression holds, as ``out`` of ``out[0].cpu()``."""
    while True:
        if type(node) is cst.Subscript:
            node = node.value
        elif (
            type(node) is cst.Call
            and type(node.func) is cst.Attribute
            and node.func.attr.value in SAME_GRAPH_METHODS
        ):
            node = node.func.value
        else:
            break
    if type(node) is not cst.Name:
        return None
    sources = bound.get(node.value)
    if sources is None:
        return None if node.value in bound else node.value
    remaining = {name: known for name, known in bound.items() if name != node.value}
    return _with_graph(sources[0], remaining) if len(sources) == 1 else None


_HOOK_ARGUMENTS = 3


def _violation(node: cst.CSTNode, stored: str) -> Violation:
    return Violation(
        node,
        f"the hook appends `{stored}` with its graph on every forward, and nothing "
        "in this file empties the list: all graphs stay in memory",
        Severity.WARNING,
        f"store `{stored}.detach()`, and remove the hook when it is done",
    )


def _hooks(function: FunctionModel, *, partial: bool = False) -> frozenset[str]:
    """Return the names of the functions that the file registers as hooks, or through partial."""
    memo = function.module.memo
    key = ("hooks", partial)
    if key not in memo:
        memo[key] = frozenset(
            (dotted_name(hook) or "").rpartition(".")[2]
            for node in _registrations(function)
            for hook in _registered(node, only_partial=partial)
        )
    found: frozenset[str] = memo[key]
    return found


def _is_made_hook(function: FunctionModel) -> bool:
    """Tell whether a function that is called to make a hook (`hook_for(name)`) returns this one."""
    around = function.scope.parent
    if around is None or isinstance(around.node, cst.Module):
        return False
    if around.name.rpartition(".")[2] not in _makers(function):
        return False
    own = function.scope.name.rpartition(".")[2]
    return any(dotted_name(node.value) == own for node in returns(around))


def _makers(function: FunctionModel) -> frozenset[str]:
    """Return the names of what the file calls to make the hooks that it registers."""
    memo = function.module.memo
    if "makers of hooks" not in memo:
        memo["makers of hooks"] = frozenset(
            (dotted_name(hook.func) or "").rpartition(".")[2]
            for node in _registrations(function)
            for hook in _registered(node, only_partial=False)
            if type(hook) is cst.Call
        )
    found: frozenset[str] = memo["makers of hooks"]
    return found


def _registrations(function: FunctionModel) -> Iterator[cst.Call]:
    """Yield the calls of the file that register a hook of forward."""
    if not function.module.mentions(b"register_forward_hook"):
        return
    for node in function.module.nodes_of(cst.Call):
        if type(node.func) is cst.Attribute and node.func.attr.value == "register_forward_hook":
            yield node


def _registered(node: cst.Call, *, only_partial: bool) -> list[cst.BaseExpression]:
    """Return the function that a call registers as a hook."""
    handed = [*positional(node)[:1], keyword(node, "hook")]
    hook = next((each for each in handed if each is not None), None)
    is_partial = type(hook) is cst.Call and last_word(dotted_name(hook.func)) == "partial"
    if is_partial:
        assert type(hook) is cst.Call
        return positional(hook)[:1]
    return [] if only_partial or hook is None else [hook]


def _may_stay_small(function: FunctionModel, target: cst.BaseExpression) -> bool:
    """Tell whether the list is no plain one, is emptied, or is filled where nothing is recorded."""
    module = function.module
    if not module.mentions(b"backward") and module.matches(_RECORDS_NOTHING):
        return True
    target = _container(target)
    around = function.scope.parent
    if type(target) is cst.Name and around is not None:
        # `kept = self.acts.setdefault(name, [])`, before the hook that appends to it.
        sources = assignments(around).get(target.value, [])
        target = _container(sources[0]) if len(sources) == 1 else target
        target = target if dotted_name(target) else _container(target)
    path = dotted_name(target)
    if path is None:
        return False
    for scope in module.scopes.functions:
        for node in scope.nodes_of(cst.Assign):
            if type(node.value) is cst.Call:
                made = (dotted_name(node.value.func) or "").rpartition(".")[2]
                names = (dotted_name(known.target) or "" for known in node.targets)
                if made not in _UNBOUNDED and last_word(path) in map(last_word, names):
                    return True
    maker = function.scope.parent
    while maker is not None and maker.parent is not None and path not in assignments(maker):
        maker = maker.parent
    return is_emptied_anywhere(module, path, maker)


def _container(target: cst.BaseExpression) -> cst.BaseExpression:
    """Return what holds the list: `acts` of `acts[name]` and of `acts.setdefault(name, [])`."""
    while True:
        if type(target) is cst.Subscript:
            target = target.value
        elif type(target) is cst.Call and type(target.func) is cst.Attribute:
            if target.func.attr.value not in {"setdefault", "get"}:
                return target
            target = target.func.value
        else:
            return target


_UNBOUNDED = frozenset({"list", "dict", "defaultdict", "OrderedDict"})
_RECORDS_NOTHING = re.compile(rb"no_grad|inference_mode|set_grad_enabled")


def _goes_with_the_hook(function: FunctionModel, target: cst.BaseExpression) -> bool:
    """Tell whether the list is a local of the enclosing function, which removes the hook."""
    around = function.scope.parent
    target = _container(target)
    if around is None or isinstance(around.node, cst.Module) or type(target) is not cst.Name:
        return False
    if _is_made_hook(function):
        # Whose list it is, and for how long, whoever asks for the hook knows.
        return function.module.mentions(b".remove()")
    return target.value in assignments(around) and any(
        node.attr.value == "remove" for node in around.nodes_of(cst.Attribute)
    )
