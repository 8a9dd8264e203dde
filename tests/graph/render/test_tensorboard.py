from __future__ import annotations

import sys
import urllib.request
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import gradcheck_suite as gs
from gradcheck_suite.cli import main
from gradcheck_suite.errors import MissingDependencyError


def loaded(folder):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    from tensorboard.compat.proto.graph_pb2 import GraphDef

    message = events.Graph()
    return message if isinstance(message, GraphDef) else GraphDef.FromString(message)


def test_read_back_by_tensorboard_itself(subject, tmp_path):
    with gs.record(source=True) as recording:
        loss, model = subject()
    graph = recording.trace_graph(loss, model=model)
    graph.save(tmp_path)
    message = loaded(tmp_path)

    names = [node.name for node in message.node]
    assert len(set(names)) == len(names) == len(graph.nodes)
    ends = {(i.partition(":")[0], node.name) for node in message.node for i in node.input}
    assert ends <= {(a, b) for a in names for b in names}
    assert sum(len(node.input) for node in message.node) == len(graph.edges)


def test_modules_are_scopes(small_resnet, tmp_path):
    with gs.record() as recording:
        loss = small_resnet(torch.ones(1, 3, 8, 8)).sum()
    recording.trace_graph(loss, model=small_resnet).save(tmp_path / "run.tfevents")
    names = [node.name for node in loaded(tmp_path / "run.tfevents").node]

    assert any(name.startswith("blocks/0/conv/Convolution_") for name in names)
    assert any(name.startswith("blocks/1/norm/weight_") for name in names)


def test_hostile_names_are_cleaned(tmp_path):
    model = nn.Linear(1, 1)
    model._parameters["</script> a/b:c"] = nn.Parameter(torch.ones(1))
    loss = model(torch.ones(1)) + model._parameters["</script> a/b:c"]
    gs.trace_graph(loss, model=model).save(tmp_path)

    for node in loaded(tmp_path).node:
        assert all(part[0].isalnum() for part in node.name.split("/"))
        assert not set("<>: ") & set(node.name)


def test_served_once(small_resnet, tmp_path):
    tensorboard = pytest.importorskip("tensorboard.program")
    gs.trace_graph(small_resnet(torch.ones(1, 3, 8, 8)).sum(), model=small_resnet).save(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        server = tensorboard.TensorBoard()
        server.configure(argv=[None, "--logdir", str(tmp_path), "--port", "0", "--load_fast=false"])
        url = server.launch()
        address = f"{url}data/plugin/graphs/graph?run=.&conceptual=false&limit_attr_size=1024"
        address += "&large_attrs_key=_too_large_attrs"
        body = ""
        for _ in range(100):
            try:
                with urllib.request.urlopen(address, timeout=5) as answer:
                    body = answer.read().decode()
                break
            except OSError:
                __import__("time").sleep(0.2)
    assert "ConvolutionBackward" not in body
    assert 'name: "blocks/0/conv/weight_' in body


def test_without_the_package_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.graph_pb2", None)
    graph = gs.trace_graph(torch.ones(1, requires_grad=True))

    with pytest.raises(
        MissingDependencyError, match=r"pip install 'gradcheck-suite\[tensorboard\]'"
    ):
        graph.save(tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_unwritable_place(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(gs.UsageError, match=r"cannot write the graph to .*: Permission denied"):
        gs.trace_graph(torch.ones(1, requires_grad=True)).save(tmp_path / "x.tfevents")


class TestAFolderThatHasAGraph:
    @pytest.fixture
    def graph(self):
        return gs.trace_graph(torch.ones(1, requires_grad=True) * 2)

    def test_is_told_of(self, graph, tmp_path):
        graph.save(tmp_path)
        (first,) = tmp_path.iterdir()

        with pytest.warns(UserWarning, match="held a graph already") as caught:
            graph.save(tmp_path)
        (warning,) = caught
        words = str(warning.message)
        assert words.startswith(f"{str(tmp_path)!r} held a graph already, in {first.name}, and ")
        assert "TensorBoard shows only the newest graph of a folder" in words
        assert words.endswith(f"such as {str(tmp_path / 'autograd')!r}")
        assert "\n" not in words
        assert warning.filename == __file__
        assert len(list(tmp_path.iterdir())) == 2, "it is saved all the same"

        (tmp_path / "autograd").mkdir()
        graph.save(tmp_path / "autograd")

    def test_also_if_another_program_wrote_it(self, graph, tmp_path):
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(tmp_path)) as writer:
            writer.add_scalar("loss", 1.0, 100_000)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # add_graph calls torch.jit
                writer.add_graph(nn.Linear(2, 2), torch.ones(1, 2))
        with pytest.warns(UserWarning, match="held a graph already"):
            graph.save(tmp_path / "more.tfevents")

    def test_scalars_and_what_is_no_event_file_are_no_graph(self, graph, tmp_path):
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(tmp_path)) as writer:
            for step in range(300):
                writer.add_scalar("loss", 1.0, step)
        (tmp_path / "broken.tfevents").write_bytes(b"\xff" * 500)
        (tmp_path / "empty.tfevents").touch()
        (tmp_path / "folder.tfevents").mkdir()

        graph.save(tmp_path / "run.tfevents")
        graph.save(tmp_path / "run.tfevents")

    def test_any_step_may_come_before_it(self, graph, tmp_path):
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        graph.save(tmp_path)
        (path,) = tmp_path.iterdir()
        message = loaded(tmp_path).SerializeToString()
        for step in (0, 1, 127, 128, 1 << 40, -1):
            with path.open("wb") as stream:
                event = Event(wall_time=1.0, step=step, graph_def=message)
                RecordWriter(stream).write(event.SerializeToString())
            with pytest.warns(UserWarning, match="held a graph already"):
                graph.save(tmp_path / "run.tfevents")

    def test_on_the_command_line(self, tmp_path, monkeypatch, capsys):
        (tmp_path / "seen.py").write_text(
            "import torch\ndef loss():\n    return torch.ones(1, requires_grad=True) * 2\n"
        )
        (tmp_path / "runs").mkdir()
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", list(sys.path))
        for _ in range(2):
            assert main(["graph", "seen.py:loss", "-o", "runs"]) == 0
            sys.modules.pop("seen", None)
        lines = capsys.readouterr().err.splitlines()
        warned = [line for line in lines if "warning" in line]
        assert len(warned) == 1
        assert warned[0].startswith("warning: 'runs' held a graph already")
