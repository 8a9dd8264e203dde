"""GCS401: the graph of a loss is cut on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.analyses.cuts import cut_backwards, is_certain
from gradcheck_lint.analyses.source_text import source_of
from gradcheck_lint.model.flow import Backward
from gradcheck_lint.model.syntax import dotted_name, positional
from gradcheck_lint.model.values import cut_of, through_all
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.connectivity.graph_broken.copied_updates import copied_updates
from gradcheck_lint.rules.connectivity.graph_broken.cut_states import cut_states
from gradcheck_lint.rules.connectivity.graph_broken.detached_objectives import (
    detached_objectives,
)
from gradcheck_lint.rules.connectivity.graph_broken.drawn_values import drawn_values
from gradcheck_lint.rules.connectivity.graph_broken.hard_predictions import (
    hard_predictions,
    is_hard,
)
from gradcheck_lint.rules.connectivity.graph_broken.new_leaves import new_leaves
from gradcheck_lint.rules.connectivity.graph_broken.self_comparisons import self_comparisons
from gradcheck_lint.rules.connectivity.graph_broken.straight_through import codebook_losses
from gradcheck_lint.rules.connectivity.graph_broken.terms import is_gradient, is_item, lost_terms
from gradcheck_lint.rules.connectivity.graph_broken.zero_products import zero_products
from gradcheck_lint.rules.connectivity.untrained_layers import detached_layers
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class GraphBroken(Rule):
    """A loss is differentiated whose graph was cut, so that nothing gets a gradient from it."""

    entry = catalogue.GRAPH_BROKEN

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every cut that a differentiated loss goes through."""
        unrecorded = function.module.unrecorded
        module = function.module
        reported: set[int] = set()
        for backward, cut in cut_backwards(function):
            if id(cut) in unrecorded or id(cut) in reported:
                continue
            reported.add(id(cut))
            yield Violation(
                cut,
                f"`{source_of(module, cut)}` takes the graph away, and backward() is called on "
                "what is made of it: torch raises, because nothing requires a gradient",
                Severity.ERROR if is_certain(backward) else Severity.WARNING,
                "compute the loss from tensors that still have their graph",
                ((backward.node, "backward() is called here"),),
            )
        yield from _lost(function, reported)
        for loss in codebook_losses(function):
            yield Violation(
                loss,
                f"`{source_of(module, loss)}` is computed of the straight-through value, in which "
                "the codes stand inside of detach(): the codebook gets no gradient from it",
                Severity.WARNING,
                "compute it of the codes that were looked up, before the straight-through step",
            )
        for copy, derivative in copied_updates(function):
            yield Violation(
                copy,
                "this copies the numbers of the updated weights into the model: the update is cut "
                "off, and create_graph, which lets it be differentiated again, is for nothing",
                Severity.WARNING,
                "run the model with the updated weights: `torch.func.functional_call(model, "
                "weights, inputs)`",
                ((derivative, "differentiated with a graph here"),),
            )
        for call, thing in self_comparisons(function):
            yield Violation(
                call,
                f"this compares `{source_of(module, thing)}` with itself: it is zero, and so are "
                "its gradient and its Hessian",
                Severity.WARNING,
                "compare it with a copy from before, or detach one side",
            )
        for name, place in hard_predictions(function):
            yield Violation(
                place,
                f"the loss reads `{name}` through `{source_of(module, place)}` alone, which has no "
                "gradient: nothing learns from it",
                Severity.WARNING,
                "compute the loss of the probabilities, and the hard prediction for metrics alone",
            )
        for zero in zero_products(function):
            yield Violation(
                zero.made,
                f"`{zero.first}` and `{zero.second}` both begin at zero, and are multiplied: the "
                "gradient of each is a multiple of the other, so that neither ever moves",
                Severity.WARNING,
                f"begin with random numbers in `{zero.first}`, and with zeros in the other alone",
                ((zero.other, "zeros as well"), (zero.product, "multiplied here")),
            )
        for node, name in cut_states(function):
            yield Violation(
                node,
                f"`{name}` is detached after each step, and nothing is differentiated in this "
                "loop: no loss reaches further back than one step, and nothing learns to carry "
                "anything through time",
                Severity.WARNING,
                "detach the state between windows, each with a backward() of its own",
            )
        yield from detached_layers(function)
        for leaf in new_leaves(function):
            yield Violation(
                leaf,
                f"`{source_of(module, leaf)}` makes a new leaf of what the layers computed: a loss "
                "of it has a graph and backward() raises nothing, but no layer gets a gradient",
                Severity.WARNING,
                "leave out the detach() and the requires_grad_(): what layers compute has a graph",
            )
        for draw in drawn_values(function):
            yield Violation(
                draw,
                f"`{source_of(module, draw)}` passes no gradient on to what it is given: what "
                "computes the mean and the deviation learns nothing from what is made of the draw",
                Severity.WARNING,
                "draw `mean + std * torch.randn_like(std)`, or rsample() from a distribution",
            )


