"""Where in a tensor the wrong entries lie, if they do not lie everywhere."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from gradcheck_suite.verification.diagnosis.whole_gradient import Claim

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_suite.verification.diagnosis.evidence import Evidence
    from gradcheck_suite.verification.diagnosis.wrong_entry import WrongEntry

__all__ = ["claim_on_a_region", "claim_on_one_entry"]

_SMALL = 48
"""Up to so many entries each is looked at by itself. A bound on cost: one ladder of steps each."""
_CLEARLY = 3.0
"""How many tolerances a deviation must span for an entry to be called wrong: less than the 4 of
``decision``, as the gradient as a whole is known to be wrong. Chosen; between 1 and this nothing is
said of any."""
_MOST_KINDS = 8
"""Of how many different labels an index tensor may be, to ask of each whether the wrong entries are
those it marks. A bound on cost: two probes each."""
_MOST_OF_ALL = 0.9
"""The share of all entries from which on a box says nothing: it leaves out too few. Chosen."""
_SPARSE = 0.5
"""The share of entries estimated to be wrong from which on no box is looked for: it would hold
nearly all. Chosen."""
_LONGEST_PERIOD = 4
"""The longest period in which wrong entries are said to repeat: a longer one is rather chance among
the 48 entries at most that are looked at so."""


def claim_on_a_region(evidence: Evidence, entry: WrongEntry) -> Claim | None:
    """Say which entries are wrong, if the others are right."""
    if not evidence.sharp or evidence.variable_is_complex:
        return None
    total = evidence.value.numel()
    evidence.expect(entry.count)
    if total <= _SMALL:
        wrong = _every_entry(evidence)
        if wrong is None or not bool(wrong.any()) or bool(wrong.all()):
            return None
        return _described(evidence, wrong)
    if entry.count > _SPARSE * total and not entry.exact:
        return _by_values(evidence, entry)
    return _boxed(evidence, entry) or _by_values(evidence, entry)


def claim_on_one_entry(evidence: Evidence, entry: WrongEntry) -> Claim | None:
    """Say that this entry alone is wrong, if all others together are right."""
    if not evidence.sharp or evidence.variable_is_complex:
        return None
    evidence.expect(1)
    others = torch.ones(evidence.value.shape, dtype=torch.bool)
    others[entry.input_index] = False
    if not _is_right(evidence, others):
        return None
    name = evidence.context.subject.variables[evidence.variable].name
    return _box_claim(name, list(entry.input_index), list(entry.input_index), others.shape)


def _every_entry(evidence: Evidence) -> torch.Tensor | None:
    """Tell for each entry whether it is wrong; None if one can't be told."""
    direction = evidence.probes[0].direction
    flat = direction.flatten()
    wrong = torch.zeros(flat.numel(), dtype=torch.bool)
    rtol = evidence.context.precision.rtol
    for index in range(flat.numel()):
        alone = torch.zeros_like(flat)
        alone[index] = flat[index]
        result = evidence.deviation(alone.view_as(direction))
        size = max(abs(result.numeric), abs(result.analytic))
        if result.z > _CLEARLY and abs(result.deviation) > rtol * size:
            wrong[index] = True
        elif not evidence.is_right(result):
            return None
    return wrong.view(direction.shape)


def _described(evidence: Evidence, wrong: torch.Tensor) -> Claim | None:
    """Describe a known set of wrong entries by what they have in common and no other has."""
    name = evidence.context.subject.variables[evidence.variable].name
    places = wrong.nonzero()
    low, high = places.amin(dim=0).tolist(), places.amax(dim=0).tolist()
    if math.prod(b - a + 1 for a, b in zip(low, high, strict=True)) == len(places):
        return _box_claim(name, low, high, wrong.shape)
    right = (~wrong).nonzero()
    low, high = right.amin(dim=0).tolist(), right.amax(dim=0).tolist()
    if math.prod(b - a + 1 for a, b in zip(low, high, strict=True)) == len(right):
        place = _shown_box(name, low, high, wrong.shape)
        return Claim("region", f"is right at {place} and wrong elsewhere")
    for words, mask in _masks(evidence):
        if bool((mask == wrong).all()):
            return Claim("region", f"is wrong {words} and right elsewhere")
    threshold = _threshold(name, evidence.value, wrong)
    if threshold is not None:
        return threshold
    for dim, size in enumerate(wrong.shape):
        for period in range(2, min(size, _LONGEST_PERIOD + 1)):
            for start in range(period):
                mask = torch.zeros_like(wrong)
                mask[(slice(None),) * dim + (slice(start, None, period),)] = True
                if bool((mask == wrong).all()):
                    shown = [":"] * wrong.dim()
                    shown[dim] = f"{start or ''}::{period}"
                    return Claim(
                        "region",
                        f"is wrong at `{name}[{', '.join(shown)}]` and right elsewhere",
                    )
    return None


