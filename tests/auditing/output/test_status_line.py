"""The status line: drawn where nobody is in its way, gone before anybody else writes."""

from __future__ import annotations

import builtins
import io
import os
import struct
import subprocess
import sys
import time
import types
from contextlib import contextmanager

import pytest
import torch
from torch import nn

import gradcheck_suite as gs
from gradcheck_suite.auditing.output import status_line
from gradcheck_suite.auditing.output.status_line import SharedLine, open_shared_line

pytestmark = pytest.mark.skipif(os.name != "posix", reason="POSIX terminals")

ERASE = "\r\x1b[2K"


class Terminal:
    """A terminal of 60 columns, with two streams of Python's on it."""

    def __init__(self):
        import fcntl
        import pty
        import termios

        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
        self.out = self._stream()
        self.error = self._stream()

    def _stream(self):
        raw = io.FileIO(os.dup(self.slave), "w")
        return io.TextIOWrapper(io.BufferedWriter(raw), line_buffering=True)

    def read(self):
        import select

        data = b""
        while select.select([self.master], [], [], 0.05)[0]:
            data += os.read(self.master, 65536)
        return data.decode().replace("\r\n", "\n")

    @contextmanager
    def in_use(self):
        """Put the streams in the place of the test runner's, which come back at each phase."""
        kept = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = self.out, self.error
        try:
            yield
        finally:
            sys.stdout, sys.stderr = kept

    def open_line(self):
        with self.in_use():
            return open_shared_line()

    def close(self):
        for stream in (self.out, self.error):
            stream.close()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    opened = Terminal()
    yield opened
    opened.close()


@pytest.fixture
def line(terminal):
    opened = terminal.open_line()
    assert isinstance(opened, SharedLine)
    yield opened
    opened.close()


def test_it_is_drawn_in_place_and_erased(terminal, line):
    line.show("step 1")
    line.show("step 2")
    line.erase()
    line.erase()
    assert terminal.read() == f"{ERASE}step 1{ERASE}step 2{ERASE}"


def test_it_is_shortened_to_the_terminal(terminal, line):
    line.show("x" * 100)
    assert terminal.read() == ERASE + "x" * 59


@pytest.mark.parametrize("stream", ["out", "error"])
def test_the_programs_own_lines_come_on_a_clean_line(terminal, line, stream):
    line.show("step 1")
    print("epoch 1", file=getattr(terminal, stream), flush=True)
    line.show("step 2")
    assert terminal.read() == f"{ERASE}step 1{ERASE}epoch 1\n{ERASE}step 2"


def test_an_unfinished_line_is_left_alone(terminal, line):
    print("epoch 1 ...", end="", file=terminal.out, flush=True)
    line.show("step 1")
    print(" done", file=terminal.out, flush=True)
    line.show("step 2")
    assert terminal.read() == f"epoch 1 ... done\n{ERASE}step 2"


@pytest.mark.parametrize("text", ["50 %\r", "\x1b[2A", "\x1b[?25l", "abc\b", "\x1b]0;title\x07"])
def test_a_program_that_moves_the_cursor_has_the_terminal_to_itself(terminal, line, text):
    print(text, file=terminal.error, flush=True)
    terminal.read()
    line.show("step 1")
    assert terminal.read() == ""


def test_colours_move_nothing(terminal, line):
    print("\x1b[1;31mred\x1b[0m", file=terminal.out, flush=True)
    terminal.read()
    line.show("step 1")
    assert terminal.read() == f"{ERASE}step 1"


def test_a_terminal_without_echo_is_somebody_elses(terminal, line):
    import termios

    flags = termios.tcgetattr(terminal.slave)
    flags[3] &= ~termios.ECHO
    termios.tcsetattr(terminal.slave, termios.TCSANOW, flags)
    line.show("step 1")
    assert terminal.read() == ""
    flags[3] |= termios.ECHO
    termios.tcsetattr(terminal.slave, termios.TCSANOW, flags)
    line.show("step 2")
    assert terminal.read() == f"{ERASE}step 2"


def test_curses_has_the_terminal_to_itself(terminal, line, monkeypatch):
    curses = types.SimpleNamespace(isendwin=lambda: False, error=ValueError)
    monkeypatch.setitem(sys.modules, "_curses", curses)
    line.show("step 1")
    assert terminal.read() == ""
    curses.isendwin = lambda: True
    line.show("step 2")
    assert terminal.read() == f"{ERASE}step 2"


