"""Turn the statements of ``ast`` into libcst's; the bodies of functions only when asked for."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, Final

import libcst as cst

from gradcheck_lint.model.deferred import Deferred, defer
from gradcheck_lint.skeleton._expressions import ExpressionConverter
from gradcheck_lint.skeleton._nodes import (
    ASYNCHRONOUS,
    COMPOUND_ORIGIN,
    SMALL_ORIGIN,
    UnsupportedSyntaxError,
    bare,
    make_attribute,
    make_from,
    make_name,
    make_tuple,
    maker,
    quick_maker,
)
from gradcheck_lint.skeleton._operators import AUGMENTED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gradcheck_lint.skeleton._source_text import SourceText

_line = quick_maker(cst.SimpleStatementLine, "body")
_block = quick_maker(cst.IndentedBlock, "body")
_expr = quick_maker(cst.Expr, "value", SMALL_ORIGIN)
_assign = quick_maker(cst.Assign, "targets", "value", SMALL_ORIGIN)
_assign_target = quick_maker(cst.AssignTarget, "target")
_aug_assign = maker(cst.AugAssign, "target", "operator", "value", SMALL_ORIGIN)
_ann_assign = maker(cst.AnnAssign, "target", "annotation", "value", SMALL_ORIGIN)
_return = quick_maker(cst.Return, "value", SMALL_ORIGIN)
_raise = maker(cst.Raise, "exc", "cause", SMALL_ORIGIN)
_assert = maker(cst.Assert, "test", "msg", SMALL_ORIGIN)
_del = maker(cst.Del, "target", SMALL_ORIGIN)
_global = maker(cst.Global, "names", SMALL_ORIGIN)
_nonlocal = maker(cst.Nonlocal, "names", SMALL_ORIGIN)
_name_item = maker(cst.NameItem, "name")
_import = maker(cst.Import, "names", SMALL_ORIGIN)
_import_from = maker(cst.ImportFrom, "module", "names", "relative", SMALL_ORIGIN)
_import_alias = quick_maker(cst.ImportAlias, "name", "asname")
_as_name = maker(cst.AsName, "name")
_if = quick_maker(cst.If, "test", "body", "orelse", COMPOUND_ORIGIN)
_else = maker(cst.Else, "body")
_for = quick_maker(cst.For, "target", "iter", "body", "orelse", "asynchronous", COMPOUND_ORIGIN)
_while = maker(cst.While, "test", "body", "orelse", COMPOUND_ORIGIN)
_with = maker(cst.With, "items", "body", "asynchronous", COMPOUND_ORIGIN)
_with_item = maker(cst.WithItem, "item", "asname")
_try = maker(cst.Try, "body", "handlers", "orelse", "finalbody", COMPOUND_ORIGIN)
_try_star = maker(cst.TryStar, "body", "handlers", "orelse", "finalbody", COMPOUND_ORIGIN)
_handler = maker(cst.ExceptHandler, "body", "type", "name")
_handler_star = maker(cst.ExceptStarHandler, "body", "type", "name")
_finally = maker(cst.Finally, "body")
_decorator = maker(cst.Decorator, "decorator")
_function = quick_maker(
    cst.FunctionDef,
    "name",
    "params",
    "body",
    "decorators",
    "returns",
    "asynchronous",
    "type_parameters",
    COMPOUND_ORIGIN,
)
_class = maker(
    cst.ClassDef,
    "name",
    "body",
    "bases",
    "keywords",
    "decorators",
    "type_parameters",
    COMPOUND_ORIGIN,
)
_module = maker(
    cst.Module, "body", "encoding", "default_indent", "default_newline", "has_trailing_newline"
)
_DOT: Final = bare(cst.Dot)
_IMPORT_STAR: Final = bare(cst.ImportStar)


class Converter(ExpressionConverter):
    """Turn a whole file into libcst's nodes."""

    __slots__ = ("_lines",)

    def __init__(self, text: SourceText) -> None:
        """Take the text of the source; without lines nothing can be put off."""
        super().__init__(text)
        self._lines = text.lines

    def module(self, tree: ast.Module) -> cst.Module:
        """Convert a whole file."""
        made: cst.Module = _module(self.statements(tree.body), "utf-8", "    ", "\n", True)
        return made

    def top_level(self, tree: ast.Module) -> Deferred | None:
        """Return what is known of the top level, without its functions, classes and imports."""
        lines = self._lines
        if lines is None:
            return None
        has_text = ast.get_docstring(tree, clean=False) is not None
        nodes = [node for node in tree.body[has_text:] if not isinstance(node, _DEFINING)]

        def read() -> str:
            texts = [b"".join(lines[node.lineno - 1 : node.end_lineno]) for node in nodes]
            return b"\n".join(texts).decode("utf-8")

        return Deferred(nodes, self.statements, read)

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
        return _expr(self.expression(node.value), node)

    def read_assign(self, node: ast.Assign) -> Any:
        targets = [_assign_target(self.expression(target)) for target in node.targets]
        return _assign(targets, self.expression(node.value), node)

    def read_aug_assign(self, node: ast.AugAssign) -> Any:
        target = self.expression(node.target)
        return _aug_assign(target, AUGMENTED[type(node.op)], self.expression(node.value), node)

    def read_ann_assign(self, node: ast.AnnAssign) -> Any:
        target = self.expression(node.target)
        annotation, value = self._annotation(node.annotation), self.optional(node.value)
        return _ann_assign(target, annotation, value, node)

    def read_return(self, node: ast.Return) -> Any:
        return _return(self.optional(node.value), node)

    def read_raise(self, node: ast.Raise) -> Any:
        cause = None if node.cause is None else make_from(self.expression(node.cause))
        return _raise(self.optional(node.exc), cause, node)

    def read_assert(self, node: ast.Assert) -> Any:
        return _assert(self.expression(node.test), self.optional(node.msg), node)

    def read_delete(self, node: ast.Delete) -> Any:
        if len(node.targets) == 1:
            return _del(self.expression(node.targets[0]), node)
        return _del(make_tuple(self.elements(node.targets), None), node)

    def read_pass(self, _: ast.Pass) -> Any:
        return bare(cst.Pass)

    def read_break(self, _: ast.Break) -> Any:
        return bare(cst.Break)

    def read_continue(self, _: ast.Continue) -> Any:
        return bare(cst.Continue)

    def read_global(self, node: ast.Global) -> Any:
        return _global([_name_item(make_name(name, None)) for name in node.names], node)

    def read_nonlocal(self, node: ast.Nonlocal) -> Any:
        return _nonlocal([_name_item(make_name(name, None)) for name in node.names], node)

    def read_import(self, node: ast.Import) -> Any:
        return _import([_alias(alias) for alias in node.names], node)

    def read_import_from(self, node: ast.ImportFrom) -> Any:
        names: Any = [_alias(alias) for alias in node.names]
        if node.names[0].name == "*":
            names = _IMPORT_STAR
        module = None if node.module is None else _dotted(node.module)
        return _import_from(module, names, [_DOT] * node.level, node)

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
            made = _if(self.expression(part.test), self.block(part.body), made, part)
        return made

    def _otherwise(self, nodes: Sequence[ast.stmt]) -> Any:
        return _else(self.block(nodes)) if nodes else None

    def read_for(self, node: ast.For | ast.AsyncFor) -> Any:
        target, iterated = self.expression(node.target), self.expression(node.iter)
        asynchronous = ASYNCHRONOUS if isinstance(node, ast.AsyncFor) else None
        body, orelse = self.block(node.body), self._otherwise(node.orelse)
        return _for(target, iterated, body, orelse, asynchronous, node)

    def read_while(self, node: ast.While) -> Any:
        test, body = self.expression(node.test), self.block(node.body)
        return _while(test, body, self._otherwise(node.orelse), node)

    def read_with(self, node: ast.With | ast.AsyncWith) -> Any:
        items = []
        for item in node.items:
            name = item.optional_vars
            bound = None if name is None else _as_name(self.expression(name))
            items.append(_with_item(self.expression(item.context_expr), bound))
        asynchronous = ASYNCHRONOUS if isinstance(node, ast.AsyncWith) else None
        return _with(items, self.block(node.body), asynchronous, node)

    def read_try(self, node: ast.Try) -> Any:
        return self._tried(node, _try, _handler)

    def read_try_star(self, node: ast.Try) -> Any:
        return self._tried(node, _try_star, _handler_star)

    def _tried(self, node: ast.Try, make: Callable[..., Any], handle: Callable[..., Any]) -> Any:
        handlers = []
        for part in node.handlers:
            name = None if part.name is None else _as_name(make_name(part.name, None))
            handlers.append(handle(self.block(part.body), self.optional(part.type), name))
        final = _finally(self.block(node.finalbody)) if node.finalbody else None
        return make(self.block(node.body), handlers, self._otherwise(node.orelse), final, node)

    def _decorators(self, nodes: Sequence[ast.expr]) -> list[Any]:
        return [_decorator(self.expression(node)) for node in nodes]

    def read_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Any:
        return _function(
            make_name(node.name, None),
            self.parameters(node.args),
            self._put_off(node),
            self._decorators(node.decorator_list),
            self._annotation(node.returns),
            ASYNCHRONOUS if isinstance(node, ast.AsyncFunctionDef) else None,
            None,
            node,
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
            make_name(node.name, None),
            self.block(node.body),
            self.arguments(node.bases, ()),
            self.arguments((), node.keywords),
            self._decorators(node.decorator_list),
            None,
            node,
        )


