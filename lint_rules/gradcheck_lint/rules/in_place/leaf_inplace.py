"""GCS101: a leaf that requires grad is written to while gradients are recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_lint.analyses.hidden_effects import FREEZING, is_handed_on, may_act_inside
from gradcheck_lint.analyses.source_text import source_of
from gradcheck_lint.model.flow import Backward, GradMode, InPlace
from gradcheck_lint.model.syntax import walk
from gradcheck_lint.model.values import Kind, all_are
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.in_place.overwriting_layers import written_by_layer
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    import libcst as cst

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.values import Values


class LeafInplace(Rule):
    """A leaf that requires grad is modified in place where operations are recorded."""

    entry = catalogue.LEAF_INPLACE

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every in-place write to what is a leaf whichever way it's reached."""
        raising: set[int] = set()
        for event in map(written_by_layer, function.events()):
            if not isinstance(event, InPlace) or event.expects_error:
                continue
            if not all_are(event.values, Kind.LEAF, Kind.LEAF_VIEW):
                continue
            severity = _severity(function, event)
            if severity is None or _may_be_frozen(function):
                continue
            raising.add(id(event.node))
            # Of `leaf.mul_(2).add_(1)`, the second is never reached.
            if id(event.target) not in raising:
                yield self._violation(function, event, severity)

    def _violation(self, function: FunctionModel, event: InPlace, severity: Severity) -> Violation:
        module = function.module
        target = source_of(module, event.target) if event.target is not None else "the tensor"
        is_view = any(value.kind is Kind.LEAF_VIEW for value in event.values)
        what = "a view of a leaf" if is_view else "a leaf"
        message = (
            f"`{target}` is {what} that requires grad and is modified in place by "
            f"{event.operation} while operations are recorded: torch raises a RuntimeError here"
        )
        if severity is Severity.WARNING and event.mode is GradMode.AMBIENT:
            message += ", unless the caller has switched recording off"
        related: list[tuple[cst.CSTNode, str]] = [
            (node, "the leaf comes from here")
            for node in _makers(event.values, function)[:1]
            if node is not event.node
        ]
        hint = "do it inside `with torch.no_grad():`, or make a new tensor from it"
        return Violation(event.node, message, severity, hint, tuple(related))


def _severity(function: FunctionModel, event: InPlace) -> Severity | None:
    """Return how certain it is that torch raises here; None for silence."""
    certain = all(value.certain for value in event.values)
    if event.mode is GradMode.AMBIENT and not _must_record(function):
        scopes = function.module.scopes
        if is_handed_on(function) or scopes.is_made_to_order(function.scope.owner):
            # Whoever gets it may call it, or wrap it, under no_grad.
            return None
        callers = function.module.modes_of_callers(function.scope)
        if callers and GradMode.ENABLED not in callers:
            # Hardly any decorator of a constructor turns recording off, but one may.
            is_maker = function.scope.name.endswith("__init__")
            if not is_maker or GradMode.DISABLED in callers:
                return None
            certain = False
        certain = certain and GradMode.DISABLED not in callers
        if not callers and not _is_forward_or_local(function, event):
            certain = False
    elif event.mode not in {GradMode.ENABLED, GradMode.AMBIENT}:
        return None
    if not certain and function.module.may_freeze:
        return None
    return Severity.ERROR if certain else Severity.WARNING


def _must_record(function: FunctionModel) -> bool:
    """Tell whether a function differentiates what it computes, as a closure of an optimizer does.

    Where its caller has turned recording off, it raises.
    """
    return any(
        isinstance(event, Backward)
        and event.mode is GradMode.AMBIENT
        and not event.expects_error
        and not event.arms
        and all_are(event.values, Kind.HISTORY)
        for event in function.events()
    )


def _is_forward_or_local(function: FunctionModel, event: InPlace) -> bool:
    """Tell whether the leaf was made in this function, or the function runs in training.

    What is made elsewhere may be changed by a helper that's always called under no_grad.
    """
    name = function.scope.name.rpartition(".")[2]
    if name in {"forward", "__init__"}:
        return True
    local = {
        value.site
        for path, values in function.bindings.items()
        if "." not in path
        for value in values
    }
    return all(value.site in local or value.kind is Kind.LEAF_VIEW for value in event.values)


def _makers(values: Values, function: FunctionModel) -> list[cst.CSTNode]:
    """Return where leaves were made, in the order of the source."""
    made = [value.node for value in values if value.node is not None]
    if len(made) > 1:
        places = {id(node): place for place, node in enumerate(walk(function.module.tree))}
        made.sort(key=lambda node: places.get(id(node), -1))
    return made


def _may_be_frozen(function: FunctionModel) -> bool:
    """Tell whether a function inside of this one may turn `requires_grad` off."""
    return function.module.may_freeze and may_act_inside(function, FREEZING)
