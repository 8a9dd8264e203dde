"""SVG, HTML, DOT, JSON and notebooks."""

from __future__ import annotations

import dataclasses
import json
import re
from xml.etree import ElementTree

import jsonschema
import pytest
import torch
from torch import nn

import gradcheck_suite as gs
from gradcheck_suite.graph.layout.text_metrics import shortened, text_width
from gradcheck_suite.graph.layout.view import picture
from gradcheck_suite.graph.render.html import graph_to_html
from gradcheck_suite.graph.render.json import graph_to_json, read_schema
from gradcheck_suite.graph.render.svg import graph_to_svg

HOSTILE = [
    "</script><script>alert(1)</script>",
    '"quoted" \\ back',
    "new\nline\x00\x1b[31m",
    "x" * 10_000,
    "\u202egnp.exe \u2028 \ud800",
    "&lt;b&gt; <img src=x onerror=alert(1)>",
]


class Hostile(nn.Module):
    """A module whose parameters have names that no one should have."""

    def __init__(self):
        super().__init__()
        for name in HOSTILE:
            self._parameters[name.replace(".", "")] = nn.Parameter(torch.ones(2))

    def forward(self):
        return torch.stack(list(self._parameters.values())).sum()


def recorded(build, **options):
    with gs.record(**options) as recording:
        loss, model = build()
    return recording.trace_graph(loss, model=model)


@pytest.fixture
def hostile():
    return recorded(lambda: ((model := Hostile())(), model), source=True)


def parsed(svg):
    return ElementTree.fromstring(svg.encode())


def leaf_titles(graph):
    return {
        label.title
        for node, label in zip(graph.nodes, picture(graph).node_labels, strict=True)
        if node.leaf
    }


class TestSvg:
    def test_every_node_has_its_box_with_its_words(self, subject):
        graph = recorded(subject)
        root = parsed(graph_to_svg(graph, depth=-1))

        boxes = [g for g in root.iter() if "data-node" in g.attrib]
        assert sorted(int(box.get("data-node")) for box in boxes) == [n.id for n in graph.nodes]
        for box in boxes:
            node = graph.node(int(box.get("data-node")))
            words = [element.text for element in box if element.tag.endswith("text")]
            if node.leaf:
                assert node.leaf.name.endswith(words[0].removesuffix(" leaf"))
            else:
                assert node.op.startswith(words[0].split()[0])

    def test_leaves_bear_the_name_that_no_frame_round_them_says(self):
        """Ten boxes called "weight" tell nobody which is which."""
        plain = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        model = nn.Sequential(plain, nn.Linear(8, 8, bias=False))
        model[1].weight = plain.linear1.weight = nn.Parameter(torch.randn(8, 8))
        plain.linear1.bias = nn.Parameter(torch.randn(8))
        plain.linear2.weight = nn.Parameter(torch.randn(8, 8))
        x = torch.randn(2, 5, 8)

        traced = gs.trace_graph(model(x).sum(), model=model)
        assert leaf_titles(traced) == {leaf.leaf.name for leaf in traced.leaves}

        in_frames = leaf_titles(recorded(lambda: (model(x).sum(), model)))
        # A normalisation is one op, which has no frame of its own; a shared weight is in none.
        assert {"norm1.weight", "norm2.weight", "0.linear1.weight", "in_proj_weight"} <= in_frames
        # Within the frame of its module a name is said without it.
        assert {"bias", "weight"} <= in_frames

    def test_labels_fit_into_their_boxes(self, subject):
        for label in picture(recorded(subject)).node_labels:
            assert text_width(label.title, size=12, bold=True) < label.width
            assert all(text_width(line, size=10) < label.width for line in label.lines)

    def test_the_same_program_gives_the_same_picture(self, subject):
        assert graph_to_svg(recorded(subject)) == graph_to_svg(recorded(subject))

    def test_hostile_names_stay_text(self, hostile):
        for depth in (None, -1):
            svg = graph_to_svg(hostile, depth=depth)
            tags = {element.tag.rpartition("}")[2] for element in parsed(svg).iter()}
            assert tags <= {"svg", "title", "style", "rect", "text", "g", "path"}
            assert len(svg) < 40_000, "long names are shortened"

    def test_findings_and_bad_gradients_are_marked_and_not_by_colour_alone(self):
        x = torch.zeros(3, requires_grad=True)
        with gs.record(backward=True) as recording:
            x.sqrt().sum().backward()
        svg = graph_to_svg(recording.graph)

        assert 'class="w bad"' in svg
        assert 'class="b op error"' in svg
        assert ">!</text>" in svg

    def test_the_picture_says_which_findings_there_are(self):
        x = torch.zeros(3, requires_grad=True)
        with gs.record(backward=True) as recording:
            x.sqrt().sum().backward()
        root = parsed(graph_to_svg(recording.graph))

        title, *tooltips = (e.text for e in root.iter() if e.tag.endswith("title"))
        assert title.endswith("1 finding: GCS604 non-finite-gradient")
        assert root.get("aria-label") == title
        assert "#2 SqrtBackward0: GCS604 non-finite-gradient" in tooltips
        words = " ".join(e.text for e in root if e.tag.endswith("text"))
        (finding,) = recording.graph.findings
        assert f"1 finding error GCS604 non-finite-gradient: {finding.message}" in words

    def test_of_many_findings_all_are_named(self):
        x = torch.zeros(3, requires_grad=True)
        found = gs.trace_graph(x.float().sum() + x.double().sum())
        (finding,) = found.findings
        many = dataclasses.replace(
            found, report=dataclasses.replace(found.report, findings=(finding,) * 5)
        )
        root = parsed(graph_to_svg(many))
        lines = [e.text for e in root if e.tag.endswith("text")]
        assert lines[-1] == f"and 2 more: {finding.code} {finding.rule}"
        assert all(text_width(line, size=10) <= float(root.get("width")) for line in lines)

    def test_the_worst_finding_comes_first(self):
        model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        with gs.record(model, backward=True) as recording:
            y = model[0](torch.ones(1, 2)).double().float()
            loss = (y - y).sqrt().sum()
            loss.backward()
        graph = recording.trace_graph(loss, model=model)
        severities = ["error", "warning", "note"]
        assert sorted(f.severity.value for f in graph.findings) == sorted(severities)

        root = parsed(graph_to_svg(graph))
        words = " ".join(e.text for e in root if e.tag.endswith("text"))
        places = [words.index(f" {severity} GCS") for severity in severities]
        assert places == sorted(places)
        data = re.search(r'id="data">(.*?)</script>', graph_to_html(graph), re.DOTALL)[1]
        assert [finding[0] for finding in json.loads(data)["findings"]] == severities

    def test_of_several_losses_each_is_named_where_its_backward_starts(self):
        x = torch.ones(3, requires_grad=True)
        shown = picture(gs.trace_graph({"d": x.sum(), "g": [x.sin().sum()]}))
        lines = {label.lines[0] for label in shown.node_labels}
        assert {"backward from ['d']", "backward from ['g'][0]"} <= lines
        alone = picture(gs.trace_graph(x.sum()))
        assert not any("backward from" in line for n in alone.node_labels for line in n.lines)

    def test_zero_gradients_are_dotted(self):
        x = torch.ones(3, requires_grad=True)
        with gs.record(backward=True) as recording:
            (x * 0).sum().backward()
        assert 'class="w zero"' in graph_to_svg(recording.graph)

    def test_a_graph_of_one_node(self):
        graph = gs.trace_graph(torch.ones(2, requires_grad=True))
        assert parsed(graph_to_svg(graph)) is not None
        assert "unnamed leaf" in graph._repr_html_()

    def test_notebooks_get_the_picture(self, subject):
        html = recorded(subject)._repr_html_()
        assert html.startswith("<div")
        assert "<svg" in html
        assert "<?xml" not in html


