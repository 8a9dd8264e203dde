"""GCS307: layers and parameters that backward goes through, and that no optimizer is given."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.analyses.copies import unmoved
from gradcheck_lint.analyses.layers import kind_of
from gradcheck_lint.analyses.object_uses import parents_of, uses_of
from gradcheck_lint.analyses.slices import differentiated
from gradcheck_lint.model.knowledge import SAME_GRAPH_METHODS, TENSOR_METHODS
from gradcheck_lint.model.syntax import (
    boolean,
    dotted_name,
    keyword,
    last_word,
    plain_string,
)
from gradcheck_lint.rules._rule import Violation
from gradcheck_lint.rules.step_order.parameter_not_optimized.given import (
    given_to_optimizers,
    optimizers_of,
)
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel, ModuleModel
    from gradcheck_lint.model.scopes import ClassScope

__all__ = ["unowned"]

_STAYS: Final = re.compile(
    r"(?:^|_)(?:teacher|target|tgt|true|truth|oracle|fixed|random|frozen|ref|reference|old|rnd)"
)
"""How something is called that is not to be trained."""
_WHOLE: Final = re.compile(rb"getattr\(self|vars\(self|self\.__dict__|globals\(\)|locals\(\)")


def unowned(function: FunctionModel) -> Iterator[Violation]:
    """Yield the optimizers of a file beside what it trains through and gives to none of them.

    That is a new layer, or a parameter beside models, of a function or of an object that is no
    module itself. All that is done with it has to be in sight.
    """
    module = function.module
    if not module.mentions(b"backward") or module.matches(_WHOLE):
        return
    made = list(_made(function))
    optimizers = optimizers_of(module) if made else []
    if not optimizers:
        return
    given, is_known = given_to_optimizers(module).words, given_to_optimizers(module).is_known
    if not is_known:
        return
    for path, value, owner in made:
        word = last_word(path)
        if word in given or _STAYS.search(word) or _is_text(word, module):
            continue
        nodes = _trained_by(path, owner, function)
        if nodes is None:
            continue
        through = differentiated(module)
        backward = next((through[id(node)] for node in nodes if id(node) in through), None)
        if backward is None:
            continue
        what, fate = f"the parameters of `{path}`", "they get gradients and are never trained"
        if owner is False:
            what, fate = f"`{path}`", "it gets gradients and is never trained"
        optimizer = _nearest(optimizers, function)
        yield Violation(
            value if optimizer is None else optimizer,
            f"no optimizer is given {what}, which backward() goes through: {fate}",
            Severity.WARNING,
            f"give it to an optimizer as well, or freeze it: `{path}.requires_grad_(False)`",
            (
                (optimizers[0][0], "an optimizer") if optimizer is None else (value, "made here"),
                (backward, "gradients are computed here"),
            ),
        )


def _made(
    function: FunctionModel,
) -> Iterator[tuple[str, cst.BaseExpression, ClassScope | bool | None]]:
    """Yield the names that are given a new layer or parameter once; False for a parameter."""
    scope, module = function.scope, function.module
    found: dict[str, list[cst.BaseExpression]] = {}
    for target, value in scope.assignments:
        path = dotted_name(target)
        if path is not None and dotted_name(unmoved(value)) != path:
            found.setdefault(path, []).append(value)
    for path, values in found.items():
        root, _, attribute = path.partition(".")
        is_own = bool(attribute)
        if len(values) != 1 or "." in attribute or type(values[0]) is not cst.Call:
            continue
        if is_own and not _holds_plainly(root, function):
            continue
        kind = kind_of(unmoved(values[0]), function)
        if kind == "module":
            made = unmoved(values[0])
            name = dotted_name(made.func) if type(made) is cst.Call else None
            owner = module.scopes.classes.get(name or "")
            methods = () if owner is None else module.scopes.lineage(owner)
            if not any(
                each.words & {"requires_grad", "requires_grad_"}
                for known in methods
                for each in known.methods.values()
            ):
                yield path, values[0], owner
        elif boolean(keyword(values[0], "requires_grad")) is False:
            continue
        elif kind == "parameter" or (is_own and _is_leaf(values[0], function)):
            yield path, values[0], False


def _holds_plainly(root: str, function: FunctionModel) -> bool:
    """Return whether the object of a method is no module, and of a class that is all in sight."""
    owner = function.scope.owner
    if owner is None or root != function.scope.first_parameter:
        return False
    scopes = function.module.scopes
    if any(base not in {"object", "ABC", "abc.ABC"} for base in owner.bases):
        return False
    return not any(owner.name in other.bases for other in scopes.classes.values())


def _is_leaf(value: cst.Call, function: FunctionModel) -> bool:
    """Return whether this makes a tensor that is to get gradients."""
    node: cst.BaseExpression = value
    asked = False
    while type(node) is cst.Call:
        asked = asked or boolean(keyword(node, "requires_grad")) is True
        name = function.module.scopes.resolve_import(dotted_name(node.func) or "") or ""
        if name.startswith("torch."):
            return asked
        if type(node.func) is not cst.Attribute:
            return False
        asked = asked or node.func.attr.value == "requires_grad_"
        node = node.func.value
    return False


def _is_text(word: str, module: ModuleModel) -> bool:
    """Return whether an attribute may be read by its name as a text."""
    return module.mentions(b"getattr", b"attrgetter", b"get_submodule") and any(
        len(node.value) == len(word) + 2 and plain_string(node) == word
        for node in module.nodes_of(cst.SimpleString)
    )


def _nearest(
    optimizers: list[tuple[cst.Call, FunctionModel]], function: FunctionModel
) -> cst.Call | None:
    """Return the last optimizer of the same function, or else of the same class."""
    own = [node for node, maker in optimizers if maker.scope is function.scope]
    owner = function.scope.owner
    kin = [node for node, maker in optimizers if owner is not None and maker.scope.owner is owner]
    return own[-1] if own else kin[-1] if kin else None


def _trained_by(
    path: str, owner: ClassScope | bool | None, function: FunctionModel
) -> list[cst.CSTNode] | None:
    """Return where something is run or read; None where more may be done with it."""
    if not _is_in_sight(path, function):
        return None
    if isinstance(owner, bool):
        return _reads(path, function)
    methods = {
        name
        for known in function.module.scopes.lineage(owner)
        for name, scope in known.methods.items()
        if not scope.words & {"parameters", "named_parameters", "optim"}
    }
    found, modes = [], set()
    for use in uses_of(function, path):
        node = use.node
        is_method = (
            type(node) is cst.Call
            and type(node.func) is cst.Attribute
            and node.func.attr.value in methods
            and dotted_name(node.func.value) == use.path
        )
        modes.add(use.how)
        if use.how == "run" or is_method:
            found.append(node)
        elif use.how == "given" or (use.how == "returned" and "." in path):
            return None
    return None if "eval" in modes and "train" not in modes else found


def _is_in_sight(path: str, function: FunctionModel) -> bool:
    """Return whether nothing but the class itself names an attribute."""
    attribute, owner = path.partition(".")[2], function.scope.owner
    if not attribute or owner is None:
        return True
    return not any(
        attribute in other.words
        and other.owner is not owner
        and any(each.attr.value == attribute for each in other.nodes_of(cst.Attribute))
        for other in function.module.scopes.functions
    )


def _reads(path: str, function: FunctionModel) -> list[cst.CSTNode] | None:
    """Return where a parameter is calculated with; None where it is put or given elsewhere."""
    owner = function.scope.owner
    is_own = "." in path and owner is not None
    found: list[cst.CSTNode] = []
    for scope in owner.methods.values() if is_own and owner is not None else [function.scope]:
        word = path.partition(".")[2]
        name = f"{scope.first_parameter}.{word}" if is_own else path
        if not is_own and any(path in inner.words for inner in scope.nested.values()):
            return None
        parents = parents_of(function.module.function(scope))
        for node in scope.nodes_of(cst.Attribute) if is_own else scope.nodes_of(cst.Name):
            if dotted_name(node) != name or _is_bound(node, parents):
                continue
            if not _is_calculated_with(node, parents, function):
                return None
            found.append(node)
    return found


def _is_bound(node: cst.CSTNode, parents: dict[int, cst.CSTNode]) -> bool:
    parent = parents.get(id(node))
    while isinstance(parent, (cst.Element, cst.Tuple)):
        parent = parents.get(id(parent))
    return isinstance(parent, (cst.AssignTarget, cst.AnnAssign))


def _is_calculated_with(
    node: cst.CSTNode, parents: dict[int, cst.CSTNode], function: FunctionModel
) -> bool:
    parent = parents.get(id(node))
    while isinstance(parent, cst.Subscript) and parent.value is node:
        node, parent = parent, parents.get(id(parent))
    if type(parent) is cst.Attribute and parent.value is node:
        method = parent.attr.value
        return method in _CALCULATING or method in {"item", "detach", "shape", "device", "dtype"}
    if isinstance(parent, (cst.BinaryOperation, cst.UnaryOperation, cst.FormattedStringExpression)):
        return True
    call = parents.get(id(parent)) if type(parent) is cst.Arg else None
    if type(call) is not cst.Call:
        return False
    name = dotted_name(call.func) or ""
    resolved = function.module.scopes.resolve_import(name) or ""
    if resolved.startswith("torch."):
        return not any(word in resolved for word in ("optim", "autograd", "init", "utils"))
    is_method = type(call.func) is cst.Attribute and call.func.attr.value in _CALCULATING
    return is_method or name in {"zip", "enumerate", "sum", "len", "float", "print"}


_CALCULATING: Final = TENSOR_METHODS | SAME_GRAPH_METHODS | {"exp", "log", "t", "mT", "T"}
