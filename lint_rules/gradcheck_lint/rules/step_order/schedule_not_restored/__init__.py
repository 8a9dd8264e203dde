"""GCS317: a checkpoint restores the optimizer and not its schedule."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.flow import SchedulerStep
from gradcheck_lint.model.syntax import bound_names, dotted_name, keyword, last_word, walk
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.step_order.schedule_not_restored.made_late import made_late
from gradcheck_lint.rules.step_order.schedule_not_restored.stale_groups import stale_groups
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel, ModuleModel


class ScheduleNotRestored(Rule):
    """Training goes on with the state of the optimizer and a new learning rate schedule."""

    entry = catalogue.SCHEDULE_NOT_RESTORED

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield what restores an optimizer, where no schedule is, or one that is made later."""
        module = function.module
        if "load_state_dict" not in function.scope.words:
            return
        for late in made_late(function):
            yield Violation(
                late.restored,
                "the rates that this restores are lost: a scheduler is made of the optimizer "
                "afterwards, which sets the rate of its own beginning, and the state that it is "
                "given then leaves the rates alone",
                Severity.WARNING,
                "make the scheduler first, and restore the optimizer after that",
                ((late.made, "sets its first rate"), (late.continued, "sets no rate")),
            )
        stale = stale_groups(function)
        if stale is not None:
            yield Violation(
                stale.loaded,
                "this gives the optimizer new groups, and the wrapper still shows those of before "
                "as its own: the rates that a schedule sets there reach no step",
                Severity.WARNING,
                "take the groups again afterwards: `self.param_groups = optimizer.param_groups`",
                ((stale.taken, "taken here"),),
            )
        loads = [node for node in function.scope.nodes if _is_call(node, "load")]
        restored = next((node for node in loads if _OPTIMIZER.search(_said(node, module))), None)
        if restored is None:
            return
        if not _KEPT.search(module.text(restored)) and not module.mentions(b"torch.load"):
            return
        schedule = _schedule(module)
        if schedule is not None and not _is_restored(module):
            is_saved = any(
                _is_call(node, "save") and _OPTIMIZER.search(_said(node, module))
                for node in _nodes(module)
            )
            yield Violation(
                restored,
                "the optimizer is restored from a checkpoint, and the schedule of its learning "
                "rate is not: it begins anew, and its first step replaces the restored rate",
                Severity.WARNING if is_saved else Severity.NOTE,
                "save and load `scheduler.state_dict()` as well",
                ((schedule, "the schedule"),),
            )


_OPTIMIZER: Final = re.compile("optim|(?:^|[^a-z])opt(?:$|[^a-z])")
_KEPT: Final = re.compile("(?i)checkpoint|ckpt|saved")
_SCHEDULE: Final = re.compile("sched|lr_|warmup")
_COUNTS: Final = re.compile(r"\.(?:last_epoch|_step_count)$")
_MAKES: Final = re.compile(r"get_\w*schedule\w*|[A-Z]\w*(?:LR|Scheduler)")
_METHODS: Final = {"load": "load_state_dict", "save": "state_dict"}


def _nodes(module: ModuleModel) -> Iterator[cst.CSTNode]:
    for function in module.functions():
        yield from function.scope.nodes_with_lambdas


def _is_call(node: cst.CSTNode, which: str) -> bool:
    return (
        type(node) is cst.Call
        and type(node.func) is cst.Attribute
        and node.func.attr.value == _METHODS[which]
    )


def _said(node: cst.CSTNode, module: ModuleModel) -> str:
    """Return what a load or save is called on, or its argument where that has no name."""
    assert type(node) is cst.Call
    assert type(node.func) is cst.Attribute
    return (last_word(dotted_name(node.func.value)) or module.text(node)).lower()


def _schedule(module: ModuleModel) -> cst.CSTNode | None:
    """Return the call that makes the scheduler of a file which steps it, from its beginning."""
    made: cst.CSTNode | None = None
    for node in _nodes(module):
        if type(node) is not cst.Call:
            continue
        name = module.scopes.resolve_import(dotted_name(node.func) or "") or ""
        if _MAKES.fullmatch(last_word(name)) and not name.endswith("OnPlateau"):
            if keyword(node, "last_epoch") is not None:
                return None
            made = made or node
    return made if _stepped(module) else None


def _stepped(module: ModuleModel) -> frozenset[str]:
    """Return the last words of what the file calls its schedulers."""
    known = {
        last_word(event.receiver)
        for function in module.functions()
        if "step" in function.scope.words
        for event in function.events()
        if isinstance(event, SchedulerStep)
    }
    called = (dotted_name(node.func) for node in _nodes(module) if type(node) is cst.Call)
    named = (path.split(".")[-2] for path in called if path is not None and path.endswith(".step"))
    return frozenset(known | {name for name in named if _SCHEDULE.search(name.lower())})


def _is_restored(module: ModuleModel) -> bool:
    """Return whether a scheduler is given its state, or wound forward, or anything might be."""
    stepped = _stepped(module)
    for function in module.functions():
        nodes = function.scope.nodes
        loops = [node for node in nodes if type(node) is cst.For]
        targets = {name for loop in loops for name in bound_names(loop.target)}
        for node in nodes:
            if _is_call(node, "load"):
                said = _said(node, module)
                assert type(node) is cst.Call
                assert type(node.func) is cst.Attribute
                is_any = dotted_name(node.func.value) in targets or "getattr" in said
                if is_any or said in stepped or _SCHEDULE.search(said):
                    return True
            elif type(node) is cst.AssignTarget and _COUNTS.search(module.text(node.target)):
                return True
        if any(map(_winds, loops)):
            return True
    return False


def _winds(loop: cst.For) -> bool:
    """Return whether a loop does nothing but to step a scheduler."""
    calls = [node for node in walk(loop.body) if type(node) is cst.Call]
    return bool(calls) and all(
        last_word(dotted_name(call.func)) == "step"
        and _SCHEDULE.search((dotted_name(call.func) or "").lower()) is not None
        for call in calls
    )
