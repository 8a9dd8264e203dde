"""GCS307: parts of a model that no optimizer is given, of one whose parts are given one by one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.analyses.callers import expressions_given
from gradcheck_lint.analyses.layers import kind_of
from gradcheck_lint.analyses.object_uses import parents_of
from gradcheck_lint.analyses.slices import differentiated, values_of
from gradcheck_lint.model.syntax import (
    boolean,
    dotted_name,
    keyword,
    last_word,
    plain_string,
    walk,
)
from gradcheck_lint.model.values import Kind
from gradcheck_lint.rules._rule import Violation
from gradcheck_lint.rules.step_order.parameter_not_optimized.given import (
    given_to_optimizers,
    optimizers_of,
)
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel, ModuleModel
    from gradcheck_lint.model.scopes import ClassScope, FunctionScope

__all__ = ["unlisted_parts"]


class _Part(NamedTuple):
    """An attribute of a model with something to train, and what makes it."""

    kind: str
    value: cst.BaseExpression


def unlisted_parts(function: FunctionModel) -> Iterator[Violation]:
    """Yield an optimizer that is given most parts of a model, and not one that comes after those.

    What comes before all that is trained may be meant to stay, as a backbone is; so may most of a
    model, of which a head or a prompt is trained alone.
    """
    module = function.module
    own = [node for node, maker in optimizers_of(module) if maker.scope is function.scope]
    if not own or function.scope.linked or not module.mentions(b"backward"):
        return
    given = given_to_optimizers(module)
    for root, owner in _models(module):
        parts = _parts(owner, module)
        names = _given_by_name(owner, root, parts, module)
        if names is None:
            continue
        left = {name: part for name, part in parts.items() if name not in given.words | names}
        listed = parts.keys() - left.keys()
        layers = {name: part for name, part in left.items() if part.kind == "module"}
        if len(layers) > len(listed):
            continue
        if not layers and (len(listed) < _SEVERAL or _has_other_layers(owner, parts, module)):
            continue  # a head alone is trained, or what somebody else has made is not
        for name, part in (layers or left).items():
            if _is_seen_to(name, parts, owner, module):
                continue
            through = _trained_through(name, part, listed, owner, module)
            if through is None:
                continue
            holder = root if not root.startswith("self.") or len(root) > len("self.") else "self"
            yield Violation(
                own[-1],
                f"an optimizer is given other parts of the model, and not `{holder}.{name}`, which "
                "backward() goes through: it gets gradients and is never trained",
                Severity.WARNING,
                f"give it `{holder}.{name}` as well, or all of the model's `parameters()`",
                ((part.value, "made here"), (through, "gradients are computed here")),
            )
            return


def _models(module: ModuleModel) -> Iterator[tuple[str, ClassScope]]:
    """Yield the models of which an optimizer is given a part by name, and their classes."""
    seen: set[int] = set()
    for call, function in given_to_optimizers(module).listings:
        assert type(call.func) is cst.Attribute
        path = dotted_name(call.func.value) or ""
        for root in (path.rpartition(".")[0], path):
            owner = _class_of(root, function) if root else None
            if owner is None or id(owner) in seen:
                continue
            if module.scopes.derives_from(owner, "torch.nn"):
                seen.add(id(owner))
                yield root, owner


def _class_of(path: str, function: FunctionModel) -> ClassScope | None:
    """Return the class of the file that a name, or an attribute of self, holds an object of."""
    scope, module = function.scope, function.module
    root, _, attribute = path.partition(".")
    if scope.owner is not None and root == scope.first_parameter and not attribute:
        return scope.owner
    values = function.bindings.get(path, frozenset())
    if not values and scope.owner is not None and root == scope.first_parameter:
        values = module.class_attribute(scope.owner.name, attribute)
    names = {value.name if value.kind is Kind.INSTANCE else "" for value in values}
    return module.scopes.classes.get(names.pop()) if len(names) == 1 else None


def _parts(owner: ClassScope, module: ModuleModel) -> dict[str, _Part]:
    """Return the layers and parameters that a class makes once, by their attributes."""
    found: dict[str, _Part] = {}
    for known in module.scopes.lineage(owner):
        maker = known.methods.get("__init__")
        inside = None if maker is None else module.function(maker)
        for target, value in maker.assignments if maker is not None else ():
            root, _, attribute = (dotted_name(target) or "").partition(".")
            if maker is None or inside is None or root != maker.first_parameter or not attribute:
                continue
            kind = kind_of(value, inside)
            is_frozen = type(value) is cst.Call and (
                boolean(keyword(value, "requires_grad")) is False
            )
            if kind in {"module", "parameter"} and not is_frozen:
                found[attribute] = _Part(kind or "", value)
    return found


_SEVERAL: Final = 2
_LAYER: Final = re.compile(r"net|model|coder|layer|block|bone|module|head|body|critic|actor|policy")
_BUILTINS: Final = frozenset({"int", "float", "len", "max", "min", "list", "dict", "tuple", "str"})


def _has_other_layers(owner: ClassScope, parts: dict[str, _Part], module: ModuleModel) -> bool:
    """Return whether a model may have layers from elsewhere: arguments, or what a call makes."""
    maker = module.scopes.method(owner, "__init__")
    for target, value in maker.assignments if maker is not None else ():
        root, _, attribute = (dotted_name(target) or "").partition(".")
        if maker is None or root != maker.first_parameter or attribute in parts:
            continue
        if type(value) is cst.Name and _LAYER.search(value.value):
            return True
        name = dotted_name(value.func) if type(value) is cst.Call else None
        known = module.scopes.resolve_import(name or "") or ""
        is_call = type(value) is cst.Call and name not in _BUILTINS
        if is_call and not known.startswith("torch."):
            return True
    return False


def _given_by_name(
    owner: ClassScope, root: str, parts: dict[str, _Part], module: ModuleModel
) -> frozenset[str] | None:
    """Return the parts that are chosen by the names of parameters; None if all may be given."""
    found: set[str] = set()
    for call, function in given_to_optimizers(module).listings:
        assert type(call.func) is cst.Attribute
        path = dotted_name(call.func.value)
        if path is None:
            return None
        if path != root and last_word(path) in parts and "." in path:
            continue
        known = _class_of(path, function)
        if known is not None and known is not owner and not _may_hold(known, owner, module):
            continue
        if known is None and _is_layer(path, function):
            continue
        texts = _texts_tested(call, function)
        chosen = {part for part in parts for text in texts if text.split(".")[0] in {part, ""}}
        if not texts or not all(
            any(text.split(".")[0] == part for part in parts) for text in texts
        ):
            return None
        found |= chosen
    return frozenset(found)


def _may_hold(known: ClassScope, owner: ClassScope, module: ModuleModel) -> bool:
    """Return whether an object of one class may have one of another among its parts."""
    words = {word for each in known.methods.values() for word in each.words}
    maker = module.scopes.method(known, "__init__")
    return owner.name in words or (maker is not None and len(maker.parameters) > 1)


def _is_layer(path: str, function: FunctionModel) -> bool:
    """Return whether a name holds a layer of torch, made in the function."""
    values = function.bindings.get(path, frozenset())
    return bool(values) and all(value.kind is Kind.MODULE for value in values)


def _texts_tested(call: cst.Call, function: FunctionModel) -> list[str]:
    """Return what the names of parameters are to begin with, or to have, to be given."""
    parents = parents_of(function)
    above = parents.get(id(call))
    if type(above) is not cst.CompFor:
        return []
    found: list[str] = []
    for each in above.ifs:
        if any(type(node) in {cst.Not, cst.NotIn, cst.NotEqual} for node in walk(each)):
            return []
        texts = [plain_string(node) for node in walk(each) if type(node) is cst.SimpleString]
        if not texts:
            return []
        found += [text or "" for text in texts]
    return found


def _is_seen_to(name: str, parts: dict[str, _Part], owner: ClassScope, module: ModuleModel) -> bool:
    """Return whether a part may be frozen, loaded, or changed by hand."""
    if re.search(
        rf"\.{name}\.(?:\w+\.)*(?:data\b|grad\b|eval\b|load_state_dict)"
        rf"|\.{name}\s*[-+*/]=".encode(),
        module.source,
    ):
        return True
    for scope in module.scopes.functions:
        if scope.words.isdisjoint({"requires_grad", "requires_grad_"}):
            continue
        is_other = scope.owner is not None and not any(
            scope.owner is known for known in module.scopes.lineage(owner)
        )
        if name in scope.words and (not is_other or _is_named_on_other(name, scope)):
            return True
        if is_other and not scope.parameters - {scope.first_parameter}:
            continue  # freezes its own
        function = module.function(scope)
        for call in scope.nodes_of(cst.Call):
            if type(call.func) is not cst.Attribute or call.func.attr.value not in _LISTS:
                continue
            path = dotted_name(call.func.value)
            if path is None or (last_word(path) not in parts and _may_be(path, parts, function)):
                return True
    return False


def _is_named_on_other(name: str, scope: FunctionScope) -> bool:
    """Return whether a method names an attribute of something else than of its own object."""
    return any(
        node.attr.value == name and dotted_name(node.value) != scope.first_parameter
        for node in scope.nodes_of(cst.Attribute)
    )


_LISTS: Final = frozenset(
    {"parameters", "named_parameters", "modules", "children", "requires_grad_"}
)


def _may_be(path: str, parts: dict[str, _Part], function: FunctionModel, depth: int = 0) -> bool:
    """Return whether a name may hold the whole of a model whose parts are known, or any part."""
    given = list(values_of(path, function.scope))
    if path in function.scope.parameters:
        given += [value for _, value in expressions_given(function, path)]
    words = {node.value for value in given for node in walk(value) if type(node) is cst.Name}
    if not given or not words.isdisjoint(parts):
        return not given
    return depth > 1 or any(
        _may_be(word, parts, function, depth + 1) for word in words - {"parameters", "modules"}
    )


def _trained_through(
    name: str,
    part: _Part,
    listed: frozenset[str] | set[str],
    owner: ClassScope,
    module: ModuleModel,
) -> cst.CSTNode | None:
    """Return a backward that goes through a part after another one that is trained."""
    through = differentiated(module)
    for scope in module.scopes.functions:
        if name not in scope.words or scope.name.endswith("__init__"):
            continue
        inside = module.function(scope)
        own = (scope.first_parameter or "") if scope.owner is not None else ""
        if any(scope.owner is known for known in module.scopes.lineage(owner)):
            own = ""
        for node in scope.nodes_of(cst.Call, cst.Attribute):
            path = dotted_name(node.func if type(node) is cst.Call else node) or ""
            holder, _, attribute = path.rpartition(".")
            if attribute != name or not holder or holder == own or id(node) not in through:
                continue
            if part.kind == "parameter":
                return through[id(node)]
            if type(node) is cst.Call and _comes_of(node, listed, inside):
                return through[id(node)]
    return None


def _comes_of(call: cst.Call, listed: frozenset[str] | set[str], function: FunctionModel) -> bool:
    """Return whether what a layer is given may be computed by one of these parts."""
    waiting: list[tuple[cst.CSTNode, FunctionModel]] = [
        (each.value, function) for each in call.args
    ]
    seen: set[tuple[int, str]] = set()
    while waiting:
        expression, place = waiting.pop()
        for node in walk(expression):
            path = dotted_name(node)
            if path is None:
                continue
            if last_word(path) in listed and "." in path:
                return True
            root, _, method = path.partition(".")
            owner = place.scope.owner
            called = owner.methods.get(method) if owner and root == "self" else None
            key = (id(place.scope), path)
            if key in seen:
                continue
            seen.add(key)
            if called is not None and called.name.rpartition(".")[2] != "__init__":
                waiting.append((called.node, place.module.function(called)))
            waiting += [(value, place) for value in values_of(path, place.scope)]
    return False