class TestHtml:
    def test_is_one_file_that_asks_for_nothing(self, subject, tmp_path):
        graph = recorded(subject)
        graph.save(tmp_path / "graph.html")
        text = (tmp_path / "graph.html").read_text(encoding="utf-8")

        assert not re.search(r"""(src|href)\s*=\s*["']|@import|url\(|fetch\(|XMLHttp""", text)
        assert "default-src 'none'" in text
        assert set(re.findall(r"https?://[^\s\"'<]+", text)) <= {"http://www.w3.org/2000/svg"}

    def test_hostile_names_stay_in_the_data(self, hostile):
        text = graph_to_html(hostile)

        assert text.count("<script") == 2
        assert text.count("</script>") == 2
        assert "<img" not in text
        data = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1]
        assert not re.search(r"[<>&]", data)
        words = json.loads(data)["strings"]
        assert any("</script><script>alert(1)</script>" in word for word in words)

    def test_large_graphs_stay_small_files(self):
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        graph = recorded(lambda: (model(torch.ones(1, 2, 8)).sum(), model))
        assert len(graph_to_html(graph).encode()) < 200_000


class TestDot:
    def test_nodes_edges_and_modules(self, small_resnet, tmp_path):
        graph = recorded(lambda: (small_resnet(torch.ones(1, 3, 8, 8)).sum(), small_resnet))
        graph.save(tmp_path / "graph.dot")
        text = (tmp_path / "graph.dot").read_text(encoding="utf-8")

        assert len(re.findall(r"^ *n\d+ \[label=", text, re.MULTILINE)) == len(graph.nodes)
        assert len(re.findall(r"n\d+ -> n\d+", text)) == len(graph.edges)
        assert 'label="blocks.0.norm"' not in text, "a call with one op needs no frame"
        assert 'label="blocks.0"' in text
        assert text.count("{") == text.count("}")

    def test_hostile_names_end_no_label(self, hostile, tmp_path):
        hostile.save(tmp_path / "graph.gv")
        for line in (tmp_path / "graph.gv").read_text(encoding="utf-8").splitlines():
            assert len(re.findall(r'(?<!\\)(?:\\\\)*"', line)) % 2 == 0


class TestJson:
    def test_fits_its_schema(self, subject):
        def build():
            loss, model = subject()
            loss.sum().backward()
            return loss, model

        document = json.loads(graph_to_json(recorded(build, source=True, backward=True)))
        jsonschema.validate(document, read_schema())
        assert document["edges"][0]["gradient"]
        assert document["nodes"][0]["source"]["line"]

    def test_hostile_names(self, hostile):
        jsonschema.validate(json.loads(graph_to_json(hostile)), read_schema())

    def test_the_schema_can_fail(self, subject):
        document = json.loads(graph_to_json(recorded(subject)))
        document["nodes"][0]["kind"] = "thing"
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(document, read_schema())


def test_text_widths():
    assert text_width("", size=10) == 0
    assert text_width("iii", size=10) < text_width("WWW", size=10)
    assert text_width("W", size=10, bold=True) > text_width("W", size=10)
    assert text_width("\u4e00", size=10) > 10
    assert shortened("abcdefghij", 5) == "ab…ij"
    assert shortened("abc", 5) == "abc"
