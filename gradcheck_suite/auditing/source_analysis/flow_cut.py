"""Where a value's graph ends on its way to backward, read from the source of one function.

What a run has proven (these parameters took part, and no gradient reached them) says that the way
is cut, not where. This follows the value through the statements of the function that ran, in
order, and tells the first expression that ends differentiation. It only ever explains a fact: it
accuses nobody by itself.
"""

from __future__ import annotations

import ast
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from torch import Tensor

from gradcheck_suite._runtime.frames import definition_line
from gradcheck_suite.auditing.source_analysis.source import (
    Function,
    Span,
    asks_for_gradients,
    called_by,
    functions_by_name,
    innermost,
    line_of_decorator,
    name_of,
    own_statements,
    root_key,
    span_of,
    tree_of,
)
from gradcheck_suite.findings import Location

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping


__all__ = [
    "CUTTING_CALLS",
    "CUTTING_METHODS",
    "CUTTING_OF_TORCH",
    "FLAT_METHODS",
    "Cut",
    "Flow",
    "Followed",
    "flat_call",
    "follow",
    "follow_parts",
    "has_indices",
    "left_switched_off",
    "only_flat_call",
    "switched_off",
]


@dataclass(frozen=True, slots=True)
class Cut:
    """The expression that ends differentiation.

    ``what`` is told to the user, such as "`.item()`"; ``under`` says that recording is off there
    (``no_grad``) and not that a value is converted; ``forced``, that what comes of it asks for
    gradients all the same; ``flat``, that it has a graph, along which every gradient is zero.
    """

    path: str
    line: int
    what: str
    under: bool = False
    forced: bool = False
    flat: bool = False


_State: TypeAlias = "Literal['live'] | Cut | None"

Parts: TypeAlias = "tuple[_State, ...]"
"""What is known of each value of a tuple that a function returns."""

Flow: TypeAlias = "Cut | Literal['arrives', 'unused', 'unknown']"
"""Where the value got to: cut here, arrives at a backward or return, goes into neither, or who
knows."""


CUTTING_METHODS = frozenset(
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
        "multinomial",
        "sample",
    ]
)
FLAT_METHODS = frozenset(
    [
        *("bernoulli", "ceil", "floor", "floor_", "normal", "poisson"),
        *("round", "round_", "sign", "sign_", "trunc"),
    ]
)
CUTTING_CALLS = frozenset({"float", "int", "bool", "round"})
CUTTING_OF_TORCH = frozenset(
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
        "multinomial",
    ]
)
_WITH_INDICES = frozenset(
    {"max", "min", "sort", "topk", "median", "mode", "kthvalue", "cummax", "cummin"}
)
"""What returns values and indices: the second of the pair has no graph."""
_SINKS = frozenset({"backward", "manual_backward"})
_CALLS_DEEP = 3
"""Calls of the user's functions, one within the other, that a value is followed into. A bound on
cost, which grows with the power of the depth."""
_MOST_EXPRESSIONS = 20_000
"""Expressions that are looked at for one value. A bound on cost: a few tenths of a
second."""


class Followed(NamedTuple):
    """What became of a value in one function.

    Attributes:
        flow: where it got to.
        parts: what is known of each value of the tuple that the function returns, if it does.
        beside: what cut the first that is cut of several values that it returns, such as the loss
            beside the outputs of a model; None if none is.
    """

    flow: Flow
    parts: Parts | None = None
    beside: Cut | None = None


def follow(
    place: Location,
    *,
    from_calls: bool = False,
    sinks: Collection[tuple[str, int]] = (),
    span: Span | None = None,
) -> Flow:
    """Follow what is called at ``place`` until backward or the return of its function.

    See ``follow_parts`` for the arguments.
    """
    return follow_parts(place, from_calls=from_calls, sinks=sinks, span=span).flow


