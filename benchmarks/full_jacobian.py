"""Whole Jacobians against the slow mode of torch.autograd.gradcheck.

Inputs and all parameters, one process, one thread, CPU time. Timed is what ``full=True`` does: the
first calls of the module, both Jacobians, and their comparison; beside it, once, what a whole check
takes, with all the probes and variations that torch has not. Both must give the same verdict, of
the module and of a twin in which one entry of the gradient is wrong by a thousandth, and the
numeric Jacobians must agree.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from benchmarks.harness import Contender, Scores, measure, run_as_command
from gradcheck_suite import check_gradients
from gradcheck_suite.verification.numerics.evaluation_point import given_point
from gradcheck_suite.verification.numerics.precision import precision_of
from gradcheck_suite.verification.options import CheckOptions
from gradcheck_suite.verification.progress import Deadline
from gradcheck_suite.verification.stages.full_jacobian.compare import Comparison, compare_jacobians
from gradcheck_suite.verification.target.build import build_function

if TYPE_CHECKING:
    from collections.abc import Sequence

AGREEMENT = 1e-8
ROUNDS = 3
KEPT = 2**22


@dataclass(frozen=True, slots=True)
class Case:
    """A module, the shape of its input, and how many times faster than torch is asked for."""

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    goal: float


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, 10)
    )


def _encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, activation="gelu")


def _convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.SiLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.SiLU(),
        nn.AvgPool2d(4),
        nn.Flatten(),
        nn.Linear(72, 10),
    )


CASES = (
    Case("MLP 64-128-64-10, batch 4", _mlp, (4, 64), 15.0),
    Case("encoder layer, width 32, 2 x 6 tokens", _encoder, (2, 6, 32), 15.0),
    Case("LayerNorm 64, batch 16", partial(nn.LayerNorm, 64), (16, 64), 15.0),
    Case("two convolutions, 2 x 3 x 12 x 12", _convolutions, (2, 3, 12, 12), 4.0),
)


def run() -> Scores:
    """Time both on each case, interleaved, and compare the Jacobians."""
    torch.set_num_threads(1)
    rows: list[tuple[str | int | float, ...]] = []
    met = True
    for case in CASES:
        torch.manual_seed(0)
        module = case.build().double()
        x = torch.randn(case.shape, dtype=torch.float64, requires_grad=True)
        function, tensors = _pure(module, x)
        found, truth = _ours(module, x, keep=KEPT), _torch_numeric(function, tensors)
        difference = max(
            # Kept, as ``keep`` is large enough.
            float((cast("torch.Tensor", found[0, index].numeric) - expected.t()).abs().max())
            for index, expected in enumerate(truth)
        )
        wrong = sum(comparison.wrong + comparison.undecided for comparison in found.values())
        agrees = torch.autograd.gradcheck(function, tensors) and not wrong
        agrees = agrees and _twin_is_found(module, x)
        slow, fast = measure(
            [
                Contender("torch", partial(torch.autograd.gradcheck, function, tensors)),
                Contender("ours", partial(_ours, module, x)),
            ],
            rounds=ROUNDS,
            clock=time.process_time,
        )
        speed = 1.0 / fast.ratio
        met = met and agrees and difference <= AGREEMENT and speed >= case.goal
        count = sum(comparison.shape[0] * comparison.shape[1] for comparison in found.values())
        rows.append(
            (
                case.name,
                count,
                slow.milliseconds,
                fast.milliseconds,
                round(speed, 1),
                case.goal,
                _whole_check(module, x),
                difference,
                "yes" if agrees else "no",
            )
        )
    return Scores(
        title="Whole Jacobians against torch.autograd.gradcheck in slow mode",
        command="python -m benchmarks.full_jacobian",
        columns=(
            "module",
            "entries",
            "torch, ms",
            "full=True, ms",
            "times faster",
            "goal",
            "whole check, ms",
            "Jacobians differ by",
            "same verdict",
        ),
        rows=tuple(rows),
        goal=f"as many times faster as asked for, Jacobians within {AGREEMENT:g}, same verdict",
        met=met,
    )


class _Skewed(torch.autograd.Function):
    """Hands on a tensor; its backward is wrong in one place by a thousandth."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        """Return the tensor."""
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        """Hand the gradient on, but for one entry."""
        (gradient,) = grad_outputs
        factors = torch.ones_like(gradient)
        factors.view(-1)[factors.numel() // 2] = 1.001
        return gradient * factors


class _Twin(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.module(_Skewed.apply(x))
        return result


def _twin_is_found(module: nn.Module, x: torch.Tensor) -> bool:
    """Say whether the twin's wrong column, and no other, is found."""
    found = _ours(_Twin(module), x)
    rest = sum(each.wrong for (_, variable), each in found.items() if variable)
    wrong = torch.nonzero(found[0, 0].wrong_inputs).flatten().tolist()
    return rest == 0 and wrong == [x.numel() // 2]


def _whole_check(module: nn.Module, x: torch.Tensor) -> float:
    began = time.process_time()
    assert check_gradients(module, (x,), full=True).ok
    return 1e3 * (time.process_time() - began)


def _ours(
    module: nn.Module, x: torch.Tensor, *, keep: int = 0
) -> dict[tuple[int, int], Comparison]:
    subject = build_function(module, (x,), None, CheckOptions())
    precision = precision_of([variable.value.dtype for variable in subject.variables])
    point = given_point(subject, subject.first_call(), eps=precision.eps)
    return compare_jacobians(
        subject,
        point,
        precision=precision,
        max_memory=2**30,
        deadline=Deadline(),
        keep=keep,
    )


def _pure(
    module: nn.Module, x: torch.Tensor
) -> tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]:
    """Return the module as torch's check wants it: a function of flat tensors."""
    names = [name for name, _ in module.named_parameters()]
    parameters = [parameter.detach().clone().requires_grad_() for parameter in module.parameters()]

    def function(x: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.func.functional_call(
            module, dict(zip(names, given, strict=True)), (x,)
        )
        return result

    return function, (x, *parameters)


def _torch_numeric(
    function: Callable[..., torch.Tensor], tensors: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Return the numeric Jacobians that torch's check compares with, ``[inputs, outputs]``."""
    columns = []
    with torch.no_grad():
        for index, tensor in enumerate(tensors):
            moved = tensor.detach().clone()
            given = [*tensors[:index], moved, *tensors[index + 1 :]]
            flat = moved.view(-1)
            rows = []
            for entry in range(flat.numel()):
                before = flat[entry].item()
                flat[entry] = before + 1e-6
                high = function(*given).reshape(-1)
                flat[entry] = before - 1e-6
                rows.append((high - function(*given).reshape(-1)) / 2e-6)
                flat[entry] = before
            columns.append(torch.stack(rows))
    return columns


if __name__ == "__main__":
    sys.exit(run_as_command(run))
