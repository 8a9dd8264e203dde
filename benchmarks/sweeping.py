"""Sweep a bank of functions whose gradients are right, and count what is said of them.

A sweep may take long, so that it can be done in parts and taken up again: what came out of each
entry of the bank is one line of JSON in a file, and entries that are in the file are not run again.
"""

from __future__ import annotations

import functools
import random
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from benchmarks.harness import Scores, run_as_command
from benchmarks.kept import Kept
from gradcheck_suite.errors import UsageError
from gradcheck_suite.severity import Severity
from gradcheck_suite.verification import check_gradients

if TYPE_CHECKING:
    import argparse
    import unittest
    from collections.abc import Iterator, Sequence

    from gradcheck_suite.findings import Finding, Report

MOST_INCONCLUSIVE = 0.01
# Entries from one line of progress to the next.
_TELLS = 25
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class Sample:
    """One function to check, or a module, with what it is called on.

    Attributes:
        target: what ``check_gradients`` is given.
        inputs: positional arguments.
        nondet_tol: by how much torch's own check lets two backwards differ.
        kwargs: keyword arguments.
    """

    target: Callable[..., object]
    inputs: tuple[Any, ...]
    nondet_tol: float = 0.0
    kwargs: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One operator or module of a bank; ``samples()`` makes all its samples anew."""

    name: str
    samples: Callable[[], Iterable[Sample]]


@dataclass(slots=True)
class Outcome:
    """What came out of the samples of one entry.

    Attributes:
        name: of the entry.
        samples: how many were checked.
        refused: how many were refused as bad input, of those.
        verdicts: how many of each status.
        failed: a message for each sample with a false failure.
        told: code, severity and message of each finding, with the number of the sample.
        inconclusive: the reasons.
        not_covered: how often something was not covered, by its first words.
        covered: how often something was.
        seconds: of CPU time.
        slowest: the most seconds of one sample.
        torch_seconds: of CPU time for torch's fast mode.
        torch_failed: samples that torch's fast mode calls wrong.
    """

    name: str
    samples: int = 0
    refused: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    inconclusive: list[str] = field(default_factory=list)
    not_covered: Counter[str] = field(default_factory=Counter)
    covered: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    slowest: float = 0.0
    torch_seconds: float = 0.0
    torch_failed: int = 0

    def add(self, other: Outcome) -> None:
        """Add what came out of another entry."""
        for name in ("verdicts", "not_covered", "covered"):
            getattr(self, name).update(getattr(other, name))
        self.failed += other.failed
        self.told += other.told
        self.inconclusive += other.inconclusive
        self.samples += other.samples
        self.refused += other.refused
        self.seconds += other.seconds
        self.slowest = max(self.slowest, other.slowest)
        self.torch_seconds += other.torch_seconds
        self.torch_failed += other.torch_failed

    @property
    def inconclusive_share(self) -> float:
        """Inconclusive verdicts among those that could have been passes."""
        decided = sum(self.verdicts[status] for status in ("pass", "fail", "inconclusive"))
        return self.verdicts["inconclusive"] / decided if decided else 0.0

    def summary(self) -> str:
        """Tell the counts in one line."""
        counts = ", ".join(f"{count} {status}" for status, count in self.verdicts.most_common())
        return (
            f"{self.samples} samples, {counts}, {self.refused} refused, {len(self.failed)} false "
            f"failures, {self.seconds:.0f} s (slowest {self.slowest:.1f}), torch "
            f"{self.torch_seconds:.0f} s"
        )


def _outcome(kept: dict[str, Any]) -> Outcome:
    counts = {name: Counter(kept[name]) for name in ("verdicts", "not_covered", "covered")}
    return Outcome(**{**kept, **counts})


def sweep(
    entries: Sequence[Entry],
    *,
    options: dict[str, Any],
    most: int | None = None,
    beside_torch: bool = False,
    seed: int = 0,
    out: Path | None = None,
) -> list[Outcome]:
    """Check the samples of entries and tell what came out of each.

    Args:
        entries: of the bank.
        options: for ``check_gradients``, the same for every entry.
        most: how many samples of each entry, drawn at random; None for all.
        beside_torch: whether torch's fast mode checks the same samples.
        seed: for the draw of samples.
        out: a file to add outcomes to; entries that it holds are not run.
    """
    kept = Kept(out)
    outcomes = []
    total = Outcome("")
    for count, entry in enumerate(entries, start=1):
        checked = functools.partial(_checked, entry, options, most, seed, beside_torch=beside_torch)
        outcome = _outcome(kept.get(entry.name, checked))
        outcomes.append(outcome)
        total.add(outcome)
        if count % _TELLS == 0 or outcome.failed:
            print(f"{count}/{len(entries)} {entry.name}: {total.summary()}", file=sys.stderr)
    return outcomes


def _checked(
    entry: Entry, options: dict[str, Any], most: int | None, seed: int, *, beside_torch: bool
) -> dict[str, Any]:
    outcome = Outcome(entry.name)
    torch.manual_seed(0)
    given = list(entry.samples())
    chosen: Sequence[int] = range(len(given))
    if most is not None and len(given) > most:
        chosen = sorted(random.Random(f"{seed} {entry.name}").sample(chosen, most))
    for number in chosen:
        sample = given[number]
        start = time.process_time()
        try:
            report = check_gradients(sample.target, sample.inputs, kwargs=sample.kwargs, **options)
        except UsageError as error:
            report = None
            outcome.refused += 1
            outcome.told.append(f"#{number} refused: {error}"[:_SHOWN])
        except Exception as error:  # noqa: BLE001 - a check that crashes is as bad as a false alarm
            report = None
            outcome.failed.append(f"#{number} crashed: {error!r}"[:_SHOWN])
            traceback.print_exc()
        spent = time.process_time() - start
        outcome.samples += 1
        outcome.seconds += spent
        outcome.slowest = max(outcome.slowest, spent)
        if report is not None:
            _note(outcome, number, report)
        if beside_torch:
            _check_by_torch(sample, outcome, second=options.get("order") == 2)
    return {one.name: getattr(outcome, one.name) for one in fields(outcome)}


def _note(outcome: Outcome, number: int, report: Report) -> None:
    outcome.verdicts.update(verdict.status for verdict in report.verdicts)
    wrong = [verdict for verdict in report.verdicts if verdict.status == "fail"]
    if wrong or report.at_least(Severity.ERROR):
        first = _as_text(report.findings[0]) if report.findings else str(wrong[0])
        outcome.failed.append(f"#{number} {first}")
    outcome.told += [f"#{number} {_as_text(finding)}" for finding in report.findings]
    outcome.inconclusive += [
        f"#{number} {verdict.output} by {verdict.input}: {verdict.reason}"[:_SHOWN]
        for verdict in report.verdicts
        if verdict.status == "inconclusive"
    ]
    outcome.not_covered.update(_kind(line) for line in report.not_covered)
    covered = report.summary.get("covered", ())
    assert isinstance(covered, (list, tuple))
    outcome.covered.update(
        part for line in covered for part in str(line).rpartition(": ")[2].split(", ")
    )


def _as_text(finding: Finding) -> str:
    return f"{finding.code} {finding.severity.value}: {finding.message}"[:_SHOWN]


def _kind(line: str) -> str:
    """Return the words of a sentence on what was not covered, without names and numbers."""
    words = [word for word in line.split() if "`" not in word and not any(map(str.isdigit, word))]
    return " ".join(words)[:60]


def _check_by_torch(sample: Sample, outcome: Outcome, *, second: bool) -> None:
    tree = (sample.inputs, sample.kwargs or {})
    leaves, spec = pytree.tree_flatten(tree)
    places = [
        index
        for index, leaf in enumerate(leaves)
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]
    parameters: list[torch.Tensor] = []
    if isinstance(sample.target, torch.nn.Module):
        parameters = list(sample.target.parameters())

    def flat(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=False):
            filled[place] = tensor
        args, kwargs = pytree.tree_unflatten(filled, spec)
        with torch.random.fork_rng():
            produced = pytree.tree_leaves(sample.target(*args, **kwargs))
        return tuple(one for one in produced if isinstance(one, torch.Tensor))

    check = torch.autograd.gradgradcheck if second else torch.autograd.gradcheck
    start = time.process_time()
    try:
        check(
            flat,
            (*(leaves[place] for place in places), *parameters),
            nondet_tol=sample.nondet_tol,
            fast_mode=True,
        )
    except Exception:  # noqa: BLE001 - any kind of failure is one
        outcome.torch_failed += 1
    outcome.torch_seconds += time.process_time() - start


def upstream_skips(decorators: Iterable[Any], suite: str, test: str, dtype: torch.dtype) -> bool:
    """Say whether torch's own test of an entry is skipped or expected to fail.

    Args:
        decorators: of the entry; those that name another class of tests or none, and those that
            change something else, such as a tolerance, count for nothing.
        suite: the test's class.
        test: the test's name.
        dtype: the type that it runs in.
    """
    return any(
        getattr(decorator, "cls_name", None) == suite
        and decorator.test_name in {test, None}
        and decorator.is_active(suite, test, "cpu", dtype, {})
        and any(_skips(change) for change in decorator.decorators)
        for decorator in decorators
    )


def _skips(change: Callable[..., Any]) -> bool:
    def test(self: unittest.TestCase) -> None:
        """Stand for a test."""

    changed = change(test)
    return bool(
        getattr(changed, "__unittest_skip__", False)
        or getattr(changed, "__unittest_expecting_failure__", False)
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what a sweep of any bank takes."""
    parser.add_argument("--order", type=int, choices=(1, 2), default=1)
    parser.add_argument("--variations", action="store_true", help="vary the inputs as well")
    parser.add_argument("--sample", type=int, metavar="N", help="samples of each entry")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--alone", action="store_true", help="without torch's fast mode")
    parser.add_argument("--names", nargs="+", metavar="NAME", help="these entries alone")
    parser.add_argument("--part", metavar="K/N", help="every Nth entry, from the Kth")
    parser.add_argument("--out", type=Path, metavar="FILE", help="add outcomes to this file")
    parser.add_argument("--details", action="store_true", help="print every finding")


