"""Read calls: who is called, and what the call may evaluate to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.arguments import (
    Arguments,
    called_by,
    is_loss,
    only_function,
    read_arguments,
    record_call,
)
from gradcheck_lint.model.arithmetic import same_graph
from gradcheck_lint.model.attaching import may_hold_layers
from gradcheck_lint.model.attributes import fields_of
from gradcheck_lint.model.comprehensions import DRAINING
from gradcheck_lint.model.elements import element_of
from gradcheck_lint.model.expressions import container, read
from gradcheck_lint.model.flow import Attach, InPlace, ZeroGrad
from gradcheck_lint.model.forward import is_model, read_forward, without_none
from gradcheck_lint.model.knowledge import HARMLESS_BUILTINS, HARMLESS_PACKAGES
from gradcheck_lint.model.methods import read_method
from gradcheck_lint.model.syntax import (
    dotted_name,
    integer,
    is_none,
    keyword,
    place_name,
    positional,
)
from gradcheck_lint.model.torch_functions import read_torch_call
from gradcheck_lint.model.values import (
    NOTHING,
    Kind,
    Origin,
    Value,
    Values,
    all_are,
    carrying,
    cut_of,
    held_by,
    mentioned_by,
    replace,
)

if TYPE_CHECKING:
    from gradcheck_lint.model.reading import Reading

_CLASS_NAME = re.compile("[A-Z][a-z]")


def read_call(reading: Reading, node: cst.Call) -> Values:
    """Return what a call may evaluate to, and record what it does."""
    name = dotted_name(node.func) or ""
    qualified = reading.qualified(name or None)
    if qualified is not None:
        return _read_imported(reading, node, qualified, read_arguments(reading, node))
    if type(node.func) is cst.Attribute and name not in reading.scopes.dotted:
        return read_method(reading, node, node.func, name)
    return _read_called(reading, node, name)


def _read_called(reading: Reading, node: cst.Call, name: str) -> Values:
    """Read the call of what a name or an expression holds."""
    callee = without_none(read(reading, node.func))
    if name in DRAINING and node.args:
        reading.drained_by = node
    arguments = read_arguments(reading, node)
    partial = _partial_of(reading, callee)
    if partial is not None:
        return _read_imported(reading, node, partial, arguments)
    is_bound = any(value.kind is not Kind.UNKNOWN for value in callee)
    if name in HARMLESS_BUILTINS and not is_bound:
        return _read_builtin(reading, node, name, arguments)
    if name in reading.scopes.classes and not is_bound:
        return _make_instance(reading, node, name, arguments)
    if name == "setattr" and len(arguments.positional) == _TRIPLE:
        _note_set(reading, node, arguments)
    function = only_function(callee)
    if function is None and not _CLASS_NAME.match(name):
        owners = (value.site for value in callee if value.kind is not Kind.FUNCTION)
        reading.recorder.holders.update(owners)
        if is_model(reading, name or place_name(node.func) or "", callee):
            return read_forward(reading, node, callee, arguments)
    function, method = called_by(reading, callee, None)
    harmless = function is None and is_loss(node)
    made = record_call(
        reading,
        node,
        arguments,
        function=function,
        method=method,
        receiver=callee if function is None and reading.statement_value is node else NOTHING,
        harmless=harmless,
        owner=NOTHING if method is None else callee,
    )
    if _CLASS_NAME.match(name) and callee and all(_is_namedtuple(reading, each) for each in callee):
        whole = [reading.look_up(dotted_name(each.value) or "") for each in node.args if each.star]
        made = carrying(made, *arguments.positional, *arguments.keywords.values(), *whole)
    return made


def _partial_of(reading: Reading, callee: Values) -> str | None:
    """Return what is called where ``partial(torch.optim.Adam, lr=0.1)`` is."""
    if len(callee) != 1:
        return None
    (made,) = callee
    call = made.node
    if type(call) is not cst.Call or not call.args:
        return None
    if reading.scopes.resolve_import(dotted_name(call.func) or "") != "functools.partial":
        return None
    return reading.qualified(dotted_name(call.args[0].value))


def _make_instance(reading: Reading, node: cst.Call, name: str, arguments: Arguments) -> Values:
    scope = reading.scopes.classes[name]
    maker = reading.scopes.method(scope, "__init__")
    record_call(reading, node, arguments, function=maker, is_constructor=True)
    kind = Kind.INSTANCE
    if reading.scopes.derives_from(scope, "torch.optim.lr_scheduler."):
        kind = Kind.SCHEDULER
    elif reading.scopes.derives_from(scope, "torch.optim."):
        kind = Kind.OPTIMIZER
    name = scope.name.rpartition(".")[2]  # a class of another file may have other names here
    holds = frozenset({id(node)}) | held_by(arguments.everything)
    entries: dict[str, Values] = {}
    if maker is None and kind is Kind.INSTANCE:
        entries = dict(zip(fields_of(scope.node), arguments.positional, strict=False))
        entries.update(arguments.keywords)
    made = reading.recorder.value(
        kind, node, name=name, holds=holds, entries=tuple(entries.items())
    )
    return frozenset({made})


def _is_namedtuple(reading: Reading, value: Value) -> bool:
    """Tell whether this is a class that ``namedtuple`` has made: it keeps what it is given."""
    made = value.node
    return type(made) is cst.Call and (
        reading.qualified(dotted_name(made.func)) == "collections.namedtuple"
    )


def _read_builtin(reading: Reading, node: cst.Call, name: str, arguments: Arguments) -> Values:
    make = reading.recorder.value
    if name in _CONTAINER_BUILTINS:
        return _read_container_builtin(reading, node, arguments)
    if name in {"enumerate", "zip"}:
        number = reading.recorder.number(node)
        elements = [element_of(reading, values, node) for values in arguments.positional]
        parts = (number, *elements[:1]) if name == "enumerate" else tuple(elements)
        pair = make(Kind.TUPLE, node, parts=parts, holds=held_by(arguments.everything))
        return container(reading, node, [frozenset({pair})])
    if name in _NUMBER_BUILTINS:
        cut = _cut_by_number(node, arguments) if name in {"float", "int", "round"} else None
        return reading.recorder.number(node, cut)
    if name == "sum" and len(arguments.positional) == 1:
        added = element_of(reading, arguments.positional[0], node)
        if all_are(added, Kind.NUMBER):
            return reading.recorder.number(node, cut_of(added))
        return same_graph(reading, node, added)
    if name == "setattr" or (name == "getattr" and "grad" in _second_string(node)):
        reading.recorder.event(ZeroGrad, node, reading.state.mode)
    hands_on = name in {"getattr", "next", "filter", "map"}
    holds = held_by(arguments.everything) if hands_on else frozenset[int]()
    made = make(
        Kind.UNKNOWN,
        node,
        origin=Origin.CALL,
        mentions=mentioned_by(arguments.everything),
        holds=holds | {id(node)},
    )
    return frozenset({made})


def _cut_by_number(node: cst.Call, arguments: Arguments) -> cst.CSTNode | None:
    """Return what cut the graph of what ``float`` is given, which is that call if it has one."""
    given = arguments.everything
    has_graph = any(value.kind is Kind.HISTORY or value.through for value in given)
    return node if has_graph else cut_of(given)


def _cut_within(arguments: Arguments) -> cst.CSTNode | None:
    """Return what cut the graph of what numpy is given, or of the elements of a list."""
    given = arguments.everything
    return cut_of(given, *(part for value in given for part in value.parts))


def _note_set(reading: Reading, node: cst.Call, arguments: Arguments) -> None:
    """Record ``setattr(model, "head", nn.Linear(...))``."""
    base, _, attached = arguments.positional
    name = _second_string(node).strip("\"'")
    if not name.isidentifier() or not all_are(attached, Kind.MODULE, Kind.LEAF):
        return
    if may_hold_layers(reading, base):
        path = f"{place_name(node.args[0].value)}.{name}"
        reading.recorder.event(
            Attach, node, reading.state.mode, path=path, values=base, attached=attached
        )


_TRIPLE = 3


def _read_container_builtin(reading: Reading, node: cst.Call, arguments: Arguments) -> Values:
    first = arguments.positional[0] if arguments.positional else NOTHING
    if not first and arguments.keywords and not any(argument.star for argument in node.args):
        parts = list(arguments.keywords.values())
        return container(reading, node, parts, entries=arguments.keywords)
    if not first:
        return frozenset({reading.recorder.value(Kind.CONTAINER, node)})
    if all_are(first, Kind.PARAMETERS):
        return frozenset(replace(value, site=id(node)) for value in first)
    return container(reading, node, [element_of(reading, first, node)])


_CONTAINER_BUILTINS = frozenset({"list", "tuple", "set", "sorted", "reversed", "iter", "dict"})
_NUMBER_BUILTINS = frozenset(
    {"float", "int", "bool", "str", "len", "repr", "format", "hash", "id", "isinstance", "print"}
    | {"issubclass", "hasattr", "type", "range", "round", "any", "all"}
)


def _second_string(node: cst.Call) -> str:
    arguments = positional(node)
    if len(arguments) > 1 and type(arguments[1]) is cst.SimpleString:
        return arguments[1].value
    return ""


def _read_imported(
    reading: Reading, node: cst.Call, qualified: str, arguments: Arguments
) -> Values:
    """Read the call of something imported."""
    make = reading.recorder.value
    package, _, _ = qualified.partition(".")
    last = qualified.rpartition(".")[2]
    if package == "torch":
        return read_torch_call(reading, node, qualified, arguments)
    if qualified == "dataclasses.field":
        return _read_field(reading, node, arguments)
    if "zero_grad" in last:
        reading.recorder.event(ZeroGrad, node, reading.state.mode)
    made: Values | None = None
    if qualified in _CONTAINER_CLASSES:
        made = frozenset({make(Kind.CONTAINER, node)})
        if last == "defaultdict":
            made = _made_on_demand(reading, node) or made
        if last == "deque" and _is_short(node):
            made = reading.recorder.unknown(node, origin=Origin.BOUNDED)
    elif arguments.positional and package in {"tqdm", "copy"} and last in _SAME_ELEMENTS:
        made = arguments.positional[0]
    elif arguments.positional and qualified.endswith("amp.scale_loss"):
        made = same_graph(reading, node, arguments.positional[0])
    elif last in _NAMESPACES and last not in reading.scopes.classes and not arguments.positional:
        holds = frozenset({id(node)}) | held_by(arguments.everything)
        entries = tuple(arguments.keywords.items())
        made = frozenset({make(Kind.INSTANCE, node, holds=holds, entries=entries)})
    elif package == "itertools":
        made = container(reading, node, [arguments.everything])
    elif package in {"numpy", "math"}:
        _note_numpy_write(reading, node, arguments)
        made = reading.recorder.number(node, _cut_within(arguments))
    if made is not None:
        return made
    return record_call(reading, node, arguments, harmless=package in HARMLESS_PACKAGES)


def _note_numpy_write(reading: Reading, node: cst.Call, arguments: Arguments) -> None:
    """Record ``np.clip(a, 0, 1, out=a)``."""
    written = keyword(node, "out")
    if written is not None:
        reading.recorder.event(
            InPlace,
            node,
            reading.state.mode,
            values=arguments.keywords.get("out", NOTHING),
            target=written,
            operation="out=",
        )


def _read_field(reading: Reading, node: cst.Call, arguments: Arguments) -> Values:
    """Return what a field of a dataclass is at first: ``field(default_factory=list)``."""
    factory = dotted_name(keyword(node, "default_factory")) or ""
    if factory in _CONTAINER_BUILTINS or reading.qualified(factory) in _CONTAINER_CLASSES:
        return frozenset({reading.recorder.value(Kind.CONTAINER, node)})
    return arguments.keywords.get("default") or reading.recorder.unknown(node, origin=Origin.CALL)


def _made_on_demand(reading: Reading, node: cst.Call) -> Values:
    """Return the dictionary that ``defaultdict(Meter)`` makes, of objects of this file."""
    name = dotted_name(node.args[0].value) if node.args else None
    if name is None or name not in reading.scopes.classes:
        return NOTHING
    if any(value.kind is not Kind.UNKNOWN for value in reading.look_up(name)):
        return NOTHING
    site = reading.recorder.intern(("made on demand", id(node)))
    made = reading.recorder.value(Kind.INSTANCE, node, site=site, name=name)
    return container(reading, node, [frozenset({made})])


def _is_short(node: cst.Call) -> bool:
    """Tell whether a deque drops what is old before that is much, unless it says otherwise."""
    given = positional(node)
    limit = given[1] if len(given) > 1 else keyword(node, "maxlen")
    number = integer(limit)
    return limit is not None and not is_none(limit) and (number is None or number <= _FEW)


_FEW = 1000
"""So many graphs may be in memory at once: a mean over the last hundred losses is no leak."""
_NAMESPACES = frozenset(
    {"SimpleNamespace", "Namespace", "Munch", "EasyDict", "DotDict", "AttrDict"}
)
"""Classes whose objects have what they are given as attributes."""
_CONTAINER_CLASSES = frozenset(
    {"collections.defaultdict", "collections.OrderedDict", "collections.deque"}
)
_SAME_ELEMENTS = frozenset({"tqdm", "trange", "copy"})
