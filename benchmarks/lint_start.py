"""What gradcheck-lint costs on a file that never mentions torch: CPU time of a whole process."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import Benchmark, Contender, measure, run_as_command

GOAL_MS = 150.0


def run() -> Benchmark:
    """Start bare Python and gradcheck-lint in turn."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plain.py"
        file.write_text("import json\n\nprint(json.dumps({}))\n")
        rows = measure(
            [
                Contender("python -c pass", lambda: _start("-c", "pass")),
                Contender(
                    "gradcheck-lint plain.py", lambda: _start("-m", "gradcheck_lint", str(file))
                ),
            ],
            rounds=21,
            clock=_children_cpu_seconds,
        )
    above = rows[1].milliseconds - rows[0].milliseconds
    return Benchmark(
        title="Start of gradcheck-lint on a file without torch in its text",
        command="python -m benchmarks.lint_start",
        unit="process (CPU)",
        rows=rows,
        goal=f"under {GOAL_MS:.0f} ms above bare Python ({above:.0f} ms)",
        met=above < GOAL_MS,
    )


def _start(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)


def _children_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    sys.exit(run_as_command(run))
