"""Mistakes that spoil a whole gradient: a factor, a transposition, a reduction, a term.

Terms that backward formulas are made of are candidates for one that was left out. They are made of
what is known at the point: the incoming gradient, the analytic gradient, the variables and the
output, their products, and the means over a dimension that normalisations and softmax subtract.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch

if TYPE_CHECKING:
    from gradcheck_suite.verification.diagnosis.evidence import Claimed, Evidence, Probe


__all__ = ["Claim", "claim_on_a_term", "claim_on_the_whole", "terms_of"]

Transform = Callable[[torch.Tensor], torch.Tensor]

_MOST_DIMS = 4
"""Tensors of more dimensions are not tried rearranged. A bound on cost, as pairs of dimensions are
tried; batches of images have four."""
_MOST_TERM_ENTRIES = 1_000_000
"""Up to so many entries terms are computed that may be missing. A bound on cost: some dozens of
them, each of the input's size, for each of eight probes."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What is wrong, in words that follow "gradient of a with respect to b"; proven by probes.

    ``ratio`` is by what the gradient is too large besides; ``most`` how many entries can be wrong.
    """

    kind: str
    words: str
    ratio: float | None = None
    most: int | None = None


def claim_on_the_whole(evidence: Evidence) -> Claim | None:
    """Return the first claim that every probe bears out, simplest first."""
    if not evidence.sharp:
        return None
    return (
        _rearranged(evidence)
        or _unconjugated(evidence)
        or _one_slice(evidence)
        or _misread_cotangent(evidence)
        or _turned_around(evidence)
    )


def _rearranged(evidence: Evidence) -> Claim | None:
    """Try rearrangements of the gradient itself, each up to a factor."""
    for kind, words, transform in _rearrangements(evidence):
        fitted = evidence.factor(_of_gradient(transform))
        if fitted is None:
            continue
        factor, error = fitted
        if abs(factor - 1.0) <= max(error, 1e-9):
            return Claim(kind, words)
        ratio = 1.0 / factor
        return Claim(kind, f"{words}, and is {ratio:.6g} times as large as it should be", ratio)
    return None


def _of_gradient(transform: Transform) -> Claimed:
    return lambda probe: transform(probe.gradient)


def _of_cotangent(evidence: Evidence, transform: Transform) -> Claimed:
    return lambda probe: evidence.gradient_for(transform(probe.cotangent))


def _read_as(
    gradient: torch.Tensor, *, shape: tuple[int, ...], dims: tuple[int, int]
) -> torch.Tensor:
    """Read the entries in order as another shape, and swap two dimensions of that."""
    return gradient.reshape(shape).transpose(*dims)


def _rearrangements(evidence: Evidence) -> Iterator[tuple[str, str, Transform]]:
    shape = evidence.value.shape
    dims = len(shape)
    if evidence.variable_is_complex:
        yield "conjugate", "lacks a conjugate: conj() of it is right", _conjugated
        dims -= 1
    if dims > _MOST_DIMS:
        return
    for one, two in itertools.combinations(range(dims), 2):
        if min(shape[one], shape[two]) == 1:
            continue
        swapped = list(shape)
        swapped[one], swapped[two] = swapped[two], swapped[one]
        how = f"it is right once dimensions {one} and {two} are swapped"
        if shape[one] != shape[two]:
            sizes = ", ".join(map(str, swapped[:dims]))
            how = f"reshape({sizes}).transpose({one}, {two}) of it is right"
        yield (
            "transposed",
            f"is transposed: {how}",
            functools.partial(_read_as, shape=tuple(swapped), dims=(one, two)),
        )
    for dim in range(dims):
        if shape[dim] <= 1:
            continue
        yield (
            "flipped",
            f"is reversed along dimension {dim}: flip({dim}) of it is right",
            functools.partial(torch.flip, dims=(dim,)),
        )
        for shift in _shifts(shape[dim]):
            yield (
                "shifted",
                f"is off by one along dimension {dim}: roll({shift}, {dim}) of it is right",
                functools.partial(torch.roll, shifts=shift, dims=dim),
            )


def _unconjugated(evidence: Evidence) -> Claim | None:
    """See whether backward multiplies by a derivative where its conjugate belongs."""
    if not (evidence.variable_is_complex and evidence.output_is_complex):
        return None

    # conj(conj(g) * d) = g * conj(d)
    def conjugated(probe: Probe) -> torch.Tensor:
        return _conjugated(evidence.gradient_for(_conjugated(probe.cotangent)))

    if not evidence.holds(conjugated):
        return None
    return Claim(
        "conjugate",
        "lacks a conjugate: backward has to multiply by the conjugate of the derivative",
    )


def _conjugated(pairs: torch.Tensor) -> torch.Tensor:
    """Negate the imaginary parts of numbers whose parts lie in the last dimension."""
    return pairs * torch.tensor([1.0, -1.0], dtype=pairs.dtype)


def _one_slice(evidence: Evidence) -> Claim | None:
    """Look for a reduction that was left out: only one slice of the cotangent arrives."""
    cotangent = evidence.probes[0].cotangent
    for dim, size in enumerate(evidence.output_shape):
        if size == 1:
            continue
        for index in dict.fromkeys((0, size - 1)):
            kept = torch.zeros_like(cotangent)
            kept.narrow(dim, index, 1).copy_(cotangent.narrow(dim, index, 1))
            if bool((evidence.gradient_for(cotangent - kept) != 0.0).any()):
                continue
            alone = evidence.deviation(evidence.probes[0].direction, kept)
            if alone.contribution > 0.0 and evidence.is_right(alone):
                name = evidence.context.point.outputs[evidence.output].name
                return Claim(
                    "missing reduction",
                    f"lacks a sum over dimension {dim} of `{name}`: only its slice {index} "
                    "contributes",
                )
    return None


def _misread_cotangent(evidence: Evidence) -> Claim | None:
    """Try rearrangements of the incoming gradient."""
    for kind, how, code, transform in _cotangent_rearrangements(evidence.output_shape):
        # Each costs a backward: the first that fails settles it.
        if evidence.holds(_of_cotangent(evidence, transform)):
            words = f"reads the incoming gradient {how}: it is right for grad_output.{code}"
            return Claim(kind, words)
    return None


def _turned_around(evidence: Evidence) -> Claim | None:
    """See whether backward runs the wrong way: right if what goes in and comes out is turned."""
    shape = evidence.output_shape
    if (
        evidence.output_is_complex
        or shape != tuple(evidence.value.shape)
        or len(shape) > _MOST_DIMS
    ):
        return None
    turns: list[tuple[str, str, Transform]] = [
        ("flipped", f"flip({dim})", functools.partial(torch.flip, dims=(dim,)))
        for dim, size in enumerate(shape)
        if size > 1
    ]
    turns += [
        (
            "transposed",
            f"transpose({one}, {two})",
            functools.partial(torch.transpose, dim0=one, dim1=two),
        )
        for one, two in itertools.combinations(range(len(shape)), 2)
        if shape[one] == shape[two] > 1
    ]
    for kind, code, turn in turns:
        if evidence.holds(_turned(evidence, turn)):
            words = "runs the wrong way" if kind == "flipped" else "lacks a transposition"
            return Claim(kind, f"{words}: {code} of what it gives for grad_output.{code} is right")
    return None


def _turned(evidence: Evidence, turn: Transform) -> Claimed:
    return lambda probe: turn(evidence.gradient_for(turn(probe.cotangent)))


def _cotangent_rearrangements(
    shape: Sequence[int],
) -> Iterator[tuple[str, str, str, Transform]]:
    if len(shape) > _MOST_DIMS:
        return
    for dim, size in enumerate(shape):
        along = f"along dimension {dim}"
        for shift in _shifts(size):
            change = functools.partial(torch.roll, shifts=shift, dims=dim)
            yield "shifted", f"off by one {along}", f"roll({shift}, {dim})", change
        if size > 1:
            flip = functools.partial(torch.flip, dims=(dim,))
            yield "flipped", f"backwards {along}", f"flip({dim})", flip
    for one, two in itertools.combinations(range(len(shape)), 2):
        if shape[one] == shape[two] > 1:
            swap = functools.partial(torch.transpose, dim0=one, dim1=two)
            yield "transposed", "transposed", f"transpose({one}, {two})", swap


def _shifts(size: int) -> tuple[int, ...]:
    """Return the shifts by one that differ from each other and from none."""
    return ((), (), (1,))[size] if size <= 2 else (1, -1)  # noqa: PLR2004 - both are the same


def claim_on_a_term(evidence: Evidence) -> Claim | None:
    """Look for known terms, one or two, that make up the difference, here and at another point.

    They are held to it as they are told: in code that runs, with factors of as many digits.
    """
    if not evidence.sharp or evidence.value.numel() > _MOST_TERM_ENTRIES:
        return None
    if evidence.variable_is_complex or evidence.output_is_complex:
        return None
    known = _along_terms(evidence)
    there: tuple[Evidence, dict[_Code, list[float]]] | None = None
    for count in (1, 2):
        for codes in itertools.combinations(known, count):
            if len({where for _, where in codes if where}) > 1:
                continue  # one name stands for one thing
            terms = [known[code] for code in codes]
            fitted = evidence.combination(terms)
            told = None if fitted is None else _told(evidence, terms, fitted)
            if told is None:
                continue
            if there is None:
                other = evidence.elsewhere()
                if other is None:
                    return None
                there = other, _along_terms(other)
            other, beyond = there
            if all(code in beyond for code in codes) and other.is_made_up(
                [beyond[code] for code in codes], [float(factor) for factor in told]
            ):
                return Claim("missing term", f"lacks a term: {_in_words(codes, told)}")
    return None


def _along_terms(evidence: Evidence) -> dict[_Code, list[float]]:
    """Return the derivative along each probe's direction that each term gives."""
    along: dict[_Code, list[float]] = {}
    for probe in evidence.probes:
        for code, term in terms_of(evidence, probe):
            along.setdefault(code, []).append(probe.along(term))
    return {
        code: values
        for code, values in along.items()
        if len(values) == len(evidence.probes) and all(map(math.isfinite, values))
    }


