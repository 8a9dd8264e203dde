"""Read ``backward()`` and ``step()``, and tell optimizers from other things that step."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.arguments import Arguments, method_of, only_function, record_call
from gradcheck_lint.model.flow import (
    Backward,
    Clip,
    ModeSwitch,
    Proof,
    ScalerUpdate,
    SchedulerStep,
    Step,
    Unscale,
    ZeroGrad,
)
from gradcheck_lint.model.knowledge import BACKWARD_BY_ENGINE, FACTORIES, SCALED
from gradcheck_lint.model.syntax import (
    boolean,
    dotted_name,
    has_star,
    is_none,
    keyword,
    last_word,
    place_name,
    positional,
)
from gradcheck_lint.model.values import NOTHING, Kind, Origin, Value, Values, all_are, cut_of

if TYPE_CHECKING:
    from gradcheck_lint.model.reading import Reading
    from gradcheck_lint.model.scopes import FunctionScope

_OPTIMIZER_NAME = re.compile(r"optim(?!.*sched)|(?:^|_)opt(?:$|_|\d)")


def read_backward(
    reading: Reading, node: cst.Call, receiver: Values, arguments: Arguments
) -> Values | None:
    """Record ``backward()`` on a tensor; None for somebody else's method of this name."""
    if method_of(reading, receiver, "backward") is not None:
        return None
    ordered = positional(node)
    assert type(node.func) is cst.Attribute
    owner = last_word(place_name(node.func.value)).lower()
    if ordered and BACKWARD_BY_ENGINE.search(owner) is not None:
        return read_backward_by_engine(reading, node, receiver, arguments)
    if ordered and not _is_cotangent(reading, ordered[0], arguments):
        # `engine.backward(loss)`: somebody else's backward, with rules of its own.
        return None
    receiver = _without_numbers(receiver)
    path = dotted_name(node.func.value)
    if path is not None and (held := reading.state.names.get(path)) is not None:
        reading.state.put(path, _without_numbers(held))
    reading.recorder.event(
        Backward,
        node,
        reading.state.mode,
        values=receiver,
        retains_graph=retains_graph(node),
        creates_graph=_is_true(keyword(node, "create_graph")),
        scaled=any(value.name == SCALED for value in receiver),
        partial=keyword(node, "inputs") is not None,
        seeded=is_computed(reading, ordered[0] if ordered else keyword(node, "gradient")),
    )
    return reading.recorder.unknown(node, origin=Origin.CALL)


def _without_numbers(values: Values) -> Values:
    """Leave out the 0 that a sum of losses begins with: it has no backward()."""
    return frozenset(value for value in values if value.kind is not Kind.NUMBER) or values


def read_backward_by_engine(
    reading: Reading, node: cst.Call, receiver: Values, arguments: Arguments
) -> Values | None:
    """Record ``accelerator.backward(loss)`` and ``self.manual_backward(loss)``."""
    assert type(node.func) is cst.Attribute
    if not arguments.positional or method_of(reading, receiver, node.func.attr.value) is not None:
        return None
    reading.recorder.event(
        Backward,
        node,
        reading.state.mode,
        values=arguments.positional[0],
        retains_graph=retains_graph(node),
        creates_graph=_is_true(keyword(node, "create_graph")),
        by_engine=True,
    )
    return reading.recorder.unknown(node, origin=Origin.CALL)


def _is_true(node: cst.BaseExpression | None) -> bool:
    return boolean(node) is True


def _is_cotangent(reading: Reading, node: cst.BaseExpression, arguments: Arguments) -> bool:
    if is_none(node):
        return True
    if type(node) is cst.Call and (reading.qualified(dotted_name(node.func)) or "").startswith(
        "torch."
    ):
        return True
    return all_are(arguments.positional[0], Kind.PLAIN, Kind.GRADIENT)


def is_computed(reading: Reading, cotangent: cst.BaseExpression | None) -> bool:
    """Tell whether what backward begins with is more than a tensor of ones, or another constant."""
    if cotangent is None or is_none(cotangent):
        return False
    if type(cotangent) is cst.Call:
        return reading.qualified(dotted_name(cotangent.func)) not in FACTORIES
    held = reading.look_up(cotangent.value) if type(cotangent) is cst.Name else NOTHING
    return not all_are(held, Kind.PLAIN) or cut_of(held) is not None


def retains_graph(node: cst.Call) -> bool:
    """Tell whether a call of backward may ask for the graph to be kept."""
    wanted = [keyword(node, "retain_graph"), keyword(node, "create_graph")]
    return has_star(node) or any(
        value is not None and boolean(value) is not False and not is_none(value) for value in wanted
    )


