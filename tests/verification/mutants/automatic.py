"""Mutants made by editing the syntax tree of a correct backward."""

from __future__ import annotations

import ast
import copy
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.verification.mutants.bank import Mutant, compile_function, order_that_is_wrong, source_of
from tests.verification.mutants.originals import ORIGINALS, Original

Edit = Callable[[], None]

_TWINS = {
    "sum": "mean", "mean": "sum", "sin": "cos", "cos": "sin", "tanh": "sigmoid",
    "sigmoid": "tanh", "softmax": "log_softmax", "exp": "sigmoid", "rsqrt": "sqrt",
    "index_add": "index_copy", "triu": "tril",
}  # fmt: skip
_TRANSPOSING = {"t", "mT", "transpose", "flip", "conj", "clamp", "detach", "contiguous"}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
}  # fmt: skip
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Gt: ast.Lt, ast.Lt: ast.Gt, ast.NotEq: ast.Eq, ast.Eq: ast.NotEq,
}  # fmt: skip
_DIMENSIONS = {"dim", "dims", "axis"}


@dataclass(frozen=True)
class _Place:
    """A field of a node that holds an expression, so that the expression can be replaced."""

    parent: ast.AST
    field: str
    index: int | None

    @property
    def node(self) -> ast.AST:
        value = getattr(self.parent, self.field)
        return value if self.index is None else value[self.index]

    def put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


def _places(root: ast.AST) -> Iterator[_Place]:
    for parent in ast.walk(root):
        for field, value in ast.iter_fields(parent):
            if isinstance(value, ast.expr):
                yield _Place(parent, field, None)
            elif isinstance(value, list):
                for index, item in enumerate(value):
                    if isinstance(item, ast.expr):
                        yield _Place(parent, field, index)


def _edits(place: _Place) -> Iterator[tuple[str, Edit]]:
    """Yield every way in which the expression at one place can be got wrong."""
    node = place.node
    yield from _operator_edits(place, node)
    yield from _call_edits(place, node)
    if isinstance(node, ast.Constant):
        yield from _constant_edits(place, node)
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARISONS:
        yield "comparison", lambda: _set(node, "ops", [_COMPARISONS[type(node.ops[0])]()])
    if isinstance(node, ast.Attribute) and node.attr in _TRANSPOSING:
        yield f"missing {node.attr}", lambda: place.put(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield "sign", lambda: place.put(node.operand)
    if isinstance(place.parent, ast.Return):
        yield from _return_edits(node)
    if (
        isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Load)
        and isinstance(place.parent, (ast.BinOp, ast.Return, ast.Attribute))
    ):
        called = ast.Call(ast.Attribute(node, "detach", ast.Load()), [], [])
        yield "detach", lambda: place.put(called)


def _operator_edits(place: _Place, node: ast.AST) -> Iterator[tuple[str, Edit]]:
    if not isinstance(node, ast.BinOp):
        return
    other = _OPERATORS.get(type(node.op))
    if other is not None:
        yield "operator", lambda: _set(node, "op", other())
    yield "sign", lambda: place.put(ast.UnaryOp(ast.USub(), copy.deepcopy(node)))
    yield "dropped right operand", lambda: place.put(node.left)
    yield "dropped left operand", lambda: place.put(node.right)
    if isinstance(node.op, (ast.Sub, ast.Div, ast.MatMult, ast.Pow)):
        left, right = node.left, node.right

        def swap() -> None:
            node.left, node.right = right, left

        yield "swapped operands", swap


