"""What the plugin adds to the start of pytest: CPU time of `pytest --co` in an empty folder."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile

from benchmarks.harness import Benchmark, Contender, measure, run_as_command

GOAL_MS = 10.0


def run() -> Benchmark:
    """Collect nothing, without the plugin and with it, in turn."""
    # Without bytecode of its own, unlike pytest, the plugin would be compiled at each start.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as folder:

        def collect(*arguments: str) -> None:
            subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "pytest",
                    "--co",
                    "-q",
                    "-p",
                    "no:cacheprovider",
                    # Loads hypothesis at the end of any run: 40 times what is measured here.
                    "-p",
                    "no:hypothesispytest",
                    # These load numpy and asyncio, whatever we do.
                    "-p",
                    "no:randomly",
                    "-p",
                    "no:asyncio",
                    *arguments,
                ],
                check=False,  # 5: nothing collected
                cwd=folder,
                env=environment,
                stdout=subprocess.DEVNULL,
            )

        rows = measure(
            [
                Contender("-p no:gradcheck_suite", lambda: collect("-p", "no:gradcheck_suite")),
                Contender("with the plugin", collect),
            ],
            rounds=121,
            clock=_children_cpu_seconds,
        )
    # The median of the ratios within a round is steadier than the difference of two medians.
    above = rows[0].milliseconds * (rows[1].ratio - 1)
    return Benchmark(
        title="What the plugin adds to pytest --co of an empty suite",
        command="python -m benchmarks.plugin_start",
        unit="process (CPU)",
        rows=rows,
        goal=f"at most {GOAL_MS:.0f} ms more ({above:.1f} ms)",
        met=above <= GOAL_MS,
    )


def _children_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    sys.exit(run_as_command(run))
