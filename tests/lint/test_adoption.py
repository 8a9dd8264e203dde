"""What lets an old project begin: baselines, comments, ignored files."""

from __future__ import annotations

import json

import pytest

from gradcheck_lint import baseline
from gradcheck_lint.engine import lint_source
from gradcheck_lint.gitignore import GitIgnored
from gradcheck_lint.noqa import add_noqa, with_noqa
from gradcheck_suite.errors import UsageError


@pytest.fixture
def old(tmp_path, buggy):
    (tmp_path / "old.py").write_text(buggy)
    return tmp_path


class TestBaseline:
    @pytest.mark.slow
    def test_known_findings_are_passed_over_and_new_ones_fail(self, command, old, buggy):
        done = command("--baseline", "known.json", "--write-baseline")
        assert (done.returncode, done.stdout) == (0, "")
        assert "1 finding listed in known.json" in done.stderr
        assert command("--baseline", "known.json").returncode == 0
        (old / "new.py").write_text(buggy)
        done = command("--baseline", "known.json")
        assert done.returncode == 1
        assert "new.py:7" in done.stdout
        assert "old.py" not in done.stdout

    @pytest.mark.slow
    def test_lines_may_move_and_files_be_renamed(self, command, old, buggy):
        command("--baseline", "known.json", "--write-baseline")
        (old / "old.py").write_text("# more\n\n" + buggy.replace("    ", "        "))
        assert command("--baseline", "known.json").returncode == 0
        (old / "old.py").rename(old / "renamed.py")
        assert command("--baseline", "known.json").returncode == 0

    @pytest.mark.slow
    def test_a_second_of_the_same_is_new(self, command, old, buggy):
        command("--baseline", "known.json", "--write-baseline")
        (old / "old.py").write_text(buggy + buggy.replace("train", "again"))
        assert command("--baseline", "known.json").stdout.count("GCS301") == 1

    @pytest.mark.slow
    def test_settings_can_name_it(self, command, old):
        table = '[tool.gradcheck-suite.lint]\nbaseline = "known.json"\n'
        (old / "pyproject.toml").write_text(table)
        assert "--write-baseline makes one" in command().stderr
        assert command("--write-baseline").returncode == 0
        assert command().returncode == 0

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("{", "is no baseline"),
            ("[]", "is no baseline"),
            ('{"schema": 1}', "is no baseline"),
            ('{"schema": 9}', "has schema 9, expected 1"),
            ('{"schema": 1, "findings": [{"path": 1}]}', "is no baseline"),
        ],
    )
    def test_what_is_no_baseline_is_refused(self, tmp_path, text, words):
        (tmp_path / "b.json").write_text(text)
        with pytest.raises(UsageError, match=words):
            baseline.read(tmp_path / "b.json")

    def test_baseline_that_can_not_be_written_is_told(self, command):
        assert command("--write-baseline").returncode == 2
        done = command("--baseline", "no/such/b.json", "--write-baseline")
        assert done.returncode == 2
        assert "cannot write the baseline" in done.stderr

    def test_unreadable_files_have_their_place_in_it(self, command, tmp_path):
        (tmp_path / "bad.py").write_text("import torch\nx = = 1\n")
        command("--baseline", "b.json", "--write-baseline")
        assert command("--baseline", "b.json").returncode == 0
        (item,) = json.loads((tmp_path / "b.json").read_text())["findings"]
        assert item == {"path": "bad.py", "code": "GCS000", "text": "x = = 1", "count": 1}


_WRITE = "import torch\nw = torch.ones(3, requires_grad=True)\n"