def _told(
    evidence: Evidence, terms: Sequence[Sequence[float]], factors: Sequence[float]
) -> list[str] | None:
    """Write factors with as few digits as still make up the difference."""
    for digits in _DIGITS:
        told = [f"{factor:.{digits}g}" for factor in factors]
        if evidence.is_made_up(terms, [float(factor) for factor in told]):
            return told
    return None


def _in_words(codes: Sequence[_Code], factors: Sequence[str]) -> str:
    parts = []
    for (code, _), factor in zip(codes, factors, strict=True):
        sign = "-" if factor.startswith("-") else "+"
        size = factor.lstrip("-")
        parts.append(f"{sign} {code}" if size == "1" else f"{sign} {size} * {code}")
    added = " ".join(parts).removeprefix("+ ")
    where = list(dict.fromkeys(where for _, where in codes if where))
    if _GRADIENT in added:
        where.insert(0, f"{_GRADIENT} is what backward gives now")
    return f"it is right once {added} is added{', where ' if where else ''}{' and '.join(where)}"


_GRADIENT = "grad_input"
"""What messages call the gradient as it is."""
_DIGITS = (4, 8, 12)
"""With how many digits the factor of a term is told, at first. Chosen: 4 show 1, 0.5 and 0.1."""
_EPSILONS = (0.0, 1e-5, 1e-6, 1e-8, 1e-12)
"""What normalisations add under the root: nothing, which is said where no digit tells otherwise,
and torch's defaults for normalising layers, ``pairwise_distance``, ``cosine_similarity`` and
``normalize``."""
_MOST_OTHERS = 4
"""How many other variables take part in terms. A bound on cost: pairs of terms are tried."""

