from __future__ import annotations

import linecache
import os

import pytest

from gradcheck_suite.findings import Location
from gradcheck_suite.reporting.source import SourceLines


def lines_of(path):
    return list(SourceLines().of(str(path)))


@pytest.fixture
def write(tmp_path):
    def write(data):
        path = tmp_path / "code.py"
        path.write_bytes(data)
        return path

    return write


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"a = 1\nb = 2\n", ["a = 1", "b = 2", ""]),
        (b"a = 1\r\nb = 2\rc = 3", ["a = 1", "b = 2", "c = 3"]),
        (b"\xef\xbb\xbfa = 1", ["a = 1"]),
        (b"a = '\xc3\xa9'", ["a = '\u00e9'"]),
        (b"# coding: latin-1\na = '\xe9'", ["# coding: latin-1", "a = '\u00e9'"]),
        (b"a = '\xff'\n", ["a = '\ufffd'", ""]),
        (b"# coding: no-such\na = '\xc3\xa9'", ["# coding: no-such", "a = '\u00e9'"]),
        ("a = '\x0c\u2028'\nb".encode(), ["a = '\x0c\u2028'", "b"]),
        (b"", []),
    ],
)
def test_lines_are_those_that_python_counts(write, data, lines):
    assert lines_of(write(data)) == lines


def test_a_binary_file_has_no_lines(write):
    assert lines_of(write(b"\x7fELF\x00\x01\n")) == []


def test_a_file_that_is_no_source_by_its_size_has_no_lines(write):
    assert lines_of(write(b"x\n" * (3 * 1024 * 1024))) == []


@pytest.mark.parametrize("path", ["missing.py", "<stdin>", ".", "a\x00b", "", "x" * 5000])
def test_what_cannot_be_read_has_no_lines(path):
    assert lines_of(path) == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.py")
    assert lines_of(tmp_path / "pipe.py") == []


def test_cells_that_linecache_knows_have_lines(monkeypatch):
    name = "<ipython-input-7-abc>"
    monkeypatch.setitem(linecache.cache, name, (5, None, ["x = 1\n", "y = 2\n"], name))
    assert lines_of(name) == ["x = 1", "y = 2"]


def test_a_namesake_elsewhere_is_not_taken(tmp_path, monkeypatch):
    (tmp_path / "vanished.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert lines_of("vanished.py") == []


def test_a_line_that_does_not_exist_is_none(write):
    path = str(write(b"only\n"))
    sources = SourceLines()
    assert sources.line_at(Location(path, 1)) == "only"
    assert sources.line_at(Location(path, 0)) is None
    assert sources.line_at(Location(path, -1)) is None
    assert sources.line_at(Location(path, 9)) is None


def test_a_file_is_read_once(write):
    path = write(b"before\n")
    sources = SourceLines()
    assert sources.line_at(Location(str(path), 1)) == "before"
    path.write_bytes(b"after\n")
    assert sources.line_at(Location(str(path), 1)) == "before"
