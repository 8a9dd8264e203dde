"""What it costs to find the wrong Function, module or op of a 12-layer model.

With ``--large`` also once on a transformer of 100 million parameters, with time and peak memory.
"""

from __future__ import annotations

import gc
import resource
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.autograd.function import once_differentiable

import gradcheck_suite as gs
from benchmarks.harness import Scores, run_as_command

if TYPE_CHECKING:
    import argparse

    from gradcheck_suite.findings import Report

Level = Literal["functions", "modules", "calls"]
GOALS: dict[Level, float] = {"functions": 2.0, "modules": 4.0, "calls": 10.0}
ROUNDS = 3


class Norm(torch.autograd.Function):
    """LayerNorm; where ``wrong``, its gradient lacks a term."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, wrong: bool) -> torch.Tensor:
        """Normalise the last dimension."""
        scale = torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5)
        normal = (x - x.mean(-1, keepdim=True)) * scale
        ctx.save_for_backward(normal, scale, weight)
        ctx.wrong = wrong
        return normal * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[Any, ...]:
        """Leave out the gradient through the scale where it is to be wrong."""
        normal, scale, weight = ctx.saved_tensors
        grad = grad_output * weight
        inner = grad - grad.mean(-1, keepdim=True)
        if not ctx.wrong:
            inner = inner - normal * (grad * normal).mean(-1, keepdim=True)
        return inner * scale, (grad_output * normal).sum(tuple(range(normal.dim() - 1))), None


class NormLayer(nn.Module):
    """Call the Function with a weight."""

    def __init__(self, width: int, *, wrong: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.wrong = wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise."""
        result: torch.Tensor = Norm.apply(x, self.weight, self.wrong)
        return result


class Block(nn.Module):
    """Attention and a feed-forward part, each behind the normalisation."""

    def __init__(self, width: int, heads: int, *, wrong: bool) -> None:
        super().__init__()
        self.norm = NormLayer(width, wrong=wrong)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add both to the stream."""
        normal = self.norm(x)
        x = x + self.attention(normal, normal, normal, need_weights=False)[0]
        result: torch.Tensor = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return result


class Transformer(nn.Module):
    """A stack of blocks; the normalisation of block ``wrong`` is wrong."""

    def __init__(self, width: int, depth: int, heads: int, wrong: int | None) -> None:
        super().__init__()
        self.embed = nn.Linear(16, width)
        self.blocks = nn.ModuleList(
            Block(width, heads, wrong=index == wrong) for index in range(depth)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pool over the tokens and classify."""
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        result: torch.Tensor = self.head(x.mean(1))
        return result


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the switch for the large model."""
    parser.add_argument("--large", action="store_true", help="100 million parameters, once")


def run(options: argparse.Namespace) -> Scores:
    """Time each level on a right and on a wrong model, in units of one forward and backward."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(16, 64, 16)
    rows: list[tuple[str | int | float, ...]] = []
    met = True
    right, wrong = Transformer(128, 12, 4, None), Transformer(128, 12, 4, 7)
    for model in (right, wrong):
        gs.localize(model, x[:1, :2], level="modules")  # what is imported on first use
    for level, goal in GOALS.items():
        ratios, seconds = [], []
        for _ in range(ROUNDS):
            once = _forward_and_backward(right, x)
            began = time.process_time()
            silent = gs.localize(right, x, level=level).ok
            ratios.append((time.process_time() - began) / once)
            met = met and silent
        began = time.process_time()
        named = _named(gs.localize(wrong, x, level=level))
        seconds.append(time.process_time() - began)
        ratio = statistics.median(ratios)
        met = met and ratio <= goal and named == "blocks.7.norm: Norm"
        rows.append((level, "12 layers", ratio, goal, seconds[0] / once, named, "", ""))
    if options.large:
        rows.append(_large())
        met = met and rows[-1][5] == "blocks.7.norm: Norm"
    return Scores(
        title="Finding the wrong Function in a model of 12 layers",
        command="python -m benchmarks.localize" + (" --large" if options.large else ""),
        columns=(
            "level",
            "model",
            "search, forwards+backwards",
            "at most",
            "with diagnosis",
            "named",
            "seconds",
            "peak memory, GiB",
        ),
        rows=tuple(rows),
        goal="within the limits, the right one named, no other, and silent on the right model",
        met=met,
    )


def _large() -> tuple[str | int | float, ...]:
    torch.manual_seed(0)
    model = Transformer(832, 12, 16, 7)
    count = sum(parameter.numel() for parameter in model.parameters())
    x = torch.randn(2, 64, 16)
    once = _forward_and_backward(model, x)
    model.zero_grad(set_to_none=True)
    gc.collect()
    began, started = time.process_time(), time.monotonic()
    report = gs.localize(model, x, level="modules")
    spent = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return (
        "modules",
        f"{count / 1e6:.0f} million parameters",
        "",
        "",
        spent / once,
        _named(report),
        time.monotonic() - started,
        peak,
    )


def _forward_and_backward(model: nn.Module, x: torch.Tensor) -> float:
    best = float("inf")
    for _ in range(2):
        model.zero_grad()
        began = time.process_time()
        model(x).square().mean().backward()
        best = min(best, time.process_time() - began)
    return best


def _named(report: Report) -> str:
    return ", ".join(
        f"{finding.evidence['module']}: {finding.evidence['called']}" for finding in report.findings
    )


if __name__ == "__main__":
    sys.exit(run_as_command(run, add_options))
