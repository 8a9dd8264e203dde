"""What the stages of a check hand to one another.

A check goes through stages in a fixed order, cheapest first (see ``check.py``). Everything after
the first survey is a stage: a function of what is known so far that returns what it adds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from gradcheck_suite.findings import Finding, Verdict
from gradcheck_suite.severity import Severity
from gradcheck_suite.verification.first_order.measure import Survey
from gradcheck_suite.verification.numerics.decision import Conclusion
from gradcheck_suite.verification.options import CheckOptions
from gradcheck_suite.verification.progress import Deadline
from gradcheck_suite.verification.target.pure_function import PureFunction

__all__ = ["Known", "Stage", "StageResult"]


@dataclass(frozen=True, slots=True)
class Known:
    """What a stage may look at.

    Attributes:
        subject: the function that is checked.
        survey: first-order measurements at the given point.
        conclusions: what they came to for each (output, variable) pair of indices.
        options: what the caller asked for.
        deadline: when to stop; a stage that stops early says so under ``not_covered``.
        findings: what earlier stages found.
    """

    subject: PureFunction
    survey: Survey
    conclusions: Mapping[tuple[int, int], Conclusion]
    options: CheckOptions
    deadline: Deadline = Deadline()  # noqa: RUF009 - it is frozen
    findings: tuple[Finding, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether no gradient was found to be wrong so far."""
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


Stage: TypeAlias = Callable[[Known], StageResult]
