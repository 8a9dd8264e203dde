from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import gradcheck_suite as gs


@pytest.fixture
def graph():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2))
    return gs.trace_graph({"loss": model(torch.ones(4, 3)).sum()}, model=model)


class TestFormats:
    def test_text_holds_the_whole_graph(self, tmp_path):
        y = torch.ones(1, requires_grad=True)
        for _ in range(1_000):
            y = y.sin()

        gs.trace_graph(y).save(tmp_path / "graph.txt")

        lines = (tmp_path / "graph.txt").read_text(encoding="utf-8").splitlines()
        assert sum("SinBackward0" in line for line in lines) == 1_001

    def test_json(self, graph, tmp_path):
        graph.save(str(tmp_path / "graph.JSON"))

        document = json.loads((tmp_path / "graph.JSON").read_text())

        assert document["schema"] == 1
        assert document["roots"][0]["name"] == "['loss']"
        assert [node["id"] for node in document["nodes"]] == [node.id for node in graph.nodes]
        assert {node["leaf"]["names"][0] for node in document["nodes"] if node["leaf"]} == {
            "0.weight",
            "0.bias",
        }
        assert len(document["edges"]) == len(graph.edges)
        assert document["summary"]["saved_bytes"] == graph.saved_bytes == 48

    def test_saving_replaces(self, graph, tmp_path):
        path = tmp_path / "graph.txt"
        path.write_text("old" * 10_000)

        graph.save(path)

        assert "old" not in path.read_text(encoding="utf-8")


class TestRefused:
    def test_unknown_suffix(self, graph, tmp_path):
        with pytest.raises(
            gs.UsageError,
            match=r"one of the suffixes .*\.json, \.png, \.svg, \.txt, .* got .*'\.pdf'",
        ):
            graph.save(tmp_path / "graph.pdf")

    def test_no_suffix(self, graph, tmp_path):
        with pytest.raises(gs.UsageError, match="got no suffix"):
            graph.save(tmp_path / "graph")

    def test_missing_folder(self, graph, tmp_path):
        with pytest.raises(gs.UsageError, match="does not exist; create it first"):
            graph.save(tmp_path / "missing" / "graph.txt")

    def test_a_path_that_cannot_be_written(self, graph, tmp_path):
        (tmp_path / "graph.txt").mkdir()

        with pytest.raises(gs.UsageError, match=r"cannot write the graph to .*directory"):
            graph.save(tmp_path / "graph.txt")