def chosen(entries: Iterable[Entry], arguments: argparse.Namespace) -> list[Entry]:
    """Return the entries that the options choose."""
    found = list(entries)
    if arguments.names:
        found = [entry for entry in found if entry.name.split()[0] in arguments.names]
    if arguments.part:
        part, _, parts = arguments.part.partition("/")
        found = found[int(part) - 1 :: int(parts)]
    return found


def swept(title: str, module: str, entries: list[Entry], arguments: argparse.Namespace) -> Scores:
    """Sweep the chosen entries and make a table of what came out."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    options: dict[str, Any] = {"order": arguments.order, "seed": arguments.seed}
    if not arguments.variations:
        options["variations"] = ()
    outcomes = sweep(
        entries,
        options=options,
        most=arguments.sample,
        beside_torch=not arguments.alone,
        seed=arguments.seed,
        out=arguments.out,
    )
    total = Outcome("")
    for outcome in outcomes:
        total.add(outcome)
    if arguments.details:
        for line in _details(outcomes):
            print(line, file=sys.stderr)
    counts = ", ".join(f"{count} {status}" for status, count in total.verdicts.most_common())
    rows: list[tuple[str | int | float, ...]] = [
        ("check_gradients", total.samples, len(total.failed), total.seconds)
    ]
    if total.torch_seconds:
        rows.append(
            ("torch, fast mode", total.samples, total.torch_failed, total.torch_seconds),
        )
    return Scores(
        title=f"{title}, order {arguments.order}"
        + (", with every variation" if arguments.variations else ""),
        command=f"python -m benchmarks.{module} {' '.join(sys.argv[1:])}".strip(),
        columns=("", "samples", "false failures", "CPU seconds"),
        rows=tuple(rows),
        goal=(
            f"no false failure, inconclusive below {MOST_INCONCLUSIVE:.0%}: "
            f"{sum(bool(outcome.samples) for outcome in outcomes)} entries, {counts}, "
            f"{total.refused} refused ({total.inconclusive_share:.2%} inconclusive); slowest "
            f"sample {total.slowest:.1f} s"
        ),
        met=not total.failed and total.inconclusive_share < MOST_INCONCLUSIVE,
    )


def _details(outcomes: Iterable[Outcome]) -> Iterator[str]:
    for outcome in outcomes:
        for line in outcome.told:
            yield f"{outcome.name} {line}"
        for reason, count in Counter(outcome.inconclusive).items():
            yield f"{outcome.name} inconclusive {count}: {reason}"


def command(run: Callable[[argparse.Namespace], Scores], *, dtypes: Sequence[str]) -> int:
    """Run a sweep from the command line."""

    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--dtype", choices=tuple(dtypes), default=dtypes[0])
        add_options(parser)

    return run_as_command(run, options)
