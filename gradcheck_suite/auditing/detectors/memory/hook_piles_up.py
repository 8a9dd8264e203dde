"""Hooks that are registered again and again on one module or parameter, and never removed.

A function that registers a hook, for a map of saliency or for features, is called once an epoch.
What it leaves runs in every pass from then on, once more each time; a hook on backward also
changes the gradients that train.
"""

from __future__ import annotations

import linecache
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite._runtime.frames import code_of, definition_line
from gradcheck_suite._torch_compat import hooks_of
from gradcheck_suite.auditing.call_sites import is_user_code
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.detectors.leaf_records import is_looked_at, next_looked_at
from gradcheck_suite.auditing.events import StepStarted
from gradcheck_suite.auditing.source_analysis.source import function_at
from gradcheck_suite.findings import Finding, Location, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

    from torch import Tensor, nn

    from gradcheck_suite.auditing.detectors.leaf_records import LeafRecords
    from gradcheck_suite.auditing.events import Subscriptions

__all__ = ["HookPilesUpDetector"]

_ENOUGH = 3
"""Hooks of one function on one module that make a finding. Chosen: two may be meant, for two
purposes."""

_LOOKS = 2
"""Looks, steps apart, in which there were more than in the one before. Chosen: the least that
shows it goes on."""


@dataclass(slots=True)
class _Pile:
    """The hooks of one function.

    Attributes:
        what: the kind of hook, in torch's words.
        most: the greatest number on one module or parameter, as it was looked at last.
        on: how many modules or parameters have so many.
        seen: step and number, at each look with more than before.
    """

    what: str
    most: int = 0
    on: int = 0
    seen: list[tuple[int, int]] = field(default_factory=list)


class HookPilesUpDetector:
    """Reports hook-piles-up (GCS209).

    Args:
        leaves: tell which modules run, and which leaves there are.
    """

    def __init__(self, leaves: LeafRecords) -> None:
        self._leaves = leaves
        self._piles: dict[CodeType, _Pile] = {}

    def subscriptions(self) -> Subscriptions:
        """Count hooks in some steps."""
        return {StepStarted: self._before_step}

    def findings(self) -> list[Finding]:
        """Return one finding for each function that is registered so."""
        return [
            _finding(code, pile)
            for code, pile in self._piles.items()
            if pile.most >= _ENOUGH and len(pile.seen) > _LOOKS
        ]

    def _before_step(self, event: StepStarted) -> int | None:
        step = event.number
        if is_looked_at(step):
            self._count(step)
        return next_looked_at(step)

    def _count(self, step: int) -> None:
        counted: dict[CodeType, tuple[str, int, int]] = {}
        for thing in self._things():
            for code, (what, number) in _hooks_by_code(thing).items():
                _, most, on = counted.get(code, (what, 0, 0))
                on = on + 1 if number == most else on if number < most else 1
                counted[code] = (what, max(number, most), on)
        for code in [*self._piles, *(each for each in counted if each not in self._piles)]:
            what, most, on = counted.get(code, ("", 0, 0))
            pile = self._piles.setdefault(code, _Pile(what))
            if most > pile.most:
                pile.seen.append((step, most))
            elif most < pile.most:
                pile.seen.clear()  # They are removed, though not each time.
            pile.most, pile.on = most, on

    def _things(self) -> Iterator[nn.Module | Tensor]:
        """Yield the modules that run and what is in them, and the leaves."""
        for model in self._leaves.modules():
            yield from model.modules()
        for record in self._leaves.all():
            leaf = record.reference()
            if leaf is not None:
                yield leaf


def _hooks_by_code(thing: nn.Module | Tensor) -> dict[CodeType, tuple[str, int]]:
    """Return how many hooks of each function of the user's a module or a tensor has."""
    found: dict[CodeType, tuple[str, int]] = {}
    for what, hook in hooks_of(thing):
        code = code_of(hook)
        if code is not None and is_user_code(code):
            found[code] = (what, found.get(code, (what, 0))[1] + 1)
    return found


def _registered_at(code: CodeType) -> Location:
    """Return the line of its file that registers this function, else where it begins."""
    path, line = code.co_filename, definition_line(code)
    wanted = re.compile(rf"\.register_\w*hook\(.*\b{re.escape(code.co_name)}\b")
    for number, text in enumerate(linecache.getlines(path), start=1):
        if wanted.search(text):
            line = number
            break
    return Location(path, line, function=function_at(path, line))


def _finding(code: CodeType, pile: _Pile) -> Finding:
    where = _registered_at(code)
    name = "this function" if code.co_name == "<lambda>" else f"`{code.co_name}`"
    on = "module or parameter" if pile.on == 1 else "modules or parameters"
    growth = ", ".join(f"{number} in step {step}" for step, number in pile.seen[-3:])
    effect = (
        "and changes the gradients that train, if it returns any"
        if "forward" not in pile.what
        else "and what it does or keeps is done as often"
    )
    defined = Location(code.co_filename, definition_line(code), function=where.function)
    return Finding.of(
        catalogue.HOOK_PILES_UP,
        f"{name} is a {pile.what} hook {pile.most} times on each of {pile.on} {on}, more each time "
        f"({growth}): it is registered again and never removed; it runs so many times in every "
        f"pass, {effect}",
        detector="audit",
        severity=Severity.WARNING,
        location=where,
        related=related((defined, "the hook"), apart_from=where),
        hint="keep the handle that register_...hook() returns, and call its remove()",
        evidence={"count": pile.most, "modules": pile.on, "kind": pile.what},
    )
