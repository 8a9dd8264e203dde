"""Read method calls: on tensors, parameters, containers, and objects of this file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from gradcheck_lint.model.arguments import (
    Arguments,
    called_by,
    method_of,
    read_arguments,
    record_call,
)
from gradcheck_lint.model.arithmetic import same_graph
from gradcheck_lint.model.attaching import ATTACHING_METHODS, note_attached_by_call
from gradcheck_lint.model.attributes import assigns_attribute
from gradcheck_lint.model.elements import element_of, is_rest, one_of_rest
from gradcheck_lint.model.entries import note_update
from gradcheck_lint.model.expressions import container, read
from gradcheck_lint.model.flow import Freeze, InPlace, Store, StoreKind, ZeroGrad
from gradcheck_lint.model.forward import is_model, read_forward, without_none
from gradcheck_lint.model.knowledge import (
    BACKWARD_BY_ENGINE,
    CUTTING_METHODS,
    GRAPHLESS_METHODS,
    INPLACE_METHODS,
    KEPT_MODULE_METHODS,
    MAYBE_ITSELF_METHODS,
    OWNER_METHODS,
    SAME_GRAPH_METHODS,
    SAME_MODULE_METHODS,
    SCALAR_METHODS,
    SCALED,
    SETTINGS,
    TENSOR_METHODS,
    VIEW_METHODS,
)
from gradcheck_lint.model.own_leaves import own_leaf
from gradcheck_lint.model.saving import note_method
from gradcheck_lint.model.state import as_kind
from gradcheck_lint.model.syntax import (
    boolean,
    dotted_name,
    keyword,
    last_word,
    place_name,
    positional,
)
from gradcheck_lint.model.training_calls import (
    is_scaler,
    note_clip,
    read_backward,
    read_backward_by_engine,
    read_half_step,
    read_mode_switch,
    read_step,
    read_unscale,
    read_update,
)
from gradcheck_lint.model.values import (
    NO_SITES,
    NOTHING,
    Kind,
    Origin,
    Value,
    Values,
    aliased_by,
    all_are,
    carried_by_all,
    cut_of,
    implied_by_all,
    mentioned_by,
    replace,
    through_all,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from gradcheck_lint.model.reading import Reading
    from gradcheck_lint.model.scopes import FunctionScope

_LEAVES = (Kind.LEAF, Kind.LEAF_VIEW)


def read_method(reading: Reading, node: cst.Call, func: cst.Attribute, path: str) -> Values:
    """Return what a method call may evaluate to, and record what it does.

    ``path`` is the dotted name of what is called, "" if it has none.
    """
    method = func.attr.value
    inherited = _inherited(reading, func)
    if inherited is not None:
        return _read_inherited(reading, node, method, inherited)
    receiver = without_none(read(reading, func.value))
    arguments = read_arguments(reading, node)
    special = _SPECIAL_METHODS.get(method)
    if special is not None:
        result = special(reading, node, receiver, arguments)
        if result is not None:
            return result
    if "zero_grad" in method:
        if method_of(reading, receiver, method) is None:
            reading.recorder.event(
                ZeroGrad,
                node,
                reading.state.mode,
                receiver=place_name(func.value),
                values=receiver,
            )
        reading.recorder.hold(receiver)
        if method == "zero_grad" and method_of(reading, receiver, method) is None:
            return reading.recorder.number(node)
    if method in INPLACE_METHODS:
        return _write_in_place(reading, node, func, receiver, arguments)
    if reading.notes_saves:
        note_method(reading, node, receiver, arguments)
    if method in _OF_TENSORS:
        return _read_tensor_method(reading, node, func, receiver, arguments, path=path)
    return _read_other_method(reading, node, func, receiver, arguments, path=path)


def _read_tensor_method(
    reading: Reading,
    node: cst.Call,
    func: cst.Attribute,
    receiver: Values,
    arguments: Arguments,
    *,
    path: str,
) -> Values:
    method = func.attr.value
    made = _run_layer(reading, node, func, receiver, arguments)
    if made is None:
        made = _without_graph(reading, node, method, receiver)
    if made is None:
        made = _tensor_method(reading, node, method, receiver)
    if made is None:
        made = _read_other_method(reading, node, func, receiver, arguments, path=path)
    if method in _SHARES_MEMORY:
        shared = aliased_by(receiver)
        made = frozenset(replace(value, aliases=value.aliases | shared) for value in made)
    return made


def _inherited(reading: Reading, func: cst.Attribute) -> FunctionScope | None:
    """Return the method of a base class of this file that ``super().method`` means."""
    if type(func.value) is not cst.Call or dotted_name(func.value.func) != "super":
        return None
    return reading.scopes.inherited_method(reading.scope.owner, func.attr.value)


def _read_inherited(
    reading: Reading, node: cst.Call, method: str, function: FunctionScope
) -> Values:
    first = reading.scope.first_parameter or "self"
    itself = reading.look_up(first)
    arguments = read_arguments(reading, node)
    result = record_call(reading, node, arguments, function=function, method=method, owner=itself)
    reading.state.forget_attributes(first, next(iter(result)))
    return result


def _read_other_method(
    reading: Reading,
    node: cst.Call,
    func: cst.Attribute,
    receiver: Values,
    arguments: Arguments,
    *,
    path: str,
) -> Values:
    method = func.attr.value
    function = method_of(reading, receiver, method)
    if method in _TREATED_APART:
        made = _read_known_method(reading, node, func, receiver, arguments, function=function)
        if made is not None:
            return made
    if function is None and path:
        callee = without_none(reading.look_up(path))
        if is_model(reading, path, callee):
            return read_forward(reading, node, callee, arguments)
        function, called_as = called_by(reading, callee, method)
        method = called_as or method
    result = record_call(
        reading,
        node,
        arguments,
        function=function,
        method=method,
        receiver=NOTHING if reading.statement_value is not node else receiver,
        owner=receiver,
    )
    if any(value.kind is Kind.INSTANCE for value in receiver):
        root = dotted_name(func.value)
        may_change = function is not None or not _was_given(reading, receiver, method)
        if root is not None and may_change:
            reading.state.forget_attributes(root, next(iter(result)))
    return result


def _read_known_method(
    reading: Reading,
    node: cst.Call,
    func: cst.Attribute,
    receiver: Values,
    arguments: Arguments,
    *,
    function: FunctionScope | None,
) -> Values | None:
    """Return what a method of a known name makes, None if that is what any other makes."""
    method = func.attr.value
    if method in _CHANGES_ENTRIES:
        _forget_entries(reading, receiver)
    if method in _SETTINGS_METHODS and function is None:
        record_call(reading, node, arguments, method=method, harmless=True)
        settings = reading.recorder.value(Kind.UNKNOWN, node, name=SETTINGS, holds=frozenset())
        return frozenset({settings})
    if method in OWNER_METHODS:
        reading.recorder.hold(receiver)
    if method in ATTACHING_METHODS:
        note_attached_by_call(reading, node, func, receiver, arguments)
    is_own = method == "apply" and function is not None
    if method in SAME_MODULE_METHODS and not is_own and all_are(receiver, *_MODULES):
        record_call(reading, node, arguments, method=method, harmless=True)
        return receiver
    if method in KEPT_MODULE_METHODS and function is None and not _are_results(receiver):
        made = record_call(reading, node, arguments, method=method, harmless=not node.args)
        if method in MAYBE_ITSELF_METHODS and reading.recorder.are_batches(receiver):
            reading.recorder.batches.update(value.site for value in made)
        return made
    if method in _NOT_HANDED_ON and function is None:
        made = record_call(reading, node, arguments, method=method, harmless=True, owner=receiver)
        flowed, carried = mentioned_by(receiver), carried_by_all(receiver)
        if reading.recorder.are_batches(receiver):
            reading.recorder.batches.update(value.site for value in made)
        return frozenset(
            replace(value, mentions=value.mentions | flowed, carries=value.carries | carried)
            for value in made
        )
    return None


def _run_layer(
    reading: Reading, node: cst.Call, func: cst.Attribute, receiver: Values, arguments: Arguments
) -> Values | None:
    """Return what ``self.norm(x)`` makes, if that is a layer and no method of a tensor."""
    if func.attr.value not in _NAMES_OF_LAYERS or not all_are(receiver, Kind.INSTANCE):
        return None
    layers = reading.look_up(dotted_name(func) or "")
    if not all_are(layers, Kind.MODULE):
        return None
    return read_forward(reading, node, layers, arguments)


_NAMES_OF_LAYERS = TENSOR_METHODS | SAME_GRAPH_METHODS
_NOT_HANDED_ON = TENSOR_METHODS | KEPT_MODULE_METHODS
_OF_ONE_TENSOR = VIEW_METHODS | SAME_GRAPH_METHODS


_MODULES = (Kind.MODULE, Kind.INSTANCE)


def _was_given(reading: Reading, receiver: Values, attribute: str) -> bool:
    """Tell whether an object keeps what is called here, as ``self.criterion``: it is no method.

    What is called then has no hold of the object.
    """
    return all(
        value.kind is Kind.INSTANCE
        and any(
            assigns_attribute(method, attribute)
            for owner in reading.scopes.lineage(reading.scopes.classes.get(value.name))
            for method in owner.methods.values()
        )
        for value in receiver
    )


def _are_results(values: Values) -> bool:
    """Tell whether these are tensors that a model has computed, and no models themselves."""
    return bool(values) and all(
        value.through and value.kind in {Kind.UNKNOWN, Kind.HISTORY} for value in values
    )


def _tensor_method(
    reading: Reading, node: cst.Call, method: str, receiver: Values
) -> Values | None:
    make = reading.recorder.value
    if method in {"detach", "detach_"}:
        if method == "detach_":
            _change(reading, receiver, Kind.PLAIN)
            _cut_containers(reading, receiver, node)
        return frozenset({make(Kind.PLAIN, node, mentions=mentioned_by(receiver), cut=node)})
    if method in SCALAR_METHODS:
        cut = _cut(receiver, node) if method in CUTTING_METHODS else None
        shared = aliased_by(receiver) if method == "numpy" else NO_SITES
        return frozenset({make(Kind.NUMBER, node, cut=cut, aliases=shared)})
    tensors = (*_LEAVES, Kind.PLAIN, Kind.HISTORY, Kind.GRADIENT)
    if method in VIEW_METHODS and all_are(receiver, *_LEAVES):
        return frozenset({make(Kind.LEAF_VIEW, node)})
    if method in _OF_ONE_TENSOR and (
        all_are(receiver, *tensors, Kind.NUMBER) or method in {"mean", "sum", "clone"}
    ):
        if method in MAYBE_ITSELF_METHODS and any(value.kind in _LEAVES for value in receiver):
            return receiver | same_graph(reading, node, receiver)
        return same_graph(reading, node, receiver)
    return None


def _without_graph(
    reading: Reading, node: cst.Call, method: str, receiver: Values
) -> Values | None:
    """Return the integers or truths that a method makes of a tensor with a graph, or a new one."""
    if method in _NEW_TENSOR and _are_tensors(receiver) and keyword(node, "requires_grad") is None:
        return frozenset({reading.recorder.value(Kind.PLAIN, node)})
    if method not in GRAPHLESS_METHODS or all_are(receiver, Kind.INSTANCE, Kind.MODULE):
        return None
    cut = _cut(receiver, node)
    if cut is None:
        return None
    made = reading.recorder.value(Kind.PLAIN, node, mentions=mentioned_by(receiver), cut=cut)
    return frozenset({made})


_NEW_TENSOR = frozenset({"new", "new_empty", "new_full", "new_ones", "new_zeros"})
"""Methods that make a tensor of the same type, with no graph and memory of its own."""


def _are_tensors(values: Values) -> bool:
    """Tell whether these are known to be tensors, or what a model has computed."""
    return bool(values) and all(
        value.kind in {Kind.HISTORY, Kind.PLAIN, *_LEAVES} or value.through for value in values
    )


def _cut(receiver: Values, node: cst.Call) -> cst.CSTNode | None:
    """Return the call that takes a graph away, if there is one to take."""
    had_graph = any(value.kind is Kind.HISTORY or value.through for value in receiver)
    return node if had_graph else cut_of(receiver)


def _forget_entries(reading: Reading, values: Values) -> None:
    for value in values:
        if value.entries:
            reading.state.replace_site(value.site, lambda known: replace(known, entries=()))


_CHANGES_ENTRIES = frozenset({"update", "pop", "popitem", "clear", "setdefault"})
_SETTINGS_METHODS = frozenset({"parse_args", "parse_intermixed_args"})
_TREATED_APART = (
    _CHANGES_ENTRIES
    | _SETTINGS_METHODS
    | OWNER_METHODS
    | ATTACHING_METHODS
    | SAME_MODULE_METHODS
    | _NOT_HANDED_ON
)
_SHARES_MEMORY = VIEW_METHODS | MAYBE_ITSELF_METHODS | {"detach", "chunk", "split", "unbind"}
_OF_TENSORS = (
    _NAMES_OF_LAYERS
    | GRAPHLESS_METHODS
    | SCALAR_METHODS
    | _OF_ONE_TENSOR
    | _SHARES_MEMORY
    | {"detach_", "new"}
)
"""Methods of which more is known if they are called on tensors."""


def _change(reading: Reading, values: Values, kind: Kind) -> None:
    for value in values:
        reading.state.replace_site(value.site, as_kind(kind))


def _cut_containers(reading: Reading, elements: Values, node: cst.Call) -> None:
    """Note for each container that ``for state in states: state.detach_()`` goes through it."""
    for element in elements:
        if element.origin is Origin.ELEMENT:
            for site in element.mentions - {element.site}:
                # Values are compared without their cuts: only what is uncertain is another value.
                reading.state.replace_site(
                    site, lambda value: replace(value, cut=node, certain=False)
                )


def _write_in_place(
    reading: Reading, node: cst.Call, func: cst.Attribute, receiver: Values, arguments: Arguments
) -> Values:
    method = func.attr.value
    overwrites = method in {"zero_", "fill_", "copy_", "set_"}
    if overwrites and (all_are(receiver, Kind.GRADIENT) or _reads_gradient(func.value)):
        reading.recorder.event(
            ZeroGrad,
            node,
            reading.state.mode,
            values=receiver,
            clears=method == "zero_",
            leaf=own_leaf(reading, func.value),
        )
    reading.recorder.event(
        InPlace,
        node,
        reading.state.mode,
        values=receiver,
        target=func.value,
        operation=f"{method}()",
        written=arguments.everything,
    )
    plain = (Kind.PLAIN, Kind.NUMBER, Kind.GRADIENT)
    grows = bool(arguments.everything) and not all_are(arguments.everything, *plain)
    if grows and all_are(receiver, Kind.PLAIN):
        _change(reading, receiver, Kind.UNKNOWN)
        return reading.recorder.unknown(node, origin=Origin.CALL)
    return receiver


def _reads_gradient(node: cst.BaseExpression) -> bool:
    """Tell whether this is ``p.grad``, ``p.grad.data`` or ``p.grad.detach_()`` and the like."""
    current: cst.BaseExpression = node
    while True:
        if type(current) is cst.Call:
            current = current.func
        elif type(current) is cst.Subscript:
            current = current.value
        elif type(current) is cst.Attribute:
            if current.attr.value == "grad":
                return True
            current = current.value
        else:
            return type(current) is cst.Name and "grad" in current.value


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
    reading.recorder.event(Freeze, node, reading.state.mode, values=values, wanted=wanted)
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
    assert type(node.func) is cst.Attribute
    if method_of(reading, receiver, node.func.attr.value) is not None:
        return None
    reading.recorder.hold(receiver)
    reading.recorder.models.update(value.site for value in receiver)
    named = "named" if node.func.attr.value == "named_parameters" else ""
    known = (Kind.MODULE, Kind.INSTANCE)
    value = reading.recorder.value(
        Kind.PARAMETERS,
        node,
        name=named,
        certain=all_are(receiver, *known) and not reading.may_freeze,
        holds=_owners(receiver),
    )
    return frozenset({value})


def _owners(receiver: Values) -> frozenset[int]:
    """Return the models that parameters belong to, without what the models were made from."""
    return frozenset(value.site for value in receiver)


def _emptied(changes: dict[str, Any]) -> Callable[[Value], Value]:
    return lambda known: replace(known, parts=(), **changes)


def _read_append(
    reading: Reading, node: cst.Call, receiver: Values, arguments: Arguments
) -> Values | None:
    assert type(node.func) is cst.Attribute
    if not arguments.positional or method_of(reading, receiver, node.func.attr.value):
        return None
    stored = arguments.positional[-1]
    name = dotted_name(_container_of(node.func.value))
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
    cut, through = cut_of(stored), through_all(stored)
    for value in receiver:
        if value.kind is Kind.CONTAINER:
            # A site keeps its identity; what its elements are is no longer known. As values are
            # compared without their cuts, one with a cut is uncertain to be another.
            changes = {"cut": cut, "certain": False} if cut is not None and not value.cut else {}
            if through:
                changes["through"] = value.through | through
                changes["mentions"] = value.mentions | mentioned_by(stored)
            reading.state.replace_site(value.site, _emptied(changes))
    return reading.recorder.number(node)


def _container_of(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return what holds a list by a key or an index: ``d`` of ``d[k]``, ``d.setdefault(k, [])``."""
    while True:
        if type(node) is cst.Subscript:
            node = node.value
        elif (
            type(node) is cst.Call
            and type(node.func) is cst.Attribute
            and node.func.attr.value == "setdefault"
            and any(type(default) is cst.List for default in positional(node)[1:])
        ):
            node = node.func.value
        else:
            return node


