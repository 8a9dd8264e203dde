"""Where the report of an audit goes when the audit ends."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import threading

import pytest
import torch

import gradcheck_suite as gs
from gradcheck_suite.errors import UsageError
from tests import warm_python

PROGRAM = """\
import sys
import torch
import gradcheck_suite as gs

weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight], lr=0.1)

def train(steps=3, clear=False):
    for _ in range(steps):
        if clear:
            optimizer.zero_grad()
        (weight * weight).sum().backward()
        optimizer.step()

"""
TOLD = "gradcheck-suite audit: 1 error in program.py (3 steps watched)"


@pytest.fixture
def run(tmp_path):
    def run(program, **options):
        (tmp_path / "program.py").write_text(PROGRAM + program)
        return warm_python.run(["program.py"], cwd=tmp_path, **options)

    return run


def test_a_block_tells_what_it_found(run):
    done = run("with gs.audit():\n    train()\nprint('after', file=sys.stderr)\n")
    assert (done.returncode, done.stdout) == (0, "")
    *lines, told, after = done.stderr.splitlines()
    assert lines[:2] == ["", "error GCS301 missing-zero-grad  program.py:13 in train()"]
    assert (told, after) == (TOLD, "after")
    assert "\x1b" not in done.stderr


def test_a_terminal_gets_it_in_colour(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM + "with gs.audit():\n    train()\n")
    main, terminal = pty.openpty()
    process = warm_python.start(
        ["program.py"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    os.close(terminal)
    said = b""
    try:
        while piece := os.read(main, 4096):
            said += piece
    except OSError:  # the other end is closed
        pass
    assert process.wait(timeout=60) == 0
    assert b"\x1b[1;31merror GCS301\x1b[0m" in said


def test_a_decorated_function_tells_and_keeps_its_session(run):
    done = run(
        "@gs.audit()\ndef fit(depth=2):\n    fit(depth - 1) if depth else train()\n"
        "fit()\nprint(fit.audit_session.report.summary['steps'], len(fit.audit_session.findings))\n"
    )
    assert done.stdout == "3 1\n"
    assert done.stderr.splitlines()[-1] == TOLD


def test_a_session_that_ends_again_repeats_nothing(run):
    done = run("session = gs.audit()\nfor _ in range(6):\n    with session:\n        train(1)\n")
    assert done.stderr.count("gradcheck-suite audit: 1 error") == 1


def test_nothing_to_say_is_silence(run):
    done = run(
        "with gs.audit():\n    train(clear=True)\nwith gs.audit():\n    weight.sum().backward()"
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_a_block_in_which_nothing_was_trained_says_so(run):
    done = run("with gs.audit():\n    weight.sum()\n")
    told = "gradcheck-suite audit: no training seen: 0 steps, 0 backwards in this process"
    assert done.stderr.splitlines()[-1] == told


BROKEN = """\
from gradcheck_suite.auditing.detectors.step_order.missing_zero_grad import MissingZeroGradDetector
def broken(self, *_):
    raise RuntimeError("our own")
MissingZeroGradDetector.NAME = broken
with gs.audit():
    train()
print("after")
"""


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", ["_begin_step", "findings", "not_covered"])
def test_a_bug_of_ours_is_told_and_costs_the_program_nothing(run, name):
    done = run(BROKEN.replace("NAME", name))
    assert (done.returncode, done.stdout) == (0, "after\n")
    assert "MissingZeroGradDetector: RuntimeError: our own (a bug in gradcheck-suite)" in (
        " ".join(done.stderr.split())
    )


def test_a_report_that_cannot_be_drawn_is_told_shortly(run):
    done = run(
        "from gradcheck_suite.reporting import console\ndef broken(*_, **__):\n    1 / 0\n"
        "console.render_for = broken\nwith gs.audit():\n    train()\nprint('after')\n"
    )
    assert (done.returncode, done.stdout) == (0, "after\n")
    assert "internal error: the report can't be drawn: ZeroDivisionError" in done.stderr
    assert "program.py:13: GCS301 [error]" in done.stderr


def test_false_says_nothing(run):
    done = run("with gs.audit(report=False) as session:\n    train()\nprint(session.report)\n")
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == TOLD


RAISING = """\
error = ValueError("mine")
try:
    with gs.audit(REPORT):
        train()
        raise error
except ValueError as caught:
    print(caught is error, caught.__context__, caught.__cause__)
