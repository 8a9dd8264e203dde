"""Follows values through the statements of functions that ran, into those that they call.

Nothing is run: names, calls and operators of the source are followed, with the objects that the
variables of the running functions hold to tell what is called and which tensors have a graph.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import inspect
from collections import Counter
from dataclasses import dataclass, replace
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor, nn
from torch.optim import Optimizer

from gradcheck_suite._runtime.frames import definition_line
from gradcheck_suite.auditing.call_sites import is_user_code
from gradcheck_suite.auditing.source_analysis.abstract_values import (
    NOTHING,
    Bound,
    Kind,
    Part,
    Value,
    Written,
    attribute_of,
    combined,
    container,
    entries_of,
    item_of,
    iterated,
    joined,
    merged,
    negated,
    parts_of,
    reduced,
    scaled,
    summed,
    value_of_object,
    written,
)
from gradcheck_suite.auditing.source_analysis.flow_cut import (
    CUTTING_CALLS,
    CUTTING_METHODS,
    CUTTING_OF_TORCH,
    FLAT_METHODS,
    Cut,
    has_indices,
)
from gradcheck_suite.auditing.source_analysis.source import (
    RECORDING_OFF,
    Function,
    Span,
    innermost,
    line_of_decorator,
    name_of,
    root_key,
    span_of,
    tree_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Interpretation", "ReachedCall", "Scope", "followed_from"]

_MOST_EXPRESSIONS = 40_000
"""Expressions that are looked at for one backward. A bound on cost: a hundredth of a second or a
few for most programs."""
_CALLS_DEEP = 6
"""Calls of the user's functions, one within the other, that a value is followed into."""
_PLAIN_ATTRIBUTES = frozenset(
    {"shape", "dtype", "device", "requires_grad", "ndim", "layout", "is_cuda", "names"}
)
_PLAIN_CALLS = frozenset({"len", "isinstance", "range", "print", "id", "hasattr", "type", "str"})
_PLAIN_METHODS = frozenset({"size", "numel", "dim", "element_size", "stride", "ndimension"})
_BY_SHAPE = ("zeros_like", "ones_like", "rand_like", "randn_like", "empty_like", "full_like")
_SAME_TERMS = frozenset(
    {
        *("float", "double", "half", "bfloat16", "to", "cuda", "cpu", "reshape", "view"),
        *("squeeze", "unsqueeze", "contiguous", "clone", "flatten", "type", "type_as", "ravel"),
    }
)
"""Methods behind which a sum is still the sum of its terms."""
_REDUCING = frozenset({"sum", "mean", "nanmean", "nansum"})
_JOINING = frozenset({"stack", "cat", "hstack", "vstack", "concat", "concatenate"})
_GOING_THROUGH = frozenset({"list", "tuple", "reversed", "enumerate", "zip"})
"""Functions of Python's that give what a loop would get."""
_DRAWING = frozenset({"sample", "multinomial", "bernoulli"})
_WITHOUT_MEMORY = frozenset(
    {
        "torch",
        "numpy",
        "math",
        "scipy",
        "einops",
        "torchvision",
        "builtins",
        "operator",
        "_operator",
    }
)
_WITHOUT_SLOPE = ((CUTTING_METHODS | CUTTING_OF_TORCH | FLAT_METHODS) - {"detach", "detach_"}) | {
    *("max", "min", "amax", "amin", "one_hot", "searchsorted", "bucketize")
}
"""What makes masks, indices and choices, or leaves torch; the extremes are what is taken off for
numerical reasons."""
_SCALING = frozenset({"scale", "scale_loss", "scale_gradients"})
"""What multiplies a loss by a number, and is a method of another object."""

_Source: TypeAlias = "tuple[str, FunctionType, Function | ast.Lambda]"
"""The file of a function, the function without its decorators, and its definition."""


@dataclass(slots=True)
class ReachedCall:
    """A call that was looked for: the expression, what it is called on, and what it is given."""

    node: ast.Call
    owner: Value | None
    given: list[Value]
    named: dict[str, Value]


class Interpretation:
    """What is shared by all functions that are followed for one backward."""

    def __init__(self) -> None:
        self.left = _MOST_EXPRESSIONS
        self.attributes: dict[tuple[int, str], Value] = {}
        self.differentiated: set[Value] = set()
        self.scopes: list[Scope] = []
        self.begins_at_zero = False
        self.begins_at_numbers = False
        self._sources: dict[CodeType, tuple[str, Function | ast.Lambda] | None] = {}

    def source_of(self, function: Any) -> _Source | None:
        """Return the file and the definition of a function of the user's."""
        inner = inspect.unwrap(function) if isinstance(function, FunctionType) else None
        if not isinstance(inner, FunctionType):
            return None
        code = inner.__code__
        if code not in self._sources:
            self._sources[code] = _source_of(code)
        found = self._sources[code]
        # Functions of one definition have closures of their own.
        return None if found is None else (found[0], inner, found[1])

    def close(self) -> None:
        """Let go of all objects of the program, without waiting for the garbage collector."""
        for scope in self.scopes:
            scope.names.clear()
            scope.variables = scope.namespace = {}
            scope.returns, scope.yielded = [], []
            scope.reached = scope.enclosing = None
        self.scopes.clear()
        self.attributes.clear()
        self.differentiated.clear()


@dataclass(frozen=True, slots=True, eq=False)
class _Local:
    """A function that is defined inside the one that is followed."""

    node: Function | ast.Lambda
    scope: Scope


class _TooMuchError(Exception):
    """The bound on cost is reached."""


