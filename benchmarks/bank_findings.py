"""Write down what the banks of the tests find, so that two runs can be compared.

Banks: the demo's two scripts, loops (wrong and correct), leaks and their repaired twins, writers in
two modes, silent overwrites of saved tensors, wrong backwards, and wrong models to be localized.
Each bank runs in a process of its own, with one thread and one seed; a subject that fails is noted
as such.

    python -m benchmarks.bank_findings --out now.json
    python -m benchmarks.bank_findings --compare before.json now.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gradcheck_suite.findings import Finding

_ROOT = Path(__file__).parents[1]
_OVERWRITES = 60
"""So many draws of audit_corruption: most of its routes, edits and subjects."""
_SECONDS = 3_600

Subjects: TypeAlias = "Iterator[tuple[str, Callable[[], tuple[Finding, ...]]]]"
Found: TypeAlias = "dict[str, dict[str, list[str]]]"


def _loops() -> Subjects:
    import gradcheck_suite as gs
    from tests.auditing import test_loop_bank
    from tests.auditing.loops.bank import BUGGY, CLEAN

    def audited(loop: Callable[[], object]) -> tuple[Finding, ...]:
        with gs.audit(report=False) as session:
            test_loop_bank.run_quietly(loop)
        return session.findings

    loops = {f"wrong {name}": loop for name, (_, loop) in BUGGY.items()}
    loops |= {f"correct {name}": loop for name, loop in CLEAN.items()}
    for name, loop in loops.items():
        yield name, lambda loop=loop: audited(loop)


def _leaks() -> Subjects:
    import gradcheck_suite as gs
    from tests.auditing import test_leak_bank
    from tests.auditing.leaks.bank import LEAKS, LOOK_ALIKES

    assert test_leak_bank

    def audited(run: Callable[[Any], object]) -> tuple[Finding, ...]:
        session = gs.audit(report=False)
        run(session)
        return session.findings

    for name, leak in LEAKS.items():
        yield (
            f"wrong {name}",
            lambda leak=leak: audited(lambda session: leak.run(session, lambda tensor: tensor)),
        )
        if leak.repaired:
            yield (
                f"repaired {name}",
                lambda leak=leak: audited(
                    lambda session: leak.run(session, lambda tensor: tensor.detach())
                ),
            )
    for name, loop in LOOK_ALIKES.items():
        yield f"correct {name}", lambda loop=loop: audited(loop)


def _writers() -> Subjects:
    from benchmarks import audit_writers

    for mode, options in audit_writers.MODES.items():
        for name, case in audit_writers._cases().items():  # noqa: SLF001 - a neighbour's
            for fixed in (False, True):
                yield (
                    f"{'correct' if fixed else 'wrong'} {name} ({mode})",
                    lambda case=case, fixed=fixed, options=options: audit_writers.audited(
                        case, fixed=fixed, **options
                    ),
                )


def _overwrites() -> Subjects:
    import gradcheck_suite as gs
    from benchmarks import audit_corruption

    def audited(draw: Any) -> tuple[Finding, ...]:
        with gs.audit(report=False) as session:
            audit_corruption._gradients(draw, edit=True)  # noqa: SLF001 - a neighbour's
        return session.findings

    for seed in range(_OVERWRITES):
        draw = audit_corruption._draw(seed)  # noqa: SLF001 - a neighbour's
        yield f"{draw.subject}, {draw.kind}, {draw.route}", lambda draw=draw: audited(draw)


def _wrong_backwards() -> Subjects:
    from gradcheck_suite import check_gradients
    from tests.verification.mutants.by_hand import mutants_by_hand

    for place, mutant in enumerate(mutants_by_hand()):
        yield (
            f"{place} {mutant.name}",
            lambda mutant=mutant: (
                check_gradients(mutant.target, mutant.inputs(), order=mutant.order).findings
            ),
        )


def _wrong_models() -> Subjects:
    import torch

    import gradcheck_suite as gs
    from benchmarks.localize import Transformer

    def localized(level: Any, block: int | None, dtype: torch.dtype) -> tuple[Finding, ...]:
        # Drawn in one dtype: versions of torch draw other numbers in others.
        model = Transformer(16, 3, 2, block).to(dtype)
        return gs.localize(model, torch.randn(2, 5, 16).to(dtype), level=level).findings

    for level in ("auto", "functions", "modules", "calls", "tree"):
        for block in (None, 0, 1, 2):
            for dtype in (torch.float32, torch.float64):
                wrong = "right" if block is None else f"block {block} wrong"
                yield (
                    f"{wrong}, {dtype}, level {level}",
                    lambda level=level, block=block, dtype=dtype: localized(level, block, dtype),
                )


def _demo() -> Subjects:
    for script in ("train.py", "train_fixed.py"):
        yield script, lambda script=script: _of_script(_ROOT / "examples" / "digits" / script)


def _of_script(script: Path) -> tuple[Finding, ...]:
    from gradcheck_suite.findings import Finding, Location, Severity

    command = [sys.executable, "-m", "gradcheck_suite", "audit", "--output-format", "json"]
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "report.json"
        command += ["--output-file", str(kept), str(script)]
        subprocess.run(command, cwd=_ROOT, capture_output=True, check=False)
        found = json.loads(kept.read_text(encoding="utf-8"))["findings"]
    return tuple(
        Finding(
            code=one["code"],
            rule=one["rule"],
            severity=Severity(one["severity"]),
            message=one["message"],
            location=None if one["path"] is None else Location(one["path"], one["line"]),
            related=(),
            hint=None,
            evidence={},
            detector="audit",
        )
        for one in found
    )


BANKS: dict[str, Callable[[], Subjects]] = {
    "demo": _demo,
    "loops": _loops,
    "leaks": _leaks,
    "writers": _writers,
    "overwrites": _overwrites,
    "wrong backwards": _wrong_backwards,
    "wrong models": _wrong_models,
}


def _as_text(finding: Finding) -> str:
    where = ""
    if finding.location is not None:
        # Functions that a bank makes have files without a folder.
        where = f"{Path(finding.location.path).name}:{finding.location.line} "
    return f"{finding.code} {finding.severity.value} {where}{finding.message}"


def find(bank: str) -> dict[str, list[str]]:
    """Return, for each subject of a bank, the findings as lines of text."""
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found: dict[str, list[str]] = {}
    for name, subject in BANKS[bank]():
        torch.manual_seed(0)
        try:
            found[name] = sorted(map(_as_text, subject()))
        except Exception as error:  # noqa: BLE001 - one subject, which the comparison shows
            found[name] = [f"failed: {type(error).__name__}"]
    return found


@dataclass(frozen=True, slots=True)
class Difference:
    """What one subject's findings were and are; ``is_in_words`` where only the wording differs."""

    bank: str
    subject: str
    before: tuple[str, ...]
    now: tuple[str, ...]
    is_in_words: bool


