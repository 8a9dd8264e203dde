"""The digits example end to end: every planted mistake found, nothing said of the repair."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradcheck_suite.commands.demo import _rule
from tests import warm_python

DIGITS = Path(__file__).parents[2] / "examples" / "digits"

# (code, the source line that the finding is about)
PLANTED = {
    ("GCS101", "temperature -= 0.1 * temperature.grad"),
    # Two facts about one line: it writes past autograd, and what it overwrites was saved.
    ("GCS104", "x.data.add_(0.1 * torch.randn_like(x))"),
    ("GCS105", "x.data.add_(0.1 * torch.randn_like(x))"),
    ("GCS201", "losses.append(loss)"),
    ("GCS301", "optimizer.step()"),
    ("GCS403", "def forward(self, images):"),
    ("GCS507", "ctx.save_for_backward(x, gate)"),
    # The audit tells what got no gradient; verification and source, which expression gives none.
    ("GCS508", "def backward(ctx, grad_output):"),
    ("GCS508", "return grad_output * gate, None"),
    ("GCS601", "return grad_output * gate, None"),
}


def run_demo(*options: str) -> subprocess.CompletedProcess[str]:
    return warm_python.run(["-m", "gradcheck_suite", "demo", *options])


@pytest.fixture(scope="module")
def demo() -> tuple[subprocess.CompletedProcess[str], float]:
    start = time.perf_counter()
    done = run_demo("--output-format", "json")
    return done, time.perf_counter() - start


def test_each_planted_mistake_is_found_on_its_line_and_nothing_else(demo):
    done, _ = demo
    source = (DIGITS / "train.py").read_text().splitlines()
    found = {
        (
            finding["code"],
            source[finding["line"] - 1].strip() if finding["line"] is not None else None,
        )
        for finding in json.loads(done.stdout)["findings"]
    }
    assert found == PLANTED


def test_the_demo_succeeds_by_finding_mistakes_and_takes_under_a_minute(demo):
    done, seconds = demo
    assert done.returncode == 0, done.stderr
    assert seconds < 60


def test_all_four_parts_took_part(demo):
    done, _ = demo
    findings = json.loads(done.stdout)["findings"]
    finders = {finding["detector"] for finding in findings}
    finders.update(*(finding["evidence"].get("also_found_by", ()) for finding in findings))
    assert finders == {"lint", "audit", "verify", "graph"}


def test_what_lint_and_audit_both_see_is_told_once(demo):
    done, _ = demo
    findings = json.loads(done.stdout)["findings"]
    both = {f["code"] for f in findings if f["evidence"].get("also_found_by") == ["lint"]}
    assert both == {"GCS201", "GCS301", "GCS508"}


@pytest.mark.slow
def test_nothing_is_said_of_the_repaired_script():
    done = run_demo("--fixed", "--output-format", "json", "--fail-on", "note")
    assert json.loads(done.stdout)["findings"] == []
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_reader_sees_the_training_the_graph_and_the_report():
    done = run_demo("--fail-on", "error")
    assert done.returncode == 1
    for words in ("epoch 3: loss", "accuracy on held-out images", "ConvolutionBackward0", "GCS601"):
        assert words in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert done.stdout.splitlines()[-1].startswith("gradcheck-suite demo: 6 errors, 4 warnings")
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("file", "lines"),
    [
        ("train.py", ["gradcheck-suite verify train.py:Swish ─"]),
        ("x" * 80 + "/train.py", ["gradcheck-suite verify train.py:Swish ─", "x" * 80]),
    ],
)
def test_a_path_that_does_not_fit_in_a_heading_is_below_it(monkeypatch, file, lines):
    monkeypatch.setenv("COLUMNS", "80")
    stream = io.StringIO()
    _rule("gradcheck-suite verify", stream, "never", file=file, part=":Swish")
    written = stream.getvalue().split("\n")[1:-1]
    assert "…" not in stream.getvalue()
    assert [each[: len(begin)] for each, begin in zip(written, lines, strict=True)] == lines


@pytest.mark.slow
def test_ctrl_c_ends_the_demo_as_it_ends_every_command():
    with subprocess.Popen(
        [sys.executable, "-m", "gradcheck_suite", "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        for line in process.stdout:
            if line.startswith("epoch 1"):
                process.send_signal(signal.SIGINT)
                break
        said = process.stderr.read()
        process.stdout.read()
    assert (process.returncode, said) == (130, "gradcheck-suite: interrupted\n")


def test_the_table_of_planted_mistakes_in_the_readme_is_right():
    readme = (DIGITS / "README.md").read_text()
    source = (DIGITS / "train.py").read_text()
    for code, _ in PLANTED:
        (row,) = (line for line in readme.splitlines() if f"| {code} |" in line)
        assert row.split("`")[1] in source
