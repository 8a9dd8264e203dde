"""Turn the expressions of ``ast`` into libcst's, and the parameters of functions with them."""

from __future__ import annotations

import ast
import warnings
from typing import TYPE_CHECKING, Any, Final

import libcst as cst

from gradcheck_lint.skeleton._nodes import (
    ASYNCHRONOUS,
    DEFAULT,
    ORIGIN,
    UnsupportedSyntaxError,
    bare,
    make_attribute,
    make_from,
    make_name,
    make_tuple,
    maker,
    quick_maker,
)
from gradcheck_lint.skeleton._operators import OPERATORS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gradcheck_lint.skeleton._source_text import SourceText

_call = quick_maker(cst.Call, "func", "args", ORIGIN)
_arg = quick_maker(cst.Arg, "value", "keyword", "star")
_integer = quick_maker(cst.Integer, "value", ORIGIN)
_float = maker(cst.Float, "value", ORIGIN)
_imaginary = maker(cst.Imaginary, "value", ORIGIN)
_string = quick_maker(cst.SimpleString, "value", ORIGIN)
_concatenated = maker(cst.ConcatenatedString, "left", "right", ORIGIN)
_formatted = maker(cst.FormattedString, "parts", "start", "end", ORIGIN)
_formatted_expression = maker(
    cst.FormattedStringExpression, "expression", "conversion", "format_spec"
)
_formatted_text = maker(cst.FormattedStringText, "value")
_binary = quick_maker(cst.BinaryOperation, "left", "operator", "right", ORIGIN)
_unary = quick_maker(cst.UnaryOperation, "operator", "expression", ORIGIN)
_boolean = maker(cst.BooleanOperation, "left", "operator", "right", ORIGIN)
_comparison = quick_maker(cst.Comparison, "left", "comparisons", ORIGIN)
_comparison_target = quick_maker(cst.ComparisonTarget, "operator", "comparator")
_subscript = quick_maker(cst.Subscript, "value", "slice", ORIGIN)
_subscript_element = quick_maker(cst.SubscriptElement, "slice")
_index = quick_maker(cst.Index, "value", "star")
_slice = maker(cst.Slice, "lower", "upper", "step", "first_colon", "second_colon")
_element = quick_maker(cst.Element, "value")
_starred_element = maker(cst.StarredElement, "value")
_list = maker(cst.List, "elements", ORIGIN)
_set = maker(cst.Set, "elements", ORIGIN)
_dict = maker(cst.Dict, "elements", ORIGIN)
_dict_element = maker(cst.DictElement, "key", "value")
_starred_dict_element = maker(cst.StarredDictElement, "value")
_list_comp = maker(cst.ListComp, "elt", "for_in", ORIGIN)
_set_comp = maker(cst.SetComp, "elt", "for_in", ORIGIN)
_generator = maker(cst.GeneratorExp, "elt", "for_in", ORIGIN)
_dict_comp = maker(cst.DictComp, "key", "value", "for_in", ORIGIN)
_comp_for = maker(cst.CompFor, "target", "iter", "ifs", "inner_for_in", "asynchronous")
_comp_if = maker(cst.CompIf, "test")
_if_exp = maker(cst.IfExp, "test", "body", "orelse", ORIGIN)
_lambda = maker(cst.Lambda, "params", "body", ORIGIN)
_parameters = quick_maker(
    cst.Parameters,
    "params",
    "star_arg",
    "kwonly_params",
    "star_kwarg",
    "posonly_params",
    "posonly_ind",
)
_param = quick_maker(cst.Param, "name", "annotation", "default", "star")
_await = maker(cst.Await, "expression", ORIGIN)
_yield = maker(cst.Yield, "value", ORIGIN)
_named = maker(cst.NamedExpr, "target", "value", ORIGIN)
_annotation = maker(cst.Annotation, "annotation")

_COLON: Final = bare(cst.Colon)
_PARAM_STAR: Final = bare(cst.ParamStar)
_PARAM_SLASH: Final = bare(cst.ParamSlash)


