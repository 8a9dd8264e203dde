from __future__ import annotations

import pytest
import torch
from torch import nn

import gradcheck_suite as gs
from gradcheck_suite.graph.layout.grouping import group
from gradcheck_suite.graph.layout.view import draw, picture


def encoder(layers, width=8):
    layer = nn.TransformerEncoderLayer(width, 2, 16, batch_first=True, dropout=0.1)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def recorded(model, x):
    with gs.record() as recording:
        loss = model(x).sum()
    return recording.trace_graph(loss, model=model)


@pytest.fixture(scope="module")
def large():
    torch.manual_seed(0)
    return recorded(encoder(6), torch.randn(2, 5, 8, requires_grad=True))


def repeats(graph):
    groups = group(graph)
    return [(entry.title, len(entry.children)) for entry in groups.groups if entry.kind == "repeat"]


class TestGroups:
    def test_every_node_is_in_one_group(self, large):
        groups = group(large)
        held = [node for entry in groups.groups for node in entry.nodes]

        assert sorted(held) == [node.id for node in large.nodes]
        assert groups.groups[0].size == len(large.nodes)
        assert groups.groups[0].saved_bytes == large.saved_bytes
        assert all(entry.parent < entry.id for entry in groups.groups[1:])

    def test_repeated_blocks_are_one(self, large):
        assert repeats(large) == [("layers.0 … layers.5", 6)]

    def test_a_block_that_differs_is_not_of_them(self):
        model = encoder(6)
        model.layers[2].linear1 = nn.Linear(8, 16, bias=False)
        graph = recorded(model, torch.randn(2, 5, 8, requires_grad=True))

        assert repeats(graph) == [("layers.3 … layers.5", 3), ("layers.0 … layers.1", 2)]

    def test_without_modules_the_same_ops_over_and_over(self):
        y = torch.ones(3, requires_grad=True)
        for _ in range(100):
            y = (y * 2).sin().exp()
        ((title, times),) = repeats(gs.trace_graph(y))

        assert title == "Exp, Sin, Mul"
        assert times in {99, 100}

    def test_small_graphs_are_shown_whole(self, small_resnet):
        graph = recorded(small_resnet, torch.randn(2, 3, 8, 8))
        assert not repeats(graph)
        assert len(draw(picture(graph)).boxes) == len(graph.nodes)

    def test_no_repeat_in_what_only_looks_alike(self):
        x = torch.ones(3, requires_grad=True)
        y = x
        for step in range(60):
            y = (y.sin() if step % 7 else y.cos()) * (x if step % 5 else y)
        total = sum(times for _, times in repeats(gs.trace_graph([y, (y * 2).sum()])))
        assert total < 60


class TestDrawing:
    @pytest.mark.parametrize("depth", [None, 0, 1, 2, 3, 9, -1])
    def test_boxes_do_not_overlap_and_lie_in_their_frames(self, large, depth):
        drawing = draw(picture(large, depth=depth))
        found = [(b.x, b.y, b.x + b.label.width, b.y + b.label.height) for b in drawing.boxes]

        for index, a in enumerate(found):
            for b in found[:index]:
                assert not (
                    a[0] < b[2] - 0.01 and b[0] < a[2] - 0.01 and a[1] < b[3] - 0.01
                    and b[1] < a[3] - 0.01
                )  # fmt: skip
        for frame in drawing.frames:
            assert frame.x >= 0
            assert frame.x + frame.width <= drawing.width + 0.01
            for a in found:
                inside = a[0] >= frame.x and a[2] <= frame.x + frame.width
                inside = inside and a[1] >= frame.y and a[3] <= frame.y + frame.height
                outside = (
                    a[2] <= frame.x or a[0] >= frame.x + frame.width
                    or a[3] <= frame.y or a[1] >= frame.y + frame.height
                )  # fmt: skip
                assert inside or outside

    def test_depth_opens_levels(self, large):
        shown = [len(draw(picture(large, depth=depth)).boxes) for depth in (0, 1, 2, -1)]
        assert shown == sorted(shown)
        assert shown[-1] == len(large.nodes)

    def test_the_first_look_is_readable(self, large):
        assert 5 < len(draw(picture(large)).boxes) <= 60

    def test_every_box_but_roots_is_led_to(self, large):
        drawing = draw(picture(large))
        targets = {wire.target for wire in drawing.wires if wire.ends}
        unled = [box.item for box in drawing.boxes if box.item not in targets]
        assert unled == [("node", 1)]
