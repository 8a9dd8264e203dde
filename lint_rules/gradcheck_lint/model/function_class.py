"""Read a subclass of ``torch.autograd.Function``: what it takes, saves and returns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.knowledge import (
    INPLACE_METHODS,
    SAME_GRAPH_METHODS,
    TENSOR_METHODS,
    VIEW_METHODS,
)
from gradcheck_lint.model.module import ModuleModel
from gradcheck_lint.model.name_sources import sources_of
from gradcheck_lint.model.scopes import ClassScope
from gradcheck_lint.model.syntax import (
    children,
    dotted_name,
    integer,
    is_none,
    keyword,
    positional,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import FunctionScope, Scopes

FUNCTION: Final = "torch.autograd.Function"

_TENSOR_WORDS: Final = (
    (TENSOR_METHODS | SAME_GRAPH_METHODS | VIEW_METHODS | INPLACE_METHODS)
    - {"index", "sort", "take", "get", "all", "any", "fill", "round", "split", "clip", "type"}
) | {
    "dim",
    "new",
    "is_cuda",
    "requires_grad",
    "data_ptr",
    "detach",
    "stride",
    "is_contiguous",
    "ndim",
    "grad_fn",
}


@dataclass(frozen=True, slots=True)
class Input:
    """A parameter of forward or backward."""

    name: str
    node: cst.Param
    has_default: bool


@dataclass(frozen=True, eq=False)
class AutogradFunction:
    """A class that defines a differentiable operation."""

    scope: ClassScope
    module: ModuleModel

    @property
    def name(self) -> str:
        """Return the name of the class."""
        return self.scope.node.name.value

    def method(self, name: str) -> FunctionScope | None:
        """Return a method of the class itself."""
        return self.scope.methods.get(name)

    @cached_property
    def forward(self) -> FunctionScope | None:
        """Return the forward, if the class has one of its own."""
        return self.method("forward")

    @cached_property
    def backward(self) -> FunctionScope | None:
        """Return the backward, under either of its names."""
        return self.method("backward") or self.method("vjp")

    @cached_property
    def setup(self) -> FunctionScope | None:
        """Return ``setup_context``, if forward has no ctx."""
        return self.method("setup_context")

    @cached_property
    def is_static(self) -> bool:
        """Tell whether forward and backward are static methods."""
        return all(
            method is None or has_decorator(method, "staticmethod")
            for method in (self.forward, self.backward)
        )

    @cached_property
    def is_once_differentiable(self) -> bool:
        """Tell whether backward refuses a second derivative."""
        name, scopes = "once_differentiable", self.module.scopes
        return self.backward is not None and has_decorator(self.backward, name, scopes)

    @cached_property
    def inputs(self) -> list[Input] | None:
        """Return what forward takes, without ctx; None where that is open."""
        if self.forward is None:
            return None
        found = parameters(self.forward)
        if found is None:
            return None
        return found if self.setup is not None else found[1:]

    @cached_property
    def cotangents(self) -> list[Input]:
        """Return what backward takes, without ctx."""
        found = parameters(self.backward) if self.backward is not None else None
        return (found or [])[1:]

    @cached_property
    def starred_cotangents(self) -> cst.Param | None:
        """Return the ``*grads`` of backward, if it has any."""
        if self.backward is None or isinstance(self.backward.node, cst.Module):
            return None
        star = self.backward.node.params.star_arg
        return star if type(star) is cst.Param else None

    def saving_calls(self, name: str) -> Iterator[cst.Call]:
        """Yield the calls of ``ctx.<name>(...)`` where the context is filled."""
        for scope in (self.forward, self.setup):
            if scope is not None:
                yield from saving_calls_in(scope, name)

    @cached_property
    def saved(self) -> frozenset[str]:
        """Return the names that are handed to ``save_for_backward``."""
        return frozenset(
            name
            for scope in (self.forward, self.setup)
            if scope is not None
            for name, _ in saved_names(scope)
        )

    @cached_property
    def returned(self) -> frozenset[str]:
        """Return the names that forward returns, alone or in a tuple."""
        if self.forward is None:
            return frozenset()
        return frozenset(
            element.value
            for value in returns(self.forward)
            for element in elements_of(value.value)
            if type(element) is cst.Name
        )

    @cached_property
    def differentiated(self) -> frozenset[int]:
        """Return the places of the inputs that backward has a gradient for, or asks whether."""
        if self.backward is None:
            return frozenset()
        found: set[int] = set()
        bound = assignments(self.backward)
        empty = {name for name, values in bound.items() if all(map(is_none, values))}
        nodes = self.backward.nodes
        refused = {
            id(node.test.expression)
            for node in nodes
            if type(node) is cst.Assert and type(node.test) is cst.UnaryOperation
        }
        for node in nodes:
            if type(node) is cst.Return:
                if self._lacks_gradients(node.value):
                    continue
                for place, element in enumerate(before_star(node.value)):
                    if not is_none(element) and dotted_name(element) not in empty:
                        found.add(place)
            elif (
                type(node) is cst.Subscript
                and id(node) not in refused  # `assert not ctx.needs_input_grad[2]`
                and (dotted_name(node.value) or "").endswith(".needs_input_grad")
                and type(node.slice[0].slice) is cst.Index
            ):
                asked = integer(node.slice[0].slice.value)
                found.update(() if asked is None else (asked,))
        return frozenset(found)

    def _lacks_gradients(self, returned: cst.BaseExpression | None) -> bool:
        """Tell whether this is one gradient where forward has several inputs: for which, who knows.

        A name may hold a tuple of all of them.
        """
        cotangents = {item.name for item in self.cotangents}
        is_one = type(returned) is cst.Name and returned.value in cotangents
        return is_one and self.inputs is not None and len(self.inputs) > 1

    @cached_property
    def tensors(self) -> frozenset[str]:
        """Return the names in forward that are shown to hold tensors."""
        return tensor_names(self)


def autograd_functions(module: ModuleModel) -> list[AutogradFunction]:
    """Return the Function classes of a file, read once."""
    memo = module.memo
    if "functions" not in memo:
        memo["functions"] = [
            AutogradFunction(scope, module)
            for scope in module.scopes.classes.values()
            if module.scopes.derives_from(scope, FUNCTION)
        ]
    found: list[AutogradFunction] = memo["functions"]
    return found


def function_with(function: FunctionModel, *methods: str) -> AutogradFunction | None:
    """Return the Function class of which this is one of these methods."""
    if function.scope.owner is None or function.scope.name.rpartition(".")[2] not in methods:
        return None
    for known in autograd_functions(function.module):
        if known.scope is function.scope.owner:
            return known
    return None


def saving_calls_in(scope: FunctionScope, name: str) -> Iterator[cst.Call]:
    """Yield the calls of ``<anything>.<name>(...)`` in one function."""
    for node in scope.nodes_of(cst.Call):
        if type(node.func) is cst.Attribute and node.func.attr.value == name:
            yield node


def saved_names(scope: FunctionScope) -> Iterator[tuple[str, cst.CSTNode]]:
    """Yield each name that ``save_for_backward`` gets, with the argument by which it does.

    What a starred name holds counts, where it is given one display of names and nothing else.
    """
    for call in saving_calls_in(scope, "save_for_backward"):
        for argument in call.args:
            held = displayed(argument.value, scope) if argument.star else [argument.value]
            for value in held:
                if type(value) is cst.Name:
                    yield value.value, argument.value


def displayed(
    node: cst.BaseExpression | None, scope: FunctionScope
) -> Sequence[cst.BaseExpression]:
    """Return the elements of a tuple or list, or of the only one that a name holds."""
    if type(node) is cst.Name:
        sources = sources_of(scope).get(node.value) or []
        node = sources[0] if len(sources) == 1 else node
    if not isinstance(node, (cst.Tuple, cst.List)):
        return []
    return [element.value for element in node.elements]


def has_decorator(scope: FunctionScope, name: str, scopes: Scopes | None = None) -> bool:
    """Tell whether a method has a decorator of this name, or one imported by it from torch."""
    if isinstance(scope.node, cst.Module):
        return False
    for decorator in scope.node.decorators:
        target = decorator.decorator
        called = dotted_name(target.func if type(target) is cst.Call else target) or ""
        imported = (scopes.resolve_import(called) if scopes is not None else None) or ""
        if called.rpartition(".")[2] == name:
            return True
        if imported.startswith("torch.") and imported.rpartition(".")[2] == name:
            return True
    return False


def has_other_decorator(scope: FunctionScope, scopes: Scopes) -> bool:
    """Tell whether a decorator that is not torch's may change what a method takes or returns."""
    if isinstance(scope.node, cst.Module):
        return False
    for decorator in scope.node.decorators:
        target = decorator.decorator
        name = dotted_name(target.func if type(target) is cst.Call else target) or ""
        imported = scopes.resolve_import(name) or ""
        if name.rpartition(".")[2] not in _METHOD_DECORATORS and not imported.startswith("torch."):
            return True
    return False