def _call_edits(place: _Place, node: ast.AST) -> Iterator[tuple[str, Edit]]:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return
    function = node.func
    twin = _TWINS.get(function.attr)
    if twin is not None:
        yield f"{twin} for {function.attr}", lambda: _set(function, "attr", twin)
    if function.attr in {*_TRANSPOSING, "sum", "mean", "unsqueeze", "cumsum", "roll"}:
        yield f"missing {function.attr}", lambda: place.put(function.value)
    if function.attr == "where":
        node_args = node.args

        def swap() -> None:
            node_args[1], node_args[2] = node_args[2], node_args[1]

        yield "swapped branches", swap
    for keyword in node.keywords:
        if keyword.arg in _DIMENSIONS:
            for wrong in (0, 1, -1, -2):
                value = ast.UnaryOp(ast.USub(), ast.Constant(-wrong)) if wrong < 0 else None
                yield (
                    f"dim {wrong}",
                    functools.partial(_set, keyword, "value", value or ast.Constant(wrong)),
                )
    if function.attr in {"sum", "mean", "cumsum"} and node.keywords:
        kept = [keyword for keyword in node.keywords if keyword.arg != "keepdim"]
        yield "keepdim dropped", lambda: _set(node, "keywords", kept)


def _constant_edits(place: _Place, node: ast.Constant) -> Iterator[tuple[str, Edit]]:
    value = node.value
    if isinstance(value, bool):
        return
    if isinstance(value, int):
        for wrong in (value + 1, value - 1):
            yield "off by one", functools.partial(_set, node, "value", wrong)
    elif isinstance(value, float):
        for wrong in (2 * value, 1.01 * value, value + 1):
            yield "constant", functools.partial(_set, node, "value", wrong)
    elif isinstance(value, complex):
        yield "constant", lambda: _set(node, "value", -value)


def _return_edits(node: ast.AST) -> Iterator[tuple[str, Edit]]:
    if not isinstance(node, ast.Tuple):
        return
    entries = node.elts
    for index, entry in enumerate(entries):
        if isinstance(entry, ast.Constant):
            continue
        yield "returns None", functools.partial(entries.__setitem__, index, ast.Constant(None))
        negated = ast.UnaryOp(ast.USub(), entry)
        yield "sign", functools.partial(entries.__setitem__, index, negated)
        doubled = ast.BinOp(ast.Constant(2), ast.Mult(), entry)
        yield "factor", functools.partial(entries.__setitem__, index, doubled)
        for other in range(index + 1, len(entries)):
            if not isinstance(entries[other], ast.Constant):

                def swap(one: int = index, two: int = other) -> None:
                    entries[one], entries[two] = entries[two], entries[one]

                yield "swapped gradients", swap


def _set(node: ast.AST, field: str, value: object) -> None:
    setattr(node, field, value)


def _backward(tree: ast.Module) -> ast.FunctionDef:
    (statement,) = tree.body
    assert isinstance(statement, ast.ClassDef)
    (found,) = (
        item
        for item in statement.body
        if isinstance(item, ast.FunctionDef) and item.name == "backward"
    )
    return found


def edited_sources(original: Original) -> Iterator[tuple[str, str]]:
    """Yield what was done and the source, once for each edit that changes the source."""
    source = source_of(original)
    count = sum(1 for _ in _all_edits(_backward(ast.parse(source))))
    seen = {source}
    for number in range(count):
        tree = ast.parse(source)
        what, edit = list(_all_edits(_backward(tree)))[number]
        edit()
        text = ast.unparse(ast.fix_missing_locations(tree))
        if text not in seen:
            seen.add(text)
            yield what, text


def _all_edits(backward: ast.FunctionDef) -> Iterator[tuple[str, Edit]]:
    for statement in backward.body:
        for place in list(_places(statement)):
            if not isinstance(getattr(place.node, "ctx", None), ast.Store):
                yield from _edits(place)


def mutants_of(name: str) -> list[Mutant]:
    """Make every mutant of one original that is really wrong."""
    original = ORIGINALS[name]
    found = []
    for number, (what, source) in enumerate(edited_sources(original)):
        title = f"{name}-{number}-{what.replace(' ', '-')}"
        try:
            function = compile_function(original, source, title)
        except SyntaxError:
            continue
        order = order_that_is_wrong(original, function)
        if order is not None:
            found.append(Mutant(title, function, original, order))
    return found
