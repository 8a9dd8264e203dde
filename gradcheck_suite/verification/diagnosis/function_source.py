"""Which line of a custom Function to change: its source is read, and nothing of it is run.

A gradient that is wrong was returned by an expression of ``backward``: the element of the returned
tuple that belongs to that argument of forward, or the statement that last gave a value to the name
that stands there. What else is known of a mistake (an average in place of a sum, a layout, a write)
may narrow it down to one of the statements that this value is made of.
"""

from __future__ import annotations

import ast
import inspect
import linecache
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch

from gradcheck_suite._runtime.frames import Owner, owner_of_file
from gradcheck_suite.findings import Location, Related
from gradcheck_suite.verification.target.graph_walk import method_location

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import CodeType, TracebackType

__all__ = [
    "Place",
    "Suspicion",
    "backward_place",
    "error_place",
    "gradient_place",
    "hook_place",
    "kept_place",
    "lost_place",
    "returned_place",
    "written_input_place",
]

Suspicion: TypeAlias = Literal[
    "alone",
    "ignored",
    "layout",
    "mean",
    "nonlinear",
    "random",
    "saved",
    "sizes",
    "undefined",
    "written",
]
"""What is known of a mistake beside the gradient that is wrong: it shows where some inputs need no
gradient, for one layout or size, or where one output is not used; an output's gradient is ignored;
an average is taken for a sum; backward is not linear, draws random numbers, or writes into what was
saved or into what it is given."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CONVERSIONS = _words(
    "bfloat16 clone contiguous double expand_as float half reshape reshape_as sum_to_size to type "
    "type_as view view_as"
)
"""Methods that hand a value on: the value was made before."""
_ALIASES = _CONVERSIONS | _words(
    "T as_strided chunk data detach expand flatten imag mT movedim narrow permute ravel real "
    "select split squeeze swapaxes t transpose unbind unflatten unsqueeze"
)
"""Methods and attributes whose results may lie in the memory of what they are asked of."""
_CUTS = _words("data detach detach_ item no_grad numpy tolist")
"""Methods, attributes and contexts that keep autograd from following a value."""
_AVERAGES = _words("average mean nanmean")
_STRIDES = (
    _words("as_strided data_ptr from_blob storage untyped_storage"),
    _words("resize_ set_ storage_offset stride"),
)
_DRAWS = (
    _words(
        "bernoulli bernoulli_ dropout exponential_ multinomial normal normal_ rand rand_like "
        "randint randint_like randn randn_like random random_ randperm uniform uniform_"
    ),
    _words("empty empty_like empty_strided new_empty"),
)
_NOT_LINEAR = _words(
    "abs ceil clamp clamp_ clamp_max clamp_min clip clip_ dropout exp floor log norm normalize pow "
    "relu relu_ round round_ sgn sigmoid sign sign_ softmax sqrt square tanh topk trunc vector_norm"
)
_MOST_DEPTH = 3
"""How many functions deep calls are followed. A bound on cost; helpers of helpers are rare."""
_MOST_ARGUMENTS = 64
"""How many gradients of one backward are looked at where it is not known which is wrong. A bound on
cost; no forward takes more arguments."""
_MOST_RELATED = 3
"""How many statements that may be meant are listed. Chosen; only the length of a report depends on
it."""


@dataclass(frozen=True, slots=True)
class Place:
    """The line to change, and others that explain it."""

    location: Location | None = None
    related: tuple[Related, ...] = ()


def backward_place(function: type | None) -> Place:
    """Return the ``def`` line of a Function's backward."""
    return Place(method_location(function, _backward_name(function)))


