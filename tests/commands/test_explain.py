from __future__ import annotations

import io
import re
import subprocess
import sys

import pytest
from rich.console import Console

from gradcheck_suite import catalogue
from gradcheck_suite.errors import UsageError
from gradcheck_suite.reporting.explain import (
    explain_markdown,
    explain_renderables,
    explain_text,
    print_explanation,
)
from tests import warm_python

ESCAPE = "\x1b"
HEADINGS = ["What it does", "Why it is bad", "Example", "Use instead", "How it is detected"]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def terminal_of_80_columns(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")


def _command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return warm_python.run(["-m", "gradcheck_suite", *arguments])


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def _without_trailing_spaces(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines())


def test_the_command_explains_several_rules_by_code_and_name():
    done = _command("explain", "gcs301", "leaf-inplace")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(
        "GCS301 missing-zero-grad\n"
        "Gradients that step() has used are added to and used again\n"
        "error, found in source and at run time\n"
    )
    assert "\n\n\nGCS101 leaf-inplace\n" in done.stdout
    assert ESCAPE not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("zero_grad", "did you mean missing-zero-grad or zero-grad-misplaced?"),
        ("GCS3O1", "did you mean GCS301?"),
        ("xyzzy", "no rule has the code or name 'xyzzy'; `rules` lists them all"),
    ],
)
def test_an_unknown_name_is_a_usage_error_and_nothing_is_printed(name, words):
    done = _command("explain", "GCS301", name)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_name_is_required():
    done = _command("explain")
    assert done.returncode == 2
    assert "CODE|NAME" in done.stderr


def test_a_reader_that_stops_early_is_no_failure():
    names = " ".join(entry.code for entry in catalogue.ENTRIES)
    done = subprocess.run(
        f"{sys.executable} -m gradcheck_suite explain {names} | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout == "GCS101 leaf-inplace\n"
    assert done.stderr == ""


def test_explaining_needs_neither_torch_nor_libcst_and_a_pipe_not_even_rich():
    code = (
        "import sys; from gradcheck_suite.reporting.explain import print_explanation; "
        "print_explanation(['GCS301'], sys.stdout); "
        "print({'torch', 'libcst', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.endswith("set()\n")


@pytest.mark.parametrize("entry", catalogue.ENTRIES, ids=lambda entry: entry.code)
def test_plain_text_fits_80_columns_and_is_clean(entry):
    text = explain_text(entry, width=80)
    headings = [*HEADINGS, *(["How to silence it"] if entry.in_source or entry.at_run_time else [])]
    assert [line for line in text.splitlines() if line in {*HEADINGS, "How to silence it"}] == (
        headings
    )
    for line in text.splitlines():
        assert len(line) <= 80
        assert line == line.rstrip()
    assert text.endswith("\n")
    assert "\n\n\n\n" not in text
    assert "\0" not in text


@pytest.mark.parametrize("entry", catalogue.ENTRIES, ids=lambda entry: entry.code)
def test_colour_changes_nothing_but_the_colour(entry):
    stream = io.StringIO()
    console = Console(file=stream, width=80, force_terminal=True, color_system="standard")
    for renderable in explain_renderables(entry, width=80):
        console.print(renderable, soft_wrap=True, highlight=False)
    assert ESCAPE in stream.getvalue()
    assert _without_trailing_spaces(_plain(stream.getvalue())) == _without_trailing_spaces(
        explain_text(entry, width=80)
    )


def test_a_terminal_gets_colour_and_a_pipe_does_not():
    terminal, pipe = Terminal(), io.StringIO()
    print_explanation(["GCS301", "GCS604"], terminal)
    print_explanation(["GCS301", "GCS604"], pipe)
    assert ESCAPE in terminal.getvalue()
    assert ESCAPE not in pipe.getvalue()
    assert _without_trailing_spaces(_plain(terminal.getvalue())) == _without_trailing_spaces(
        pipe.getvalue()
    )


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_without_colour_gets_plain_text(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    terminal = Terminal()
    print_explanation(["GCS301"], terminal)
    assert ESCAPE not in terminal.getvalue()


def test_colour_can_be_asked_for_and_refused(monkeypatch):
    pipe, terminal = io.StringIO(), Terminal()
    print_explanation(["GCS301"], pipe, color="always")
    print_explanation(["GCS301"], terminal, color="never")
    assert ESCAPE in pipe.getvalue()
    assert ESCAPE not in terminal.getvalue()


def test_prose_follows_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    terminal = Terminal()
    print_explanation(["GCS303"], terminal, color="never")
    prose = [line for line in terminal.getvalue().splitlines() if not line.startswith("    ")]
    assert 50 < max(map(len, prose[3:])) <= 60


def test_all_prose_of_a_pipe_follows_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "44")
    pipe = io.StringIO()
    print_explanation(["GCS301"], pipe)
    prose = [line for line in pipe.getvalue().splitlines() if not line.startswith("    ")]
    assert 40 < max(map(len, prose)) <= 44


def test_force_color_colours_a_pipe_and_no_color_wins(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    pipe, plain = io.StringIO(), io.StringIO()
    print_explanation(["GCS301"], pipe)
    monkeypatch.setenv("NO_COLOR", "1")
    print_explanation(["GCS301"], plain)
    assert ESCAPE in pipe.getvalue()
    assert ESCAPE not in plain.getvalue()


@pytest.mark.parametrize("color", ["always", "never"])
def test_a_reader_may_leave_early(color):
    with subprocess.Popen(
        [sys.executable, "-m", "gradcheck_suite", "explain", "GCS301", "--color", color],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdout.close()
        said = process.stderr.read()
        assert (process.wait(), said) == (0, b"")


@pytest.mark.parametrize("width", [50, 66, 80])
def test_short_code_spans_stay_on_one_line(width):
    for entry in catalogue.ENTRIES:
        text = explain_text(entry, width=width)
        for prose in (entry.what, entry.why, entry.detection):
            spans = [span for span in re.findall(r"`[^`]+`", prose) if len(span) <= 38]
            assert all(span in text for span in spans), entry.code


def test_markdown_has_fenced_source_and_headings_of_the_level_asked_for():
    text = explain_markdown(catalogue.CLIP_BEFORE_UNSCALE, level=3)
    assert text.startswith("### GCS305 clip-before-unscale\n\n**Scaled gradients are clipped")
    assert "error, found in source and at run time, can be fixed by machine" in text
    assert text.count("\n#### ") == 6
    assert text.count("\n```python\n") == 2
    assert text.count("\n```toml\n") == 1


def test_silencing_is_shown_where_it_applies():
    in_source = explain_text(catalogue.MISSING_ZERO_GRAD)
    assert "with a comment: `# noqa: GCS301`" in in_source
    assert '    [tool.gradcheck-suite.lint]\n    ignore = ["GCS301"]\n' in in_source
    assert "gradcheck-suite audit --ignore GCS301 train.py\n" in in_source
    at_run_time = explain_text(catalogue.OUTER_BROADCAST)
    assert "`# gradcheck: ignore[GCS614]`" in at_run_time
    assert "noqa" not in at_run_time
    assert "audit" not in explain_text(catalogue.DATA_WRITE).partition("How to silence it")[2]


def test_an_unknown_name_raises_before_anything_is_written():
    stream = io.StringIO()
    with pytest.raises(UsageError, match=r"'hidden state'; did you mean state-not-detached"):
        print_explanation(["GCS301", "hidden state"], stream)
    assert stream.getvalue() == ""
