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


@pytest.mark.parametrize("recorded", [False, True])
def test_a_graph_that_a_backward_has_freed(model, tmp_path, recorded):
    x = torch.ones(2, 3)

    def graph(*, runs):
        if recorded:
            with gs.record(model) as recording:
                loss = model(x).sum()
                if runs:
                    loss.backward()
            return recording.trace_graph(loss, model=model)
        loss = model(x).sum()
        if runs:
            loss.backward()
        return gs.trace_graph(loss, model)

    kept, freed = graph(runs=False), graph(runs=True)

    said = (
        "A backward has freed the saved tensors of the %s graph; "
        "the %s still holds its own, 48 bytes."
    )
    for pair, words in (
        ((kept, freed), said % ("second", "first")),
        ((freed, kept), said % ("first", "second")),
    ):
        diff = gs.diff_graphs(*pair)
        assert diff.is_same
        assert str(diff) == f"Both graphs hold the same 10 nodes.\n{words}"
    diff.save(tmp_path / "diff.html")
    assert words in (tmp_path / "diff.html").read_text()
    assert len(gs.diff_graphs(freed, freed).sentences) == 1


def test_graphs_of_which_a_backward_has_freed_a_part(model):
    x = torch.ones(2, 3)

    def graph(freed):
        hidden = model[0](x).tanh()
        # Of two losses that share the first layer, one is gone back from.
        losses = [model[2](hidden).exp().sum() for _ in range(2)]
        if freed:
            losses[0].backward()
        return gs.trace_graph(losses, model)

    (_, words) = gs.diff_graphs(graph(freed=False), graph(freed=True)).sentences
    assert words.startswith("A backward has freed the saved tensors of the second graph in 4 of 6 ")
    assert "; the first still holds its own, " in words

    # A larger graph has more to free: that both are freed whole is no difference.
    loss = model(x).sum()
    larger = model(x).sum() + model(x).tanh().sum()
    loss.backward()
    larger.backward()
    sentences = gs.diff_graphs(gs.trace_graph(loss, model), gs.trace_graph(larger, model)).sentences
    assert not any("freed" in sentence for sentence in sentences)


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


def test_a_hidden_state_that_is_not_detached_is_told():
    cell, state, graphs = nn.RNNCell(3, 4), torch.zeros(1, 4), []

    def step():
        nonlocal state
        state = cell(torch.ones(1, 3), state)
        return state.sum()

    graphs = [traced(step, cell) for _ in range(4)]
    (_, words) = gs.diff_graphs(graphs[0], graphs[3]).sentences

    # The sum at the end is there once.
    assert words.startswith("The second graph holds 6 of the 7 ops of the first 4 times over: ")


def test_a_head_that_is_called_more_often_is_no_graph_of_earlier_steps(model):
    x = torch.ones(2, 3)
    first = traced(lambda: model(x).sum(), model)
    second = traced(lambda: torch.sum(model[0](x).tanh() + model(x)), model)
    assert not any("times over" in words for words in gs.diff_graphs(first, second).sentences)


def test_another_batch_size(model):
    first, second = (traced(lambda n=n: model(torch.ones(n, 3)).sum(), model) for n in (2, 5))
    assert gs.diff_graphs(first, second).sentences[1].startswith("Both hold the same ops and")


def test_a_recorded_and_an_unrecorded_forward(model, tmp_path):
    x = torch.ones(2, 3)
    recorded = traced(lambda: model(x).sum(), model)
    alone = gs.trace_graph(model(x).sum(), model)
    assert gs.diff_graphs(recorded, alone).is_same

    longer = gs.trace_graph(model(x).exp().sum(), model)
    diff = gs.diff_graphs(recorded, longer)
    assert diff.sentences[1].startswith("Modules are not compared: only one of the two forwards")
    assert [change.op for change in diff.changes] == ["ExpBackward0"]
    diff.save(tmp_path / "diff.html")


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
