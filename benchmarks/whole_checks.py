"""What users call, whole, beside torch.autograd.gradcheck in its fast and its slow mode.

``gs.gradcheck(f, x)`` and ``gs.check_gradients(f, x)`` with no option, on functions from four
numbers to a hundred thousand, in float64, one process, one thread, CPU time. Each has to pass the
function and is then given a twin whose gradient is wrong by a hundredth. Slow mode is left out
where its Jacobian would have more than four million entries.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn

import gradcheck_suite as gs
from benchmarks.harness import Contender, Scores, measure, run_as_command

GOAL = 3.0
ROUNDS = 11
_MOST_JACOBIAN = 4_000_000
_NAMES = ("torch fast", "gradcheck", "check_gradients", "torch slow")

Check: TypeAlias = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Case:
    """A function, and the shapes of its inputs."""

    name: str
    function: Callable[..., torch.Tensor]
    shapes: tuple[tuple[int, ...], ...]


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, "gelu", batch_first=True)
    return layer.double()


class _Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Return the third power."""
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> torch.Tensor:
        """Return its gradient."""
        (x,) = ctx.saved_tensors
        result: torch.Tensor = 3.0 * grad_outputs[0] * x**2
        return result


class _Off(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 - torch's signature
        """Return the tensor."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        """Hand on a gradient that is wrong by a hundredth."""
        return 1.01 * grad_outputs[0]


def cases() -> tuple[Case, ...]:
    """Return the functions, from small to large."""
    torch.manual_seed(0)
    convolution = nn.Conv2d(3, 8, 3, padding=1).double()
    return (
        Case("sin of 4", torch.sin, ((4,),)),
        Case("custom Function of 8 x 8", _Cube.apply, ((8, 8),)),
        Case("product of 8 x 8", torch.mul, ((8, 8), (8, 8))),
        Case("linear, 16 x 32 to 8", nn.functional.linear, ((16, 32), (8, 32), (8,))),
        Case("layer norm of 16 x 64", nn.LayerNorm(64).double(), ((16, 64),)),
        Case("convolution of 2 x 3 x 12 x 12", convolution, ((2, 3, 12, 12),)),
        Case("encoder layer, 2 x 6 x 32", _encoder(), ((2, 6, 32),)),
        Case("sin of 100,000", torch.sin, ((100_000,),)),
    )


def checks_of(
    function: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...]
) -> list[Check]:
    """Return torch's fast mode, ours as a drop-in, ours whole, and torch's slow mode if it can."""
    torchs = partial(torch.autograd.gradcheck, function, inputs, raise_exception=False)
    outputs = function(*inputs).numel()
    slow = outputs * max(each.numel() for each in inputs) <= _MOST_JACOBIAN
    return [
        partial(torchs, fast_mode=True),
        lambda: gs.gradcheck(function, inputs, raise_exception=False),
        lambda: gs.check_gradients(function, inputs).ok,
        *([torchs] if slow else []),
    ]


def run() -> Scores:
    """Time all of them on each case, interleaved, and note who misses the twin."""
    torch.set_num_threads(1)
    rows: list[tuple[str | int | float, ...]] = []
    slowest, right = 0.0, True
    for case in cases():
        inputs = tuple(
            torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in case.shapes
        )
        checks = checks_of(case.function, inputs)
        twins = checks_of(partial(_twin, case.function), inputs)
        missed = [name for name, twin in zip(_NAMES, twins, strict=False) if twin()]
        right = right and all(check() for check in checks) and not {*_NAMES[1:3]} & {*missed}
        contenders = [Contender(str(index), check) for index, check in enumerate(checks[:3])]
        fast, drop_in, whole = measure(contenders, rounds=ROUNDS, clock=time.process_time)
        slow = math.nan
        if len(checks) == len(contenders) + 1:
            pair = [Contender("fast", checks[0]), Contender("slow", checks[3])]
            slow = measure(pair, rounds=3, clock=time.process_time)[1].milliseconds
        if not missed:
            slowest = max(slowest, drop_in.ratio)
        rows.append(
            (
                case.name,
                fast.milliseconds,
                "-" if math.isnan(slow) else slow,
                drop_in.milliseconds,
                round(drop_in.ratio, 1),
                whole.milliseconds,
                round(whole.ratio, 1),
                "-" if math.isnan(slow) else round(slow / whole.milliseconds, 1),
                "all" if not missed else f"all but {' and '.join(missed)}",
            )
        )
    return Scores(
        title=f"Whole checks against torch.autograd.gradcheck (torch {torch.__version__})",
        command="python -m benchmarks.whole_checks",
        columns=(
            "function",
            "torch fast, ms",
            "torch slow, ms",
            "gradcheck, ms",
            "of fast",
            "check_gradients, ms",
            "of fast",
            "slow takes, times",
            "1 % wrong is seen by",
        ),
        rows=tuple(rows),
        goal="gradcheck and check_gradients are right, and where torch's fast mode is as well,"
        f" gradcheck takes at most {GOAL:g} times as long ({slowest:.1f})",
        met=right and slowest <= GOAL,
    )


def _twin(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = _Off.apply(function(*inputs))  # type: ignore[no-untyped-call]
    return result


if __name__ == "__main__":
    sys.exit(run_as_command(run))
