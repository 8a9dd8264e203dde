"""Turn the expressions of ``ast`` into libcst's, and the parameters of functions with them."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, Final

import libcst as cst

from gradcheck_lint.skeleton._nodes import (
    ASYNCHRONOUS,
    DEFAULT,
    UnsupportedSyntaxError,
    bare,
    make_attribute,
    make_from,
    make_name,
    make_tuple,
    maker,
)
from gradcheck_lint.skeleton._operators import OPERATORS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_call = maker(cst.Call, "func", "args")
_arg = maker(cst.Arg, "value", "keyword", "star")
_integer = maker(cst.Integer, "value")
_float = maker(cst.Float, "value")
_imaginary = maker(cst.Imaginary, "value")
_string = maker(cst.SimpleString, "value")
_formatted = maker(cst.FormattedString, "parts", "start", "end")
_formatted_expression = maker(
    cst.FormattedStringExpression, "expression", "conversion", "format_spec"
)
_formatted_text = maker(cst.FormattedStringText, "value")
_binary = maker(cst.BinaryOperation, "left", "operator", "right")
_unary = maker(cst.UnaryOperation, "operator", "expression")
_boolean = maker(cst.BooleanOperation, "left", "operator", "right")
_comparison = maker(cst.Comparison, "left", "comparisons")
_comparison_target = maker(cst.ComparisonTarget, "operator", "comparator")
_subscript = maker(cst.Subscript, "value", "slice")
_subscript_element = maker(cst.SubscriptElement, "slice")
_index = maker(cst.Index, "value", "star")
_slice = maker(cst.Slice, "lower", "upper", "step", "first_colon", "second_colon")
_element = maker(cst.Element, "value")
_starred_element = maker(cst.StarredElement, "value")
_list = maker(cst.List, "elements")
_set = maker(cst.Set, "elements")
_dict = maker(cst.Dict, "elements")
_dict_element = maker(cst.DictElement, "key", "value")
_starred_dict_element = maker(cst.StarredDictElement, "value")
_list_comp = maker(cst.ListComp, "elt", "for_in")
_set_comp = maker(cst.SetComp, "elt", "for_in")
_generator = maker(cst.GeneratorExp, "elt", "for_in")
_dict_comp = maker(cst.DictComp, "key", "value", "for_in")
_comp_for = maker(cst.CompFor, "target", "iter", "ifs", "inner_for_in", "asynchronous")
_comp_if = maker(cst.CompIf, "test")
_if_exp = maker(cst.IfExp, "test", "body", "orelse")
_lambda = maker(cst.Lambda, "params", "body")
_parameters = maker(
    cst.Parameters,
    "params",
    "star_arg",
    "kwonly_params",
    "star_kwarg",
    "posonly_params",
    "posonly_ind",
)
_param = maker(cst.Param, "name", "annotation", "default", "star")
_await = maker(cst.Await, "expression")
_yield = maker(cst.Yield, "value")
_named = maker(cst.NamedExpr, "target", "value")
_annotation = maker(cst.Annotation, "annotation")

_COLON: Final = bare(cst.Colon)
_PARAM_STAR: Final = bare(cst.ParamStar)
_PARAM_SLASH: Final = bare(cst.ParamSlash)


class ExpressionConverter:
    """Turn expressions into libcst's, and remember what each of them was made of."""

    __slots__ = ("origins",)

    def __init__(self) -> None:
        """Start with nothing to remember."""
        self.origins: dict[int, ast.expr] = {}

    def expression(self, node: ast.expr) -> Any:
        """Convert an expression."""
        try:
            read = _EXPRESSIONS[type(node)]
        except KeyError:
            raise UnsupportedSyntaxError(type(node).__name__) from None
        made = read(self, node)
        self.origins[id(made)] = node
        return made

    def optional(self, node: ast.expr | None) -> Any:
        """Convert an expression that may be left out."""
        return None if node is None else self.expression(node)

    def read_name(self, node: ast.Name) -> Any:
        return make_name(node.id)

    def read_attribute(self, node: ast.Attribute) -> Any:
        return make_attribute(self.expression(node.value), make_name(node.attr))

    def read_constant(self, node: ast.Constant) -> Any:
        value = node.value
        if isinstance(value, (str, bytes)):
            return _string(repr(value))
        if value is None or isinstance(value, bool):
            return make_name(str(value))
        if isinstance(value, int):
            return _integer(str(value))
        if isinstance(value, float):
            return _float(repr(value))
        return bare(cst.Ellipsis) if value is ... else _imaginary(repr(value))

    def read_call(self, node: ast.Call) -> Any:
        return _call(self.expression(node.func), self.arguments(node.args, node.keywords))

    def arguments(self, handed: Sequence[ast.expr], keywords: Sequence[ast.keyword]) -> list[Any]:
        """Convert the arguments of a call, in the order of the source."""
        made = [
            _arg(self.expression(argument.value), None, "*")
            if type(argument) is ast.Starred
            else _arg(self.expression(argument), None, "")
            for argument in handed
        ]
        if not keywords:
            return made
        named = [
            _arg(self.expression(item.value), None, "**")
            if item.arg is None
            else _arg(self.expression(item.value), make_name(item.arg), "")
            for item in keywords
        ]
        if handed and type(handed[-1]) is ast.Starred and _place(handed[-1]) > _place(keywords[0]):
            placed = [*zip(handed, made, strict=True), *zip(keywords, named, strict=True)]
            placed.sort(key=lambda pair: _place(pair[0]))
            return [argument for _, argument in placed]
        made.extend(named)
        return made

    def read_binary(self, node: ast.BinOp) -> Any:
        left = self.expression(node.left)
        return _binary(left, OPERATORS[type(node.op)], self.expression(node.right))

    def read_unary(self, node: ast.UnaryOp) -> Any:
        return _unary(OPERATORS[type(node.op)], self.expression(node.operand))

    def read_boolean(self, node: ast.BoolOp) -> Any:
        operator = OPERATORS[type(node.op)]
        made = self.expression(node.values[0])
        for value in node.values[1:]:
            made = _boolean(made, operator, self.expression(value))
        return made

    def read_comparison(self, node: ast.Compare) -> Any:
        left = self.expression(node.left)
        targets = [
            _comparison_target(OPERATORS[type(operator)], self.expression(compared))
            for operator, compared in zip(node.ops, node.comparators, strict=True)
        ]
        return _comparison(left, targets)

    def read_subscript(self, node: ast.Subscript) -> Any:
        value, index = self.expression(node.value), node.slice
        items: Sequence[ast.expr] = (index,)
        if type(index) is ast.Tuple and _is_bare(index):
            items = index.elts
        return _subscript(value, [_subscript_element(self._index(item)) for item in items])

    def _index(self, node: ast.expr) -> Any:
        if type(node) is ast.Slice:
            lower, upper = self.optional(node.lower), self.optional(node.upper)
            step = self.optional(node.step)
            return _slice(lower, upper, step, _COLON, _COLON if step is not None else DEFAULT)
        if type(node) is ast.Starred:
            return _index(self.expression(node.value), "*")
        return _index(self.expression(node), None)

    def elements(self, nodes: Sequence[ast.expr]) -> list[Any]:
        """Convert the elements of a tuple, list or set."""
        return [
            _starred_element(self.expression(node.value))
            if type(node) is ast.Starred
            else _element(self.expression(node))
            for node in nodes
        ]

    def read_tuple(self, node: ast.Tuple) -> Any:
        return make_tuple(self.elements(node.elts))

    def read_list(self, node: ast.List) -> Any:
        return _list(self.elements(node.elts))

    def read_set(self, node: ast.Set) -> Any:
        return _set(self.elements(node.elts))

    def read_dict(self, node: ast.Dict) -> Any:
        return _dict(
            [
                _starred_dict_element(self.expression(value))
                if key is None
                else _dict_element(self.expression(key), self.expression(value))
                for key, value in zip(node.keys, node.values, strict=True)
            ]
        )

    def read_list_comp(self, node: ast.ListComp) -> Any:
        return _list_comp(self.expression(node.elt), self._comp_for(node.generators))

    def read_set_comp(self, node: ast.SetComp) -> Any:
        return _set_comp(self.expression(node.elt), self._comp_for(node.generators))

    def read_generator(self, node: ast.GeneratorExp) -> Any:
        return _generator(self.expression(node.elt), self._comp_for(node.generators))

    def read_dict_comp(self, node: ast.DictComp) -> Any:
        key, value = self.expression(node.key), self.expression(node.value)
        return _dict_comp(key, value, self._comp_for(node.generators))

    def _comp_for(self, generators: Sequence[ast.comprehension]) -> Any:
        made = None
        for part in reversed(generators):
            ifs = [_comp_if(self.expression(test)) for test in part.ifs]
            asynchronous = ASYNCHRONOUS if part.is_async else None
            target, iterated = self.expression(part.target), self.expression(part.iter)
            made = _comp_for(target, iterated, ifs, made, asynchronous)
        return made

    def read_if_exp(self, node: ast.IfExp) -> Any:
        body, test = self.expression(node.body), self.expression(node.test)
        return _if_exp(test, body, self.expression(node.orelse))

    def read_lambda(self, node: ast.Lambda) -> Any:
        return _lambda(self.parameters(node.args), self.expression(node.body))

    def read_await(self, node: ast.Await) -> Any:
        return _await(self.expression(node.value))

    def read_yield(self, node: ast.Yield) -> Any:
        return _yield(self.optional(node.value))

    def read_yield_from(self, node: ast.YieldFrom) -> Any:
        return _yield(make_from(self.expression(node.value)))

    def read_named(self, node: ast.NamedExpr) -> Any:
        return _named(self.expression(node.target), self.expression(node.value))

    def read_formatted(self, node: ast.JoinedStr) -> Any:
        # Before Python 3.12 what is inside has no true place, so nothing remembers it.
        origins, self.origins = self.origins, {}
        made = _formatted(self._parts(node), 'f"', '"')
        # The nodes live on in the tree: their ids must not be taken for others'.
        self.origins = origins
        return made

    def _parts(self, node: ast.JoinedStr) -> list[Any]:
        parts = []
        for value in node.values:
            if isinstance(value, ast.FormattedValue):
                conversion = None if value.conversion < 0 else chr(value.conversion)
                spec = value.format_spec
                inner = self._parts(spec) if isinstance(spec, ast.JoinedStr) else None
                parts.append(_formatted_expression(self.expression(value.value), conversion, inner))
            elif isinstance(value, ast.Constant):
                parts.append(_formatted_text(str(value.value)))
            else:
                raise UnsupportedSyntaxError(type(value).__name__)
        return parts

    # Parameters

    def parameters(self, node: ast.arguments) -> Any:
        """Convert the parameters of a function."""
        plain = [*node.posonlyargs, *node.args]
        missing = len(plain) - len(node.defaults)
        made = [
            self._param(one, node.defaults[index - missing] if index >= missing else None, "")
            for index, one in enumerate(plain)
        ]
        star: Any = _PARAM_STAR if node.kwonlyargs else DEFAULT
        if node.vararg is not None:
            star = self._param(node.vararg, None, "*")
        named = [
            self._param(one, default, "")
            for one, default in zip(node.kwonlyargs, node.kw_defaults, strict=True)
        ]
        rest = None if node.kwarg is None else self._param(node.kwarg, None, "**")
        count = len(node.posonlyargs)
        slash = _PARAM_SLASH if count else DEFAULT
        return _parameters(made[count:], star, named, rest, made[:count], slash)

    def _param(self, node: ast.arg, default: ast.expr | None, star: str) -> Any:
        return _param(
            make_name(node.arg), self._annotation(node.annotation), self.optional(default), star
        )

    def _annotation(self, node: ast.expr | None) -> Any:
        return None if node is None else _annotation(self.expression(node))


