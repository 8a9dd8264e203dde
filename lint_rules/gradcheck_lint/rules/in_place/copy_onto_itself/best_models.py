"""Find a best model that is kept under another name while training goes on with it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.flow import Backward, Forward, Step
from gradcheck_lint.model.syntax import assigned_pairs, bound_names, dotted_name, last_word, walk
from gradcheck_lint.model.values import sites
from gradcheck_lint.rules._rule import Violation
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.flow import Loop
    from gradcheck_lint.model.module import FunctionModel

__all__ = ["best_models"]

_BEST: Final = re.compile(r"(?i)(?:^|_)best(?:_?(?:model|net|network|policy|state))?$|_best$")


def best_models(function: FunctionModel) -> Iterator[Violation]:
    """Yield every ``best_model = model`` in a loop that trains one model, made before."""
    if not any(map(_BEST.search, function.scope.words)):
        return
    events = list(function.events())
    run = [event for event in events if isinstance(event, Forward)]
    for loop in function.loops():
        inside = [event for event in events if loop.identity in event.loops]
        if not any(isinstance(event, Backward) for event in inside):
            continue
        if not any(isinstance(event, Step) for event in inside):
            continue
        for node in walk(loop.node):
            for target, value in assigned_pairs(node):
                model, name = dotted_name(value), dotted_name(target)
                if name is None or model is None or not _BEST.search(last_word(name)):
                    continue
                if _is_trained(model, run, function) and not _is_made_in(loop, model):
                    yield Violation(
                        value,
                        f"`{name}` is `{model}` itself, which goes on learning: in the end it is "
                        "the last model, not the best",
                        Severity.WARNING,
                        f"keep `copy.deepcopy({model})`",
                    )
                    return


def _is_trained(model: str, run: list[Forward], function: FunctionModel) -> bool:
    held = sites(function.bindings.get(model, frozenset()))
    return any(held & sites(event.values) or event.receiver == model for event in run)


def _is_made_in(loop: Loop, model: str) -> bool:
    """Return whether a loop gives the name another model."""
    if any(model == name or model.startswith(f"{name}.") for name in loop.targets):
        return True
    return any(
        model in bound_names(target)
        for node in walk(loop.node)
        if type(node) is not cst.For
        for target, _ in assigned_pairs(node)
    )
