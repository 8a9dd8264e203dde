"""What reports, ledgers and graphs show in a notebook, and the notebook of the examples."""

from __future__ import annotations

import ast
import html.parser
import json
import linecache
import re
from pathlib import Path

import pytest
import torch

import gradcheck_suite as gs
from gradcheck_suite.findings import Finding, Location, Report
from gradcheck_suite.severity import Severity

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook" / "tour.ipynb"
CELLS = [
    "".join(cell["source"])
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    if cell["cell_type"] == "code"
]
VOID = {"meta", "br", "rect", "path", "line", "circle", "use", "polygon"}


class Fragment(html.parser.HTMLParser):
    """Reads a piece of a page, and insists that its elements nest."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts = [], set(), []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        assert not any(name.startswith("on") for name, _ in attributes)
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_startendtag(self, tag, _attributes):
        self.tags.add(tag)

    def handle_data(self, data):
        if "style" not in self.open:
            self.texts.append(data)

    @property
    def text(self):
        return " ".join("".join(self.texts).split())


def shown(value):
    """What a notebook shows for a value, as IPython's formatters ask for it."""
    bundle = getattr(value, "_repr_mimebundle_", None)
    if bundle is not None:
        return bundle(include=None, exclude=None)
    return {"text/html": value._repr_html_()} if hasattr(value, "_repr_html_") else {}


def run_cells(cells):
    """Run cells as a kernel does; return what each shows."""
    namespace, outputs = {"__name__": "__main__"}, []
    for number, source in enumerate(cells):
        file = f"<cell {number}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        tree = ast.parse(source)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, file, "exec"), namespace)
        value = None
        if last is not None:
            value = eval(compile(ast.Expression(last.value), file, "eval"), namespace)
        outputs.append(shown(value))
    return outputs


def test_the_notebook_of_the_examples_shows_what_it_tells_of():
    _, checked, audited, ledger, graph = run_cells(CELLS)
    assert "GCS601" in Fragment(checked["text/html"]).text
    assert "GCS601" in checked["text/plain"]
    told = Fragment(audited["text/html"]).text
    assert "GCS301" in told
    assert "what happened in 4 steps" in told
    assert Fragment(ledger["text/html"]).text.startswith("what happened in 4 steps")
    assert "svg" in Fragment(graph["text/html"]).tags
    assert "MeanBackward0" in graph["text/plain"] or "mean" in graph["text/plain"]


def test_the_notebook_is_kept_without_outputs():
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None


@pytest.mark.slow
def test_a_kernel_of_jupyter_shows_the_same():
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    outputs = [
        output["data"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.output_type == "execute_result" and "text/html" in output["data"]
    ]
    words = ("GCS601", "GCS301", "what happened in 4 steps", "<svg")
    assert len(outputs) == len(words)
    for data, expected in zip(outputs, words, strict=True):
        assert expected in data["text/html"]
        assert len(data["text/plain"]) < 20_000
    told = "".join(data["text/html"] for data in outputs)
    assert "In[" in told
    assert "ipykernel_" not in told


def test_styles_do_not_leave_the_report():
    text = shown(Report("gradcheck-lint"))["text/html"]
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert style.startswith("@scope (.gradcheck-suite) {")
    assert style.count("{") == style.count("}")
    assert ":root" not in style
    assert not re.search(r"(?m)^body", style)
    assert not re.search(r"https?://|url\(|@import|<script", text)


def test_names_of_the_program_can_not_be_markup():
    hostile = "</div><script>alert(1)</script>\u202e"
    finding = Finding("GCS1", hostile, Severity.ERROR, hostile, "lint", Location(hostile, 1))
    bundle = shown(Report(hostile, (finding,)))
    assert "script" not in Fragment(bundle["text/html"]).tags
    assert "\u202e" not in bundle["text/html"] + bundle["text/plain"]


def test_a_large_graph_shows_as_text_what_a_reader_can_read():
    value = torch.ones(3, requires_grad=True)
    for _ in range(2000):
        value = value.sin()
    bundle = shown(gs.trace_graph(value.sum()))
    assert len(bundle["text/plain"]) < 20_000


def test_a_comparison_of_graphs_is_its_table():
    weight = torch.ones(3, requires_grad=True)
    diff = gs.diff_graphs(
        gs.trace_graph(weight.sin().sum()), gs.trace_graph(weight.sin().cos().sum())
    )
    bundle = shown(diff)
    assert bundle["text/plain"] == str(diff)
    assert "CosBackward0" in Fragment(bundle["text/html"]).text
