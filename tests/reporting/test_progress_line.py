from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import time

import pytest

from gradcheck_suite.reporting import progress as progress_module
from gradcheck_suite.reporting.progress import ProgressHandle, progress

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"

pty = pytest.importorskip("pty", reason="this system has no pseudo-terminals")

PROGRAM = """
import sys, time
from gradcheck_suite.reporting import progress as module
module._DELAY_SECONDS = {delay}
{body}
print("rich" in sys.modules)
"""
WORK = """
with module.progress("Checking [b]layers[/b]", total=3) as bar:
    for number in range(3):
        time.sleep(0.15)
        bar.advance()
        bar.describe(f"layer {number}\\x1b[2J")
    time.sleep(0.15)
"""


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


def run_on_terminal(body, *, delay=0.05, **environment):
    """Run a program whose standard error is a terminal; return its stdout, stderr and status."""
    settings = {
        key: value
        for key, value in os.environ.items()
        if key not in {"CI", "NO_COLOR", "FORCE_COLOR", "TERM"}
    }
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(delay=delay, body=body)],
        env={**settings, "TERM": "xterm-256color", **environment},
        stdout=subprocess.PIPE,
        stderr=follower,
        text=True,
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            chunk = os.read(leader, 4096)
        except OSError:  # how Linux says that nobody holds the other end
            break
        if not chunk:
            break
        shown += chunk
    os.close(leader)
    out, _ = process.communicate()
    return out, shown.decode(), process.returncode


def test_long_work_is_shown_and_wiped_away():
    out, shown, status = run_on_terminal(WORK)
    assert status == 0
    assert out == "True\n"
    assert "Checking [b]layers[/b]" in shown
    assert "layer 1\\x1b[2J" in shown
    assert "3/3" in shown
    assert shown.count(HIDE_CURSOR) == shown.count(SHOW_CURSOR) == 1
    assert shown.rstrip("\r\n").endswith("\x1b[2K")


def test_quick_work_is_not_shown_and_costs_no_import():
    out, shown, status = run_on_terminal(WORK, delay=60)
    assert (out, shown, status) == ("False\n", "", 0)


@pytest.mark.parametrize("environment", [{"CI": "true"}, {"TERM": "dumb"}])
def test_where_nobody_watches_nothing_is_shown(environment):
    out, shown, status = run_on_terminal(WORK, **environment)
    assert (out, shown, status) == ("False\n", "", 0)


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "ValueError('the work itself failed')"])
def test_an_exception_passes_and_the_cursor_comes_back(error):
    body = f"""
with module.progress("Checking") as bar:
    time.sleep(0.3)
    raise {error}
"""
    _, shown, status = run_on_terminal(body)
    assert status != 0
    assert error.partition("(")[0] in shown
    assert shown.count(HIDE_CURSOR) == shown.count(SHOW_CURSOR) == 1
    assert shown.index(SHOW_CURSOR) < shown.index("Traceback")


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    "happening", ["sys.stderr.close()", "sys.stderr = None", "sys.stderr = open('/dev/null', 'w')"]
)
def test_a_stream_that_is_closed_or_replaced_meanwhile_breaks_nothing(happening):
    body = f"""
with module.progress("Checking") as bar:
    time.sleep(0.3)
    {happening}
    bar.advance()
    time.sleep(0.3)
"""
    out, shown, status = run_on_terminal(body)
    assert (out, status) == ("True\n", 0)
    assert "Traceback" not in shown


def test_only_the_outer_of_two_is_shown():
    body = """
with module.progress("outer"):
    time.sleep(0.2)
    with module.progress("inner"):
        time.sleep(0.3)
    time.sleep(0.2)
with module.progress("later"):
    time.sleep(0.3)
"""
    _, shown, status = run_on_terminal(body)
    assert status == 0
    assert "outer" in shown
    assert "later" in shown
    assert "inner" not in shown


def test_standard_output_is_left_alone():
    body = """
before = sys.stdout, sys.stderr
with module.progress("Checking"):
    time.sleep(0.3)
    assert (sys.stdout, sys.stderr) == before
    print("from the work")
"""
    out, _, status = run_on_terminal(body)
    assert (out, status) == ("from the work\nTrue\n", 0)


@pytest.mark.parametrize("stream", [None, io.StringIO(), object()])
def test_without_a_terminal_the_handle_does_nothing(monkeypatch, stream):
    monkeypatch.setattr(sys, "stderr", stream)
    with progress("Checking", total=2) as bar:
        assert type(bar) is ProgressHandle
        bar.advance()
        bar.describe("more")


def test_work_goes_on_where_no_thread_can_start(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with progress("Checking") as bar:
        bar.show()
        bar.advance()
    assert sys.stderr.getvalue().count(HIDE_CURSOR) == sys.stderr.getvalue().count(SHOW_CURSOR)
    monkeypatch.undo()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", Terminal())
        patch.delenv("CI", raising=False)
        patch.setenv("TERM", "xterm")
        with progress("Checking again") as bar:
            bar.show()
        assert "Checking again" in sys.stderr.getvalue()


def test_a_closed_stream_is_no_terminal(monkeypatch):
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress("Checking") as bar:
        bar.advance(3)


def test_no_thread_outlives_the_work(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress_module, "_DELAY_SECONDS", 0.01)
    monkeypatch.setattr(sys, "stderr", Terminal())
    before = threading.active_count()
    with progress("Checking") as bar:
        deadline = time.monotonic() + 10
        while not sys.stderr.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
        bar.advance()
    assert "Checking" in sys.stderr.getvalue()
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


SLOW = """
import torch
import gradcheck_suite as gs

def slow(x):
    time.sleep(0.2)
    return x.sin()

{call}
"""


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("gs.check_gradients(slow, torch.ones(2, requires_grad=True))", "Checking gradients"),
        ("gs.localize(slow, torch.ones(2, requires_grad=True))", "Localizing"),
    ],
)
def test_a_check_that_is_called_shows_how_far_it_is(call, words):
    out, shown, status = run_on_terminal(SLOW.format(call=call))
    assert (status, out) == (0, "True\n")
    assert words in shown
    assert shown.count(HIDE_CURSOR) == shown.count(SHOW_CURSOR) == 1
    _, shown, _ = run_on_terminal(SLOW.format(call=call), CI="true")
    assert not shown
