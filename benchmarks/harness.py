"""Time contenders side by side, so that a busy machine slows them all alike.

In each round every contender runs one burst, in an order drawn anew; a contender's ratio is the
median over rounds of its burst time divided by the first contender's burst time of the same round.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Contender:
    """One way of doing the work: ``burst()`` does all of it once."""

    name: str
    burst: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one contender.

    ``milliseconds`` is the median time of one unit of work; ``ratio`` the median ratio to the first
    contender, ``ratio_low`` and ``ratio_high`` its quartiles.
    """

    name: str
    milliseconds: float
    ratio: float
    ratio_low: float
    ratio_high: float


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A finished benchmark: what was measured, how to run it again, what came out, and the goal."""

    title: str
    command: str
    unit: str
    rows: tuple[Row, ...]
    goal: str
    met: bool


@dataclass(frozen=True, slots=True)
class Scores:
    """A finished benchmark of anything but time alone: counts, shares, bytes, and their goals.

    ``rows`` holds one tuple of texts or numbers per line, as long as ``columns``.
    """

    title: str
    command: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | int | float, ...], ...]
    goal: str
    met: bool


Result: TypeAlias = Benchmark | Scores


def measure(
    contenders: Sequence[Contender],
    *,
    rounds: int,
    units_per_burst: int = 1,
    clock: Callable[[], float] = time.perf_counter,
    seed: int = 0,
) -> tuple[Row, ...]:
    """Run ``rounds`` interleaved rounds, after one that does not count, and return a row for each.

    Args:
        contenders: what to compare; the first is the baseline.
        rounds: rounds that count.
        units_per_burst: how many units of work (training steps, files) one burst does.
        clock: seconds; ``time.perf_counter``, or ``time.process_time`` for CPU seconds.
        seed: for the order of the contenders within each round.
    """
    seconds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    order = list(contenders)
    shuffle = random.Random(seed).shuffle
    for round_number in range(rounds + 1):
        shuffle(order)
        for contender in order:
            gc.collect()
            start = clock()
            contender.burst()
            if round_number:
                seconds[contender.name].append(clock() - start)
    baseline = seconds[contenders[0].name]
    return tuple(
        _row(contender.name, seconds[contender.name], baseline, units_per_burst)
        for contender in contenders
    )


def _row(name: str, seconds: list[float], baseline: list[float], units: int) -> Row:
    ratios = [mine / base for mine, base in zip(seconds, baseline, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (*ratios, *ratios * 2)
    return Row(
        name=name,
        milliseconds=statistics.median(seconds) / units * 1e3,
        ratio=statistics.median(ratios),
        ratio_low=low,
        ratio_high=high,
    )


def as_table(benchmark: Benchmark) -> Table:
    """Draw a benchmark as a Markdown table."""
    table = Table(box=MARKDOWN, pad_edge=False)
    table.add_column("")
    table.add_column(f"ms per {benchmark.unit}", justify="right")
    table.add_column("ratio", justify="right")
    table.add_column("quartiles", justify="right")
    for row in benchmark.rows:
        table.add_row(
            row.name,
            f"{row.milliseconds:.2f}",
            f"{row.ratio:.2f}",
            f"{row.ratio_low:.2f} to {row.ratio_high:.2f}",
        )
    return table


def _as_table_of_scores(scores: Scores) -> Table:
    table = Table(box=MARKDOWN, pad_edge=False)
    for index, column in enumerate(scores.columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    for row in scores.rows:
        table.add_row(*(f"{v:.3g}" if isinstance(v, float) else str(v) for v in row))
    return table


def as_markdown(benchmark: Result) -> str:
    """Write a benchmark as a section of a Markdown page."""
    lines = io.StringIO()
    timed = isinstance(benchmark, Benchmark)
    table_ = as_table(benchmark) if timed else _as_table_of_scores(benchmark)
    Console(file=lines, width=200, no_color=True).print(table_)
    table = "\n".join(line.strip() for line in lines.getvalue().strip().splitlines())
    verdict = "met" if benchmark.met else "missed"
    return (
        f"## {benchmark.title}\n\n`{benchmark.command}`\n\n{table}\n\n"
        f"Goal: {benchmark.goal}: {verdict}."
    )


def machine() -> str:
    """Name the interpreter and the machine that the figures come from."""
    return f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"


def versions() -> dict[str, str]:
    """Return the versions of what figures are compared with, as far as it is installed."""
    found = {}
    for name in _COMPARED:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


_COMPARED = (
    *("torch", "pytest", "libcst"),
    *("flake8", "torchfix", "ruff", "dslinter", "torch-preflight", "pytest-torch"),
)
"""Distributions that tables name beside ours, or that what they measure runs on."""


def as_json(results: Sequence[Result]) -> str:
    """Write benchmarks as a JSON document that ``from_json`` reads."""
    document = {
        "machine": machine(),
        "versions": versions(),
        "benchmarks": [asdict(result) for result in results],
    }
    return json.dumps(document, indent=2)


def from_json(text: str) -> tuple[Result, ...]:
    """Read what ``as_json`` wrote."""
    return tuple(map(_result, json.loads(text)["benchmarks"]))


def _result(figures: dict[str, Any]) -> Result:
    rows = figures.pop("rows")
    if "columns" in figures:
        columns = tuple(figures.pop("columns"))
        return Scores(columns=columns, rows=tuple(map(tuple, rows)), **figures)
    return Benchmark(rows=tuple(Row(**row) for row in rows), **figures)


def run_as_command(
    run: Callable[..., Result | Sequence[Result]],
    add_options: Callable[[argparse.ArgumentParser], object] | None = None,
) -> int:
    """Run one benchmark from the command line; return 1 if it misses a goal.

    Args:
        run: does the measuring. With ``add_options`` it is called with the parsed options.
        add_options: adds options of its own to the parser.
    """
    parser = argparse.ArgumentParser(description=sys.modules[run.__module__].__doc__)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    if add_options is not None:
        add_options(parser)
    arguments = parser.parse_args()
    done = run() if add_options is None else run(arguments)
    results: Sequence[Result] = [done] if isinstance(done, (Benchmark, Scores)) else done
    print(as_json(results) if arguments.json else "\n\n".join(map(as_markdown, results)))
    return 0 if all(result.met for result in results) else 1