class TestNoqa:
    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ("w += 1\n", "w += 1  # noqa: GCS101\n"),
            ("w += 1", "w += 1  # noqa: GCS101"),
            ("w += 1  # why\r\n", "w += 1  # why  # noqa: GCS101\r\n"),
            ("w += 1  # noqa: E501\n", "w += 1  # noqa: E501, GCS101\n"),
            ("w.add_(\n    1,\n)\n", "w.add_(  # noqa: GCS101\n    1,\n)\n"),
            ("w.add_(f('''\n'''))\n", "w.add_(f('''\n'''))  # noqa: GCS101\n"),
            ("w \\\n    += 1\n", "w \\\n    += 1  # noqa: GCS101\n"),
            ("if 1: w += 1; x = 1\n", "if 1: w += 1; x = 1  # noqa: GCS101\n"),
        ],
    )
    def test_comment_goes_where_it_counts(self, before, after):
        source = (_WRITE + before).encode()
        new = with_noqa(source, lint_source(source, "x.py"))
        assert new.decode() == _WRITE + after
        assert lint_source(new, "x.py") == ()
        assert with_noqa(new, lint_source(source, "x.py")) == new

    @pytest.mark.parametrize("encoding", ["utf-8-sig", "latin-1"])
    def test_encoding_is_kept(self, encoding):
        source = f"# coding: {encoding.removesuffix('-sig')}\n# é\n{_WRITE}w += 1\n".encode(
            encoding
        )
        new = with_noqa(source, lint_source(source, "x.py"))
        assert new == source.rstrip(b"\n") + b"  # noqa: GCS101\n"

    @pytest.mark.slow
    def test_command_silences_all(self, command, old):
        done = command("--add-noqa")
        assert (done.returncode, done.stdout) == (0, "")
        assert "1 finding silenced" in done.stderr
        assert command().returncode == 0
        assert "optimizer.step()  # noqa: GCS301" in (old / "old.py").read_text()

    def test_what_is_left_alone_is_told(self, tmp_path, monkeypatch, buggy):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "a.py").write_text(buggy)
        (tmp_path / "a.py").chmod(0o444)
        findings = lint_source(buggy.encode(), "a.py")
        notebook = lint_source(buggy.encode(), "a.ipynb")
        unreadable = lint_source(b"torch = = 1", "a.py")
        added, left = add_noqa([*findings, *notebook, *unreadable])
        assert added == 0
        assert left == [
            "a.py: it is read-only",
            "a.ipynb: notebooks are left alone; write the comments in their cells",
        ]


class TestGitIgnore:
    @pytest.fixture
    def tree(self, tmp_path):
        (tmp_path / ".git").mkdir()
        (tmp_path / ".gitignore").write_text("/out/\n*_pb2.py\n!keep_pb2.py\n\nsub/deep/*\n")
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub" / ".gitignore").write_bytes(b"!a_pb2.py\n\\\n/local.py\n")
        return tmp_path

    @pytest.mark.parametrize(
        ("path", "ignored"),
        [
            ("out/a.py", True),
            ("sub/out/a.py", False),
            ("a_pb2.py", True),
            ("keep_pb2.py", False),
            ("sub/a_pb2.py", False),
            ("sub/b_pb2.py", True),
            ("sub/local.py", True),
            ("local.py", False),
            ("sub/deep/x/a.py", True),
            ("../a.py", False),
        ],
    )
    def test_patterns_are_read_as_git_reads_them(self, tree, path, ignored):
        assert GitIgnored().ignores(str(tree / path), is_directory=False) is ignored

    def test_inner_work_tree_is_its_own(self, tree):
        (tree / "out" / "inner" / ".git").mkdir(parents=True)
        assert not GitIgnored().ignores(str(tree / "out" / "inner" / "a.py"), is_directory=False)

    @pytest.mark.slow
    def test_command_leaves_ignored_files_out(self, command, tree, buggy):
        (tree / "out").mkdir()
        (tree / "out" / "a.py").write_text(buggy)
        assert command().returncode == 0
        assert command("--no-gitignore").returncode == 1
        assert command("out/a.py").returncode == 1
        assert command("--force-exclude", "out/a.py").returncode == 0
        table = "[tool.gradcheck-suite.lint]\nrespect-gitignore = false\n"
        (tree / "pyproject.toml").write_text(table)
        assert command().returncode == 1
