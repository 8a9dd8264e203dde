from __future__ import annotations

import json
import sys
import textwrap
from types import SimpleNamespace

import pytest

from gradcheck_suite.cli import main
from tests import warm_python

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.used = nn.Linear(3, 2)
        self.unused = nn.Linear(3, 2)

    def forward(self, x):
        return self.used(x).relu()

def loss():
    return Net()(torch.ones(4, 3)).sum()

def loss_and_model():
    net = Net()
    return {"loss": net(torch.ones(4, 3)).sum(), "steps": 3}, net

def two_tensors():
    first = loss()
    return first, first * 2

def no_graph():
    return torch.ones(2)

def two_constants():
    return no_graph(), no_graph()

def labels():
    return torch.ones(2).long()

def one_by_one():
    yield loss()

def make_net():
    return Net()

def make_loss():
    return loss

def fails():
    raise ValueError("shapes do not fit")

net = Net()

def inputs():
    return torch.ones(4, 3)

def named_inputs():
    return {"x": torch.ones(4, 3)}

def vector():
    return torch.zeros(3, requires_grad=True).sqrt()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Work in a folder with ``model.py``."""
    (tmp_path / "model.py").write_text(textwrap.dedent(MODEL))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("model", None)


@pytest.fixture
def graph(folder, capsys):
    """Run ``gradcheck-suite graph`` in this process."""

    def run(*arguments):
        status = main(["graph", *arguments])
        out, err = capsys.readouterr()
        return SimpleNamespace(returncode=status, stdout=out, stderr=err)

    return run


@pytest.fixture
def graph_process(folder):
    """Run ``gradcheck-suite graph`` as a command."""

    def run(*arguments):
        return warm_python.run(["-m", "gradcheck_suite", "graph", *arguments])

    return run


class TestPrinted:
    def test_prints_the_tree_and_the_report(self, graph_process):
        done = graph_process("model.py:loss_and_model")

        assert done.stderr == ""
        assert done.returncode == 0, "a warning does not fail by default"
        assert "['loss']  () float32\n#1 SumBackward0" in done.stdout
        assert "parameter used.weight" in done.stdout
        assert done.stdout.count("GCS403 parameter-without-gradient") == 1
        assert "\x1b" not in done.stdout

    def test_a_pair_of_tensors_is_two_roots(self, graph):
        done = graph("model.py:two_tensors", "--output-format", "json")

        document = json.loads(done.stdout)
        assert document["summary"]["roots"] == 2

    def test_warnings_fail_if_asked_to(self, graph):
        done = graph("model.py:loss_and_model", "--fail-on", "warning")

        assert done.returncode == 1


class TestSaved:
    def test_saves_and_reports(self, graph, tmp_path):
        done = graph("model.py:loss_and_model", "-o", "graph.json", "--output-format", "json")

        assert done.returncode == 0
        assert json.loads(done.stdout)["findings"][0]["code"] == "GCS403"
        assert json.loads((tmp_path / "graph.json").read_text())["nodes"]
        assert done.stderr == "graph saved to graph.json\n"

    def test_a_bad_destination_is_refused_before_anything_runs(self, graph):
        done = graph("model.py:fails", "-o", "graph.pdf")

        assert done.returncode == 2
        assert (
            "expected one of the suffixes .dot, .gv, .html, .json, .png, .svg, .txt" in done.stderr
        )
        assert "got the suffix '.pdf'" in done.stderr
        assert "ValueError" not in done.stderr


class TestRecorded:
    def test_a_module_with_its_inputs(self, graph, tmp_path):
        for made in ("inputs", "named_inputs"):
            done = graph("model.py:net", "--inputs", f"model.py:{made}", "-o", "g.json")

            assert done.returncode == 0
            document = json.loads((tmp_path / "g.json").read_text())
            assert [call["path"] for call in document["calls"]] == ["", "used"]

    def test_lines_bytes_and_gradients_on_request(self, graph, tmp_path):
        done = graph(
            "model.py:vector", "--with", "source,saved,gradients", "-o", "g.json",
            "--output-format", "json",
        )  # fmt: skip

        document = json.loads((tmp_path / "g.json").read_text())
        assert document["nodes"][0]["source"]["function"] == "vector"
        assert document["edges"][0]["gradient"]["non_finite"] == "inf"
        assert json.loads(done.stdout)["findings"][0]["code"] == "GCS604"
        assert done.returncode == 1

    def test_depth(self, graph, tmp_path):
        graph("model.py:loss_and_model", "-o", "all.svg", "--depth", "all")
        graph("model.py:loss_and_model", "-o", "none.svg", "--depth", "0")

        assert "Addmm" in (tmp_path / "all.svg").read_text()
        assert "Addmm" not in (tmp_path / "none.svg").read_text()

    def test_open(self, graph, tmp_path, monkeypatch):
        opened = []
        monkeypatch.setattr("webbrowser.open", opened.append)
        graph("model.py:loss", "-o", "g.html", "--open")

        assert opened == [(tmp_path / "g.html").resolve().as_uri()]


class TestModuleClass:
    def test_one_that_needs_no_arguments_is_made(self, graph):
        done = graph("model.py:Net", "--inputs", "model.py:inputs")
        assert "used" in done.stdout
        assert "unused.weight" in done.stdout
        assert "error:" not in done.stderr

    def test_one_that_needs_some_is_refused(self, graph, folder):
        with (folder / "model.py").open("a") as file:
            file.write("class Wide(Net):\n    def __init__(self, width): super().__init__()\n")
        done = graph("model.py:Wide", "--inputs", "model.py:inputs")
        assert done.returncode == 2
        assert "can't be made without arguments: missing a required argument" in done.stderr


class TestRefused:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("model.py:loss", "--open"), "--open needs -o"),
            (("model.py:loss", "--with", "colour"), "'colour' is not one of source, saved"),
            (("model.py:loss", "--depth", "-3"), "--depth"),
            (("model.py:two_tensors", "--with", "gradients"), "returned a tuple, expected one"),
            (("model.py:net", "--inputs", "model.py:net.used.weight"), "expected a function"),
        ],
    )
    def test_wrong_options(self, graph_process, arguments, message):
        done = graph_process(*arguments)

        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr

    @pytest.mark.parametrize(
        ("target", "message"),
        [
            ("model.py:net", "of type Net, expected a function without arguments"),
            (
                "model.py:no_graph",
                "what no_graph returns (float32, shape (2,)) has no graph: requires_grad is False",
            ),
            ("model.py:two_constants", "none of the 2 tensors in what two_constants returns has"),
            (
                "model.py:labels",
                "; return the loss, not labels",
            ),
            ("model.py:one_by_one", "what one_by_one returns is a generator, which"),
            ("model.py:make_net", "return what it returns, and the module for its names"),
            ("model.py:make_loss", "is loss, which is not a tensor but makes them: call it and r"),
            ("missing.py:loss", "missing.py does not exist"),
        ],
    )
    def test_wrong_targets(self, graph, target, message):
        done = graph(target)

        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr
        assert "trace_graph" not in done.stderr  # which nobody called

    def test_what_the_function_raises_is_shown(self, graph_process):
        done = graph_process("model.py:fails")

        assert done.returncode == 2
        assert 'in fails\n    raise ValueError("shapes do not fit")' in done.stderr
