"""What is paid before any work: CPU time of whole processes.

``import gradcheck_suite``, ``gradcheck-lint --help``, and gradcheck-lint on a file that never
mentions torch.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import Benchmark, Contender, measure, run_as_command

IMPORT_MS = 60.0
HELP_MS = 120.0
LINT_MS = 150.0


def run() -> Benchmark:
    """Start bare Python and gradcheck-lint in turn."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plain.py"
        file.write_text("import json\n\nprint(json.dumps({}))\n")
        rows = measure(
            [
                Contender("python -c pass", lambda: _start("-c", "pass")),
                Contender("import gradcheck_suite", lambda: _start("-c", "import gradcheck_suite")),
                Contender(
                    "gradcheck-lint --help", lambda: _start("-m", "gradcheck_lint", "--help")
                ),
                Contender(
                    "gradcheck-lint plain.py", lambda: _start("-m", "gradcheck_lint", str(file))
                ),
            ],
            rounds=21,
            clock=_children_cpu_seconds,
        )
    bare, imported, helped, linted = (row.milliseconds for row in rows)
    return Benchmark(
        title="Start, and gradcheck-lint on a file without torch in its text",
        command="python -m benchmarks.lint_start",
        unit="process (CPU)",
        rows=rows,
        goal=(
            f"the import at most {IMPORT_MS:.0f} ms above bare Python ({imported - bare:.0f} ms), "
            f"--help at most {HELP_MS:.0f} ms ({helped:.0f} ms), a file under {LINT_MS:.0f} ms "
            f"above bare Python ({linted - bare:.0f} ms)"
        ),
        met=imported - bare <= IMPORT_MS and helped <= HELP_MS and linted - bare < LINT_MS,
    )


def _start(*arguments: str) -> None:
    # With compiled files, as pip leaves them: the first round, which does not count, writes them.
    env = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, *arguments]
    subprocess.run(command, check=True, env=env, stdout=subprocess.DEVNULL)


def _children_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    sys.exit(run_as_command(run))