def read_step(
    reading: Reading, node: cst.Call, receiver: Values, arguments: Arguments
) -> Values | None:
    """Record the step of an optimizer; None for whatever else has a method of this name."""
    assert type(node.func) is cst.Attribute
    target: cst.BaseExpression = node.func.value
    values = receiver
    handed = positional(node)
    if is_scheduler(target, receiver) and not _is_given_data(node, receiver):
        reading.recorder.event(
            SchedulerStep,
            node,
            reading.state.mode,
            receiver=place_name(target),
            values=receiver,
            proof=Proof.PROVEN if all_are(receiver, Kind.SCHEDULER) else Proof.NAMED,
        )
        return reading.recorder.unknown(node, origin=Origin.CALL)
    scaler = NOTHING
    if handed and _proof(reading, target, receiver) is None:
        # `scaler.step(optimizer)`: the optimizer is the argument.
        scaler = receiver if is_scaler(target, receiver) else NOTHING
        target, values, handed = handed[0], arguments.positional[0], []
    proof = _proof(reading, target, values)
    closure = handed[0] if handed else keyword(node, "closure")
    if proof is None:
        return None
    own_step = method_of(reading, values, "step")
    if own_step is not None:
        called = record_call(reading, node, arguments, function=own_step, method="step")
        if all_are(values, Kind.INSTANCE):
            return called  # what it does is seen in the method
    if closure is not None and not is_none(closure):
        known = arguments.positional[0] if handed else arguments.keywords["closure"]
        if only_function(known) is None:
            # A closure or a context that can't be looked into may zero the gradients itself.
            return None
    reading.recorder.event(
        Step,
        node,
        reading.state.mode,
        receiver=place_name(target),
        values=values,
        proof=proof,
        scaler=scaler,
        closure=closure is not None and not is_none(closure),
    )
    reading.recorder.hold(values)
    return reading.recorder.unknown(node, origin=Origin.CALL)


def _is_given_data(node: cst.Call, receiver: Values) -> bool:
    """Tell whether what is only named like a scheduler is given more than a metric and an epoch.

    A schedule of pipeline stages runs a batch through them, and one of a diffusion denoises.
    """
    if all_are(receiver, Kind.SCHEDULER):
        return False
    return has_star(node) or len(node.args) > _MOST_OF_SCHEDULERS


_MOST_OF_SCHEDULERS = 2


def read_half_step(
    reading: Reading, node: cst.Call, receiver: Values, arguments: Arguments
) -> Values | None:
    """Record ``optimizer.first_step(zero_grad=True)``, half a step of sharpness-aware descent."""
    assert type(node.func) is cst.Attribute
    target = node.func.value
    proof = _proof(reading, target, receiver)
    if proof is None or has_star(node):
        return None
    method = method_of(reading, receiver, node.func.attr.value)
    receiver_name = place_name(target)
    reading.recorder.event(
        Step, node, reading.state.mode, receiver=receiver_name, values=receiver, proof=proof
    )
    reading.recorder.hold(receiver)
    zeroes = _half_step_zeroes(node, method, receiver)
    if zeroes is not False:
        reading.recorder.event(
            ZeroGrad,
            node,
            reading.state.mode,
            receiver=receiver_name,
            values=receiver,
            clears=bool(zeroes),
        )
    del arguments
    return reading.recorder.unknown(node, origin=Origin.CALL)


def _half_step_zeroes(
    node: cst.Call, method: FunctionScope | None, optimizer: Values
) -> bool | None:
    """Tell whether a half step zeroes the gradients; None if that is not known."""
    handed = positional(node)
    wanted = handed[0] if handed else keyword(node, "zero_grad")
    if wanted is not None:
        return boolean(wanted)
    if method is None or isinstance(method.node, cst.Module):
        # In the published class it doesn't; what a call returns may be of any other.
        return None if any(map(_is_returned, optimizer)) else False
    for parameter in (*method.node.params.params, *method.node.params.kwonly_params):
        if parameter.name.value == "zero_grad":
            return boolean(parameter.default)
    return None if any("zero" in word or word == "grad" for word in method.words) else False


def _is_returned(value: Value) -> bool:
    """Tell whether a function or method returned it, and not a class."""
    if type(value.node) is not cst.Call:
        return False
    last = (dotted_name(value.node.func) or "").rpartition(".")[2]
    return not last[:1].isupper()


def is_scaler(target: cst.BaseExpression, values: Values) -> bool:
    """Tell whether this is a gradient scaler of torch, or named like one, and may scale."""
    return (
        _is_or_is_named(target, values, Kind.SCALER, "scaler")
        and not _is_switched_off(values)
        and not any(map(_is_of_other_class, values))
    )


