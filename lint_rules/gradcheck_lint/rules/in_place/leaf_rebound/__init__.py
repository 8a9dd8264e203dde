"""GCS102: a name that no longer holds its leaf."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.analyses.repeated_calls import repeats
from gradcheck_lint.model.knowledge import HARMLESS_BUILTINS, PARAMETER_CLASSES
from gradcheck_lint.model.syntax import (
    ASSIGNING,
    assigned_once,
    boolean,
    bound_names,
    dotted_name,
    keyword,
    pairs_of,
    small_statements,
    walk,
)
from gradcheck_lint.model.values import Kind
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.in_place.leaf_rebound.item_updates import item_updates
from gradcheck_lint.rules.in_place.leaf_rebound.lost_updates import lost_updates
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.values import Value
    from gradcheck_lint.rules.in_place.leaf_rebound.item_updates import ItemUpdate


class LeafRebound(Rule):
    """The name of a leaf is bound to a computed tensor, whose ``.grad`` stays None."""

    entry = catalogue.LEAF_REBOUND

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every update that rebinds a leaf in a loop, and every converted parameter."""
        yield from _converted(function)
        for update, lost in lost_updates(function):
            yield Violation(
                update,
                f"`{lost}` names another tensor from here on, which nobody reads: the "
                "parameter keeps its value",
                Severity.WARNING,
                f"change the parameter itself, under no_grad: `{lost} -= ...`, or "
                f"`{lost}.copy_(...)`",
            )
        if "grad" in function.scope.words:
            yield from _updated_on_self(function)
            yield from _updated_in_loops(function)
            yield from _put_back(function)
            yield from map(_replaced_item, item_updates(function))


def _replaced_item(update: ItemUpdate) -> Violation:
    return Violation(
        update.node,
        f"`{update.container}` held leaves and now holds computed tensors: in the next iteration "
        f"`{update.item}.grad` is None",
        Severity.WARNING,
        f"update them in place under no_grad: `{update.item} -= lr * {update.item}.grad`",
    )


def _updated_in_loops(function: FunctionModel) -> Iterator[Violation]:
    """Yield `w = w - lr * w.grad` in a loop that made no leaf of it."""
    for loop in function.loops():
        for node in walk(loop.node):
            if type(node) is not cst.Assign or len(node.targets) != 1:
                continue
            name = dotted_name(node.targets[0].target)
            if name is None or name.partition(".")[0] in loop.targets:
                continue
            if not _is_update(node.value, name, function):
                continue
            leaves = [
                value
                for value in function.bindings.get(name, ())
                if loop.identity not in value.loops
                and (value.kind is Kind.LEAF or _becomes_leaf(value, name, function))
            ]
            if not leaves:
                continue
            if _is_leaf_again(loop.node, name, function) or _ends_with(loop.node, node):
                continue
            if "." in name and _is_used_whole(loop.node, name.partition(".")[0]):
                continue
            yield Violation(
                node,
                f"`{name}` held a leaf and now holds a computed tensor: in the next iteration "
                f"`{name}.grad` is None",
                Severity.WARNING,
                f"update it in place under no_grad: `{name} -= lr * {name}.grad`",
                tuple((leaf.node, "the leaf") for leaf in leaves[:1] if leaf.node is not None),
            )


def _put_back(function: FunctionModel) -> Iterator[Violation]:
    """Yield `w = w - lr * w.grad` where a function that repeats puts the result into what it keeps.

    As in `state["w"] = w`: that `.grad` is read shows that it was a leaf before.
    """
    scope = function.scope
    updates = list(_updates_of_itself(function))
    if not updates or not repeats(function):
        return
    for update, name in updates:
        kept = [
            target
            for node in scope.nodes_of(cst.Assign)
            for each in node.targets
            for target, value in pairs_of(each.target, node.value)
            if type(target) is cst.Subscript and dotted_name(value) == name
        ]
        if kept and not _is_made_leaf(name, function):
            place = function.module.code(kept[0])
            yield Violation(
                update,
                f"`{name}` is a computed tensor from here on, and `{place}` holds it: the next "
                "time its `.grad` is None",
                Severity.WARNING,
                f"update it in place under no_grad: `{name} -= lr * {name}.grad`",
                ((kept[0], "put back here"),),
            )


def _is_made_leaf(name: str, function: FunctionModel) -> bool:
    return any(
        node.attr.value in _LEAF_WORDS and dotted_name(node.value) == name
        for node in function.scope.nodes_of(cst.Attribute)
    )


