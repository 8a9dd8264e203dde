"""What nobody should give to a viewer, and what may come out of odd programs."""

from __future__ import annotations

import gc
import io
import subprocess
import sys

import pytest
import torch
from torch import nn

import gradcheck_suite as gs

MANY_EDGES = """
import sys, time, torch
import gradcheck_suite as gs
rows = int(sys.argv[1])
leaves = [torch.ones(1, requires_grad=True) for _ in range(1000)]
sums = [torch.stack(leaves).sum() for _ in range(rows)]
total = torch.stack(sums).sum()
wide = torch.stack([torch.cat(leaves).sum() for _ in range(rows)]).sum()
loss = total + wide
start = time.process_time()
graph = gs.trace_graph(loss)
text = str(graph)
picture = graph._repr_html_()
print(len(graph.edges), time.process_time() - start, len(picture))
"""


@pytest.mark.parametrize(
    "rows", [50, pytest.param(500, marks=pytest.mark.sweep)], ids=["100,000", "1,000,000"]
)
@pytest.mark.slow
def test_a_million_edges_take_seconds_and_a_bounded_picture(rows):
    done = subprocess.run(
        [sys.executable, "-c", MANY_EDGES, str(rows)],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    edges, seconds, size = done.stdout.split()

    assert int(edges) > 2_000 * rows
    assert float(seconds) < 60
    assert int(size) < 20_000_000


def test_after_backward_says_what_is_left(tmp_path):
    x = torch.ones(3, requires_grad=True)
    loss = x.exp().sum()
    loss.backward()
    graph = gs.trace_graph(loss)
    graph.save(tmp_path / "graph.html")

    assert "already run and freed the saved tensors" in graph.state
    assert "already run and freed" in (tmp_path / "graph.html").read_text(encoding="utf-8")


def test_inside_a_functional_transform():
    seen = []

    def inner(z):
        y = (z * z).sum()
        seen.append(gs.trace_graph(y))
        return y

    torch.func.grad(inner)(torch.ones(3))
    assert [node.op for node in seen[0].nodes] == ["SumBackward0", "MulBackward0", "AccumulateGrad"]
    assert seen[0]._repr_html_()

    def mapped(z):
        with pytest.raises(gs.UsageError, match="has no graph"):
            gs.trace_graph((z * 2).sum())
        return z

    torch.func.vmap(mapped)(torch.ones(2, 3))


def test_a_compiled_function():
    model = torch.compile(nn.Sequential(nn.Linear(3, 3), nn.Tanh()), backend="aot_eager")
    with gs.record(backward=True) as recording:
        loss = model(torch.ones(2, 3)).sum()
        loss.backward()
    graph = recording.graph

    assert [node.op for node in graph.nodes][:2] == ["SumBackward0", "CompiledFunctionBackward"]
    assert len(graph.leaves) == 2
    assert graph._repr_html_()


def test_nested_tensors_and_autocast():
    nested = torch.nested.nested_tensor(
        [torch.ones(2, 3), torch.ones(1, 3)], requires_grad=True, layout=torch.jagged
    )
    with gs.record(backward=True) as recording:
        (nested * 2).values().sum().backward()
    assert recording.graph._repr_html_()

    model = nn.Linear(3, 3)
    with gs.record(backward=True) as recording, torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.ones(2, 3)).float().sum().backward()
    assert 'class="b op freed"' in recording.graph._repr_html_() or recording.graph.edges
    assert sum(node.op == "ToCopyBackward0" for node in recording.graph.nodes) == 3


@pytest.mark.parametrize("name", ["no/such/folder/graph.html", "graph.pdf", "graph"])
def test_where_it_can_not_be_saved(name, tmp_path):
    graph = gs.trace_graph(torch.ones(1, requires_grad=True))
    with pytest.raises(gs.UsageError, match=r"does not exist; create it first|suffixes \.dot, "):
        graph.save(tmp_path / name)


def test_ctrl_c_within_a_recorded_backward_leaves_nothing_behind():
    before = torch.autograd.graph._engine_run_backward
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    loss = y.sum()

    def interrupt(_):
        raise KeyboardInterrupt

    handle = y.register_hook(interrupt)
    with pytest.raises(KeyboardInterrupt), gs.record(saved=False, backward=True) as recording:
        loss.backward(retain_graph=True)
    handle.remove()

    assert torch.autograd.graph._engine_run_backward is before
    figures = recording._backward.backwards[0].stats
    measured = len(figures._entries)
    loss.backward()
    assert len(figures._entries) == measured, "no hook of ours is left"
    assert torch.equal(x.grad, torch.ones(3).exp())


def test_ctrl_c_while_tracing_leaves_the_collector_on(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("gradcheck_suite.graph.tracing.release_without_recursion", interrupt)
    with pytest.raises(KeyboardInterrupt):
        gs.trace_graph(torch.ones(3, requires_grad=True).exp())
    assert gc.isenabled()


def test_a_graph_of_one_node_and_an_empty_one_in_words():
    text = str(gs.trace_graph(torch.ones(1, requires_grad=True)))
    assert "1 node, 0 edges, 1 leaf" in text
    assert "#1 unnamed  (1,) float32  leaf tensor" in text
    with pytest.raises(gs.UsageError, match=r"there is no tensor in what trace_graph was given"):
        gs.trace_graph([])


class _Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("steps", [10, 12_000])
def test_long_work_tells_a_terminal_that_it_goes_on(monkeypatch, tmp_path, steps):
    from gradcheck_suite.reporting import progress

    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "_DELAY_SECONDS", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    y = torch.ones(1, requires_grad=True)
    for _ in range(steps):
        y = y + 1
    gs.trace_graph(y).save(tmp_path / "graph.txt")

    words = terminal.getvalue()
    assert ("Reading a graph of 12,001 nodes" in words) == (steps > 10_000)
    assert ("Writing 12,001 nodes to graph.txt" in words) == (steps > 10_000)