_EXPRESSIONS: Final[dict[type, Callable[[ExpressionConverter, Any], Any]]] = {
    ast.Name: ExpressionConverter.read_name,
    ast.Attribute: ExpressionConverter.read_attribute,
    ast.Constant: ExpressionConverter.read_constant,
    ast.Call: ExpressionConverter.read_call,
    ast.BinOp: ExpressionConverter.read_binary,
    ast.UnaryOp: ExpressionConverter.read_unary,
    ast.BoolOp: ExpressionConverter.read_boolean,
    ast.Compare: ExpressionConverter.read_comparison,
    ast.Subscript: ExpressionConverter.read_subscript,
    ast.Tuple: ExpressionConverter.read_tuple,
    ast.List: ExpressionConverter.read_list,
    ast.Set: ExpressionConverter.read_set,
    ast.Dict: ExpressionConverter.read_dict,
    ast.ListComp: ExpressionConverter.read_list_comp,
    ast.SetComp: ExpressionConverter.read_set_comp,
    ast.GeneratorExp: ExpressionConverter.read_generator,
    ast.DictComp: ExpressionConverter.read_dict_comp,
    ast.IfExp: ExpressionConverter.read_if_exp,
    ast.Lambda: ExpressionConverter.read_lambda,
    ast.Await: ExpressionConverter.read_await,
    ast.Yield: ExpressionConverter.read_yield,
    ast.YieldFrom: ExpressionConverter.read_yield_from,
    ast.NamedExpr: ExpressionConverter.read_named,
    ast.JoinedStr: ExpressionConverter.read_formatted,
}


def _place(node: Any) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _is_bare(node: ast.Tuple) -> bool:
    """Tell whether the tuple of an index stands there without parentheses.

    Raises:
        UnsupportedSyntaxError: its place doesn't tell.
    """
    if not node.elts:
        return False
    first, last = node.elts[0], node.elts[-1]
    if _place(first) == _place(node):
        return True
    if (last.end_lineno, last.end_col_offset) == (node.end_lineno, node.end_col_offset):
        return True
    raise UnsupportedSyntaxError("a tuple as an index")