def _updates_of_itself(function: FunctionModel) -> Iterator[tuple[cst.Assign, str]]:
    """Yield each `w = w - lr * w.grad` with the name."""
    for node in function.scope.nodes_of(cst.Assign):
        if len(node.targets) == 1:
            target = node.targets[0].target
            if type(target) is cst.Name and _is_update(node.value, target.value, function):
                yield node, target.value


def _updated_on_self(function: FunctionModel) -> Iterator[Violation]:
    """Yield `self.w = self.w - lr * self.w.grad` where a loop comes to it again."""
    scope, first = function.scope, function.scope.first_parameter
    maker = function.module.scopes.method(scope.owner, "__init__")
    if maker is None or maker is scope or first != maker.first_parameter:
        return
    in_loops = {id(inner) for loop in function.loops() for inner in walk(loop.node)}
    for node in scope.nodes_of(cst.Assign, cst.AnnAssign):
        target, value = assigned_once(node)
        path = dotted_name(target)
        if path is None or value is None or path.rpartition(".")[0] != first:
            continue
        if not _is_update(value, path, function) or _is_leaf_again(scope.node, path, function):
            continue
        making = function.module.function(maker)
        leaves = making.bindings.get(path, frozenset())
        if not all(
            known.kind is Kind.LEAF or _becomes_leaf(known, path, making) for known in leaves
        ):
            continue
        if not leaves or _is_set_elsewhere(path, function):
            continue
        if id(node) in in_loops or repeats(function):
            yield Violation(
                node,
                f"`{path}` held a leaf and now holds a computed tensor: the next time "
                f"`{path}.grad` is None",
                Severity.WARNING,
                f"update it in place under no_grad: `{path} -= lr * {path}.grad`",
                tuple((leaf.node, "the leaf") for leaf in leaves if leaf.node is not None),
            )


def _is_set_elsewhere(path: str, function: FunctionModel) -> bool:
    """Tell whether another method makes a leaf of an attribute again, or gives it another value."""
    scope = function.scope
    attribute = path.rpartition(".")[2]
    for owner in function.module.scopes.lineage(scope.owner):
        for method in owner.methods.values():
            if method is scope or method.name.endswith("__init__") or attribute not in method.words:
                continue
            for node in method.nodes_of(cst.AssignTarget, cst.Attribute):
                if type(node) is cst.AssignTarget and attribute in (dotted_name(node.target) or ""):
                    return True
                if type(node) is cst.Attribute and node.attr.value in _LEAF_WORDS:
                    return True
    return False


_CONVERSIONS = frozenset({"cuda", "to", "float", "half", "double", "bfloat16", "type"}) | {
    *("abs", "clone", "exp", "expand", "flatten", "mul", "permute", "repeat", "reshape", "sigmoid"),
    *("softplus", "squeeze", "t", "transpose", "unsqueeze", "view"),
}


_DEFAULT_DTYPES = frozenset({"torch.float32", "torch.float"})
_OTHER_DTYPES = frozenset(
    {"double", "half", "bfloat16", "float16", "float64", "from_numpy", "np", "numpy"}
)


def _asks_for_default(conversion: cst.Call) -> bool:
    """Tell whether a conversion is one to float32, which leaves a float32 Parameter as it is."""
    assert type(conversion.func) is cst.Attribute
    if conversion.func.attr.value == "float":
        return True
    return len(conversion.args) == 1 and dotted_name(conversion.args[0].value) in _DEFAULT_DTYPES


def _may_be_default(parameter: cst.BaseExpression) -> bool:
    """Tell whether nothing says that a Parameter is made of anything else than float32."""
    names = (inner.value for inner in walk(parameter) if type(inner) is cst.Name)
    return _OTHER_DTYPES.isdisjoint(names)


def _becomes_leaf(value: Value, name: str, function: FunctionModel) -> bool:
    """Tell whether a tensor is made a leaf by a statement: ``w.requires_grad_()``."""
    if value.kind not in {Kind.PLAIN, Kind.UNKNOWN}:
        return False
    for node in function.scope.nodes_of(cst.Expr, cst.Assign):
        if type(node) is cst.Expr and type(node.value) is cst.Call:
            called = node.value
            wanted = [argument.value for argument in called.args]
            if dotted_name(called.func) == f"{name}.requires_grad_" and (
                not wanted or boolean(wanted[0]) is True
            ):
                return True
        elif (
            type(node) is cst.Assign
            and boolean(node.value) is True
            and any(dotted_name(each.target) == f"{name}.requires_grad" for each in node.targets)
        ):
            return True
    return False


