"""Read calls of models, and say what goes through them."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from gradcheck_lint.model.arguments import Arguments, record_call
from gradcheck_lint.model.arithmetic import cut_with_batch, same_graph
from gradcheck_lint.model.flow import Forward, GradMode
from gradcheck_lint.model.saving import note_layer
from gradcheck_lint.model.syntax import is_none, last_word, place_name
from gradcheck_lint.model.values import (
    Kind,
    Values,
    all_are,
    carrying,
    cut_of,
    mentioned_by,
    replace,
)

if TYPE_CHECKING:
    import libcst as cst

    from gradcheck_lint.model.reading import Reading

_MODEL_NAME = re.compile(
    r"model|(?:^|_)net[a-z]?(?:$|_|\d)|net$|network|critic|actor|generator|discriminator|encoder"
    r"|decoder|backbone|unet|classifier|policy|(?:^|_)(?:rnn|lstm|gru|cell)(?:$|_|\d)"
    r"|student|teacher|(?:^|_)(?:mlp|cnn|vae|gan|disc|bert|gpt|vit|head|trunk)(?:$|_|\d)"
    r"|predictor|projector|embedder|learner|regressor|transformer"
)
_ADVERSARIES = frozenset({"G", "D"})
_NOT_A_MODEL = re.compile(
    r"model_?name|_fn$|loader|path"
    r"|^_?(?:get|make|create|build|load|init|save|add|reset|set|replace|update|freeze|unfreeze"
    r"|attach|register|remove|delete|swap|switch|copy|sync|move|wrap|prepare|setup|configure|print"
    r"|plot|export|store|resize|extend|expand|log|new)_"
)
_LOSS_CLASS = re.compile(r"torch\.nn\.\w*Loss$")


def is_model(reading: Reading, name: str, callee: Values) -> bool:
    """Tell whether a model is called: it is one, has given its parameters, or is named like one."""
    kinds = {value.kind for value in callee}
    if not kinds or not kinds <= _MAY_BE_MODELS:
        return False
    if Kind.INSTANCE in kinds and not all(
        reading.scopes.derives_from(reading.scopes.classes.get(value.name), "torch.nn.")
        for value in callee
        if value.kind is Kind.INSTANCE
    ):
        return False
    if kinds != _ONLY_UNKNOWN or is_named_as_model(name):
        # What is a model on one path, and can't be told on another, is one there as well.
        return True
    models = reading.recorder.models
    if models and all(value.site in models for value in callee):
        return True
    return bool(reading.own_site) and name in reading.surroundings.models_on_self


_ONLY_UNKNOWN = frozenset({Kind.UNKNOWN})
_MAY_BE_MODELS = frozenset({Kind.UNKNOWN, Kind.MODULE, Kind.INSTANCE})


@lru_cache(maxsize=4096)
def is_named_as_model(name: str) -> bool:
    """Tell whether the last part of a dotted name is one that people give to models."""
    last = last_word(name)
    return last in _ADVERSARIES or (
        bool(last.islower() or last[:1].islower())
        and _MODEL_NAME.search(last.lower()) is not None
        and not _NOT_A_MODEL.search(last.lower())
    )


def without_none(values: Values) -> Values:
    """Leave None out of what is called, or whose method is: the call would raise."""
    if len(values) < 2:  # noqa: PLR2004 - nothing else
        return values
    return frozenset(value for value in values if not is_none(value.node)) or values


def read_forward(reading: Reading, node: cst.Call, callee: Values, arguments: Arguments) -> Values:
    """Record the call of a model; without recording, its result has no graph."""
    is_loss = all(_LOSS_CLASS.match(value.name) for value in callee)
    made = record_call(
        reading,
        node,
        arguments,
        callee=frozenset() if is_loss else callee,
        harmless=all_are(callee, Kind.MODULE, Kind.INSTANCE),
    )
    if not is_loss:
        made = frozenset(
            replace(value, through=value.through | {id(node)}, result_of=id(node)) for value in made
        )
    if is_loss and arguments.positional:
        made = loss_of(reading, node, arguments)
    elif reading.state.mode is not GradMode.DISABLED and not _runs_unrecorded(reading, callee):
        if reading.notes_saves:
            note_layer(reading, node, callee, arguments)
        if all_are(callee, Kind.MODULE):
            made = carrying(made, *arguments.positional[:1])
    else:
        mentions = mentioned_by(arguments.everything)
        cut = reading.recorder.cut_by_mode(node)
        made = frozenset({reading.recorder.value(Kind.PLAIN, node, mentions=mentions, cut=cut)})
    if not is_loss:
        reading.recorder.event(
            Forward,
            node,
            reading.state.mode,
            receiver=place_name(node.func) or "",
            values=callee,
            passed=(*arguments.positional, *arguments.keywords.values()),
            result=made,
        )
    return made


def _runs_unrecorded(reading: Reading, callee: Values) -> bool:
    """Tell whether the forward of a class of this file has a decorator that records nothing."""
    forwards = [
        reading.scopes.method(reading.scopes.classes.get(value.name), "forward")
        if value.kind is Kind.INSTANCE
        else None
        for value in callee
    ]
    return bool(forwards) and all(
        forward is not None and reading.surroundings.returns_no_graph(forward)
        for forward in forwards
    )


def loss_of(reading: Reading, node: cst.Call, arguments: Arguments) -> Values:
    """Return what a differentiable function of all its arguments makes."""
    make = reading.recorder.value
    everything = arguments.everything
    plain = (Kind.PLAIN, Kind.NUMBER, Kind.GRADIENT)
    handed = (*arguments.positional, *arguments.keywords.values())
    if reading.state.mode is not GradMode.DISABLED and not all_are(everything, *plain):
        cut = cut_with_batch(reading, *handed)
        if cut is not None:
            mentions = mentioned_by(everything)
            return frozenset({make(Kind.PLAIN, node, mentions=mentions, cut=cut, certain=False)})
    if reading.state.mode is not GradMode.DISABLED and not all_are(everything, *plain):
        made = same_graph(reading, node, arguments.positional[0])
        if all_are(arguments.positional[0], *plain):
            made = record_call(reading, node, arguments, harmless=True)
        return made
    is_plain = all_are(everything, *plain)
    cut = cut_of(*handed) if is_plain else reading.recorder.cut_by_mode(node)
    sure = all(value.certain for value in everything)
    mentions = mentioned_by(everything)
    return frozenset({make(Kind.PLAIN, node, mentions=mentions, cut=cut, certain=sure)})
