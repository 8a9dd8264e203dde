"""The names of the variations that can be asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_suite.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["LAYOUTS", "VARIATIONS", "chosen_variations"]

LAYOUTS = ("strided", "transposed", "offset", "expanded")
"""What inputs can look like in memory, and cotangents but for "offset"."""

VARIATIONS = (
    *LAYOUTS,
    "cotangents",
    "alone",
    "signs",
    "magnitudes",
    "special",
    "indices",
    "sizes",
)
"""Every variation by name, in the order in which they are tried."""

_GROUPS = {
    "layout": frozenset(LAYOUTS),
    "values": frozenset({"signs", "magnitudes", "special", "indices"}),
}


def chosen_variations(names: Collection[str] | None) -> frozenset[str]:
    """Return which variations are asked for; "layout" and "values" stand for several.

    >>> sorted(chosen_variations({"layout"}))
    ['expanded', 'offset', 'strided', 'transposed']

    Args:
        names: of variations or groups; None for every variation.

    Raises:
        UsageError: a name is of none.
    """
    if names is None:
        return frozenset(VARIATIONS)
    chosen: set[str] = set()
    for name in names:
        if name not in VARIATIONS and name not in _GROUPS:
            raise UsageError(
                f"variations has {name!r}, which is no variation; choose among "
                f"{', '.join(VARIATIONS)}; layout (strided, transposed, offset, expanded) and "
                "values (signs, magnitudes, special, indices)"
            )
        chosen |= _GROUPS.get(name, frozenset({name}))
    return frozenset(chosen)