def gradient_place(
    function: type | None,
    argument: int | None,
    *,
    suspicion: Suspicion | None = None,
    incoming: int | None = None,
) -> Place:
    """Return the expression of backward that makes the gradient of one argument.

    Args:
        function: the custom Function.
        argument: of its forward, counted from 0 after ctx; None where it is not known.
        suspicion: what else is known of the mistake.
        incoming: the output whose gradient arrives, where one alone shows the mistake.

    Returns:
        The ``def`` of backward where its source does not tell; nothing without a source.
    """
    body = _Body.of(getattr(function, _backward_name(function), None))
    if body is None:
        return backward_place(function)
    decisive = body.decisive(suspicion)
    if decisive:
        return _located(decisive)
    made = body.returned(argument) if argument is not None else body.likeliest(suspicion)
    if made is None:
        return backward_place(function)
    related = []
    handed = None if argument is None else body.returned(argument, depth=_MOST_DEPTH)
    if handed is not None and handed.body.node is not made.body.node:
        related.append(Related(handed.location, "called here"))
    if suspicion == "ignored" and incoming is not None:
        unused = body.unread(body.incoming[incoming : incoming + 1])
        if unused is not None:
            related.append(Related(made.location, "what is returned is made without it"))
            return Place(body.location_of(unused), tuple(related))
    suspects = _suspects(made, suspicion)
    if len(suspects) > 1:
        related += [Related(found.location_of(node), "or here") for found, node in suspects]
    elif suspects and _located(suspects).location != made.location:
        related.insert(0, Related(made.location, "this gradient is made here"))
        return Place(_located(suspects).location, tuple(related))
    return Place(made.location, tuple(related[:_MOST_RELATED]))


def returned_place(function: type | None, method: str, number: int | None = None) -> Place:
    """Return the ``return`` of a Function's method, or what it returns in one place."""
    body = _Body.of(getattr(function, method, None))
    made = None if body is None or number is None else body.returned(number)
    if made is not None:
        return Place(made.location)
    last = None if body is None else body.last_return()
    if body is None or last is None:
        return Place(method_location(function, method))
    return Place(body.location_of(last))


def written_input_place(function: type | None, argument: int) -> Place:
    """Return the statement of forward that writes into one of its arguments."""
    setup = getattr(function, "setup_context", None)
    body = _Body.of(getattr(function, "forward", None))
    if body is None:
        return Place(method_location(function, "forward"))
    takes_ctx = setup is torch.autograd.Function.setup_context
    names = body.arguments[1:] if takes_ctx else body.arguments
    written = list(body.writes_into(names[argument : argument + 1]))
    return _located(written) if written else Place(method_location(function, "forward"))


def lost_place(function: type | None) -> Place:
    """Return where a Function cuts off what its backward would have to be differentiated through.

    That is a ``detach()`` in backward, or something that forward has computed and saves, which is
    neither an input nor an output.
    """
    backward = _Body.of(getattr(function, _backward_name(function), None))
    if backward is None:
        return backward_place(function)
    cuts = [(backward, node) for node in backward.cuts(backward.statements)]
    if cuts:
        return _located(cuts)
    read = backward.context_attributes()
    for method in ("setup_context", "forward"):
        body = _Body.of(getattr(function, method, None))
        saved = [] if body is None else list(body.saved_intermediates(read))
        if body is not None and saved:
            return _located([(body, node) for node in saved])
    return backward_place(function)


def kept_place(functions: Iterable[type]) -> Place:
    """Return where Functions keep what backward reads as attributes of ctx.

    Unlike with ``save_for_backward``, nobody notices when that is overwritten before backward.
    """
    found: list[_Found] = []
    for function in functions:
        backward = _Body.of(getattr(function, _backward_name(function), None))
        read = set() if backward is None else backward.context_attributes()
        for method in ("setup_context", "forward"):
            body = _Body.of(getattr(function, method, None))
            if body is not None:
                found += ((body, node) for node in body.keeps(read))
    return _located(found) if found else Place()


def hook_place(hook: object) -> Place:
    """Return the last ``return`` with a value of a function that was registered as a hook."""
    body = _Body.of(hook)
    last = None if body is None else body.last_return()
    if body is None or last is None or _is_none(last.value):
        return Place()
    return Place(body.location_of(last))


def error_place(error: BaseException, function: type | None, method: str | None = None) -> Place:
    """Return the user's innermost line of an exception that backward, or another method, raised."""
    entry: TracebackType | None = error.__traceback__
    found: Location | None = None
    while entry is not None:
        code = entry.tb_frame.f_code
        if _is_users(code):
            name = getattr(code, "co_qualname", code.co_name)
            found = Location(code.co_filename, entry.tb_lineno, function=name)
        entry = entry.tb_next
    return Place(found or method_location(function, method or _backward_name(function)))


def _backward_name(function: type | None) -> str:
    backward = getattr(function, "backward", None)
    return "vjp" if backward is torch.autograd.Function.backward else "backward"


def _is_users(code: CodeType) -> bool:
    path = code.co_filename
    if owner_of_file(path) in {Owner.US, Owner.PYTHON}:
        return False
    return not path.startswith(_TORCH)


