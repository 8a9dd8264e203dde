"""GCS704: a moving average of a model without its buffers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.analyses.callers import expressions_given
from gradcheck_lint.analyses.layers import called_function
from gradcheck_lint.analyses.object_uses import argument_for
from gradcheck_lint.model.name_sources import sources_of
from gradcheck_lint.model.syntax import (
    assigned_pairs,
    dotted_name,
    last_word,
    walk,
)
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel, ModuleModel


class InitialStatistics(Rule):
    """A model that evaluates follows the parameters of another one, and not its statistics."""

    entry = catalogue.INITIAL_STATISTICS

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every loop that lets parameters follow others where nothing handles buffers."""
        module = function.module
        if _LISTS.isdisjoint(function.scope.words) or module.matches(_HANDLES_BUFFERS):
            return
        if not module.matches(_HAS_STATISTICS) and module.matches(_MAKES_LAYERS):
            return
        is_likely = module.matches(_HAS_STATISTICS) and not module.matches(_PRETRAINED)
        for node in function.scope.nodes_of(cst.For):
            follower = _follower(node, function)
            if follower is not None and any(
                _only_evaluates(name, module) for name in _names_of(follower, function)
            ):
                yield Violation(
                    node,
                    f"the parameters of `{follower}` follow those of another model, and its "
                    "buffers do not: in evaluation mode batch norm in it normalizes by the running "
                    "statistics that it was made with",
                    Severity.WARNING if is_likely else Severity.NOTE,
                    "copy the buffers as well: `for a, b in zip(average.buffers(), "
                    "model.buffers()): a.copy_(b)`",
                )


_PAIR: Final = 2
_LISTS: Final = frozenset({"parameters", "named_parameters"})
_HAS_STATISTICS: Final = re.compile(rb"BatchNorm|resnet\d|mobilenet|efficientnet")
_MAKES_LAYERS: Final = re.compile(rb"nn\.Module\)|nn\.Sequential\(")
_HANDLES_BUFFERS: Final = re.compile(
    rb"buffers\(|running_mean(?:\.data)?(?:\.\w+_\(|\s*=(?!=))|update_bn|state_dict\(\)\s*\.\s*(?:items|values)"
)
_PRETRAINED: Final = re.compile(rb"pretrained\s*=\s*True|weights\s*=\s*[^N\s]|load_state_dict")


def _value(node: cst.BaseExpression, function: FunctionModel) -> cst.BaseExpression:
    """Return what a name is given, where that is one expression."""
    sources = sources_of(function.scope).get(node.value) if type(node) is cst.Name else None
    return sources[0] if sources is not None and len(sources) == 1 else node


def _owner(node: cst.BaseExpression) -> str | None:
    """Return ``model`` of ``model.parameters()``, also of its names and of a list of them."""
    if type(node) is cst.Call and dotted_name(node.func) == "list" and len(node.args) == 1:
        node = node.args[0].value
    if type(node) is not cst.Call or type(node.func) is not cst.Attribute:
        return None
    return dotted_name(node.func.value) if node.func.attr.value in _LISTS else None


def _follower(loop: cst.For, function: FunctionModel) -> str | None:
    """Return the model whose parameters a loop makes of those of another one, or of a list."""
    over = _value(loop.iter, function)
    if type(over) is cst.Call and dotted_name(over.func) == "zip":
        models = [_owner(_value(argument.value, function)) for argument in over.args]
        return _written(loop, models) if len(models) == _PAIR else None
    follower = _owner(over)
    if follower is None or type(loop.target) is not cst.Tuple:
        return None
    key, own = (dotted_name(element.value) for element in loop.target.elements)
    is_written = any(own in _changed(node) for node in walk(loop.body))
    others = (
        _owner_of_table(node.value, function)
        for node in walk(loop.body)
        if type(node) is cst.Subscript and key in _names(node)
    )
    is_known = function.module.matches(_HAS_STATISTICS)
    is_of_another = any(model != follower and (model or is_known) for model in others)
    return follower if is_written and is_of_another else None


def _owner_of_table(node: cst.BaseExpression, function: FunctionModel) -> str | None:
    """Return ``model`` of ``dict(model.named_parameters())``, also by its name."""
    made = _value(node, function)
    is_table = type(made) is cst.Call and dotted_name(made.func) == "dict" and made.args
    return _owner(made.args[0].value) if is_table else None  # type: ignore[attr-defined]


