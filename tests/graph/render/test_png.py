from __future__ import annotations

import sys
from xml.etree import ElementTree

import pytest
import torch
from PIL import Image

import gradcheck_suite as gs
from gradcheck_suite.errors import MissingDependencyError
from gradcheck_suite.graph.render import png
from gradcheck_suite.graph.render.svg import graph_to_svg


@pytest.fixture
def graph():
    x = torch.ones(3, requires_grad=True)
    return gs.trace_graph((x * 2).sum())


def size_of_svg(graph):
    root = ElementTree.fromstring(graph_to_svg(graph).encode())
    return float(root.get("width")), float(root.get("height"))


@pytest.mark.usefixtures("fonts")
def test_is_the_picture_at_twice_its_size(graph, tmp_path):
    graph.save(tmp_path / "graph.PNG")

    with Image.open(tmp_path / "graph.PNG") as image:
        assert image.format == "PNG"
        assert image.size == tuple(round(2 * side) for side in size_of_svg(graph))
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 24)}
    assert {(255, 255, 255), (245, 247, 250), (220, 238, 251)} <= colours
    assert (0, 0, 0) not in colours


@pytest.mark.usefixtures("fonts")
def test_depth(small_resnet, tmp_path):
    with gs.record() as recording:
        loss = small_resnet(torch.ones(1, 3, 8, 8)).sum()
    graph = recording.trace_graph(loss, model=small_resnet)
    heights = []
    for depth in (0, -1):
        graph.save(tmp_path / "graph.png", depth=depth)
        with Image.open(tmp_path / "graph.png") as image:
            heights.append(image.height)
    assert heights[0] < heights[1]


@pytest.mark.usefixtures("fonts")
def test_a_huge_picture_is_drawn_smaller(graph, tmp_path, monkeypatch):
    monkeypatch.setattr(png, "_MOST_PIXELS", 20_000)
    graph.save(tmp_path / "graph.png")
    with Image.open(tmp_path / "graph.png") as image:
        assert 15_000 < image.width * image.height < 21_000


def test_without_the_package_says_what_to_install(graph, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'gradcheck-suite\[png\]'"):
        graph.save(tmp_path / "graph.png")
    assert not list(tmp_path.iterdir())


def test_without_fonts_says_what_to_install(graph, tmp_path, fonts):
    fonts()
    with pytest.raises(gs.UsageError, match=r"needs a font, .* install one, such as DejaVu Sans"):
        graph.save(tmp_path / "graph.png")
    assert not list(tmp_path.iterdir())