def _is_of_other_class(value: Value) -> bool:
    """Tell whether a class makes it that isn't called a GradScaler: it may scale by hooks."""
    if value.origin is not Origin.CALL or type(value.node) is not cst.Call:
        return False
    last = (dotted_name(value.node.func) or "").rpartition(".")[2]
    return last[:1].isupper() and not last.endswith("GradScaler")


def _is_switched_off(scalers: Values) -> bool:
    """Tell whether one of these may do nothing: ``GradScaler(enabled=False)``."""
    return any(
        type(value.node) is cst.Call and boolean(keyword(value.node, "enabled")) is False
        for value in scalers
    )


def is_scheduler(target: cst.BaseExpression, values: Values) -> bool:
    """Tell whether this is a learning rate scheduler of torch, or named like one."""
    return _is_or_is_named(target, values, Kind.SCHEDULER, "sched")


def _is_or_is_named(target: cst.BaseExpression, values: Values, kind: Kind, word: str) -> bool:
    if all_are(values, kind):
        return True
    if any(value.kind not in {Kind.UNKNOWN, Kind.NUMBER, kind} for value in values):
        return False
    return word in last_word(place_name(target)).lower()


def read_unscale(
    reading: Reading, node: cst.Call, receiver: Values, arguments: Arguments
) -> Values | None:
    """Record ``scaler.unscale_(optimizer)``; None where it does nothing."""
    if _is_switched_off(receiver):
        return None
    reading.recorder.event(
        Unscale,
        node,
        reading.state.mode,
        values=arguments.everything,
        scaler=receiver,
    )
    return reading.recorder.unknown(node, origin=Origin.CALL)


def read_update(
    reading: Reading, node: cst.Call, receiver: Values, arguments: Arguments
) -> Values | None:
    """Record ``scaler.update()``; None for other things that update."""
    assert type(node.func) is cst.Attribute
    if not is_scaler(node.func.value, receiver):
        return None
    del arguments
    reading.recorder.event(ScalerUpdate, node, reading.state.mode, scaler=receiver)
    return reading.recorder.unknown(node, origin=Origin.CALL)


def read_mode_switch(
    reading: Reading, node: cst.Call, receiver: Values, arguments: Arguments
) -> Values | None:
    """Record ``model.train()`` and ``model.eval()``, which return the model."""
    assert type(node.func) is cst.Attribute
    if method_of(reading, receiver, node.func.attr.value) is not None:
        return None
    training: bool | None = False
    if node.func.attr.value == "train":
        handed = positional(node)
        wanted = handed[0] if handed else keyword(node, "mode")
        if has_star(node) or len(node.args) > 1:
            return None
        training = True if wanted is None else boolean(wanted)
    elif node.args:
        return None
    del arguments
    reading.recorder.event(
        ModeSwitch,
        node,
        reading.state.mode,
        receiver=place_name(node.func.value),
        values=receiver,
        training=training,
    )
    reading.recorder.hold(receiver)
    return receiver


def note_clip(reading: Reading, node: cst.Call, arguments: Arguments) -> None:
    """Record ``clip_grad_norm_(parameters, limit)`` unless the limit is none."""
    handed = positional(node)
    limit = handed[1] if len(handed) > 1 else keyword(node, "max_norm")
    if limit is not None and _is_infinite(limit):
        return
    values = arguments.positional[0] if arguments.positional else NOTHING
    values = values or arguments.keywords.get("parameters", NOTHING)
    reading.recorder.event(Clip, node, reading.state.mode, values=values)


def _is_infinite(node: cst.BaseExpression) -> bool:
    if type(node) is cst.Call:
        return dotted_name(node.func) == "float"
    return (dotted_name(node) or "").rpartition(".")[2] in {"inf", "Inf", "infty"}


@lru_cache(maxsize=4096)
def names_optimizer(word: str) -> bool:
    """Tell by its name whether something is an optimizer."""
    return _OPTIMIZER_NAME.search(word.lower()) is not None


def _proof(reading: Reading, target: cst.BaseExpression, values: Values) -> Proof | None:
    """Return how sure it is that ``target`` is an optimizer; None if nothing says so.

    What says so is how it is made, how it is called, or that its gradients are zeroed as well.
    """
    if all_are(values, Kind.OPTIMIZER):
        return Proof.PROVEN
    kinds = {value.kind for value in values}
    last = last_word(place_name(target))
    if kinds - {Kind.UNKNOWN, Kind.OPTIMIZER}:
        return None
    if not names_optimizer(last) and last not in reading.surroundings.zeroed_names:
        return None
    open_origins = {Origin.ARGUMENT, Origin.ATTRIBUTE, Origin.ELEMENT}
    if all(value.kind is Kind.OPTIMIZER or value.origin in open_origins for value in values):
        return Proof.NAMED
    return Proof.OPAQUE
