"""How commands end when the user's code, or what they write to, ends them early."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gradcheck_lint.cli import main as lint
from gradcheck_suite import cli
from tests import warm_python

FILE = """\
import sys
import torch


def stops(x=None):
    sys.exit(0)


def stops_at_text():
    sys.exit("no data")


def pipe(x=None):
    raise BrokenPipeError("a pipe of its own")


def square(x):
    return (x * x).sum()


def half(x):
    return Half.apply(x)


class Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * x


class Net(torch.nn.Module):
    def forward(self, x):
        return x.sum()


def inputs():
    return torch.randn(3, dtype=torch.float64, requires_grad=True)


def needs(shape):
    return torch.randn(shape)
"""


@pytest.fixture
def model(tmp_path, monkeypatch):
    (tmp_path / "model.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["graph", "model.py:stops"], "0", 6),
        (["graph", "model.py:stops_at_text"], "'no data'", 10),
        (["verify", "model.py:stops", "--inputs", "model.py:inputs"], "0", 6),
        (["verify", "model.py:square", "--inputs", "model.py:stops"], "0", 6),
    ],
)
def test_code_that_ends_the_process_has_passed_nothing(model, capsys, words, code, line):
    assert cli.main(words) == 2
    said = capsys.readouterr().err
    assert f"{words[0]} stopped because your code ended the process: sys.exit({code})" in said
    assert f" at model.py:{line}. " in said


def test_a_script_without_a_guard_has_passed_nothing(model, capsys):
    (model / "train.py").write_text("import sys\nsys.exit(None)\n")
    assert cli.main(["graph", "train.py:loss"]) == 2
    assert 'under `if __name__ == "__main__":`' in capsys.readouterr().err


def test_a_broken_pipe_of_the_users_is_their_exception(model, capsys):
    assert cli.main(["verify", "model.py:pipe", "--inputs", "model.py:inputs"]) == 2
    said = capsys.readouterr().err
    assert said.count("BrokenPipeError: a pipe of its own") == 1
    assert "verify stopped at the BrokenPipeError above, raised by your code" in said


@pytest.mark.parametrize("command", ["verify", "graph"])
def test_a_maker_of_inputs_that_needs_arguments(model, capsys, command):
    assert cli.main([command, "model.py:square", "--inputs", "model.py:needs"]) == 2
    said = capsys.readouterr().err
    assert "--inputs model.py:needs can't be called without arguments: missing a required" in said
    assert "internal error" not in said


def test_a_module_class_is_made_and_needs_inputs_as_a_module_does(model, capsys):
    assert cli.main(["graph", "model.py:Net"]) == 2
    assert "or give a module its --inputs" in capsys.readouterr().err
    assert cli.main(["graph", "model.py:Net", "--inputs", "model.py:inputs"]) == 0


def test_a_function_that_returns_no_tensor_is_named(model, capsys):
    (model / "loss.py").write_text("def loss():\n    return None\n")
    assert cli.main(["graph", "loss.py:loss"]) == 2
    said = capsys.readouterr().err
    assert "there is no tensor in what loss returns (NoneType). Return the loss, or a list" in said


def test_verify_says_the_same_of_inputs_that_are_drawn(model, capsys):
    words = ["verify", "model.py:half", "--inputs", "model.py:inputs", "--output-format", "concise"]
    reports = []
    for seed in ("0", "0", "1"):
        assert cli.main([*words, "--seed", seed]) == 1
        reports.append(capsys.readouterr().out)
    assert reports[0] == reports[1] != reports[2]


def test_a_browser_that_is_missing_is_told(model, capsys, monkeypatch):
    (model / "loss.py").write_text(
        "import torch\n\n\ndef loss():\n    return torch.ones(2, requires_grad=True).sum()\n"
    )
    monkeypatch.setattr("webbrowser.open", lambda _: False)
    assert cli.main(["graph", "loss.py:loss", "-o", "graph.html", "--open"]) == 0
    assert "there is no browser here to open graph.html" in capsys.readouterr().err


COMMANDS = [
    ["gradcheck_suite", "rules"],
    ["gradcheck_suite", "rules", "--output-format", "json"],
    ["gradcheck_suite", "explain", "GCS301"],
    ["gradcheck_suite", "graph", "loss.py:loss"],
    ["gradcheck_lint", "loss.py"],
    ["gradcheck_lint", "rules"],
    ["gradcheck_lint", "explain", "GCS301"],
]


def named(words):
    return " ".join(words)


def run(words, **options):
    return warm_python.run(["-m", *words], **options)


def run_without(stream, words, folder):
    """Run with a standard stream that is closed before Python starts."""
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        preexec_fn=lambda: os.close(stream),
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


@pytest.fixture
def loss(tmp_path):
    (tmp_path / "loss.py").write_text(
        "import torch\n\n\ndef loss():\n    return torch.ones(2, requires_grad=True).sum()\n"
    )
    return tmp_path


@pytest.mark.sampled(every=7)
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")  # noqa: PTH110
@pytest.mark.parametrize("words", COMMANDS, ids=named)
def test_a_full_disk_is_told_as_one(words, loss):
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        done = run(words, stdout=full, cwd=loss)
    assert done.returncode == 2
    assert "standard output: No space left on device" in done.stderr
    assert "internal error" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.sampled(every=7)
@pytest.mark.skipif(os.name != "posix", reason="closes a file descriptor")
@pytest.mark.parametrize("words", COMMANDS, ids=named)
def test_a_closed_standard_output(words, loss):
    done = run_without(1, words, loss)
    assert done.returncode == 0
    assert done.stderr.count("standard output is closed; what belongs there goes to") == 1
    assert len(done.stderr.splitlines()) > 1


@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
def test_ctrl_c_within_code_made_of_a_string_ends_in_the_same_status(tmp_path):
    # As a dataclass is made; CPython then means to die of the signal, which is status -2 here.
    (tmp_path / "made.py").write_text(
        "def loss():\n"
        "    exec('import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(9)')\n"
    )
    done = run(["gradcheck_suite", "graph", "made.py:loss"], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (130, "gradcheck-suite: interrupted\n")


@pytest.mark.skipif(os.name != "posix", reason="closes a file descriptor")
@pytest.mark.slow
def test_a_closed_standard_error_leaves_the_status(loss):
    done = run_without(2, ["gradcheck_suite", "graph", "loss.py:none"], loss)
    assert done.returncode == 2


def test_a_closed_standard_input(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", None)
    assert lint(["-"]) == 2
    assert "standard input (-) is closed" in capsys.readouterr().err
