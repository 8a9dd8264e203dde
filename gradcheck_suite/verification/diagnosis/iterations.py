"""Whether a function iterates until something is small enough, and so is only nearly what it means.

The implicit gradient of a fixed point, an ODE or a root is that of the limit. An iteration that
ends early stands a little before the limit, and there the derivative is a little another one: no
mistake in backward. Such a function gives itself away by how many operations it makes: for other
values it ends sooner or later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_suite.verification.work import work_of

if TYPE_CHECKING:
    from gradcheck_suite.verification.survey import Survey

__all__ = ["ends_early"]

_SCALES = (2.0**-10, 2.0**-3, 0.5, 1.5)
_FEWEST_COUNTS = 3
"""A branch makes for two numbers of operations, an iteration for one at nearly each point."""


def ends_early(survey: Survey) -> bool:
    """Say whether the number of operations of the function changes with the size of its values."""
    counts = set()
    for scale in (1.0, *_SCALES):
        values = [value * scale for value in survey.point.values]
        work = work_of(survey.subject.elsewhere(values=values))
        if work is not None:
            counts.add(work.operators)
    return len(counts) >= _FEWEST_COUNTS
