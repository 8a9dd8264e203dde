"""Other values for the inputs and parameters, near enough to the given ones to mean the same.

A gradient is often checked at one kind point: positive inputs, weights of one, biases of zero,
indices that are all different. Each change leads away from one such habit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from gradcheck_suite.verification.numerics.directions import generator_for, random_signs, scales_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradcheck_suite.verification.target.pure_function import PureFunction

__all__ = ["Change", "changed", "huge_values", "magnitude_halves", "tiny_values", "value_changes"]

_SIGNS, _MAGNITUDES, _SPECIAL = 81, 82, 83
"""Streams of the draws; any numbers do that no other stream uses."""
_SMALL, _LARGE = (-6.0, -1.0), (2.0, 4.3)
"""Exponents of two: half of the entries get 1/64 to 1/2 of their size, the others 4 to 20 times it.
Thresholds (softplus 20, gelu's tails) lie within a few units of typical inputs, and exp of 20 times
them is still finite."""
_TINY = (-27.0, -10.0)
"""Exponents of two: where a formula divides by its input, code switches to a series below 1e-3 to
1e-8."""
_HUGE = {torch.float32: (6.0, 6.9), torch.float64: (9.0, 9.96)}
"""Exponents of two: beyond 88 exp overflows in float32, beyond 709 in float64: 64 to 120, and 512
to 1000."""
_SPREAD = 0.5
"""By what share of their size special values (zeros, ones, an identity) are moved, times 1/2 to
3/2: a constant keeps its sign. Chosen."""


@dataclass(frozen=True, slots=True)
class Change:
    """Other values for some tensors.

    Attributes:
        kind: the variation's name.
        words: when the function is seen so: "for negative values".
        variables: new values by index of the variable.
        constants: new values by index of the constant.
    """

    kind: str
    words: str
    variables: Mapping[int, torch.Tensor] = field(default_factory=dict)
    constants: Mapping[int, torch.Tensor] = field(default_factory=dict)

    def parts(self) -> list[Change]:
        """Return the same change of one tensor at a time."""
        return [
            Change(self.kind, self.words, {index: value}) for index, value in self.variables.items()
        ] + [
            Change(self.kind, self.words, {}, {index: value})
            for index, value in self.constants.items()
        ]


def changed(subject: PureFunction, changes: Sequence[Change]) -> PureFunction:
    """Return the subject with all these changes; of two for one tensor the later holds."""
    values = {index: variable.value for index, variable in enumerate(subject.variables)}
    constants = {index: constant.value for index, constant in enumerate(subject.constants)}
    for change in changes:
        values.update(change.variables)
        constants.update(change.constants)
    return subject.elsewhere(
        values=list(values.values()), constants=list(constants.values()) if constants else None
    )


def value_changes(subject: PureFunction, seed: int, names: frozenset[str]) -> list[Change]:
    """List the changes that make sense for the values that were given.

    The last one that is asked for contains those before it where they meet in one tensor, so that
    all of them can be tried at once.
    """
    found: list[Change] = []
    current = [variable.value for variable in subject.variables]
    scales = scales_of(current)
    for kind, change in (
        ("special", _off_special(subject, current, scales, seed)),
        ("signs", _both_signs(current, scales, seed)),
    ):
        if kind in names and change is not None:
            found.append(change)
            for index, value in change.variables.items():
                current[index] = value
    if "magnitudes" in names:
        change = _magnitudes(subject, current, seed, (_SMALL, _LARGE))
        if change is not None:
            found.append(change)
    if "indices" in names:
        change = _repeated_indices(subject)
        if change is not None:
            found.append(change)
    return found


def magnitude_halves(subject: PureFunction, seed: int) -> list[Change]:
    """Return the change of magnitudes in two: only larger ones, only smaller ones."""
    current = [variable.value for variable in subject.variables]
    halves = (
        (_magnitudes(subject, current, seed, (_LARGE,)), "for large values"),
        (_magnitudes(subject, current, seed, (_SMALL,)), "for small values"),
    )
    return [Change(change.kind, words, change.variables) for change, words in halves if change]


def tiny_values(subject: PureFunction, seed: int) -> Change | None:
    """Make all inputs a thousandth to a hundred-millionth of what they are."""
    current = [variable.value for variable in subject.variables]
    change = _magnitudes(subject, current, seed, (_TINY,))
    return change and Change(change.kind, "for tiny values", change.variables)


def huge_values(subject: PureFunction, seed: int) -> Change | None:
    """Make all inputs so large that their exponentials overflow; each keeps its sign."""
    moved = {}
    for index, variable in enumerate(subject.variables):
        value = variable.value
        if variable.kind != "input" or value.dtype not in _HUGE or value.numel() == 0:
            continue
        low, high = _HUGE[value.dtype]
        generator = generator_for(seed, _MAGNITUDES, index)
        drawn = torch.rand(value.shape, generator=generator, dtype=torch.float64)
        size = torch.exp2(low + (high - low) * drawn).to(device=value.device, dtype=value.dtype)
        moved[index] = (size * value.sign()).where(torch.isfinite(value), value)
    words = "for huge values, whose exponential overflows"
    return Change("magnitudes", words, moved) if moved else None


def _off_special(
    subject: PureFunction, current: Sequence[torch.Tensor], scales: Sequence[float], seed: int
) -> Change | None:
    moved: dict[int, torch.Tensor] = {}
    names = []
    for index, (variable, value) in enumerate(zip(subject.variables, current, strict=True)):
        special = _special(value)
        if special is None:
            continue
        drawn = random_signs(value, generator_for(seed, _SPECIAL, index)) * _SPREAD
        # A constant keeps its sign; zeros get the scale of the other tensors.
        size = torch.where(value == 0, torch.full_like(value, scales[index]), value.abs())
        moved[index] = value + drawn * size
        names.append(f"`{variable.name}` is not {special}")
    if not moved:
        return None
    shown = ", ".join(names[:3])
    return Change("special", f"where {shown}", moved)


def _special(value: torch.Tensor) -> str | None:
    """Name what a tensor stands at: zeros, ones, one value, an identity; None for nothing."""
    if value.numel() == 0 or not bool(torch.isfinite(value).all()):
        return None
    first = float(value.reshape(-1)[0])
    if bool((value == first).all()):
        if value.numel() == 1:
            return {0.0: "0", 1.0: "1", -1.0: "-1"}.get(first)
        return {0.0: "zeros", 1.0: "ones"}.get(first, f"{first:.6g} throughout")
    if value.dim() == 2 and torch.equal(  # noqa: PLR2004 - a matrix
        value, torch.eye(*value.shape, dtype=value.dtype, device=value.device)
    ):
        return "an identity matrix"
    return None


def _both_signs(
    current: Sequence[torch.Tensor], scales: Sequence[float], seed: int
) -> Change | None:
    moved = {}
    words = set()
    for index, value in enumerate(current):
        if value.numel() == 0 or not bool(torch.isfinite(value).all()):
            continue
        positive, negative = bool((value > 0).any()), bool((value < 0).any())
        if positive and negative:
            continue
        drawn = random_signs(value, generator_for(seed, _SIGNS, index))
        if value.numel() == 1:
            drawn = -value.sign() * drawn.abs()
        size = torch.where(value == 0, torch.full_like(value, scales[index]), value.abs())
        moved[index] = drawn.sign() * size
        words.add("positive" if negative else "negative")
    if not moved:
        return None
    return Change("signs", f"for {' and '.join(sorted(words))} values", moved)


def _magnitudes(
    subject: PureFunction,
    current: Sequence[torch.Tensor],
    seed: int,
    ranges: Sequence[tuple[float, float]],
) -> Change | None:
    (low, high), (other_low, other_high) = ranges[-1], ranges[0]
    moved = {}
    for index, (variable, value) in enumerate(zip(subject.variables, current, strict=True)):
        if variable.kind != "input" or value.numel() == 0:
            continue
        generator = generator_for(seed, _MAGNITUDES, index)
        drawn = torch.rand(value.numel(), generator=generator, dtype=torch.float64)
        exponents = low + (high - low) * drawn
        exponents[1::2] = other_low + (other_high - other_low) * drawn[1::2]
        order = torch.randperm(value.numel(), generator=generator)
        factor = torch.exp2(exponents[order]).view(value.shape)
        moved[index] = value * factor.to(device=value.device, dtype=value.dtype)
    return Change("magnitudes", "for larger or smaller values", moved) if moved else None


def _repeated_indices(subject: PureFunction) -> Change | None:
    moved = {}
    names = []
    for index, constant in enumerate(subject.constants):
        value = constant.value
        if (
            constant.kind != "input"
            or value.layout != torch.strided
            or value.dtype not in {torch.int32, torch.int64}
        ):
            continue
        flat = value.reshape(-1)
        if flat.numel() < 2 or _holds_repeats(flat):  # noqa: PLR2004 - a pair
            continue
        repeated = flat.clone()
        pairs = flat.numel() // 2
        repeated[1 : 2 * pairs : 2] = flat[0 : 2 * pairs : 2]
        moved[index] = repeated.view(value.shape)
        names.append(f"`{constant.name}`")
    if not moved:
        return None
    return Change("indices", f"for repeated indices in {', '.join(names[:3])}", {}, moved)


def _holds_repeats(flat: torch.Tensor) -> bool:
    ordered, _ = torch.sort(flat)
    return bool((ordered[1:] == ordered[:-1]).any())
