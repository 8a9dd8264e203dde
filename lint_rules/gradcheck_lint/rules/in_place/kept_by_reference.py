"""GCS111: what is kept for later is the memory of what it is to be compared with."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.analyses.object_uses import parents_of
from gradcheck_lint.model.name_sources import sources_of
from gradcheck_lint.model.syntax import (
    assigned_pairs,
    bound_names,
    dotted_name,
    last_word,
    walk,
)
from gradcheck_lint.model.values import Kind, all_are
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class KeptByReference(Rule):
    """A gradient, weights, a model or the state of an optimizer is kept without a copy."""

    entry = catalogue.KEPT_BY_REFERENCE

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield everything that is kept for later and changes with its original."""
        if "load_state_dict" in function.scope.words:
            yield from _shared_states(function)
        if "state" in function.scope.words:
            yield from _kept_in_state(function)
        if "parameters" in function.scope.words:
            yield from _own_references(function)
            yield from _compared_with_themselves(function)


def _shared_states(function: FunctionModel) -> Iterator[Violation]:
    """Yield ``optimizer.load_state_dict(other.state_dict())`` of two optimizers."""
    for node in function.scope.nodes_of(cst.Call):
        if len(node.args) != 1:
            continue
        into, source = _called_on(node, "load_state_dict"), node.args[0].value
        other = _called_on(source, "state_dict")
        if into is None or other is None or into == other:
            continue
        if not (_is_optimizer(into, function) and _is_optimizer(other, function)):
            continue
        is_beside = last_word(into) == last_word(other) and {".", "["} & set(other)
        is_likely = is_beside or f"{other}.step" in function.module.code(function.scope.node)
        yield Violation(
            node,
            f"`{into}` takes the tensors of `{other}`'s state without a copy: where both step, "
            "each writes the moments of the other",
            Severity.WARNING if is_likely else Severity.NOTE,
            f"load `copy.deepcopy({other}.state_dict())`",
        )


def _called_on(node: cst.BaseExpression, method: str) -> str | None:
    """Return ``x.y`` of ``x.y.method(...)``."""
    if type(node) is not cst.Call or type(node.func) is not cst.Attribute:
        return None
    return dotted_name(node.func.value) if node.func.attr.value == method else None


def _is_optimizer(name: str, function: FunctionModel) -> bool:
    values = function.bindings.get(name, frozenset())
    return all_are(values, Kind.OPTIMIZER) or _OPTIMIZER.search(last_word(name)) is not None


_OPTIMIZER: Final = re.compile(r"(?i)^optim|optimizer|^opt$|^opt_|_opt$")


def _kept_in_state(function: FunctionModel) -> Iterator[Violation]:
    """Yield the gradients and parameters that an optimizer's step keeps in its state."""
    owner = function.scope.owner
    if owner is None or not function.module.scopes.derives_from(owner, "torch.optim."):
        return
    for node in function.scope.nodes_of(cst.Assign, cst.AnnAssign):
        for target, value in assigned_pairs(node):
            if type(target) is not cst.Subscript:
                continue
            what = _aliased(value, function)
            if what is None or (what == "parameter" and function.module.matches(_REBINDS)):
                continue
            is_likely = what == "parameter" or function.module.matches(_ZEROES_IN_PLACE)
            yield Violation(
                node,
                f"`{function.module.text(value)}` is kept in the state without a copy: "
                + (
                    "it changes with the parameter"
                    if what == "parameter"
                    else "where gradients are zeroed in place, it is the next gradient by then"
                ),
                Severity.WARNING if is_likely else Severity.NOTE,
                f"keep `{function.module.text(value)}.clone()`",
            )


_REBINDS: Final = re.compile(rb"\.data\s*=(?!=)")
_ZEROES_IN_PLACE: Final = re.compile(rb"set_to_none\s*=\s*False|grad(?:\.data)?\.zero_\(")


_MOST_NAMES: Final = 4
"""How many names of one thing are followed. Chosen, as names may be given to one another."""


def _aliased(value: cst.BaseExpression, function: FunctionModel, depth: int = 0) -> str | None:
    """Return whether a value is a gradient or the data of a parameter itself, or neither."""
    if type(value) is cst.Name:
        sources = sources_of(function.scope).get(value.value) or []
        is_followed = depth < _MOST_NAMES
        kinds = {_aliased(each, function, depth + 1) for each in sources if is_followed}
        return kinds.pop() if len(kinds) == 1 else None
    if type(value) is cst.Call and type(value.func) is cst.Attribute and not value.args:
        is_same = value.func.attr.value == "detach"
        return _aliased(value.func.value, function, depth) if is_same else None
    if type(value) is cst.Attribute and value.attr.value == "data":
        is_named = "parameter" if type(value.value) is cst.Name else None
        return _aliased(value.value, function, depth) or is_named
    is_gradient = type(value) is cst.Attribute and value.attr.value == "grad"
    return "gradient" if is_gradient else None