_TORCH = str(inspect.getfile(torch)).removesuffix("__init__.py")


_Found: TypeAlias = "tuple[_Body, ast.AST]"


def _located(found: Sequence[_Found]) -> Place:
    """Return the first of several nodes, with the others beside it."""
    places = list(dict.fromkeys(body.location_of(node) for body, node in found))
    others = places[1 : 1 + _MOST_RELATED]
    return Place(places[0], tuple(Related(other, "and here") for other in others))


@dataclass(frozen=True, slots=True)
class _Binding:
    """A statement that gives a name a value, or writes into what it stands for.

    Attributes:
        name: what is bound or written to.
        statement: where.
        order: of the statement in its function.
        value: what the name stands for after it, if that is an expression; of a tuple that is
            taken apart, its ``index`` says which.
        guards: the statements that it depends on whether this one runs.
        writes: whether it changes the value in place.
    """

    name: str
    statement: ast.stmt
    order: int
    value: ast.expr | None
    index: int | None = None
    guards: tuple[ast.stmt, ...] = ()
    writes: bool = False


@dataclass(frozen=True, slots=True)
class _Made:
    """What makes a returned value: the node to show, and all that the value is made of."""

    body: _Body
    node: ast.AST
    parts: tuple[_Found, ...] = ()
    guards: tuple[ast.stmt, ...] = ()

    @property
    def location(self) -> Location:
        return self.body.location_of(self.node)


