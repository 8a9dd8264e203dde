"""What a check without a cast sees in float32 and bfloat16, and how often it cries wolf."""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.harness import Benchmark, Row, as_markdown, machine
from gradcheck_suite.verification import check_gradients

ERRORS = {"float32": 0.01, "bfloat16": 0.05}
GOALS = {"float32": {"smooth": 0.99, "kinked": 0.9}, "bfloat16": {"smooth": 0.95}}
FALSE_ALARMS = 0.001


@dataclass(frozen=True, slots=True)
class Case:
    """A module, the shape of its input, and whether it is smooth."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    smooth: bool = True


class CrossEntropy(nn.Module):
    """Softmax and cross entropy with fixed targets."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return one loss for each row."""
        return nn.functional.cross_entropy(x, torch.arange(len(x)), reduction="none")


CASES = {
    "linear": Case(lambda: nn.Linear(64, 32), (16, 64)),
    "LayerNorm": Case(lambda: nn.LayerNorm(64), (16, 64)),
    "softmax, CE": Case(CrossEntropy, (16, 32)),
    "conv": Case(lambda: nn.Conv2d(3, 8, 3, padding=1), (2, 3, 12, 12)),
    "GELU MLP": Case(
        lambda: nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10)), (16, 64)
    ),
    "ReLU MLP": Case(
        lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)), (16, 64), False
    ),
    "encoder layer": Case(
        lambda: nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True),
        (2, 6, 32),
        False,
    ),
}


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0] * ctx.factor, None


class Wrong(nn.Module):
    """A module whose gradient with respect to its input is off by a factor."""

    def __init__(self, module: nn.Module, factor: float) -> None:
        super().__init__()
        self.module = module
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Call the module."""
        found: torch.Tensor = self.module(_Scaled.apply(x, self.factor))
        return found


def found_and_alarms(case: Case, dtype: torch.dtype, error: float, draws: int) -> tuple[int, int]:
    """Return how many of ``draws`` wrong gradients fail, and how many right modules do."""
    found = alarms = 0
    for draw in range(draws):
        torch.manual_seed(draw)
        module = case.make().to(dtype)
        x = torch.randn(case.shape).to(dtype).requires_grad_()
        report = check_gradients(module, x, variations=(), order=1, seed=draw)
        alarms += any(verdict.status == "fail" for verdict in report.verdicts)
        report = check_gradients(
            Wrong(module, 1.0 + error), x, parameters=False, variations=(), order=1, seed=draw
        )
        found += any(verdict.status == "fail" for verdict in report.verdicts)
    return found, alarms


def run(dtype: str, draws: int) -> Benchmark:
    """Check every case in one type."""
    rows, alarms, met, shares = [], 0, True, []
    for name, case in CASES.items():
        start = time.process_time()
        found, false = found_and_alarms(case, getattr(torch, dtype), ERRORS[dtype], draws)
        milliseconds = 1e3 * (time.process_time() - start) / (2 * draws)
        rows.append(Row(name, milliseconds, found / draws, false / draws, false / draws))
        alarms += false
        shares.append(f"{name} {100 * found / draws:.0f} %")
        wanted = GOALS[dtype].get("smooth" if case.smooth else "kinked", 0.0)
        met = met and found / draws >= wanted
    total = draws * len(CASES)
    return Benchmark(
        title=f"Errors of {100 * ERRORS[dtype]:.0f} % in {dtype}, without a cast",
        command=f"python -m benchmarks.native_precision --dtype {dtype} --draws {draws}",
        unit="check (CPU); ratio: share of wrong gradients found",
        rows=tuple(rows),
        goal=(
            f"found in {GOALS[dtype]}, false alarms at most {FALSE_ALARMS}: "
            f"{', '.join(shares)}; {alarms} false alarms in {total} draws"
        ),
        met=met and alarms <= FALSE_ALARMS * total,
    )


def main() -> int:
    """Run from the command line; return 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", choices=tuple(ERRORS), default="float32")
    parser.add_argument("--draws", type=int, default=150, help="of each module (default: 150)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    benchmark = run(arguments.dtype, arguments.draws)
    if arguments.json:
        json.dump({"machine": machine(), **asdict(benchmark)}, sys.stdout, indent=2)
        print()
    else:
        print(as_markdown(benchmark))
    return 0 if benchmark.met else 1


if __name__ == "__main__":
    sys.exit(main())