NOT_RUN = "not run"
"""Stands for the findings of a subject of which nothing was found out."""


def differences(before: Found, now: Found) -> list[Difference]:
    """Return the subjects whose findings differ, those of substance first.

    One that is not among those of ``now`` differs in substance, as those of a bank that has died;
    one that was not among those of ``before`` is new.
    """
    told = []
    for bank in before:
        for subject, one in before[bank].items():
            other = now.get(bank, {}).get(subject, [NOT_RUN])
            if one != other:
                same = sorted(map(_substance, one)) == sorted(map(_substance, other))
                told.append(Difference(bank, subject, tuple(one), tuple(other), same))
    return sorted(told, key=lambda each: (each.is_in_words, each.bank, each.subject))


def _substance(line: str) -> tuple[str, ...]:
    """Return code, severity and place of a finding that was written as text."""
    return tuple(line.split(" ")[:3])


def main() -> int:
    """Write the findings, or compare two such files; return 1 where they differ in substance."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="write the findings to this file")
    parser.add_argument("--bank", action="append", choices=BANKS, help="only this bank")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("BEFORE", "NOW"))
    parser.add_argument("--within", choices=BANKS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.within:
        json.dump(find(arguments.within), sys.stdout)
        return 0
    if arguments.compare:
        before, now = (json.loads(path.read_text(encoding="utf-8")) for path in arguments.compare)
        return _tell(differences(before, now))
    found: Found = {}
    for bank in arguments.bank or BANKS:
        print(f"{bank} ...", file=sys.stderr, flush=True)
        done = subprocess.run(
            [sys.executable, "-m", __spec__.name, "--within", bank],
            cwd=_ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
        lines = done.stdout.splitlines()
        # The programs of a bank may print; the last line is ours.
        found[bank] = (
            json.loads(lines[-1])
            if lines and not done.returncode
            else {"all": [f"failed: exit status {done.returncode}"]}
        )
        if arguments.out:
            arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def _tell(told: list[Difference]) -> int:
    for each in told:
        print(f"{each.bank}: {each.subject}{' (in words)' if each.is_in_words else ''}")
        for line in each.before:
            print(f"  - {line}")
        for line in each.now:
            print(f"  + {line}")
    of_substance = sum(not each.is_in_words for each in told)
    print(f"{of_substance} subjects differ, {len(told) - of_substance} more in words alone")
    return 1 if of_substance else 0


if __name__ == "__main__":
    sys.exit(main())
