"""Judge the order of backward, zero_grad, clipping and steps on every path, once for all rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeAlias

from gradcheck_lint.analyses.hidden_effects import (
    DIFFERENTIATING,
    STEPPING,
    UNSCALING,
    UPDATING,
    ZEROING,
    may_act_unseen,
)
from gradcheck_lint.analyses.repeated_calls import repeats, steps_for_others
from gradcheck_lint.model.flow import (
    Backward,
    Call,
    Clip,
    Event,
    ScalerUpdate,
    SchedulerStep,
    Step,
    Unscale,
    ZeroGrad,
)
from gradcheck_lint.model.nearness import STEPS
from gradcheck_lint.model.paths import Path, matters, once, turns
from gradcheck_lint.model.scopes import Part
from gradcheck_lint.rules.step_order.clipping import judge_clip
from gradcheck_lint.rules.step_order.leftovers import judge_leftover, judge_unused
from gradcheck_lint.rules.step_order.problem import ABSENT, Problem, Unit
from gradcheck_lint.rules.step_order.scaling import judge_unscale, judge_update
from gradcheck_lint.rules.step_order.stepping import judge_scheduler, judge_step, judge_zero

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_lint.model.module import FunctionModel, ModuleModel


Judge: TypeAlias = Callable[[Path, int, Unit], "tuple[Problem | None, ...]"]


def problems(function: FunctionModel, code: str) -> list[Problem]:
    """Return what is out of order in one function, as far as it concerns one rule."""
    memo = function.module.memo
    if "protocol" not in memo:
        memo["protocol"] = _all_problems(function.module)
    found: dict[tuple[str, int], list[Problem]] = memo["protocol"]
    return found.get((code, id(function.scope)), [])


def _all_problems(module: ModuleModel) -> dict[tuple[str, int], list[Problem]]:
    found: dict[tuple[str, int], list[Problem]] = defaultdict(list)
    reported: set[tuple[str, int]] = set()
    for function in module.own_functions():
        if function.runs_in_engine and "manual_backward" not in function.scope.words:
            continue
        if not _is_candidate(function):
            continue
        for problem in _problems_of(function):
            key = (problem.code, id(problem.event.node))
            if key in reported or problem.event.expects_error or _may_be_set_right(problem):
                continue
            reported.add(key)
            # What is out of order in another file is a problem of who calls it in this way.
            place = function.scope if problem.function.scope.linked else problem.function.scope
            found[problem.code, id(place)].append(problem)
    return _without_repeats(found)


def _without_repeats(
    found: dict[tuple[str, int], list[Problem]],
) -> dict[tuple[str, int], list[Problem]]:
    """Leave out steps that find nothing because of a reset that is told by itself.

    Alone, a method that resets and steps has no backward; its callers show where that comes. And
    leave out a backward that no step uses where a step is told by it that comes before it.
    """
    unused = {key: problems for key, problems in found.items() if key[0] == "GCS302"}
    resets = {
        id(problem.event.node)
        for problems in unused.values()
        for problem in problems
        if isinstance(problem.event, ZeroGrad)
    }
    kept = {
        key: [
            problem
            for problem in problems
            if key[0] != "GCS303" or all(id(other.node) not in resets for other in problem.others)
        ]
        for key, problems in found.items()
    }
    told = {
        id(other.node)
        for key, problems in kept.items()
        if key[0] == "GCS303"
        for problem in problems
        for other in problem.others
        if isinstance(other, Backward)
    }
    for key in unused:
        kept[key] = [problem for problem in kept[key] if id(problem.event.node) not in told]
    return kept


def _may_be_set_right(problem: Problem) -> bool:
    """Tell whether what a problem misses may be done where no path shows it."""
    return any(may_act_unseen(problem.function, act) for act in _MISSED.get(problem.code, ()))


_MISSED: Final = {
    "GCS301": (ZEROING,),
    "GCS302": (DIFFERENTIATING,),
    "GCS303": (DIFFERENTIATING,),
    "GCS304": (DIFFERENTIATING,),
    "GCS305": (UNSCALING,),
    "GCS306": (STEPPING,),
    "GCS309": (ZEROING,),
    "GCS310": (UNSCALING, UPDATING),
}
"""What is not done where something is out of order, by the code of the rule."""


def _trains(word: str) -> bool:
    return word in STEPS or word == "unscale_" or "clip_grad" in word


"""What is judged here, save for what is judged with it."""


def _is_candidate(function: FunctionModel) -> bool:
    if not function.module.near.has(function.scope, _trains):
        return False
    if matters(function):
        return True
    # A loop that only calls functions of the file: `for x in data: self.step(x)`.
    return Part.LOOP in function.scope.parts and any(
        isinstance(event, Call) and event.function is not None and event.loops
        for event in function.events()
    )


def _problems_of(function: FunctionModel) -> Iterator[Problem]:
    for loop in reversed(list(function.loops())):
        paths = turns(loop, function)
        if paths:
            yield from _judge(paths, Unit(function, loop), _JUDGES)
            yield from _judge(paths, Unit(function, loop), _JUDGES_OF_WHAT_IS_LEFT)
            yield from _mixed(paths, function)
    paths = once(function)
    if paths:
        yield from _judge(paths, Unit(function, None), _JUDGES)
        again = _called_again(paths, function)
        yield from _judge(again, Unit(function, None), _JUDGES_OF_WHAT_IS_LEFT)
        yield from _mixed(again, function)


def _called_again(paths: Sequence[Path], function: FunctionModel) -> Sequence[Path]:
    """Return the paths through two calls of a function that runs again and again."""
    if not repeats(function) and not steps_for_others(function):
        return paths
    pairs = [(left, right) for left in paths for right in paths]
    if len(pairs) > _MOST_PAIRS:
        pairs = [(path, path) for path in paths]
    return [(*left, *(item.again(1) for item in right)) for left, right in pairs]


_MOST_PAIRS: Final = 256


def _mixed(paths: Sequence[Path], function: FunctionModel) -> Iterator[Problem]:
    """Yield the steps that some path leads to with the gradients of two optimizers' losses."""
    for path in paths:
        steps = {id(item.event) for item in path if isinstance(item.event, Step)}
        for index, item in enumerate(path if len(steps) > 1 else ()):
            if isinstance(item.event, Step):
                problem = judge_leftover(path, index, function)
                if problem is not None and problem is not ABSENT:
                    yield problem


def _judge(
    paths: Sequence[Path], unit: Unit, judges: Mapping[type[Event], Judge]
) -> Iterator[Problem]:
    """Yield what every path shows that has the event in question."""
    verdicts: dict[int, list[Problem | None]] = defaultdict(list)
    for path in paths:
        for index, item in enumerate(path):
            judge = judges.get(type(item.event))
            if judge is None or not unit.owns(item):
                continue
            for slot, verdict in enumerate(judge(path, index, unit)):
                if verdict is not ABSENT:
                    verdicts[id(item.event) * 4 + slot].append(verdict)
    for found in verdicts.values():
        problems = [verdict for verdict in found if verdict is not None]
        if len(problems) == len(found):
            yield max(problems, key=attrgetter("doubt"))


_JUDGES: Final[Mapping[type[Event], Judge]] = {
    Step: judge_step,
    Clip: judge_clip,
    Unscale: judge_unscale,
    ScalerUpdate: judge_update,
    SchedulerStep: judge_scheduler,
    ZeroGrad: judge_zero,
}
_JUDGES_OF_WHAT_IS_LEFT: Final[Mapping[type[Event], Judge]] = {ZeroGrad: judge_unused}
"""What asks for two iterations, or for two calls of a function that is called again and again."""
