"""GCS411: a term of a loss is made of values without a graph alone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.analyses.source_text import source_of
from gradcheck_lint.model.flow import Backward, GradMode
from gradcheck_lint.model.name_sources import sources_of
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.model.values import through_all
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.connectivity.constant_loss_term.collected_gradients import (
    collected_gradients,
)
from gradcheck_lint.rules.connectivity.constant_loss_term.cut_inputs import cut_inputs
from gradcheck_lint.rules.connectivity.graph_broken.detached_objectives import (
    detached_objectives,
)
from gradcheck_lint.rules.connectivity.graph_broken.hard_predictions import is_hard
from gradcheck_lint.rules.connectivity.graph_broken.terms import (
    LostTerm,
    is_cut_parameter,
    is_detach,
    lost_terms,
    terms_without_graph,
)
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class ConstantLossTerm(Rule):
    """A term beside others is computed under ``no_grad``, or of detached values alone."""

    entry = catalogue.CONSTANT_LOSS_TERM

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every such term that is added to a loss which has a graph."""
        yield from _of_cut_inputs(function)
        yield from _of_cut_parameters(function)
        if Part.BACKWARD not in function.scope.parts:
            return
        yield from _of_gradients(function)
        seen: set[int] = set()
        for event in function.events():
            if not isinstance(event, Backward) or event.expects_error:
                continue
            if not through_all(event.values):
                continue
            for lost in lost_terms(function, event):
                place = _made_at(lost, function)
                if place is None or id(place) in seen:
                    continue
                seen.add(id(place))
                of_what = "nothing is recorded where it is computed"
                if place is not lost.cut:
                    cut = source_of(function.module, lost.cut)
                    of_what = f"all that it is computed of has no graph, as `{cut}`"
                yield Violation(
                    place,
                    f"`{source_of(function.module, place)}` is a term of the loss, and {of_what}: "
                    "it shows in the loss, and nothing learns from it",
                    Severity.WARNING,
                    "compute the term of what is trained on one side, and of targets on the other",
                    ((event.node, "the loss is differentiated here"),),
                )


def _of_cut_parameters(function: FunctionModel) -> Iterator[Violation]:
    """Yield the penalties of ``weight.data`` in what a function returns beside a loss."""
    module, words = function.module, function.scope.words
    if "data" not in words or not _MEASURING.isdisjoint(words):
        return
    if function.mode is GradMode.DISABLED or not module.mentions(b".backward("):
        return
    for node in function.scope.nodes_of(cst.Return):
        if node.value is None or _LOSS.search(module.text(node.value)) is None:
            continue
        for term in terms_without_graph(function, node.value, node):
            if term.is_added and is_cut_parameter(term.cut, function):
                yield Violation(
                    term.cut,
                    f"`{source_of(module, term.cut)}` takes the graph of the parameter away: the "
                    "penalty that is made of it shows in the loss, and nothing learns from it",
                    Severity.WARNING,
                    "compute the penalty of the parameter itself, without `.data`",
                    ((node, "added to the loss and returned here"),),
                )


_LOSS: Final = re.compile(r"(?i)criteri|loss|entropy|nll|mse|objective")
_MEASURING: Final = frozenset({"backward", "item", "no_grad", "inference_mode", "eval"})


def _of_cut_inputs(function: FunctionModel) -> Iterator[Violation]:
    """Yield the calls of another network through which nothing that a loss trains is reached."""
    for found in cut_inputs(function):
        text = source_of(function.module, found.call.node)
        yield Violation(
            found.call.node,
            f"`{text}` is given what `{found.behind.receiver}` returns, detached: beside the "
            f"other terms of this loss it trains nothing but `{found.call.receiver}`, which has a "
            "loss of its own",
            Severity.WARNING,
            f"give `{found.call.receiver}` the outputs with their graph here",
            ((found.other.node, f"`{found.call.receiver}` learns by this"),),
        )


def _of_gradients(function: FunctionModel) -> Iterator[Violation]:
    """Yield the gradients without a graph that a term is made of by way of lists and loops."""
    told: set[int] = set()
    for found in collected_gradients(function):
        told |= {id(lost.cut) for lost in lost_terms(function, found.backward)}
        if not told.isdisjoint(map(id, found.calls)):
            continue
        told |= set(map(id, found.calls))
        term, call = source_of(function.module, found.term), found.calls[0]
        yield Violation(
            call,
            f"`{source_of(function.module, call)}` returns gradients without a graph, because "
            f"create_graph is not set: `{term}`, which is made of them alone, is a constant in the "
            "loss and penalizes nothing",
            Severity.WARNING,
            "pass create_graph=True",
            (
                *((other, "these have none either") for other in found.calls[1:]),
                (found.backward.node, "the loss is differentiated here"),
            ),
        )


def _made_at(lost: LostTerm, function: FunctionModel) -> cst.CSTNode | None:
    """Return where a term is computed that GCS401 says nothing of, None for any other.

    A value that is detached and added as it is keeps a printed loss what it was.
    """
    term, cut, is_added = lost
    told = (id(known) for _, known in detached_objectives(function))
    if not is_added or id(cut) in told or is_hard(cut):
        return None
    sources = sources_of(function.scope).get(term.value) if type(term) is cst.Name else None
    place = sources[0] if sources is not None and len(sources) == 1 else term
    if id(cut) in function.module.unrecorded:
        return place
    is_plain = is_detach(cut) or is_cut_parameter(cut, function)
    is_here = is_plain and any(node is cut for node in function.scope.nodes)
    return place if is_here and place is not cut else None
