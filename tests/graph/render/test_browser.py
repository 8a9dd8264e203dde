"""The page in a real browser: what readers do with it, driven over Chromium's debugging pipe."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import gradcheck_suite as gs

BROWSERS = map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
CHROMIUM = next(filter(None, BROWSERS), None)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


# Chromium speaks through the descriptors 3 and 4.
_ON_3_AND_4 = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for end, number in zip(ends, (3, 4)):
    os.dup2(end, number)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Page:
    """One tab, and what it said, asked for and failed with."""

    def __init__(self, profile):
        to_browser, self._writer = os.pipe()
        self._reader, from_browser = os.pipe()
        self._process = subprocess.Popen(
            [
                sys.executable, "-c", _ON_3_AND_4, str(to_browser), str(from_browser), CHROMIUM,
                "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
                f"--user-data-dir={profile}", "--window-size=1366,768", "about:blank",
            ],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._number, self._session = b"", 0, None
        self.errors, self.requests = [], []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def _read(self):
        while b"\0" not in self._buffer:
            chunk = os.read(self._reader, 1 << 16)
            assert chunk, "Chromium has gone"
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(line)

    def _note(self, event):
        method, values = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(values["exceptionDetails"])
        elif method == "Log.entryAdded" and values["entry"]["level"] == "error":
            self.errors.append(values["entry"])
        elif method == "Runtime.consoleAPICalled" and values["type"] in {"error", "warning"}:
            self.errors.append(values["args"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])

    def evaluate(self, expression):
        result = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def open(self, path):
        started = time.monotonic()
        self.evaluate("document.documentElement.dataset.ready = 'old'")
        self.ask("Page.navigate", url=path.as_uri())
        while self.evaluate("document.documentElement?.dataset.ready") != "yes":
            assert time.monotonic() - started < 60
            time.sleep(0.01)

    def visit(self, path, *, dark=False, scripts=True):
        """Open a file that says nothing of itself when it is ready."""
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[theme])
        self.ask("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.ask("Page.navigate", url=path.as_uri())
        started = time.monotonic()
        while self.evaluate("document.readyState + location.href") != f"complete{path.as_uri()}":
            assert time.monotonic() - started < 60
            time.sleep(0.01)

    def key(self, key, text=None):
        more = {"text": text} if text else {}
        code = {"Enter": 13, "Escape": 27}.get(key, 0)
        for kind in ("keyDown", "keyUp"):
            self.ask(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **more
            )
            more = {}

    def click(self, selector, *, times=1):
        x, y = self.evaluate(
            f"(() => {{ const b = document.querySelector({selector!r}).getBoundingClientRect();"
            "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for count in range(1, times + 1):
            for kind in ("mousePressed", "mouseReleased"):
                self.ask(
                    "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left",
                    buttons=1, clickCount=count,
                )  # fmt: skip

    def close(self):
        self._process.kill()
        self._process.wait()
        os.close(self._writer)
        os.close(self._reader)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    tab = Page(tmp_path_factory.mktemp("profile"))
    yield tab
    tab.close()


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """The page of a six-layer encoder."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.1)
    model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    with gs.record(model, source=True) as recording:
        loss = model(torch.randn(2, 5, 16, requires_grad=True)).sum()
    path = tmp_path_factory.mktemp("page") / "graph.html"
    recording.trace_graph(loss, model=model).save(path)
    return path


@pytest.fixture
def opened(page, encoder):
    page.errors.clear()
    page.requests.clear()
    page.open(encoder)
    yield page
    assert page.errors == []
    assert [url for url in page.requests if not url.startswith(("file:", "data:"))] == []


PANEL = "document.getElementById('panel').textContent"
PLACE = "document.getElementById('place').textContent"
BOXES = "document.querySelectorAll('#world .b').length"


def test_the_page_summarises(opened):
    assert "What backward will do" in opened.evaluate(PANEL)
    assert "Saved tensors are in place" in opened.evaluate(PANEL)
    assert opened.evaluate("document.querySelector('#world .f text').textContent") == (
        "TransformerEncoder"
    )