_SMALL: Final[dict[type, Callable[[Converter, Any], Any]]] = {
    ast.Expr: Converter.read_expr,
    ast.Assign: Converter.read_assign,
    ast.AugAssign: Converter.read_aug_assign,
    ast.AnnAssign: Converter.read_ann_assign,
    ast.Return: Converter.read_return,
    ast.Raise: Converter.read_raise,
    ast.Assert: Converter.read_assert,
    ast.Delete: Converter.read_delete,
    ast.Pass: Converter.read_pass,
    ast.Break: Converter.read_break,
    ast.Continue: Converter.read_continue,
    ast.Global: Converter.read_global,
    ast.Nonlocal: Converter.read_nonlocal,
    ast.Import: Converter.read_import,
    ast.ImportFrom: Converter.read_import_from,
}
_COMPOUND: Final[dict[type, Callable[[Converter, Any], Any]]] = {
    ast.If: Converter.read_if,
    ast.For: Converter.read_for,
    ast.AsyncFor: Converter.read_for,
    ast.While: Converter.read_while,
    ast.With: Converter.read_with,
    ast.AsyncWith: Converter.read_with,
    ast.Try: Converter.read_try,
    ast.FunctionDef: Converter.read_function,
    ast.AsyncFunctionDef: Converter.read_function,
    ast.ClassDef: Converter.read_class,
}
_TRY_STAR: Final[type | None] = getattr(ast, "TryStar", None)  # Python 3.11
if _TRY_STAR is not None:
    _COMPOUND[_TRY_STAR] = Converter.read_try_star
_DECORATED: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_DEFINING: Final = (*_DECORATED, ast.Import, ast.ImportFrom)


def _alias(alias: ast.alias) -> Any:
    name = None if alias.asname is None else _as_name(make_name(alias.asname, None))
    return _import_alias(_dotted(alias.name) if alias.name != "*" else None, name)


def _dotted(text: str) -> Any:
    first, *rest = text.split(".")
    made = make_name(first, None)
    for part in rest:
        made = make_attribute(made, make_name(part, None), None)
    return made
