"""GCS705: a loop that seeds torch's generator alike before each of its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.flow import Call, Step
from gradcheck_lint.model.syntax import bound_names, children, dotted_name, walk
from gradcheck_lint.model.values import Kind
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.flow import Loop
    from gradcheck_lint.model.module import FunctionModel

_PUTS_BACK: Final = frozenset({"fork_rng", "set_rng_state"})
_LOOPS: Final = (cst.For, cst.While)
_OWN_SCOPE: Final = (cst.FunctionDef, cst.Lambda, cst.ClassDef)


class SeededAgain(Rule):
    """A loop gives the same seed each time, and steps an optimizer that was there before it."""

    entry = catalogue.SEEDED_AGAIN

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield the calls that seed alike in each iteration of a loop that trains."""
        if not function.module.mentions(b"manual_seed") or not _PUTS_BACK.isdisjoint(
            function.scope.words
        ):
            return
        for loop in function.loops():
            stepped = _step_of_longer(loop, function)
            if stepped is None:
                continue
            for call in _calls_directly_in(loop.node):
                if _seeds(call, function) and _is_the_same_each_time(call, loop):
                    yield Violation(
                        call,
                        f"`{function.module.code(call)}` seeds torch's generator alike in each "
                        "iteration: dropout, noise and the order of batches are the same each time",
                        Severity.WARNING,
                        "seed once, before the loop; or draw from a torch.Generator of its own",
                        ((stepped.node, "the optimizer steps here"),),
                    )


def _step_of_longer(loop: Loop, function: FunctionModel) -> Step | None:
    """Return a step in a loop, of an optimizer that was not made in it."""
    for event in function.events():
        if isinstance(event, Step) and loop.identity in event.loops:
            made = [each for each in event.values if each.kind is Kind.OPTIMIZER]
            if made and not any(loop.identity in each.loops for each in made):
                return event
    return None


def _calls_directly_in(loop: cst.CSTNode) -> Iterator[cst.Call]:
    """Yield the calls that each iteration makes, without those of loops and functions inside."""
    waiting = list(children(loop))
    while waiting:
        node = waiting.pop()
        if type(node) is cst.Call:
            yield node
        if not isinstance(node, (*_LOOPS, *_OWN_SCOPE)):
            waiting.extend(children(node))


def _seeds(call: cst.Call, function: FunctionModel) -> bool:
    """Return whether a call seeds torch's own generator, itself or in a function of the file."""
    name = dotted_name(call.func) or ""
    scopes = function.module.scopes
    if scopes.resolve_import(name) in {"torch.manual_seed", "torch.random.manual_seed"}:
        return True
    called = next(
        (
            event.function
            for event in function.events()
            if isinstance(event, Call) and event.node is call
        ),
        None,
    )
    return called is not None and any(
        scopes.resolve_import(dotted_name(node.func) or "") == "torch.manual_seed"
        for node in called.nodes_of(cst.Call)
    )


def _is_the_same_each_time(call: cst.Call, loop: Loop) -> bool:
    """Return whether all that a call is given was there before the loop."""
    changing = set(loop.targets)
    for node in walk(loop.node):
        if isinstance(node, (cst.AssignTarget, cst.For, cst.AugAssign, cst.AnnAssign)):
            changing.update(bound_names(node.target))
    given = [node for argument in call.args for node in walk(argument.value)]
    return bool(call.args) and not any(
        type(node) is cst.Call or (type(node) is cst.Name and node.value in changing)
        for node in given
    )