_Code: TypeAlias = tuple[str, str]
"""The code of a term, and what a name in it stands for."""


def terms_of(evidence: Evidence, probe: Probe) -> Iterator[tuple[_Code, torch.Tensor]]:
    """Yield terms that fit the variable by the code that makes them.

    ``grad_input`` stands for the analytic gradient, ``grad_output`` for the incoming one.
    """
    context = evidence.context
    x, y = evidence.value, evidence.tensor
    name = context.subject.variables[evidence.variable].name
    output = context.point.outputs[evidence.output].name
    yield from _incoming(evidence, probe.cotangent)
    gradient = probe.gradient
    yield (f"{_GRADIENT} * {name}", ""), gradient * x
    if y.shape == x.shape:
        yield (f"{_GRADIENT} * {output}", ""), gradient * y
        yield (f"{_GRADIENT} * {output} * {name}", ""), gradient * y * x
    for other, value in _others(evidence):
        if value.shape == x.shape:
            yield (f"{_GRADIENT} * {other}", ""), gradient * value
    for dim in range(x.dim()):
        if x.shape[dim] > 1:
            yield from _reduced(gradient, dim, x=x, y=y, name=name, output=output)


def _incoming(evidence: Evidence, cotangent: torch.Tensor) -> Iterator[tuple[_Code, torch.Tensor]]:
    x, y = evidence.value, evidence.tensor
    name = evidence.context.subject.variables[evidence.variable].name
    output = evidence.context.point.outputs[evidence.output].name
    factors = [("", torch.ones(())), (f" * {output}", y), (f" * {name}", x)]
    factors += [(f" * {other}", value) for other, value in _others(evidence)]
    for suffix, factor in factors:
        product = _product(cotangent, factor)
        if product is None:
            continue
        fitted = _fitted(product, x)
        if fitted is not None:
            code, term = fitted
            whole = f"grad_output{suffix}"
            if code:
                whole = f"({whole})" if suffix else whole
                whole += code.format(name)
            yield (whole, ""), term


