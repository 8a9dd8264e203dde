"""Errors and warnings of torch's own about autograd, explained at the line that has to change.

Whatever torch refuses inside an audit is told: where a backward or an in-place call fails, also if
the program catches that, and what leaves the audit as an exception. A detector that knows more of
the same failure speaks in its place.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from torch import nn

from gradcheck_suite.auditing.call_sites import (
    innermost_site,
    kind_of_file,
    location_of,
    user_files_with,
    variables_of,
)
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.detectors.functions.function_contract import line_in, users_function
from gradcheck_suite.auditing.detectors.refusals.messages import (
    Advice,
    advice_on_error,
    advice_on_warning,
)
from gradcheck_suite.auditing.events import (
    BackwardFailed,
    ScalerStepped,
    SessionEnded,
    TorchWarned,
    WriteRefused,
)
from gradcheck_suite.auditing.source_analysis.source import name_of, tree_of
from gradcheck_suite.catalogue import REFUSED_BY_TORCH, SCHEDULER_BEFORE_STEP
from gradcheck_suite.findings import JSON, Finding, Location, Related

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import FrameType, TracebackType

    from gradcheck_suite.auditing.events import Subscriptions

__all__ = ["RefusedByTorchDetector"]

_CHAIN = 8
"""Exceptions that one was raised from, or while handling, that are looked at. A bound on cost."""

_LONGEST = 200
"""Characters of torch's own words in a message or as evidence. Chosen, for length."""

_Key: TypeAlias = "tuple[str, str, Location | None]"


@dataclass(slots=True)
class _Told:
    """What torch has said at one line.

    Attributes:
        advice: what it means.
        message: the finding's.
        text: torch's own words.
        line: the line of the user's that ran.
        where: the line to change; ``line`` where there is no better.
        around: other places.
        count: how often.
        parts: what the message names.
        left: whether the exception ended what was audited.
    """

    advice: Advice
    message: str
    text: str
    line: Location | None
    where: Location | None
    around: list[Related] = field(default_factory=list)
    parts: dict[str, JSON] = field(default_factory=dict)
    count: int = 0
    left: bool = False


class RefusedByTorchDetector:
    """Reports refused-by-torch (GCS410), and other codes where torch's words prove one of them."""

    def __init__(self) -> None:
        self._errors: dict[_Key, _Told] = {}
        self._warnings: dict[_Key, _Told] = {}
        self._is_scaled = False
        # By identity: to keep an exception would keep what its frames hold.
        self._failed: tuple[int, _Told] | None = None

    def subscriptions(self) -> Subscriptions:
        """Read what fails inside the audit, what leaves it, and what torch warns of."""
        return {
            BackwardFailed: self._note_backward,
            WriteRefused: self._note_write,
            TorchWarned: self._note_warning,
            ScalerStepped: self._note_scaler,
            SessionEnded: self._at_the_end,
        }

    def _note_backward(self, event: BackwardFailed) -> None:
        traceback = event.error.__traceback__
        site = innermost_site(traceback)
        # The traceback begins at our own frame, beneath the call; a backward of the user's, or a
        # hook, may have raised further in.
        line = location_of(site or event.site)
        told = self._note(event.error, line, _frames_of(traceback), in_backward=True)
        self._failed = None if told is None else (id(event.error), told)

    def _note_write(self, event: WriteRefused) -> None:
        self._note(event.error, location_of(event.site), _running(), in_backward=False)

    def _note_scaler(self, _event: ScalerStepped) -> None:
        self._is_scaled = True

    def _at_the_end(self, event: SessionEnded) -> None:
        for error in _chain(event.error):
            failed = self._failed
            if failed is not None and (failed[0], failed[1].text) == (id(error), str(error)):
                # Where it failed is known; a library may have kept the way there to itself.
                failed[1].left = True
                continue
            traceback = error.__traceback__
            line = location_of(innermost_site(traceback))
            in_backward = any(_is_engine(frame) for frame in _frames_of(traceback))
            told = self._note(error, line, _frames_of(traceback), in_backward=in_backward)
            if told is not None:
                told.left = True
                # One that was told of where it failed has been counted there.
                told.count = max(1, told.count - 1)

    def _note(
        self,
        error: BaseException,
        line: Location | None,
        frames: Iterable[FrameType],
        *,
        in_backward: bool,
    ) -> _Told | None:
        """Note an error of torch's, once for each line."""
        text = str(error)
        meanings = list(advice_on_error(text, in_backward=in_backward))
        if not meanings:
            return None
        # A Function that is not the user's may not be what is to be changed.
        placed = ((*each, *_place(*each, line, frames)) for each in meanings)
        advice, groups, where, around = next(
            (each for each in placed if each[0].method is None or each[2] is not None),
            (*meanings[0], None, []),
        )
        key = (advice.entry.code, advice.pattern, line)
        told = self._errors.get(key)
        if told is None:
            message = advice.words.format(**groups)
            told = self._errors[key] = _Told(advice, message, text, line, where or line, around)
            told.parts = {k: int(v) if v.isdigit() else v for k, v in groups.items() if v}
        told.count += 1
        return told

    def _note_warning(self, event: TorchWarned) -> None:
        advice = advice_on_warning(event.text, from_torch=event.from_torch)
        if advice is None:
            return
        line = location_of(event.site)
        first = event.text.strip().partition("\n")[0]
        message = advice.words.format(text=_shortened(first))
        key = (advice.entry.code, message, line)
        told = self._warnings.setdefault(key, _Told(advice, message, event.text, line, line))
        told.count += 1

    def findings(self) -> list[Finding]:
        """Return nothing by itself; see ``findings_beside``."""
        return []

    def findings_beside(self, found: Sequence[Finding]) -> list[Finding]:
        """Return what the findings of all others do not tell yet."""
        lines = {
            (place.path, place.line)
            for each in found
            if each.evidence.get("refused")
            for place in _places(each)
        }
        codes = {each.code for each in found}
        return [
            *(
                _error(told)
                for told in self._errors.values()
                if told.line is None or (told.line.path, told.line.line) not in lines
            ),
            *(
                self._warning(told)
                for told in self._warnings.values()
                if told.advice.entry is REFUSED_BY_TORCH or told.advice.entry.code not in codes
            ),
        ]

    def _warning(self, told: _Told) -> Finding:
        entry = told.advice.entry
        doubts = []
        if entry is SCHEDULER_BEFORE_STEP and self._is_scaled:
            doubts.append("a GradScaler leaves a step out where gradients overflow")
        return Finding.of(
            entry,
            told.message,
            detector="audit",
            severity=told.advice.severity,
            doubts=doubts,
            location=told.where,
            hint=told.advice.hint,
            evidence={"torch": _shortened(told.text), "count": told.count},
        )


