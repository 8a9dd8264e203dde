"""What is frozen and was hardly meant to be, and what was meant to be frozen and is not.

Of layers that are alike but for a number in their names, a few are frozen: by a pattern that takes
more than was meant, where their numbers begin alike (1, 10, 11). All that an optimizer owns was
frozen in one step, as for the turn of another, and never thawed. ``module.requires_grad = False``
sets an attribute that nobody reads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import (
    CallSite,
    kind_of_file,
    location_of,
    user_files_with,
    user_frames,
)
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.detectors.leaf_records import next_looked_at
from gradcheck_suite.auditing.events import StepFinished
from gradcheck_suite.auditing.object_names.tensor_names import listed, variable_of, written
from gradcheck_suite.auditing.source_analysis.assignments import FreezingLine, freezing_lines
from gradcheck_suite.findings import Finding, Location, Severity
from gradcheck_suite.reporting.text import plural

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

    from gradcheck_suite.auditing.detectors.accumulation_windows import (
        AccumulationWindow,
        AccumulationWindows,
    )
    from gradcheck_suite.auditing.detectors.leaf_records import LeafRecords
    from gradcheck_suite.auditing.events import Subscriptions

__all__ = ["FrozenLeavesDetector", "Siblings", "siblings_frozen"]

_ENOUGH = 3
"""Looks at steps of an optimizer, one after the other, that find all it owns frozen. Chosen: more
than the turns of another that a freeze may be meant for."""

_FEWEST = 4
"""Layers that are alike, at least, before a few of them stand out. Chosen."""

_SHOWN = 4
"""Layers of the many that are named beside the few. Chosen, for length."""


@dataclass(frozen=True, slots=True)
class Siblings:
    """Layers alike but for a number in their names, of which a few are not as the others.

    Attributes:
        stem: the name up to the number.
        few: the numbers of the few, in order.
        many: those of the others.
    """

    stem: str
    few: tuple[int, ...]
    many: tuple[int, ...]

    @property
    def takes_more_than_meant(self) -> bool:
        """Whether the few are all whose numbers begin with that of the first, and not a range."""
        first = str(self.few[0])
        begin_alike = {each for each in (*self.few, *self.many) if str(each).startswith(first)}
        return len(self.few) > 1 and begin_alike == set(self.few) and not _is_range(self.few)

    @property
    def is_at_an_end(self) -> bool:
        """Whether the few are the first or the last layers, one after the other."""
        every = sorted((*self.few, *self.many))
        count = len(self.few)
        return list(self.few) in (every[:count], every[-count:])


def _is_range(numbers: tuple[int, ...]) -> bool:
    return numbers[-1] - numbers[0] == len(numbers) - 1


def siblings_frozen(parameters: dict[str, tuple[bool, int]]) -> list[Siblings]:
    """Return the layers of which a few are frozen, or a few are not.

    Layers are alike whose names are but for a number, and that have parameters of the same names
    and number of dimensions.

    Args:
        parameters: whether each is frozen, and how many dimensions it has, by its name.

    >>> named = {f"layer{i}.weight": (str(i).startswith("1"), 2) for i in range(12)}
    >>> siblings_frozen(named)
    [Siblings(stem='layer', few=(1, 10, 11), many=(0, 2, 3, 4, 5, 6, 7, 8, 9))]
    """
    layers: dict[tuple[str, int], dict[str, tuple[bool, int]]] = {}
    for name, facts in parameters.items():
        for number in re.finditer(r"\d+", name):
            key = name[: number.start()], int(number[0])
            layers.setdefault(key, {})[name[number.end() :]] = facts
    groups: dict[tuple[str, frozenset[tuple[str, int]]], dict[int, set[bool]]] = {}
    for (stem, index), members in layers.items():
        kind = frozenset((rest, dimensions) for rest, (_, dimensions) in members.items())
        groups.setdefault((stem, kind), {})[index] = {each for each, _ in members.values()}
    found: dict[Siblings, None] = {}
    for (stem, _), states in groups.items():
        frozen = tuple(sorted(index for index, each in states.items() if each == {True}))
        thawed = tuple(sorted(index for index, each in states.items() if each == {False}))
        few, many = sorted((frozen, thawed), key=len)
        if few and len(states) >= _FEWEST and len(few) < len(many):
            found[Siblings(stem, few, many)] = None
    return list(found)


@dataclass(slots=True)
class _AllFrozen:
    optimizer: str
    made: CallSite | None
    site: CallSite | None
    parameters: int
    since: int
    looks: int = 0


@dataclass(frozen=True, slots=True)
class _Flag:
    name: str
    parameters: int
    line: FreezingLine | None
    site: CallSite | None


class FrozenLeavesDetector:
    """Reports frozen-parameter (GCS406), and frozen-but-changed (GCS409) of a flag of no use."""

    def __init__(self, windows: AccumulationWindows, leaves: LeafRecords) -> None:
        self._windows = windows
        self._leaves = leaves
        self._all_frozen: dict[object, _AllFrozen] = {}
        self._flags: dict[str, _Flag] = {}
        self._looked_through: set[int] = set()
        self._siblings: list[Finding] = []
        self._files: dict[str, None] = {}

    def subscriptions(self) -> Subscriptions:
        """Look at what is frozen in the steps in which leaves are looked at."""
        return {StepFinished: self._end_step}

    def _end_step(self, event: StepFinished) -> int | None:
        if not self._leaves.is_looking:
            return next_looked_at(event.number)
        window = self._windows.stepped
        self._look_for_all_frozen(window, event)
        if event.number + 1 >= _ENOUGH:
            self._look_for_flags(event)
            self._look_for_siblings(window, event)
        return None

    def _look_for_all_frozen(self, window: AccumulationWindow, event: StepFinished) -> None:
        records = self._leaves.stepped
        key = (window.constructed_at, event.site)
        turned = [each.turned for each in records if each.turned is not None]
        if not turned or any(each.asked_last or not each.missed for each in records):
            self._all_frozen.pop(key, None)
            return
        known = self._all_frozen.setdefault(
            key,
            _AllFrozen(
                type(event.optimizer).__name__,
                window.constructed_at,
                event.site,
                len(records),
                max(turned),
            ),
        )
        known.looks += 1

    def _look_for_flags(self, event: StepFinished) -> None:
        for model in self._leaves.modules():
            if id(model) in self._looked_through:
                continue
            self._looked_through.add(id(model))
            for path, module in model.named_modules():
                if vars(module).get("requires_grad") is not False:
                    continue
                asking = [each for each in module.parameters() if each.requires_grad]
                name = _module_name(model, path)
                if not asking or name in self._flags:
                    continue
                self._flags[name] = _Flag(name, len(asking), self._line_of_flag(name), event.site)

    def _line_of_flag(self, name: str) -> FreezingLine | None:
        """Return the line that sets the flag: of this name, or else the only one that may be it."""
        lines = [each for each in self._freezing_lines() if each.is_flag]
        last = re.findall(r"\w+", name)[-1]
        named = [each for each in lines if re.findall(r"\w+", each.target)[-1] == last]
        few = named or [each for each in lines if not each.under_pattern]
        return few[0] if named or len(few) == 1 else None

    def _freezing_lines(self) -> list[FreezingLine]:
        files = dict.fromkeys(user_files_with("requires_grad"))
        running = (frame.f_code.co_filename for frame in user_frames())
        files.update((file, None) for file in running if not kind_of_file[file])
        return list(freezing_lines(files))

    def _look_for_siblings(self, window: AccumulationWindow, event: StepFinished) -> None:
        if self._siblings:
            return
        frozen = {
            each.name: (not each.asked_last, len(each.shape))
            for each in self._leaves.all()
            if each.name is not None and (each.asked is each.asked_last)
        }
        if len({is_frozen for is_frozen, _ in frozen.values()}) < 2:  # noqa: PLR2004 - both sides
            return
        for siblings in siblings_frozen(frozen):
            if siblings.takes_more_than_meant or not siblings.is_at_an_end:
                start = re.compile(rf"{re.escape(siblings.stem)}{siblings.few[0]}(?!\d)")
                are_frozen = any(each for name, (each, _) in frozen.items() if start.match(name))
                finding = self._siblings_finding(siblings, window, event, are_frozen=are_frozen)
                self._siblings.append(finding)
                return

    def _siblings_finding(
        self,
        siblings: Siblings,
        window: AccumulationWindow,
        event: StepFinished,
        *,
        are_frozen: bool,
    ) -> Finding:
        few = [written(f"{siblings.stem}{number}") for number in siblings.few]
        many = [written(f"{siblings.stem}{number}") for number in siblings.many]
        rest = listed(many[:_SHOWN]) + ("" if len(many) <= _SHOWN else ", ...")
        are = "is" if len(few) == 1 else "are"
        what, other = ("frozen", "trained") if are_frozen else ("trained", "frozen")
        message = (
            f"of {len(few) + len(many)} layers alike, {listed(few)} {are} {what}, and {rest} are "
            f"{other}"
        )
        by_pattern = siblings.takes_more_than_meant
        if by_pattern:
            last = re.split(r"[.\[]", siblings.stem)[-1]
            message += (
                f": they are those whose name begins with `{last}{siblings.few[0]}`; expected a "
                "pattern for whole names"
            )
        lines = [each for each in self._freezing_lines() if each.under_pattern]
        line = lines[0].location if len({each.location for each in lines}) == 1 else None
        made = location_of(window.constructed_at)
        where = line or made or location_of(event.site)
        return Finding.of(
            catalogue.FROZEN_PARAMETER,
            message,
            detector="audit",
            severity=Severity.WARNING if by_pattern else Severity.NOTE,
            location=where,
            related=related((made, "the optimizer is made here"), apart_from=where),
            hint="compare whole names, with the dot: name.startswith('layer1.')",
            evidence={
                "layers": tuple(few),
                "of_layers": len(few) + len(many),
                "by_a_pattern": by_pattern,
            },
        )

    def findings(self) -> list[Finding]:
        """Return what is true by now."""
        changed = {each.name for each in self._leaves.all() if each.changed and each.name}
        return [
            *self._siblings,
            *(_all_frozen_finding(x) for x in self._all_frozen.values() if x.looks >= _ENOUGH),
            *(_flag_finding(each, changed) for each in self._flags.values()),
        ]


def _module_name(model: nn.Module, path: str) -> str:
    start = variable_of(model) or type(model).__name__
    return written(f"{start}.{path}") if path else start


def _all_frozen_finding(seen: _AllFrozen) -> Finding:
    where = location_of(seen.site)
    return Finding.of(
        catalogue.FROZEN_PARAMETER,
        f"{plural(seen.parameters, 'parameter')}, all that {seen.optimizer} owns, "
        f"{'was' if seen.parameters == 1 else 'were'} frozen in step {seen.since} and never thawed "
        f"since: {seen.optimizer}.step() changes nothing; expected requires_grad_(True) before "
        "their turn",
        detector="audit",
        severity=Severity.WARNING,
        location=where,
        related=related(
            (location_of(seen.made), f"{seen.optimizer} is made here"), apart_from=where
        ),
        hint="thaw what was frozen for the turn of another: parameter.requires_grad_(True)",
        evidence={"parameters": seen.parameters, "since": seen.since, "optimizer": seen.optimizer},
    )


def _flag_finding(flag: _Flag, changed: Iterable[str]) -> Finding:
    number = plural(flag.parameters, "parameter")
    moved = any(written(name).startswith(flag.name) for name in changed)
    doubts = []
    if flag.line is None or flag.line.target == "self":
        doubts.append("its class may mean something else by that attribute")
    where: Location | None = location_of(flag.site) if flag.line is None else flag.line.location
    return Finding.of(
        catalogue.FROZEN_BUT_CHANGED,
        f"`{flag.name}.requires_grad = False` sets an attribute that nothing reads: {number} of it "
        f"still require grad{' and are trained' if moved else ''}; expected requires_grad_(False)",
        detector="audit",
        severity=Severity.ERROR if moved else Severity.WARNING,
        doubts=doubts,
        location=where,
        hint=f"{flag.name}.requires_grad_(False)",
        evidence={"by": "attribute", "names": [flag.name], "parameters": flag.parameters},
    )