def _own_references(function: FunctionModel) -> Iterator[Violation]:
    """Yield a reference model of an object that is, or may be, the one that it trains."""
    if function.module.mentions(b"disable_adapter"):
        return
    trained = {
        dotted_name(each.func.value)
        for made in function.scope.nodes_of(cst.Call)
        if function.module.makes_optimizer(made)
        for each in walk(made)
        if type(each) is cst.Call
        and type(each.func) is cst.Attribute
        and each.func.attr.value in {"parameters", "named_parameters"}
    }
    names: dict[str, str] = {}
    for node in function.scope.nodes_of(cst.Assign, cst.AnnAssign):
        for target, value in assigned_pairs(node):
            name, source = dotted_name(target) or "", dotted_name(value)
            if source is not None:
                names[name] = source
            if not trained or "." not in name or not _REFERENCE.search(last_word(name)):
                continue
            for way in _ways(value):
                model = dotted_name(way) or ""
                same = {model, names.get(model, model)} | {
                    each for each, given in names.items() if given == model
                }
                if same & trained and model and not _REFERENCE.search(last_word(model)):
                    yield Violation(
                        node,
                        f"`{name}` is `{model}` itself"
                        + ("" if way is value else " where nothing else is given")
                        + ", which the optimizer trains: what is compared with it moves with it",
                        Severity.WARNING,
                        f"make it of `copy.deepcopy({model})`",
                    )


def _compared_with_themselves(function: FunctionModel) -> Iterator[Violation]:
    """Yield the parameters that a model is pulled to, where they are the model's own."""
    if "zip" not in function.scope.words:
        return
    kept: dict[str, tuple[str, cst.CSTNode]] = {}
    bound: Counter[str] = Counter()
    owner = function.scope.owner
    methods = () if owner is None else owner.methods.values()
    scopes = dict.fromkeys((*methods, function.scope))
    pairs = (
        (scope, node, *pair)
        for scope in scopes
        for node in scope.nodes_of(cst.Assign, cst.AnnAssign)
        for pair in assigned_pairs(node)
    )
    for scope, node, target, value in pairs:
        model, name = _listed_parameters(value), dotted_name(target)
        bound.update(bound_names(target))
        if name is not None and ("." in name or scope is function.scope):
            kept.pop(name, None)
            if model is not None:
                kept[name] = model, node
    parents = parents_of(function) if kept else {}
    for loop in function.scope.nodes_of(cst.For, cst.CompFor) if kept else ():
        model, name = _pairs_of(loop.iter, kept)
        names = [*bound_names(loop.target)]
        if model is None or name is None or bound[model] > 1 or len(names) != len(("its", "kept")):
            continue
        body = loop.body if type(loop) is cst.For else parents[id(loop)]
        if any(_is_difference(each, set(names)) for each in walk(body)):
            yield Violation(
                kept[name][1],
                f"`{name}` holds the parameters of `{model}` themselves, with which they are "
                "compared: each difference is zero, whatever a step changes",
                Severity.WARNING,
                f"keep copies: `[p.detach().clone() for p in {model}.parameters()]`",
            )


def _listed_parameters(value: cst.BaseExpression) -> str | None:
    """Return whose parameters a list holds: ``list(m.parameters())``, ``[p for p in ...]``."""
    if type(value) is cst.Call and dotted_name(value.func) in {"list", "tuple"}:
        return _called_on(value.args[0].value, "parameters") if len(value.args) == 1 else None
    if type(value) is not cst.ListComp or value.for_in.ifs or value.for_in.inner_for_in:
        return None
    item = value.elt
    while True:
        if type(item) is cst.Attribute and item.attr.value == "data":
            item = item.value
        elif type(item) is cst.Call and type(item.func) is cst.Attribute and not item.args:
            if item.func.attr.value != "detach":
                return None
            item = item.func.value
        else:
            break
    is_itself = dotted_name(item) in [*bound_names(value.for_in.target)]
    return _called_on(value.for_in.iter, "parameters") if is_itself else None


def _pairs_of(
    node: cst.BaseExpression, kept: dict[str, tuple[str, cst.CSTNode]]
) -> tuple[str | None, str | None]:
    """Return the model and the list of ``zip(model.parameters(), list)``, if they are the same."""
    given = [each.value for each in node.args] if type(node) is cst.Call else []
    if dotted_name(getattr(node, "func", None)) != "zip":
        return None, None
    models = {each for value in given if (each := _called_on(value, "parameters")) is not None}
    for value in given:
        name = dotted_name(value)
        if name in kept and kept[name][0] in models:
            return kept[name][0], name
    return None, None


def _is_difference(node: cst.CSTNode, names: set[str]) -> bool:
    """Return whether one of two names is subtracted from the other."""
    if type(node) is not cst.BinaryOperation or type(node.operator) is not cst.Subtract:
        return False
    sides = [(dotted_name(side) or "").partition(".")[0] for side in (node.left, node.right)]
    return set(sides) == names


_REFERENCE: Final = re.compile(r"(?i)(?:^|_)(?:ref|reference|teacher|frozen|ema|old|slow)(?:_|$)")


def _ways(value: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield what a value may be: both of ``a if test else b`` and of ``a or b``."""
    if type(value) is cst.IfExp:
        yield from (value.body, value.orelse)
    elif type(value) is cst.BooleanOperation and type(value.operator) is cst.Or:
        yield from (value.left, value.right)
    else:
        yield value
