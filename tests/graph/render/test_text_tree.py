from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console
from torch import nn

import gradcheck_suite as gs
from gradcheck_suite.graph.render.text import graph_to_text


def tree_lines(graph, **options):
    """Return the lines between the headline and the summary."""
    text = graph_to_text(graph, **options)
    return text.split("\n\n")[1].splitlines()


class TestTree:
    def test_a_perceptron(self):
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
        loss = model(torch.randn(4, 6)).sum()

        assert tree_lines(gs.trace_graph(loss, model=model)) == [
            "the tensor you passed  () float32",
            "#1 SumBackward0  () float32",
            "#2 AddmmBackward0  (4, 2) float32  saves 128 bytes: mat1",
            "├─ #3 bias  (2,) float32  parameter 2.bias",
            "├─ #4 TBackward0  (8, 2) float32",
            "│  #5 weight  (2, 8) float32  parameter 2.weight",
            "#6 ReluBackward0  (4, 8) float32",
            "#7 AddmmBackward0  (4, 8) float32  saves 96 bytes: mat1",
            "├─ #8 bias  (8,) float32  parameter 0.bias",
            "#9 TBackward0  (6, 8) float32",
            "#10 weight  (8, 6) float32  parameter 0.weight",
        ]

    def test_a_shared_node_is_drawn_once_and_referred_to(self):
        hidden = torch.randn(3, requires_grad=True).exp()

        lines = tree_lines(gs.trace_graph((hidden + hidden.sin()).sum()))

        assert [line for line in lines if "#4 ExpBackward0" in line] == [
            "#4 ExpBackward0  (3,) float32"
        ]
        assert lines.count("├─ → see #4") == 1

    def test_custom_functions_show_where_they_are(self, square):
        text = str(gs.trace_graph(square.apply(torch.ones(2, requires_grad=True))))

        joined = " ".join(text.split())
        assert "SquareBackward (2,) float32 custom function at " in joined
        assert "conftest.py:" in joined.replace(" ", "")

    def test_a_resnet_is_one_straight_run(self, small_resnet):
        graph = gs.trace_graph(small_resnet(torch.randn(2, 3, 8, 8)).sum(), model=small_resnet)

        lines = tree_lines(graph)

        assert sum("→ see" in line for line in lines) == 2, "one for each shortcut"
        assert not any("│  ├─" in line for line in lines)

    def test_says_direction_and_state(self):
        loss = torch.randn(3, requires_grad=True).exp().sum()
        loss.backward()

        text = " ".join(str(gs.trace_graph(loss)).split())

        assert "Backward runs from the top down to the leaves." in text
        assert "A backward has already run and freed the saved tensors" in text
        assert "ExpBackward0 (3,) float32 freed by an earlier backward" in text

    def test_summary_adds_up(self, small_resnet):
        graph = gs.trace_graph(small_resnet(torch.randn(2, 3, 8, 8)).sum(), model=small_resnet)

        table = graph_to_text(graph).split("\n\n")[2]

        counts = [int(line.split()[0]) for line in table.splitlines()[1:]]
        assert sum(counts[:-1]) == counts[-1] == len(graph.nodes)
        assert "2  NativeBatchNormBackward0" in table

    def test_findings_and_blind_spots_follow(self):
        model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
        out = model["a"](torch.ones(1, 2)).clone()
        out[0].mul_(2)

        graph = gs.trace_graph(out, model=model)

        assert "warning GCS403 parameter-without-gradient: " in str(graph)
        assert "\nnot covered: what 1 CopySlices node saved" in str(graph)
        assert "GCS403" not in graph_to_text(graph, with_findings=False)


class TestSize:
    @pytest.mark.slow
    def test_a_long_chain_is_folded_flat(self):
        y = torch.ones(1, requires_grad=True)
        for _ in range(10_000):
            y = y.sin().exp()

        lines = tree_lines(gs.trace_graph(y))

        assert len(lines) < 40
        assert (
            "… 19,981 more, the same 2 ops 9,990 times over: 9,991 \u00d7 ExpBackward0, "
            "9,990 \u00d7 SinBackward0"
        ) in " ".join(" ".join(lines).split())
        assert lines[-1] == "#20001 unnamed  (1,) float32  leaf tensor"

    def test_no_limit_draws_everything(self):
        y = torch.ones(1, requires_grad=True)
        for _ in range(1_000):
            y = y.sin()

        assert len(tree_lines(gs.trace_graph(y), limit=None)) == 1_002

    def test_many_inputs_of_one_node_are_folded(self):
        leaves = [torch.ones(1, requires_grad=True) for _ in range(700)]

        text = graph_to_text(gs.trace_graph(torch.cat(leaves)))

        assert "├─ … 679 more: leaves unnamed, unnamed, unnamed, unnamed and 675 more" in text

    def test_a_drawing_that_never_ends_is_ended(self):
        chains = []
        for _ in range(100):
            y = torch.ones(1, requires_grad=True)
            for _ in range(80):
                y = y.sin()
            chains.append(y)

        text = graph_to_text(gs.trace_graph(chains), limit=100)

        assert len(text.splitlines()) < 1_050
        assert "more nodes not drawn; graph.save('graph.txt') writes all" in text

    def test_deep_nesting_keeps_room_for_text(self):
        # Each level branches off the run of the one before it.
        x = torch.ones(1, requires_grad=True)
        y = x.exp()
        for _ in range(40):
            side = y
            y = torch.ones(1, requires_grad=True)
            for _ in range(60):
                y = y.sin()
            y = y + side

        text = graph_to_text(gs.trace_graph(y), width=60)

        assert max(map(len, text.splitlines())) <= 60


class TestSafety:
    @pytest.mark.parametrize(
        "name", ["<script>alert(1)</script>", "[bold red]x[/]", "a\nb", "\x1b[31mred", "n" * 10_000]
    )
    def test_hostile_names(self, name):
        model = nn.ParameterDict({name: nn.Parameter(torch.ones(2))})

        text = str(gs.trace_graph({name: model[name].sum()}, model=model))

        assert "\x1b" not in text
        assert "a\nb" not in text
        assert len(text) < 2_000
        if len(name) < 30:
            shown = name.encode("unicode_escape").decode()
            assert f"parameter {shown}" in " ".join(text.split())

    def test_hostile_function_names(self, square):
        named = type("Evil\x1b[31m\nOp", (square,), {})

        text = str(gs.trace_graph(named.apply(torch.ones(2, requires_grad=True))))

        assert "\x1b" not in text
        assert "Evil\\x1b[31m\\nOpBackward" in text

    def test_ascii_streams_get_ascii(self):
        hidden = torch.randn(3, requires_grad=True).exp()

        text = graph_to_text(gs.trace_graph((hidden + hidden.sin()).sum()), encoding="ascii")

        assert text.isascii()
        assert "|- -> see #4" in text

    def test_rich_prints_the_same_words_in_colour(self, small_resnet):
        graph = gs.trace_graph(small_resnet(torch.randn(2, 3, 8, 8)).sum(), model=small_resnet)
        plain, colour = (
            Console(file=io.StringIO(), width=80, force_terminal=force, color_system=system)
            for force, system in ((False, None), (True, "standard"))
        )

        plain.print(graph)
        colour.print(graph)

        assert "\x1b[" in colour.file.getvalue()
        assert "\x1b[" not in plain.file.getvalue()
        assert plain.file.getvalue().split() == graph_to_text(graph).split()
