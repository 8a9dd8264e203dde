from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import gradcheck_suite as gs


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))


def traced(build, model):
    with gs.record(model) as recording:
        loss = build()
    return recording.trace_graph(loss, model=model)


def test_the_same_step_twice(model):
    x = torch.ones(2, 3)
    diff = gs.diff_graphs(*(traced(lambda: model(x).sum(), model) for _ in range(2)))

    assert diff.is_same
    assert str(diff) == "Both graphs hold the same 10 nodes."


def test_a_sum_of_losses_is_told(model):
    x, total, graphs = torch.ones(2, 3), 0, []

    def step():
        nonlocal total
        total = total + model(x).sum()
        return total

    graphs = [traced(step, model) for _ in range(3)]
    diff = gs.diff_graphs(graphs[0], graphs[2])

    assert not diff.is_same
    assert "3 times over: the graph of an earlier step is still attached" in diff.sentences[1]
    assert "before, " in diff.sentences[0]
    assert any(c.op == "TanhBackward0" and (c.before, c.after) == (0, 2) for c in diff.changes)


def test_changed_control_flow(model):
    x = torch.ones(2, 3)
    first = traced(lambda: model(x).sum(), model)
    second = traced(lambda: model[0](x).sum(), model)
    diff = gs.diff_graphs(first, second)

    assert "No longer reached: leaf 2.bias, leaf 2.weight." in diff.sentences
    back = gs.diff_graphs(second, first)
    assert "Newly reached: leaf 2.bias, leaf 2.weight." in back.sentences
    assert "only grown" in back.sentences[1]


def test_saved_as_page_text_and_json(model, tmp_path):
    x = torch.ones(2, 3)
    first = traced(lambda: model(x).sum(), model)
    second = traced(lambda: model(x).sum() + model(x).sum(), model)
    diff = gs.diff_graphs(first, second)
    for suffix in (".html", ".txt", ".json"):
        diff.save(tmp_path / f"diff{suffix}")

    assert "2 times over" in (tmp_path / "diff.html").read_text(encoding="utf-8")
    assert "2 times over" in (tmp_path / "diff.txt").read_text(encoding="utf-8")
    document = json.loads((tmp_path / "diff.json").read_text(encoding="utf-8"))
    assert document["nodes"] == [len(first.nodes), len(second.nodes)]
    assert document["changes"][0]["after"] > document["changes"][0]["before"]
    with pytest.raises(gs.UsageError, match=r"\.html, \.json, \.txt, got the suffix '\.svg'"):
        diff.save(tmp_path / "diff.svg")


def test_many_changes_are_cut_in_the_terminal():
    leaves = [torch.ones(n + 1, requires_grad=True) for n in range(60)]
    first = gs.trace_graph(leaves[0].sum())
    diff = gs.diff_graphs(first, gs.trace_graph([leaf.sum() for leaf in leaves]))
    assert "more; save('diff.html') shows all" in str(diff)


def test_wrong_types(model):
    graph = gs.trace_graph(model(torch.ones(1, 3)))
    with pytest.raises(gs.UsageError, match="got int as the second"):
        gs.diff_graphs(graph, 3)