@dataclass(slots=True)
class _Body:
    """The source of one Python function: its statements in order, and what each of them binds."""

    function: FunctionType
    node: ast.FunctionDef
    statements: list[ast.stmt] = field(default_factory=list)
    bindings: list[_Binding] = field(default_factory=list)

    @classmethod
    def of(cls, function: Any) -> _Body | None:
        """Read the source of a function; None where there is none."""
        function = inspect.unwrap(function) if callable(function) else None
        if not isinstance(function, FunctionType):
            return None
        node = _definition(function.__code__)
        if node is None:
            return None
        body = cls(function, node)
        body._collect(node.body, ())
        return body

    @property
    def arguments(self) -> list[str]:
        """The names of its positional parameters."""
        return [argument.arg for argument in self._parameters()]

    @property
    def incoming(self) -> list[str]:
        """The names of the gradients that a backward is given."""
        more = self.node.args.vararg
        return self.arguments[1:] + ([] if more is None else [more.arg])

    def location_of(self, node: ast.AST) -> Location:
        """Return where a node stands."""
        line = getattr(node, "lineno", self.node.lineno)
        code = self.function.__code__
        return Location(code.co_filename, line, function=self.function.__qualname__)

    def unread(self, names: Sequence[str]) -> ast.arg | None:
        """Return the first of some parameters that no statement reads."""
        read = {
            part.id
            for part in ast.walk(self.node)
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)
        }
        unread = [one for one in self._parameters() if one.arg in names and one.arg not in read]
        return unread[0] if unread else None

    def last_return(self) -> ast.Return | None:
        """Return the last ``return`` with a value."""
        found = [one for one in self.statements if isinstance(one, ast.Return) and one.value]
        return found[-1] if found else None

    def returned(self, number: int, *, depth: int = 0) -> _Made | None:
        """Find what makes the value that is returned in one place; None where that is unclear."""
        returns = [
            (order, statement.value)
            for order, statement in enumerate(self.statements)
            if isinstance(statement, ast.Return) and statement.value is not None
        ]
        best: _Made | None = None
        for order, value in reversed(returns):
            found = self._element(value, number, order, depth)
            if found is None:
                continue
            if not _is_none(found.node):
                return found
            best = best or found
        return best

    def likeliest(self, suspicion: Suspicion | None) -> _Made | None:
        """Find what makes the one gradient that is returned, or that a suspicion points to."""
        made = [found for number in range(_MOST_ARGUMENTS) if (found := self.returned(number))]
        made = list({found.location: found for found in made if not _is_none(found.node)}.values())
        suspected = [found for found in made if _suspects(found, suspicion)]
        return next(iter(suspected or (made if len(made) == 1 else ())), None)

    def decisive(self, suspicion: Suspicion | None) -> list[_Found]:
        """Return statements that a suspicion points to, whichever gradient is wrong.

        They write into what backward is given, or into what forward saved, which is also why a
        backward may not be linear, or differ from call to call; or ask for undefined gradients.
        """
        if suspicion == "written":
            return list(self.writes_into(self.incoming))
        if suspicion in {"saved", "nonlinear", "random"}:
            return list(self.writes_into(self.saved_names(), saved=True))
        if suspicion == "undefined":
            return [(self, one) for one in self.statements if self._asks_for_none(one)]
        return []

    def _asks_for_none(self, statement: ast.stmt) -> bool:
        """Return whether a statement tells an undefined incoming gradient from others."""
        return any(
            isinstance(part, ast.Compare)
            and any(map(_is_none, part.comparators))
            and bool(set(self.incoming) & _names_in(part.left))
            for part in _own_parts(statement)
        )

    def cuts(self, nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
        """Yield what keeps autograd from following a value."""
        for statement in nodes:
            for part in _own_parts(statement):
                if isinstance(part, ast.Attribute) and part.attr in _CUTS:
                    yield part

    def context_attributes(self) -> set[str]:
        """Return the attributes of ctx that are read."""
        ctx = self.arguments[:1]
        return {
            part.attr
            for part in ast.walk(self.node)
            if isinstance(part, ast.Attribute)
            and isinstance(part.value, ast.Name)
            and [part.value.id] == ctx
        }

    def saved_names(self) -> list[str]:
        """Return the names of what was taken from ctx."""
        return [one.name for one in self.bindings if one.value and self._is_saved(one.value)]

    def writes_into(self, names: Iterable[str], *, saved: bool = False) -> Iterator[_Found]:
        """Yield statements that write into what some names stand for, or into ctx itself."""
        owned = set(names)
        ctx = self.arguments[0] if saved and self.arguments else ""
        for one in self.bindings:
            if one.writes:
                if one.name in owned or (saved and one.name == ctx):
                    yield self, one.statement
            elif one.value is not None and _alias_of(one.value) in owned:
                owned.add(one.name)
            elif one.name in owned and not (one.value and self._is_saved(one.value)):
                owned.discard(one.name)

    def keeps(self, wanted: set[str]) -> Iterator[ast.AST]:
        """Yield the statements that set one of these attributes of ctx to more than a constant."""
        ctx = self.arguments[:1]
        for statement in self.statements:
            if not isinstance(statement, ast.Assign):
                continue
            for target in statement.targets:
                for left, right, _ in _paired(target, statement.value):
                    if (
                        isinstance(left, ast.Attribute)
                        and isinstance(left.value, ast.Name)
                        and [left.value.id] == ctx
                        and left.attr in wanted
                        and not isinstance(right, ast.Constant)
                    ):
                        yield statement

    def saved_intermediates(self, read: Iterable[str]) -> Iterator[ast.AST]:
        """Yield where forward saves what is neither an input nor an output, or cuts it off."""
        given, returned = set(self.arguments), self._returned_names()
        if self.function.__name__ == "setup_context":
            given |= {one.name for one in self.bindings if _alias_of(one.value) in given}
        wanted = set(read)
        for order, statement in enumerate(self.statements):
            for value in self._saved_by(statement, wanted):
                if isinstance(value, ast.Name) and value.id not in given | returned:
                    parts = [node for _, node in self._parts(value, order, 0)]
                    cut = next(self.cuts(parts), None)
                    if cut is not None:
                        yield cut
                    elif self._bound(value.id, order):
                        yield statement

    def tainted(self) -> set[str]:
        """Return the names of what is computed of the incoming gradients."""
        found = set(self.incoming)
        for one in self.bindings:
            if one.value is not None and found & _names_in(one.value):
                found.add(one.name)
        return found

    def _parameters(self) -> list[ast.arg]:
        return [*self.node.args.posonlyargs, *self.node.args.args]

    def _collect(self, block: Iterable[ast.stmt], guards: tuple[ast.stmt, ...]) -> None:
        for statement in block:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                continue
            order = len(self.statements)
            self.statements.append(statement)
            self.bindings += _bindings(statement, order, guards)
            inner = (*guards, statement) if isinstance(statement, ast.If) else guards
            for name in ("body", "orelse", "finalbody"):
                self._collect(getattr(statement, name, ()), inner)
            for handler in getattr(statement, "handlers", ()):
                self._collect(handler.body, inner)

    def _element(self, value: ast.expr, number: int, order: int, depth: int) -> _Made | None:
        """Find one element of what is returned at a statement, and where it was made."""
        if isinstance(value, ast.Call) and _called_name(value) in {"tuple", "list"} and value.args:
            value = value.args[0]
        elements = _elements(value)
        if elements is not None:
            if number >= len(elements) or any(
                isinstance(one, ast.Starred) for one in elements[: number + 1]
            ):
                return None
            return self._made(elements[number], order, depth)
        if isinstance(value, ast.Name):
            return self._element_of_name(value.id, number, order, depth)
        if isinstance(value, ast.Call):
            inside = self._inside(value, number, order, depth)
            if inside is not None:
                return inside
        return self._made(value, order, depth) if number == 0 else None

    def _element_of_name(self, name: str, number: int, order: int, depth: int) -> _Made | None:
        """Find one element of a tuple or list that a name stands for."""
        bound = [one for one in self._bound(name, order) if not _is_none(one.value)]
        for one in reversed(bound):
            target = _subscript_of(one.statement, name)
            if target == number:
                return self._shown(one.statement, one, depth)
        last = next((one for one in reversed(bound) if not one.writes), None)
        if last is not None and last.value is not None and last.index is None:
            inside = _elements(last.value)
            if inside is not None or isinstance(last.value, ast.Call):
                found = self._element(last.value, number, last.order, depth)
                if found is not None:
                    return found
        if number:
            return None
        return self._made(
            ast.copy_location(ast.Name(name, ast.Load()), self.statements[order]), order, depth
        )

    def _made(self, value: ast.expr, order: int, depth: int) -> _Made:
        """Find where a value was made: at the expression, or where its name was last bound."""
        parts = tuple(self._parts(value, order, depth))
        if isinstance(value, ast.Call):
            inside = self._inside(value, 0, order, depth)
            if inside is not None:
                return inside
        binding = self._origin(value, order)
        if binding is None:
            return _Made(self, value, parts)
        if isinstance(binding.value, ast.Call) and not binding.writes:
            inside = self._inside(binding.value, binding.index or 0, binding.order, depth)
            if inside is not None:
                return inside
        return _Made(self, binding.statement, parts, binding.guards)

    def _shown(self, node: ast.stmt, binding: _Binding, depth: int) -> _Made:
        value = binding.value
        parts = () if value is None else tuple(self._parts(value, binding.order, depth))
        return _Made(self, node, ((self, node), *parts), binding.guards)

    def _origin(self, value: ast.expr, order: int) -> _Binding | None:
        """Return the statement that last gave the name a value, through renames; None for none."""
        name = _handed_on(value)
        if name is None:
            return None
        bound = [one for one in self._bound(name, order) if not _is_none(one.value)]
        if not bound or (bound[-1].value is not None and self._is_saved(bound[-1].value)):
            return None
        last = bound[-1]
        if last.writes or last.value is None:
            return last
        return self._origin(last.value, last.order) or last

    def _inside(self, call: ast.Call, number: int, order: int, depth: int) -> _Made | None:
        """Find the value in a helper that is called with nothing but what backward is given."""
        if depth >= _MOST_DEPTH or not all(self._is_given(one, order) for one in _given_to(call)):
            return None
        body = _Body.of(self._callee(call.func))
        return None if body is None else body.returned(number, depth=depth + 1)

    def _is_given(self, value: ast.expr, order: int) -> bool:
        """Return whether an expression only names what backward was given or forward saved."""
        if isinstance(value, ast.Starred):
            value = value.value
        if isinstance(value, (ast.Constant, ast.Attribute)):
            return True
        if not isinstance(value, ast.Name):
            return False
        bound = self._bound(value.id, order)
        return all(one.value is not None and self._is_saved(one.value) for one in bound)

    def _callee(self, function: ast.expr) -> FunctionType | None:
        """Return the user's Python function that a call names; nothing is computed for it."""
        value: Any = None
        names: dict[str, Any] = getattr(self.function, "__globals__", {})
        if isinstance(function, ast.Name):
            closure = zip(
                self.function.__code__.co_freevars, self.function.__closure__ or (), strict=False
            )
            cells = dict(closure)
            if function.id in cells:
                value = _contents(cells[function.id])
            else:
                value = names.get(function.id)
        elif isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            owner = names.get(function.value.id)
            if isinstance(owner, (ModuleType, type)):
                value = vars(owner).get(function.attr)
        value = getattr(value, "__func__", value)
        if isinstance(value, FunctionType) and _is_users(value.__code__):
            return value
        return None

    def _parts(self, value: ast.AST, order: int, depth: int) -> Iterator[_Found]:
        """Yield everything that a value is made of: expressions, statements, helpers' bodies."""
        seen: set[int] = set()
        pending: list[tuple[ast.AST, int]] = [(value, order)]
        while pending:
            node, before = pending.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            yield self, node
            for part in _own_parts(node):
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
                    # A loop may use what a later statement of it has bound.
                    pending += [(one.statement, before) for one in self._bound(part.id, before)]
                elif isinstance(part, ast.Call) and depth < _MOST_DEPTH:
                    body = _Body.of(self._callee(part.func))
                    for statement in () if body is None else body.statements:
                        yield body, statement  # type: ignore[misc]

    def _bound(self, name: str, before: int) -> list[_Binding]:
        return [one for one in self.bindings if one.name == name and one.order < before]

    def _is_saved(self, value: ast.expr) -> bool:
        """Return whether an expression reads from ctx and computes nothing."""
        while isinstance(value, (ast.Subscript, ast.Starred)):
            value = value.value
        return (
            isinstance(value, ast.Attribute)
            and isinstance(value.value, ast.Name)
            and [value.value.id] == self.arguments[:1]
        )

    def _saved_by(self, statement: ast.stmt, wanted: set[str]) -> Iterator[ast.expr]:
        """Yield what a statement saves for backward."""
        for part in _own_parts(statement):
            if isinstance(part, ast.Call) and _called_name(part) == "save_for_backward":
                yield from part.args
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                for left, right, _ in _paired(target, statement.value):
                    if isinstance(left, ast.Attribute) and left.attr in wanted:
                        yield right

    def _returned_names(self) -> set[str]:
        names: set[str] = set()
        for statement in self.statements:
            if isinstance(statement, ast.Return) and statement.value is not None:
                elements = _elements(statement.value)
                for one in [statement.value] if elements is None else elements:
                    if isinstance(one, ast.Name):
                        names.add(one.id)
        return names


def _definition(code: CodeType) -> ast.FunctionDef | None:
    """Return the parsed ``def`` of a code object."""
    lines = linecache.getlines(code.co_filename)
    try:
        tree = ast.parse("".join(lines)) if lines else None
    except (SyntaxError, ValueError):
        return None
    for node in () if tree is None else ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    return None


def _contents(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _bindings(statement: ast.stmt, order: int, guards: tuple[ast.stmt, ...]) -> Iterator[_Binding]:
    """Yield what a simple statement binds, and what it writes into."""
    if isinstance(statement, ast.AugAssign):
        name = _root(statement.target)
        if name is not None:
            yield _Binding(name, statement, order, statement.value, None, guards, writes=True)
    for target, value, index in _assigned(statement):
        if isinstance(target, ast.Name):
            yield _Binding(target.id, statement, order, value, index, guards)
        elif (name := _root(target)) is not None:
            yield _Binding(name, statement, order, value, index, guards, writes=True)
    for part in _own_parts(statement):
        if isinstance(part, ast.NamedExpr):
            yield _Binding(part.target.id, statement, order, part.value, None, guards)
        elif isinstance(part, ast.Call):
            for name in _written_by(part):
                yield _Binding(name, statement, order, part, None, guards, writes=True)


def _assigned(statement: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr, int | None]]:
    """Yield the targets of an assignment or a loop, each with what it gets."""
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            yield from _paired(target, statement.value)
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        yield statement.target, statement.value, None
    elif isinstance(statement, (ast.For, ast.AsyncFor)):
        yield from _paired(statement.target, statement.iter)


def _written_by(call: ast.Call) -> Iterator[str]:
    """Yield the names that a call writes into: ``x.add_(y)``, ``torch.add(x, y, out=z)``."""
    function = call.func
    if isinstance(function, ast.Attribute):
        method = function.attr
        if method.endswith("_") and not method.startswith("_") and method != "requires_grad_":
            name = _root(function.value)
            if name is not None:
                yield name
    for keyword in call.keywords:
        name = _root(keyword.value) if keyword.arg == "out" else None
        if name is not None:
            yield name


def _paired(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr, int | None]]:
    """Yield each target of an assignment with its value, and which element of the value it gets."""
    if not isinstance(target, (ast.Tuple, ast.List)):
        yield target, value, None
    elif isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
        for one, other in zip(target.elts, value.elts, strict=True):
            yield from _paired(one, other)
    else:
        for index, one in enumerate(target.elts):
            yield one, value, index


