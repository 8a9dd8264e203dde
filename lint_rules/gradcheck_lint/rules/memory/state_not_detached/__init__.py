"""GCS202: a hidden state that carries its graph along."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.analyses.hidden_effects import DETACHING, may_act_elsewhere
from gradcheck_lint.analyses.source_text import source_of
from gradcheck_lint.model.flow import Backward, Forward, GradMode
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.model.syntax import dotted_name
from gradcheck_lint.model.values import Kind, Value, Values, parts_of, through_all
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.memory.state_not_detached.kept_derivatives import kept_derivatives
from gradcheck_lint.rules.memory.state_not_detached.recurrences import recurrences
from gradcheck_lint.rules.memory.state_not_detached.states_on_self import state_kept_by
from gradcheck_lint.rules.memory.state_not_detached.truncated_bptt import goes_into_next_window
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class StateNotDetached(Rule):
    """A hidden state goes from one training step to the next with its graph."""

    entry = catalogue.STATE_NOT_DETACHED

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every model call that is given its own earlier result, in a loop with backward."""
        for found in recurrences(function):
            path = f"{function.scope.first_parameter}.{found.attribute}"
            yield Violation(
                found.node,
                f"`{path}` is computed from its own last value with its graph, so each call adds "
                "to the graphs of all calls before it, which stay in memory",
                Severity.NOTE if found.is_renewed else Severity.WARNING,
                f"keep the values alone: `{path} = {path}.detach()` before the next call",
            )
        for node in kept_derivatives(function):
            yield Violation(
                node,
                f"`{source_of(function.module, node)}` adds derivatives with their graph "
                "(create_graph=True) to what the object keeps: each call adds to the graphs of all "
                "calls before it, which stay in memory",
                Severity.WARNING,
                "update the state under `torch.no_grad()`, or of what is detached",
            )
        if Part.BACKWARD not in function.scope.parts:
            return
        events = list(function.events())
        backwards = [event for event in events if isinstance(event, Backward)]
        if not backwards:
            return
        for event in events:
            if not isinstance(event, Forward) or not event.loops or event.expects_error:
                continue
            if event.mode is GradMode.DISABLED:
                continue
            own = id(event.node)
            kept = state_kept_by(function, event)
            if kept is None and not _is_given_back(event):
                continue
            proofs = [
                backward
                for backward in backwards
                if own in through_all(backward.values)
                and (
                    backward.loops[: len(event.loops)] == event.loops
                    or (kept is None and goes_into_next_window(function, event, backward))
                )
            ]
            if not proofs or may_act_elsewhere(function, DETACHING):
                continue
            is_certain = proofs[0].arms == event.arms and not proofs[0].expects_error
            given = event.receiver if kept is None else kept.receiver
            yield Violation(
                event.node if kept is None else kept.node,
                f"`{given}` is given a state that its call in the previous iteration "
                "returned, with its graph: backward() reaches into earlier steps, and torch raises "
                "or memory grows",
                Severity.ERROR if is_certain else Severity.WARNING,
                "detach the state at the start of each iteration: `state = state.detach()`",
                ((proofs[0].node, "backward() runs in every iteration"),),
            )


def _is_given_back(event: Forward) -> bool:
    """Tell whether a model is given what its call in the iteration before has returned."""
    if _MEMORY.search(" ".join(_names_passed(event.node))) is not None:
        return False
    passed = [part for values in event.passed for part in parts_of(values)]
    return any(_is_carried(values, id(event.node), event.loops) for values in passed)


_MEMORY: Final = re.compile(r"\bmem(?:s|ory|ories)?\b")
"""What models with a memory of segments call it, which they detach themselves."""


def _names_passed(node: cst.CSTNode) -> Iterator[str]:
    """Yield the names that a call is given."""
    if type(node) is cst.Call:
        yield from (dotted_name(argument.value) or "" for argument in node.args)


def _is_carried(values: Values, call: int, loops: tuple[int, ...]) -> bool:
    """Tell whether an argument of ``call`` is what the call before has returned, on every path.

    What the loop puts in its place on some path may be there whenever there is a graph:
    ``if state is not None: state = tuple(part.detach() for part in state)``.
    """
    carried = [value for value in values if value.result_of == call]
    made_in_loop = [value for value in values if value.loops[: len(loops)] == loops]
    return bool(carried) and all(
        value.result_of == call and not _is_cut(value) and value.kind is not Kind.PLAIN
        for value in (*carried, *made_in_loop)
    )


def _is_cut(value: Value) -> bool:
    """Tell whether a state was detached since the model returned it.

    Where only what the model was given had lost its graph, its parameters give the state one.
    """
    return value.cut is not None and not value.certain