def _error(told: _Told) -> Finding:
    evidence: dict[str, JSON] = {
        **told.parts,
        "torch": _shortened(told.text),
        "count": told.count,
        "refused": True,
    }
    return Finding.of(
        told.advice.entry,
        told.message,
        detector="audit",
        doubts=() if told.left else ("the program caught the exception and went on",),
        location=told.where,
        related=told.around,
        hint=told.advice.hint,
        evidence=evidence,
    )


def _shortened(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= _LONGEST else f"{words[: _LONGEST - 3]}..."


def _places(finding: Finding) -> Iterator[Location]:
    if finding.location is not None:
        yield finding.location
    for each in finding.related:
        yield each.location


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and those that it was raised from, or while handling."""
    for _ in range(_CHAIN):
        if error is None:
            return
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


# Where


def _frames_of(traceback: TracebackType | None) -> list[FrameType]:
    """Return the frames of a traceback, innermost first."""
    frames = []
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    return frames[::-1]


def _running() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the only cheap way
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_engine(frame: FrameType) -> bool:
    """Return whether a frame is that by which torch's Python code enters the engine."""
    return frame.f_code.co_name == "_engine_run_backward"


def _place(
    advice: Advice, groups: dict[str, str], line: Location | None, frames: Iterable[FrameType]
) -> tuple[Location | None, list[Related]]:
    """Return the line to change, None for the one that ran, and the places around it."""
    if advice.method is not None:
        function = users_function(groups.get("function", ""))
        where = None if function is None else line_in(function, *advice.method)
        return where, related((line, "torch refuses here"), apart_from=where)
    layer = _layer_in(frames)
    where = None if layer is None else _only_construction(type(layer).__name__)
    return where, related((line, "called here"), apart_from=where) if where else []


def _layer_in(frames: Iterable[FrameType]) -> nn.Module | None:
    """Return the module of torch's that was to write in place, where one runs."""
    for frame in frames:
        kind = kind_of_file[frame.f_code.co_filename]
        if not kind:
            return None
        module = variables_of(frame).get("self")
        if isinstance(module, nn.Module) and vars(module).get("inplace") is True:
            return module
    return None


def _only_construction(name: str) -> Location | None:
    """Return the one line of the user's that makes such a module with ``inplace=True``."""
    lines = [
        (file, call.lineno)
        for file in user_files_with(f"{name}(")
        if (tree := tree_of(file)) is not None
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and name_of(call) == name and _asks_for_in_place(call)
    ]
    return Location(*lines[0]) if len(lines) == 1 else None


def _asks_for_in_place(call: ast.Call) -> bool:
    values = [
        *call.args,
        *(keyword.value for keyword in call.keywords if keyword.arg == "inplace"),
    ]
    return any(isinstance(value, ast.Constant) and value.value is True for value in values)
