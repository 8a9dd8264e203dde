"""``gradcheck-suite localize`` as people run it, and where ``verify`` sends them to it."""

from __future__ import annotations

import json
import sys

import pytest

import gradcheck_suite as gs
from gradcheck_suite import cli
from tests import warm_python

SCRIPT = """\
import torch
from torch import nn


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.softmax(-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return y * grad


class Block(nn.Module):
    def __init__(self, width, softmax):
        super().__init__()
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, width)
        self.softmax = softmax

    def forward(self, x):
        return x + self.out(self.softmax(self.norm(x)))


class Net(nn.Module):
    def __init__(self, width=4, softmax=Softmax.apply):
        super().__init__()
        self.blocks = nn.Sequential(Block(width, softmax), Block(width, softmax))
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        return self.head(self.blocks(x))


class Needs(nn.Module):
    def __init__(self, width):
        super().__init__()


wrong = Net()
right = Net(softmax=nn.Softmax(-1))


def make_wrong(width=4):
    return Net(width)


def use_wrong(x=None):
    return wrong(x)


def fails():
    raise KeyError("weights.pt")


def bad_loss(out):
    return Softmax.apply(out).square().sum()


def make_inputs():
    return torch.randn(3, 4)


def make_both():
    return (make_inputs(),), {}


def make_wide():
    return torch.randn(3, 5)
"""


@pytest.fixture
def model(tmp_path, monkeypatch):
    (tmp_path / "deep_model.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    yield tmp_path
    sys.modules.pop("deep_model", None)


@pytest.fixture
def run(model, capsys):
    """Run a command in this process; return its status, output and complaints."""

    def command(name, target, *options, inputs="make_inputs"):
        words = [name, f"deep_model.py:{target}", "--inputs", f"deep_model.py:{inputs}", *options]
        status = cli.main(words)
        said = capsys.readouterr()
        return status, said.out, said.err

    return command


def test_the_wrong_calls_of_a_module_are_named_with_their_lines(model):
    command = "localize deep_model.py:wrong --inputs deep_model.py:make_inputs --output-format json"
    done = warm_python.run(["-m", "gradcheck_suite", *command.split()])
    assert (done.returncode, done.stderr) == (1, "")
    report = json.loads(done.stdout)
    assert report["tool"] == "gradcheck-suite localize"
    assert [
        (one["code"], one["line"], one["evidence"]["module"]) for one in report["findings"]
    ] == [("GCS601", 15, "blocks.0"), ("GCS601", 15, "blocks.1")]


def test_a_right_module_passes(run):
    status, text, complaints = run("localize", "right")
    assert (status, complaints) == (0, "")
    assert "gradcheck-suite localize: nothing found" in text


@pytest.mark.parametrize("target", ["Net", "make_wrong", "use_wrong"])
def test_a_class_a_factory_and_a_function_are_targets_too(run, target):
    status, text, _ = run("localize", target, "--output-format", "concise", "--level", "functions")
    assert status == 1
    assert text.startswith("deep_model.py:15: GCS601 [error] Softmax, applied in ")


def test_the_calls_of_the_loss_are_looked_at(run):
    options = ("--loss", "deep_model.py:bad_loss", "--output-format", "concise")
    status, text, _ = run("localize", "right", *options, inputs="make_both")
    assert status == 1
    assert "Softmax, applied in the model" in text


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        ("rihgt", (), "deep_model.py has no 'rihgt'; did you mean 'right'?"),
        ("Needs", (), "deep_model.py:Needs is a module class that can't be made without arguments"),
        ("Softmax", (), "Softmax is an autograd.Function, and nothing inside of it"),
        ("right", ("--loss", "deep_model.py:los"), "deep_model.py has no 'los'"),
        ("right", ("--loss", "deep_model.py:__name__"), "loss must be a function of what"),
    ],
)
def test_usage_errors_have_status_2(run, target, options, words):
    status, text, complaints = run("localize", target, *options)
    assert (status, text) == (2, "")
    assert words in complaints
    assert "Traceback" not in complaints


def test_what_a_factory_raises_is_the_users(run):
    status, _, complaints = run("localize", "fails")
    assert status == 2
    assert "KeyError: 'weights.pt'" in complaints


def test_an_exception_inside_of_the_model_is_shown_without_our_frames(run):
    status, _, complaints = run("localize", "right", inputs="make_wide")
    assert status == 2
    first, second, *_ = complaints.splitlines()
    assert first == "Traceback (most recent call last):"
    assert "deep_model.py" in second
    assert "gradcheck_suite/" not in complaints


def test_ctrl_c_leaves_a_report_on_what_was_concluded(run, model):
    (model / "deep_model.py").write_text(
        SCRIPT
        + "\n\nruns = []\n\n\nclass Interrupted(Net):\n    def forward(self, x):\n"
        + "        runs.append(1)\n        if len(runs) > 1:\n            raise KeyboardInterrupt\n"
        + "        return super().forward(x)\n\n\n"
        + "class Right(torch.autograd.Function):\n"
        + "    forward = staticmethod(lambda ctx, x: 2 * x)\n"
        + "    backward = staticmethod(lambda ctx, grad: 2 * grad)\n\n\n"
        + "interrupted = Interrupted(softmax=Right.apply)\n"
    )
    status, text, complaints = run("localize", "interrupted")
    assert status == 130
    assert "blocks.0: Right wrt its inputs and parameters" in text
    assert "interrupted: leaf modules were not all probed, nor what comes after" in text
    assert complaints.endswith("gradcheck-suite: interrupted at: leaf modules\n")


@pytest.mark.slow
def test_verify_takes_factories_and_gives_the_command_to_look_inside(run):
    status, text, _ = run("verify", "make_wrong", "--seed", "3")
    assert status == 1
    (command,) = (line.strip() for line in text.splitlines() if " localize " in line)
    assert command == (
        "gradcheck-suite localize deep_model.py:make_wrong --inputs deep_model.py:make_inputs "
        "--seed 3"
    )
    assert cli.main(command.split()[1:]) == 1
    assert text.count("analytic and numeric gradient differ") == 1


@pytest.mark.slow
def test_a_report_of_check_gradients_names_the_function_to_look_inside_with(model):
    import torch
    from deep_model import Softmax, right, wrong

    found = gs.check_gradients(wrong, torch.randn(3, 4)).findings
    hints = [one.hint for one in found if "gs.localize(model, inputs)" in (one.hint or "")]
    assert len(hints) == 1
    assert gs.check_gradients(right, torch.randn(3, 4)).findings == ()
    # A Function by itself has nothing inside.
    (alone,) = gs.check_gradients(Softmax, torch.randn(4, requires_grad=True)).findings
    assert "localize" not in (alone.hint or "")
