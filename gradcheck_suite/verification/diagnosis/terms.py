"""Terms that backward formulas are made of, as candidates for one that was left out.

They are made of what is known at the point: the incoming gradient, the analytic gradient, the
variables and the output, their products, and the means over a dimension that normalisations and
softmax subtract.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_suite.verification.diagnosis.evidence import Evidence, Probe

__all__ = ["terms_of"]

# What normalisations add under the root, and next to nothing.
_EPSILONS = (1e-5, 1e-6, 1e-8, 1e-12, 1e-30)
_MOST_OTHERS = 4


def terms_of(evidence: Evidence, probe: Probe) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield terms of the variable's shape by the expression that makes them.

    ``grad`` stands for the analytic gradient, ``grad_output`` for the incoming one.
    """
    survey = evidence.survey
    x, y = evidence.value, evidence.tensor
    name = survey.subject.variables[evidence.variable].name
    output = survey.point.outputs[evidence.output].name
    yield from _incoming(evidence, probe.cotangent)
    gradient = probe.gradient
    yield f"grad * {name}", gradient * x
    if y.shape == x.shape:
        yield f"grad * {output}", gradient * y
        yield f"grad * {output} * {name}", gradient * y * x
    for other, value in _others(evidence):
        if value.shape == x.shape:
            yield f"grad * {other}", gradient * value
    for dim in range(x.dim()):
        if x.shape[dim] > 1:
            yield from _reduced(gradient, dim, x=x, y=y, name=name, output=output)


def _incoming(evidence: Evidence, cotangent: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    x, y = evidence.value, evidence.tensor
    name = evidence.survey.subject.variables[evidence.variable].name
    output = evidence.survey.point.outputs[evidence.output].name
    factors = [("", torch.ones(())), (f" * {output}", y), (f" * {name}", x)]
    factors += [(f" * {other}", value) for other, value in _others(evidence)]
    for suffix, factor in factors:
        product = _product(cotangent, factor)
        if product is None:
            continue
        fitted = _fitted(product, x)
        if fitted is not None:
            yield f"grad_output{suffix}", fitted


def _others(evidence: Evidence) -> list[tuple[str, torch.Tensor]]:
    survey = evidence.survey
    return [
        (known.name, value.double())
        for index, (known, value) in enumerate(
            zip(survey.subject.variables, survey.point.values, strict=True)
        )
        if index != evidence.variable
    ][:_MOST_OTHERS]


def _reduced(
    gradient: torch.Tensor, dim: int, *, x: torch.Tensor, y: torch.Tensor, name: str, output: str
) -> Iterator[tuple[str, torch.Tensor]]:
    yield f"grad.mean({dim})", gradient.mean(dim, keepdim=True).expand_as(x)
    centred = x - x.mean(dim, keepdim=True)
    directions = [(name, x)]
    for eps in _EPSILONS:
        spread = (centred.square().mean(dim, keepdim=True) + eps).sqrt()
        size = (x.square().mean(dim, keepdim=True) + eps).sqrt()
        directions.append((f"normalised({name}, eps={eps:g})", centred / spread))
        directions.append((f"({name} / rms({name}, eps={eps:g}))", x / size))
    for shown, direction in directions:
        inner = (gradient * direction).mean(dim, keepdim=True)
        yield f"{shown} * (grad * {shown}).mean({dim})", direction * inner
    if y.shape == x.shape:
        yield f"{output} * grad.sum({dim})", y * gradient.sum(dim, keepdim=True)
        inner = (gradient * y).sum(dim, keepdim=True)
        yield f"{output} * (grad * {output}).sum({dim})", y * inner


def _product(cotangent: torch.Tensor, factor: torch.Tensor) -> torch.Tensor | None:
    try:
        product = cotangent * factor
    except RuntimeError:
        return None
    return product


def _fitted(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor | None:
    """Sum or expand a tensor to the shape of another, where broadcasting says how."""
    if tensor.shape == like.shape:
        return tensor
    for dim in range(like.dim()):
        if tensor.shape == (*like.shape[:dim], *like.shape[dim + 1 :]):
            return tensor.unsqueeze(dim).expand_as(like)
    try:
        return tensor.sum_to_size(like.shape)
    except RuntimeError:
        return None
