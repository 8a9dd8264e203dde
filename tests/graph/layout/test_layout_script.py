"""The viewer of HTML pages lays graphs out as Python does, to the last bit."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from importlib.resources import files

import pytest

import gradcheck_suite as gs
from gradcheck_suite.graph.layout import sugiyama
from gradcheck_suite.graph.layout.sugiyama import Arc, layered
from gradcheck_suite.graph.layout.view import draw, picture
from gradcheck_suite.graph.render.html import graph_to_html

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")


def run(program, tmp_path):
    file = tmp_path / "layout.js"
    file.write_text(program, encoding="utf-8")
    done = subprocess.run(["node", str(file)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def generated(seed, *, boxes, arcs):
    """Return sizes, arcs and ports of a graph: with cycles, shared nets, shifts, lone boxes."""
    draw_from = random.Random(seed)
    count = draw_from.randint(1, boxes)
    sizes = [
        (draw_from.randint(10, 1200) / 7, draw_from.randint(10, 600) / 7) for _ in range(count)
    ]
    ports = [draw_from.randint(0, 3) if draw_from.random() < 0.5 else 0 for _ in range(2)]
    top = list(range(count, count + ports[0]))
    bottom = list(range(count + ports[0], count + sum(ports)))
    sizes += [(6.0, 0.0)] * sum(ports)
    is_acyclic = draw_from.random() < 0.6
    found = []
    for _ in range(draw_from.randint(0, arcs)):
        source, target = draw_from.choices(range(count), k=2)
        if source == target:
            continue
        if is_acyclic:
            source, target = sorted((source, target))
        net = target if draw_from.random() < 0.7 else count + draw_from.randrange(9)
        shifts = [
            draw_from.uniform(-0.5, 0.5) * sizes[box][0] if draw_from.random() < 0.3 else 0.0
            for box in (source, target)
        ]
        found.append(Arc(source, target, net, *shifts))
    found += [Arc(port, draw_from.randrange(count), 100 + port) for port in top]
    found += [Arc(draw_from.randrange(count), port, 100 + port) for port in bottom]
    return sizes, found, top, bottom


GRAPHS = [generated(seed, boxes=24, arcs=50) for seed in range(150)]
LIMITS = {"BENDS_AT_MOST": (120000, 30), "COUNT_CROSSINGS_UP_TO": (6000, 40)}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("lowered", [(), *((name,) for name in LIMITS)])
def test_generated_graphs(tmp_path, monkeypatch, lowered):
    script = files("gradcheck_suite.graph.render").joinpath("assets", "layout.js").read_text()
    for name in lowered:
        usual, low = LIMITS[name]
        assert f"{name} = {usual}" in script
        script = script.replace(f"{name} = {usual}", f"{name} = {low}")
        monkeypatch.setattr(sugiyama, f"_{name}", low)
    cases = [
        [
            sizes,
            [[a.source, a.target, a.net, a.source_shift, a.target_shift] for a in arcs],
            top,
            bottom,
        ]
        for sizes, arcs, top, bottom in GRAPHS
    ]
    laid = run(
        script
        + f"""
const laid = {json.dumps(cases)}.map((graph) => {{
  const placed = layered(...graph);
  return {{ ...placed, segments: [...placed.segments] }};
}});
console.log(JSON.stringify(laid));
""",
        tmp_path,
    )

    for (sizes, arcs, top, bottom), found in zip(GRAPHS, laid, strict=True):
        placed = layered(sizes, arcs, top=top, bottom=bottom)
        assert found == {
            "x": list(placed.x),
            "y": list(placed.y),
            "segments": [
                [net, [list(piece) for piece in pieces]] for net, pieces in placed.segments.items()
            ],
            "width": placed.width,
            "height": placed.height,
        }


def test_recorded_graphs_with_their_groups(subject, tmp_path):
    with gs.record(backward=True) as recording:
        loss, model = subject()
        loss.sum().backward()
    graph = recording.trace_graph(loss, model=model)
    shown = picture(graph)
    cases = [shown.states, ("open",) * len(shown.states)]
    text = graph_to_html(graph)
    data = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1]
    script = re.search(r"<script>(.*?)\(\(\) => \{", text, re.DOTALL)[1]
    found = run(
        script
        + f"""
const data = JSON.parse({json.dumps(data)});
const graph = {{
  labels: data.labels.map((l) => ({{ width: l[3], height: l[4] }})),
  nodes: data.nodes.map((n) => ({{ label: n[0], group: n[1] }})),
  groups: data.groups, edges: data.edges,
  frameTitle: (n, s) => s === "once" ? [data.groups[n].once, data.groups[n].onceWidth]
    : [data.groups[n].title, data.groups[n].titleWidth],
}};
for (const group of graph.groups) {{ group.standsFor = new Map(); group.memberOf = new Map(); }}
const out = {json.dumps(cases)}.map((states) => {{
  const d = draw(graph, states);
  return [d.boxes.map((b) => [b.item, b.x, b.y]),
    d.wires.map((w) => [w.target, w.state, w.ends, w.segments]), d.width];
}});
console.log(JSON.stringify(out));
""",
        tmp_path,
    )

    for states, (boxes, wires, width) in zip(cases, found, strict=True):
        drawing = draw(shown, states)
        assert boxes == [[f"{b.item[0][0]}{b.item[1]}", b.x, b.y] for b in drawing.boxes]
        assert wires == [
            [
                f"{wire.target[0][0]}{wire.target[1]}",
                wire.state,
                wire.ends,
                [list(segment) for segment in wire.segments],
            ]
            for wire in drawing.wires
        ]
        assert width == drawing.width
