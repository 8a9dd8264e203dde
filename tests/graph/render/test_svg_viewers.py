"""SVG files in viewers that are no browsers: what is on each pixel."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from functools import partial
from xml.etree import ElementTree

import pytest
import torch
from PIL import Image, ImageChops
from torch import nn

import gradcheck_suite as gs
from gradcheck_suite.graph.render.svg import graph_to_svg

ZOOM = 4
PAPER, INK, QUIET, LINE, BAD = "#ffffff", "#1f2933", "#52606d", "#7b8794", "#c2410c"
FILLS = {
    "error": "#ffe8dc",
    "group": "#e8ecf1",
    "in-place": "#fdf0d5",
    "custom-function": "#f6e3ef",
    "leaf": "#dceefb",
    "op": "#f5f7fa",
}
OUTLINES = {
    "error": "#c2410c",
    "group": "#616e7c",
    "in-place": "#b97700",
    "custom-function": "#a5468a",
    "leaf": "#0072b2",
    "op": "#9aa5b1",
}


def by_resvg(svg, *, draw_svg):
    return draw_svg(svg_string=svg, zoom=ZOOM)


def by_librsvg(svg, *, draw_svg):
    del draw_svg
    done = subprocess.run(
        ["rsvg-convert", f"--zoom={ZOOM}"], input=svg.encode(), capture_output=True, check=True
    )
    return done.stdout


RENDERERS = [by_resvg, *([by_librsvg] if shutil.which("rsvg-convert") else [])]


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


def graph_of_everything():
    """A graph with an op, leaf, custom Function, write, finding and bad and zero gradients."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh())

    def loss():
        y = Square.apply(model(torch.ones(5, 4)))
        buffer = y.clone()
        buffer[:, :2] = y[:, 2:4] * 3
        return buffer.sum() + (y * 0).sum() + (y - y).sqrt().sum()

    with gs.record(model, backward=True) as recording:
        total = loss()
        total.backward()
    return recording.trace_graph(total, model=model)


class Picture:
    """The pixels of a rendered SVG document, found by its elements."""

    def __init__(self, svg, png):
        self.image = Image.open(io.BytesIO(png)).convert("RGB")
        self.root = ElementTree.fromstring(svg.encode())
        moved = next(e for e in self.root if e.get("transform"))
        self.shift = [float(part) for part in moved.get("transform")[10:-1].split()]

    def elements(self, tag):
        return [e for e in self.root.iter() if e.tag.rpartition("}")[2] == tag]

    def boxes(self):
        """Yield the class that says the colours, and the box in the unit of the document."""
        for group in self.elements("g"):
            classes = (group.get("class") or "").split()
            if "b" in classes:
                rect = [e for e in group if e.tag.endswith("rect")][-1]
                x, y, width, height = (float(rect.get(k)) for k in ("x", "y", "width", "height"))
                kind = next(name for name in FILLS if name in classes)
                yield kind, (x + self.shift[0], y + self.shift[1], width, height)

    def at(self, x, y):
        pixel = self.image.getpixel((int(x * ZOOM), int(y * ZOOM)))
        return "#{:02x}{:02x}{:02x}".format(*pixel)

    def has(self, colour, x, y, width, height):
        """Whether a pixel within has the colour, or nearly: letters are thin."""
        area = [int(value * ZOOM) for value in (x, y, x + width, y + height)]
        part = self.image.crop(area)
        apart = ImageChops.difference(part, Image.new("RGB", part.size, colour))
        return any(max(pixel) <= 16 for _, pixel in apart.getcolors(apart.width * apart.height))


@pytest.fixture(scope="module", params=RENDERERS)
def render(request, draw_svg):
    return partial(request.param, draw_svg=draw_svg)


@pytest.fixture(scope="module")
def svg():
    return graph_to_svg(graph_of_everything(), depth=-1)


@pytest.fixture(scope="module")
def drawn(svg, render):
    return Picture(svg, render(svg))


class TestEachViewerDraws:
    def test_the_background(self, drawn):
        width, height = (side / ZOOM for side in drawn.image.size)
        corners = [(1, 1), (width - 1, 1), (1, height - 1), (width - 1, height - 1)]
        assert {drawn.at(*corner) for corner in corners} == {PAPER}

    def test_the_boxes(self, drawn):
        seen = set()
        for kind, (x, y, width, height) in drawn.boxes():
            assert drawn.at(x + 4, y + height / 2) == FILLS[kind], kind
            assert drawn.has(OUTLINES[kind], x - 1, y + height / 2, 2, 2), kind
            assert drawn.has(INK, x + 4, y + 4, width - 8, 15), "the title"
            if height > 30:
                assert drawn.has(QUIET, x + 4, y + 22, width - 8, height - 26), "the lines"
            seen.add(kind)
        assert seen == {*FILLS} - {"group"}

    def test_the_words_above(self, drawn):
        width = drawn.image.width / ZOOM
        assert drawn.has(QUIET, 2, 10, width - 4, 14)

    def test_frames_and_their_titles(self, drawn):
        framed = [g for g in drawn.elements("g") if g.get("class") == "f"]
        outlines = [g[0] for g in framed if g[0].tag.endswith("rect")]
        titles = [g[-1] for g in framed if g[-1].tag.endswith("text")]
        assert outlines
        assert len(titles) == len(outlines)
        for title in titles:
            x, y = float(title.get("x")) + drawn.shift[0], float(title.get("y")) + drawn.shift[1]
            assert drawn.has(QUIET, x, y - 9, 20, 10), "letters are not hidden by their outline"
            assert drawn.has(PAPER, x - 1, y - 9, 20, 10)
        for outline in outlines:
            x = float(outline.get("x")) + drawn.shift[0]
            y = float(outline.get("y")) + drawn.shift[1]
            inside = Image.new("RGB", (1, 1), drawn.at(x + 3, y + 12)).getpixel((0, 0))
            assert all(220 < value < 255 for value in inside), "a light tint"

    def test_the_lines(self, drawn):
        arrows = [e.get("d") for e in drawn.elements("path") if e.get("class") == "a"]
        for arrow in arrows:
            x, y = map(float, arrow[1:].partition("l")[0].split())
            assert drawn.has(LINE, x + drawn.shift[0] - 1, y + drawn.shift[1] - 6, 2, 3)
        bad = [e.get("d") for e in drawn.elements("path") if e.get("class") == "w bad"]
        for path in bad:
            x, y = (float(number) for number in path[1:].replace("V", "C").split("C")[0].split())
            assert drawn.has(BAD, x + drawn.shift[0] - 2, y + drawn.shift[1], 4, 6)
        assert len(arrows) > 10
        assert bad

    def test_nothing_is_black(self, drawn):
        assert not drawn.has("#000000", 0, 0, *(side / ZOOM for side in drawn.image.size))

    def test_that_this_test_can_fail(self, svg, render):
        """Colours that only browsers know are black elsewhere."""
        variables = re.sub(r' fill="#[0-9a-f]{6}"', ' style="fill:var(--paper)"', svg)
        drawn = Picture(variables, render(variables))
        assert drawn.at(1, 1) == "#000000"


@pytest.mark.slow
def test_closed_groups(draw_svg):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    with gs.record(model) as recording:
        loss = model(torch.ones(1, 2, 8)).sum()
    svg = graph_to_svg(recording.trace_graph(loss, model=model), depth=1)
    drawn = Picture(svg, by_resvg(svg, draw_svg=draw_svg))
    groups = [box for kind, box in drawn.boxes() if kind == "group"]
    assert groups
    for x, y, _width, height in groups:
        assert drawn.at(x + 4, y + height / 2) == FILLS["group"]
