"""GCS203: retain_graph=True without need."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.flow import Backward, Call, Event, Forward, Return, Step
from gradcheck_lint.model.paths import turns
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.model.syntax import boolean, dotted_name, keyword, positional
from gradcheck_lint.model.values import Kind, Origin, mentioned_by, sites, through_all
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.memory.retain_graph.closed_graphs import is_closed
from gradcheck_lint.rules.memory.retain_graph.unused_penalties import unused_penalties
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class RetainGraph(Rule):
    """A graph is retained that no second backward uses."""

    entry = catalogue.RETAIN_GRAPH

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every retained graph with no second pass in sight."""
        if Part.BACKWARD not in function.scope.parts:
            return
        for unused in unused_penalties(function):
            yield Violation(
                unused.node,
                f"create_graph=True makes a graph for `{unused.name}`, of which nothing but the "
                "number is used: no loss has it, so nothing learns from it",
                Severity.WARNING,
                f"add `{unused.name}` to the loss, or drop create_graph=True",
                ((unused.graph, "the graph is made here"),),
            )
        events = list(function.events())
        backwards = [event for event in events if isinstance(event, Backward)]
        for backward in backwards:
            if backward.retains_graph and not backward.creates_graph:
                yield from self._judge(function, events, backward)

    def _judge(
        self, function: FunctionModel, events: list[Event], backward: Backward
    ) -> Iterator[Violation]:
        node = backward.node
        if type(node) is not cst.Call or backward.expects_error:
            return
        wanted = keyword(node, "retain_graph")
        if boolean(wanted) is not True or keyword(node, "create_graph") is not None:
            return
        calls = frozenset(id(event.node) for event in events if isinstance(event, Forward))
        if (
            (function.scope.nested and not backward.loops)
            or _begins_before_the_loop(events, backward)
            or _differentiates_by_hand(function, events, backward)
            or _is_handed_to_step(function, events, backward, calls)
            or any(_may_share(backward, other, calls) for other in _later(function, backward))
            or _may_differentiate_again(events, backward)
            or _maker_is_asked_again(function, events, backward)
            or (
                not backward.loops
                and _is_called(function)
                and not is_closed(function, backward, calls)
            )
            or _is_from_outside(function, backward)
        ):
            return
        argument = next(argument for argument in node.args if argument.value is wanted)
        yield Violation(
            argument,
            "the graph is retained, but no second backward uses it: it only costs memory, or hides "
            "that an old graph is reached again",
            Severity.WARNING,
            "drop retain_graph=True; detach what is carried over from earlier iterations",
        )


def _begins_before_the_loop(events: list[Event], backward: Backward) -> bool:
    """Tell whether each iteration goes through the graph of one forward, from before the loop."""
    through = through_all(backward.values)
    return any(
        isinstance(event, Forward)
        and id(event.node) in through
        and not set(backward.loops) <= set(event.loops)
        for event in events
    )


def _later(function: FunctionModel, backward: Backward) -> list[Event]:
    """Return the backwards that may come after this one while its graph is still the same.

    That of a value which each iteration makes anew is not reached by the next one.
    """
    everything: list[Event] = [event for event in function.events() if isinstance(event, Backward)]
    if not backward.loops:
        return everything
    loop = next(known for known in function.loops() if known.identity == backward.loops[-1])
    paths = turns(loop, function)
    on_paths = [[item.event for item in path if item.turn == 0] for path in paths]
    if not any(backward in path for path in on_paths):
        return everything
    after = {id(event) for path in on_paths if backward in path for event in _after(path, backward)}
    return [event for event in everything if id(event) in after or loop.identity not in event.loops]


def _after(path: list[Event], event: Event) -> list[Event]:
    return path[path.index(event) + 1 :]


def _may_share(backward: Backward, other: Event, calls: frozenset[int]) -> bool:
    """Tell whether another backward may walk a part of the same graph."""
    if not isinstance(other, Backward) or other is backward:
        return False
    mine, theirs = through_all(backward.values), through_all(other.values)
    if not mine or not theirs:
        return True
    own = {value.site for value in backward.values}
    return bool(mine & theirs & calls) or bool(mentioned_by(other.values) & own)


def _may_differentiate_again(events: list[Event], backward: Backward) -> bool:
    """Tell whether the graph may be walked again: in the next iteration, or elsewhere."""
    if backward.loops and any(
        not value.loops
        or backward.loops[-1] not in value.loops
        or (value.origin is Origin.ELEMENT and value.site >= 0)
        for value in backward.values
    ):
        return True
    wanted = mentioned_by(backward.values) if backward.values else frozenset()
    own = {value.site for value in backward.values}
    for event in events:
        if isinstance(event, Return) and mentioned_by(event.values) & own:
            return True
        if isinstance(event, Call):
            name = event.method
            if type(event.node) is cst.Call:
                name = name or (dotted_name(event.node.func) or "").rpartition(".")[2]
            if name and event.function is None and _differentiates(name):
                return True
            if event.function is not None and event.mentions & wanted and event.mentions & own:
                return True
    return False


