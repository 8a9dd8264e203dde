"""What a check without a cast sees in float32 and bfloat16, and how often it cries wolf."""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from benchmarks.harness import Benchmark, Row, as_markdown, machine
from gradcheck_suite.verification import check_gradients

ERRORS = {"float32": 0.01, "bfloat16": 0.05}
GOALS = {
    "float32": {"smooth": 0.99, "kinked": 0.9},
    "bfloat16": {"smooth": 0.95, "kinked": 0.95},
}
FALSE_ALARMS = 0.001


@dataclass(frozen=True, slots=True)
class Case:
    """A module, the shape of its input, and whether it is "smooth", "kinked" or "any" other.

    Of those that are "any" other nothing is asked but that they raise no false alarm.
    """

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    kind: str = "smooth"


class CrossEntropy(nn.Module):
    """Softmax and cross entropy with fixed targets."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return one loss for each row."""
        return nn.functional.cross_entropy(x, torch.arange(len(x)), reduction="none")


class CausalAttention(nn.Module):
    """Self-attention in which nothing looks ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(16, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what each position takes from those before it."""
        query, key, value = self.projection(x).chunk(3, dim=-1)
        return nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)


class Apply(nn.Module):
    """A plain function as a module."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Call the function."""
        return self.function(x)


def relu_network(*widths: int) -> nn.Sequential:
    """Make linear layers of these widths with ReLU between them."""
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(widths):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def hinge(x: torch.Tensor) -> torch.Tensor:
    """Return the loss of a classifier that says one number for each row."""
    return (1.0 - x * torch.arange(x.numel()).remainder(2).mul(2).sub(1).view_as(x)).relu().mean(1)


CASES = {
    "linear": Case(lambda: nn.Linear(64, 32), (16, 64)),
    "LayerNorm": Case(lambda: nn.LayerNorm(64), (16, 64)),
    "BatchNorm": Case(lambda: nn.BatchNorm1d(12), (32, 12)),
    "softmax, CE": Case(CrossEntropy, (16, 32)),
    "conv": Case(lambda: nn.Conv2d(3, 8, 3, padding=1), (2, 3, 12, 12)),
    "GELU MLP": Case(
        lambda: nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10)), (16, 64)
    ),
    "tanh MLP": Case(
        lambda: nn.Sequential(nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 5)), (8, 24)
    ),
    "causal attention": Case(CausalAttention, (2, 7, 16)),
    "ReLU MLP": Case(lambda: relu_network(64, 64, 10), (16, 64), "kinked"),
    "narrow ReLU MLP": Case(lambda: relu_network(8, 12, 3), (4, 8), "kinked"),
    "wide ReLU MLP": Case(lambda: relu_network(32, 512, 8), (16, 32), "kinked"),
    "deep ReLU MLP": Case(lambda: relu_network(32, 48, 48, 48, 48, 10), (16, 32), "kinked"),
    "encoder layer": Case(
        lambda: nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True),
        (2, 6, 32),
        "kinked",
    ),
    "conv, ReLU, max-pool": Case(
        lambda: nn.Sequential(nn.Conv2d(2, 6, 3), nn.ReLU(), nn.MaxPool2d(2)), (2, 2, 10, 10), "any"
    ),
    "abs": Case(lambda: Apply(torch.abs), (300,), "any"),
    "clamp": Case(lambda: Apply(lambda x: x.clamp(-1.0, 0.7) * 3.0), (20, 20), "any"),
    "hinge": Case(lambda: Apply(hinge), (16, 20), "any"),
    "sort": Case(lambda: Apply(lambda x: x.sort().values), (8, 40), "any"),
    "long sort": Case(lambda: Apply(lambda x: x.sort().values), (5000,), "any"),
    "median": Case(lambda: Apply(lambda x: x.median(1).values), (16, 31), "any"),
    "quantile": Case(lambda: Apply(lambda x: x.quantile(0.3, dim=1)), (16, 31), "any"),
    "hardswish": Case(nn.Hardswish, (16, 32), "any"),
    "sort beside smooth": Case(
        lambda: Apply(lambda x: torch.cat([x.sin(), 0.1 * x.sort().values])), (3000,), "any"
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


def found_and_alarms(case: Case, dtype: torch.dtype, error: float, draws: range) -> tuple[int, int]:
    """Return how many of these draws' wrong gradients fail, and how many right modules do."""
    found = alarms = 0
    for draw in draws:
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


def run(dtype: str, draws: int, first: int, chosen: Sequence[str]) -> Benchmark:
    """Check every case in one type."""
    rows, alarms, met, shares = [], 0, True, []
    for name in chosen:
        case = CASES[name]
        start = time.process_time()
        found, false = found_and_alarms(
            case, getattr(torch, dtype), ERRORS[dtype], range(first, first + draws)
        )
        milliseconds = 1e3 * (time.process_time() - start) / (2 * draws)
        rows.append(Row(name, milliseconds, found / draws, false / draws, false / draws))
        alarms += false
        shares.append(f"{name} {100 * found / draws:.0f} %")
        wanted = GOALS[dtype].get(case.kind, 0.0)
        print(f"{name}: {found} found, {false} false, of {draws}", file=sys.stderr, flush=True)
        met = met and found / draws >= wanted
    total = draws * len(chosen)
    return Benchmark(
        title=f"Errors of {100 * ERRORS[dtype]:.0f} % in {dtype}, without a cast",
        command=(
            f"python -m benchmarks.native_precision --dtype {dtype} --draws {draws} --first {first}"
        ),
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
    parser.add_argument("--first", type=int, default=20000, help="seed of the first draw")
    parser.add_argument("--cases", nargs="+", choices=tuple(CASES), metavar="NAME")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    benchmark = run(
        arguments.dtype, arguments.draws, arguments.first, arguments.cases or tuple(CASES)
    )
    if arguments.json:
        json.dump({"machine": machine(), **asdict(benchmark)}, sys.stdout, indent=2)
        print()
    else:
        print(as_markdown(benchmark))
    return 0 if benchmark.met else 1


if __name__ == "__main__":
    sys.exit(main())
