"""``gradcheck-suite verify`` as people run it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests import warm_python

SCRIPT = """\
import torch
from torch import nn


class Slope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, slope):
        ctx.save_for_backward(x, slope)
        return torch.where(x > 0, x, x * slope)

    @staticmethod
    def backward(ctx, grad_output):
        x, slope = ctx.saved_tensors
        negative = x.clamp(max=0)
        return torch.where(x > 0, grad_output, grad_output * slope), grad_output * negative * 0.5


def right(x, slope):
    return torch.where(x > 0, x, x * slope)


def broken(x, slope):
    raise ZeroDivisionError("in the user's code")


def two(x, *, scale):
    return x * scale, x.detach() * scale


net = nn.Linear(3, 2)


def make_inputs():
    x = torch.linspace(-1.0, 1.0, 6, requires_grad=True)
    return x, torch.full((6,), 0.25, requires_grad=True)


def one_tensor():
    return torch.ones(4, 3)


def by_name():
    x, slope = make_inputs()
    return {"slope": slope, "x": x}


def both():
    x, scale = make_inputs()
    return (x,), {"scale": scale}


values = make_inputs()
"""


@pytest.fixture
def verify(tmp_path):
    (tmp_path / "layers.py").write_text(SCRIPT)

    def run(target, inputs, *options):
        words = ["verify", f"layers.py:{target}", "--inputs", f"layers.py:{inputs}", *options]
        return warm_python.run(["-m", "gradcheck_suite", *words], cwd=tmp_path)

    return run


def test_a_wrong_function_is_reported_with_its_line(verify):
    done = verify("Slope", "make_inputs")
    assert done.returncode == 1
    assert "GCS601" in done.stdout
    assert "layers.py:15" in done.stdout
    assert "`slope` is 0.5 times the numeric one" in " ".join(done.stdout.split())
    assert done.stderr == ""


def test_code_that_closes_standard_output_keeps_its_report(verify, tmp_path):
    closing = "\nimport sys\nsys.stdout.close()\n"
    (tmp_path / "layers.py").write_text(SCRIPT + closing)
    done = verify("Slope", "make_inputs", "--output-format", "concise")
    assert (done.returncode, done.stdout) == (1, "")
    assert "standard output was closed by your code" in done.stderr
    assert "GCS601" in done.stderr
    assert "internal error" not in done.stderr


def test_a_right_function_passes(verify):
    done = verify("right", "make_inputs")
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 pass" in done.stdout


def test_a_module_and_a_single_tensor(verify):
    done = verify("net", "one_tensor", "--output-format", "json")
    report = json.loads(done.stdout)
    assert done.returncode == 0
    assert report["findings"] == []
    assert report["summary"]["dtype"] == "native (float32)"


def test_keyword_inputs_and_options(verify):
    options = ["--dtype", "float64", "--seed", "3", "--probes", "1", "--output-format", "json"]
    done = verify("right", "by_name", *options)
    summary = json.loads(done.stdout)["summary"]
    assert done.returncode == 0
    assert (summary["dtype"], summary["seed"], summary["probes"]) == ("float64", 3, 1)


@pytest.mark.slow
def test_positional_and_keyword_inputs_and_a_skipped_output(verify):
    assert verify("two", "both").returncode == 1
    assert verify("two", "both", "--skip-output", "output[1]").returncode == 0


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize(
    ("target", "inputs", "options", "words"),
    [
        ("rigth", "make_inputs", [], "did you mean 'right'?"),
        (
            "right",
            "values",
            [],
            "layers.py:values names an object of type tuple, expected a function without",
        ),
        ("right", "one_tensor", [], "right(x, slope) can't be called with the given inputs"),
        ("right", "make_inputs", ["--probes", "0"], "probes must be a positive integer"),
        ("right", "make_inputs", ["--dtype", "half"], "invalid choice: 'half'"),
    ],
)
def test_usage_errors_have_status_2_and_no_traceback(verify, target, inputs, options, words):
    done = verify(target, inputs, *options)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_the_users_exception_is_shown_with_the_users_lines(verify):
    done = verify("broken", "make_inputs")
    assert done.returncode == 2
    assert "ZeroDivisionError: in the user's code" in done.stderr
    assert "layers.py" in done.stderr
    assert "gradcheck_suite/verification" not in done.stderr


def test_help_needs_no_torch():
    code = (
        "import sys, contextlib, io\n"
        "from gradcheck_suite.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):\n"
        "    main(['verify', '--help'])\n"
        "print('torch' in sys.modules, '--inputs' in out.getvalue())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


@pytest.mark.slow
def test_a_script_that_shows_it_is_written(verify, tmp_path):
    done = verify("Slope", "make_inputs", "--reproduce", "shows_it.py")
    assert done.returncode == 1
    assert "wrote shows_it.py, which shows it" in done.stderr
    shown = warm_python.run(["shows_it.py"], cwd=tmp_path)
    assert shown.returncode == 1
    assert "WRONG" in shown.stdout
