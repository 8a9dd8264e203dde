"""Find which of several known tensors a write reaches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_lint.model.values import aliased_by

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gradcheck_lint.model.values import Values


def name_written(values: Values, known: Mapping[int, str]) -> tuple[str | None, bool]:
    """Return the one tensor that is written to, or may be, and whether that is certain.

    ``known`` names tensors by their sites. A view of one of them counts, and what may be the
    tensor itself, as ``x.contiguous()`` is.
    """
    named = {known.get(value.site) for value in values}
    if len(named) == 1 and None not in named:
        return named.pop(), True
    if any(not aliased_by(frozenset({value})) & known.keys() for value in values):
        return None, False
    reached = {known[site] for site in aliased_by(values) if site in known}
    return (reached.pop() if len(reached) == 1 else None), False
