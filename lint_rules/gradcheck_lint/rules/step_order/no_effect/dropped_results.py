"""Find calls that return something new, whose result is dropped and which change nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.analyses.object_uses import parents_of
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.model.syntax import boolean, dotted_name, keyword, walk
from gradcheck_lint.model.values import Kind

if TYPE_CHECKING:
    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import FunctionScope

__all__ = ["DroppedResult", "dropped_result"]

_TENSORS: Final = frozenset(
    (
        *("clamp", "clamp_max", "clamp_min", "clip", "detach", "masked_fill", "nan_to_num"),
        "renorm",
    )
)
"""Methods that tensors alone have, which return a new tensor and change none."""

_OF_A_GRADIENT: Final = _TENSORS | {
    *("add", "addcdiv", "addcmul", "clone", "copysign", "cpu", "cuda", "div", "divide", "double"),
    *("float", "half", "index_fill", "lerp", "mul", "multiply", "neg", "pow", "sign", "sqrt"),
    *("sub", "subtract", "to", "where"),
}
"""Those that other things have too: of ``.grad`` and ``.data`` they are a tensor's."""

_FUNCTIONS: Final = frozenset(
    f"torch.{name}"
    for name in ("add", "clamp", "clip", "lerp", "masked_fill", "mul", "nan_to_num", "sub", "where")
)

_OTHERS: Final = frozenset(
    {
        f"torch.{name}"
        for name in (
            *("abs", "addcdiv", "addcmul", "cat", "concat", "div", "divide", "dropout", "exp"),
            *("flatten", "flip", "index_add", "index_copy", "index_fill", "index_put", "log"),
            *("masked_scatter", "multiply", "neg", "permute", "pow", "relu", "reshape", "roll"),
            *("round", "scatter", "scatter_add", "sigmoid", "sign", "softmax", "sqrt", "square"),
            *("squeeze", "stack", "subtract", "tanh", "transpose", "tril", "triu", "unsqueeze"),
        )
    }
    | {
        f"torch.nn.functional.{name}"
        for name in (
            *("dropout", "elu", "gelu", "leaky_relu", "log_softmax", "normalize", "pad", "relu"),
            *("relu6", "selu", "sigmoid", "silu", "softmax", "softplus", "tanh"),
        )
    }
)
"""Functions that people call for nothing as well: to warm up, to measure, to see what raises."""

_WRITTEN_IN_PLACE: Final = frozenset(
    (
        *(
            "abs",
            "add",
            "addcdiv",
            "addcmul",
            "clamp",
            "clamp_max",
            "clamp_min",
            "clip",
            "copysign",
        ),
        *("div", "divide", "dropout", "elu", "exp", "index_add", "index_copy", "index_fill"),
        *("index_put", "leaky_relu", "lerp", "log", "masked_fill", "masked_scatter", "mul"),
        *("multiply", "nan_to_num", "neg", "pow", "relu", "renorm", "round", "scatter"),
        *("scatter_add", "selu", "sigmoid", "sign", "sqrt", "square", "squeeze", "sub", "subtract"),
        *("tanh", "transpose", "tril", "triu", "unsqueeze"),
    )
)
"""What there is with an underscore, in ``torch`` or as a method of a tensor."""

_FOR_NOTHING: Final = re.compile(
    r"(?i)test|bench|profil|warm|measure|timing|timeit|latency|speed|check|probe|support|available"
)
_CLOCKS: Final = frozenset(
    {"elapsed_time", "monotonic", "perf_counter", "synchronize", "time", "timeit"}
)
_EXPECTING: Final = re.compile(r"(?i)raises|warns|catch_warnings|suppress|timer|profil")


class DroppedResult(NamedTuple):
    """What is called, what it was expected to change, what to do instead, and what it makes."""

    called: str
    target: str
    hint: str
    made: str = "tensor"


def dropped_result(call: cst.Call, function: FunctionModel) -> DroppedResult | None:
    """Return what a statement calls that returns something new, None for all else."""
    if keyword(call, "out") is not None or "raises" in function.scope.words:
        return None
    name = dotted_name(call.func)
    resolved = function.module.scopes.resolve_import(name) if name is not None else None
    is_meant = resolved in _FUNCTIONS and not _is_tried(call, function)
    if is_meant or (resolved in _OTHERS and _counts(call, function)):
        assert name is not None
        method = name.rpartition(".")[2]
        target = function.module.code(call.args[0].value) if call.args else "x"
    elif type(call.func) is cst.Attribute and _is_dropped_method(call, call.func, function):
        method = call.func.attr.value
        target = function.module.code(call.func.value)
    elif (made := _made_from(call, function)) is not None:
        return DroppedResult(
            "from_pretrained",
            made,
            f"keep what it makes: `{made} = {made}.from_pretrained(...)`",
            "module",
        )
    else:
        applied = _applied(call, function)
        if applied is None or not call.args or not _counts(call, function):
            return None
        target = function.module.code(call.args[0].value)
        hint = f"go on with what it returns: `{target} = {applied}.apply(...)`"
        return DroppedResult(f"{applied}.apply", target, hint)
    hint = f"use `{method}_`, which writes in place, or keep the result"
    if method == "detach":
        hint = "use `detach_()`, which writes in place, or keep the result"
    elif method not in _WRITTEN_IN_PLACE and name is not None and resolved is not None:
        hint = f"keep the result: `{target} = {name}(...)`"
    return DroppedResult(method, target, hint)


