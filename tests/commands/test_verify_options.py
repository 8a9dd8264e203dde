"""The options of ``gradcheck-suite verify`` that deepen or bound a check, and Ctrl-C."""

from __future__ import annotations

import argparse
import json
import os
import pty
import signal
import subprocess
import sys
import time

import pytest

from gradcheck_suite.cli import main
from gradcheck_suite.commands._shared import seconds as read_seconds
from gradcheck_suite.commands.verify import _bytes, _names

SCRIPT = """\
import time

import torch
from torch import nn


def right(x):
    return x.sin()


def slow(x):
    time.sleep(0.05)
    return x.sin()


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad_output * 1.5


def endless(x, y):
    endless.calls += 1
    if endless.calls == 12:
        print("measuring", flush=True)
    if endless.calls > 12:
        time.sleep(0.2)
    return x.sin() * y.exp()


endless.calls = 0


def one():
    return torch.linspace(-1.0, 1.0, 6, dtype=torch.float64, requires_grad=True)


def two():
    return one(), one()
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "layers.py").write_text(SCRIPT)
    return tmp_path


def command(target, inputs, *options):
    named = [f"layers.py:{target}", "--inputs", f"layers.py:{inputs}"]
    return [sys.executable, "-m", "gradcheck_suite", "verify", *named, *options]


@pytest.fixture
def verify(folder, monkeypatch, capsys):
    """Run the command in this process: its status, standard output and standard error."""
    monkeypatch.chdir(folder)

    def run(*arguments):
        try:
            status = main(command(*arguments)[3:])
        except SystemExit as stop:
            status = stop.code
        seen = capsys.readouterr()
        return status, seen.out, seen.err

    return run


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("1h", 3600), (" 2 m ", 120)]
)
def test_times_are_read(text, seconds):
    assert read_seconds(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [("1024", 1024), ("1K", 1024), ("512M", 2**29), ("2GiB", 2**31), ("1.5gb", 3 * 2**29)],
)
def test_sizes_are_read(text, size):
    assert _bytes(text) == size


@pytest.mark.parametrize("text", ["0", "-1", "", "soon", "1d", "nan"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="expected a time of more than 0"):
        read_seconds(text)


@pytest.mark.parametrize("text", ["0", "-1", "", "much", "1X"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="expected a size of at least 1 byte"):
        _bytes(text)


def test_names_are_split_at_commas():
    assert _names(None) is None
    assert _names("none") == []
    assert _names("transposed, signs") == ["transposed", "signs"]


def test_the_options_reach_the_check(verify):
    options = ["--order", "1", "--full", "--variations", "none", "--max-memory", "64M"]
    status, out, err = verify("right", "one", *options, "--output-format", "json")
    assert (status, err) == (0, "")
    report = json.loads(out)
    assert report["summary"]["verdicts"] == {"pass": 1}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--order", "3"], "invalid choice: 3"),
        (["--variations", "sideways"], "variations has 'sideways', which is no variation"),
        (["--time-limit", "never"], "expected a time of more than 0"),
        (["--max-memory", "0"], "expected a size of at least 1 byte"),
    ],
)
def test_bad_values_are_usage_errors(verify, options, words):
    status, _, err = verify("right", "one", *options)
    assert status == 2
    assert words in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "output_format", ["full", "concise", "json", "sarif", "github", "markdown"]
)
def test_every_format_tells_a_wrong_gradient(verify, output_format):
    options = ["--order", "1", "--variations", "none", "--output-format", output_format]
    status, out, _ = verify("Cube", "one", *options)
    assert status == 1
    assert "GCS601" in out
    assert "1.5 times the numeric one" in " ".join(out.split())


@pytest.mark.slow
def test_ctrl_c_leaves_what_was_concluded_and_status_130(folder):
    process = subprocess.Popen(
        command("endless", "two", "--output-format", "json", "--output-file", "report.json"),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "measuring\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    report = json.loads((folder / "report.json").read_text())

    assert process.returncode == 130
    assert "gradcheck-suite: interrupted at: first order" in errors
    assert "Traceback" not in errors
    counted = report["summary"]["verdicts"]
    assert sum(counted.values()) == 2
    assert "fail" not in counted


def test_nothing_is_drawn_into_a_pipe(verify):
    status, _, err = verify("slow", "one", "--order", "1", "--variations", "none")
    assert (status, err) == (0, "")


@pytest.mark.slow
def test_a_long_check_is_seen_to_be_alive_on_a_terminal(folder):
    screen, terminal = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    process = subprocess.Popen(
        command("endless", "two", "--output-file", "report.txt"),
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=terminal,
        env=environment | {"TERM": "xterm"},
    )
    os.close(terminal)
    seen = b""
    deadline = time.monotonic() + 60.0
    while b"Checking" not in seen and time.monotonic() < deadline:
        seen += os.read(screen, 4096)
    process.send_signal(signal.SIGINT)
    while True:
        try:
            more = os.read(screen, 4096)
        except OSError:
            break
        if not more:
            break
        seen += more
    assert process.wait(timeout=60) == 130, seen.decode()
    assert b"Checking layers.py:endless" in seen
