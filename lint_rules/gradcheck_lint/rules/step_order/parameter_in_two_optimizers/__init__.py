"""GCS312: two optimizers of the same parameters step after one backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import libcst as cst

from gradcheck_lint.analyses.object_uses import argument_for
from gradcheck_lint.model.flow import Backward, Step, ZeroGrad
from gradcheck_lint.model.syntax import assigned_once, assigned_pairs, dotted_name, positional
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.step_order.parameter_in_two_optimizers.own_optimizers import set_apart
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.flow import Event
    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import ClassScope


class _Made(NamedTuple):
    """An optimizer of ``model.parameters()``; ``parts`` are the models that this model holds."""

    node: cst.CSTNode
    model: str
    parts: frozenset[str]


class ParameterInTwoOptimizers(Rule):
    """Two optimizers that share parameters step with one gradient."""

    entry = catalogue.PARAMETER_IN_TWO_OPTIMIZERS

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every optimizer whose model has another one's, where both step in a row."""
        yield from _apart(function)
        if "step" not in function.scope.words:
            return
        made = _optimizers(function)
        if len(made) < 2:  # noqa: PLR2004 - a pair
            return
        for first, second in _steps_in_a_row(list(function.events())):
            one, other = made.get(first.receiver or ""), made.get(second.receiver or "")
            if one is None or other is None or one is other:
                continue
            shared = _shared(one, other)
            if shared is not None and not _may_be_frozen(function, shared):
                wider = one if shared == other.model and one.model != shared else other
                yield Violation(
                    wider.node,
                    f"`{shared}` is in two optimizers that step after the same backward(): "
                    f"`{second.receiver}` applies the gradients again that `{first.receiver}` "
                    "has applied",
                    Severity.WARNING,
                    f"leave the parameters of `{shared}` out of one of them",
                    ((first.node, "the first step"), (second.node, "the second step")),
                )


def _apart(function: FunctionModel) -> Iterator[Violation]:
    """Yield optimizers of a whole model of which some parameters have one of their own."""
    if "parameters" not in function.scope.words or not function.module.mentions(b"Parameter("):
        return
    for found in set_apart(function):
        names = ", ".join(f"`{name}`" for name in found.attributes)
        if not any(_may_be_frozen(function, name) for name in found.attributes):
            yield Violation(
                found.whole,
                f"{names} of this model has an optimizer of its own and is among all parameters "
                "here as well: it is stepped, and decayed, by both in the same loop",
                Severity.WARNING,
                f"leave {names} out of this optimizer",
                ((found.part, "the other optimizer"),),
            )


def _steps_in_a_row(events: list[Event]) -> Iterator[tuple[Step, Step]]:
    """Yield the pairs of steps that use the gradients of one backward, with nothing between."""
    row: list[Step] = []
    for event in events:
        if isinstance(event, (Backward, ZeroGrad)):
            row = []
        elif isinstance(event, Step):
            row = [step for step in row if (step.loops, step.arms) == (event.loops, event.arms)]
            yield from ((step, event) for step in row if step.receiver != event.receiver)
            row.append(event)


def _optimizers(function: FunctionModel) -> dict[str, _Made]:
    """Return the optimizers that a function, or its class's constructor, makes once, by name."""
    owner = function.scope.owner
    maker = None if owner is None else owner.methods.get("__init__")
    found: dict[str, list[_Made]] = {}
    for known in (function, *([function.module.function(maker)] if maker else [])):
        for node in known.scope.nodes_with_lambdas:
            for target, value in assigned_pairs(node):
                path = dotted_name(target)
                model = _model_of(value, known)
                if path is not None and model is not None:
                    parts = frozenset({model}) | _held_by(model, known)
                    found.setdefault(path, []).append(_Made(value, model, parts))
    return {path: made[0] for path, made in found.items() if len(made) == 1}


def _model_of(value: cst.BaseExpression, function: FunctionModel) -> str | None:
    """Return the text of ``model`` in ``SGD(model.parameters())``."""
    if type(value) is not cst.Call or not function.module.makes_optimizer(value):
        return None
    given = positional(value)
    first = given[0] if given else None
    if type(first) is not cst.Call or first.args or type(first.func) is not cst.Attribute:
        return None
    if first.func.attr.value != "parameters":
        return None
    return function.module.code(first.func.value)


def _held_by(model: str, function: FunctionModel) -> frozenset[str]:
    """Return the models that one holds because its constructor was given them."""
    scopes = function.module.scopes
    made = [
        value
        for node in function.scope.nodes_with_lambdas
        for target, value in assigned_pairs(node)
        if dotted_name(target) == model
    ]
    if len(made) != 1 or type(made[0]) is not cst.Call:
        return frozenset()
    owner = scopes.classes.get(dotted_name(made[0].func) or "")
    if owner is None or not scopes.derives_from(owner, "torch.nn."):
        return frozenset()
    return frozenset(_given(made[0], owner))


def _given(call: cst.Call, owner: ClassScope) -> Iterator[str]:
    """Yield what ``self.encoder = critic.encoder`` is to who makes the object."""
    maker = owner.methods.get("__init__")
    for node in () if maker is None else maker.nodes:
        target, value = assigned_once(node)
        source, path = dotted_name(value), dotted_name(target)
        if source is None or path is None or not path.startswith(f"{maker.first_parameter}."):  # type: ignore[union-attr]
            continue
        root, dot, rest = source.partition(".")
        argument = dotted_name(argument_for(root, call, maker))  # type: ignore[arg-type]
        if argument is not None:
            yield argument + dot + rest


def _shared(one: _Made, other: _Made) -> str | None:
    """Return the model that is in both, as its name in the narrower one."""
    for left in sorted(one.parts):
        for right in sorted(other.parts):
            if left == right or left.startswith((f"{right}.", f"{right}[")):
                return left
            if right.startswith((f"{left}.", f"{left}[")):
                return right
    return None


def _may_be_frozen(function: FunctionModel, model: str) -> bool:
    """Tell whether the file sets ``requires_grad`` of a model of this name."""
    last = model.rpartition(".")[2].encode()
    source = function.module.source
    return any(last + ending in source for ending in (b".requires_grad_(", b".parameters():\n"))