def follow_parts(
    place: Location,
    *,
    from_calls: bool = False,
    sinks: Collection[tuple[str, int]] = (),
    span: Span | None = None,
    parts: Parts | None = None,
    variables: Mapping[str, object] | None = None,
) -> Followed:
    """Follow what is called at ``place``, and tell several values that are returned apart.

    Args:
        place: where the value was made; with ``from_calls``, where backward is or is called.
        from_calls: any call may have made it, and it is known to be cut: begin at each call that
            is not itself a cut.
        sinks: files and lines of calls that led to backward, whose arguments count as used; with
            ``from_calls`` and none of these, what the function returns is what matters.
        span: which call of that line made the value; None where it is not known.
        parts: what is known of each value, where the call returns a tuple of them.
        variables: those of the function, while it runs.
    """
    path, line = place.path, place.line
    tree = tree_of(path)
    if tree is None:
        return Followed("unknown")
    body = tree if place.function is None else innermost(tree, line)
    if body is None:
        return Followed("unknown")
    walk = _Walk(path, tree, line, from_calls=from_calls)
    walk.made_parts = parts
    walk.variables = variables or {}
    walk.sink_lines = {number for file, number in sinks if file == path}
    if span is not None and any(
        isinstance(node, ast.Call) and span_of(node) == span for node in ast.walk(body)
    ):
        walk.span = span
    try:
        return Followed(walk.result(body), walk.returned_parts(), walk.beside)
    except _TooMuchError:
        return Followed("unknown")


def flat_call(place: Location, operations: Collection[str]) -> Flow:
    """Return the first call, in the function defined at ``place``, of an op without slope."""
    tree = tree_of(place.path)
    body = None if tree is None else innermost(tree, place.line)
    if body is None:
        return "unknown"
    for cut in _flat_calls(place.path, body, operations):
        return cut
    return "unknown"


def only_flat_call(paths: Iterable[str], operations: Collection[str]) -> Flow:
    """Return the call of an op without slope, if these files have exactly one."""
    found = [
        cut
        for path in dict.fromkeys(paths)
        if (tree := tree_of(path)) is not None
        for cut in _flat_calls(path, tree, operations)
    ]
    return found[0] if len(found) == 1 else "unknown"


def _flat_calls(path: str, scope: ast.AST, operations: Collection[str]) -> Iterator[Cut]:
    for node in ast.walk(scope):
        name = name_of(node) if isinstance(node, ast.Call) else None
        if name is not None and name in FLAT_METHODS and name.rstrip("_") in operations:
            yield Cut(path, node.lineno, f"`{name}()`")  # type: ignore[attr-defined]  # a Call


def switched_off(place: Location) -> Flow:
    """Return the ``no_grad`` or ``inference_mode`` that a line stands under in its function."""
    tree = tree_of(place.path)
    body = tree if tree is None or place.function is None else innermost(tree, place.line)
    if body is None:
        return "unknown"
    line = line_of_decorator(body)
    for statement, off in own_statements(body.body, off=line):
        if statement.lineno <= place.line <= (statement.end_lineno or statement.lineno):
            line = off  # The statements inside one follow it.
    return Cut(place.path, line, "recording is switched off", under=True) if line else "unknown"


def left_switched_off(places: Iterable[Location]) -> Location | None:
    """Return the one call, in the files of these places, of ``set_grad_enabled(False)``."""
    found = [
        Location(path=path, line=node.lineno)
        for path in dict.fromkeys(place.path for place in places)
        for node in ast.walk(tree_of(path) or ast.Module([], []))
        if isinstance(node, ast.Expr) and _switches_off(node.value)
    ]
    return found[0] if len(found) == 1 else None


def _switches_off(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call) or name_of(node) != "set_grad_enabled":
        return False
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    return len(given) == 1 and isinstance(given[0], ast.Constant) and given[0].value is False


class _TooMuchError(Exception):
    """The bound on cost is reached."""