def _counts(call: cst.Call, function: FunctionModel) -> bool:
    """Return whether a call is likely meant to change something: none of a trial or a warm-up."""
    scope, inplace = function.scope, keyword(call, "inplace")
    if isinstance(scope.node, cst.Module) or _FOR_NOTHING.search(scope.name):
        return False
    if not _CLOCKS.isdisjoint(scope.words):
        return False
    if (inplace is not None and boolean(inplace) is not False) or len(call.args) > _MOST_ARGUMENTS:
        return False
    return not _is_tried(call, function)


def _is_tried(call: cst.Call, function: FunctionModel) -> bool:
    return any(map(_is_trial, _around(call, function)))


_MOST_ARGUMENTS: Final = 6
"""How many arguments a call has whose last one may be ``inplace``, without its name."""


def _around(node: cst.CSTNode, function: FunctionModel) -> list[cst.CSTNode]:
    """Return the statements that a node lies in."""
    parents, found = parents_of(function), [node]
    while (around := parents.get(id(found[-1]))) is not None:
        found.append(around)
    return found[1:]


def _is_trial(node: cst.CSTNode) -> bool:
    """Return whether a statement runs what is in it to see what it does, or how long it takes."""
    if type(node) is cst.With:
        names = [each for item in node.items for each in walk(item) if type(each) is cst.Name]
        return any(_EXPECTING.search(name.value) for name in names)
    if type(node) is cst.For:
        is_counted = type(node.iter) is cst.Call and dotted_name(node.iter.func) == "range"
        return is_counted and all(_is_of_no_name(node.target, each) for each in walk(node.body))
    return type(node) is cst.Try or type(node) is cst.TryStar


def _is_of_no_name(target: cst.BaseAssignTargetExpression, node: cst.CSTNode) -> bool:
    """Return whether a node of a loop's body is not what the loop counts with."""
    return type(node) is not cst.Name or node.value != dotted_name(target)


def _made_from(call: cst.Call, function: FunctionModel) -> str | None:
    """Return the object whose class makes another one, as ``self.embedding.from_pretrained()``."""
    if type(call.func) is not cst.Attribute or call.func.attr.value != "from_pretrained":
        return None
    path = dotted_name(call.func.value)
    # A class is called so to fetch what it needs, once and for all.
    if path is None or not call.args or path.rpartition(".")[2][:1].isupper():
        return None
    may_be_own = _may_be_own(path, "from_pretrained", function) or not _counts(call, function)
    return None if may_be_own else path


def _applied(call: cst.Call, function: FunctionModel) -> str | None:
    """Return the Function of the file whose ``apply`` is called, if that changes nothing."""
    owner, _, method = (dotted_name(call.func) or "").rpartition(".")
    scopes = function.module.scopes
    known = scopes.classes.get(owner) if method == "apply" else None
    if known is None or not scopes.derives_from(known, "torch.autograd.Function"):
        return None
    forward, setup = scopes.method(known, "forward"), known.methods.get("setup_context")
    if forward is None or not all(_only_computes(each) for each in (forward, setup) if each):
        return None
    return owner


def _only_computes(scope: FunctionScope) -> bool:
    """Return whether a method of a Function does nothing but compute, and save on its context."""
    if Part.WRITE in scope.parts or "mark_dirty" in scope.words:
        return False
    first = scope.first_parameter
    for node in scope.nodes_of(cst.Expr, cst.Global, cst.Nonlocal):
        if type(node) is not cst.Expr:
            return False
        called = dotted_name(node.value.func) if type(node.value) is cst.Call else None
        if type(node.value) is cst.Call and (called or "").partition(".")[0] != first:
            return False
    written = (dotted_name(target) or "" for target, _ in scope.assignments)
    return all("." not in name or name.partition(".")[0] == first for name in written)


def _is_dropped_method(call: cst.Call, method: cst.Attribute, function: FunctionModel) -> bool:
    owner, name = method.value, method.attr.value
    if type(owner) is cst.Attribute and owner.attr.value in {"grad", "data"}:
        return name in _OF_A_GRADIENT
    path = dotted_name(owner)
    if name not in _TENSORS or path is None or _may_be_own(path, name, function):
        return False
    if name != "detach":
        # A tensor's takes a limit, a mask or a number; what takes nothing is a method of its owner.
        return bool(call.args)
    # Other things can be detached as well: a process, a stream, a subscriber.
    tensors = {Kind.HISTORY, Kind.LEAF, Kind.LEAF_VIEW, Kind.GRADIENT, Kind.PLAIN}
    return any(value.kind in tensors for value in function.bindings.get(path, ()))


def _may_be_own(path: str, method: str, function: FunctionModel) -> bool:
    """Return whether a method may be one of the program's, or of a package: `np.clip(...)`."""
    scope, scopes = function.scope, function.module.scopes
    return (
        (scope.owner is not None and path == scope.first_parameter)
        or scopes.resolve_import(path) is not None
        or any(method in each.methods for each in scopes.classes.values())
    )