def _lost(function: FunctionModel, reported: set[int]) -> Iterator[Violation]:
    """Yield what took the graph of one term of a loss away."""
    module = function.module
    for backward, cut in detached_objectives(function):
        if id(cut) not in reported:
            reported.add(id(cut))
            yield Violation(
                cut,
                _OF_OBJECTIVE.format(source_of(module, cut)),
                Severity.WARNING,
                "leave the term its graph; to spare the other network its gradient, zero that "
                "before its own step, or turn its requires_grad off meanwhile",
                ((backward.node, "the loss is differentiated here"),),
            )
    for event in function.events():
        if not isinstance(event, Backward) or event.expects_error:
            continue
        if cut_of(event.values) is None:
            continue
        is_computed = bool(through_all(event.values))
        for _, cut_node, _ in lost_terms(function, event):
            if id(cut_node) in reported:
                continue
            if is_gradient(cut_node, function):
                message, hint = _OF_GRADIENT, "pass create_graph=True"
            elif is_computed and _copies_computed(cut_node):
                message = _OF_COPY
                hint = "use the computed tensor itself, or torch.stack for a list of them"
            elif is_computed and is_item(cut_node):
                message, hint = _OF_ITEM, "leave out .item() where the loss is made of it"
            elif is_computed and (is_hard(cut_node) or _is_elsewhere(cut_node, function)):
                message, hint = _OF_TERM, "compute the term of values that still have their graph"
            else:
                continue
            reported.add(id(cut_node))
            yield Violation(
                cut_node,
                message.format(source_of(module, cut_node)),
                Severity.WARNING,
                hint,
                ((event.node, "the loss is differentiated here"),),
            )


_OF_OBJECTIVE = (
    "`{}` is a term of the loss without a graph, though it is computed of what the other terms "
    "train: it shows in the loss, and nothing learns from it"
)
_OF_COPY = (
    "`{}` makes a tensor without a graph from a computed value, so this term of the loss has no "
    "gradient"
)
_OF_ITEM = (
    "`{}` makes a number of a computed value, so this term of the loss has no gradient and trains "
    "nothing"
)
_OF_TERM = (
    "`{}` takes the graph away of what a term of the loss is computed of: the term shows in the "
    "loss, and nothing learns from it"
)
_OF_GRADIENT = (
    "`{}` returns gradients without a graph, because create_graph is not set: this term of the "
    "loss is a constant and penalizes nothing"
)


def _is_elsewhere(cut: cst.CSTNode, function: FunctionModel) -> bool:
    """Tell whether a cut is made in a function that computes a term, not where that is added."""
    return not any(node is cut for node in function.scope.nodes)


_COPIES = frozenset({"tensor", "FloatTensor", "Tensor", "from_numpy"})


def _copies_computed(node: cst.CSTNode) -> bool:
    """Tell whether this is `torch.tensor(...)` of something that a model computed."""
    if type(node) is not cst.Call:
        return False
    last = (dotted_name(node.func) or "").rpartition(".")[2]
    return last in _COPIES and bool(positional(node))