class Scope:
    """One function, or the top of a file, while it is followed.

    Args:
        shared: of all functions.
        path: the file.
        variables: of the running function, or what the names of a closure stand for.
        namespace: the globals of the file.
        depth: how many calls were followed to get here.
        off: the line that has switched recording off around the call, or 0.
    """

    def __init__(
        self,
        shared: Interpretation,
        path: str,
        variables: Mapping[str, Any],
        namespace: Mapping[str, Any],
        *,
        depth: int = 0,
        off: Cut | None = None,
    ) -> None:
        self.shared = shared
        self.path = path
        self.variables = variables
        self.namespace = namespace
        self.depth = depth
        self.off = off
        self.names: dict[str, Value] = {}
        self.aliases: set[str] = set()
        self.begun: set[str | None] = set()
        self.returns: list[Value] = []
        self.yielded: list[Value] = []
        self.bound_once: set[str] = set()
        self.wanted: Span | None = None
        self.wanted_line = 0
        self.reached: ReachedCall | None = None
        self.enclosing: Scope | None = None
        shared.scopes.append(self)

    # Statements.

    def run(self, scope: ast.Module | Function | ast.Lambda) -> None:
        """Follow a whole function."""
        if isinstance(scope, ast.Lambda):
            self.returns.append(self.value(scope.body))
            return
        line = line_of_decorator(scope)
        if line:
            self.off = self._recording_off(line)
        self.block(scope.body)

    def follow_to(self, scope: ast.Module | Function, span: Span | None, line: int) -> None:
        """Follow a running function, and note the call in it that is being made."""
        self.wanted, self.wanted_line = span, line
        counts = Counter(
            node.id
            for node in ast.walk(scope)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        )
        self.bound_once = {name for name, count in counts.items() if count == 1}
        try:
            self.run(scope)
        except (_TooMuchError, RecursionError):
            return

    def block(self, body: Sequence[ast.stmt]) -> bool:
        """Follow statements; return whether what comes after them is reached."""
        return all(self.statement(statement) for statement in body)

    def statement(self, node: ast.stmt) -> bool:
        """Follow a statement, by its kind."""
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        return True if method is None else method(node) is not False

    def _expr(self, node: ast.Expr) -> None:
        self.value(node.value)

    def _assign(self, node: ast.Assign) -> None:
        value = self.value(node.value)
        for target in node.targets:
            self._begin(target, value)
            self.bind(target, value, node.value)

    def _begin(self, target: ast.expr, value: Value) -> None:
        """Note of a name whether what it stands for now is not known to depend on what is trained.

        A sum may begin there, or one in each item: ``totals = [0, 0]``.
        """
        if isinstance(target, (ast.Name, ast.Attribute)):
            is_plain = value.whole().kind in (Kind.PLAIN, Kind.UNKNOWN)
            (self.begun.add if is_plain else self.begun.discard)(root_key(target))

    def _annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            value = self.value(node.value)
            self._begin(node.target, value)
            self.bind(node.target, value, node.value)

    def _augassign(self, node: ast.AugAssign) -> None:
        before = self.value(node.target)
        # What was there before is told as it was written, and not by the name that it adds to.
        first = before.text if isinstance(before.text, ast.expr) else node.target
        if isinstance(node.op, ast.Add) and root_key(node.target) in self.begun:
            self.shared.begins_at_numbers = True
        value = self._operated(node.op, before, self.value(node.value), first, node.value)
        self.bind(node.target, self._recorded(value), node.value)

    def _return(self, node: ast.Return) -> bool:
        self.returns.append(Value() if node.value is None else self.value(node.value))
        return False

    def _raise(self, _node: ast.Raise) -> bool:
        return False

    def _continue(self, _node: ast.Continue) -> bool:
        return False

    def _break(self, _node: ast.Break) -> bool:
        return False

    def _functiondef(self, node: ast.FunctionDef) -> None:
        self.names[node.name] = Value(text=node.name, thing=_Local(node, self))

    def _if(self, node: ast.If) -> bool:
        known = self.truth(node.test)
        if known is not None:
            return self.block(node.body if known else node.orelse)
        self.value(node.test)
        before = dict(self.names)
        goes_on = self.block(node.body)
        after, self.names = self.names, before
        other = self.block(node.orelse)
        if goes_on and other:
            self._merge(after)
        elif goes_on:
            self.names = after
        return goes_on or other

    def _merge(self, others: dict[str, Value]) -> None:
        for name, value in others.items():
            mine = self.names.get(name)
            self.names[name] = value if mine is None else joined([mine, value])

    def _for(self, node: ast.For) -> None:
        values = iterated(self.value(node.iter))
        if values.items is not None:
            for item in values.items.values():
                self.bind(node.target, item)
                self._alias(node.target)
                self.block(node.body)
        else:
            # Twice: a loop may carry a name from its end to its beginning.
            for _ in range(2):
                self.bind(node.target, replace(values, thing=NOTHING, parts=()))
                self._alias(node.target)
                self.block(node.body)
        self.block(node.orelse)

    def _alias(self, target: ast.expr) -> None:
        self.aliases.update(n.id for n in ast.walk(target) if isinstance(n, ast.Name))

    def _while(self, node: ast.While) -> None:
        for _ in range(2):
            self.value(node.test)
            self.block(node.body)
        self.block(node.orelse)

    def _try(self, node: ast.Try) -> bool:
        goes_on = self.block(node.body)
        before = dict(self.names)
        for handler in node.handlers:
            self.block(handler.body)
            self.names = dict(before)
        goes_on = self.block(node.orelse) and goes_on
        return self.block(node.finalbody) and goes_on

    def _with(self, node: ast.With) -> bool:
        off = self.off
        for item in node.items:
            given = self.value(item.context_expr)
            name = name_of(item.context_expr)
            if name in RECORDING_OFF or self._sets_off(item.context_expr):
                self.off = self._recording_off(item.context_expr.lineno)
            elif name == "enable_grad":
                self.off = None
            if item.optional_vars is not None:
                self.bind(item.optional_vars, given)
        goes_on = self.block(node.body)
        self.off = off
        return goes_on

    def _sets_off(self, node: ast.expr) -> bool:
        if not isinstance(node, ast.Call) or name_of(node) != "set_grad_enabled":
            return False
        return bool(node.args) and self.truth(node.args[0]) is False

    def _recording_off(self, line: int) -> Cut:
        return Cut(self.path, line, "recording is switched off", under=True)

    # Names.

    def bind(self, target: ast.expr, value: Value, made_by: ast.expr | None = None) -> None:
        """Let a target stand for a value."""
        if isinstance(target, (ast.Tuple, ast.List)):
            for index, element in enumerate(target.elts):
                self.bind(element, self._element(value, index), made_by)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, value.whole())
        elif isinstance(target, ast.Subscript):
            self._bind_item(target, value)
        elif isinstance(target, ast.Attribute):
            owner = self.value(target.value)
            if owner.thing is not NOTHING:
                self.shared.attributes[id(owner.thing), target.attr] = value
            elif (key := root_key(target)) is not None:
                self.names[key] = value
        elif isinstance(target, ast.Name):
            self.aliases.discard(target.id)
            if made_by is not None and target.id in self.bound_once:
                value = self._as_seen(target.id, value, made_by)
            self.names[target.id] = value

    def _element(self, value: Value, index: int) -> Value:
        if value.items is not None:
            found = value.items.get(index)
            return combined(value.items.values()) if found is None else found
        return replace(value, parts=(), thing=NOTHING)

    def _bind_item(self, target: ast.Subscript, value: Value) -> None:
        owner = self.value(target.value)
        key = self._key(target.slice)
        if owner.items is not None and key is not None:
            changed = container({**owner.items, key: value})
        else:
            changed = combined([owner, value])
        # A target such as `self.losses["kl"]` changes what `self.losses` stands for.
        if not isinstance(target.value, ast.Subscript):
            self.bind(target.value, changed)

    def _as_seen(self, name: str, value: Value, made_by: ast.expr) -> Value:
        """Return a value with what the variable of the running function says of it."""
        thing = self.variables.get(name, NOTHING)
        if thing is NOTHING:
            return value
        seen = value_of_object(thing, name)
        if not issubclass(type(thing), Tensor):
            return self._thing_as_seen(value, seen, made_by)
        if value.cut is not None and value.cut.flat:
            return value
        if seen.kind is Kind.LIVE and (seen.sources or value.kind is not Kind.LIVE):
            return replace(value, kind=Kind.LIVE, cut=None, sources=value.sources | seen.sources)
        return self._without_graph(value, made_by) if seen.kind is Kind.PLAIN else value

    def _without_graph(self, value: Value, made_by: ast.expr) -> Value:
        """Return a value that has no graph, with what has cut it if it may depend on one."""
        if value.kind is Kind.LIVE:
            cut = value.cut_by(self._cut(made_by, f"`{_callee_text(made_by)}`"))
            return replace(cut, text=value.text, path=value.path, line=value.line)
        made_of_cut = value.kind is Kind.UNKNOWN and value.cut is not None
        return replace(value, kind=Kind.CUT) if made_of_cut else value

    def _thing_as_seen(self, value: Value, seen: Value, made_by: ast.expr) -> Value:
        if seen.items is None or value.items is not None:
            return merged(value, seen)
        if value.kind is not Kind.LIVE:
            return seen
        # A function that is not followed has returned several: these have a graph, those none.
        cut = self._cut(made_by, f"`{_callee_text(made_by)}`")
        items = {
            key: item if item.kind is Kind.LIVE else replace(value.cut_by(cut), text=item.text)
            for key, item in seen.items.items()
        }
        return container(items)

    # Conditions.

    def truth(self, node: ast.expr) -> bool | None:
        """Return what a condition is, where objects of the program tell it for certain."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self.truth(node.operand)
            return None if inner is None else not inner
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._compared(node)
        if isinstance(node, ast.Call) and name_of(node) == "isinstance":
            return self._is_instance(node)
        thing = self._simple(node)
        return None if thing is NOTHING else bool(thing)

    def _is_instance(self, node: ast.Call) -> bool | None:
        """Return whether a module of the program is of a class, where both are known."""
        if len(node.args) != len(("module", "class")):
            return None
        thing, kinds = (self.value(each) for each in node.args)
        listed = [kinds] if kinds.items is None else list(kinds.items.values())
        known = all(inspect.isclass(each.thing) for each in listed)
        if not known or not isinstance(thing.thing, nn.Module):
            return None
        return any(issubclass(type(thing.thing), each.thing) for each in listed)

    def _compared(self, node: ast.Compare) -> bool | None:
        if isinstance(node.ops[0], (ast.Is, ast.IsNot)) and _is_none(node.comparators[0]):
            value = self.value(node.left)
            if value.thing is NOTHING and not value.kind:
                return None
            return (value.thing is None) is isinstance(node.ops[0], ast.Is)
        left, right = self._simple(node.left), self._simple(node.comparators[0])
        if left is NOTHING or right is NOTHING:
            return None
        operation = _COMPARISONS.get(type(node.ops[0]))
        try:
            return None if operation is None else bool(operation(left, right))
        except TypeError:
            return None

    def _key(self, node: ast.expr) -> str | int | None:
        """Return the text or the whole number that an index is, if known."""
        key: Any = _constant(node)
        if key is None and isinstance(node, ast.Name):
            key = self.value(node).thing
        return key if type(key) in (int, str) else None

    def _simple(self, node: ast.expr) -> Any:
        """Return the number, text, truth or None that an expression is and stays, if known."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name) and node.id in self.names:
            # It is bound in this function: the variable may be another by now.
            thing = self.names[node.id].thing
        elif isinstance(node, (ast.Name, ast.Attribute)):
            thing = self.value(node).thing
        else:
            return NOTHING
        return thing if type(thing) in (bool, int, float, str, type(None)) else NOTHING

    # Expressions.

    def value(self, node: ast.expr) -> Value:
        """Return what an expression stands for."""
        self.shared.left -= 1
        if self.shared.left < 0:
            raise _TooMuchError
        method = getattr(self, f"_of_{type(node).__name__.lower()}", None)
        value: Value = self._of_others(node) if method is None else method(node)
        if isinstance(node, (ast.Call, ast.BinOp)):
            value = self._recorded(value)
        if not value.text and not isinstance(node, (ast.Name, ast.Constant)):
            value = replace(value, text=node, path=self.path, line=node.lineno)
        return value

    def _recorded(self, value: Value) -> Value:
        return value if self.off is None else value.cut_by(self.off)

    def _of_constant(self, node: ast.Constant) -> Value:
        return Value(text=repr(node.value), thing=node.value)

    def _of_name(self, node: ast.Name) -> Value:
        scope: Scope | None = self
        while scope is not None:
            if node.id in scope.names:
                found = scope.names[node.id]
                seen = scope.variables.get(node.id, NOTHING)
                if found.thing is NOTHING and isinstance(seen, nn.Module):
                    return replace(found, thing=seen)
                return found
            if node.id in scope.variables:
                return value_of_object(scope.variables[node.id], node.id)
            scope = scope.enclosing
        if node.id in self.namespace:
            return value_of_object(self.namespace[node.id], node.id)
        if hasattr(builtins, node.id):
            return Value(text=node.id, thing=getattr(builtins, node.id))
        return Value(Kind.UNKNOWN, text=node.id)

    def _of_attribute(  # noqa: PLR0911 - one for each kind
        self, node: ast.Attribute
    ) -> Value:
        key = root_key(node)
        if key is not None and key in self.names:
            return self.names[key]
        owner = self.value(node.value)
        if owner.items is not None and node.attr in owner.items:
            return owner.items[node.attr]
        if node.attr in _PLAIN_ATTRIBUTES:
            return Value()
        if owner.kind is Kind.LIVE and node.attr in ("data", "grad"):
            return owner.cut_by(self._cut(node, f"`.{node.attr}`"))
        if owner.thing is NOTHING or issubclass(type(owner.thing), Tensor):
            return replace(owner, parts=(), items=None, thing=NOTHING, text="")
        known = self.shared.attributes.get((id(owner.thing), node.attr))
        thing = attribute_of(owner.thing, node.attr)
        if known is not None:
            return known
        if thing is NOTHING:
            return Value(Kind.UNKNOWN)
        if isinstance(thing, Bound) and isinstance(thing.function, property):
            return self._enter(thing.function.fget, thing.receiver, [], {}) or Value(Kind.UNKNOWN)
        return value_of_object(thing, node)

    def _of_subscript(self, node: ast.Subscript) -> Value:
        owner = self.value(node.value)
        key = self._key(node.slice)
        if owner.items is not None and key is not None:
            if type(key) is int and key < 0:
                key += len(owner.items)
            found = owner.items.get(key)
            return _item_of(owner) if found is None else found
        thing = NOTHING if key is None else item_of(owner.thing, key)
        if thing is not NOTHING:
            return value_of_object(thing, node)
        return replace(owner.whole(), parts=(), thing=NOTHING, text="")

    def _of_tuple(self, node: ast.Tuple | ast.List) -> Value:
        return container(
            [self.value(e.value if isinstance(e, ast.Starred) else e) for e in node.elts]
        )

    _of_list = _of_tuple

    def _of_dict(self, node: ast.Dict) -> Value:
        items: dict[Any, Value] = {}
        for number, (key, item) in enumerate(zip(node.keys, node.values, strict=True)):
            value = self.value(item)
            if key is None and value.items is not None:
                items.update(value.items)
            else:
                known = None if key is None else _constant(key)
                items[("?", number) if known is None else known] = value
        return container(items)

    def _of_binop(self, node: ast.BinOp) -> Value:
        left, right = self.value(node.left), self.value(node.right)
        return self._operated(node.op, left, right, node.left, node.right)

    def _operated(
        self, op: ast.operator, left: Value, right: Value, first: ast.expr, second: ast.expr
    ) -> Value:
        if isinstance(op, ast.Add) and left.items is not None and right.items is not None:
            return container([*left.items.values(), *right.items.values()])
        if isinstance(op, (ast.Add, ast.Sub)):
            return self._added([(left, first, False), (right, second, isinstance(op, ast.Sub))])
        left, right = left.whole(), right.whole()
        if isinstance(op, ast.Mult):
            return scaled(right, left) if left.kind < right.kind else scaled(left, right)
        if isinstance(op, ast.Div):
            return scaled(left, right, over=True)
        result = combined([left, right])
        if isinstance(op, ast.FloorDiv) and result.kind is Kind.LIVE:
            return result.cut_by(self._flat(second, "`//`"))
        return result

    def _added(self, values: Iterable[tuple[Value, ast.expr, bool]]) -> Value:
        parts = []
        for value, node, minus in values:
            whole = value.whole()
            terms = parts_of(whole, self._text(node, value), self.path, node.lineno)
            parts += [replace(part, minus=part.minus is not minus) for part in terms]
        return summed(parts)

    def _text(self, node: ast.expr, value: Value) -> Written:
        if isinstance(node, ast.Name) and node.id in self.aliases and value.text:
            return value.text
        return node

    def _of_unaryop(self, node: ast.UnaryOp) -> Value:
        value = self.value(node.operand)
        if isinstance(node.op, ast.USub):
            number = value.number()
            return negated(value) if number is None else Value(thing=-number)
        return value if isinstance(node.op, ast.UAdd) else Value()

    def _of_compare(self, node: ast.Compare) -> Value:
        value = combined([self.value(part) for part in (node.left, *node.comparators)])
        return value.cut_by(self._cut(node, "a comparison")).stepped()

    def _of_boolop(self, node: ast.BoolOp) -> Value:
        return joined([self.value(each) for each in node.values])

    def _of_ifexp(self, node: ast.IfExp) -> Value:
        known = self.truth(node.test)
        if known is not None:
            return self.value(node.body if known else node.orelse)
        return joined([self.value(node.body), self.value(node.orelse)])

    def _of_namedexpr(self, node: ast.NamedExpr) -> Value:
        value = self.value(node.value)
        self.bind(node.target, value, node.value)
        return value

    def _of_lambda(self, node: ast.Lambda) -> Value:
        return Value(text="lambda", thing=_Local(node, self))

    def _of_starred(self, node: ast.Starred) -> Value:
        return self.value(node.value)

    def _of_yield(self, node: ast.Yield) -> Value:
        self.yielded.append(Value() if node.value is None else self.value(node.value))
        return Value(Kind.UNKNOWN)

    def _of_joinedstr(self, _node: ast.JoinedStr) -> Value:
        return Value()

    def _of_listcomp(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp) -> Value:
        loop = node.generators[0]
        values = iterated(self.value(loop.iter))
        rows = [values] if values.items is None else list(values.items.values())
        made = []
        for row in rows:
            self.bind(loop.target, replace(row, thing=NOTHING) if row is values else row)
            self._alias(loop.target)
            if len(node.generators) == 1 and any(self.truth(t) is False for t in loop.ifs):
                continue
            for inner in node.generators[1:]:
                self.bind(inner.target, self.value(inner.iter).whole())
            made.append(self.value(node.elt))
        return container(made)

    _of_generatorexp = _of_setcomp = _of_listcomp

    def _of_dictcomp(self, node: ast.DictComp) -> Value:
        loop = node.generators[0]
        values = iterated(self.value(loop.iter))
        rows = [values] if values.items is None else list(values.items.values())
        made: dict[Any, Value] = {}
        for number, row in enumerate(rows):
            self.bind(loop.target, row)
            self._alias(loop.target)
            if len(node.generators) == 1 and any(self.truth(t) is False for t in loop.ifs):
                continue
            key = self.value(node.key).thing
            made[key if type(key) in (str, int) else ("?", number)] = self.value(node.value)
        return container(made)

    def _of_others(self, node: ast.expr) -> Value:
        return combined(
            [
                self.value(child)
                for child in ast.iter_child_nodes(node)
                if isinstance(child, ast.expr)
            ]
        )

    # Calls.

    def _of_call(self, node: ast.Call) -> Value:
        given = [self.value(each) for each in node.args]
        named = {k.arg or f"**{i}": self.value(k.value) for i, k in enumerate(node.keywords)}
        owner = self.value(node.func.value) if isinstance(node.func, ast.Attribute) else None
        callee = self._callee(node, owner)
        if self._is_wanted(node):
            self.reached = ReachedCall(node, owner, given, named)
            if self.wanted is not None:
                return Value(Kind.UNKNOWN)  # It runs: what it returns comes later.
        name = name_of(node) or ""
        if name == "backward":
            self.shared.differentiated.update([] if owner is None else [owner])
            return Value()
        value = self._called(node, name, owner, callee, given, named)
        if name in _WITHOUT_SLOPE and value.items is None:
            value = value.stepped()
        is_reduction = name in _REDUCING or name in _SAME_TERMS
        return value if value.callee or is_reduction else replace(value, callee=name)

    def _is_wanted(self, node: ast.Call) -> bool:
        if self.wanted is not None:
            return span_of(node) == self.wanted
        return node.lineno <= self.wanted_line <= (node.end_lineno or 0)

    def _callee(self, node: ast.Call, owner: Value | None) -> Any:
        if owner is None:
            return self.value(node.func).thing
        if owner.thing is NOTHING or not isinstance(node.func, ast.Attribute):
            return NOTHING
        known = self.shared.attributes.get((id(owner.thing), node.func.attr))
        if known is not None and known.thing is not NOTHING:
            return known.thing
        return attribute_of(owner.thing, node.func.attr)

    def _called(  # noqa: PLR0911, PLR0917 - one for each kind; what the call has
        self,
        node: ast.Call,
        name: str,
        owner: Value | None,
        callee: Any,
        given: list[Value],
        named: dict[str, Value],
    ) -> Value:
        if owner is not None and _is_data(owner):
            return self._method(node, name, owner, given, named)
        if isinstance(callee, nn.Module):
            made = self._module(node, callee, given, named)
            self._run_hooks(callee, given, self._recorded(made))
            return made
        if owner is not None and isinstance(owner.thing, nn.Module):
            held = self._held(node, name, owner.thing, given)
            if held is not None:
                return held
        function, receiver = callee, NOTHING
        if isinstance(function, (Bound, MethodType)):
            receiver = getattr(function, "receiver", getattr(function, "__self__", None))
            function = getattr(function, "function", getattr(function, "__func__", None))
        entered = self._enter(function, receiver, given, named)
        if entered is not None:
            return entered
        values = [*given, *named.values()]
        if inspect.isclass(function) and issubclass(function, nn.Module):
            return Value(Kind.UNKNOWN)
        if inspect.isclass(function) and issubclass(function, Optimizer):
            return Value()
        if _is_without_memory(function, owner):
            return self._of_library(node, name, given, named)
        if name in _SCALING and given:
            return given[0]
        result = combined(values).stepped()
        if inspect.isclass(function) or (function is NOTHING and name[:1].isupper()):
            # An object made of these: its attributes may be them.
            items = {k: v for k, v in named.items() if v.kind}
            return replace(result, items=items) if items and not given else result
        if result.kind is Kind.LIVE or inspect.isfunction(function):
            return result
        # Of what is cut off alone, it may make what is: the variable that it is bound to tells.
        cut = result.cut if result.kind is Kind.CUT else None
        return replace(result, kind=Kind.UNKNOWN, cut=cut)

    def _held(
        self, node: ast.Call, name: str, module: nn.Module, given: list[Value]
    ) -> Value | None:
        """Return what a method of torch's gives of what a module holds; None for other methods."""
        if name in _OF_PARAMETERS:
            trained = _trained(module)
            return Value(Kind.LIVE if trained else Kind.PLAIN, sources=trained)
        if name in _OF_MODULES:
            return _parts_of_module(module, name)
        if isinstance(module, nn.ModuleDict) and name in _OF_DICT:
            return self._of_container(node, name, entries_of(module), given)
        return None

    def _module(
        self, node: ast.Call, module: nn.Module, given: list[Value], named: dict[str, Value]
    ) -> Value:
        while type(module).__name__ in _WRAPPERS and (inner := _wrapped(module)) is not None:
            module = inner
        trained = _trained(module)
        forward = type(module).forward
        entered = self._enter(forward, module, given, named)
        if entered is not None and entered.whole().kind is not Kind.UNKNOWN:
            return entered
        result = combined([*given, *named.values()], callee=name_of(node))
        if trained:
            own = Value(Kind.LIVE, sources=trained, callee=name_of(node))
            return combined([own, result], callee=name_of(node))
        return result

    def _run_hooks(self, module: nn.Module, given: list[Value], made: Value) -> None:
        """Follow the result of a module into its forward hooks, which may keep it."""
        for hook in list(vars(module).get("_forward_hooks", {}).values()):
            function, receiver = hook, NOTHING
            if isinstance(hook, MethodType):
                function, receiver = hook.__func__, hook.__self__
            called = value_of_object(module, "module")
            self._enter(function, receiver, [called, container(given), made], {})

    def _enter(
        self, function: Any, receiver: Any, given: list[Value], named: dict[str, Value]
    ) -> Value | None:
        """Follow the values into a function of the user's; None if there is no way."""
        if self.depth >= _CALLS_DEEP:
            return None
        if isinstance(function, _Local):
            inner = Scope(
                self.shared,
                function.scope.path,
                {},
                function.scope.namespace,
                depth=self.depth + 1,
                off=self.off,
            )
            inner.enclosing = function.scope
            return inner.returned(function.node, NOTHING, given, named)
        found = self.shared.source_of(function)
        if found is None:
            return None
        path, function, node = found
        inner = Scope(
            self.shared,
            path,
            _closure_of(function),
            function.__globals__,
            depth=self.depth + 1,
            off=self.off,
        )
        return inner.returned(node, receiver, given, named)

    def returned(
        self,
        node: Function | ast.Lambda,
        receiver: Any,
        given: list[Value],
        named: dict[str, Value],
    ) -> Value:
        """Return what a function returns when it is called with these."""
        self.bind_parameters(node.args, receiver, given, named)
        self.run(node)
        if self.yielded:
            return container([joined(self.yielded)])
        return joined(self.returns) if self.returns else Value()

    def bind_parameters(
        self, expected: ast.arguments, receiver: Any, given: list[Value], named: dict[str, Value]
    ) -> None:
        """Let the parameters of a function stand for what it is called with."""
        names = [each.arg for each in (*expected.posonlyargs, *expected.args)]
        self.names.update((name, Value(Kind.UNKNOWN, text=name)) for name in names)
        for name, default in zip(reversed(names), reversed(expected.defaults), strict=False):
            self.names[name] = self.value(default)
        for each, value in zip(expected.kwonlyargs, expected.kw_defaults, strict=True):
            if value is not None:
                self.names[each.arg] = self.value(value)
        if receiver is not NOTHING and names:
            self.names[names.pop(0)] = value_of_object(receiver, "self")
        self.names.update(zip(names, given, strict=False))
        if expected.vararg is not None:
            self.names[expected.vararg.arg] = container(given[len(names) :])
        known = {*names, *(each.arg for each in expected.kwonlyargs)}
        self.names.update({name: value for name, value in named.items() if name in known})
        self.aliases.update(names)

    def _method(  # noqa: PLR0911 - one for each kind
        self,
        node: ast.Call,
        name: str,
        owner: Value,
        given: list[Value],
        named: dict[str, Value],
    ) -> Value:
        """Return what a method of a tensor, of a container or of something unknown returns."""
        values = [*given, *named.values()]
        if owner.items is not None:
            return self._of_container(node, name, owner, values)
        if name in _PLAIN_METHODS or name.startswith(("new_", "register_")):
            return Value()
        result = combined([owner, *values])
        if name == "requires_grad_" and isinstance(node.func, ast.Attribute):
            is_off = any(each.thing is False for each in values)
            owner = replace(owner, kind=Kind.PLAIN if is_off else Kind.LIVE, cut=None)
            self.bind(node.func.value, owner)
            return owner
        if owner.kind is Kind.LIVE:
            if name in CUTTING_METHODS:
                return owner.cut_by(self._cut(node, f"`.{name}()`"))
            if name in FLAT_METHODS:
                return owner.cut_by(self._flat(node, f"`.{name}()`"))
        if has_indices(node):
            return container(
                [result, result.cut_by(self._cut(node, "taking the indices")).stepped()]
            )
        if name in _SAME_TERMS:
            return replace(result, parts=owner.parts, callee=owner.callee)
        if name in _REDUCING:
            return reduced(replace(result, parts=owner.parts, callee=owner.callee))
        return self._arithmetic(node, name, [owner, *given]) or result

    def _arithmetic(self, node: ast.Call, name: str, values: list[Value]) -> Value | None:
        operation = _ARITHMETIC.get(name.rstrip("_"))
        if operation is None or len(values) != len(("left", "right")):
            return None
        operands = [*node.args]
        if isinstance(node.func, ast.Attribute) and len(operands) < len(values):
            operands.insert(0, node.func.value)
        left, right = values
        result = self._operated(operation, left, right, operands[0], operands[1])
        if name.endswith("_") and isinstance(operands[0], (ast.Name, ast.Attribute)):
            self.bind(operands[0], result)
        return result

    def _of_container(self, node: ast.Call, name: str, owner: Value, values: list[Value]) -> Value:
        items = owner.items or {}
        if name in ("append", "extend", "add", "insert", "update") and values:
            last = values[-1]
            if name == "update" and last.items is not None:
                changed = {**items, **last.items}
            elif name == "extend" and last.items is not None:
                changed = dict(enumerate([*items.values(), *last.items.values()]))
            else:
                changed = _appended(items, last)
            if isinstance(node.func, ast.Attribute):
                self.bind(node.func.value, container(changed))
            return Value()
        if name == "items":
            return container(
                [container([Value(text=repr(k), thing=k), item]) for k, item in items.items()]
            )
        if name in ("values", "copy"):
            return owner
        if name == "keys":
            return container([Value(text=repr(key), thing=key) for key in items])
        if name == "clear" and isinstance(node.func, ast.Attribute):
            self.bind(node.func.value, container({}))
        if name in ("get", "pop"):
            key = self._key(node.args[0]) if node.args else None
            return items[key] if key in items else _item_of(owner)
        return Value() if name == "clear" else owner.whole()

    def _of_library(  # noqa: PLR0911 - one for each kind
        self, node: ast.Call, name: str, given: list[Value], named: dict[str, Value]
    ) -> Value:
        """Return what a function of torch, numpy or Python's returns."""
        given = [iterated(each) if name in _GOING_THROUGH else each for each in given]
        values = [*given, *named.values()]
        result = combined(values)
        first = given[0] if given else Value()
        if name in _PLAIN_CALLS or name in _BY_SHAPE:
            return Value()
        if name == "grad" and not self._creates_graph(node):
            return result.cut_by(
                self._cut(node, f"`{ast.unparse(node.func)}(...)` without create_graph=True")
            )
        if name == "sum" and isinstance(node.func, ast.Name):
            return self._sum(node, first)
        if name in ("list", "tuple", "dict", "reversed", "sorted") and first.items is not None:
            return container({**first.items, **named}) if name == "dict" else first
        if name == "dict" and named:
            return container(named)
        if name == "enumerate":
            return _rows([container([Value() for _ in first.items or ()]), first], result)
        if name == "zip":
            return _rows(given, result)
        cutting = name in CUTTING_OF_TORCH or name in ("array", "asarray") or name in _DRAWING
        if cutting or (isinstance(node.func, ast.Name) and name in CUTTING_CALLS):
            what = f"`{name}()`" if name in CUTTING_CALLS else f"`{ast.unparse(node.func)}(...)`"
            return result.cut_by(self._cut(node, what))
        if name in FLAT_METHODS:
            return result.cut_by(self._flat(node, f"`{ast.unparse(node.func)}(...)`"))
        if name in _JOINING and first.items is not None:
            return self._listed(first)
        if has_indices(node):
            return container(
                [result, result.cut_by(self._cut(node, "taking the indices")).stepped()]
            )
        if name in _REDUCING:
            return reduced(replace(result, parts=first.parts))
        return self._arithmetic(node, name, given) or result

    def _sum(self, node: ast.Call, values: Value) -> Value:
        self.shared.begins_at_zero = True
        return self._listed(values) if values.items is not None else replace(values, text=node)

    def _listed(self, values: Value) -> Value:
        """Return the sum of the items of a list, each a term as it was written."""
        parts: list[Part] = []
        for item in (values.items or {}).values():
            whole = item.whole()
            parts += parts_of(whole, item.text or "?", item.path or self.path, item.line)
        return summed(parts)

    def _creates_graph(self, node: ast.Call) -> bool:
        """Return whether gradients are computed with a graph, or may be."""
        if not isinstance(node.func, ast.Attribute) or name_of(node.func.value) != "autograd":
            return True
        for keyword in node.keywords:
            if keyword.arg in ("create_graph", None):
                return self.truth(keyword.value) is not False
        return False

    def _cut(self, node: ast.expr, what: str) -> Cut:
        return Cut(self.path, node.end_lineno or node.lineno, what)

    def _flat(self, node: ast.expr, what: str) -> Cut:
        line = node.end_lineno or node.lineno
        return Cut(self.path, line, f"the slope of {what} is zero everywhere", flat=True)


