"""GCS318: statements that do nothing: no call, a result that is dropped, a name nobody reads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.analyses.spent_iterators import spent_uses
from gradcheck_lint.model.syntax import boolean, bound_names, dotted_name
from gradcheck_lint.model.values import Kind
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.step_order.no_effect.computed_weights import computed_writes
from gradcheck_lint.rules.step_order.no_effect.dropped_results import dropped_result
from gradcheck_lint.rules.step_order.no_effect.optimizer_states import lost_states
from gradcheck_lint.rules.step_order.no_effect.overwritten_outputs import overwritten_outputs
from gradcheck_lint.rules.step_order.no_effect.uncalled_backwards import is_uncalled_backward
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel

_CALLED: Final = frozenset({"backward", "eval", "step", "train", "zero_grad"})
"""Methods of the training protocol; none of them is a property of torch."""

_MISSPELT: Final = re.compile(r"(?!requires_grad\b)req\w{1,8}?_?grad\w{0,5}")
"""What people write in place of ``requires_grad``."""

_RATES: Final = frozenset({"learning_rate", "lr", "momentum", "weight_decay"})
"""Settings that an optimizer reads in its parameter groups alone."""


class NoEffect(Rule):
    """A statement that was meant to change something changes nothing."""

    entry = catalogue.NO_EFFECT

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield methods that are not called, results that are dropped, attributes of no use."""
        for node in function.scope.nodes_of(cst.Expr, cst.Assign):
            if type(node) is cst.Expr:
                if type(node.value) is cst.Attribute:
                    yield from _not_called(node.value, function)
                elif type(node.value) is cst.Call:
                    yield from _dropped(node.value, function)
            elif type(node) is cst.Assign and len(node.targets) == 1:
                yield from _not_read(node, node.targets[0].target, function)
        for found in computed_writes(function):
            yield Violation(
                found.write,
                f"`{found.layer}.weight` is computed anew in each forward, as the layer is "
                "normalized: what is written to it is thrown away",
                Severity.WARNING,
                "initialize the layer before it is normalized",
                ((found.normalized, "normalized here"),),
            )
        for made, name in overwritten_outputs(function):
            yield Violation(
                made,
                f"each turn of this loop writes `{name}` anew and reads nothing of the one before: "
                "what all layers but the last return is thrown away, and nothing trains them",
                Severity.WARNING,
                f"give each layer `{name}`, or add up or collect what they return",
            )
        for lost in lost_states(function):
            message, hint = _OF_STATES[lost.how]
            yield Violation(lost.node, message.format(lost.key), Severity.WARNING, hint)
        yield from _of_nothing(function)
        yield from _never_called(function)


_OF_STATES: Final = {
    "never-stored": (
        "the state of a parameter is asked for {}, and nothing ever stores that",
        "ask for the key under which it is stored",
    ),
    "never-updated": (
        "{} is stored in the state as zeros, and nothing writes to it but to a copy: it stays zero",
        "store it again when it was changed: what an index of a tensor returns is a copy",
    ),
    "reset": (
        "{} of the state becomes zeros again in each step: what is averaged forgets all before",
        "store the zeros where the state has none yet",
    ),
}


def _of_nothing(function: FunctionModel) -> Iterator[Violation]:
    """Yield the loops that change what an iterator gives, which has nothing left."""
    for use in spent_uses(function):
        if use.how == "loop":
            when = "from the second time on" if use.again else "any more"
            yield Violation(
                use.node,
                f"`{use.path}` is an iterator that gives nothing {when}: this changes nothing",
                Severity.ERROR if use.is_sure and not use.again else Severity.WARNING,
                f"make a list of it: `{use.path} = list(...)`",
                ((use.by, "made once" if use.again else "gone through here"),),
            )


