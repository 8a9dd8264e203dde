from __future__ import annotations

import json
import subprocess
import sys
from xml.etree import ElementTree

import pytest

_SPARE = "import torch\nx = 1  # noqa: GCS301\n"
_CLEAN = "import torch\nx = 1\n"


@pytest.fixture
def spare(tmp_path):
    """A file whose only mistake can be fixed."""
    path = tmp_path / "a.py"
    path.write_text(_SPARE)
    return path


@pytest.mark.slow
def test_fix_writes_and_diff_does_not(command, spare):
    done = command("--diff")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "--- a/a.py", "+++ b/a.py", "@@ -1,2 +1,2 @@", " import torch",
        "-x = 1  # noqa: GCS301", "+x = 1",
    ]  # fmt: skip
    assert "1 mistake would be fixed in 1 file" in done.stderr
    assert spare.read_text() == _SPARE
    done = command("--fix")
    assert done.returncode == 0
    assert done.stdout == "gradcheck-lint: nothing found (1 file checked)\n"
    assert spare.read_text() == _CLEAN
    done = command("--diff")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
def test_many_files_are_fixed_by_workers(command, tmp_path):
    for number in range(5):
        (tmp_path / f"a{number}.py").write_text(_SPARE)
    done = command("--fix", "-j", "2")
    assert "5 mistakes fixed in 5 files" in done.stderr
    assert all(path.read_text() == _CLEAN for path in tmp_path.glob("*.py"))


@pytest.mark.slow
def test_standard_input_is_fixed_on_standard_output(command, tmp_path):
    done = command("-", "--fix", stdin=_SPARE)
    assert done.stdout == _CLEAN
    assert "1 mistake fixed" in done.stderr
    assert command("-", "--fix", stdin="x = 1\n").stdout == "x = 1\n"
    assert command("-", "--fix", "-q", stdin="x = = torch\n").stdout == "x = = torch\n"
    assert "-x = 1  # noqa: GCS301" in command("-", "--diff", stdin=_SPARE).stdout


def test_read_only_file_is_told_and_the_others_are_fixed(command, spare, tmp_path):
    (tmp_path / "b.py").write_text(_SPARE)
    spare.chmod(0o444)
    done = command("--fix")
    assert done.returncode == 1
    assert "GCS000 [error] this file was not fixed: it is read-only" in done.stdout
    assert spare.read_text() == _SPARE
    assert (tmp_path / "b.py").read_text() == _CLEAN


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--unsafe-fixes"], "give --fix or --diff with it"),
        (["--add-noqa", "--fix"], "--add-noqa can't be combined"),
        (["--write-baseline", "--diff"], "--write-baseline can't be combined"),
        (["-", "--add-noqa"], "need files, not standard input"),
        (["-j", "0"], "expected a whole number from 1, got '0'"),
        (["-j", "many"], "expected a whole number from 1, got 'many'"),
    ],
)
def test_contradictions_are_refused(command, words, message):
    done = command(*words)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("output_format", ["gitlab", "junit"])
def test_formats_of_services(command, tmp_path, buggy, output_format):
    (tmp_path / "a.py").write_text(buggy)
    text = command("--output-format", output_format).stdout
    if output_format == "gitlab":
        (issue,) = json.loads(text)
        assert issue["location"] == {"path": "a.py", "lines": {"begin": 7}}
    else:
        (suite,) = ElementTree.fromstring(text)
        assert suite.get("failures") == "1"


def test_rule_is_explained_by_an_option(command, tmp_path):
    assert "GCS301" in command("--explain", "missing-zero-grad").stdout


@pytest.mark.parametrize("name", ["GCS000", "unreadable-file", "gcs001", "unused-suppression"])
def test_findings_about_files_and_comments_are_explained(command, name):
    done = command("explain", name, "GCS301")
    assert done.returncode == 0
    assert done.stdout.count("GCS00") == 1
    assert "GCS301" in done.stdout


def test_severity_to_fail_on_can_be_set_for_the_project(command, spare, tmp_path):
    assert command().returncode == 0
    table = '[tool.gradcheck-suite.lint]\nfail-on = "warning"\n'
    (tmp_path / "pyproject.toml").write_text(table)
    assert command().returncode == 1
    assert command("--fail-on", "error").returncode == 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('fail-on = "fatal"', "must be one of error, warning, note, never, got 'fatal'"),
        ("fail-on = 1", "`fail-on` must be a string, got an integer"),
        ('respect-gitignore = "no"', "must be true or false, got a string"),
        ("baseline = []", "`baseline` must be a string, got a list"),
    ],
)
def test_settings_of_the_wrong_type_are_refused(command, tmp_path, line, message):
    (tmp_path / "pyproject.toml").write_text(f"[tool.gradcheck-suite.lint]\n{line}\n")
    done = command()
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.slow
def test_suppressions_are_told_to_be_unused_only_where_that_is_known(command, tmp_path):
    (tmp_path / "a.py").write_text(
        "x = 1  # noqa: GCS301\n"
        "y = 1  # gradcheck: ignore[graph-kept, no-such-rule]\n"
        "z = 1  # noqa: E501\n"
        "t = '# noqa: GCS301'\n"
    )
    done = command("--no-cache")
    assert done.stdout.count("GCS001 [warning] this comment silences nothing") == 2
    assert "`no-such-rule` is no rule of the linter" in done.stdout
    done = command("--select", "GCS101,GCS001")
    assert "`graph-kept`" not in done.stdout
    assert "`no-such-rule`" in done.stdout
    assert "GCS001" not in command("--ignore", "unused-suppression").stdout


def test_second_run_is_the_same_from_the_cache(tmp_path, buggy):
    (tmp_path / "a.py").write_text(buggy)
    words = [sys.executable, "-m", "gradcheck_lint", "--output-format", "json", "--cache-dir", "c"]
    runs = [
        subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        for _ in range(2)
    ]
    assert runs[0].stdout == runs[1].stdout
    assert list((tmp_path / "c").rglob("*.json"))


_BY_HAND = """\
import torch


def train(model, optimizer, batches):
    kept = 0
    for batch in batches:
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        kept += loss
    return kept
"""


@pytest.mark.parametrize("option", ["--fix", "--diff"])
def test_what_no_fix_mends_is_told(command, tmp_path, option):
    (tmp_path / "loop.py").write_text(_BY_HAND)
    told = "no fix for 1 mistake, which a person has to mend: gradcheck-suite explain GCS301"
    assert told in command(option).stderr
    assert "no fix" not in command(option, "-q").stderr
    assert "no fix" not in command().stderr


def test_of_a_file_that_is_fixed_nothing_else_is_told(command, spare):
    assert spare.is_file()
    assert command("--fix").stderr == "gradcheck-lint: 1 mistake fixed in 1 file\n"


_UNSAFE = """\
import torch
from torch.autograd import Variable


def train(x):
    return Variable(  # as it came
        torch.as_tensor(x)
    )
"""


def test_what_only_unsafe_fixes_mend_is_told(command, tmp_path):
    (tmp_path / "loop.py").write_text(_UNSAFE)
    assert "1 mistake can be fixed with --unsafe-fixes" in command("--diff").stderr
    assert "--unsafe-fixes" not in command("--diff", "--unsafe-fixes").stderr
