"""How many wrong backwards are caught, beside torch's gradcheck at the same inputs in float64.

The bank is that of the tests: edits of correct Functions by hand and by syntax tree, each proven to
be wrong. torch's slow mode is left out where the Jacobian would have more than a million entries.
gradgradcheck is run as well for mutants whose first order is right.
"""

from __future__ import annotations

import functools
import random
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.harness import Scores, run_as_command
from benchmarks.kept import Kept
from gradcheck_suite import Severity
from gradcheck_suite.verification import check_gradients

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from tests.verification.mutants.bank import Mutant

LEAST_SHARE = 0.97
_MOST_JACOBIAN = 1_000_000
_SIZE = 100_000
_MOST_CALLS = 250


def run(arguments: argparse.Namespace) -> list[Scores]:
    """Check every mutant with each checker."""
    # Under `python benchmarks/mutants.py` the tests are not on the path.
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.verification.mutants.automatic import mutants_of
    from tests.verification.mutants.by_hand import mutants_by_hand
    from tests.verification.mutants.originals import ORIGINALS

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    kept = Kept(arguments.out)
    by_hand = mutants_by_hand()
    automatic = [mutant for name in ORIGINALS for mutant in mutants_of(name)]
    made = len(automatic)
    if arguments.automatic is not None:
        draw = random.Random(arguments.seed)
        automatic = draw.sample(automatic, k=min(arguments.automatic, made))
    sampled = f"{len(automatic)} of {made}" if len(automatic) < made else str(made)
    return [
        _scores(f"{len(by_hand)} wrong backwards made by hand", by_hand, arguments, kept),
        _scores(f"{sampled} wrong backwards made by syntax tree", automatic, arguments, kept),
        _kinds(by_hand),
        _one_wrong(arguments.draws, kept),
    ]


def _scores(title: str, mutants: list[Mutant], arguments: argparse.Namespace, kept: Kept) -> Scores:
    checkers: dict[str, Callable[[Mutant], bool | None]] = {
        "check_gradients": _by_us,
        "torch, fast": lambda mutant: _by_torch(mutant, fast=True),
    }
    if arguments.slow:
        checkers["torch, slow"] = lambda mutant: _by_torch(mutant, fast=False)
    rows = []
    for name, checker in checkers.items():
        found = {
            mutant.name: kept.get(
                f"{name}: {mutant.name}", functools.partial(_timed, checker, mutant)
            )
            for mutant in mutants
        }
        ran = {mutant: one for mutant, one in found.items() if one["caught"] is not None}
        missed = [mutant for mutant, one in ran.items() if not one["caught"]]
        if arguments.show_missed:
            print(f"{title}: {name} missed: {', '.join(missed)}", file=sys.stderr)
        caught = len(ran) - len(missed)
        seconds = sum(one["seconds"] for one in ran.values())
        rows.append((name, len(ran), caught, caught / len(ran), seconds))
    share = float(rows[0][3])
    return Scores(
        title=title,
        command="python -m benchmarks.mutants",
        columns=("", "mutants", "caught", "share", "CPU seconds"),
        rows=tuple(rows),
        goal=f"check_gradients catches at least {LEAST_SHARE:.0%}",
        met=share >= LEAST_SHARE,
    )


def _timed(checker: Callable[[Mutant], bool | None], mutant: Mutant) -> dict[str, Any]:
    start = time.process_time()
    caught = checker(mutant)
    return {"caught": caught, "seconds": time.process_time() - start}


class _OneWrong(torch.autograd.Function):
    """Twice the gradient of the sine in one place, and right everywhere else."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, place: int) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.place = place
        return x.sin()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        (x,) = ctx.saved_tensors
        grad = grads[0] * x.cos()
        grad[ctx.place] *= 2
        return grad, None


def _one_wrong(draws: int, kept: Kept) -> Scores:
    """Look for one wrong entry of a hundred thousand, and count the calls that it takes."""

    def drawn(draw: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(draw)
        x = torch.randn(_SIZE, generator=generator, dtype=torch.float64).requires_grad_()
        place = int(torch.randint(_SIZE, (), generator=generator))
        start = time.process_time()
        report = check_gradients(_OneWrong, (x, place), seed=draw, order=1, variations=())
        entries: list[Any] = [finding.evidence.get("entry") or {} for finding in report.findings]
        return {
            "found": bool(report.at_least(Severity.ERROR)),
            "named": [entry.get("input_index") for entry in entries] == [[place]],
            "evaluations": report.summary["evaluations"],
            "seconds": time.process_time() - start,
        }

    results = [
        kept.get(f"one wrong: {draw}", functools.partial(drawn, draw)) for draw in range(draws)
    ]
    found, named = (sum(one[what] for one in results) for what in ("found", "named"))
    most = max(one["evaluations"] for one in results)
    return Scores(
        title=f"One wrong entry of {_SIZE:,}",
        command="python -m benchmarks.mutants",
        columns=("", "draws", "found", "named by index", "most calls", "CPU seconds"),
        rows=(
            (
                "check_gradients",
                draws,
                found,
                named,
                most,
                sum(one["seconds"] for one in results),
            ),
        ),
        goal=(
            f"never missed, and named by index in checks of at most {_MOST_CALLS} calls of the "
            "function in all"
        ),
        met=found == named == draws and most <= _MOST_CALLS,
    )


def _kinds(mutants: list[Mutant]) -> Scores:
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
    parser.add_argument(
        "--draws", type=int, default=20, metavar="N", help="of one wrong entry of many (20)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="keep results here, and use those that it holds"
    )
    parser.add_argument("--no-slow", dest="slow", action="store_false", help="skip torch's slow")
    parser.add_argument("--show-missed", action="store_true", help="name what was missed")


if __name__ == "__main__":
    sys.exit(run_as_command(run, add_options))