def followed_from(function: Any, receiver: Any, shared: Interpretation) -> Value:
    """Return what a method of the user's returns, of whose arguments nothing is known."""
    scope = Scope(shared, "", {}, {})
    try:
        return scope._enter(function, receiver, [], {}) or Value()  # noqa: SLF001 - its module
    except (_TooMuchError, RecursionError):
        return Value()


_COMPARISONS: dict[type[ast.cmpop], Any] = {
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
}
_ARITHMETIC = {
    **{name: ast.Add() for name in ("add", "__add__")},
    **{name: ast.Sub() for name in ("sub", "subtract")},
    **{name: ast.Mult() for name in ("mul", "multiply")},
    **{name: ast.Div() for name in ("div", "divide", "true_divide")},
}
_WRAPPERS = frozenset(
    {"DistributedDataParallel", "DataParallel", "OptimizedModule", "FullyShardedDataParallel"}
)


_OF_DICT = frozenset({"items", "keys", "values"})
_OF_PARAMETERS = frozenset({"parameters", "named_parameters", "state_dict"})


_OF_MODULES = frozenset({"modules", "named_modules", "children", "named_children"})
_MOST_PARTS = 512
"""Modules of one that a loop is followed through. A bound on cost; large models are of a few kinds
of modules, but any one may be the one that counts, so that of more nothing is said."""