def _elements(value: ast.expr) -> list[ast.expr] | None:
    """Return the elements of a tuple that is written out, sums of such tuples included."""
    if isinstance(value, (ast.Tuple, ast.List)):
        return value.elts
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        left = _elements(value.left)
        if left is None:
            return None
        right = _elements(value.right)
        return left + ([ast.Starred(value.right, ast.Load())] if right is None else right)
    return None


def _subscript_of(statement: ast.stmt, name: str) -> int | None:
    """Return which element of a list a statement fills: ``grads[1] = ...``."""
    for target in statement.targets if isinstance(statement, ast.Assign) else ():
        if (
            isinstance(target, ast.Subscript)
            and isinstance(target.value, ast.Name)
            and target.value.id == name
            and isinstance(target.slice, ast.Constant)
            and isinstance(target.slice.value, int)
        ):
            return target.slice.value
    return None


def _handed_on(value: ast.expr) -> str | None:
    """Return the name whose value an expression hands on, converted at most."""
    while (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr in _CONVERSIONS
    ):
        value = value.func.value
    return value.id if isinstance(value, ast.Name) else None


def _alias_of(value: ast.expr | None) -> str | None:
    """Return the name whose memory an expression may lie in."""
    while True:
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            value = value.func
        if (isinstance(value, ast.Attribute) and value.attr in _ALIASES) or isinstance(
            value, ast.Subscript
        ):
            value = value.value
        else:
            return value.id if isinstance(value, ast.Name) else None