class _Walk:
    def __init__(
        self,
        path: str,
        tree: ast.Module,
        line: int,
        *,
        from_calls: bool,
        depth: int = 0,
        looked_at: Iterator[int] | None = None,
    ) -> None:
        self.path = path
        self.tree = tree
        self.line = line
        self.from_calls = from_calls
        self.depth = depth
        # One count for all functions that are followed.
        self.looked_at = itertools.count() if looked_at is None else looked_at
        self.names: dict[str, _State] = {}
        self.sinks: list[_State] = []
        self.sink_lines: set[int] = set()
        self.span: Span | None = None
        self.off = 0
        self.made_parts: Parts | None = None
        self.variables: Mapping[str, object] = {}
        self.parts: dict[ast.expr, Parts] = {}
        self.returns: list[Parts | None] = []
        self.beside: Cut | None = None

    def result(self, scope: ast.Module | Function) -> Flow:
        off = line_of_decorator(scope)
        # Twice: a loop may carry a name from its end to its beginning.
        for _ in range(2):
            self.sinks, self.returns = [], []
            for statement, inside in own_statements(scope.body, off=off):
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

    def returned_parts(self) -> Parts | None:
        """Return what is known of each value of the tuple that is returned, if one is."""
        known = [parts for parts in self.returns if parts is not None]
        if not known or len(known) < len(self.returns) or len(set(map(len, known))) > 1:
            return None
        parts: list[_State] = [_either(states) for states in zip(*known, strict=True)]
        return tuple(parts)

    def _is_at_sink(self, node: ast.stmt | ast.expr) -> bool:
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        return not self.sink_lines.isdisjoint(lines)

    def statement(self, node: ast.stmt) -> None:  # noqa: PLR0912 - one for each kind
        call = getattr(node, "value", None)
        if isinstance(call, ast.Call) and self._is_at_sink(node):
            given = [*call.args, *(keyword.value for keyword in call.keywords)]
            self.sinks.extend(map(self.value, given))
        if isinstance(node, ast.Assign):
            state = self.value(node.value)
            pairs = _pairs(node)
            parts = self.parts.get(node.value)
            for target in node.targets:
                if pairs is None:
                    self.bind(target, state, parts)
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
            self._return(node.value)
        elif isinstance(node, ast.Expr):
            self.value(node.value)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                self.value(item.context_expr)

    def _return(self, value: ast.expr | None) -> None:
        state = None if value is None else self.value(value)
        if self.from_calls and self.sink_lines:
            return  # What was cut off went into a backward here, and not to the caller.
        self.sinks.append(state)
        if state == "live" and value is not None:
            states = map(self.value, _values_in(value))
            self.beside = next((each for each in states if isinstance(each, Cut)), self.beside)
        if isinstance(value, ast.Tuple):
            parts: list[_State] = [self.value(element) for element in value.elts]
            self.returns.append(tuple(parts))
        elif value is not None:
            self.returns.append(self.parts.get(value))

    def bind(self, target: ast.expr, state: _State, parts: Parts | None = None) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            if parts is None or len(parts) != len(target.elts):
                parts = (state,) * len(target.elts)
            for element, part in zip(target.elts, parts, strict=True):
                self.bind(element, part)
        elif isinstance(target, ast.Subscript):
            self.join(target, state)
        else:
            key = root_key(target)
            if key is not None:
                self.names[key] = state

    def join(self, target: ast.expr, state: _State) -> None:
        key = root_key(target)
        if key is not None:
            self.names[key] = _either([self.names.get(key), state])

    def value(self, node: ast.expr) -> _State:
        if next(self.looked_at) >= _MOST_EXPRESSIONS:
            raise _TooMuchError
        state = self._value(node)
        if not self.from_calls and isinstance(node, ast.Call) and self._makes_it(node):
            # The call of a line that is itself the value: only the innermost makes it.
            if state is None and self.made_parts is not None:
                self.parts[node] = self.made_parts
            state = state or "live"
        if state is not None and self.off and isinstance(node, (ast.Call, ast.BinOp)):
            # Whatever else has cut its parts: what is made here could have no graph.
            return Cut(self.path, self.off, "recording is switched off", under=True)
        return state

    def _makes_it(self, node: ast.Call) -> bool:
        if self.span is not None:
            return span_of(node) == self.span
        return node.lineno == self.line

    def _value(self, node: ast.expr) -> _State:
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self._named(node)
        if isinstance(node, ast.Compare):
            inner = _either([self.value(part) for part in (node.left, *node.comparators)])
            return self._cut(node, "a comparison") if inner == "live" else inner
        if isinstance(node, ast.Call):
            draws = self.from_calls and name_of(node) in _WITHOUT_GRAPH
            return None if draws else self._call(node)
        if isinstance(node, (ast.Lambda, ast.Constant)):
            return None
        if isinstance(node, ast.IfExp):
            return _either([self.value(node.body), self.value(node.orelse)])
        return self._of_parts(node)

    def _of_parts(self, node: ast.expr) -> _State:
        if isinstance(node, ast.Subscript) and _is_second(node) and has_indices(node.value):
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
        key = root_key(node)
        if key is not None and key in self.names:
            return self.names[key]
        if isinstance(node, ast.Name):
            return None
        inner = self.value(node.value)
        if inner == "live" and node.attr == "data":
            return self._cut(node, "`.data`")
        if inner == "live" and node.attr == "indices" and has_indices(node.value):
            return self._cut(node, "`.indices`")
        if node.attr in ("shape", "dtype", "device", "grad", "requires_grad", "ndim"):
            return None
        return inner

    def _call(self, node: ast.Call) -> _State:  # noqa: PLR0911 - one for each kind
        name = name_of(node)
        values = [*node.args, *(keyword.value for keyword in node.keywords)]
        given: list[_State] = []
        given.extend(self.value(value) for value in values)
        inner = _either(given)
        owner: _State = None
        if isinstance(node.func, ast.Attribute):
            owner = self.value(node.func.value)
            if name in _SINKS:
                self._end_at(node, node.func.value, owner, inner)
                return None
            if name in ("append", "extend", "add", "update", "insert", "put") and inner:
                self.join(node.func.value, inner)
            if owner == "live" and name in CUTTING_METHODS:
                return self._cut(node, f"`.{name}()`")
            if owner == "live" and name in FLAT_METHODS:
                return self._cut(node, f"`.{name}()`, whose slope is zero everywhere,")
            cuts = inner == "live" or (inner is not None and asks_for_gradients(node))
            if cuts and name in CUTTING_OF_TORCH | {"array", "asarray"}:
                return self._cut(node, f"`{ast.unparse(node.func)}(...)`")
            if inner == "live" and name in FLAT_METHODS:
                return self._cut(node, f"`{ast.unparse(node.func)}(...)`, which has no slope,")
        elif inner == "live" and name in CUTTING_CALLS:
            return self._cut(node, f"`{name}()`")
        elif inner == "live" and name == "tensor":
            return self._cut(node, "`tensor(...)`")
        state = _either([owner, inner])
        if (state == "live" or (self.from_calls and state is None)) and self.depth < _CALLS_DEEP:
            through = self._through(node, name, given)
            if through is not None:
                return through
        if state is None and self.from_calls and name not in _PLAIN_CALLS:
            return None if _is_tensor_method(node, name) or _makes_an_object(name) else "live"
        return state

    def _end_at(self, node: ast.Call, of: ast.expr, owner: _State, given: _State) -> None:
        """Note what a backward starts from, unless it is that of another loss."""
        if not (self.from_calls and self.sink_lines) or self._is_at_sink(node):
            self.sinks.append(given if name_of(of) == "autograd" or owner is None else owner)

    def _through(self, node: ast.Call, name: str | None, given: list[_State]) -> _State:
        """Look into a function that is called with the value: of this file, or imported."""
        found = self._called(node, name)
        if found is None or any(keyword.arg is None for keyword in node.keywords):
            return None
        path, tree, function, receiver = found
        names = [argument.arg for argument in function.args.args]
        inside_of: dict[str, object] = {}
        if names[:1] in (["self"], ["cls"]):
            inside_of = {names[0]: receiver}
            names = names[1:]
        inside = _Walk(
            path,
            tree,
            -1,
            from_calls=self.from_calls,
            depth=self.depth + 1,
            looked_at=self.looked_at,
        )
        inside.variables = inside_of
        by_place = len(node.args)
        inside.names = dict(zip(names, given[:by_place], strict=False))
        for keyword, state in zip(node.keywords, given[by_place:], strict=True):
            inside.names[str(keyword.arg)] = state
        result = inside.result(function)
        parts = inside.returned_parts()
        if parts is not None:
            self.parts[node] = parts
        return result if isinstance(result, Cut) else None

    def _called(
        self, node: ast.Call, name: str | None
    ) -> tuple[str, ast.Module, Function, object] | None:
        """Return the function that a call names, with its file and what it is called on."""
        known = called_by(self.path, node.func, self.variables)
        code = None if known is None else known.code
        if known is not None and code is None:
            return None  # a library's, whatever a function of this file is called
        tree = None if code is None else tree_of(code.co_filename)
        if known is not None and code is not None and tree is not None:
            function = innermost(tree, definition_line(code))
            if function is not None and function.name == code.co_name:
                return code.co_filename, tree, function, known.receiver
        found = functions_by_name(self.tree).get(name or "", [])
        return (self.path, self.tree, found[0], None) if len(found) == 1 else None

    def _cut(self, node: ast.expr, what: str) -> Cut:
        line = node.end_lineno or node.lineno
        return Cut(self.path, line, what, forced=asks_for_gradients(node))