_METHOD_DECORATORS: Final = frozenset(
    {"staticmethod", "classmethod", "override", "custom_fwd", "custom_bwd", "once_differentiable"}
)


def parameters(scope: FunctionScope) -> list[Input] | None:
    """Return the positional parameters of a method; None if it takes any number."""
    if isinstance(scope.node, cst.Module):
        return None
    params = scope.node.params
    if type(params.star_arg) is cst.Param or params.star_kwarg or params.kwonly_params:
        return None
    return [
        Input(param.name.value, param, param.default is not None)
        for param in (*params.posonly_params, *params.params)
    ]


def returns(scope: FunctionScope) -> list[cst.Return]:
    """Return the return statements of a function itself."""
    return list(scope.nodes_of(cst.Return))


def elements_of(node: cst.BaseExpression | None) -> list[cst.BaseExpression]:
    """Return the elements of a tuple display, or the expression itself."""
    if type(node) is cst.Tuple:
        return [element.value for element in node.elements]
    return [] if node is None else [node]


def before_star(node: cst.BaseExpression | None) -> Iterator[cst.BaseExpression]:
    """Yield the elements of a tuple display up to a starred one, or the expression itself."""
    if type(node) is cst.BinaryOperation and type(node.left) is cst.Tuple:
        # `return (None, None) + gradients`
        yield from before_star(node.left)
        return
    if type(node) is not cst.Tuple:
        yield from elements_of(node)
        return
    for element in node.elements:
        if type(element) is cst.StarredElement:
            return
        yield element.value