def _read_scale(
    reading: Reading, node: cst.Call, receiver: Values, arguments: Arguments
) -> Values | None:
    assert type(node.func) is cst.Attribute
    if len(arguments.positional) != 1:
        return None
    scaled = same_graph(reading, node, arguments.positional[0])
    if not implied_by_all(scaled):
        return None
    if is_scaler(node.func.value, receiver):
        sure = all_are(receiver, Kind.SCALER)
        scaled = frozenset(replace(value, name=SCALED, certain=sure) for value in scaled)
    return scaled


def _read_clip(
    reading: Reading, node: cst.Call, receiver: Values, arguments: Arguments
) -> Values | None:
    """Record ``accelerator.clip_grad_norm_(parameters, limit)``, which unscales by itself."""
    del receiver
    assert type(node.func) is cst.Attribute
    owner = last_word(place_name(node.func.value)).lower()
    if BACKWARD_BY_ENGINE.search(owner) is None or not arguments.positional:
        return None
    note_clip(reading, node, arguments)
    return reading.recorder.unknown(node, origin=Origin.CALL)


def _read_optimizers(
    reading: Reading, node: cst.Call, receiver: Values, arguments: Arguments
) -> Values | None:
    """Return Lightning's ``self.optimizers()``: what is unpacked from it has nothing in common."""
    del arguments
    if not all_are(receiver, Kind.INSTANCE) or method_of(reading, receiver, "optimizers"):
        return None
    made = reading.recorder.value(
        Kind.UNKNOWN, node, origin=Origin.ATTRIBUTE, holds=frozenset(), name="optimizers"
    )
    return frozenset({made})


