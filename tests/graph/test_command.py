"""``gradcheck-suite graph``: what was asked for and is not there is said, in words."""

from __future__ import annotations

import sys
import textwrap

import pytest

from gradcheck_suite.cli import main

PROGRAM = """
import torch

made_before = torch.ones(3, requires_grad=True).exp().sum()

def loss():
    return torch.ones(3, requires_grad=True).exp().sum()

def old():
    return made_before

def leaf():
    return torch.ones(3, requires_grad=True)

def no_graph():
    return torch.ones(2)

def many():
    return {"loss": loss()}

def nothing():
    return None

def freed():
    made = loss()
    made.backward()
    return made

def overwritten():
    y = torch.ones(3, requires_grad=True).exp()
    z = y * 1
    y.add_(1)
    return (y + z).sum()

def complex_valued():
    return torch.ones(3, dtype=torch.complex64, requires_grad=True) * 2

def held_by_hooks():
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        return loss()

def needs(x, y):
    return x * y

def one():
    return torch.ones(3, requires_grad=True)

async def later():
    return loss()

class Later:
    async def __call__(self):
        return loss()

called_later = Later()

class LaterModule(torch.nn.Module):
    async def forward(self, x):
        return x

module = LaterModule()

def pair():
    return {"x": torch.ones(3, requires_grad=True), "z": 2}
"""

HOOK = """
import torch

def fails(gradient):
    raise RuntimeError("not today")

def loss():
    y = torch.ones(3, requires_grad=True).exp()
    y.register_hook(fails)
    return y.sum()
"""


@pytest.fixture
def graph(tmp_path, monkeypatch, capsys):
    """Run ``gradcheck-suite graph`` and return its status, output and words."""
    (tmp_path / "viewed.py").write_text(textwrap.dedent(PROGRAM))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*arguments):
        try:
            status = main(["graph", *arguments])
        except SystemExit as stopped:
            status = stopped.code
        finally:
            sys.modules.pop("viewed", None)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        assert "internal error" not in err
        return status, " ".join(out.split()), " ".join(err.split())

    return run


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("source", "the source lines of 2 of 2 ops: they were made outside of the recording"),
        ("gradients", "what 1 op saved: a backward has freed it, and the recording did not see it"),
        ("source,saved,gradients", "nothing found (2 things not covered)"),
    ],
)
def test_a_graph_that_is_older_than_the_recording(graph, what, words):
    status, out, _ = graph("viewed.py:old", "--with", what)

    assert status == 0
    assert words in out


@pytest.mark.parametrize("what", ["source", "saved", "gradients", "source,saved,gradients"])
@pytest.mark.parametrize("function", ["loss", "leaf"])
def test_what_is_there_is_not_missed(graph, function, what):
    status, out, _ = graph(f"viewed.py:{function}", "--with", what)

    assert status == 0
    assert "not covered" not in out


def test_saved_tensors_that_only_hooks_know(graph):
    _, out, _ = graph("viewed.py:held_by_hooks", "--with", "saved")

    assert "1 saved tensor held by saved-tensor hooks" in out
    assert "at least 0 bytes" in out


@pytest.mark.parametrize("what", ["source", "saved", "gradients"])
@pytest.mark.parametrize("function", ["no_graph", "nothing"])
def test_no_graph_at_all(graph, function, what):
    status, _, err = graph(f"viewed.py:{function}", "--with", what)

    assert status == 2
    assert (
        "has no graph: requires_grad is False" in err
        or "there is no tensor in what" in err
        or "returned a NoneType, expected one tensor: return the loss" in err
    )


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("many", "returned a dict, expected one tensor: return the loss, or (loss, model)"),
        ("freed", "torch refused: Trying to backward through the graph a second time"),
        ("overwritten", "torch refused: one of the variables needed for gradient computation"),
        ("complex_valued", "returned a complex tensor, expected a real one"),
    ],
)
def test_gradients_that_can_not_be_had(graph, function, words):
    status, _, err = graph(f"viewed.py:{function}", "--with", "gradients")

    assert status == 2
    assert words in err


def test_what_code_of_the_user_s_raises_within_backward_is_shown_as_it_is(tmp_path, graph, capsys):
    (tmp_path / "viewed.py").write_text(HOOK)
    status = main(["graph", "viewed.py:loss", "--with", "gradients"])
    sys.modules.pop("viewed", None)

    err = capsys.readouterr().err
    assert status == 2
    assert 'in fails\n    raise RuntimeError("not today")' in err
    assert "graph stopped at the RuntimeError above, raised by your code" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--with", "sources"), "'sources' is not one of source, saved, gradients"),
        (("--with", "saved,,colour"), "'colour' is not one of source, saved, gradients"),
        (("--depth", "x"), "expected a whole number from 0, or 'all', got 'x'"),
        (("--depth", "-2"), "expected a whole number from 0, or 'all', got '-2'"),
        (("-o", ""), "expected a file name, such as graph.html, got ''"),
    ],
)
def test_options_that_say_nothing(graph, arguments, words):
    status, _, err = graph("viewed.py:loss", *arguments)

    assert status == 2
    assert words in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "'x'. It expects (x, y), and without --inputs there are no arguments"),
        (("--inputs", "viewed.py:one"), "'y'. It expects (x, y), and --inputs makes Tensor"),
        (("--inputs", "viewed.py:pair"), "'y'. It expects (x, y), and --inputs makes x=, z="),
    ],
)
def test_a_function_that_can_not_be_called(graph, arguments, words):
    status, _, err = graph("viewed.py:needs", *arguments)

    assert status == 2
    assert "viewed.py:needs can't be called: missing a required argument: " + words in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("viewed.py:later",), ("viewed.py:later is an async def, at ", "run(later(...))")),
        (("viewed.py:called_later",), ("viewed.py:called_later is an", "run(called_later(...))")),
        (
            ("viewed.py:module", "--inputs", "viewed.py:one"),
            ("viewed.py:module is an async def, at ", "run(module(...))"),
        ),
        (
            ("viewed.py:needs", "--inputs", "viewed.py:later"),
            ("--inputs viewed.py:later is an async def, at ", "run(later(...))"),
        ),
    ],
)
def test_an_async_function(graph, arguments, words):
    status, _, err = graph(*arguments)

    assert status == 2
    said, advised = words
    assert said in err
    line = next(
        number for number, text in enumerate(PROGRAM.splitlines(), start=1) if "async def" in text
    )
    if ":later " in said:
        assert f"viewed.py:{line}: a call makes a coroutine and runs nothing; expected" in err
    assert f"such as: def run(): return asyncio.{advised}" in err


def test_verify_refuses_them_too(graph, capsys):
    del graph
    assert main(["verify", "viewed.py:later", "--inputs", "viewed.py:one"]) == 2
    assert "viewed.py:later is an async def, at " in capsys.readouterr().err
    assert main(["verify", "viewed.py:needs", "--inputs", "viewed.py:later"]) == 2
    assert "--inputs viewed.py:later is an async def, at " in capsys.readouterr().err


@pytest.mark.usefixtures("fonts")
def test_png(graph, tmp_path):
    status, _, err = graph("viewed.py:loss", "-o", "graph.png")

    assert status == 0
    assert "graph saved to graph.png" in err
    assert (tmp_path / "graph.png").read_bytes().startswith(b"\x89PNG")


def test_png_without_what_draws_it(graph, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    status, _, err = graph("viewed.py:loss", "-o", "graph.png")

    assert status == 2
    assert "install it with: pip install 'gradcheck-suite[png]'" in err
    assert not (tmp_path / "graph.png").exists()