def assignments(scope: FunctionScope) -> dict[str, list[cst.BaseExpression]]:
    """Return what each plain name of a function is assigned, in source order."""
    found: dict[str, list[cst.BaseExpression]] = {}
    for node in scope.nodes_of(cst.Assign):
        for target in node.targets:
            if type(target.target) is cst.Name:
                found.setdefault(target.target.value, []).append(node.value)
    return found


def names_in(node: cst.CSTNode) -> frozenset[str]:
    """Return the plain names that occur in an expression."""
    found: set[str] = set()
    stack = [node]
    while stack:
        current = stack.pop()
        if type(current) is cst.Name:
            found.add(current.value)
        elif isinstance(current, (cst.Attribute, cst.Arg)):
            stack.append(current.value)
        else:
            stack.extend(children(current))
    return frozenset(found)


def tensor_names(function: AutogradFunction) -> frozenset[str]:
    """Return the inputs and locals of forward that are shown to be tensors."""
    forward, inputs = function.forward, function.inputs
    if forward is None or inputs is None:
        return frozenset()
    known = set(function.saved)
    names = {item.name for item in inputs}
    if len(names) == 1:
        # A Function of something that is no tensor would have nothing to differentiate.
        known |= names
    known |= {item.name for place, item in enumerate(inputs) if place in function.differentiated}
    for item in inputs:
        if item.node.annotation is not None:
            text = dotted_name(item.node.annotation.annotation) or ""
            if text.rpartition(".")[2] == "Tensor":
                known.add(item.name)
    for node in forward.nodes_of(cst.Attribute, cst.Call):
        if type(node) is cst.Attribute and type(node.value) is cst.Name:
            if node.attr.value in _TENSOR_WORDS and node.value.value in names:
                known.add(node.value.value)
        elif type(node) is cst.Call:
            known.update(_asked_for_length(node) & names)
            qualified = function.module.scopes.resolve_import(dotted_name(node.func) or "") or ""
            first = positional(node)[:1]
            if (
                qualified.startswith("torch.")
                and qualified.rpartition(".")[2] in _TENSOR_WORDS
                and first
                and isinstance(first[0], (cst.Name, cst.UnaryOperation, cst.BinaryOperation))
            ):
                # Of two operands, one may be a number.
                operands = names_in(first[0])
                known.update(operands & names if len(operands) == 1 else ())
            if qualified.startswith("torch.nn.functional."):
                known.update(_handed_to_layer(node) & names)
    return frozenset(known)


def _asked_for_length(node: cst.Call) -> set[str]:
    """Return the name whose ``size(0)`` this is; a process group has a ``size()`` as well."""
    func = node.func
    if type(func) is not cst.Attribute or func.attr.value != "size" or not node.args:
        return set()
    return {func.value.value} if type(func.value) is cst.Name else set()


def _handed_to_layer(node: cst.Call) -> set[str]:
    """Return the plain names that a function of ``torch.nn.functional`` takes as tensors."""
    handed = [*positional(node)[:1], *(keyword(node, name) for name in _LAYER_TENSORS)]
    return {value.value for value in handed if type(value) is cst.Name}


_LAYER_TENSORS: Final = ("input", "weight", "bias", "grid", "target")