def _is_update(node: cst.BaseExpression, name: str, function: FunctionModel) -> bool:
    """Tell whether the value is computed of the leaf and of its gradient."""
    if type(node) is cst.Call:
        last = node.func.attr.value if type(node.func) is cst.Attribute else ""
        imported = function.module.scopes.resolve_import(dotted_name(node.func) or "")
        is_torch = imported is not None and imported.rpartition(".")[0] == "torch"
        if last not in _UPDATING or (imported is not None and not is_torch):
            return False
    elif type(node) is not cst.BinaryOperation:
        return False
    named = {
        dotted_name(inner) for inner in walk(node) if isinstance(inner, (cst.Name, cst.Attribute))
    }
    return {name, f"{name}.grad"} <= named


_UPDATING = frozenset(
    {"add", "addcdiv", "addcmul", "clamp", "clip", "lerp", "maximum", "minimum", "sub", "subtract"}
)


def _is_leaf_again(loop: cst.CSTNode, name: str, function: FunctionModel) -> bool:
    """Tell whether the loop makes a leaf of it, binds it anew, or hands it to what may do so."""
    for node in walk(loop):
        if type(node) is cst.Attribute:
            if node.attr.value in _LEAF_WORDS and dotted_name(node.value) == name:
                return True
        elif isinstance(node, (cst.AnnAssign, cst.NamedExpr, cst.For)):
            if node is not loop and name in bound_names(node.target):
                return True
        elif type(node) is cst.Assign:
            targets = [target.target for target in node.targets]
            if any(name in bound_names(target) for target in targets) and not _is_update(
                node.value, name, function
            ):
                return True
        elif type(node) is cst.Expr and type(node.value) is cst.Call:
            called = node.value
            if type(called.func) is cst.Name and called.func.value not in HARMLESS_BUILTINS:
                handed = [argument.value for argument in called.args]
                if any(type(known) is cst.Name and known.value == name for known in handed):
                    return True
    return False


_LEAF_WORDS = frozenset({"requires_grad_", "requires_grad", "retain_grad"})


def _is_used_whole(loop: cst.CSTNode, owner: str) -> bool:
    """Tell whether the loop hands an object on or calls a method of it, which may change it."""
    for node in walk(loop):
        if type(node) is not cst.Call:
            continue
        if any(dotted_name(argument.value) == owner for argument in node.args):
            return True
        called = dotted_name(node.func) or ""
        if called.rpartition(".")[0] == owner or called == owner:
            return True
    return False


def _ends_with(loop: cst.CSTNode, update: cst.Assign) -> bool:
    """Tell whether the loop is left after an update."""
    for block in walk(loop):
        if not isinstance(block, cst.BaseSuite):
            continue
        small = list(small_statements(block))
        if any(part is update for part in small):
            return isinstance(small[-1], (cst.Break, cst.Return, cst.Raise))
    return False


def _converted(function: FunctionModel) -> Iterator[Violation]:
    """Yield `self.w = nn.Parameter(...) * 0.02` and the like: what is stored is no parameter."""
    owner, scopes = function.scope.owner, function.module.scopes
    if owner is None or not scopes.derives_from(owner, "torch.nn."):
        return
    first = function.scope.first_parameter
    for node in function.scope.small_statements:
        if type(node) not in ASSIGNING:
            continue
        target, value = assigned_once(node)
        if type(target) is not cst.Attribute or dotted_name(target.value) != first:
            continue
        assert value is not None
        operands: list[cst.BaseExpression] = []
        if type(value) is cst.BinaryOperation:
            operands = [value.left, value.right]
        elif (
            type(value) is cst.Call
            and type(value.func) is cst.Attribute
            and value.func.attr.value in _CONVERSIONS
            and not (_asks_for_default(value) and _may_be_default(value.func.value))
        ):
            operands = [value.func.value]
        for operand in operands:
            if type(operand) is not cst.Call:
                continue
            if scopes.resolve_import(dotted_name(operand.func) or "") in PARAMETER_CLASSES:
                yield Violation(
                    node,
                    f"`{first}.{target.attr.value}` is made of a Parameter and is none itself "
                    "(on a GPU, for a conversion): it is not registered"
                    + (
                        ", and `state_dict()` and `.to()` leave it out"
                        if boolean(keyword(operand, "requires_grad")) is False
                        else " and never trained"
                    ),
                    Severity.WARNING,
                    "compute and convert first, and wrap the result in nn.Parameter",
                )