def _parts_of_module(module: nn.Module, name: str) -> Value:
    """Return what a loop over the modules within another gets: themselves, or with their names."""
    listed = list(getattr(nn.Module, name)(module))
    if len(listed) > _MOST_PARTS:
        return Value(Kind.UNKNOWN)
    if not name.startswith("named"):
        return container([value_of_object(each, "module") for each in listed])
    rows = [(Value(text=repr(k), thing=k), value_of_object(each, "module")) for k, each in listed]
    return container([container(list(row)) for row in rows])


def _trained(module: nn.Module) -> frozenset[int]:
    return frozenset(id(each) for each in module.parameters() if each.requires_grad)


def _wrapped(module: nn.Module) -> nn.Module | None:
    inner = vars(module).get("_modules", {})
    return inner.get("module", inner.get("_orig_mod"))  # type: ignore[no-any-return]  # a Module


def _is_data(owner: Value) -> bool:
    """Return whether a value is a tensor, an array, a container or what was computed of such."""
    computed = owner.thing is NOTHING or issubclass(type(owner.thing), Tensor)
    return computed or owner.items is not None or owner.kind is not Kind.PLAIN


def _is_without_memory(function: Any, owner: Value | None) -> bool:
    """Return whether a call is of torch, numpy or Python: it holds nothing that is trained."""
    if function is NOTHING or isinstance(function, nn.Module):
        return False
    if owner is not None and isinstance(owner.thing, ModuleType):
        return owner.thing.__name__.partition(".")[0] in _WITHOUT_MEMORY
    module = getattr(function, "__module__", None) or ""
    plain = isinstance(function, (FunctionType, BuiltinFunctionType, type))
    return plain and str(module).partition(".")[0] in _WITHOUT_MEMORY


