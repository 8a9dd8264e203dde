"""Find products of parameters that begin at zero, each of which keeps the other one there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.model.knowledge import PARAMETER_CLASSES
from gradcheck_lint.model.syntax import (
    boolean,
    dotted_name,
    integer,
    keyword,
    last_word,
    plain_string,
    positional,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gradcheck_lint.model.module import FunctionModel, ModuleModel
    from gradcheck_lint.model.scopes import ClassScope

__all__ = ["ZeroProduct", "zero_products"]


class ZeroProduct(NamedTuple):
    """Two parameters of a module that begin at zero, where they are made, and their product."""

    first: str
    second: str
    made: cst.CSTNode
    other: cst.CSTNode
    product: cst.CSTNode


def zero_products(function: FunctionModel) -> Iterator[ZeroProduct]:
    """Yield the products of two parameters that begin at zero and that nothing else names.

    The gradient of each factor is the other one times something, and so zero for ever.
    """
    scope, module = function.scope, function.module
    owner, own = scope.owner, scope.first_parameter
    if owner is None or own is None or not module.mentions(b"zeros"):
        return
    zeros = _zeros(owner, module)
    if len(zeros) < 2:  # noqa: PLR2004 - two factors
        return
    reader = _Reader(function, own, zeros)
    told: set[frozenset[str]] = set()
    for node in scope.nodes_of(cst.BinaryOperation, cst.Call):
        factors = [name for name in reader.factors(node) if name in zeros]
        pair = frozenset(factors)
        if len(pair) != 2 or len(factors) != 2 or pair in told:  # noqa: PLR2004 - as above
            continue
        told.add(pair)
        first, second = factors
        if all(_named(name, owner, module) == zeros[name].mentions + 1 for name in factors):
            yield ZeroProduct(first, second, zeros[first].made, zeros[second].made, node)


class _Zero(NamedTuple):
    """Where a parameter or layer is made that begins at zero; how often its class names it there.

    ``is_layer`` tells that it is called.
    """

    made: cst.CSTNode
    mentions: int
    is_layer: bool


def _zeros(owner: ClassScope, module: ModuleModel) -> Mapping[str, _Zero]:
    """Return the attributes of a module that are parameters of zeros, or layers without a bias."""
    key = ("zeros", id(owner))
    if key not in module.memo:
        found: dict[str, _Zero] = {}
        if module.scopes.derives_from(owner, "torch.nn."):
            set_to_zero = _set_to_zero(owner, module)
            for method in owner.methods.values():
                own = f"{method.first_parameter}."
                for target, value in method.assignments:
                    name = dotted_name(target) or ""
                    if not name.startswith(own) or name.count(".") != 1:
                        continue
                    attribute, set_later = last_word(name), set_to_zero.count(last_word(name))
                    made = _made(value, module)
                    if made == "zeros" or (made is not None and set_later):
                        found[attribute] = _Zero(value, 1 + set_later, made == "layer")
        module.memo[key] = found
    zeros: Mapping[str, _Zero] = module.memo[key]
    return zeros


def _made(value: cst.BaseExpression, module: ModuleModel) -> str | None:
    """Return what this makes: a parameter of zeros, another one, or a layer without a bias."""
    if type(value) is not cst.Call:
        return None
    name = module.scopes.resolve_import(dotted_name(value.func) or "") or ""
    if name == "torch.nn.Linear" and boolean(keyword(value, "bias")) is False:
        return "layer"
    if name not in PARAMETER_CLASSES:
        return None
    given = positional(value)
    inner = given[0] if given else keyword(value, "data")
    filled = dotted_name(inner.func) if type(inner) is cst.Call else None
    is_zero = module.scopes.resolve_import(filled or "") in {"torch.zeros", "torch.zeros_like"}
    return "zeros" if is_zero else "parameter"


def _set_to_zero(owner: ClassScope, module: ModuleModel) -> list[str]:
    """Return the attributes that a class sets to zero by ``nn.init``, or their weights."""
    found: list[str] = []
    for method in owner.methods.values():
        for call in method.nodes_of(cst.Call):
            name = module.scopes.resolve_import(dotted_name(call.func) or "") or ""
            given = positional(call)
            if not name.startswith("torch.nn.init.") or not given:
                continue
            is_zero = name.endswith(".zeros_") or (
                name.endswith(".constant_") and len(given) > 1 and integer(given[1]) == 0
            )
            place = dotted_name(given[0]) or ""
            if is_zero and place.startswith(f"{method.first_parameter}."):
                found.append(last_word(place.removesuffix(".weight")))
    return found


def _named(name: str, owner: ClassScope, module: ModuleModel) -> int:
    """Return how often a file names an attribute; another class's of the same name is another."""
    strings = module.nodes_of(cst.SimpleString)
    count = sum(name in (plain_string(each) or "") for each in strings)
    for function in module.functions():
        scope = function.scope
        is_other = scope.owner is not None and scope.owner is not owner
        for node in scope.nodes_with_lambdas:
            if type(node) is cst.Attribute and node.attr.value == name:
                root = dotted_name(node.value)
                count += not (is_other and root == scope.first_parameter)
    return count