def _is_handed_to_step(
    function: FunctionModel, events: list[Event], backward: Backward, calls: frozenset[int]
) -> bool:
    """Tell whether a step is given what has a part of the graph: ``optimizer.step(loss)``.

    No optimizer of torch takes a tensor there; one of somebody's own calls backward itself.
    """
    wanted = through_all(backward.values) & calls
    own = sites(backward.values)
    for event in events:
        is_step = isinstance(event, Step) or (isinstance(event, Call) and event.method == "step")
        if not is_step or type(event.node) is not cst.Call:
            continue
        for name in filter(None, map(dotted_name, positional(event.node))):
            held = function.bindings.get(name, frozenset())
            if through_all(held) & wanted or mentioned_by(held) & own:
                return True
    return False


def _maker_is_asked_again(function: FunctionModel, events: list[Event], backward: Backward) -> bool:
    """Tell whether an object of this iteration has made the loss, and is asked for more.

    Nothing is known of the object, made by a call: all that it gives may have a part of one graph.
    """
    if not backward.loops:
        return False
    for value in backward.values:
        name = _receiver_of(value.node)
        makers = function.bindings.get(name, frozenset()) if name else frozenset()
        if not makers or not all(
            maker.kind is Kind.UNKNOWN
            and maker.origin is Origin.CALL
            and not (maker.through or maker.result_of)
            and backward.loops[-1] in maker.loops
            for maker in makers
        ):
            continue
        if any(
            isinstance(event, Call)
            and event.node is not value.node
            and backward.loops[-1] in event.loops
            and _receiver_of(event.node) == name
            for event in events
        ):
            return True
    return False


def _receiver_of(node: cst.CSTNode | None) -> str:
    """Return the name of the object whose method this calls; nothing for all else."""
    if type(node) is not cst.Call or type(node.func) is not cst.Attribute:
        return ""
    return node.func.value.value if type(node.func.value) is cst.Name else ""


def _differentiates(name: str) -> bool:
    return "backward" in name or name == "grad" or "gradient" in name


def _differentiates_by_hand(
    function: FunctionModel, events: list[Event], backward: Backward
) -> bool:
    """Tell whether autograd.grad may walk the same graph, here or in a function called later.

    That is one that is handed what is differentiated, or something with a graph it was made of.
    """
    calls = {id(event.node) for event in events if isinstance(event, Forward)}
    wanted = sites(backward.values) | (through_all(backward.values) & calls)
    flowed = mentioned_by(backward.values)
    made_of = frozenset(
        value.site
        for held in function.bindings.values()
        for value in held
        if value.through and value.site in flowed
    )
    later = False
    for event in events:
        later = later or event is backward
        if not isinstance(event, Call) or type(event.node) is not cst.Call:
            continue
        if event.function is None:
            name = function.module.scopes.resolve_import(dotted_name(event.node.func) or "")
            if name == "torch.autograd.grad":
                return True
        elif (
            later
            and (event.mentions & wanted or _is_handed_graph(event, made_of))
            and function.module.mentions(b"autograd")
        ):
            return True
    return False


def _is_handed_graph(call: Call, made_of: frozenset[int]) -> bool:
    """Tell whether a call is given one of these, or something computed of it, with its graph."""
    return any(
        bool(value.through) and bool(made_of & mentioned_by(values))
        for _, values in call.arguments
        for value in values
    )


def _is_from_outside(function: FunctionModel, backward: Backward) -> bool:
    """Tell whether the value belongs to something that was made elsewhere, or before the loop.

    That may hold more of one graph: ``losses[k].sum()``, or a name of the enclosing function.
    """
    node: cst.CSTNode = backward.node
    is_part = False
    while True:
        if type(node) is cst.Call and type(node.func) is cst.Attribute:
            node = node.func.value
        elif isinstance(node, (cst.Subscript, cst.Attribute)):
            is_part, node = True, node.value
        else:
            break
    if type(node) is not cst.Name:
        return False
    if node.value not in function.bindings:
        return not isinstance(function.scope.node, cst.Module)
    loops = backward.loops[-1:]
    return is_part and not any(
        set(loops) & set(value.loops) for value in function.bindings[node.value]
    )


def _is_called(function: FunctionModel) -> bool:
    """Tell whether the callers are known, or may call backward again."""
    return (
        len(
            [
                other
                for other in function.module.functions()
                if any(isinstance(event, Backward) for event in other.events())
            ]
        )
        > 1
    )
