"""Hold what a finding claims against the exact gradients, which the reference gives."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tests.verification.mutants.bank import reference

if TYPE_CHECKING:
    from gradcheck_suite import Finding
    from tests.verification.mutants.bank import Mutant

_CLOSE = 1e-6
Gradient = Callable[[torch.Tensor], torch.Tensor]


class Exact:
    """The gradients that a mutant gives and those that are right, for any cotangent."""

    def __init__(self, mutant: Mutant, finding: Finding, seed: int = 0) -> None:
        self.arguments = mutant.inputs(seed)
        names = list(inspect.signature(mutant.original.function.forward).parameters)[1:]
        self.named = dict(zip(names, self.arguments, strict=True))
        self.name = str(finding.evidence["input"])
        self.x = self.named[self.name]
        found = re.search(r"\[(\d+)\]", str(finding.evidence["output"]))
        self._output = int(found[1]) if found else 0
        target = mutant.target
        self._target = getattr(target, "apply", target)
        self._reference = reference(mutant.original)
        self.y = self._call(self._reference, self.arguments).detach()

    def ours(self, cotangent: torch.Tensor) -> torch.Tensor:
        return self._gradient(self._target, cotangent)

    def right(self, cotangent: torch.Tensor) -> torch.Tensor:
        return self._gradient(self._reference, cotangent)

    def cotangent(self, seed: int = 5) -> torch.Tensor:
        draw = torch.Generator().manual_seed(seed)
        return torch.randn(self.y.shape, generator=draw, dtype=self.y.dtype)

    def _call(self, function: Callable[..., Any], arguments: Sequence[Any]) -> torch.Tensor:
        torch.manual_seed(0)
        produced = function(*arguments)
        return produced[self._output] if isinstance(produced, tuple) else produced

    def _gradient(self, function: Callable[..., Any], cotangent: torch.Tensor) -> torch.Tensor:
        output = self._call(function, self.arguments)
        torch.manual_seed(1)
        (found,) = torch.autograd.grad(
            output, self.x, cotangent.to(output.dtype), allow_unused=True
        )
        return torch.zeros_like(self.x) if found is None else found.detach()


def same(one: torch.Tensor, two: torch.Tensor) -> bool:
    close = 1e-3 if two.dtype == torch.float32 else _CLOSE
    return float((one - two).abs().max()) <= close * float(two.abs().max() or 1.0)


def claim_is_true(mutant: Mutant, finding: Finding) -> bool | None:  # noqa: PLR0911 - one for each kind
    """Check a claim by the exact gradients; None where there is none or no way to check it."""
    kind = finding.evidence.get("kind")
    exact = Exact(mutant, finding)
    g = exact.cotangent()
    ours, right = exact.ours(g), exact.right(g)
    ratio = finding.evidence.get("ratio", 1.0)
    if kind in {"missing", "zero"}:
        return not bool(ours.any())
    if kind in {"sign", "factor"}:
        return same(ours, ratio * right)
    words = finding.message
    turned = re.search(r"of what it gives for grad_output\.(\w+\([-\d, ]+\)) is right", words)
    if turned:
        turn: Gradient = lambda given: eval(f"given.{turned[1]}", {"given": given})  # noqa: E731
        return same(turn(exact.ours(turn(g))), right)
    if "of it is right" in words or "are swapped" in words:
        return same(_rearranged(words, ours), ratio * right)
    changed = re.search(r"it is right for (grad_output\.\w+\([-\d, ]+\))", words)
    if changed:
        return same(exact.ours(eval(changed[1], {"grad_output": g})), right)
    if kind == "conjugate":
        return same(exact.ours(g.conj()).conj(), right)
    if kind == "missing reduction":
        dim, index = map(int, re.search(r"dimension (\d+) .* slice (\d+)", words).groups())
        kept = torch.zeros_like(g)
        kept.narrow(dim, index, 1).copy_(g.narrow(dim, index, 1))
        return not bool(exact.ours(g - kept).any()) and same(exact.ours(kept), exact.right(kept))
    if kind == "region":
        return _region_is_true(words, exact, (ours - right).abs() > _wrong_from(right))
    if kind == "missing term":
        return _term_is_true(words, exact)
    if kind == "stale":
        there = Exact(mutant, finding, seed=3)
        stays, moves = same(there.ours(g), ours), not same(there.right(g), right)
        return stays and moves
    return None


def _wrong_from(right: torch.Tensor) -> torch.Tensor:
    return _CLOSE * right.abs().clamp(min=1e-3)


def _rearranged(words: str, gradient: torch.Tensor) -> torch.Tensor:
    if "lacks a conjugate" in words:
        return gradient.conj()
    swapped = re.search(r"dimensions (\d+) and (\d+) are swapped", words)
    if swapped:
        one, two = int(swapped[1]), int(swapped[2])
        return gradient.transpose(one, two)
    code = re.search(r"is (?:transposed|reversed|off by one)[^:]*: (\S.*) of it is right", words)[1]
    return eval(f"gradient.{code}", {"gradient": gradient})


def _region_is_true(words: str, exact: Exact, wrong: torch.Tensor) -> bool | None:
    x = exact.x.detach()
    mask = torch.zeros_like(wrong)
    place = re.search(r"(?:at one entry, |at |within )`\w+\[([^\]]*)\]`", words)
    valued = re.search(r"where `(\w+)` is (\S+)", words)
    bounded = re.search(r"where (the magnitude of )?`\w+` is (above|below) (\S+)", words)
    if bounded:
        size = x.abs() if bounded[1] else x
        edge = float(bounded[3])
        clear = (size - edge).abs() > 1e-3 * abs(edge)
        beyond = size > edge if bounded[2] == "above" else size < edge
        return bool((beyond == wrong)[clear].all())
    if place:
        eval(f"mask[{place[1]}].fill_(True)", {"mask": mask})
        if "is right at" in words:
            mask = ~mask
    elif valued:
        known, value = exact.named[valued[1]], valued[2]
        tests = {"negative": known < 0, "positive": known > 0, "zero": known == 0}
        mask = tests.get(value)
        if mask is None:
            mask = known == (int(value) if value.lstrip("-").isdigit() else value == "True")
            mask = mask.reshape(mask.shape + (1,) * (x.dim() - mask.dim())).expand_as(x)
    else:
        return None
    if "only" in words.partition("(analytic")[0]:
        return not bool((wrong & ~mask).any())
    return bool((mask == wrong).all())


def _term_is_true(words: str, exact: Exact) -> bool:
    """Run what a message says is to be added, as it stands."""
    for seed in (5, 6):
        g = exact.cotangent(seed)
        ours = exact.ours(g)
        if not same(ours + added_by(words, exact.named, g, ours, exact.y), exact.right(g)):
            return False
    return True


def added_by(
    words: str,
    named: Mapping[str, Any],
    grad_output: torch.Tensor,
    grad_input: torch.Tensor,
    output: torch.Tensor,
) -> torch.Tensor:
    """Return the term that a message says is to be added, by its code as it stands."""
    code = re.search(r"it is right once (.*?) is added", words)[1]
    known = {name: one.detach() for name, one in named.items() if hasattr(one, "detach")}
    known |= {"output": [output] * 9 if "output[" in code else output}
    known |= {"grad_output": grad_output, "grad_input": grad_input}
    defined = re.search(r"(xhat) = (.*?\.sqrt\(\))", words)
    if defined:
        known[defined[1]] = eval(defined[2], known)
    return eval(code, known)
