"""GCS307: all layers of a model are given to an optimizer, and not a parameter beside them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.analyses.layers import kind_of
from gradcheck_lint.model.syntax import (
    boolean,
    dotted_name,
    keyword,
    last_word,
    plain_string,
    positional,
)
from gradcheck_lint.model.values import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel

__all__ = ["OwnParameter", "own_parameters"]


class OwnParameter(NamedTuple):
    """The one optimizer of a file, a parameter that it is not given, and where that is made."""

    optimizer: cst.Call
    name: str
    made: cst.BaseExpression


def own_parameters(function: FunctionModel) -> Iterator[OwnParameter]:
    """Yield the first parameter of a model that the optimizer of all its layers is not given.

    As of ``Adam([*net.body.parameters(), *net.head.parameters()])`` where ``net.scale`` is another
    one. Who trains some of several layers means to leave the rest.
    """
    module, scope = function.module, function.scope
    if "parameters" not in scope.words or module.mentions(b"add_param_group", b"param_groups"):
        return
    own = [node for node in scope.nodes_of(cst.Call) if module.makes_optimizer(node)]
    if len(own) != 1 or not positional(own[0]):
        return
    holder, listed = _given(own[0].args[0].value)
    kinds = {
        value.name
        for value in function.bindings.get(holder, frozenset())
        if value.kind is Kind.INSTANCE
    }
    if len(kinds) != 1 or sum(map(module.makes_optimizer, module.nodes_of(cst.Call))) != 1:
        return
    for name in kinds:
        left = _left_out(name, listed, function)
        if left is not None:
            yield OwnParameter(own[0], f"{holder}.{left[0]}", left[1])


def _given(parameters: cst.BaseExpression) -> tuple[str, set[str]]:
    """Return of which object an optimizer is given attributes, and which; "" where not of one."""
    paths = [
        dotted_name(part.func if type(part) is cst.Call else part) for part in _parts(parameters)
    ]
    own = {(path or "").removesuffix(".parameters").rpartition(".")[::2] for path in paths}
    holders = {holder for holder, _ in own}
    return (holders.pop() if len(holders) == 1 else "", {attribute for _, attribute in own})


def _parts(node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield what lists, groups and sums of parameters are made of."""
    if isinstance(node, (cst.List, cst.Tuple)):
        for element in node.elements:
            yield from _parts(element.value)
    elif type(node) is cst.Dict:
        for entry in node.elements:
            if type(entry) is cst.DictElement and _text(entry.key) == "params":
                yield from _parts(entry.value)
    elif type(node) is cst.BinaryOperation:
        yield from _parts(node.left)
        yield from _parts(node.right)
    elif type(node) is cst.Call and last_word(dotted_name(node.func)) in {"list", "chain"}:
        for argument in node.args:
            yield from _parts(argument.value)
    else:
        yield node


def _may_learn(value: cst.BaseExpression, function: FunctionModel) -> bool:
    """Return whether this may be a layer from elsewhere: an argument, or what a call makes."""
    if type(value) is cst.Name:
        return _LAYER.search(value.value) is not None
    name = dotted_name(value.func) if type(value) is cst.Call else None
    known = function.module.scopes.resolve_import(name or "") or ""
    return type(value) is cst.Call and not known.startswith("torch.") and name not in _BUILTINS


_LAYER: Final = re.compile(r"net|model|coder|layer|block|bone|module|head|body|critic|actor|policy")
_BUILTINS: Final = frozenset({"int", "float", "len", "max", "min", "list", "dict", "tuple", "str"})


def _text(key: cst.BaseExpression) -> str | None:
    return plain_string(key) if type(key) is cst.SimpleString else None


def _left_out(
    owner: str, listed: set[str], function: FunctionModel
) -> tuple[str, cst.BaseExpression] | None:
    """Return a parameter of a class all of whose layers are listed, and what makes it."""
    module = function.module
    maker = module.scopes.method(module.scopes.classes.get(owner), "__init__")
    if maker is None or module.may_freeze:
        return None
    inside = module.function(maker)
    kinds: dict[str, tuple[str | None, cst.BaseExpression]] = {}
    for target, value in maker.assignments:
        root, _, attribute = (dotted_name(target) or "").partition(".")
        if root == maker.first_parameter:
            kinds[attribute] = kind_of(value, inside), value
    layers = {name for name, (kind, _) in kinds.items() if kind not in {None, "parameter"}}
    if len(layers) < 2 or not layers <= listed:  # noqa: PLR2004 - a single one may be the head alone
        return None
    if any(kind is None and _may_learn(value, function) for kind, value in kinds.values()):
        return None
    for name, (kind, value) in kinds.items():
        if kind != "parameter" or type(value) is not cst.Call or name in listed:
            continue
        if boolean(keyword(value, "requires_grad")) is False:
            continue
        if not re.search(rf"\.{name}(?:\.(?:data|grad|\w+_\()|\s*[-+*/]=)".encode(), module.source):
            return name, value
    return None