def _source_of(code: CodeType) -> tuple[str, Function | ast.Lambda] | None:
    tree = tree_of(code.co_filename) if is_user_code(code) else None
    if tree is None:
        return None
    node = innermost(tree, definition_line(code))
    if node is not None and node.name == code.co_name:
        return code.co_filename, node
    lambdas = [
        each
        for each in ast.walk(tree)
        if isinstance(each, ast.Lambda) and each.lineno == code.co_firstlineno
    ]
    return (code.co_filename, lambdas[0]) if len(lambdas) == 1 else None


def _closure_of(function: FunctionType) -> dict[str, Any]:
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # Nothing is bound to it yet.
            found[name] = cell.cell_contents
    return found


def _rows(values: list[Value], whole: Value) -> Value:
    """Return what ``zip`` makes of containers; of others, what is known of all together."""
    columns = [list(value.items.values()) for value in values if value.items is not None]
    if not values or len(columns) < len(values):
        lengths = {len(column) for column in columns}
        if len(lengths) != 1:
            return whole
        others = iter(columns)
        columns = [
            next(others) if value.items is not None else [value] * next(iter(lengths))
            for value in values
        ]
    return container([container(list(row)) for row in zip(*columns, strict=False)])


def _appended(items: dict[Any, Value], value: Value) -> dict[Any, Value]:
    """Return the items with one more; a loop that is gone through again adds it again."""
    if any(v.text and v.text is value.text for v in items.values()):
        return {k: value if v.text is value.text else v for k, v in items.items()}
    return {**items, len(items): value}


def _item_of(owner: Value) -> Value:
    """Return an item of a container; what one that is empty by now has held, nobody knows."""
    return owner.whole() if owner.items else Value(Kind.UNKNOWN)


def _constant(node: ast.expr) -> Any:
    """Return the text or the whole number that an index is, or None."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _constant(node.operand)
        return -inner if type(inner) is int else None
    value = node.value if isinstance(node, ast.Constant) else None
    return value if type(value) in (int, str) else None


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _callee_text(node: ast.expr) -> str:
    return f"{written(node.func)}(...)" if isinstance(node, ast.Call) else written(node)
