from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from gradcheck_lint.cli import main
from gradcheck_lint.options import FORMATS
from gradcheck_suite.reporting import OUTPUT_FORMATS


@pytest.fixture
def project(tmp_path, buggy):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "bad.py").write_text(buggy)
    (tmp_path / "pkg" / "good.py").write_text("import torch\n")
    return tmp_path


@pytest.fixture
def linting_raises(project, monkeypatch):
    def arrange(error):
        def stop(*args, **options):
            raise error

        monkeypatch.chdir(project)
        monkeypatch.setattr("gradcheck_lint.engine.lint", stop)

    return arrange


def test_findings_are_listed_and_the_status_is_1(command, project):
    done = command()
    assert done.returncode == 1
    assert done.stderr == ""
    first, last = done.stdout.splitlines()
    assert first.startswith("pkg/bad.py:7:9: GCS301 [error] `optimizer.step()` repeats")
    assert last == "gradcheck-lint: 1 error in pkg/bad.py (2 files checked)"


def test_clean_files_have_status_0(command, project):
    done = command("pkg/good.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "gradcheck-lint: nothing found (1 file checked)\n"


def test_quiet_says_nothing_of_clean_files(command, project):
    done = command("-q", "pkg/good.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_no_files_is_told_and_is_no_failure(command, tmp_path):
    done = command(".")
    assert done.returncode == 0
    assert "no Python files to lint in ." in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.py"], "there is no file or directory 'nowhere.py'"),
        (["--select", "GCS999"], "--select: the linter has no rule `GCS999`; did you mean"),
        (["--isolated", "--config", "x.toml"], "--isolated reads no configuration"),
        (["--config", "x.toml"], "cannot read the configuration x.toml"),
        (["-", "pkg"], "standard input (-) can't be linted together with files"),
        (["explain", "nothing-like-it"], "nothing-like-it"),
        (
            ["--output-file", "no/such/folder/out.json"],
            "out.json: there is no folder no/such/folder",
        ),
    ],
)
def test_misuse_has_status_2_and_no_traceback(command, project, words, message):
    done = command(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("gradcheck-lint: error: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_unknown_option_has_status_2(command, tmp_path):
    assert command("--no-such-option").returncode == 2


@pytest.mark.slow
def test_fail_on_and_exit_zero(command, tmp_path):
    (tmp_path / "a.py").write_text(
        "import torch\ndef clip(model):\n    for p in model.parameters():\n        p.clamp_(0, 1)\n"
    )
    assert command().returncode == 0
    assert "[warning]" in command().stdout
    assert command("--fail-on", "warning").returncode == 1
    assert command("--fail-on", "warning", "--exit-zero").returncode == 0
    assert command("--fail-on", "never").returncode == 0


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", ["syntax.py", "nul.py"])
def test_unreadable_file_is_a_finding_and_the_others_are_linted(command, project, name):
    (project / name).write_bytes(b"import torch\nx = = 1\n" if "syntax" in name else b"torch\x00")
    done = command()
    assert done.returncode == 1
    assert f"{name}:" in done.stdout
    assert "GCS000 [error] this file was not linted" in done.stdout
    assert "GCS301" in done.stdout


def test_unreadable_files_can_be_passed_over(command, tmp_path):
    (tmp_path / "bad.py").write_text("import torch\nx = = 1\n")
    assert command("--ignore", "unreadable-file").returncode == 0
    assert command("--select", "GCS301").returncode == 1


@pytest.mark.skipif(sys.platform == "win32", reason="needs named pipes")
def test_what_is_no_regular_file_is_not_waited_for(command, tmp_path):
    os.mkfifo(tmp_path / "pipe.py")
    done = command("pipe.py")
    assert done.returncode == 1
    assert "it is not a regular file" in done.stdout


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize(
    "output_format", ["full", "concise", "json", "sarif", "github", "markdown"]
)
def test_every_format_has_the_finding(command, project, output_format):
    done = command("--output-format", output_format)
    assert done.returncode == 1
    assert "GCS301" in done.stdout


def test_the_formats_are_those_of_every_other_command():
    assert FORMATS == OUTPUT_FORMATS


def test_json_has_the_whole_finding(command, project):
    document = json.loads(command("--output-format", "json").stdout)
    (finding,) = document["findings"]
    assert finding["path"] == "pkg/bad.py"
    assert (finding["line"], finding["column"], finding["end_column"]) == (7, 9, 25)
    assert finding["function"] == "train"
    assert finding["detector"] == "lint"
    assert [related["line"] for related in finding["related"]] == [6, 4]
    assert document["tool"] == "gradcheck-lint"


def test_report_goes_to_a_file(command, project):
    done = command("--output-format", "json", "--output-file", "out.json")
    assert (done.returncode, done.stdout) == (1, "")
    assert len(json.loads((project / "out.json").read_text())["findings"]) == 1


def test_statistics_count_the_rules(command, project, buggy):
    (project / "worse.py").write_text(buggy)
    assert command("--statistics").stdout.splitlines()[-1].split() == [
        "2",
        "GCS301",
        "missing-zero-grad",
    ]


@pytest.mark.slow
def test_standard_input_has_a_name(command, tmp_path, buggy):
    done = command("-", stdin=buggy)
    assert done.returncode == 1
    assert done.stdout.startswith("<stdin>:7:9: GCS301")
    done = command("-", "--stdin-filename", "src/a.py", stdin=buggy)
    assert done.stdout.startswith("src/a.py:7:9: GCS301")


@pytest.mark.slow
def test_settings_of_the_project_apply(command, project, buggy):
    (project / "pyproject.toml").write_text(
        '[tool.gradcheck-suite.lint]\nexclude = ["pkg"]\n'
        'per-file-ignores = { "scripts" = ["missing-zero-grad"] }\n'
    )
    (project / "scripts").mkdir()
    (project / "scripts" / "a.py").write_text(buggy)
    assert command().returncode == 0
    assert command("--isolated").returncode == 1
    assert command("pkg/bad.py").returncode == 1
    assert command("--force-exclude", "pkg/bad.py").returncode == 0
    name = ("--stdin-filename", "pkg/bad.py")
    assert command("-", *name, stdin=buggy).returncode == 1
    assert command("-", "--force-exclude", *name, stdin=buggy).returncode == 0


def test_broken_settings_stop_the_run(command, project):
    (project / "pyproject.toml").write_text("[tool.gradcheck-suite.lint]\nselcet = []\n")
    done = command()
    assert done.returncode == 2
    assert "did you mean `select`?" in done.stderr


def test_rules_are_listed(command, tmp_path):
    done = command("rules")
    assert done.returncode == 0
    assert "GCS301" in done.stdout
    assert "GCS104" not in done.stdout
    assert json.loads(command("rules", "--output-format", "json").stdout)


def test_rule_is_explained(command, tmp_path):
    done = command("explain", "missing-zero-grad", "GCS101")
    assert done.returncode == 0
    assert "GCS301" in done.stdout
    assert "GCS101" in done.stdout


def test_file_of_that_name_is_linted(command, tmp_path, buggy):
    (tmp_path / "rules").write_text(buggy)
    assert command("rules").returncode == 1


@pytest.mark.slow
def test_reader_that_leaves_is_no_error(tmp_path, buggy):
    for number in range(400):
        (tmp_path / f"a{number}.py").write_text(buggy)
    process = subprocess.Popen(
        [sys.executable, "-m", "gradcheck_lint", "."],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) == 1


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (ZeroDivisionError("x"), 2, "internal error: pkg/bad.py: ZeroDivisionError: x"),
    ],
)
def test_what_stops_the_run_is_told_without_a_traceback(
    linting_raises, capsys, error, status, words
):
    linting_raises(error)
    assert main(["pkg/bad.py"]) == status
    assert words in capsys.readouterr().err


