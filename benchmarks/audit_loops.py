"""Score the audit on the bank of loops: correct ones, wrong ones, and mutants of the correct ones.

The correct loops of tests/auditing/loops run bare and audited: nothing may be called an error, and
the parameters after each step, the state of the random generator at the end and the exception, if
any, must be the same. The wrong loops of that bank, of test_graph_broken.py and of
test_parameter_without_gradient.py each know their code. Mutants are made of the correct loops by
the operators of ``lint_mutants``; one that changes nothing (the parameters after each step are
those of the correct loop) is left out, unless its mistake lies elsewhere than in parameters, and so
is one that fails before its first step, unless the audit is to explain just that.
"""

from __future__ import annotations

import hashlib
import importlib
import linecache
import random
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

import gradcheck_suite as gs
from benchmarks.harness import Scores, run_as_command
from benchmarks.lint_mutants import mutants
from gradcheck_suite.findings import Severity
from tests.auditing.loops.bank import BUGGY, CLEAN

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

_LOOPS = Path(__file__).parents[1] / "tests" / "auditing" / "loops"
_MODULES = sorted({path.stem for path in _LOOPS.glob("*.py")} - {"__init__", "bank", "connected"})
_COMMAND = "python -m benchmarks.audit_loops"

_ALSO_RIGHT = {
    # Seen from a loop that goes round, these are one mistake: what backward fills is cleared
    # before a step has used it.
    ("move backward after step", "GCS303"): {"GCS302"},
    ("move zero_grad after backward", "GCS302"): {"GCS303"},
    ("move zero_grad before step", "GCS302"): {"GCS303"},
}
_LEAVES_PARAMETERS_ALONE = {"GCS201", "GCS203", "GCS204"}
_EXPLAINED = {"GCS310", "GCS401", "GCS402", "GCS405"}
_AT_RUN_TIME = {
    *("GCS201", "GCS203", "GCS204", "GCS301", "GCS302", "GCS303", "GCS304", "GCS305", "GCS306"),
    *("GCS310", "GCS401", "GCS402", "GCS405"),
}


@dataclass(frozen=True, slots=True)
class Run:
    """What a loop left: a hash of its parameters after each step, and its exception."""

    hash: str
    raised: str
    steps: int
    codes: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    bugs: tuple[str, ...] = ()