def _not_called(attribute: cst.Attribute, function: FunctionModel) -> Iterator[Violation]:
    if attribute.attr.value in _CALLED and dotted_name(attribute) is not None:
        text = function.module.code(attribute)
        yield Violation(
            attribute,
            f"`{text}` names the method and does not call it",
            Severity.ERROR if _is_of_torch(attribute.value, function) else Severity.WARNING,
            f"call it: `{text}()`",
        )


def _is_of_torch(node: cst.BaseExpression, function: FunctionModel) -> bool:
    known = function.bindings.get(dotted_name(node) or "", ())
    kinds = {value.kind for value in known}
    return bool(kinds) and kinds <= {Kind.OPTIMIZER, Kind.MODULE, Kind.SCHEDULER, Kind.SCALER}


def _dropped(call: cst.Call, function: FunctionModel) -> Iterator[Violation]:
    dropped = dropped_result(call, function)
    if dropped is not None:
        yield Violation(
            call,
            f"`{dropped.called}(...)` returns a new {dropped.made} and changes nothing of "
            f"`{dropped.target}`, and what it returns is dropped",
            Severity.WARNING,
            dropped.hint,
        )


def _never_called(function: FunctionModel) -> Iterator[Violation]:
    """Yield the ``backward`` of a module that autograd does not know."""
    if is_uncalled_backward(function):
        yield Violation(
            function.scope.node,
            "autograd never calls the `backward` of a module: gradients go through what `forward` "
            "computes, as if this were not there",
            Severity.WARNING,
            "make it an `autograd.Function`, and call its `apply` in `forward`",
        )


def _not_read(
    node: cst.Assign, target: cst.BaseAssignTargetExpression, function: FunctionModel
) -> Iterator[Violation]:
    if type(target) is cst.Subscript:
        named = target.value
        if type(named) is cst.Attribute and named.attr.value == "defaults":
            yield from _rate(node, named.value, "defaults", function)
        return
    if type(target) is not cst.Attribute:
        return
    name = target.attr.value
    if name in _RATES:
        yield from _rate(node, target.value, name, function)
    elif boolean(node.value) is None:
        return
    elif name == "requires_grad":
        kinds = {each.kind for each in function.bindings.get(dotted_name(target.value) or "", ())}
        if kinds == {Kind.MODULE}:
            owner = function.module.code(target.value)
            yield Violation(
                node,
                f"`{owner}` is a module: its `requires_grad` is an attribute that nothing reads, "
                "and its parameters stay as they are",
                Severity.WARNING,
                f"call `{owner}.requires_grad_({function.module.code(node.value)})`",
            )
    elif _MISSPELT.fullmatch(name) and _is_parameter(target.value, function):
        yield Violation(
            node,
            f"`{name}` is an attribute that nothing reads: the tensor requires grad as before",
            Severity.ERROR,
            "write `requires_grad`",
        )


def _rate(
    node: cst.Assign, owner: cst.BaseExpression, name: str, function: FunctionModel
) -> Iterator[Violation]:
    kinds = {each.kind for each in function.bindings.get(dotted_name(owner) or "", ())}
    if kinds == {Kind.OPTIMIZER}:
        yield Violation(
            node,
            f"an optimizer does not read `{name}` when it steps: its parameter groups keep the "
            "settings that they have",
            Severity.WARNING,
            "set it in each group: `for group in optimizer.param_groups: group['lr'] = ...`",
        )


def _is_parameter(node: cst.BaseExpression, function: FunctionModel) -> bool:
    """Return whether a name runs over the parameters of a module, or holds a tensor."""
    path = dotted_name(node)
    if path is None:
        return "parameters(" in function.module.code(node)
    leaves = {Kind.LEAF, Kind.LEAF_VIEW, Kind.PLAIN, Kind.HISTORY}
    if any(value.kind in leaves for value in function.bindings.get(path, ())):
        return True
    return any(
        path in bound_names(each.target) and "parameters(" in function.module.code(each.iter)
        for each in function.scope.nodes_of(cst.For)
    )
