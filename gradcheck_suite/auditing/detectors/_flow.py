"""Where a value's graph ends on its way to backward, read from the source of one function.

What a run has proven (these parameters took part, and no gradient reached them) says that the way
is cut, not where. This follows the value through the statements of the function that ran, in
order, and tells the first expression that ends differentiation. It only ever explains a fact: it
accuses nobody by itself.
"""

from __future__ import annotations

import ast
import itertools
import linecache
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from torch import Tensor

from gradcheck_suite.findings import Location

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from gradcheck_suite.auditing.call_sites import CallSite

__all__ = [
    "Cut",
    "Flow",
    "Span",
    "flat_call",
    "follow",
    "left_switched_off",
    "span_at",
    "switched_off",
]


@dataclass(frozen=True, slots=True)
class Cut:
    """The expression that ends differentiation.

    ``what`` is told to the user, such as "`.item()`"; ``under`` says that recording is off there
    (``no_grad``) and not that a value is converted.
    """

    path: str
    line: int
    what: str
    under: bool = False


_State: TypeAlias = "Literal['live'] | Cut | None"

Flow: TypeAlias = "Cut | Literal['arrives', 'unused', 'unknown']"
"""Where the value got to: cut here, arrives at a backward or return, goes into neither, or who
knows."""

Span: TypeAlias = "tuple[int, int, int, int]"
"""First and last line, first column and the one after the last, in bytes, as ``ast`` counts."""

_CUTTING_METHODS = frozenset(
    [
        "item",
        "tolist",
        "numpy",
        "detach",
        "detach_",
        "argmax",
        "argmin",
        "long",
        "int",
        "short",
        "byte",
        "bool",
        "gt",
        "ge",
        "lt",
        "le",
        "eq",
        "ne",
        "__gt__",
        "isnan",
        "isfinite",
        "nonzero",
        "argsort",
        "bincount",
    ]
)
_FLAT_METHODS = frozenset({"round", "floor", "ceil", "sign", "trunc", "round_", "floor_", "sign_"})
_CUTTING_CALLS = frozenset({"float", "int", "bool", "round"})
_CUTTING_OF_TORCH = frozenset(
    [
        "tensor",
        "argmax",
        "argmin",
        "from_numpy",
        "FloatTensor",
        "LongTensor",
        "Tensor",
        "gt",
        "ge",
        "lt",
        "le",
        "eq",
        "ne",
        "bincount",
        "argsort",
    ]
)
_WITH_INDICES = frozenset(
    {"max", "min", "sort", "topk", "median", "mode", "kthvalue", "cummax", "cummin"}
)
"""What returns values and indices: the second of the pair has no graph."""
_RECORDING_OFF = ("no_grad", "inference_mode")
_SINKS = frozenset({"backward", "manual_backward"})
_CALLS_DEEP = 3


def follow(
    place: Location,
    *,
    from_calls: bool = False,
    sinks: Collection[tuple[str, int]] = (),
    span: Span | None = None,
) -> Flow:
    """Follow what is called at ``place`` until backward or the return of its function.

    Args:
        place: where the value was made; with ``from_calls``, where backward is or is called.
        from_calls: any call may have made it, and it is known to be cut: begin at each call that
            is not itself a cut.
        sinks: files and lines of calls that led to backward, whose arguments count as used.
        span: which call of that line made the value; None where it is not known.
    """
    path, line = place.path, place.line
    tree = _tree(path)
    if tree is None:
        return "unknown"
    body = tree if place.function is None else _innermost(tree, line)
    if body is None:
        return "unknown"
    walk = _Walk(path, tree, line, from_calls=from_calls)
    walk.sink_lines = {number for file, number in sinks if file == path}
    if span is not None and any(
        isinstance(node, ast.Call) and _span_of(node) == span for node in ast.walk(body)
    ):
        walk.span = span
    return walk.result(body)


def flat_call(place: Location, operations: Collection[str]) -> Flow:
    """Return the first call, in the function defined at ``place``, of an op without slope."""
    tree = _tree(place.path)
    body = None if tree is None else _innermost(tree, place.line)
    for node in () if body is None else ast.walk(body):
        name = _name_of(node) if isinstance(node, ast.Call) else None
        if name is not None and name in _FLAT_METHODS and name.rstrip("_") in operations:
            return Cut(place.path, node.lineno, f"`{name}()`")  # type: ignore[attr-defined]  # a Call
    return "unknown"