def _others(evidence: Evidence) -> list[tuple[str, torch.Tensor]]:
    context = evidence.context
    return [
        (known.name, value.double())
        for index, (known, value) in enumerate(
            zip(context.subject.variables, context.point.values, strict=True)
        )
        if index != evidence.variable
    ][:_MOST_OTHERS]


def _reduced(
    gradient: torch.Tensor, dim: int, *, x: torch.Tensor, y: torch.Tensor, name: str, output: str
) -> Iterator[tuple[_Code, torch.Tensor]]:
    over = f"({dim}, keepdim=True)"
    yield (f"{_GRADIENT}.mean{over}", ""), gradient.mean(dim, keepdim=True).expand_as(x)
    for (shown, where), direction in _directions(x, dim, name):
        inner = (gradient * direction).mean(dim, keepdim=True)
        yield (f"{shown} * ({_GRADIENT} * {shown}).mean{over}", where), direction * inner
    if y.shape == x.shape:
        yield (f"{output} * {_GRADIENT}.sum{over}", ""), y * gradient.sum(dim, keepdim=True)
        inner = (gradient * y).sum(dim, keepdim=True)
        yield (f"{output} * ({_GRADIENT} * {output}).sum{over}", ""), y * inner


def _directions(x: torch.Tensor, dim: int, name: str) -> Iterator[tuple[_Code, torch.Tensor]]:
    """Yield what normalisations take out of a gradient: the variable, and that normalised."""
    yield (name, ""), x
    over = f"{dim}, keepdim=True"
    centred = x - x.mean(dim, keepdim=True)
    spread, size = centred.square().mean(dim, keepdim=True), x.square().mean(dim, keepdim=True)
    mean, square = f"({name} - {name}.mean({over}))", f"{name}.square().mean({over})"
    variance = f"{name}.var({dim}, correction=0, keepdim=True)"
    for eps in _EPSILONS:
        below = "{}" if not eps else f"({{}} + {eps:g})"
        where = f"xhat = {mean} / {below.format(variance)}.sqrt()"
        yield ("xhat", where), centred / (spread + eps).sqrt()
        where = f"xhat = {name} / {below.format(square)}.sqrt()"
        yield ("xhat", where), x / (size + eps).sqrt()


def _product(cotangent: torch.Tensor, factor: torch.Tensor) -> torch.Tensor | None:
    try:
        product = cotangent * factor
    except RuntimeError:
        return None
    return product


def _fitted(tensor: torch.Tensor, like: torch.Tensor) -> tuple[str, torch.Tensor] | None:
    """Sum or expand a tensor to the shape of another, where broadcasting says how, and tell how.

    ``{}`` in the code stands for the other tensor.
    """
    if tensor.shape == like.shape:
        return "", tensor
    for dim in range(like.dim()):
        if tensor.shape == (*like.shape[:dim], *like.shape[dim + 1 :]):
            return f".unsqueeze({dim})", tensor.unsqueeze(dim).expand_as(like)
    try:
        return ".sum_to_size({}.shape)", tensor.sum_to_size(like.shape)
    except RuntimeError:
        return None
