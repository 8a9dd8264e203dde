"""No frame of ours is compiled where torch.compile watches what a program runs."""

from __future__ import annotations

import pytest
import torch

import gradcheck_suite as gs
from gradcheck_suite._torch_compat import never_compiled

pytestmark = pytest.mark.filterwarnings("ignore")


def run_compiled(function, *args):
    """Return what ``function`` returns under torch.compile, and the operators of each graph."""
    graphs = []

    def backend(graph, example_inputs):
        del example_inputs
        graphs.append([str(node.target) for node in graph.graph.nodes])
        return graph.forward

    return torch.compile(function, backend=backend)(*args), graphs


def test_what_is_marked_runs_as_it_stands():
    def double(x):
        return x * 2

    torch._dynamo.reset()
    never_compiled(double)

    result, graphs = run_compiled(double, torch.ones(2))

    assert (result.tolist(), graphs) == ([2.0, 2.0], [])


@pytest.mark.parametrize(
    "watch", [gs.record, lambda: gs.audit(report=False)], ids=["record", "audit"]
)
def test_hooks_are_left_alone_where_the_program_could_not_be_compiled(watch):
    weight = torch.ones(2, 2, requires_grad=True)

    def program(x):
        total = 0.0
        for _ in range(2):  # a break in a loop: the frame runs as it stands, what it calls does not
            torch._dynamo.graph_break()
            total = total + torch.relu(x @ weight).exp().sum()
        return total

    torch._dynamo.reset()
    bare = run_compiled(program, torch.ones(3, 2))
    torch._dynamo.reset()
    with watch():
        watched = run_compiled(program, torch.ones(3, 2))

    assert watched == bare