class _Reader:
    """Say which attributes of ``self`` a value is a multiple of."""

    def __init__(self, function: FunctionModel, own: str, zeros: Mapping[str, _Zero]) -> None:
        self._own, self._zeros = own, zeros
        self._resolve = function.module.scopes.resolve_import
        self._given: dict[str, list[cst.BaseExpression]] = {}
        for target, value in function.scope.assignments:
            self._given.setdefault(dotted_name(target) or "", []).append(value)

    def factors(self, node: cst.BaseExpression, depth: int = 0) -> list[str]:
        """Return the factors of a product that are attributes, through names that stand for one."""
        if depth > _DEEPEST:
            return []
        if type(node) is cst.BinaryOperation:
            if isinstance(node.operator, (cst.Multiply, cst.MatrixMultiply)):
                parts = [node.left, node.right]
            else:
                parts = [node.left] if isinstance(node.operator, cst.Divide) else []
            return [name for each in parts for name in self.factors(each, depth + 1)]
        if type(node) is cst.Call:
            return self._of_call(node, depth)
        path = dotted_name(node)
        if path is not None and path.startswith(f"{self._own}.") and path.count(".") == 1:
            return [last_word(path)]
        if type(node) is cst.Attribute and node.attr.value in {"T", "mT"}:
            return self.factors(node.value, depth + 1)
        given = self._given.get(path or "", [])
        return self.factors(given[0], depth + 1) if len(given) == 1 else []

    def _of_call(self, call: cst.Call, depth: int) -> list[str]:
        given = positional(call)
        name = dotted_name(call.func) or ""
        resolved = self._resolve(name) or ""
        parts: list[cst.BaseExpression] = []
        called: list[str] = []
        if resolved in _PRODUCTS:
            parts = given if len(given) == len(call.args) == 2 else []  # noqa: PLR2004 - no bias
        elif resolved.startswith("torch.nn.functional.dropout") or _DROPS.search(last_word(name)):
            parts = given[:1]
        elif (zero := self._zeros.get(last_word(name))) is not None and zero.is_layer:
            parts, called = given[:1], [last_word(name)]
        elif type(call.func) is cst.Attribute and call.func.attr.value in _METHODS:
            parts = [call.func.value, *(given[:1] if call.func.attr.value in _BY else [])]
        return [name for each in parts for name in self.factors(each, depth + 1)] + called


_DEEPEST: Final = 12
_DROPS: Final = re.compile("(?i)drop")
_PRODUCTS: Final = frozenset(
    {"torch.matmul", "torch.mm", "torch.bmm", "torch.mul", "torch.nn.functional.linear"}
)
"""Functions whose result is a multiple of both of the first two arguments, without a bias."""
_BY: Final = frozenset({"matmul", "mm", "bmm", "mul"})
_METHODS: Final = _BY | {
    *("t", "transpose", "permute", "view", "reshape", "flatten", "contiguous", "to", "type_as"),
    *("unsqueeze", "squeeze", "float", "half", "expand"),
}