def _written(loop: cst.For, models: list[str | None]) -> str | None:
    """Return the model whose parameters are written in place, and made of the other's."""
    if type(loop.target) is not cst.Tuple or len(loop.target.elements) != _PAIR:
        return None
    names = [_tensor_name(element.value) for element in loop.target.elements]
    for node in walk(loop.body):
        for index, name in enumerate(names):
            if name in _changed(node) and names[1 - index] in _names(loop.body):
                return models[index]
    return None


def _names(node: cst.CSTNode) -> set[str]:
    return {each.value for each in walk(node) if type(each) is cst.Name}


def _changed(node: cst.CSTNode) -> set[str]:
    """Return the names of tensors that a node writes, as ``p`` of ``p.data.mul_(0.9)``."""
    written: list[cst.CSTNode | None] = []
    if type(node) is cst.Call and type(node.func) is cst.Attribute:
        method = node.func.attr.value
        if method.endswith("_") and method != "requires_grad_":
            written.append(node.func.value)
    elif type(node) is cst.AugAssign:
        written.append(node.target)
    written += [each for each, _ in assigned_pairs(node) if type(each) is cst.Attribute]
    names = (dotted_name(each) or "" for each in written)
    return {name.removesuffix(".data") for name in names if not name.endswith(".grad")}


def _tensor_name(target: cst.BaseExpression) -> str:
    """Return the name of a parameter, also where its own name comes with it: ``(n, p)``."""
    if type(target) is cst.Tuple and len(target.elements) == _PAIR:
        target = target.elements[1].value
    return dotted_name(target) or ""


def _names_of(follower: str, function: FunctionModel) -> set[str]:
    """Return the last words of what a model is called, here or where it is handed in."""
    found = {last_word(follower)}
    if follower in function.scope.parameters:
        found |= {
            last_word(dotted_name(value)) for _, value in expressions_given(function, follower)
        }
    return found - {""}


def _only_evaluates(model: str, module: ModuleModel) -> bool:
    """Return whether a model of this name is run in evaluation mode, and never in the other.

    Where a function does not say in which mode it runs the model, that is the one in which another
    function has left it.
    """
    ran: set[str] = set()
    left: set[str] = set()
    for function in module.functions():
        trace = list(_trace(function, model))
        mode = ""
        for step in (*trace, *trace):  # once more, as in the next iteration
            if step == "run":
                ran.add(mode)
            else:
                mode = step
        if trace:
            left.add(mode)
    if "train" in ran | left or "eval" not in ran | left:
        return False
    return "" not in ran or "eval" in left


def _trace(function: FunctionModel, model: str) -> Iterator[str]:
    """Yield the modes that a function puts a model in, and "run" where it is called, in order."""
    for node in function.scope.nodes:
        for target, value in assigned_pairs(node):
            if last_word(dotted_name(target)) == model and _ends_in_eval(value):
                yield "eval"
        if type(node) is not cst.Call:
            continue
        if last_word(dotted_name(node.func)) == model:
            yield "run"
        yield from _switched(node, model)
        if any(last_word(dotted_name(argument.value)) == model for argument in node.args):
            yield from _traced_in_callee(node, model, function)


def _traced_in_callee(call: cst.Call, model: str, function: FunctionModel) -> Iterator[str]:
    """Yield what the function of the file that is handed a model does with it."""
    scope = called_function(call, function)
    for name in scope.parameters if scope is not None else ():
        if last_word(dotted_name(argument_for(name, call, scope))) == model:  # type: ignore[arg-type]
            for node in scope.nodes:  # type: ignore[union-attr]
                if type(node) is cst.Call and dotted_name(node.func) == name:
                    yield "run"
                yield from _switched(node, name)


def _switched(node: cst.CSTNode, model: str) -> Iterator[str]:
    if type(node) is not cst.Call or type(node.func) is not cst.Attribute:
        return
    mode = node.func.attr.value
    if last_word(dotted_name(node.func.value)) == model and (
        mode == "eval" or (mode == "train" and not node.args)
    ):
        yield mode


def _ends_in_eval(value: cst.BaseExpression) -> bool:
    """Return whether this is ``copy.deepcopy(model).eval()`` or the like."""
    while type(value) is cst.Call and type(value.func) is cst.Attribute:
        if value.func.attr.value == "eval":
            return True
        value = value.func.value
    return False