def test_search_finds_a_node_and_shows_it(opened):
    opened.key("/", "/")
    opened.ask("Input.insertText", text="layers.3.norm1.weight")
    assert opened.evaluate("document.querySelectorAll('#hits li').length") == 1
    opened.key("Enter", "\r")

    assert "parameter layers.3.norm1.weight" in opened.evaluate(PANEL)
    x, y = opened.evaluate(
        "(() => { const b = document.querySelector('#world .selected').getBoundingClientRect();"
        "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
    )
    assert 0 < x < 1046
    assert 0 < y < 768


def test_search_says_when_there_is_nothing(opened):
    opened.key("/", "/")
    opened.ask("Input.insertText", text="no such thing")
    assert opened.evaluate(PLACE) == "nothing found"
    assert opened.evaluate("document.getElementById('next').disabled")
    assert opened.evaluate("document.getElementById('hits').hidden")
    opened.key("Escape")
    assert opened.evaluate("document.getElementById('steps').hidden")


def hits_for(page, words):
    page.key("/", "/")
    page.ask("Input.insertText", text=words)
    return page.evaluate("document.querySelectorAll('#hits li').length")


def test_search_tells_how_many_hits_there_are_and_steps_through_all(opened):
    listed = hits_for(opened, "layers")
    count = int(opened.evaluate(PLACE).partition(" ")[0])
    assert opened.evaluate(PLACE) == f"{count} hits"
    assert 0 < listed < count, "the list grows when it is needed"

    marked = "document.querySelector('#hits li.on').dataset.node"
    seen = []
    for number in range(1, count + 1):
        opened.key("ArrowDown")
        assert opened.evaluate(PLACE) == f"{number} of {count} hits"
        seen.append(int(opened.evaluate(marked)))
    assert len(set(seen)) == count
    active = "document.getElementById('search').getAttribute('aria-activedescendant')"
    assert opened.evaluate(f"document.getElementById({active}).dataset.node") == str(seen[-1])
    opened.key("ArrowDown")
    assert int(opened.evaluate(marked)) == seen[0]
    opened.key("ArrowUp")
    assert int(opened.evaluate(marked)) == seen[-1]
    opened.key("Enter", "\r")
    assert f"#{seen[-1]} in the order" in opened.evaluate(PANEL)


def test_search_knows_the_class_of_a_module(page, tmp_path):
    model = nn.Sequential(nn.Conv1d(2, 2, 1), nn.Flatten(), nn.Linear(6, 2))
    with gs.record(model) as recording:
        loss = model(torch.ones(1, 2, 3)).sum()
    recording.trace_graph(loss, model=model).save(tmp_path / "graph.html")
    page.open(tmp_path / "graph.html")
    assert hits_for(page, "linear addmm") == 1
    page.key("Enter", "\r")
    assert "2 \u00b7 Linear" in page.evaluate(PANEL)


