"""Build the syntax tree that rules read from CPython's own, which takes a tenth of the time.

libcst's parser makes an object of every blank and comma, and that is most of the time of a cold
run. Rules look at the nodes that mean something, so those alone are built here, with libcst's own
types, from the tree of ``ast``. Where a rule finds something in such a tree, the file is parsed by
libcst after all and looked at again: findings, places and fixes always come from the whole tree.

What differs from libcst's tree, and no rule may depend on: strings and numbers are spelt as
``repr`` does, adjacent strings are one, statements beside one another have lines of their own,
and every block is an indented one.
"""

from __future__ import annotations

import ast
import re
import warnings
from typing import TYPE_CHECKING, Any, Final

import libcst as cst

from gradcheck_lint.model.deferred import Deferred, defer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class UnsupportedSyntaxError(Exception):
    """The source has something that this module leaves to libcst."""


class Skeleton:
    """A syntax tree without white space, and the source of its expressions."""

    def __init__(self, source: bytes) -> None:
        """Parse source.

        Raises:
            SyntaxError, ValueError, RecursionError, MemoryError: CPython refuses it.
            UnsupportedSyntaxError: it has syntax that is left to libcst.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
        self._source = source
        self._lines: list[bytes] | None = None
        converter = _Converter(self._split() if self._has_plain_lines() else None)
        self.tree = converter.module(tree)
        self._origins = converter.origins

    def text(self, node: cst.CSTNode) -> str:
        """Return the source of an expression on one line, without parentheses of its own.

        Raises:
            UnsupportedSyntaxError: it can't be told from the tree alone.
        """
        origin = self._origins.get(id(node))
        if origin is None or isinstance(origin, (ast.Tuple, ast.GeneratorExp)):
            raise UnsupportedSyntaxError(type(node).__name__)
        if not self._has_plain_lines():
            raise UnsupportedSyntaxError("lines")
        first, last = origin.lineno - 1, (origin.end_lineno or origin.lineno) - 1
        lines = self._split()[first : last + 1]
        lines[-1] = lines[-1][: origin.end_col_offset]
        lines[0] = lines[0][origin.col_offset :]
        return " ".join(b"".join(lines).decode().split())

    def _split(self) -> list[bytes]:
        if self._lines is None:
            self._lines = self._source.removeprefix(b"\xef\xbb\xbf").splitlines(keepends=True)
        return self._lines

    def _has_plain_lines(self) -> bool:
        """Tell whether lines and columns are those that ``ast`` counts, which is in UTF-8."""
        head = b"".join(self._source.split(b"\n", 2)[:2])
        if re.search(rb"coding[=:]", head) is not None:
            return False
        return self._source.count(b"\r") == self._source.count(b"\r\n")


def _maker(kind: type[cst.CSTNode], *fields: str) -> Callable[..., Any]:
    """Return what makes a node of which only some fields are set, past its constructor.

    Constructors of libcst's frozen classes take four times as long.
    """
    new = object.__new__
    setters = [getattr(kind, field).__set__ for field in fields]
    if len(setters) == 1:
        (only,) = setters

        def make_one(value: object) -> cst.CSTNode:
            node = new(kind)
            only(node, value)
            return node

        return make_one
    if len(setters) == 2:  # noqa: PLR2004 - two
        first, second = setters

        def make_two(value: object, other: object) -> cst.CSTNode:
            node = new(kind)
            first(node, value)
            second(node, other)
            return node

        return make_two
    if len(setters) == 3:  # noqa: PLR2004 - three
        one, two, three = setters

        def make_three(value: object, other: object, third: object) -> cst.CSTNode:
            node = new(kind)
            one(node, value)
            two(node, other)
            three(node, third)
            return node

        return make_three

    def make(*values: object) -> cst.CSTNode:
        node = new(kind)
        for setter, value in zip(setters, values, strict=True):
            setter(node, value)
        return node

    return make


_name = _maker(cst.Name, "value")
_attribute = _maker(cst.Attribute, "value", "attr")
_call = _maker(cst.Call, "func", "args")
_arg = _maker(cst.Arg, "value", "keyword", "star")
_integer = _maker(cst.Integer, "value")
_float = _maker(cst.Float, "value")
_imaginary = _maker(cst.Imaginary, "value")
_string = _maker(cst.SimpleString, "value")
_formatted = _maker(cst.FormattedString, "parts", "start", "end")
_formatted_expression = _maker(
    cst.FormattedStringExpression, "expression", "conversion", "format_spec"
)
_formatted_text = _maker(cst.FormattedStringText, "value")
_binary = _maker(cst.BinaryOperation, "left", "operator", "right")
_unary = _maker(cst.UnaryOperation, "operator", "expression")
_boolean = _maker(cst.BooleanOperation, "left", "operator", "right")
_comparison = _maker(cst.Comparison, "left", "comparisons")
_comparison_target = _maker(cst.ComparisonTarget, "operator", "comparator")
_subscript = _maker(cst.Subscript, "value", "slice")
_subscript_element = _maker(cst.SubscriptElement, "slice")
_index = _maker(cst.Index, "value", "star")
_slice = _maker(cst.Slice, "lower", "upper", "step", "first_colon", "second_colon")
_element = _maker(cst.Element, "value")
_starred_element = _maker(cst.StarredElement, "value")
_tuple = _maker(cst.Tuple, "elements")
_list = _maker(cst.List, "elements")
_set = _maker(cst.Set, "elements")
_dict = _maker(cst.Dict, "elements")
_dict_element = _maker(cst.DictElement, "key", "value")
_starred_dict_element = _maker(cst.StarredDictElement, "value")
_list_comp = _maker(cst.ListComp, "elt", "for_in")
_set_comp = _maker(cst.SetComp, "elt", "for_in")
_generator = _maker(cst.GeneratorExp, "elt", "for_in")
_dict_comp = _maker(cst.DictComp, "key", "value", "for_in")
_comp_for = _maker(cst.CompFor, "target", "iter", "ifs", "inner_for_in", "asynchronous")
_comp_if = _maker(cst.CompIf, "test")
_if_exp = _maker(cst.IfExp, "test", "body", "orelse")
_lambda = _maker(cst.Lambda, "params", "body")
_parameters = _maker(
    cst.Parameters,
    "params",
    "star_arg",
    "kwonly_params",
    "star_kwarg",
    "posonly_params",
    "posonly_ind",
)
_param = _maker(cst.Param, "name", "annotation", "default", "star")
_annotation = _maker(cst.Annotation, "annotation")
_await = _maker(cst.Await, "expression")
_yield = _maker(cst.Yield, "value")
_from = _maker(cst.From, "item")
_named = _maker(cst.NamedExpr, "target", "value")

_line = _maker(cst.SimpleStatementLine, "body")
_block = _maker(cst.IndentedBlock, "body")
_expr = _maker(cst.Expr, "value")
_assign = _maker(cst.Assign, "targets", "value")
_assign_target = _maker(cst.AssignTarget, "target")
_aug_assign = _maker(cst.AugAssign, "target", "operator", "value")
_ann_assign = _maker(cst.AnnAssign, "target", "annotation", "value")
_return = _maker(cst.Return, "value")
_raise = _maker(cst.Raise, "exc", "cause")
_assert = _maker(cst.Assert, "test", "msg")
_del = _maker(cst.Del, "target")
_global = _maker(cst.Global, "names")
_nonlocal = _maker(cst.Nonlocal, "names")
_name_item = _maker(cst.NameItem, "name")
_import = _maker(cst.Import, "names")
_import_from = _maker(cst.ImportFrom, "module", "names", "relative")
_import_alias = _maker(cst.ImportAlias, "name", "asname")
_as_name = _maker(cst.AsName, "name")
_if = _maker(cst.If, "test", "body", "orelse")
_else = _maker(cst.Else, "body")
_for = _maker(cst.For, "target", "iter", "body", "orelse", "asynchronous")
_while = _maker(cst.While, "test", "body", "orelse")
_with = _maker(cst.With, "items", "body", "asynchronous")
_with_item = _maker(cst.WithItem, "item", "asname")
_try = _maker(cst.Try, "body", "handlers", "orelse", "finalbody")
_try_star = _maker(cst.TryStar, "body", "handlers", "orelse", "finalbody")
_handler = _maker(cst.ExceptHandler, "body", "type", "name")
_handler_star = _maker(cst.ExceptStarHandler, "body", "type", "name")
_finally = _maker(cst.Finally, "body")
_decorator = _maker(cst.Decorator, "decorator")
_function = _maker(
    cst.FunctionDef,
    "name",
    "params",
    "body",
    "decorators",
    "returns",
    "asynchronous",
    "type_parameters",
)
_class = _maker(cst.ClassDef, "name", "body", "bases", "keywords", "decorators", "type_parameters")
_module = _maker(
    cst.Module, "body", "encoding", "default_indent", "default_newline", "has_trailing_newline"
)


def _bare(kind: type[cst.CSTNode]) -> Any:
    return object.__new__(kind)


_AUGMENTED: Final = {
    ast.Add: _bare(cst.AddAssign),
    ast.Sub: _bare(cst.SubtractAssign),
    ast.Mult: _bare(cst.MultiplyAssign),
    ast.MatMult: _bare(cst.MatrixMultiplyAssign),
    ast.Div: _bare(cst.DivideAssign),
    ast.FloorDiv: _bare(cst.FloorDivideAssign),
    ast.Mod: _bare(cst.ModuloAssign),
    ast.Pow: _bare(cst.PowerAssign),
    ast.LShift: _bare(cst.LeftShiftAssign),
    ast.RShift: _bare(cst.RightShiftAssign),
    ast.BitAnd: _bare(cst.BitAndAssign),
    ast.BitOr: _bare(cst.BitOrAssign),
    ast.BitXor: _bare(cst.BitXorAssign),
}
_OPERATORS: Final = {
    ast.Add: _bare(cst.Add),
    ast.Sub: _bare(cst.Subtract),
    ast.Mult: _bare(cst.Multiply),
    ast.MatMult: _bare(cst.MatrixMultiply),
    ast.Div: _bare(cst.Divide),
    ast.FloorDiv: _bare(cst.FloorDivide),
    ast.Mod: _bare(cst.Modulo),
    ast.Pow: _bare(cst.Power),
    ast.LShift: _bare(cst.LeftShift),
    ast.RShift: _bare(cst.RightShift),
    ast.BitAnd: _bare(cst.BitAnd),
    ast.BitOr: _bare(cst.BitOr),
    ast.BitXor: _bare(cst.BitXor),
    ast.And: _bare(cst.And),
    ast.Or: _bare(cst.Or),
    ast.Not: _bare(cst.Not),
    ast.USub: _bare(cst.Minus),
    ast.UAdd: _bare(cst.Plus),
    ast.Invert: _bare(cst.BitInvert),
    ast.Eq: _bare(cst.Equal),
    ast.NotEq: _maker(cst.NotEqual, "value")("!="),
    ast.Lt: _bare(cst.LessThan),
    ast.LtE: _bare(cst.LessThanEqual),
    ast.Gt: _bare(cst.GreaterThan),
    ast.GtE: _bare(cst.GreaterThanEqual),
    ast.Is: _bare(cst.Is),
    ast.IsNot: _bare(cst.IsNot),
    ast.In: _bare(cst.In),
    ast.NotIn: _bare(cst.NotIn),
}
_COLON: Final = _bare(cst.Colon)
_DOT: Final = _bare(cst.Dot)
_ASYNCHRONOUS: Final = _bare(cst.Asynchronous)
_IMPORT_STAR: Final = _bare(cst.ImportStar)
_PARAM_STAR: Final = _bare(cst.ParamStar)
_PARAM_SLASH: Final = _bare(cst.ParamSlash)
_DEFAULT: Final = cst.MaybeSentinel.DEFAULT


class _Converter:
    """Turn the nodes of ``ast`` into libcst's, and remember what each expression was made of."""

    __slots__ = ("_lines", "origins")

    def __init__(self, lines: Sequence[bytes] | None) -> None:
        """Take the lines of the source, None where nothing can be put off."""
        self._lines = lines
        self.origins: dict[int, ast.expr] = {}

    def module(self, tree: ast.Module) -> cst.Module:
        """Convert a whole file."""
        made: cst.Module = _module(self.statements(tree.body), "utf-8", "    ", "\n", True)
        return made

    # Expressions

    def expression(self, node: ast.expr) -> Any:
        """Convert an expression."""
        made = _EXPRESSIONS[type(node)](self, node)
        self.origins[id(made)] = node
        return made

    def optional(self, node: ast.expr | None) -> Any:
        """Convert an expression that may be left out."""
        return None if node is None else self.expression(node)

    def read_name(self, node: ast.Name) -> Any:
        return _name(node.id)

    def read_attribute(self, node: ast.Attribute) -> Any:
        return _attribute(self.expression(node.value), _name(node.attr))

    def read_constant(self, node: ast.Constant) -> Any:
        value = node.value
        if isinstance(value, (str, bytes)):
            return _string(repr(value))
        if value is None or isinstance(value, bool):
            return _name(str(value))
        if isinstance(value, int):
            return _integer(str(value))
        if isinstance(value, float):
            return _float(repr(value))
        return _bare(cst.Ellipsis) if value is ... else _imaginary(repr(value))

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
            else _arg(self.expression(item.value), _name(item.arg), "")
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
        return _binary(left, _OPERATORS[type(node.op)], self.expression(node.right))

    def read_unary(self, node: ast.UnaryOp) -> Any:
        return _unary(_OPERATORS[type(node.op)], self.expression(node.operand))

    def read_boolean(self, node: ast.BoolOp) -> Any:
        operator = _OPERATORS[type(node.op)]
        made = self.expression(node.values[0])
        for value in node.values[1:]:
            made = _boolean(made, operator, self.expression(value))
        return made

    def read_comparison(self, node: ast.Compare) -> Any:
        left = self.expression(node.left)
        targets = [
            _comparison_target(_OPERATORS[type(operator)], self.expression(compared))
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
            return _slice(lower, upper, step, _COLON, _COLON if step is not None else _DEFAULT)
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
        return _tuple(self.elements(node.elts))

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
            asynchronous = _ASYNCHRONOUS if part.is_async else None
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
        return _yield(_from(self.expression(node.value)))

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
        star: Any = _PARAM_STAR if node.kwonlyargs else _DEFAULT
        if node.vararg is not None:
            star = self._param(node.vararg, None, "*")
        named = [
            self._param(one, default, "")
            for one, default in zip(node.kwonlyargs, node.kw_defaults, strict=True)
        ]
        rest = None if node.kwarg is None else self._param(node.kwarg, None, "**")
        count = len(node.posonlyargs)
        slash = _PARAM_SLASH if count else _DEFAULT
        return _parameters(made[count:], star, named, rest, made[:count], slash)

    def _param(self, node: ast.arg, default: ast.expr | None, star: str) -> Any:
        return _param(
            _name(node.arg), self._annotation(node.annotation), self.optional(default), star
        )

    def _annotation(self, node: ast.expr | None) -> Any:
        return None if node is None else _annotation(self.expression(node))

    # Statements

    def statements(self, nodes: Sequence[ast.stmt]) -> list[Any]:
        """Convert a list of statements."""
        made = []
        for node in nodes:
            compound = _COMPOUND.get(type(node))
            if compound is not None:
                made.append(compound(self, node))
            else:
                small = _SMALL.get(type(node))
                if small is None:
                    raise UnsupportedSyntaxError(type(node).__name__)
                made.append(_line([small(self, node)]))
        return made

    def block(self, nodes: Sequence[ast.stmt]) -> Any:
        """Convert the body of a compound statement."""
        return _block(self.statements(nodes))

    def read_expr(self, node: ast.Expr) -> Any:
        return _expr(self.expression(node.value))

    def read_assign(self, node: ast.Assign) -> Any:
        targets = [_assign_target(self.expression(target)) for target in node.targets]
        return _assign(targets, self.expression(node.value))

    def read_aug_assign(self, node: ast.AugAssign) -> Any:
        target = self.expression(node.target)
        return _aug_assign(target, _AUGMENTED[type(node.op)], self.expression(node.value))

    def read_ann_assign(self, node: ast.AnnAssign) -> Any:
        target = self.expression(node.target)
        return _ann_assign(target, self._annotation(node.annotation), self.optional(node.value))

    def read_return(self, node: ast.Return) -> Any:
        return _return(self.optional(node.value))

    def read_raise(self, node: ast.Raise) -> Any:
        cause = None if node.cause is None else _from(self.expression(node.cause))
        return _raise(self.optional(node.exc), cause)

    def read_assert(self, node: ast.Assert) -> Any:
        return _assert(self.expression(node.test), self.optional(node.msg))

    def read_delete(self, node: ast.Delete) -> Any:
        if len(node.targets) == 1:
            return _del(self.expression(node.targets[0]))
        return _del(_tuple(self.elements(node.targets)))

    def read_pass(self, _: ast.Pass) -> Any:
        return _bare(cst.Pass)

    def read_break(self, _: ast.Break) -> Any:
        return _bare(cst.Break)

    def read_continue(self, _: ast.Continue) -> Any:
        return _bare(cst.Continue)

    def read_global(self, node: ast.Global) -> Any:
        return _global([_name_item(_name(name)) for name in node.names])

    def read_nonlocal(self, node: ast.Nonlocal) -> Any:
        return _nonlocal([_name_item(_name(name)) for name in node.names])

    def read_import(self, node: ast.Import) -> Any:
        return _import([_alias(alias) for alias in node.names])

    def read_import_from(self, node: ast.ImportFrom) -> Any:
        names: Any = [_alias(alias) for alias in node.names]
        if node.names[0].name == "*":
            names = _IMPORT_STAR
        module = None if node.module is None else _dotted(node.module)
        return _import_from(module, names, [_DOT] * node.level)

    def read_if(self, node: ast.If) -> Any:
        # A chain of many `elif` would nest deeply.
        chain = [node]
        while (
            len(chain[-1].orelse) == 1
            and isinstance(chain[-1].orelse[0], ast.If)
            and chain[-1].orelse[0].col_offset == node.col_offset
        ):
            chain.append(chain[-1].orelse[0])
        made = self._otherwise(chain[-1].orelse)
        for part in reversed(chain):
            made = _if(self.expression(part.test), self.block(part.body), made)
        return made

    def _otherwise(self, nodes: Sequence[ast.stmt]) -> Any:
        return _else(self.block(nodes)) if nodes else None

    def read_for(self, node: ast.For | ast.AsyncFor) -> Any:
        target, iterated = self.expression(node.target), self.expression(node.iter)
        asynchronous = _ASYNCHRONOUS if isinstance(node, ast.AsyncFor) else None
        body, orelse = self.block(node.body), self._otherwise(node.orelse)
        return _for(target, iterated, body, orelse, asynchronous)

    def read_while(self, node: ast.While) -> Any:
        test, body = self.expression(node.test), self.block(node.body)
        return _while(test, body, self._otherwise(node.orelse))

    def read_with(self, node: ast.With | ast.AsyncWith) -> Any:
        items = []
        for item in node.items:
            name = item.optional_vars
            bound = None if name is None else _as_name(self.expression(name))
            items.append(_with_item(self.expression(item.context_expr), bound))
        asynchronous = _ASYNCHRONOUS if isinstance(node, ast.AsyncWith) else None
        return _with(items, self.block(node.body), asynchronous)

    def read_try(self, node: ast.Try) -> Any:
        return self._tried(node, _try, _handler)

    def read_try_star(self, node: ast.Try) -> Any:
        return self._tried(node, _try_star, _handler_star)

    def _tried(self, node: ast.Try, make: Callable[..., Any], handle: Callable[..., Any]) -> Any:
        handlers = []
        for part in node.handlers:
            name = None if part.name is None else _as_name(_name(part.name))
            handlers.append(handle(self.block(part.body), self.optional(part.type), name))
        final = _finally(self.block(node.finalbody)) if node.finalbody else None
        return make(self.block(node.body), handlers, self._otherwise(node.orelse), final)

    def _decorators(self, nodes: Sequence[ast.expr]) -> list[Any]:
        return [_decorator(self.expression(node)) for node in nodes]

    def read_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Any:
        return _function(
            _name(node.name),
            self.parameters(node.args),
            self._put_off(node),
            self._decorators(node.decorator_list),
            self._annotation(node.returns),
            _ASYNCHRONOUS if isinstance(node, ast.AsyncFunctionDef) else None,
            None,
        )

    def _put_off(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Any:
        """Return the body of a function, unbuilt if its text can be read instead."""
        lines, last = self._lines, node.end_lineno
        if lines is None:
            return self.block(node.body)
        has_text = len(node.body) > 1 and ast.get_docstring(node, clean=False) is not None
        first = node.body[1 if has_text else 0].lineno - 1
        if isinstance(node.body[0], _DECORATED):
            first = node.lineno - 1
        return defer(
            Deferred(
                node.body, self.statements, lambda: b"".join(lines[first:last]).decode("utf-8")
            )
        )

    def read_class(self, node: ast.ClassDef) -> Any:
        return _class(
            _name(node.name),
            self.block(node.body),
            self.arguments(node.bases, ()),
            self.arguments((), node.keywords),
            self._decorators(node.decorator_list),
            None,
        )


_EXPRESSIONS: Final[dict[type, Callable[[_Converter, Any], Any]]] = {
    ast.Name: _Converter.read_name,
    ast.Attribute: _Converter.read_attribute,
    ast.Constant: _Converter.read_constant,
    ast.Call: _Converter.read_call,
    ast.BinOp: _Converter.read_binary,
    ast.UnaryOp: _Converter.read_unary,
    ast.BoolOp: _Converter.read_boolean,
    ast.Compare: _Converter.read_comparison,
    ast.Subscript: _Converter.read_subscript,
    ast.Tuple: _Converter.read_tuple,
    ast.List: _Converter.read_list,
    ast.Set: _Converter.read_set,
    ast.Dict: _Converter.read_dict,
    ast.ListComp: _Converter.read_list_comp,
    ast.SetComp: _Converter.read_set_comp,
    ast.GeneratorExp: _Converter.read_generator,
    ast.DictComp: _Converter.read_dict_comp,
    ast.IfExp: _Converter.read_if_exp,
    ast.Lambda: _Converter.read_lambda,
    ast.Await: _Converter.read_await,
    ast.Yield: _Converter.read_yield,
    ast.YieldFrom: _Converter.read_yield_from,
    ast.NamedExpr: _Converter.read_named,
    ast.JoinedStr: _Converter.read_formatted,
}
_SMALL: Final[dict[type, Callable[[_Converter, Any], Any]]] = {
    ast.Expr: _Converter.read_expr,
    ast.Assign: _Converter.read_assign,
    ast.AugAssign: _Converter.read_aug_assign,
    ast.AnnAssign: _Converter.read_ann_assign,
    ast.Return: _Converter.read_return,
    ast.Raise: _Converter.read_raise,
    ast.Assert: _Converter.read_assert,
    ast.Delete: _Converter.read_delete,
    ast.Pass: _Converter.read_pass,
    ast.Break: _Converter.read_break,
    ast.Continue: _Converter.read_continue,
    ast.Global: _Converter.read_global,
    ast.Nonlocal: _Converter.read_nonlocal,
    ast.Import: _Converter.read_import,
    ast.ImportFrom: _Converter.read_import_from,
}
_COMPOUND: Final[dict[type, Callable[[_Converter, Any], Any]]] = {
    ast.If: _Converter.read_if,
    ast.For: _Converter.read_for,
    ast.AsyncFor: _Converter.read_for,
    ast.While: _Converter.read_while,
    ast.With: _Converter.read_with,
    ast.AsyncWith: _Converter.read_with,
    ast.Try: _Converter.read_try,
    ast.FunctionDef: _Converter.read_function,
    ast.AsyncFunctionDef: _Converter.read_function,
    ast.ClassDef: _Converter.read_class,
}
if hasattr(ast, "TryStar"):
    _COMPOUND[ast.TryStar] = _Converter.read_try_star


_DECORATED: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


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


def _alias(alias: ast.alias) -> Any:
    name = None if alias.asname is None else _as_name(_name(alias.asname))
    return _import_alias(_dotted(alias.name) if alias.name != "*" else None, name)


def _dotted(text: str) -> Any:
    first, *rest = text.split(".")
    made = _name(first)
    for part in rest:
        made = _attribute(made, _name(part))
    return made