def test_traceback_of_an_internal_error_can_be_had(linting_raises, monkeypatch, capsys):
    linting_raises(ZeroDivisionError())
    monkeypatch.setenv("GRADCHECK_SUITE_TRACEBACK", "1")
    assert main(["pkg/bad.py"]) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["explian", "GCS301"], "did you mean `gradcheck-lint explain`?"),
        (["Rules"], "did you mean `gradcheck-lint rules`?"),
        (["rulse", "--output-format", "table"], "did you mean `gradcheck-lint rules`?"),
        (["sever"], "did you mean `gradcheck-lint server`?"),
        (["check", "."], "lints the paths that it is given; its other uses are explain, rules"),
    ],
)
def test_misspelt_use_is_told_from_a_missing_file(command, words, meant):
    done = command(*words)
    assert done.returncode == 2
    assert f"there is no file or directory {words[0]!r}; " in done.stderr
    assert meant in done.stderr
    assert done.stdout == ""


def test_name_of_a_missing_file_is_no_misspelt_use(command):
    assert "did you mean" not in command("explain.py").stderr


def test_short_option_tells_the_version(command):
    assert command("-V").stdout == command("--version").stdout != ""


def test_report_can_be_a_page(command, tmp_path, buggy):
    (tmp_path / "a.py").write_text(buggy)
    page = command("--output-format", "html")
    assert page.returncode == 1
    assert page.stdout.startswith("<!doctype html>")
    assert "GCS301" in page.stdout
    done = command("--output-format", "html", "--output-file", "r.html")
    assert done.stdout == ""
    assert done.stderr.endswith("1 error in a.py (1 file checked); the report is in r.html\n")
    assert (tmp_path / "r.html").read_text() == page.stdout