def test_a_list_of_hits_that_is_scrolled_holds_all(opened):
    listed = hits_for(opened, "layers")
    count = int(opened.evaluate(PLACE).partition(" ")[0])
    nodes = "[...document.querySelectorAll('#hits li')].map((line) => Number(line.dataset.node))"
    for _ in range(count // listed + 1):
        opened.evaluate("document.getElementById('hits').scrollTop = 1e6")
        wait_for(opened, f"({nodes}).length >= {min(count, listed + 50)}")
        listed = len(opened.evaluate(nodes))
    assert len(set(opened.evaluate(nodes))) == count

    # From its end, reached backwards, it grows at the top.
    opened.key("Escape")
    hits_for(opened, "layers")
    opened.key("ArrowUp")
    end = opened.evaluate(nodes)
    assert 0 < len(end) <= 50
    opened.evaluate("document.getElementById('hits').scrollTop = 0")
    wait_for(opened, f"({nodes}).length > {len(end)}")
    longer = opened.evaluate(nodes)
    assert longer[-len(end) :] == end
    assert longer == sorted(set(longer))


def test_hits_are_stepped_through_in_the_picture(opened):
    hits_for(opened, "norm1.weight")
    opened.key("Enter", "\r")
    assert opened.evaluate(PLACE) == "1 of 6 hits"
    layers = [opened.evaluate(PANEL)]
    for _ in range(5):
        opened.key("n", "n")
        layers.append(opened.evaluate(PANEL))
    assert opened.evaluate(PLACE) == "6 of 6 hits"
    assert [
        f"layers.{number}.norm1.weight" in words
        for number, words in zip((5, 4, 3, 2, 1, 0), layers, strict=True)
    ] == [True] * 6
    opened.click("#next")
    assert opened.evaluate(PLACE) == "1 of 6 hits"
    opened.click("#previous")
    opened.key("N", "N")
    assert opened.evaluate(PLACE) == "5 of 6 hits"
    assert "layers.1.norm1.weight" in opened.evaluate(PANEL)


def test_the_panel_shows_line_and_saved_tensors(opened):
    opened.key("/", "/")
    opened.ask("Input.insertText", text="nativelayernorm layers.0.norm2")
    opened.key("Enter", "\r")
    words = opened.evaluate(PANEL)

    assert f"{Path(__file__).name}:" in words
    assert "in encoder" in words
    assert "Saved for backward" in words
    assert "result1" in words
    assert "Gradient goes to" in words


def test_groups_open_and_close(opened):
    before = opened.evaluate(BOXES)
    number = opened.evaluate(
        "[...document.querySelectorAll('#world .b.group')].find(g =>"
        "g.textContent.includes('self_attn')).dataset.group"
    )
    opened.evaluate(f"gradcheckSuite.goTo({_first_node(opened, number)})")
    inside = opened.evaluate(BOXES)
    assert inside > before + 10

    opened.evaluate(f"document.querySelector('#world .f[data-group=\"{number}\"] .sign').id = 'x'")
    opened.click("#x")
    assert opened.evaluate(BOXES) == before
    opened.key("Enter", "\r")
    assert opened.evaluate(BOXES) == inside


def _first_node(page, number):
    return page.evaluate(f"gradcheckSuite.graph.groups[{number}].nodes[0]")


def test_a_repeat_shows_one_or_all(opened):
    assert "one shown" in opened.evaluate("document.getElementById('world').textContent")
    group = opened.evaluate("gradcheckSuite.graph.groups.findIndex(g => g.kind === 'repeat')")
    opened.evaluate(f"document.querySelector('#world .f[data-group=\"{group}\"] rect').id = 'y'")
    opened.evaluate("gradcheckSuite.view().k")
    opened.click(f'#world .f[data-group="{group}"] text')
    opened.evaluate(
        "[...document.querySelectorAll('#panel button')].find(b =>"
        "b.textContent === 'Show all 6').click()"
    )
    titles = opened.evaluate("document.getElementById('world').textContent")
    assert "layers.0" in titles
    assert "one shown" not in titles


def test_pan_zoom_fit_theme_and_legend(opened):
    def view():
        return opened.evaluate("JSON.stringify(gradcheckSuite.view())")

    seen = [view()]
    for key in ("+", "-", "ArrowDown"):
        opened.key(key, key if len(key) == 1 else None)
        seen.append(view())
    assert len(set(seen)) == 3 or len(set(seen)) == 4
    opened.key("1", "1")
    assert view() == seen[0]
    light = opened.evaluate("getComputedStyle(document.getElementById('canvas')).backgroundColor")
    opened.key("t", "t")
    dark = opened.evaluate("getComputedStyle(document.getElementById('canvas')).backgroundColor")
    assert light != dark
    assert opened.evaluate("getComputedStyle(document.getElementById('app')).colorScheme") == "dark"
    opened.key("?", "?")
    assert opened.evaluate("document.getElementById('legend').open")


def test_labels_lie_inside_their_boxes(opened):
    for _ in range(4):
        opened.key("]", "]")
    wide = opened.evaluate(
        "[...document.querySelectorAll('#world .b')].filter(g => {"
        "const r = [...g.querySelectorAll('rect')].at(-1).getBBox();"
        "return [...g.querySelectorAll('text')].some(t => { const b = t.getBBox();"
        "return b.x < r.x || b.x + b.width > r.x + r.width || b.y < r.y ||"
        "b.y + b.height > r.y + r.height; }); }).map(g => g.textContent)"
    )
    assert wide == []


def test_hostile_names_run_nothing(page, tmp_path):
    page.errors.clear()
    model = nn.Module()
    for name in ("</script><script>document.title='bad'</script>", "<img src=x onerror=alert(1)>"):
        model._parameters[name.replace(".", "")] = nn.Parameter(torch.ones(1))
    loss = torch.stack(list(model._parameters.values())).sum()
    gs.trace_graph(loss, model=model).save(tmp_path / "bad.html")
    page.open(tmp_path / "bad.html")
    page.key("/", "/")
    page.ask("Input.insertText", text="img")
    page.key("Enter", "\r")

    assert page.evaluate("document.title").startswith("Autograd graph")
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert "<img src=x onerror=alert(1)>" in page.evaluate(PANEL)
    assert page.errors == []


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """The page of 5,000 nodes, all open."""
    y = x = torch.ones(4, requires_grad=True)
    for step in range(2_500):
        y = y.sin() + (x if step % 7 == 3 else y)
    path = tmp_path_factory.mktemp("large") / "large.html"
    gs.trace_graph(y.sum()).save(path, depth=-1)
    return path


def wait_for(page, expression):
    started = time.monotonic()
    while page.evaluate(expression) is not True:
        assert time.monotonic() - started < 30, expression
        time.sleep(0.02)


def test_five_thousand_nodes_are_ready_within_a_second(page, large):
    page.open(large)
    took = page.evaluate("performance.getEntriesByName('ready')[0].startTime")

    assert large.stat().st_size < 1_000_000
    # A second is the aim, which benchmarks measure; a busy machine takes longer.
    assert took < 10_000


def test_a_large_picture_is_drawn_where_the_reader_looks(page, large):
    page.errors.clear()
    page.open(large)
    first = page.evaluate(BOXES)
    assert 0 < first < 200

    page.evaluate("gradcheckSuite.goTo(4000)")
    assert "#4000 in the order of backward" in page.evaluate(PANEL)
    chosen = "document.querySelector('#world .b.selected[data-node=\"4000\"]')"
    wait_for(page, f"{chosen} !== null")
    x, y = page.evaluate(
        "(() => { const b = document.querySelector('#world .b.selected').getBoundingClientRect();"
        "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
    )
    assert 0 < x < 1046
    assert 0 < y < 768
    assert page.evaluate("document.querySelectorAll('#world .w.on').length") > 0

    # Zoomed out far more comes into view, without its words.
    for _ in range(30):
        page.key("-", "-")
    wait_for(page, f"{BOXES} > 1000")
    style = "getComputedStyle(document.querySelector('#world .b text')).display"
    assert page.evaluate(style) == "none"
    assert page.evaluate(BOXES) == page.evaluate(
        "new Set([...document.querySelectorAll('#world .b')].map(b => b.dataset.node)).size"
    )
    for _ in range(30):
        page.key("+", "+")
    assert page.evaluate(style) != "none"
    assert page.errors == []


def test_every_line_of_a_large_picture_is_drawn_once(page, large):
    page.open(large)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(f"{BOXES} === gradcheckSuite.draw().boxes.length")
    drawn, expected = page.evaluate(
        "(() => { const count = (d) => d.split('M').length - 1;"
        "return [[...document.querySelectorAll('#world .w')].reduce("
        "(sum, path) => sum + count(path.getAttribute('d')), 0),"
        "gradcheckSuite.draw().wires.reduce((sum, wire) => sum + wire.segments.length, 0)]; })()"
    )
    assert drawn == expected
    ends = "gradcheckSuite.draw().wires.filter(w => w.ends && w.segments.length).length"
    assert page.evaluate("document.querySelectorAll('#world .a').length") == page.evaluate(ends)


def test_names_without_end_are_cut_in_the_panel(page, tmp_path):
    name = "x" * 10_000
    model = nn.ModuleDict({name: nn.Linear(2, 2)})
    with gs.record(model) as recording:
        loss = model[name](torch.ones(1, 2)).sum()
    recording.trace_graph(loss, model=model).save(tmp_path / "graph.html")
    page.open(tmp_path / "graph.html")

    longest = f"Math.max(...({PANEL}).split(/\\s+/).map((word) => word.length))"
    assert page.evaluate(longest) < 120
    titles = "[...document.querySelectorAll('#panel [title]')].map(e => e.title.length)"
    assert max(page.evaluate(titles)) >= 10_000
    assert not page.errors


def test_a_picture_that_is_too_wide_opens_where_backward_starts(page, tmp_path):
    leaves = [torch.ones(2, requires_grad=True) for _ in range(60)]
    gs.trace_graph(torch.cat([leaf * 2 for leaf in leaves]).sum()).save(tmp_path / "wide.html")
    page.open(tmp_path / "wide.html")
    x, width = page.evaluate(
        "(() => { const b = [...document.querySelectorAll('#world .b')].find("
        "(each) => each.textContent.includes('Sum')).getBoundingClientRect();"
        "return [b.x + b.width / 2, b.width]; })()"
    )
    assert abs(x - 509) < 20
    assert width > 20


def test_each_node_of_a_finding_tells_of_it(page, tmp_path):
    x = torch.ones(20, requires_grad=True)
    out = torch.zeros(20)
    for place in range(20):
        out[place] = x[place] * 2
    graph = gs.trace_graph(out.sum())
    graph.save(tmp_path / "chain.html")
    (finding,) = graph.findings
    first, second, *_ = finding.evidence["nodes"]
    page.open(tmp_path / "chain.html")
    assert f"show #{first}" in page.evaluate(PANEL)
    page.click(f"#world .b[data-node='{second}']")
    assert f"#{second} in the order of backward" in page.evaluate(PANEL)
    assert "GCS106 slice-write-in-loop" in page.evaluate(PANEL)


COLOURS = """(() => {
  const hex = (colour) => "#" + colour.match(/\\d+/g).slice(0, 3).map(
    (part) => Number(part).toString(16).padStart(2, "0")).join("");
  const rows = [];
  for (const element of document.querySelectorAll("rect, text, path"))
    for (const name of ["fill", "stroke"]) {
      const said = element.getAttribute(name), seen = getComputedStyle(element)[name];
      if (said && said !== "none")
        rows.push([element.parentNode.getAttribute("class"), name, said, hex(seen)]);
    }
  return rows;
})()"""


@pytest.fixture
def visited(page):
    """The page, which runs scripts and is light again at the end."""
    yield page
    page.ask("Emulation.setScriptExecutionDisabled", value=False)
    page.ask("Emulation.setEmulatedMedia", features=[])


def test_a_picture_has_the_colours_that_other_viewers_see_until_it_is_dark(
    visited, tmp_path, square
):
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    with gs.record(model) as recording:
        y = square.apply(model(torch.ones(3, 2))).clone()
        y[:1] = 2 * y[1:2]
    recording.trace_graph((y - y).sqrt().sum(), model=model).save(tmp_path / "graph.svg", depth=-1)

    visited.visit(tmp_path / "graph.svg")
    light = visited.evaluate(COLOURS)
    assert len(light) > 40
    assert [row for row in light if row[2] != row[3]] == []

    visited.visit(tmp_path / "graph.svg", dark=True)
    dark = visited.evaluate(COLOURS)
    assert len(dark) == len(light)
    assert [row for row in dark if row[2] == row[3]] == []
    background = "getComputedStyle(document.documentElement).backgroundColor"
    assert visited.evaluate(background) == "rgb(18, 24, 31)"


def test_without_scripts_the_picture_is_there(visited, encoder, large):
    visited.visit(encoder, scripts=False)
    assert visited.evaluate("document.querySelector('#app').offsetHeight") == 0
    assert (
        visited.evaluate("document.querySelector('noscript svg').getBoundingClientRect().height")
        > 500
    )
    assert "TransformerEncoder" in visited.evaluate(
        "document.querySelector('noscript svg').textContent"
    )

    visited.visit(large, scripts=False)
    assert "save the graph as .svg" in visited.evaluate("document.body.innerText")


def sides(page, selector):
    """Return left, top, right and bottom of what a reader sees of it."""
    return page.evaluate(
        f"(() => {{ const b = document.querySelector({selector!r}).getBoundingClientRect();"
        "return [b.left, b.top, b.right, b.bottom]; })()"
    )


def is_within(inner, outer):
    return all(a >= b - 1 for a, b in zip(inner[:2], outer[:2], strict=True)) and all(
        a <= b + 1 for a, b in zip(inner[2:], outer[2:], strict=True)
    )


@pytest.mark.parametrize("which", ["encoder", "large"])
@pytest.mark.parametrize("size", [(1400, 900), (420, 800)])
def test_fit_shows_the_whole_graph(page, request, which, size):
    page.errors.clear()
    page.ask(
        "Emulation.setDeviceMetricsOverride",
        width=size[0], height=size[1], deviceScaleFactor=1, mobile=False,
    )  # fmt: skip
    try:
        page.open(request.getfixturevalue(which))
        opening = page.evaluate("JSON.stringify(gradcheckSuite.view())")
        assert not is_within(sides(page, "#world"), sides(page, "#canvas"))
        assert page.evaluate("gradcheckSuite.view().k") >= 0.5, "it opens so that it can be read"

        page.click("#fit")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        world, canvas = sides(page, "#world"), sides(page, "#canvas")
        assert is_within(world, canvas)
        # And no smaller than it must be.
        spans = [(world[i + 2] - world[i]) / (canvas[i + 2] - canvas[i]) for i in (0, 1)]
        assert max(spans) > 0.85

        page.key("1", "1")
        assert page.evaluate("JSON.stringify(gradcheckSuite.view())") == opening
        page.key("0", "0")
        assert is_within(sides(page, "#world"), sides(page, "#canvas"))
        assert page.errors == []
    finally:
        page.ask("Emulation.clearDeviceMetricsOverride")


def press(page, points):
    """Press the mouse at the first point, move over the others, and let go at the last."""
    kinds = ["mousePressed", *["mouseMoved"] * (len(points) - 1), "mouseReleased"]
    for kind, (x, y) in zip(kinds, [*points, points[-1]], strict=True):
        page.ask(
            "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1
        )


MINIMAP = "document.getElementById('minimap')"


def test_a_minimap_shows_where_the_window_is_and_moves_it(page, large):
    page.errors.clear()
    page.open(large)
    assert page.evaluate(f"!{MINIMAP}.hidden")
    assert is_within(sides(page, "#minimap"), sides(page, "#canvas"))
    left, top, right, bottom = sides(page, "#minimap")
    frame = "#minimap > div"
    assert abs(sides(page, frame)[1] - top) < 2, "it opens at the top"

    # A click brings the middle of the window there.
    middle, y = (left + right) / 2, top + (bottom - top) * 0.75
    press(page, [(middle, y)])
    height = "gradcheckSuite.draw().height"
    centre = "(document.getElementById('canvas').clientHeight / 2 - gradcheckSuite.view().y)"
    share = f"{centre} / gradcheckSuite.view().k / {height}"
    assert abs(page.evaluate(share) - 0.75) < 0.01
    assert sides(page, frame)[1] - 2 < y < sides(page, frame)[3] + 2
    wait_for(page, f"{BOXES} > 5")

    # A drag takes the frame along.
    press(page, [(middle, y), (middle, y - 20), (middle, top + (bottom - top) * 0.25)])
    assert abs(page.evaluate(share) - 0.25) < 0.02
    before = sides(page, frame)[1]
    page.key("ArrowDown")
    for _ in range(200):
        page.key("ArrowDown")
    assert sides(page, frame)[1] > before

    # Readers without a mouse have the arrows, and are not told of it.
    assert page.evaluate(f"{MINIMAP}.getAttribute('aria-hidden')") == "true"
    assert page.evaluate(f"{MINIMAP}.querySelectorAll('[tabindex], button, a').length") == 0
    page.key("0", "0")
    assert page.evaluate(f"{MINIMAP}.hidden"), "all is in view"
    assert page.errors == []


def test_a_graph_that_fits_has_no_minimap(page, tmp_path):
    gs.trace_graph((torch.ones(2, requires_grad=True) * 2).sum()).save(tmp_path / "small.html")
    page.open(tmp_path / "small.html")
    assert page.evaluate(f"{MINIMAP}.hidden")
    for _ in range(12):
        page.key("+", "+")
    assert page.evaluate(f"!{MINIMAP}.hidden")


def test_the_minimap_marks_what_findings_are_about(page, tmp_path):
    y = x = torch.zeros(3, requires_grad=True)
    for _ in range(30):
        y = y + x
    with gs.record(backward=True) as recording:
        y.sqrt().sum().backward()
    recording.graph.save(tmp_path / "found.html")
    page.open(tmp_path / "found.html")
    fill = "getComputedStyle(document.querySelector('#minimap .map-flagged')).fill"
    assert page.evaluate(fill) == "rgb(194, 65, 12)"
    assert page.evaluate("document.querySelectorAll('#minimap .map-leaf').length") == 1


def test_two_fingers_zoom_and_one_moves(opened):
    def touch(kind, *points):
        opened.ask(
            "Input.dispatchTouchEvent", type=kind, touchPoints=[{"x": x, "y": y, "id": number}
            for number, (x, y) in enumerate(points)],
        )  # fmt: skip

    def view():
        return opened.evaluate("gradcheckSuite.view()")

    before = view()
    touch("touchStart", (300, 300))
    for step in range(1, 6):
        touch("touchMove", (300, 300 + 10 * step))
    touch("touchEnd")
    moved = view()
    assert moved["k"] == before["k"]
    assert 30 < moved["y"] - before["y"] <= 50

    touch("touchStart", (300, 300))
    touch("touchStart", (300, 300), (400, 300))
    for step in range(1, 6):
        touch("touchMove", (300 - 10 * step, 300), (400 + 10 * step, 300))
    touch("touchEnd")
    assert abs(view()["k"] / moved["k"] - 2) < 0.1
    # What was between the fingers stays there.
    inside = [(350 - v["x"]) / v["k"] for v in (moved, view())]
    assert abs(inside[0] - inside[1]) < 10


def test_hits_stay_in_a_narrow_window(page, encoder):
    page.ask(
        "Emulation.setDeviceMetricsOverride",
        width=420, height=800, deviceScaleFactor=1, mobile=False,
    )  # fmt: skip
    try:
        page.open(encoder)
        assert hits_for(page, "layers") > 10
        window = [0, 0, 420, 800]
        for selector in ("#hits", "#search", "#next", "#canvas", "#panel"):
            assert is_within(sides(page, selector), window), selector
        assert page.evaluate("document.documentElement.scrollWidth") == 420
    finally:
        page.ask("Emulation.clearDeviceMetricsOverride")