"""


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(
    ("report", "said"),
    [
        ("", TOLD),
        ("report=lambda report: 1 / 0", "the function that was given the report raised Zero"),
        ("report=lambda report: sys.exit(7)", "the function that was given the report raised Sys"),
        ("report='no/such/folder/report.json'", TOLD),
    ],
)
def test_the_programs_exception_arrives_unchanged_whatever_becomes_of_the_report(run, report, said):
    done = run(RAISING.replace("REPORT", report))
    assert (done.returncode, done.stdout) == (0, "True None None\n")
    assert said in done.stderr


def test_an_exception_that_ends_the_program_comes_after_the_report(run):
    done = run("with gs.audit():\n    train()\n    raise ValueError('mine')\n")
    assert done.returncode == 1
    report, traceback = done.stderr.split("Traceback")
    assert TOLD in report
    assert traceback.endswith("ValueError: mine\n")
    assert "gradcheck_suite" not in traceback


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(
    "closing",
    [
        "sys.stderr.close()",
        "sys.stderr = None",
        "import os; os.close(2)",
        "sys.stderr = open('/dev/full', 'w')",
    ],
)
def test_a_standard_error_that_takes_nothing_costs_nothing(run, closing):
    done = run(
        f"{closing}\n{RAISING.replace('REPORT', '')}import os; sys.stdout.flush(); os._exit(0)"
    )
    assert (done.returncode, done.stdout) == (0, "True None None\n")


def test_a_forked_child_that_leaves_the_block_says_nothing(run):
    done = run(
        "import os\nwith gs.audit():\n    train()\n    child = os.fork()\n"
        "if child:\n    os.wait()\n"
    )
    assert done.stderr.count("gradcheck-suite audit: 1 error") == 1


@pytest.mark.slow
def test_a_process_of_multiprocessing_tells_of_its_own_audit(run):
    done = run(
        "import multiprocessing\n\n@gs.audit()\ndef fit():\n    train()\n\n"
        "if __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('fork').Process(target=fit)\n"
        "    with gs.audit(report=False):\n        child.start()\n        child.join()\n"
    )
    assert done.returncode == 0
    assert done.stderr.count(TOLD) == 1


def train(steps=3):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(steps):
        weight.sum().backward()
        optimizer.step()


def test_within_a_test_pytest_tells(capfd):
    with gs.audit() as session:
        train()
    assert session.findings
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("report.html", "<!doctype html>"),
        ("report.json", '{\n  "schema": 1'),
        ("report.sarif", "{"),
        ("REPORT.XML", "<?xml"),
        ("report.md", "## "),
        ("report.txt", "error GCS301"),
    ],
)
def test_a_file_gets_the_format_of_its_suffix(tmp_path, monkeypatch, name, begins):
    monkeypatch.chdir(tmp_path)
    with gs.audit(report=name):
        train()
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
    written = (tmp_path / name).read_text()
    assert written.startswith(begins)
    assert "GCS301" in written
    if name.endswith("sarif"):
        assert json.loads(written)["version"] == "2.1.0"


def test_a_file_is_written_though_nothing_was_found(tmp_path):
    with gs.audit(report=tmp_path / "report.json"):
        pass
    assert json.loads((tmp_path / "report.json").read_text())["findings"] == []


def test_a_function_is_given_the_report_and_may_raise():
    given = []
    with gs.audit(report=given.append) as session:
        train()
    assert given == [session.report]
    with pytest.raises(gs.FindingsError), gs.audit(report=gs.Report.raise_for_findings):
        train()
    from gradcheck_suite.auditing.session import open_sessions

    assert open_sessions() == ()


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (3, "report must be a bool, a function that takes the report, or the path of a file"),
        ("", "report must be a bool, a function"),
        ("report.pdf", "report='report.pdf': expected a file name that ends in .txt, .sarif.json"),
        ("report", "which says the format"),
    ],
)
def test_a_report_that_can_go_nowhere_is_refused_at_once(report, words):
    with pytest.raises(UsageError) as info:
        gs.audit(report=report)
    assert words in str(info.value)


def test_threads_that_share_a_decorated_function_end_in_one_report():
    given = []

    @gs.audit(report=given.append)
    def fit(barrier):
        barrier.wait()
        train(2)
        barrier.wait()

    barrier = threading.Barrier(2)
    threads = [threading.Thread(target=fit, args=(barrier,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [report.summary["steps"] for report in given] == [4]
    assert fit.audit_session.report == given[0]