class ExpressionConverter:
    """Turn expressions into libcst's, each with what it was made of for its origin.

    ``formatted`` are the f-strings met so far: before Python 3.12 what is inside them has no true
    place. ``is_spelt_out`` says that each stands in the tree as in the source.
    """

    __slots__ = ("_in_formatted", "_text", "formatted", "is_spelt_out")

    def __init__(self, text: SourceText) -> None:
        """Take the text of the source."""
        self._text = text
        self._in_formatted = False
        self.formatted: list[ast.JoinedStr] = []
        self.is_spelt_out = True

    def expression(self, node: ast.expr) -> Any:
        """Convert an expression."""
        return _EXPRESSIONS[type(node)](self, node)

    def optional(self, node: ast.expr | None) -> Any:
        """Convert an expression that may be left out."""
        return None if node is None else self.expression(node)

    def read_name(self, node: ast.Name) -> Any:
        return make_name(node.id, node)

    def read_attribute(self, node: ast.Attribute) -> Any:
        return make_attribute(self.expression(node.value), make_name(node.attr, None), node)

    def read_constant(self, node: ast.Constant) -> Any:
        value = node.value
        if isinstance(value, (str, bytes)):
            return self._string(node, repr(value))
        if value is None or isinstance(value, bool):
            return make_name(str(value), node)
        if isinstance(value, int):
            return _integer(str(value), node)
        if isinstance(value, float):
            return _float(repr(value), node)
        return bare(cst.Ellipsis) if value is ... else _imaginary(repr(value), node)

    def _string(self, node: ast.Constant, plain: str) -> Any:
        """Convert a string, spelt as in the source where that is not simply in quotes."""
        is_plain = (
            node.end_col_offset - node.col_offset == len(plain)  # type: ignore[operator]
            and node.end_lineno == node.lineno
            and "\\" not in plain
        )
        if is_plain or self._in_formatted or self._text.lines is None:
            return _string(plain, node)
        spelt = self._text.strings(node)
        if len(spelt) == 1:
            return _string(spelt[0], node)
        return _beside_one_another([_string(text, None) for text in spelt], node)

    def read_call(self, node: ast.Call) -> Any:
        return _call(self.expression(node.func), self.arguments(node.args, node.keywords), node)

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
            else _arg(self.expression(item.value), make_name(item.arg, None), "")
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
        return _binary(left, OPERATORS[type(node.op)], self.expression(node.right), node)

    def read_unary(self, node: ast.UnaryOp) -> Any:
        return _unary(OPERATORS[type(node.op)], self.expression(node.operand), node)

    def read_boolean(self, node: ast.BoolOp) -> Any:
        operator = OPERATORS[type(node.op)]
        made = self.expression(node.values[0])
        for value in node.values[1:-1]:
            made = _boolean(made, operator, self.expression(value), None)
        return _boolean(made, operator, self.expression(node.values[-1]), node)

    def read_comparison(self, node: ast.Compare) -> Any:
        left = self.expression(node.left)
        targets = [
            _comparison_target(OPERATORS[type(operator)], self.expression(compared))
            for operator, compared in zip(node.ops, node.comparators, strict=True)
        ]
        return _comparison(left, targets, node)

    def read_subscript(self, node: ast.Subscript) -> Any:
        value, index = self.expression(node.value), node.slice
        items: Sequence[ast.expr] = (index,)
        if type(index) is ast.Tuple and self._text.is_bare(index):
            items = index.elts
        return _subscript(value, [_subscript_element(self._index(item)) for item in items], node)

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
        return make_tuple(self.elements(node.elts), node)

    def read_list(self, node: ast.List) -> Any:
        return _list(self.elements(node.elts), node)

    def read_set(self, node: ast.Set) -> Any:
        return _set(self.elements(node.elts), node)

    def read_dict(self, node: ast.Dict) -> Any:
        return _dict(
            [
                _starred_dict_element(self.expression(value))
                if key is None
                else _dict_element(self.expression(key), self.expression(value))
                for key, value in zip(node.keys, node.values, strict=True)
            ],
            node,
        )

    def read_list_comp(self, node: ast.ListComp) -> Any:
        return _list_comp(self.expression(node.elt), self._comp_for(node.generators), node)

    def read_set_comp(self, node: ast.SetComp) -> Any:
        return _set_comp(self.expression(node.elt), self._comp_for(node.generators), node)

    def read_generator(self, node: ast.GeneratorExp) -> Any:
        return _generator(self.expression(node.elt), self._comp_for(node.generators), node)

    def read_dict_comp(self, node: ast.DictComp) -> Any:
        key, value = self.expression(node.key), self.expression(node.value)
        return _dict_comp(key, value, self._comp_for(node.generators), node)

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
        return _if_exp(test, body, self.expression(node.orelse), node)

    def read_lambda(self, node: ast.Lambda) -> Any:
        return _lambda(self.parameters(node.args), self.expression(node.body), node)

    def read_await(self, node: ast.Await) -> Any:
        return _await(self.expression(node.value), node)

    def read_yield(self, node: ast.Yield) -> Any:
        return _yield(self.optional(node.value), node)

    def read_yield_from(self, node: ast.YieldFrom) -> Any:
        return _yield(make_from(self.expression(node.value)), node)

    def read_named(self, node: ast.NamedExpr) -> Any:
        return _named(self.expression(node.target), self.expression(node.value), node)

    def read_formatted(self, node: ast.JoinedStr) -> Any:
        if self._in_formatted or self._text.lines is None:
            return self._formatted(node, node)
        try:
            pieces = self._text.strings(node)
            if len(pieces) == 1:
                return self._formatted(node, node)
            parsed = _parsed(pieces)
        except (SyntaxError, UnsupportedSyntaxError):  # quotes in quotes, from Python 3.12 on
            self.is_spelt_out = False
            return self._formatted(node, node)
        made = [
            self._formatted(piece, None)
            if isinstance(piece, ast.JoinedStr)
            else _string(text, None)
            for piece, text in zip(parsed, pieces, strict=True)
        ]
        return _beside_one_another(made, node)

    def _formatted(self, node: ast.JoinedStr, origin: ast.JoinedStr | None) -> Any:
        self.formatted.append(node)
        around, self._in_formatted = self._in_formatted, True
        made = _formatted(self._parts(node), 'f"', '"', origin)
        self._in_formatted = around
        return made

    def refuse(self, node: ast.expr) -> Any:
        raise UnsupportedSyntaxError(type(node).__name__)

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
            make_name(node.arg, None),
            self._annotation(node.annotation),
            self.optional(default),
            star,
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
for _kind in ast.expr.__subclasses__():
    _EXPRESSIONS.setdefault(_kind, ExpressionConverter.refuse)


def _parsed(strings: Sequence[str]) -> list[ast.expr]:
    """Parse strings that stand beside one another each alone: in ``ast`` they are one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [ast.parse(string, mode="eval").body for string in strings]


def _beside_one_another(strings: Sequence[Any], node: ast.expr) -> Any:
    """Join two strings or more that stand beside one another."""
    made = strings[-1]
    for string in strings[-2:0:-1]:
        made = _concatenated(string, made, None)
    return _concatenated(strings[0], made, node)


def _place(node: Any) -> tuple[int, int]:
    return node.lineno, node.col_offset
