"""What the stages of a check hand to one another.

A check goes through stages in a fixed order, cheapest first (see ``check.py``). Everything after
the first measurement is a stage: a function of what is known so far that returns what it adds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from gradcheck_suite.findings import Finding, Report, Verdict
from gradcheck_suite.severity import Severity
from gradcheck_suite.verification.first_order.measure import GradientMeasurement
from gradcheck_suite.verification.numerics.decision import Conclusion, Pair
from gradcheck_suite.verification.options import CheckOptions
from gradcheck_suite.verification.progress import Deadline

if TYPE_CHECKING:
    from gradcheck_suite.verification.first_order.probe_context import ProbeContext
    from gradcheck_suite.verification.target.pure_function import PureFunction

__all__ = ["CheckState", "Checker", "Stage", "StageResult"]


Checker: TypeAlias = Callable[[Any, Any, "Mapping[str, Any] | None", CheckOptions], Report]
"""Checks a function or module with these inputs and keyword arguments: ``check_with``."""


@dataclass(frozen=True, slots=True)
class CheckState:
    """What is known so far, which a stage may look at.

    Attributes:
        measurement: first-order measurements at the given point.
        conclusions: what they came to for each (output, variable) pair of indices.
        options: what the caller asked for.
        check: checks a part of the function by itself.
        deadline: when to stop; a stage that stops early says so under ``not_covered``.
        findings: what earlier stages found.
        varied: what was varied of the inputs, where the measurement is of varied ones.
    """

    measurement: GradientMeasurement
    conclusions: Mapping[Pair, Conclusion]
    options: CheckOptions
    check: Checker
    deadline: Deadline = Deadline()  # noqa: RUF009 - it is frozen
    findings: tuple[Finding, ...] = ()
    varied: str | None = None

    @property
    def context(self) -> ProbeContext:
        """The function at the given point, and what probes of it share."""
        return self.measurement.context

    @property
    def subject(self) -> PureFunction:
        """The function that is checked."""
        return self.measurement.context.subject

    @property
    def clean(self) -> bool:
        """Return whether no gradient was found to be wrong so far."""
        wrong = any(finding.severity is Severity.ERROR for finding in self.findings)
        return not wrong and all(
            conclusion.status != "fail" for conclusion in self.conclusions.values()
        )


@dataclass(frozen=True, slots=True)
class StageResult:
    """What a stage adds to the report.

    Attributes:
        verdicts: of things that have none yet, or better ones in place of those they have.
        findings: each mistake once; not those that an earlier stage has told.
        covered: sentences on what was looked at and held ("inputs: transposed, expanded").
        not_covered: sentences on what was not looked at, and why.
    """

    verdicts: tuple[Verdict, ...] = ()
    findings: tuple[Finding, ...] = ()
    covered: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()


Stage: TypeAlias = Callable[[CheckState], StageResult]
