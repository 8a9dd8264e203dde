"""Read calls: what torch's functions and methods do, and who else is handed what."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.expressions import container, element_of, read, same_graph
from gradcheck_lint.model.flow import (
    Backward,
    Call,
    GradMode,
    InPlace,
    Proof,
    Step,
    Store,
    StoreKind,
    ZeroGrad,
)
from gradcheck_lint.model.knowledge import (
    FACTORIES,
    GRAD_MODE_CONTEXTS,
    HARMLESS_BUILTINS,
    HARMLESS_PACKAGES,
    INPLACE_METHODS,
    KEPT_MODULE_METHODS,
    MAY_KEEP_THE_GRAPH,
    OWNER_METHODS,
    PARAMETER_CLASSES,
    SAME_GRAPH_METHODS,
    SCALAR_METHODS,
    VARIABLE_CLASSES,
    VIEW_METHODS,
)
from gradcheck_lint.model.state import as_kind
from gradcheck_lint.model.syntax import (
    boolean,
    dotted_name,
    has_star,
    is_none,
    keyword,
    positional,
)
from gradcheck_lint.model.values import (
    NOTHING,
    Kind,
    Origin,
    Value,
    Values,
    all_are,
    held_by,
    implied_by_all,
    join_all,
    mentioned_by,
)

if TYPE_CHECKING:
    from gradcheck_lint.model.reading import Reading
    from gradcheck_lint.model.scopes import FunctionScope

_OPTIMIZER_NAME = re.compile(r"optim(?!.*sched)|(?:^|_)opt(?:$|_|\d)")
_LEAVES = (Kind.LEAF, Kind.LEAF_VIEW)


@dataclass(frozen=True, slots=True)
class Arguments:
    """What is passed in a call, read once."""

    positional: tuple[Values, ...]
    keywords: dict[str, Values]
    everything: Values


def read_call(reading: Reading, node: cst.Call) -> Values:
    """Return what a call may evaluate to, and record what it does."""
    name = dotted_name(node.func)
    qualified = reading.qualified(name)
    if qualified is not None:
        return _read_imported(reading, node, qualified, _read_arguments(reading, node))
    if isinstance(node.func, cst.Attribute):
        return _read_method(reading, node, node.func)
    callee = read(reading, node.func)
    arguments = _read_arguments(reading, node)
    if name in HARMLESS_BUILTINS and all(value.kind is Kind.UNKNOWN for value in callee):
        return _read_builtin(reading, node, name or "", arguments)
    if name in reading.scopes.classes and all(value.kind is Kind.UNKNOWN for value in callee):
        return _make_instance(reading, node, name or "", arguments)
    function = _only_function(callee)
    if function is None:
        reading.recorder.holders.update(
            value.site for value in callee if value.kind is not Kind.FUNCTION
        )
    return _opaque(reading, node, arguments, function=function)


def _read_arguments(reading: Reading, node: cst.Call) -> Arguments:
    ordered: list[Values] = []
    keywords: dict[str, Values] = {}
    for argument in node.args:
        values = read(reading, argument.value)
        if argument.keyword is not None:
            keywords[argument.keyword.value] = values
        elif argument.star:
            ordered.append(element_of(reading, values, argument))
        else:
            ordered.append(values)
        _note_references(reading, argument, values)
    everything = join_all((*ordered, *keywords.values()))
    return Arguments(tuple(ordered), keywords, everything)


def _note_references(reading: Reading, node: cst.CSTNode, values: Values) -> None:
    for value in values:
        if value.function is not None:
            reading.recorder.event(
                Call, node, reading.state.mode, function=value.function, referenced=True
            )


def _only_function(values: Values) -> FunctionScope | None:
    functions = {value.function for value in values}
    return functions.pop() if len(functions) == 1 else None


def _opaque(
    reading: Reading,
    node: cst.Call,
    arguments: Arguments,
    *,
    function: FunctionScope | None = None,
    method: str | None = None,
    receiver: Values = NOTHING,
    harmless: bool = False,
) -> Values:
    """Record a call of which only the arguments are known."""
    mentions = mentioned_by(arguments.everything) | mentioned_by(receiver)
    reading.recorder.event(
        Call,
        node,
        reading.state.mode,
        function=function,
        method=method,
        handed=held_by(arguments.everything) | held_by(receiver),
        mentions=mentions,
        harmless=harmless,
    )
    if function is not None and reading.surroundings.returns_optimizer(function):
        return frozenset({reading.recorder.value(Kind.OPTIMIZER, node)})
    return reading.recorder.unknown(node, origin=Origin.CALL, mentions=mentions)


def _make_instance(
    reading: Reading, node: cst.Call, name: str, arguments: Arguments
) -> Values:
    scope = reading.scopes.classes[name]
    _opaque(reading, node, arguments, function=reading.scopes.method(scope, "__init__"))
    kind = Kind.INSTANCE
    if reading.scopes.derives_from(scope, "torch.optim."):
        kind = Kind.OPTIMIZER
    holds = frozenset({id(node)}) | held_by(arguments.everything)
    return frozenset({reading.recorder.value(kind, node, name=name, holds=holds)})


def _read_builtin(reading: Reading, node: cst.Call, name: str, arguments: Arguments) -> Values:
    make = reading.recorder.value
    first = arguments.positional[0] if arguments.positional else NOTHING
    if name in {"list", "tuple", "set", "sorted", "reversed", "iter", "dict"}:
        if not first:
            return frozenset({make(Kind.CONTAINER, node)})
        if all_are(first, Kind.PARAMETERS):
            return frozenset(replace(value, site=id(node)) for value in first)
        return container(reading, node, [element_of(reading, first, node)])
    if name in {"enumerate", "zip"}:
        number = frozenset({make(Kind.NUMBER, node)})
        elements = [element_of(reading, values, node) for values in arguments.positional]
        parts = (number, *elements[:1]) if name == "enumerate" else tuple(elements)
        pair = make(Kind.TUPLE, node, parts=parts, holds=held_by(arguments.everything))
        return container(reading, node, [frozenset({pair})])
    if name in _NUMBER_BUILTINS:
        return frozenset({make(Kind.NUMBER, node)})
    if name in {"sum", "max", "min"} and first:
        mentions = mentioned_by(arguments.everything)
        return reading.recorder.unknown(node, origin=Origin.CALL, mentions=mentions)
    if name == "setattr" or (name == "getattr" and "grad" in _second_string(node)):
        reading.recorder.event(ZeroGrad, node, reading.state.mode)
    mentions = mentioned_by(arguments.everything)
    holds = held_by(arguments.everything) if name in {"getattr", "next", "filter", "map"} else None
    made = reading.recorder.value(
        Kind.UNKNOWN,
        node,
        origin=Origin.CALL,
        mentions=mentions,
        holds=(holds or frozenset()) | {id(node)},
    )
    return frozenset({made})


_NUMBER_BUILTINS = frozenset(
    "float int bool str len repr format hash id isinstance issubclass hasattr type range round any "
    "all print".split()
)


def _second_string(node: cst.Call) -> str:
    arguments = positional(node)
    if len(arguments) > 1 and isinstance(arguments[1], cst.SimpleString):
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
        return _read_torch(reading, node, qualified, arguments)
    if "zero_grad" in last:
        reading.recorder.event(ZeroGrad, node, reading.state.mode)
    if qualified in {"collections.defaultdict", "collections.OrderedDict", "collections.deque"}:
        if qualified.endswith("deque") and (keyword(node, "maxlen") or len(node.args) > 1):
            return reading.recorder.unknown(node, origin=Origin.BOUNDED)
        return frozenset({make(Kind.CONTAINER, node)})
    if qualified == "tqdm" or qualified.startswith(("tqdm.", "copy.")):
        if last in {"tqdm", "trange", "copy"} and arguments.positional:
            return arguments.positional[0]
    if qualified.endswith("amp.scale_loss") and arguments.positional:
        return same_graph(reading, node, arguments.positional[0])
    if package in {"numpy", "math"}:
        return frozenset({make(Kind.NUMBER, node)})
    return _opaque(reading, node, arguments, harmless=package in HARMLESS_PACKAGES)


def _read_torch(
    reading: Reading, node: cst.Call, qualified: str, arguments: Arguments
) -> Values:
    make = reading.recorder.value
    last = qualified.rpartition(".")[2]
    first = arguments.positional[0] if arguments.positional else NOTHING
    mentions = mentioned_by(arguments.everything)
    _note_functional_write(reading, node, qualified, arguments)
    if qualified in FACTORIES:
        return frozenset({make(_made_by_factory(node, qualified, arguments), node)})
    if qualified in PARAMETER_CLASSES:
        return frozenset({make(_made_by_wrapper(node, default=True), node)})
    if qualified in VARIABLE_CLASSES:
        kind = _made_by_wrapper(node, default=False)
        return frozenset({make(Kind.UNKNOWN if kind is Kind.PLAIN else kind, node)})
    if qualified == "torch.set_grad_enabled":
        wanted = boolean(node.args[0].value) if node.args else None
        reading.state.mode = _MODES[wanted]
    elif last in GRAD_MODE_CONTEXTS and not reading.reads_context:
        # Somebody keeps the context or enters it by hand: from here on the mode is not known.
        reading.state.mode = GradMode.UNKNOWN
    if qualified.startswith("torch.optim.") and "lr_scheduler" not in qualified:
        if last[:1].isupper():
            holds = frozenset({id(node)}) | held_by(arguments.everything)
            return frozenset({make(Kind.OPTIMIZER, node, name=qualified, holds=holds)})
    if "zero" in last and "_foreach" in last:
        reading.recorder.event(ZeroGrad, node, reading.state.mode)
    if qualified == "torch.autograd.backward":
        reading.recorder.event(
            Backward, node, reading.state.mode, values=first, retains_graph=_retains(node)
        )
    if qualified.startswith("torch.nn.") and last[:1].isupper() and ".utils." not in qualified:
        holds = frozenset({id(node)}) | held_by(arguments.everything)
        return frozenset({make(Kind.MODULE, node, name=qualified, holds=holds)})
    if qualified == f"torch.{last}" and last in SAME_GRAPH_METHODS and first:
        return same_graph(reading, node, first)
    reading.recorder.event(
        Call,
        node,
        reading.state.mode,
        handed=held_by(arguments.everything),
        mentions=mentions,
        harmless=True,
    )
    return reading.recorder.unknown(node, origin=Origin.CALL, mentions=mentions)


_MODES = {True: GradMode.ENABLED, False: GradMode.DISABLED, None: GradMode.UNKNOWN}


def _made_by_factory(node: cst.Call, qualified: str, arguments: Arguments) -> Kind:
    wanted = keyword(node, "requires_grad")
    if has_star(node) or keyword(node, "out") is not None:
        return Kind.UNKNOWN
    if qualified in MAY_KEEP_THE_GRAPH and not all_are(arguments.everything, Kind.NUMBER):
        return Kind.UNKNOWN
    if wanted is None:
        return Kind.PLAIN
    return {True: Kind.LEAF, False: Kind.PLAIN, None: Kind.UNKNOWN}[boolean(wanted)]


def _made_by_wrapper(node: cst.Call, *, default: bool) -> Kind:
    ordered = positional(node)
    wanted = keyword(node, "requires_grad") or (ordered[1] if len(ordered) > 1 else None)
    if has_star(node):
        return Kind.UNKNOWN
    choice = default if wanted is None else boolean(wanted)
    return {True: Kind.LEAF, False: Kind.PLAIN, None: Kind.UNKNOWN}[choice]


def _note_functional_write(
    reading: Reading, node: cst.Call, qualified: str, arguments: Arguments
) -> None:
    """Record ``out=w``, ``torch.relu_(w)`` and ``F.relu(w, inplace=True)``."""
    target = keyword(node, "out")
    last = qualified.rpartition(".")[2]
    operation = f"{last}(..., out=...)"
    values = arguments.keywords.get("out", NOTHING)
    if target is None and node.args and ".init." not in qualified:
        if last in INPLACE_METHODS or boolean(keyword(node, "inplace")):
            target = node.args[0].value
            values = arguments.positional[0] if arguments.positional else NOTHING
            operation = f"{last}()"
    if target is not None and not is_none(target):
        reading.recorder.event(
            InPlace, node, reading.state.mode, values=values, target=target, operation=operation
        )


def _read_method(reading: Reading, node: cst.Call, func: cst.Attribute) -> Values:
    method = func.attr.value
    receiver = read(reading, func.value)
    arguments = _read_arguments(reading, node)
    special = _SPECIAL_METHODS.get(method)
    if special is not None:
        result = special(reading, node, receiver, arguments)
        if result is not None:
            return result
    if "zero_grad" in method:
        reading.recorder.event(ZeroGrad, node, reading.state.mode)
        reading.recorder.holders.update(value.site for value in receiver)
    if method in INPLACE_METHODS:
        return _write_in_place(reading, node, func, receiver, arguments)
    tensor = _tensor_method(reading, node, method, receiver)
    if tensor is not None:
        return tensor
    return _read_other_method(reading, node, func, receiver, arguments)


def _read_other_method(
    reading: Reading, node: cst.Call, func: cst.Attribute, receiver: Values, arguments: Arguments
) -> Values:
    method = func.attr.value
    function = _method_of(reading, receiver, method)
    root = dotted_name(func.value)
    if method in OWNER_METHODS:
        reading.recorder.holders.update(value.site for value in receiver)
    if method in KEPT_MODULE_METHODS and function is None:
        return _opaque(reading, node, arguments, method=method, harmless=not node.args)
    used = reading.statement_value is not node
    result = _opaque(
        reading,
        node,
        arguments,
        function=function,
        method=method,
        receiver=NOTHING if used else receiver,
    )
    if root is not None and any(value.kind is Kind.INSTANCE for value in receiver):
        reading.state.forget_attributes(root, next(iter(result)))
    return result


def _method_of(reading: Reading, receiver: Values, method: str) -> FunctionScope | None:
    found = {
        reading.scopes.method(reading.scopes.classes.get(value.name), method)
        if value.kind in {Kind.INSTANCE, Kind.OPTIMIZER}
        else None
        for value in receiver
    }
    return found.pop() if len(found) == 1 else None


def _tensor_method(
    reading: Reading, node: cst.Call, method: str, receiver: Values
) -> Values | None:
    make = reading.recorder.value
    if method in {"detach", "detach_"}:
        if method == "detach_":
            _change(reading, receiver, Kind.PLAIN)
        return frozenset({make(Kind.PLAIN, node, mentions=mentioned_by(receiver))})
    if method in SCALAR_METHODS:
        return frozenset({make(Kind.NUMBER, node)})
    tensors = (*_LEAVES, Kind.PLAIN, Kind.HISTORY, Kind.GRADIENT)
    if method in VIEW_METHODS and all_are(receiver, *_LEAVES):
        return frozenset({make(Kind.LEAF_VIEW, node)})
    if method in VIEW_METHODS | SAME_GRAPH_METHODS and (
        all_are(receiver, *tensors) or method in {"mean", "sum", "clone"}
    ):
        if method in _MAYBE_ITSELF and any(value.kind in _LEAVES for value in receiver):
            return reading.recorder.unknown(node, origin=Origin.CALL)
        return same_graph(reading, node, receiver)
    return None


_MAYBE_ITSELF = frozenset(
    "to cuda cpu float double half bfloat16 contiguous type_as reshape flatten".split()
)


def _change(reading: Reading, values: Values, kind: Kind) -> None:
    for value in values:
        reading.state.replace_site(value.site, as_kind(kind))


def _write_in_place(
    reading: Reading, node: cst.Call, func: cst.Attribute, receiver: Values, arguments: Arguments
) -> Values:
    method = func.attr.value
    if all_are(receiver, Kind.GRADIENT) and method in {"zero_", "fill_", "copy_", "set_"}:
        reading.recorder.event(ZeroGrad, node, reading.state.mode)
    if _reads_gradient(func.value) and method in {"zero_", "fill_", "copy_", "set_"}:
        reading.recorder.event(ZeroGrad, node, reading.state.mode)
    reading.recorder.event(
        InPlace,
        node,
        reading.state.mode,
        values=receiver,
        target=func.value,
        operation=f"{method}()",
    )
    plain = (Kind.PLAIN, Kind.NUMBER, Kind.GRADIENT)
    if all_are(receiver, Kind.PLAIN) and arguments.everything:
        if not all_are(arguments.everything, *plain):
            _change(reading, receiver, Kind.UNKNOWN)
            return reading.recorder.unknown(node, origin=Origin.CALL)
    return receiver


def _reads_gradient(node: cst.BaseExpression) -> bool:
    """Tell whether this is ``p.grad``, ``p.grad.data`` or ``p.grad.detach_()`` and the like."""
    current: cst.BaseExpression = node
    while True:
        if isinstance(current, cst.Call):
            current = current.func
        elif isinstance(current, cst.Subscript):
            current = current.value
        elif isinstance(current, cst.Attribute):
            if current.attr.value == "grad":
                return True
            current = current.value
        else:
            return isinstance(current, cst.Name) and "grad" in current.value


def _read_backward(
    reading: Reading, node: cst.Call, receiver: Values, arguments: Arguments
) -> Values | None:
    if _method_of(reading, receiver, "backward") is not None:
        return None
    ordered = positional(node)
    if ordered and not _is_cotangent(reading, ordered[0], arguments):
        # `engine.backward(loss)`: somebody else's backward, with rules of its own.
        return None
    reading.recorder.event(
        Backward,
        node,
        reading.state.mode,
        values=receiver,
        retains_graph=_retains(node),
    )
    return reading.recorder.unknown(node, origin=Origin.CALL)


def _is_cotangent(reading: Reading, node: cst.BaseExpression, arguments: Arguments) -> bool:
    if is_none(node):
        return True
    if isinstance(node, cst.Call) and (
        reading.qualified(dotted_name(node.func)) or ""
    ).startswith("torch."):
        return True
    return all_are(arguments.positional[0], Kind.PLAIN, Kind.GRADIENT)


def _retains(node: cst.Call) -> bool:
    wanted = [keyword(node, "retain_graph"), keyword(node, "create_graph")]
    return has_star(node) or any(
        value is not None and boolean(value) is not False and not is_none(value)
        for value in wanted
    )


def _read_step(
    reading: Reading, node: cst.Call, receiver: Values, arguments: Arguments
) -> Values | None:
    assert isinstance(node.func, cst.Attribute)
    target: cst.BaseExpression = node.func.value
    values = receiver
    handed = positional(node)
    if handed and _proof(reading, target, receiver) is None:
        # `scaler.step(optimizer)`: the optimizer is the argument.
        target, values, handed = handed[0], arguments.positional[0], []
    proof = _proof(reading, target, values)
    closure = handed[0] if handed else keyword(node, "closure")
    if proof is None:
        return None
    own_step = _method_of(reading, values, "step")
    if own_step is not None:
        _opaque(reading, node, arguments, function=own_step, method="step")
    if closure is not None and not is_none(closure):
        known = arguments.positional[0] if handed else arguments.keywords["closure"]
        if _only_function(known) is None:
            # A closure or a context that can't be looked into may zero the gradients itself.
            return None
    reading.recorder.event(
        Step,
        node,
        reading.state.mode,
        receiver=dotted_name(target),
        values=values,
        proof=proof,
    )
    reading.recorder.holders.update(value.site for value in values)
    return reading.recorder.unknown(node, origin=Origin.CALL)


def _proof(reading: Reading, target: cst.BaseExpression, values: Values) -> Proof | None:
    """Return how sure it is that ``target`` is an optimizer; None if nothing says so."""
    if all_are(values, Kind.OPTIMIZER):
        return Proof.PROVEN
    kinds = {value.kind for value in values}
    last = (dotted_name(target) or "").rpartition(".")[2]
    if kinds - {Kind.UNKNOWN, Kind.OPTIMIZER} or not _OPTIMIZER_NAME.search(last.lower()):
        return None
    open_origins = {Origin.ARGUMENT, Origin.ATTRIBUTE, Origin.ELEMENT}
    if all(value.kind is Kind.OPTIMIZER or value.origin in open_origins for value in values):
        return Proof.NAMED
    return Proof.OPAQUE


def _read_requires_grad(
    reading: Reading, node: cst.Call, receiver: Values, arguments: Arguments
) -> Values | None:
    del arguments
    argument = node.args[0].value if node.args else None
    wanted = True if argument is None else boolean(argument)
    return set_requires_grad(reading, node, receiver, wanted=wanted)


def set_requires_grad(
    reading: Reading, node: cst.CSTNode, values: Values, *, wanted: bool | None
) -> Values:
    """Apply ``requires_grad_(wanted)`` to what is held, under all its names."""
    changed: list[Value] = []
    for value in values:
        kind = value.kind
        if wanted is None and kind in {Kind.LEAF, Kind.PLAIN}:
            kind = Kind.UNKNOWN
        elif wanted and kind is Kind.PLAIN:
            kind = Kind.LEAF
        elif wanted is False and kind in {Kind.LEAF, Kind.LEAF_VIEW}:
            kind = Kind.PLAIN
        reading.state.replace_site(value.site, as_kind(kind))
        changed.append(replace(value, kind=kind))
    return frozenset(changed) or reading.recorder.unknown(node)


def _read_parameters(
    reading: Reading, node: cst.Call, receiver: Values, arguments: Arguments
) -> Values | None:
    del arguments
    assert isinstance(node.func, cst.Attribute)
    if _method_of(reading, receiver, node.func.attr.value) is not None:
        return None
    reading.recorder.holders.update(value.site for value in receiver)
    named = "named" if node.func.attr.value == "named_parameters" else ""
    known = (Kind.MODULE, Kind.INSTANCE)
    value = reading.recorder.value(
        Kind.PARAMETERS,
        node,
        name=named,
        certain=all_are(receiver, *known) and not reading.may_freeze,
        holds=held_by(receiver),
    )
    return frozenset({value})


def _read_append(
    reading: Reading, node: cst.Call, receiver: Values, arguments: Arguments
) -> Values | None:
    assert isinstance(node.func, cst.Attribute)
    if not arguments.positional or _method_of(reading, receiver, node.func.attr.value):
        return None
    stored = arguments.positional[-1]
    target = node.func.value
    root = target
    while isinstance(root, cst.Subscript):
        root = root.value
    name = dotted_name(root)
    if name is not None:
        reading.recorder.event(
            Store,
            node,
            reading.state.mode,
            how=StoreKind.APPEND,
            target=name,
            target_values=reading.look_up(name),
            stored=stored,
            stored_node=positional(node)[-1] if positional(node) else None,
        )
    for value in receiver:
        if value.kind is Kind.CONTAINER:
            # A site keeps its identity; what its elements are is no longer known.
            reading.state.replace_site(value.site, lambda known: replace(known, parts=()))
    return frozenset({reading.recorder.value(Kind.NUMBER, node)})


def _read_scale(
    reading: Reading, node: cst.Call, receiver: Values, arguments: Arguments
) -> Values | None:
    del receiver
    if len(arguments.positional) != 1:
        return None
    scaled = same_graph(reading, node, arguments.positional[0])
    return scaled if implied_by_all(scaled) else None


def _read_pairs(
    reading: Reading, node: cst.Call, receiver: Values, arguments: Arguments
) -> Values | None:
    del arguments
    if not all_are(receiver, Kind.CONTAINER):
        return None
    elements = element_of(reading, receiver, node)
    key = frozenset({reading.recorder.value(Kind.NUMBER, node)})
    assert isinstance(node.func, cst.Attribute)
    if node.func.attr.value == "values":
        return container(reading, node, [elements])
    pair = reading.recorder.value(Kind.TUPLE, node, parts=(key, elements))
    return container(reading, node, [frozenset({pair})])


_SPECIAL_METHODS = {
    "backward": _read_backward,
    "step": _read_step,
    "requires_grad_": _read_requires_grad,
    "parameters": _read_parameters,
    "named_parameters": _read_parameters,
    "append": _read_append,
    "appendleft": _read_append,
    "extend": _read_append,
    "insert": _read_append,
    "scale": _read_scale,
    "items": _read_pairs,
    "values": _read_pairs,
}
