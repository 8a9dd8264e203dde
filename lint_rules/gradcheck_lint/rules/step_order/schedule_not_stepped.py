"""GCS320: a learning rate scheduler that is made and never steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.syntax import assigned_once, dotted_name, last_word, walk
from gradcheck_lint.model.values import Kind
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel

_HARMLESS: Final = frozenset(
    ("base_lrs", "get_last_lr", "get_lr", "last_epoch", "load_state_dict", "state_dict")
)
"""What may be asked of a scheduler and does not step it."""


class ScheduleNotStepped(Rule):
    """Nothing steps a scheduler, so that the rate stays what it begins with."""

    entry = catalogue.SCHEDULE_NOT_STEPPED

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield schedulers under a local name that is not used for anything that may step them."""
        module = function.module
        if not module.mentions(b"lr_scheduler") or not module.mentions(b"step(", b".backward("):
            return
        if function.scope.name.startswith("test"):
            return  # What is tested may be how it begins.
        for node in function.scope.nodes_of(cst.Assign, cst.AnnAssign):
            target, value = assigned_once(node)
            if type(target) is not cst.Name or type(value) is not cst.Call:
                continue
            known = function.bindings.get(target.value, frozenset())
            if {each.kind for each in known} == {Kind.SCHEDULER} and not _is_used(
                target.value, function
            ):
                yield Violation(
                    value,
                    f"`{target.value}` is made and nothing steps it: the learning rate stays what "
                    "the schedule begins with",
                    Severity.WARNING,
                    f"call `{target.value}.step()` after the optimizer's, as often as its lengths "
                    "are counted",
                    evidence={"scheduler": last_word(dotted_name(value.func))},
                )


def _is_used(name: str, function: FunctionModel) -> bool:
    """Return whether a name is read for anything but what does not step a scheduler."""
    uses = harmless = 0
    for node in walk(function.scope.node):
        if type(node) is cst.Name and node.value == name:
            uses += 1
        elif type(node) is cst.Attribute and dotted_name(node.value) == name:
            harmless += node.attr.value in _HARMLESS
        elif type(node) is cst.AssignTarget and dotted_name(node.target) == name:
            harmless += 1
    return uses > harmless
