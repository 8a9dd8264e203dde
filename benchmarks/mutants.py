"""How many wrong backwards are caught, beside torch's gradcheck at the same inputs in float64.

The bank is that of the tests: edits of correct Functions by hand and by syntax tree, each proven to
be wrong. torch's slow mode is left out where the Jacobian would have more than a million entries.
gradgradcheck is run as well for mutants whose first order is right.
"""

from __future__ import annotations

import random
import sys
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.harness import Scores, run_as_command
from gradcheck_suite import Severity
from gradcheck_suite.verification import check_gradients

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from tests.verification.mutants.bank import Mutant

LEAST_SHARE = 0.97
_MOST_JACOBIAN = 1_000_000


@dataclass(slots=True)
class Score:
    """What one checker made of the mutants."""

    run: int = 0
    caught: int = 0
    seconds: float = 0.0
    missed: list[str] = field(default_factory=list)


def run(arguments: argparse.Namespace) -> list[Scores]:
    """Check every mutant with each checker."""
    # Under `python benchmarks/mutants.py` the tests are not on the path.
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.verification.mutants.automatic import mutants_of
    from tests.verification.mutants.by_hand import mutants_by_hand
    from tests.verification.mutants.originals import ORIGINALS

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    by_hand = mutants_by_hand()
    automatic = [mutant for name in ORIGINALS for mutant in mutants_of(name)]
    made = len(automatic)
    if arguments.automatic is not None:
        draw = random.Random(arguments.seed)
        automatic = draw.sample(automatic, k=min(arguments.automatic, made))
    sampled = f"{len(automatic)} of {made}" if len(automatic) < made else str(made)
    return [
        _scores(f"{len(by_hand)} wrong backwards made by hand", by_hand, arguments),
        _scores(f"{sampled} wrong backwards made by syntax tree", automatic, arguments),
        _kinds(by_hand, arguments),
    ]


def _scores(title: str, mutants: list[Mutant], arguments: argparse.Namespace) -> Scores:
    checkers: dict[str, Callable[[Mutant], bool | None]] = {
        "check_gradients": _by_us,
        "torch, fast": lambda mutant: _by_torch(mutant, fast=True),
    }
    if arguments.slow:
        checkers["torch, slow"] = lambda mutant: _by_torch(mutant, fast=False)
    rows = []
    for name, checker in checkers.items():
        score = Score()
        for mutant in mutants:
            start = time.process_time()
            caught = checker(mutant)
            score.seconds += time.process_time() - start
            if caught is None:
                continue
            score.run += 1
            score.caught += caught
            if not caught:
                score.missed.append(mutant.name)
        if arguments.show_missed:
            print(f"{name} missed: {', '.join(score.missed)}", file=sys.stderr)
        rows.append((name, score.run, score.caught, score.caught / score.run, score.seconds))
    share = float(rows[0][3])
    return Scores(
        title=title,
        command="python -m benchmarks.mutants",
        columns=("", "mutants", "caught", "share", "CPU seconds"),
        rows=tuple(rows),
        goal=f"check_gradients catches at least {LEAST_SHARE:.0%}",
        met=share >= LEAST_SHARE,
    )


def _kinds(mutants: list[Mutant], _arguments: argparse.Namespace) -> Scores:
    """Count how many kinds of mistake are named right, and how many claims are wrong."""
    from tests.verification.mutants.claims import claim_is_true

    counts: Counter[str] = Counter()
    for mutant in mutants:
        if mutant.order > 1:
            continue
        report = check_gradients(mutant.target, mutant.inputs(), order=1, variations=())
        for finding in report.findings:
            if finding.code in {"GCS601", "GCS508"}:
                kind = finding.evidence["kind"]
                counts["definable"] += mutant.kind is not None
                counts["named right"] += mutant.kind is not None and kind == mutant.kind
                counts["claims"] += kind != "other"
                counts["wrong"] += claim_is_true(mutant, finding) is False
                break
    named = counts["named right"] / counts["definable"]
    columns = ("definable", "named right", "claims", "wrong")
    return Scores(
        title="Kinds of mistake named in words, of those made by hand",
        command="python -m benchmarks.mutants",
        columns=("", *columns, "share named"),
        rows=(("check_gradients", *(counts[column] for column in columns), named),),
        goal="no wrong claim, held against exact gradients",
        met=counts["wrong"] == 0,
    )


def _by_us(mutant: Mutant) -> bool:
    report = check_gradients(mutant.target, mutant.inputs())
    return bool(report.at_least(Severity.ERROR if mutant.order == 1 else Severity.WARNING))


def _by_torch(mutant: Mutant, *, fast: bool) -> bool | None:
    inputs = tuple(_as_double(value) for value in mutant.inputs())
    target = mutant.target
    call: Callable[..., Any] = getattr(target, "apply", target)
    leaves = [v for v in inputs if isinstance(v, torch.Tensor) and v.requires_grad]
    size = sum(leaf.numel() for leaf in leaves)
    if not fast and size * size > _MOST_JACOBIAN:
        return None
    checks: list[Callable[..., bool]] = [torch.autograd.gradcheck]
    if mutant.order > 1:
        checks.append(torch.autograd.gradgradcheck)

    def same_draws(*values: Any) -> Any:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return call(*values)

    return any(_raises(check, same_draws, inputs, fast=fast) for check in checks)


def _raises(
    check: Callable[..., bool], function: Callable[..., Any], inputs: Any, *, fast: bool
) -> bool:
    try:
        check(function, inputs, fast_mode=fast)
    except Exception:  # noqa: BLE001 - any failure is a mutant caught
        return True
    return False


def _as_double(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype == torch.float32:
        return value.detach().double().requires_grad_(value.requires_grad)
    return value


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add how much is run."""
    parser.add_argument(
        "--automatic", type=int, default=300, metavar="N", help="mutants by syntax tree (300)"
    )
    parser.add_argument(
        "--all", dest="automatic", action="store_const", const=None, help="every one of them"
    )
    parser.add_argument("--seed", type=int, default=0, help="for the draw of mutants")
    parser.add_argument("--no-slow", dest="slow", action="store_false", help="skip torch's slow")
    parser.add_argument("--show-missed", action="store_true", help="name what was missed")


if __name__ == "__main__":
    sys.exit(run_as_command(run, add_options))