def test_curses_that_is_only_imported_is_no_hindrance(terminal, line):
    pytest.importorskip("_curses")
    line.show("step 1")
    assert terminal.read() == f"{ERASE}step 1"


def test_a_question_is_asked_on_a_clean_line(terminal, line, monkeypatch):
    line.show("step 1")
    monkeypatch.setattr(sys, "stdin", io.StringIO("yes\n"))

    def asked(_prompt):
        line.show("step 2")
        return "yes"

    assert line._watched_call(asked)("Go on?") == "yes"
    assert terminal.read() == f"{ERASE}step 1{ERASE}"
    assert builtins.input.__name__ == "input"


def test_it_keeps_away_from_children_that_share_the_terminal(terminal, line):
    line.show("step 1")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    line.show("step 2")
    child.communicate(b"\n")
    line.show("step 3")
    assert terminal.read() == f"{ERASE}step 1{ERASE}"
    print("next", file=terminal.out, flush=True)
    line.show("step 4")
    assert terminal.read() == f"next\n{ERASE}step 4"


def test_children_with_pipes_are_no_hindrance(terminal, line):
    subprocess.run([sys.executable, "-c", ""], capture_output=True, check=True)
    line.show("step 1")
    assert terminal.read() == f"{ERASE}step 1"


def test_a_forked_child_writes_on_a_clean_line_too(terminal, line):
    line.show("step 1")
    child = os.fork()
    if child == 0:
        print("from the child", file=terminal.out, flush=True)
        line.show("never")
        os._exit(0)
    os.waitpid(child, 0)
    assert terminal.read() == f"{ERASE}step 1{ERASE}from the child\n"


def test_everything_is_put_back(terminal):
    kept = builtins.input, os.system, subprocess.Popen.__init__
    opened = terminal.open_line()
    assert builtins.input is not kept[0]
    opened.show("step 1")
    opened.close()
    assert terminal.read() == f"{ERASE}step 1{ERASE}"
    assert (builtins.input, os.system, subprocess.Popen.__init__) == kept
    assert "write" not in vars(terminal.out.buffer.raw)
    opened.show("step 2")
    assert terminal.read() == ""


def test_a_terminal_that_is_gone_costs_nothing(terminal, line, monkeypatch):
    monkeypatch.setattr(status_line, "_is_ours_to_draw_on", _gone)
    line.show("step 1")
    assert terminal.read() == ""


def _gone(_terminal):
    raise OSError("gone")


@pytest.mark.parametrize(("name", "value"), [("CI", "true"), ("TERM", "dumb"), ("TERM", "")])
def test_there_is_none_where_nobody_looks(terminal, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert terminal.open_line() is None


def test_there_is_none_in_a_pipe(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert open_shared_line() is None
    assert status_line.status_line(None, tuple) is None


def test_it_tells_step_findings_and_overhead(terminal, monkeypatch):
    monkeypatch.setattr(status_line, "_FIRST_SECONDS", 0.0)
    monkeypatch.setattr(status_line, "_EVERY_SECONDS", 0.0)
    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    session = gs.audit()
    with terminal.in_use():
        shown = session._show_status()
    with session:
        for _ in range(3):
            net(torch.randn(3, 2)).sum().backward()
            optimizer.step()
    told = terminal.read()
    shown.close()
    assert "gradcheck-suite audit: backward 1, no findings, overhead" in told
    assert "gradcheck-suite audit: step 2, 1 error, overhead about" in told
    assert told.endswith(ERASE)
    assert "emit" not in vars(session._recorder.bus)
    assert session.report.summary["steps"] == 3


def test_it_comes_late_and_seldom(terminal, line, monkeypatch):
    session = gs.audit()
    shown = status_line.StatusLine(line, session._recorder, lambda: ())
    shown._draw(None)
    assert terminal.read() == ""
    now = time.perf_counter() + 3
    monkeypatch.setattr(status_line, "perf_counter", lambda: now)
    shown._draw(None)
    shown._draw(None)
    assert terminal.read().count(ERASE) == 1
