from __future__ import annotations

import pytest

from gradcheck_lint.config import ALL_CODES, SettingsFinder, expand, read_settings
from gradcheck_suite.errors import UsageError


@pytest.fixture
def configure(tmp_path):
    def write(text):
        path = tmp_path / "pyproject.toml"
        path.write_text(f"[tool.gradcheck-suite.lint]\n{text}\n")
        return path

    return write


def _starting(*heads):
    return {code for code in ALL_CODES if code.startswith(heads)}


def test_without_settings_every_rule_applies(tmp_path):
    settings = SettingsFinder().settings_for(str(tmp_path / "a.py"))
    assert settings.codes_for(str(tmp_path / "a.py")) == ALL_CODES


def test_select_ignore_and_extend(configure, tmp_path):
    path = configure(
        'select = ["GCS1", "GCS2"]\nignore = ["graph-kept"]\nextend-select = ["gcs301"]'
    )
    settings = read_settings(path, required=True)
    expected = _starting("GCS1", "GCS2") - {"GCS201"} | {"GCS301"}
    assert settings.codes_for(str(tmp_path / "a.py")) == expected


def test_options_come_on_top_of_the_file(configure, tmp_path):
    settings = read_settings(configure('select = ["GCS1"]\nignore = ["GCS3"]'), required=True)
    chosen = settings.with_options(select=["GCS301"])
    assert chosen.codes_for(str(tmp_path / "a.py")) == {"GCS301"}
    chosen = settings.with_options(extend_select=["GCS301"], ignore=["GCS1"])
    assert chosen.codes_for(str(tmp_path / "a.py")) == {"GCS301"}


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("tests", "tests/a.py", True),
        ("tests", "src/tests/a.py", True),
        ("tests", "src/mytests/a.py", False),
        ("tests/*", "tests/deep/a.py", True),
        ("src/tests", "src/tests/a.py", True),
        ("src/tests/**", "src/tests/a.py", True),
        ("src/tests", "other/src/tests/a.py", False),
        ("*_old.py", "src/model_old.py", True),
        ("./src/a.py", "src/a.py", True),
    ],
)
def test_patterns(configure, tmp_path, pattern, path, matches):
    settings = read_settings(
        configure(f'exclude = ["{pattern}"]\nper-file-ignores = {{"{pattern}" = ["ALL"]}}'),
        required=True,
    )
    target = str(tmp_path / path)
    assert settings.excludes(target) is matches
    assert (settings.codes_for(target) == frozenset()) is matches


def test_nearest_file_with_our_table_counts(configure, tmp_path):
    configure('select = ["GCS101"]')
    inner = tmp_path / "inner"
    (inner / "deep").mkdir(parents=True)
    (inner / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    finder = SettingsFinder()
    assert finder.settings_for(str(inner / "deep" / "a.py")).select == {"GCS101"}
    (inner / "deep" / "pyproject.toml").write_text(
        '[tool.gradcheck-suite.lint]\nselect = ["GCS301"]\n'
    )
    assert SettingsFinder().settings_for(str(inner / "deep" / "a.py")).select == {"GCS301"}
    assert finder.settings_for(str(inner / "b.py")).select == {"GCS101"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("selcet = []", ["no key `selcet`", "did you mean `select`?"]),
        ('select = ["GCS999"]', ["no rule `GCS999`", "did you mean `GCS"]),
        ('ignore = ["missing-zero-grads"]', ["did you mean `missing-zero-grad`?"]),
        ('select = "GCS101"', ["`select` must be a list of strings, got a string"]),
        ("select = [1]", ["`select` must be a list of strings, got an integer in it"]),
        ("exclude = true", ["`exclude` must be a list of strings, got a boolean"]),
        ("per-file-ignores = []", ["`per-file-ignores` must be a table", "got a list"]),
        ('per-file-ignores = {"a" = "b"}', ["per-file-ignores.a", "got a string"]),
        ("select = = []", ["not valid TOML", "line 2"]),
    ],
)
def test_wrong_settings_are_refused_with_the_file_and_the_reason(configure, text, words):
    path = configure(text)
    with pytest.raises(UsageError) as caught:
        read_settings(path, required=True)
    assert str(path) in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("table", ["lnt", "Lint", "pytests"])
