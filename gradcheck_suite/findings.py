"""What a detector found, and the report that carries it: plain data, drawn elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from gradcheck_suite.errors import UsageError
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console, ConsoleOptions, RenderResult

    from gradcheck_suite.catalogue import Entry

__all__ = [
    "JSON",
    "Detector",
    "Finding",
    "FindingsError",
    "Location",
    "Related",
    "Report",
    "Severity",
    "Verdict",
    "VerdictStatus",
    "merge_reports",
    "moved_locations",
]

JSON: TypeAlias = (
    "str | int | float | bool | tuple[JSON, ...] | list[JSON] | Mapping[str, JSON] | None"
)
Detector: TypeAlias = Literal["verify", "audit", "graph", "lint"]
VerdictStatus: TypeAlias = Literal["pass", "fail", "inconclusive", "not covered"]


@dataclass(frozen=True, slots=True)
class Location:
    """A place in source text.

    ``line`` and ``end_line`` count from 1; ``column`` and ``end_column`` count Unicode code
    points from 1, the end being exclusive. ``function`` is the qualified name of the function
    that the line belongs to. ``path`` is kept as it was seen; reports shorten it to be relative
    to the working directory. In a notebook, ``cell`` is the number of the cell among all cells,
    from 1, and lines and columns are those of its source.
    """

    path: str
    line: int
    column: int | None = None
    end_line: int | None = None
    end_column: int | None = None
    function: str | None = None
    cell: int | None = None


@dataclass(frozen=True, slots=True)
class Related:
    """A second place that explains a finding: "saved here", "overwritten here", "held here"."""

    location: Location
    message: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake, at one place, with its proof.

    ``message`` is one sentence: subject, what happened, expected against seen. ``hint`` is the
    next step, as code where it can be. ``evidence`` holds numbers and names (step, tensor, shape,
    numeric, analytic, bound, bytes); a mistake seen a thousand times is one finding whose
    evidence has a ``count``. One at which torch raised an exception has ``refused: True`` there,
    and ``lowered`` there holds the circumstances that made it milder than its kind.
    """

    code: str
    rule: str
    severity: Severity
    message: str
    detector: Detector
    location: Location | None = None
    related: tuple[Related, ...] = ()
    hint: str | None = None
    evidence: Mapping[str, JSON] = field(default_factory=dict)
    fixable: bool = False

    @classmethod
    def of(
        cls,
        entry: Entry,
        message: str,
        *,
        detector: Detector,
        severity: Severity | None = None,
        doubts: Iterable[str] = (),
        location: Location | None = None,
        related: Iterable[Related] = (),
        hint: str | None = None,
        evidence: Mapping[str, JSON] | None = None,
        fixable: bool = False,
    ) -> Finding:
        """Make a finding for a catalogue entry.

        ``severity`` defaults to the entry's own, which is the highest that it allows. Each of
        ``doubts``, a circumstance that speaks against a mistake ("its module is in evaluation
        mode"), lowers it by one step and is told.

        Raises:
            ValueError: ``severity`` is higher than the catalogue allows for this entry.
        """
        chosen = entry.severity if severity is None else severity
        if chosen > entry.severity:
            raise ValueError(
                f"{entry.code} {entry.slug} is at most of severity {entry.severity.value!r}, "
                f"got {chosen.value!r}"
            )
        doubts = tuple(doubts)
        proof: dict[str, JSON] = dict(evidence) if evidence else {}
        if doubts:
            proof["lowered"] = doubts
        return cls(
            code=entry.code,
            rule=entry.slug,
            severity=chosen.lowered(len(doubts)),
            message=message,
            detector=detector,
            location=location,
            related=tuple(related),
            hint=hint,
            evidence=proof,
            fixable=fixable,
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a gradient check concluded about one output with respect to one input or parameter.

    ``reason`` says why for every status but "pass"; ``evidence`` holds the numbers.
    """

    output: str
    input: str
    status: VerdictStatus
    reason: str | None = None
    evidence: Mapping[str, JSON] = field(default_factory=dict)


class Reproducible(Protocol):
    """What a failing check keeps, to be shown again elsewhere."""

    def script(self) -> str:
        """Return the text of a script that shows it."""
        ...


@dataclass(frozen=True, slots=True)
class Report:
    """What one run of one tool found and what it looked at.

    ``tool`` names the command or function ("gradcheck-suite audit"). ``summary`` holds the
    figures of the run (steps, files, seed). ``verdicts`` are there for gradient checks.
    ``not_covered`` are sentences, one for each thing that could not be looked at: a report never
    passes what nobody checked. ``ledger`` holds what happened in a run that was watched, as facts;
    ``schemas/report-1.schema.json`` describes it. ``reproduction`` writes a script that shows the
    first error of a gradient check.
    """

    tool: str
    findings: tuple[Finding, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    summary: Mapping[str, JSON] = field(default_factory=dict)
    not_covered: tuple[str, ...] = ()
    ledger: Mapping[str, JSON] | None = None
    reproduction: Reproducible | None = field(default=None, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """Whether there is no finding of severity error."""
        return not self.at_least(Severity.ERROR)

    def at_least(self, severity: Severity) -> tuple[Finding, ...]:
        """Return the findings that are at least this severe."""
        return tuple(finding for finding in self.findings if finding.severity >= severity)

    def count(self, severity: Severity) -> int:
        """Return how many findings have exactly this severity."""
        return sum(finding.severity is severity for finding in self.findings)

    def save_reproduction(self, path: str | os.PathLike[str]) -> None:
        """Write a script of its own that shows the first error, or warning, of a gradient check.

        It holds the source of what was checked and its inputs, made as small as still fails, shows
        the mistake with plain torch where it can, and exits with status 1 while it is there.

        Raises:
            UsageError: there is no error to show, or no such script can be written, as of inputs
                that are no tensors, or of a function whose source is not there.
        """
        if self.reproduction is None:
            raise UsageError(
                "there is nothing to reproduce: this report is of no gradient check that found an "
                "error or a warning"
            )
        text = self.reproduction.script()
        try:
            Path(path).write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"cannot write the script to {os.fspath(path)}: {error.strerror or error}; give a "
                "path in a folder that exists and can be written"
            ) from error

    def raise_for_findings(self, fail_on: Severity = Severity.ERROR) -> None:
        """Raise if there is a finding at least as severe as ``fail_on``.

        Raises:
            FindingsError: with the whole report as its message.
        """
        __tracebackhide__ = True  # pytest then shows the line that asked
        if self.at_least(fail_on):
            raise FindingsError(self)

    def __str__(self) -> str:
        from gradcheck_suite.reporting import report_to_text  # noqa: PLC0415 - drawn on demand

        return report_to_text(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from gradcheck_suite.reporting import report_renderables  # noqa: PLC0415 - as above

        yield from report_renderables(self, width=options.max_width)

    def _repr_mimebundle_(self, **_chosen: object) -> dict[str, str]:
        """Draw the report for a notebook."""
        from gradcheck_suite.reporting import report_mimebundle  # noqa: PLC0415 - as above

        return report_mimebundle(self)


class FindingsError(AssertionError):
    """A report holds findings that its reader asked to fail on.

    The first line of its message, which is all that summaries show, counts the findings and tells
    the most severe one; the whole report follows.

    Attributes:
        report: the whole report, for programs.
    """

    # What users write, and short: in pytest's summary it stands before the message.
    __module__ = "gradcheck_suite"

    def __init__(self, report: Report) -> None:
        super().__init__(report)
        self.report = report

    def __str__(self) -> str:
        from gradcheck_suite.reporting import report_headline  # noqa: PLC0415 - drawn on demand

        return f"{report_headline(self.report)}\n\n{self.report}"


def moved_locations(facts: JSON, move: Callable[[Location], Location | None]) -> JSON:
    """Return plain facts, such as a ledger, with each location in them where ``move`` puts it."""
    if isinstance(facts, Mapping):
        if facts.keys() == _OF_A_LOCATION:
            moved = move(Location(**facts))  # type: ignore[arg-type]  # they are those of one
            return None if moved is None else asdict(moved)
        return {key: moved_locations(value, move) for key, value in facts.items()}
    if isinstance(facts, (list, tuple)):
        return [moved_locations(each, move) for each in facts]
    return facts


_OF_A_LOCATION = {field.name for field in fields(Location)}


def merge_reports(tool: str, reports: Iterable[Report]) -> Report:
    """Join several reports into one, telling each mistake once.

    A mistake that several detectors name under the same code, at the same line or of the same
    parameters, is told once: by the surer one, or else by the first report that has it. Its
    evidence gains ``also_found_by``.
    """
    reports = tuple(reports)
    kept: list[Finding] = []
    first_with: dict[tuple[object, ...], int] = {}
    for finding in (finding for report in reports for finding in report.findings):
        subjects = list(_subjects(finding))
        known = [first_with[subject] for subject in subjects if subject in first_with]
        other = next((i for i in known if kept[i].detector != finding.detector), None)
        if other is not None:
            kept[other] = _merged(kept[other], finding)
            continue
        for subject in subjects:
            first_with.setdefault(subject, len(kept))
        kept.append(finding)
    summary: dict[str, JSON] = {}
    for report in reports:
        summary.update(report.summary)
    return Report(
        tool=tool,
        findings=tuple(kept),
        verdicts=tuple(verdict for report in reports for verdict in report.verdicts),
        summary=summary,
        not_covered=tuple(line for report in reports for line in report.not_covered),
        ledger=next((each.ledger for each in reports if each.ledger is not None), None),
        reproduction=next((one.reproduction for one in reports if one.reproduction), None),
    )


def _subjects(finding: Finding) -> Iterator[tuple[object, ...]]:
    """Yield what the finding is about: its line, and the parameters that its evidence lists."""
    place = finding.location
    if place is not None:
        path = os.path.abspath(place.path)  # noqa: PTH100 - a string
        yield finding.code, path, place.cell, place.line
    parameters = finding.evidence.get("parameters")
    if isinstance(parameters, (list, tuple)):
        names = sorted(map(str, parameters))
        yield finding.code, *names
        # The audit knows in which variable the model is; others know the model alone.
        if finding.detector == "audit" and all("." in name for name in names):
            yield finding.code, *(name.partition(".")[2] for name in names)


def _merged(first: Finding, second: Finding) -> Finding:
    """Return the more severe of two findings about one mistake, which names the other's finder."""
    kept, other = (second, first) if second.severity > first.severity else (first, second)
    finders: dict[JSON, None] = {other.detector: None}
    for finding in (kept, other):
        seen = finding.evidence.get("also_found_by", ())
        finders.update(dict.fromkeys(seen if isinstance(seen, tuple) else ()))
    finders.pop(kept.detector, None)
    return replace(kept, evidence={**kept.evidence, "also_found_by": tuple(finders)})