def _root(value: ast.expr) -> str | None:
    """Return the name that a target of a write begins with."""
    while True:
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            value = value.func.value
        elif isinstance(value, (ast.Subscript, ast.Attribute, ast.Starred)):
            value = value.value
        else:
            return value.id if isinstance(value, ast.Name) else None


def _own_parts(node: ast.AST) -> Iterator[ast.AST]:
    """Walk what belongs to a statement or expression itself, not the statements inside of it."""
    pending = [node]
    while pending:
        part = pending.pop(0)
        yield part
        pending += [
            child
            for child in ast.iter_child_nodes(part)
            if not isinstance(child, (ast.stmt, ast.ExceptHandler))
        ]


def _is_none(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _names_in(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _called_name(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _given_to(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _suspects(made: _Made, suspicion: Suspicion | None) -> list[_Found]:
    """Return the nodes that a value is made of which what is known of the mistake points to."""
    if suspicion == "alone":
        asking = [one for one in made.guards if "needs_input_grad" in ast.dump(one.test)]  # type: ignore[attr-defined]
        return [(made.body, one) for one in asking[-1:]]
    for wanted in _predicates(made.body, suspicion):
        found: dict[Location, _Found] = {}
        for body, node in made.parts:
            for part in _own_parts(node):
                if wanted(part):
                    found.setdefault(body.location_of(part), (body, part))
        if found:
            return list(found.values())
    return []


def _predicates(body: _Body, suspicion: Suspicion | None) -> Iterator[Callable[[ast.AST], bool]]:
    """Yield what to look for, the likeliest first."""
    if suspicion == "mean":
        yield lambda part: isinstance(part, ast.Call) and _called_name(part) in _AVERAGES
    elif suspicion == "sizes":
        yield lambda part: isinstance(part, ast.BinOp) and isinstance(part.op, ast.FloorDiv)
    elif suspicion == "layout":
        for names in _STRIDES:
            yield lambda part, names=names: _reads(part, names)  # type: ignore[misc]
    elif suspicion == "random":
        for names in _DRAWS:
            yield lambda part, names=names: (  # type: ignore[misc]
                isinstance(part, ast.Call) and _called_name(part) in names
            )
    elif suspicion == "nonlinear":
        tainted = body.tainted()
        yield (
            lambda part: (
                isinstance(part, ast.Call)
                and _called_name(part) in _NOT_LINEAR
                and bool(tainted & _names_in(part))
            )
        )
        yield lambda part: isinstance(part, ast.Compare) and bool(tainted & _names_in(part))


def _reads(part: ast.AST, names: frozenset[str]) -> bool:
    return isinstance(part, ast.Attribute) and part.attr in names
