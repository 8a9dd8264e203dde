"""GCS405: requires_grad is forced onto a loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.analyses.cuts import is_certain
from gradcheck_lint.analyses.repeated_calls import differentiated_later
from gradcheck_lint.analyses.source_text import source_of
from gradcheck_lint.model.flow import Backward, Return
from gradcheck_lint.model.syntax import boolean, keyword
from gradcheck_lint.model.values import Kind, Values, all_are, through_all
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class ForcedRequiresGrad(Rule):
    """A loss without a graph is made to require grad, so that backward runs and trains nothing."""

    entry = catalogue.FORCED_REQUIRES_GRAD

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every backward on a leaf that was made of a computed value."""
        yield from _returned(function)
        for event in (*function.events(), *differentiated_later(function)):
            if not isinstance(event, Backward) or event.expects_error or event.partial:
                continue
            if event.seeded:
                continue
            # A loop over several losses may have as many of them.
            cuts = {id(value.cut): value.cut for value in event.values if value.cut is not None}
            for cut in cuts.values():
                if _are_forced(event.values, cut):
                    yield self._violation(function, event, cut)

    def _violation(self, function: FunctionModel, event: Backward, cut: cst.CSTNode) -> Violation:
        return Violation(
            cut,
            f"the graph ends at `{source_of(function.module, cut)}`; with requires_grad forced on, "
            "backward() runs without an error and no parameter gets a gradient",
            Severity.ERROR if is_certain(event) else Severity.WARNING,
            "call backward() on the computed loss itself",
            ((event.node, "backward() reaches no further than this"),),
        )


def _returned(function: FunctionModel) -> Iterator[Violation]:
    """Yield what a function makes of computed values and returns, as one loss of a list of them."""
    for event in function.events():
        if not isinstance(event, Return) or not all_are(event.values, Kind.HISTORY):
            continue
        cuts = {id(value.cut): value.cut for value in event.values}
        cut = next(iter(cuts.values()))
        if len(cuts) != 1 or cut is None or not asks_for_gradient(cut):
            continue
        if not through_all(event.values):
            yield Violation(
                cut,
                f"the graph ends at `{source_of(function.module, cut)}`, which copies values: with "
                "requires_grad forced on, a backward() on what is returned trains nothing",
                Severity.WARNING,
                "use torch.stack for a list of losses, or the computed loss itself",
                ((event.node, "returned here"),),
            )


def asks_for_gradient(node: cst.CSTNode) -> bool:
    """Tell whether this is ``torch.tensor(losses, requires_grad=True)``."""
    return type(node) is cst.Call and boolean(keyword(node, "requires_grad")) is True


def _are_forced(values: Values, cut: cst.CSTNode) -> bool:
    """Tell whether these are leaves, or made by a method of a leaf that nothing else flows into."""
    if all_are(values, Kind.LEAF):
        return True
    if asks_for_gradient(cut) and not through_all(values):
        return all_are(values, Kind.HISTORY)
    made = [value.node for value in values]
    return all_are(values, Kind.HISTORY) and all(
        type(node) is cst.Call and type(node.func) is cst.Attribute and node.func.value is cut
        for node in made
    )