_WITHOUT_GRAPH = frozenset({"sample", "multinomial", "randperm"})
"""What draws without recording, whoever it is called on; a call to begin at is none of these."""

_PLAIN_CALLS = frozenset(
    [
        "bernoulli",
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


def _makes_an_object(name: str | None) -> bool:
    """Return whether this is the name of a class, as a scaler's, whose instances are no tensors."""
    return name is not None and name[:1].isupper() and name not in ("Parameter", "Variable")


def _is_tensor_method(node: ast.Call, name: str | None) -> bool:
    """Return whether this is ``y.float()`` for a ``y`` that is not known to have a graph."""
    if not isinstance(node.func, ast.Attribute) or name is None or not hasattr(Tensor, name):
        return False
    return root_key(node.func.value) not in ("torch", "F", "functional", "nn.functional")


def has_indices(node: ast.expr) -> bool:
    """Return whether this is a call that returns values and indices."""
    if not isinstance(node, ast.Call) or name_of(node) not in _WITH_INDICES:
        return False
    if name_of(node) not in ("max", "min", "median", "mode"):
        return True
    # Without a dimension these return one value; of two tensors, the greater of each element.
    of_torch = isinstance(node.func, ast.Attribute) and root_key(node.func.value) == "torch"
    named = any(keyword.arg == "dim" for keyword in node.keywords)
    first = 1 if of_torch else 0
    return named or (len(node.args) > first and _is_dimension(node.args[first]))


def _is_dimension(node: ast.expr) -> bool:
    """Return whether an argument is a dimension, and not another tensor, as far as one can read."""
    inner = node.operand if isinstance(node, ast.UnaryOp) else node
    if isinstance(inner, ast.Constant):
        return type(inner.value) is int
    return (name_of(inner) or "").lower().endswith(("dim", "axis"))


def _is_second(node: ast.Subscript) -> bool:
    return isinstance(node.slice, ast.Constant) and node.slice.value == 1


def _second_target(node: ast.Assign) -> ast.expr | None:
    """Return what the indices are bound to in ``values, indices = x.max(1)``."""
    target = node.targets[0]
    if not isinstance(target, ast.Tuple) or not has_indices(node.value):
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


def _values_in(node: ast.expr) -> list[ast.expr]:
    """Return the values that an expression returns one beside the other, or one or the other."""
    if isinstance(node, ast.IfExp):
        return [*_values_in(node.body), *_values_in(node.orelse)]
    if isinstance(node, (ast.Tuple, ast.List)):
        return node.elts
    if isinstance(node, ast.Dict):
        return node.values
    if isinstance(node, ast.Call) and (name_of(node) or "")[:1].isupper():
        # An object that is made of them, such as a model's output.
        return [*node.args, *(keyword.value for keyword in node.keywords)]
    return [node]


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