def switched_off(place: Location) -> Flow:
    """Return the ``no_grad`` or ``inference_mode`` that a line stands under in its function."""
    tree = _tree(place.path)
    body = tree if tree is None or place.function is None else _innermost(tree, place.line)
    if body is None:
        return "unknown"
    line = _line_of_decorator(body)
    for statement, off in _own_statements(body.body, off=line):
        if statement.lineno <= place.line <= (statement.end_lineno or statement.lineno):
            line = off  # The statements inside one follow it.
    return Cut(place.path, line, "recording is switched off", under=True) if line else "unknown"


def _line_of_decorator(scope: ast.Module | _Function) -> int:
    found = 0
    for decorator in getattr(scope, "decorator_list", []):
        if _name_of(decorator) in _RECORDING_OFF:
            found = decorator.lineno
    return found


def left_switched_off(places: Iterable[Location]) -> Location | None:
    """Return the one call, in the files of these places, of ``set_grad_enabled(False)``."""
    found = [
        Location(path=path, line=node.lineno)
        for path in dict.fromkeys(place.path for place in places)
        for node in ast.walk(_tree(path) or ast.Module([], []))
        if isinstance(node, ast.Expr) and _switches_off(node.value)
    ]
    return found[0] if len(found) == 1 else None


def _switches_off(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call) or _name_of(node) != "set_grad_enabled":
        return False
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    return len(given) == 1 and isinstance(given[0], ast.Constant) and given[0].value is False