def run(loop: Callable[[], object], *, audited: bool) -> Run:
    """Run a loop from the same random state, with or without an audit."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    digest = hashlib.sha256()

    steps = 0

    def after(optimizer: torch.optim.Optimizer, *_: object) -> None:
        nonlocal steps
        steps += 1
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                values = parameter.detach().contiguous().view(-1).view(torch.uint8)
                digest.update(values.numpy().tobytes())

    handle = register_optimizer_step_post_hook(after)
    raised = ""
    session = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if audited:
                with gs.audit(report=False) as session:
                    raised = _exception_of(loop)
            else:
                raised = _exception_of(loop)
    finally:
        handle.remove()
        torch.set_grad_enabled(True)
    digest.update(torch.get_rng_state().numpy().tobytes())
    digest.update(repr(random.getstate()).encode())
    if session is None:
        return Run(digest.hexdigest(), raised, steps)
    findings = session.findings
    return Run(
        digest.hexdigest(),
        raised,
        steps,
        tuple(finding.code for finding in findings),
        tuple(f"{f.code} {f.message}" for f in findings if f.severity is Severity.ERROR),
        tuple(line for line in session.report.not_covered if "bug in" in line),
    )


def _exception_of(loop: Callable[[], object]) -> str:
    try:
        loop()
    except Exception as error:  # noqa: BLE001 - some loops are meant to fail
        # Torch tells a version that an audit has not changed; addresses differ from run to run.
        return f"{type(error).__name__}: {error}".split(" at 0x")[0]
    return ""


def _fill_the_bank() -> None:
    for name in _MODULES:
        importlib.import_module(f"tests.auditing.loops.{name}")


def score_clean(names: list[str]) -> tuple[list[tuple[str, str]], int]:
    """Return what is wrong with the audit of correct loops, and the number of other findings."""
    wrong = []
    other = 0
    for name in names:
        bare, watched = run(CLEAN[name], audited=False), run(CLEAN[name], audited=True)
        if watched.errors or watched.bugs:
            wrong.append((name, "; ".join((*watched.errors, *watched.bugs))[:300]))
        if bare.raised:
            wrong.append((name, f"is not correct: {bare.raised[:120]}"))
        if (bare.hash, bare.raised) != (watched.hash, watched.raised):
            wrong.append((name, f"not the same: {bare.raised[:120]!r}, {watched.raised[:120]!r}"))
        if len(watched.codes) > len(watched.errors):
            other += 1
            print(f"  also: {name}: {', '.join(watched.codes)}", file=sys.stderr)
    return wrong, other


def written_loops() -> dict[str, tuple[str, Callable[[], object]]]:
    """Return the wrong loops that were written by hand, each with its code."""
    lost: Any = importlib.import_module("tests.auditing.detectors.connectivity.test_graph_broken")
    untrained: Any = importlib.import_module(
        "tests.auditing.detectors.connectivity.test_parameter_without_gradient"
    )
    loops = dict(BUGGY)
    for loop, code, _ in (*lost.RAISING, *lost.SILENT_BUGS, *untrained.SILENT_BUGS):
        loops[loop.__name__] = (code, loop)
    return loops


@dataclass(frozen=True, slots=True)
class LoopMutant:
    """A correct loop made wrong in one place."""

    name: str
    operator: str
    code: str
    loop: Callable[[], object]
    original: Callable[[], object]


def loop_mutants(modules: Sequence[str] = _MODULES) -> Iterator[LoopMutant]:
    """Yield every mutant of the correct loops of these modules that can be seen at run time."""
    for module in modules:
        text = (_LOOPS / f"{module}.py").read_text(encoding="utf-8")
        counts: dict[tuple[str, str], int] = defaultdict(int)
        for mutant in mutants(text):
            function = mutant.function.split(".")[0]
            if mutant.code not in _AT_RUN_TIME or function not in CLEAN:
                continue
            number = counts[function, mutant.operator] = counts[function, mutant.operator] + 1
            name = f"{module}.{function}: {mutant.operator} {number}"
            loop = _made(module, mutant.source, function, name)
            yield LoopMutant(name, mutant.operator, mutant.code, loop, CLEAN[function])


def _made(module: str, source: str, function: str, name: str) -> Callable[[], object]:
    file = f"/mutants/{name}.py".replace(" ", "_")
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    kept = dict(CLEAN), dict(BUGGY)
    # Some operators put a line of their own above everything else.
    source = source.replace("from __future__ import annotations\n", "\n")
    namespace: dict[str, Any] = {"__name__": f"mutant_of_{module}", "__file__": file}
    try:
        exec(compile(source, file, "exec", dont_inherit=True), namespace)
    finally:
        for bank, before in zip((CLEAN, BUGGY), kept, strict=True):
            bank.clear()
            bank.update(before)
    made: Callable[[], object] = namespace[function]
    return made


def _right(mutant: LoopMutant) -> set[str]:
    return {mutant.code, *_ALSO_RIGHT.get((mutant.operator, mutant.code), ())}


def is_found(mutant: LoopMutant) -> bool:
    """Return whether an audit names the mistake under its code."""
    return bool(_right(mutant) & set(run(mutant.loop, audited=True).codes))


def score_mutants(options: argparse.Namespace) -> tuple[dict[str, list[int]], list[str]]:
    """Return how many of how many were found by operator, and those that were not."""
    by_operator: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    missed = []
    originals: dict[str, Run] = {}
    deadline = time.monotonic() + options.seconds
    for index, mutant in enumerate(loop_mutants()):
        if index < options.first or (options.only and options.only not in mutant.name):
            continue
        if time.monotonic() > deadline:
            print(f"  stopped before mutant {index}: go on with --first {index}", file=sys.stderr)
            break
        count = by_operator[f"{mutant.operator} ({mutant.code})"]
        if mutant.code not in _LEAVES_PARAMETERS_ALONE:
            key = mutant.original.__name__
            if key not in originals:
                originals[key] = run(mutant.original, audited=False)
            bare = run(mutant.loop, audited=False)
            same = (bare.hash, bare.raised) == (originals[key].hash, originals[key].raised)
            fails_at_once = bare.raised and not bare.steps and mutant.code not in _EXPLAINED
            if same or fails_at_once:
                count[2] += 1
                continue
        watched = run(mutant.loop, audited=True)
        count[1] += 1
        if _right(mutant) & set(watched.codes):
            count[0] += 1
        else:
            missed.append(f"{mutant.name} ({mutant.code}): {watched.codes} {watched.raised[:80]}")
            print(f"  missed {index}: {missed[-1]}", file=sys.stderr, flush=True)
    return by_operator, missed


def score(options: argparse.Namespace) -> list[Scores]:
    """Score what was asked for."""
    torch.set_num_threads(1)
    _fill_the_bank()
    results = []
    if "clean" in options.parts:
        names = [name for name in CLEAN if not options.only or options.only in name]
        wrong, other = score_clean(names)
        results.append(
            Scores(
                title="Correct loops under audit",
                command=f"{_COMMAND} clean",
                columns=("", "loops"),
                rows=(
                    ("no error, the same bits", len(names) - len(wrong)),
                    ("with a warning or note", other),
                    ("all", len(names)),
                    *((f"{name}: {what}", 1) for name, what in wrong),
                ),
                goal="no error and the same bits on at least 80 correct loops",
                met=not wrong and len(names) >= 80,
            )
        )
    found = total = 0
    rows: list[tuple[str | int | float, ...]] = []
    if "written" in options.parts:
        hits = 0
        loops = written_loops()
        for name, (code, loop) in loops.items():
            watched = run(loop, audited=True)
            hits += code in watched.codes
            if code not in watched.codes:
                rows.append((f"missed: {name} ({code})", 0, 1))
        rows.insert(0, ("written by hand", hits, len(loops)))
        found, total = found + hits, total + len(loops)
    if "mutants" in options.parts:
        by_operator, _missed = score_mutants(options)
        for operator, (hits, count, _) in sorted(by_operator.items()):
            rows.append((f"mutants: {operator}", hits, count))
            found, total = found + hits, total + count
        alike = sum(count[2] for count in by_operator.values())
        rows.append(("mutants that change nothing or fail at once, left out", "", alike))
    if rows:
        results.append(
            Scores(
                title="Wrong loops under audit",
                command=_COMMAND,
                columns=("", "found under the right code", "of"),
                rows=(*rows, ("all", found, total)),
                goal="at least 97 % of at least 100 wrong loops",
                met=total >= 100 and found >= 0.97 * total,
            )
        )
    return results


def _options(parser: argparse.ArgumentParser) -> None:
    parts = ("clean", "written", "mutants")
    parser.add_argument("parts", nargs="*", default=list(parts), metavar="PART", help=str(parts))
    parser.add_argument("--only", help="loops and mutants whose name holds this")
    parser.add_argument("--first", type=int, default=0, help="begin with this mutant")
    parser.add_argument("--seconds", type=float, default=3600, help="begin no mutant after this")


if __name__ == "__main__":
    sys.exit(run_as_command(score, _options))