def test_a_table_that_no_tool_reads_is_refused(tmp_path, table):
    path = tmp_path / "pyproject.toml"
    path.write_text(f"[tool.gradcheck-suite.{table}]\nselect = []\n")
    with pytest.raises(UsageError, match=f"no table `{table}`; did you mean"):
        read_settings(path, required=False)


@pytest.mark.parametrize(
    "text",
    [
        "[tool]\ngradcheck-suite = 1\n",
        "tool = 'gradcheck-suite'\n",
        "[tool.gradcheck-suite]\nlint = 1\n",
    ],
)
def test_tables_that_are_none_are_refused(tmp_path, text):
    path = tmp_path / "pyproject.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match="must be a table"):
        read_settings(path, required=False)


def test_broken_file_of_somebody_else_does_not_concern_us(tmp_path):
    path = tmp_path / "pyproject.toml"
    path.write_text("[tool.black\n")
    assert read_settings(path, required=False) is None


def test_missing_file_is_refused_where_it_was_asked_for(tmp_path):
    with pytest.raises(UsageError, match="cannot read the configuration"):
        read_settings(tmp_path / "none.toml", required=True)


def test_names_of_rules():
    assert expand(["all"], "x") == ALL_CODES
    assert expand(["GCS"], "x") == ALL_CODES
    assert expand(["Leaf-Inplace"], "x") == {"GCS101"}
    assert expand([], "x") == frozenset()


@pytest.mark.parametrize(
    "table",
    [
        "tool.gradcheck-lint",
        "tool.gradcheck_lint",
        "tool.gradcheck_suite.lint",
        'tool."gradcheck_suite".lint',
        "tool.gradcheck",
        "tool.gradcheck.lint",
        "tool.gradchek-suite.lint",
        "tool.GradCheck-Suite.lint",
        "gradcheck-suite.lint",
        "gradcheck-lint",
    ],
)
def test_table_with_nearly_our_name_is_refused_and_ours_is_named(command, tmp_path, table):
    (tmp_path / "pyproject.toml").write_text(f'[{table}]\nignore = ["GCS301"]\n')
    done = command()
    assert done.returncode == 2
    assert "is read by nobody; did you mean [tool.gradcheck-suite.lint]?" in done.stderr
    assert str(tmp_path / "pyproject.toml") in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "[tool.gradle]\nx = 1\n",
        "[tool.graduate]\nx = 1\n",
        '[project]\nname = "gradcheck-lint"\ndependencies = ["gradcheck-suite"]\n',
        '[tool.ruff]\nexternal = ["GCS"]  # of gradcheck-lint\n',
        "[tool.gradcheck-suite.pytest]\n",
    ],
)
def test_tables_of_others_are_left_alone(command, tmp_path, text):
    (tmp_path / "pyproject.toml").write_text(text)
    assert command().returncode == 0


_TABLE_TEXT = '[tool.gradcheck-suite.lint]\nignore = ["GCS301"]\n'


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (_TABLE_TEXT.encode("utf-16"), "is not UTF-8 but seems to be UTF-16; save it as UTF-8"),
        (_TABLE_TEXT.encode("utf-16-be"), "is not UTF-8 but seems to be UTF-16"),
        (f"# caf\xe9\n{_TABLE_TEXT}".encode("latin-1"), "is not UTF-8: invalid continuation byte"),
    ],
)
def test_settings_in_another_encoding_are_told(command, tmp_path, source, words):
    (tmp_path / "pyproject.toml").write_bytes(source)
    done = command()
    assert done.returncode == 2
    assert words in done.stderr


def test_byte_order_mark_of_utf_8_does_no_harm(command, tmp_path, buggy):
    (tmp_path / "a.py").write_text(buggy)
    (tmp_path / "pyproject.toml").write_bytes(_TABLE_TEXT.encode("utf-8-sig"))
    assert command().returncode == 0


def test_file_that_is_named_must_have_our_table(command, tmp_path):
    (tmp_path / "lint.toml").write_text('ignore = ["GCS301"]\n')
    done = command("--config", "lint.toml")
    assert done.returncode == 2
    assert "lint.toml has no table [tool.gradcheck-suite.lint]" in done.stderr