def span_at(site: CallSite) -> Span | None:
    """Return where in its source the call at this site stands (Python 3.11 and later)."""
    code, offset = site[:2]
    positions = getattr(code, "co_positions", None)
    if positions is None:
        return None
    # One entry for each instruction, of two bytes.
    found: Any = next(itertools.islice(positions(), offset // 2, None), (None,) * 4)
    return None if None in found else tuple(found)


def _span_of(node: ast.expr) -> tuple[int, int | None, int, int | None]:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def _tree(path: str) -> ast.Module | None:
    text = "".join(linecache.getlines(path))
    try:
        return ast.parse(text) if text else None
    except (SyntaxError, ValueError):
        return None


_Function: TypeAlias = "ast.FunctionDef | ast.AsyncFunctionDef"


def _innermost(tree: ast.Module, line: int) -> _Function | None:
    best: _Function | None = None
    for node in ast.walk(tree):
        if (
            isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            and node.lineno <= line <= (node.end_lineno or node.lineno)
            and (best is None or node.lineno >= best.lineno)
        ):
            best = node
    return best


def _own_statements(body: Iterable[ast.stmt], *, off: int) -> Iterator[tuple[ast.stmt, int]]:
    """Yield simple statements in order, with the line of the ``no_grad`` they are under, or 0."""
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        yield statement, off
        inside = off
        if isinstance(statement, (ast.With, ast.AsyncWith)):
            for item in statement.items:
                name = _name_of(item.context_expr)
                if name in _RECORDING_OFF:
                    inside = item.context_expr.lineno
                elif name == "enable_grad":
                    inside = 0
        for field in ("body", "orelse", "finalbody"):
            yield from _own_statements(getattr(statement, field, []), off=inside)
        for handler in getattr(statement, "handlers", []):
            yield from _own_statements(handler.body, off=inside)


def _name_of(node: ast.expr) -> str | None:
    """Return the last part of the name that is called, read or decorated with."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _root_key(node: ast.expr) -> str | None:
    """Return what a target or a name is filed under: ``x``, ``self.x``."""
    while isinstance(node, (ast.Subscript, ast.Starred)):
        node = node.value
    if isinstance(node, ast.Attribute):
        inner = _root_key(node.value)
        return None if inner is None else f"{inner}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else None


class _Walk:
    def __init__(
        self, path: str, tree: ast.Module, line: int, *, from_calls: bool, depth: int = 0
    ) -> None:
        self.path = path
        self.tree = tree
        self.line = line
        self.from_calls = from_calls
        self.depth = depth
        self.names: dict[str, _State] = {}
        self.sinks: list[_State] = []
        self.sink_lines: set[int] = set()
        self.span: Span | None = None
        self.off = 0

    def result(self, scope: ast.Module | _Function) -> Flow:
        off = _line_of_decorator(scope)
        # Twice: a loop may carry a name from its end to its beginning.
        for _ in range(2):
            self.sinks = []
            for statement, inside in _own_statements(scope.body, off=off):
                self.off = inside
                self.statement(statement)
        reached = [state for state in self.sinks if state is not None]
        if self.from_calls:
            reached.sort(key=lambda state: state == "live")
        elif "live" in reached:
            return "arrives"
        if reached[:1] == ["live"]:
            return "arrives"
        if reached:
            return reached[0]  # type: ignore[return-value]  # a Cut: nothing live is left
        return "unused" if self.sinks else "unknown"

    def statement(self, node: ast.stmt) -> None:  # noqa: PLR0912 - one for each kind
        call = getattr(node, "value", None)
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        if isinstance(call, ast.Call) and not self.sink_lines.isdisjoint(lines):
            given = [*call.args, *(keyword.value for keyword in call.keywords)]
            self.sinks.extend(map(self.value, given))
        if isinstance(node, ast.Assign):
            state = self.value(node.value)
            pairs = _pairs(node)
            for target in node.targets:
                if pairs is None:
                    self.bind(target, state)
            for target, value in pairs or ():
                self.bind(target, self.value(value))
            indices = _second_target(node)
            if indices is not None and state == "live":
                self.bind(indices, self._cut(node.value, "taking the indices"))
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self.bind(node.target, self.value(node.value))
        elif isinstance(node, ast.AugAssign):
            self.join(node.target, self.value(node.value))
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            state = self.value(node.iter)
            if state is not None and not self.from_calls:
                self.bind(node.target, state)
        elif isinstance(node, ast.Return):
            self.sinks.append(None if node.value is None else self.value(node.value))
        elif isinstance(node, ast.Expr):
            self.value(node.value)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                self.value(item.context_expr)

    def bind(self, target: ast.expr, state: _State) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for element in target.elts:
                self.bind(element, state)
        elif isinstance(target, ast.Subscript):
            self.join(target, state)
        else:
            key = _root_key(target)
            if key is not None:
                self.names[key] = state

    def join(self, target: ast.expr, state: _State) -> None:
        key = _root_key(target)
        if key is not None:
            self.names[key] = _either([self.names.get(key), state])

    def value(self, node: ast.expr) -> _State:
        state = self._value(node)
        if not self.from_calls and isinstance(node, ast.Call) and self._makes_it(node):
            # The call of a line that is itself the value: only the innermost makes it.
            state = state or "live"
        if state is not None and self.off and isinstance(node, (ast.Call, ast.BinOp)):
            # Whatever else has cut its parts: what is made here could have no graph.
            return Cut(self.path, self.off, "recording is switched off", under=True)
        return state

    def _makes_it(self, node: ast.Call) -> bool:
        if self.span is not None:
            return _span_of(node) == self.span
        return node.lineno == self.line

    def _value(self, node: ast.expr) -> _State:
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self._named(node)
        if isinstance(node, ast.Compare):
            inner = _either([self.value(part) for part in (node.left, *node.comparators)])
            return self._cut(node, "a comparison") if inner == "live" else inner
        if isinstance(node, ast.Call):
            draws = self.from_calls and _name_of(node) in _WITHOUT_GRAPH
            return None if draws else self._call(node)
        if isinstance(node, (ast.Lambda, ast.Constant)):
            return None
        if isinstance(node, ast.IfExp):
            return _either([self.value(node.body), self.value(node.orelse)])
        return self._of_parts(node)

    def _of_parts(self, node: ast.expr) -> _State:
        if isinstance(node, ast.Subscript) and _is_second(node) and _has_indices(node.value):
            inner = self.value(node.value)
            return self._cut(node, "taking the indices") if inner == "live" else inner
        return _either(
            [
                self.value(child)
                for child in ast.walk(node)
                if isinstance(child, ast.expr) and child is not node and _is_part(node, child)
            ]
        )

    def _named(self, node: ast.Name | ast.Attribute) -> _State:
        key = _root_key(node)
        if key is not None and key in self.names:
            return self.names[key]
        if isinstance(node, ast.Name):
            return None
        inner = self.value(node.value)
        if inner == "live" and node.attr == "data":
            return self._cut(node, "`.data`")
        if inner == "live" and node.attr == "indices" and _has_indices(node.value):
            return self._cut(node, "`.indices`")
        if node.attr in ("shape", "dtype", "device", "grad", "requires_grad", "ndim"):
            return None
        return inner

    def _call(self, node: ast.Call) -> _State:  # noqa: PLR0911 - one for each kind
        name = _name_of(node)
        values = [*node.args, *(keyword.value for keyword in node.keywords)]
        given: list[_State] = []
        given.extend(self.value(value) for value in values)
        inner = _either(given)
        owner: _State = None
        if isinstance(node.func, ast.Attribute):
            owner = self.value(node.func.value)
            if name in _SINKS:
                is_engine = _name_of(node.func.value) == "autograd"
                self.sinks.append(inner if is_engine or owner is None else owner)
                return None
            if name in ("append", "extend", "add", "update", "insert", "put") and inner:
                self.join(node.func.value, inner)
            if owner == "live" and name in _CUTTING_METHODS:
                return self._cut(node, f"`.{name}()`")
            if owner == "live" and name in _FLAT_METHODS:
                return self._cut(node, f"`.{name}()`, whose slope is zero everywhere,")
            if inner == "live" and name in _CUTTING_OF_TORCH | {"array", "asarray"}:
                return self._cut(node, f"`{ast.unparse(node.func)}(...)`")
            if inner == "live" and name in _FLAT_METHODS:
                return self._cut(node, f"`{ast.unparse(node.func)}(...)`, which has no slope,")
        elif inner == "live" and name in _CUTTING_CALLS:
            return self._cut(node, f"`{name}()`")
        elif inner == "live" and name == "tensor":
            return self._cut(node, "`tensor(...)`")
        state = _either([owner, inner])
        if (state == "live" or (self.from_calls and state is None)) and self.depth < _CALLS_DEEP:
            through = self._through(node, name, given)
            if through is not None:
                return through
        if state is None and self.from_calls and name not in _PLAIN_CALLS:
            return None if _is_tensor_method(node, name) else "live"
        return state

    def _through(self, node: ast.Call, name: str | None, given: list[_State]) -> _State:
        """Look into a function of the same file that is called with the value."""
        found = [
            each
            for each in ast.walk(self.tree)
            if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)) and each.name == name
        ]
        if len(found) != 1 or node.keywords:
            return None
        names = [argument.arg for argument in found[0].args.args]
        if names[:1] in (["self"], ["cls"]):
            names = names[1:]
        inside = _Walk(self.path, self.tree, -1, from_calls=self.from_calls, depth=self.depth + 1)
        inside.names = dict(zip(names, given, strict=False))
        result = inside.result(found[0])
        return result if isinstance(result, Cut) else None

    def _cut(self, node: ast.expr, what: str) -> Cut:
        return Cut(self.path, node.end_lineno or node.lineno, what)


_WITHOUT_GRAPH = frozenset({"sample", "multinomial", "randperm", "bernoulli"})
"""What draws without recording, whoever it is called on; a call to begin at is none of these."""

_PLAIN_CALLS = frozenset(
    [
        "randn",
        "rand",
        "zeros",
        "ones",
        "tensor",
        "range",
        "len",
        "randint",
        "arange",
        "enumerate",
        "zip",
        "print",
        "full",
        "zero_grad",
        "train",
        "eval",
        "manual_seed",
        "no_grad",
        "step",
        "empty",
    ]
)


def _is_tensor_method(node: ast.Call, name: str | None) -> bool:
    """Whether this is ``y.float()`` for a ``y`` that is not known to have a graph."""
    if not isinstance(node.func, ast.Attribute) or name is None or not hasattr(Tensor, name):
        return False
    return _root_key(node.func.value) not in ("torch", "F", "functional", "nn.functional")


def _has_indices(node: ast.expr) -> bool:
    """Whether this is a call that returns values and indices."""
    if not isinstance(node, ast.Call) or _name_of(node) not in _WITH_INDICES:
        return False
    if _name_of(node) not in ("max", "min", "median", "mode"):
        return True
    # Without a dimension these return one value.
    of_torch = isinstance(node.func, ast.Attribute) and _root_key(node.func.value) == "torch"
    named = any(keyword.arg == "dim" for keyword in node.keywords)
    return named or len(node.args) > (1 if of_torch else 0)


def _is_second(node: ast.Subscript) -> bool:
    return isinstance(node.slice, ast.Constant) and node.slice.value == 1


def _second_target(node: ast.Assign) -> ast.expr | None:
    """Return what the indices are bound to in ``values, indices = x.max(1)``."""
    target = node.targets[0]
    if not isinstance(target, ast.Tuple) or not _has_indices(node.value):
        return None
    return target.elts[1] if len(target.elts) == len(("values", "indices")) else None


def _pairs(node: ast.Assign) -> list[tuple[ast.expr, ast.expr]] | None:
    """Return the single assignments of ``a, b = x, y``."""
    if len(node.targets) != 1:
        return None
    target, value = node.targets[0], node.value
    if not isinstance(target, ast.Tuple) or not isinstance(value, ast.Tuple):
        return None
    if len(target.elts) != len(value.elts):
        return None
    return list(zip(target.elts, value.elts, strict=True))


def _is_part(node: ast.expr, child: ast.expr) -> bool:
    for part in ast.iter_child_nodes(node):
        if part is child:
            return True
        if isinstance(part, ast.comprehension) and child is part.iter:
            return True
    return False


def _either(states: Iterable[_State]) -> _State:
    """A value made from several has the graph of any."""
    first: _State = None
    for state in states:
        if state == "live":
            return "live"
        first = first or state
    return first
