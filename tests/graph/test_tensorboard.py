from __future__ import annotations

import sys
import urllib.request
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import gradcheck_suite as gs
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
