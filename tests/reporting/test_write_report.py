from __future__ import annotations

import io
import os
import re
import subprocess
import sys

import pytest

from gradcheck_suite.findings import Report
from gradcheck_suite.reporting import OUTPUT_FORMATS, write_report

WRITE = """
import sys
from gradcheck_suite.findings import Finding, Location, Report
from gradcheck_suite.reporting import write_report
from gradcheck_suite.severity import Severity

finding = Finding("GCS301", "missing-zero-grad", Severity.ERROR, "\\u5f20\\u91cf \\u2207",
                  "audit", Location("train.py", 9))
output_format, color, copies = sys.argv[1], sys.argv[2], int(sys.argv[3])
write_report(Report("gradcheck-suite audit", (finding,) * copies),
             output_format=output_format, stream=sys.stdout, color=color)
"""


SETTINGS_OF_OUTPUT = {
    "COLUMNS",
    "FORCE_COLOR",
    "NO_COLOR",
    "PYTHONIOENCODING",
    # An unbuffered stream drops what a broken pipe leaves of a write, and raises nothing.
    "PYTHONUNBUFFERED",
    "TERM",
}

FOR_PROGRAMS = [each for each in OUTPUT_FORMATS if each != "full"]


def environment_for_output(**settings):
    kept = {key: value for key, value in os.environ.items() if key not in SETTINGS_OF_OUTPUT}
    return {**kept, **settings}


def run(*arguments, **settings):
    return subprocess.run(
        [sys.executable, "-c", WRITE, *arguments],
        env=environment_for_output(**settings),
        capture_output=True,
        check=True,
    )


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def clean_environment(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def written(report, stream, color="auto"):
    write_report(report, output_format="full", stream=stream, color=color)
    return stream.getvalue()


@pytest.mark.usefixtures("clean_environment")
class TestColor:
    def test_a_terminal_is_coloured_and_a_pipe_is_not(self, reports_of_each_kind):
        report = reports_of_each_kind["audit"]
        assert "\x1b[" in written(report, Terminal())
        assert "\x1b" not in written(report, io.StringIO())

    def test_the_choice_wins(self, reports_of_each_kind, monkeypatch):
        report = reports_of_each_kind["audit"]
        assert "\x1b" not in written(report, Terminal(), "never")
        assert "\x1b[1;31m" in written(report, io.StringIO(), "always")
        monkeypatch.setenv("NO_COLOR", "1")
        assert "\x1b[1;31m" in written(report, io.StringIO(), "always")

    def test_no_color_is_heeded(self, reports_of_each_kind, monkeypatch):
        monkeypatch.setenv("NO_COLOR", "1")
        assert "\x1b" not in written(reports_of_each_kind["audit"], Terminal())

    def test_a_dumb_terminal_is_spared(self, reports_of_each_kind, monkeypatch):
        monkeypatch.setenv("TERM", "dumb")
        assert "\x1b" not in written(reports_of_each_kind["audit"], Terminal())

    def test_the_last_line_has_the_colour_of_the_worst(self, reports_of_each_kind):
        ends = {
            kind: written(report, Terminal()).splitlines()[-1]
            for kind, report in reports_of_each_kind.items()
        }
        assert ends["audit"].startswith("\x1b[1;31mgradcheck-suite audit: 2 errors")
        assert ends["lint"].startswith("\x1b[1;36mgradcheck-lint: 1 note")
        assert ends["graph"].startswith("\x1b[1;32mgradcheck-suite graph: nothing found")
        partly = Report("t", not_covered=("the rest",))
        assert written(partly, Terminal()).splitlines()[-1].startswith("\x1b[1;33mt: nothing")

    def test_colours_are_all_that_colour_adds(self, reports_of_each_kind):
        report = reports_of_each_kind["audit"]
        colourful = written(report, io.StringIO(), "always")
        assert re.sub(r"\x1b\[[\d;]*m", "", colourful) == written(report, io.StringIO(), "never")

    @pytest.mark.parametrize("output_format", FOR_PROGRAMS)
    def test_formats_for_programs_have_no_colour(self, reports_of_each_kind, output_format):
        stream = Terminal()
        write_report(
            reports_of_each_kind["audit"],
            output_format=output_format,
            stream=stream,
            color="always",
        )
        assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("output_format", OUTPUT_FORMATS)
@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_any_encoding_can_be_written(output_format, encoding):
    done = run(output_format, "never", "1", PYTHONIOENCODING=encoding)
    assert done.stderr == b""
    text = done.stdout.decode(encoding)
    assert "GCS301" in text
    assert "Traceback" not in text


def test_signs_are_those_that_the_encoding_has(train_file, reports_of_each_kind):
    report = reports_of_each_kind["audit"]
    for encoding, bar in (("utf-8", "\u2502"), ("ascii", "|"), ("cp1252", "|")):
        raw = io.BytesIO()
        stream = io.TextIOWrapper(raw, encoding=encoding)
        write_report(report, output_format="full", stream=stream)
        assert f"   9 {bar} " in raw.getvalue().decode(encoding)


def test_an_unknown_format_is_refused(reports_of_each_kind):
    with pytest.raises(ValueError, match=r"one of full, concise, .*; got 'xml'"):
        write_report(reports_of_each_kind["graph"], output_format="xml", stream=io.StringIO())


@pytest.mark.parametrize("output_format", OUTPUT_FORMATS)
def test_a_reader_that_has_gone_is_the_callers_to_see(reports_of_each_kind, output_format):
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError(text[:0])

    with pytest.raises(BrokenPipeError):
        write_report(reports_of_each_kind["audit"], output_format=output_format, stream=Gone())


def test_a_broken_pipe_is_told_before_exit():
    tell = (
        "except BrokenPipeError:\n"
        "    import os\n"
        "    sys.stderr.write('gone')\n"
        "    sys.stderr.flush()\n"
        "    os._exit(0)\n"
    )
    program = WRITE.replace("write_report(", "try:\n    write_report(") + tell
    with subprocess.Popen(
        [sys.executable, "-c", program, "concise", "never", "20000"],
        env=environment_for_output(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b"gone"
    assert process.returncode == 0


def imported_by(program):
    # A measurement of coverage would import modules of its own.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COVERAGE")}
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys; print(*sys.modules)"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split("\n")[-2].split())


HEAVY = {"rich", "json", "hashlib", "gradcheck_suite.catalogue", "torch", "libcst"}


def test_importing_the_package_imports_no_renderer():
    assert not imported_by("import gradcheck_suite.reporting") & HEAVY


def test_the_test_for_imports_can_fail():
    assert imported_by("import gradcheck_suite.reporting.console") & HEAVY >= {"rich"}


@pytest.mark.parametrize("output_format", FOR_PROGRAMS)
def test_formats_for_programs_need_no_rich(output_format):
    program = (
        "import io\n"
        "from gradcheck_suite.findings import Report\n"
        "from gradcheck_suite.reporting import write_report\n"
        f"write_report(Report('t'), output_format={output_format!r}, stream=io.StringIO())"
    )
    assert "rich" not in imported_by(program)