def _read_pairs(
    reading: Reading, node: cst.Call, receiver: Values, arguments: Arguments
) -> Values | None:
    del arguments
    if all_are(receiver, Kind.CONTAINER):
        elements = element_of(reading, receiver, node)
    elif len(receiver) == 1 and is_rest(rest := next(iter(receiver)), "**"):
        elements = one_of_rest(reading, rest, node)
    else:
        return None
    key = reading.recorder.number(node)
    assert type(node.func) is cst.Attribute
    if node.func.attr.value == "values":
        return container(reading, node, [elements])
    pair = reading.recorder.value(Kind.TUPLE, node, parts=(key, elements))
    return container(reading, node, [frozenset({pair})])


def _read_update(
    reading: Reading, node: cst.Call, receiver: Values, arguments: Arguments
) -> Values | None:
    """Record ``scaler.update()``, or what ``d.update({key: x})`` adds to a dictionary."""
    if not all_are(receiver, Kind.CONTAINER):
        return read_update(reading, node, receiver, arguments)
    _forget_entries(reading, receiver)
    written = positional(node)
    if len(written) == 1 and type(node.func) is cst.Attribute:
        given = arguments.positional[0]
        note_update(reading, node, node.func.value, written=written[0], given=given)
    return record_call(reading, node, arguments, method="update", harmless=True)


_SPECIAL_METHODS = {
    "backward": read_backward,
    "optimizers": _read_optimizers,
    "first_step": read_half_step,
    "second_step": read_half_step,
    "manual_backward": read_backward_by_engine,
    "clip_grad_norm_": _read_clip,
    "clip_grad_value_": _read_clip,
    "step": read_step,
    "requires_grad_": _read_requires_grad,
    "parameters": _read_parameters,
    "named_parameters": _read_parameters,
    "unscale_": read_unscale,
    "update": _read_update,
    "train": read_mode_switch,
    "eval": read_mode_switch,
    "append": _read_append,
    "appendleft": _read_append,
    "extend": _read_append,
    "insert": _read_append,
    "scale": _read_scale,
    "items": _read_pairs,
    "values": _read_pairs,
}