def _threshold(name: str, value: torch.Tensor, wrong: torch.Tensor) -> Claim | None:
    """See whether the wrong entries are the largest or the smallest ones."""
    for shown, size in ((f"`{name}`", value), (f"the magnitude of `{name}`", value.abs())):
        bad, good = size[wrong], size[~wrong]
        for words, one, two in (("above", bad, good), ("below", -bad, -good)):
            if float(one.min()) > float(two.max()):
                edge = float(two.max()) if words == "above" else -float(two.max())
                return Claim(
                    "region",
                    f"is wrong where {shown} is {words} {edge:.4g} and right elsewhere",
                )
    return None


def _masks(evidence: Evidence) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield sets of entries that a value tells from the others."""
    context = evidence.context
    value = evidence.value
    for known, values in zip(context.subject.variables, context.point.values, strict=True):
        if values.shape == value.shape:
            yield f"where `{known.name}` is negative", values < 0
            yield f"where `{known.name}` is positive", values > 0
            yield f"where `{known.name}` is zero", values == 0
    for constant in getattr(context.subject, "constants", ()):
        kinds = constant.value
        if kinds.is_floating_point() or kinds.is_complex() or kinds.dim() == 0:
            continue
        aligned = _aligned(kinds, value)
        if aligned is None:
            continue
        found = kinds.unique()
        for kind in found.tolist() if found.numel() <= _MOST_KINDS else []:
            yield f"where `{constant.name}` is {kind}", aligned == kind


def _aligned(kinds: torch.Tensor, value: torch.Tensor) -> torch.Tensor | None:
    """Give a tensor of labels the shape of the variable, leading dimensions first."""
    if kinds.shape == value.shape[: kinds.dim()]:
        return kinds.reshape(kinds.shape + (1,) * (value.dim() - kinds.dim())).expand_as(value)
    return None


def _by_values(evidence: Evidence, entry: WrongEntry) -> Claim | None:
    """Look for a value that tells the wrong entries from the right ones, by one probe each."""
    for words, mask in _masks(evidence):
        inside = bool(mask[entry.input_index])
        if inside and not bool(mask.all()) and _is_right(evidence, ~mask):
            return Claim("region", f"is wrong only {words}")
    return None


def _boxed(evidence: Evidence, entry: WrongEntry) -> Claim | None:
    """Find the smallest box around all wrong entries by halving, dimension by dimension."""
    shape = evidence.value.shape
    low, high = [], []
    for dim, size in enumerate(shape):
        at = entry.input_index[dim]
        low.append(_edge(evidence, dim, at, size, upper=False))
        high.append(_edge(evidence, dim, at, size, upper=True))
    box = torch.zeros(shape, dtype=torch.bool)
    box[tuple(slice(a, b + 1) for a, b in zip(low, high, strict=True))] = True
    inside = int(box.sum())
    if inside > _MOST_OF_ALL * box.numel() or not _is_right(evidence, ~box):
        return None
    name = evidence.context.subject.variables[evidence.variable].name
    if entry.exact and entry.count == inside:
        return _box_claim(name, low, high, shape)
    place = _shown_box(name, low, high, shape)
    return Claim("region", f"is wrong only within {place}", most=inside)


def _edge(evidence: Evidence, dim: int, at: int, size: int, *, upper: bool) -> int:
    """Return the outermost index along ``dim`` with a wrong entry, at or beyond ``at``."""
    inner, outer = at, (size if upper else -1)
    mask = torch.zeros(evidence.value.shape, dtype=torch.bool)
    while abs(outer - inner) > 1:
        middle = (inner + outer) // 2
        mask.fill_(value=False)
        beyond = slice(middle, outer) if upper else slice(outer + 1, middle + 1)
        mask[(slice(None),) * dim + (beyond,)] = True
        # One probe will do: the box as a whole is held to two.
        if _is_right(evidence, mask, probes=1):
            outer = middle
        else:
            inner = middle
    return inner


def _is_right(evidence: Evidence, mask: torch.Tensor, *, probes: int = 2) -> bool:
    """Return whether the gradient agrees when only the masked entries move."""
    return all(
        evidence.is_right(evidence.deviation(probe.direction.where(mask, 0.0), probe.cotangent))
        for probe in evidence.probes[:probes]
    )


def _box_claim(name: str, low: list[int], high: list[int], shape: torch.Size) -> Claim:
    place = _shown_box(name, low, high, shape)
    if low == high:
        return Claim("region", f"is wrong at one entry, {place}, and right elsewhere", most=1)
    inside = math.prod(b - a + 1 for a, b in zip(low, high, strict=True))
    return Claim("region", f"is wrong at {place} and right elsewhere", most=inside)


def _shown_box(name: str, low: list[int], high: list[int], shape: torch.Size) -> str:
    parts = []
    for first, last, size in zip(low, high, shape, strict=True):
        if first == last:
            parts.append(str(first))
        else:
            parts.append(f"{first or ''}:{'' if last == size - 1 else last + 1}")
    return f"`{name}[{', '.join(parts)}]`"
