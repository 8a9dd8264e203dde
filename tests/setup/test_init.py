"""``gradcheck-suite init``: what it writes, what it leaves alone, and that it can be taken back."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gradcheck_suite import cli
from gradcheck_suite.commands import init
from gradcheck_suite.setup import plan
from gradcheck_suite.setup.insertions import read_toml, read_yaml
from tests import warm_python

LOOP = """\
import torch

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.ones(8, 4, 2):
    loss = model(batch).sum()
    loss.backward()
    optimizer.step()
"""


def git(folder, *words):
    done = subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)
    return done.stdout.decode()


@pytest.fixture
def project(tmp_path, monkeypatch):
    git(tmp_path, "init")
    git(tmp_path, "remote", "add", "origin", "git@github.com:someone/something.git")
    (tmp_path / "train.py").write_text(LOOP)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_model.py").write_text("import torch\ndef test_it(): ...\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def ask(capsys):
    def answer(*words):
        status = cli.main(["init", *words])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return status, said.out, said.err

    return answer


def everything_in(folder):
    files = (path for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


ALL = {".pre-commit-config.yaml", "pyproject.toml", ".github/workflows/gradcheck-lint.yml"}


def test_a_fresh_repository_gets_all_of_it_and_gives_it_back(project, ask):
    before = everything_in(project)
    status, out, err = ask("--yes")
    assert (status, err) == (0, "")
    assert "found train.py:7, which trains (a loop of its own)\n" in out
    assert "found tests in tests\n" in out
    assert "--- /dev/null\n+++ b/pyproject.toml\n" in out
    assert "  gradcheck-suite audit train.py " in out
    after = everything_in(project)
    assert after.keys() - before.keys() == ALL
    assert read_toml(after["pyproject.toml"], "")["tool"]["gradcheck-suite"] == {
        "lint": {"fail-on": "error"},
        "pytest": {"audit": "error"},
    }
    status, out, _ = ask("--undo")
    assert status == 0
    assert {line.removeprefix("took back ") for line in out.splitlines()} == ALL
    assert everything_in(project) == before
    assert not (project / ".github").exists()
    assert not (project / ".git" / "gradcheck-suite-init.json").exists()


def test_a_second_run_finds_nothing_to_write(project, ask):
    ask("--yes")
    after = everything_in(project)
    status, out, _ = ask("--yes")
    assert status == 0
    assert out.endswith("nothing to write\n")
    assert out.count(" already\n") == 4
    assert everything_in(project) == after


def test_parts_that_are_written_one_after_the_other_are_taken_back_together(project, ask):
    before = everything_in(project)
    for part in ("pytest", "settings", "ci", "pre-commit"):
        assert ask(part, "--yes")[0] == 0
    assert everything_in(project).keys() - before.keys() == ALL
    assert ask("--undo")[0] == 0
    assert everything_in(project) == before


@pytest.mark.slow
def test_the_hook_runs_and_finds_the_mistake(project, ask):
    ask("pre-commit", "--yes")
    git(project, "add", ".")
    ours = Path(__file__).parents[2]
    path = [ours, ours / "lint_rules", os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "pre_commit", "run", "--all-files"],
        cwd=project,
        env={
            **os.environ,
            "PRE_COMMIT_HOME": str(project / ".git" / "cache"),
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "GCS301" in done.stdout


@pytest.mark.parametrize("address", ["https://github.com/someone/gradcheck-suite"])
def test_a_published_repository_is_named_with_its_version(monkeypatch, address):
    item = plan.FROM_REPOSITORY.replace(plan.REPOSITORY, address)
    (source,) = yaml.safe_load(item)
    assert source["repo"] == address
    assert source["rev"] == f"v{plan.__version__}"
    assert source["hooks"] == [{"id": "gradcheck-lint"}]


PRE_COMMITS = {
    "indented": "# of ours\nrepos:\n  - repo: local  # first\n    hooks: []\n\nfail_fast: true\n",
    "not indented": "repos:\n- repo: 'local'\n  hooks: []\n# the end\n",
    "without a line end": "repos:\n- repo: local\n  hooks: [ ]",
    "line ends of Windows": "repos:\r\n- repo: local\r\n  hooks: []\r\nci:\r\n  skip: [x]\r\n",
    "followed at once": "repos:\n  - repo: local\n    hooks: []\nexclude: ^docs/\n",
    "byte order mark": "\ufeffrepos:\n- repo: local\n  hooks: []\n",
    "anchors": "x: &x {files: a}\nrepos:\n- repo: local\n  hooks:\n  - {id: a, <<: *x}\n",
    "not ASCII": "# für uns\nrepos:\n- repo: local # ä\n  hooks: []\nz: ü\n",
}


@pytest.mark.parametrize("kind", PRE_COMMITS)
def test_a_list_of_hooks_keeps_every_byte(kind, project, ask):
    before = PRE_COMMITS[kind].encode()
    file = project / ".pre-commit-config.yaml"
    file.write_bytes(before)
    assert ask("pre-commit", "--yes")[0] == 0
    after = file.read_bytes()
    old, new = read_yaml(before, ""), read_yaml(after, "")
    assert new["repos"][:-1] == old["repos"]
    assert new["repos"][-1]["hooks"][0]["id"] == "gradcheck-lint"
    assert {**new, "repos": None} == {**old, "repos": None}
    added = len(after) - len(before)
    assert any(after[:at] + after[at + added :] == before for at in range(len(before) + 1))
    assert (b"\r\n" in before) == (b"\r\n" in after)
    assert after.count(b"\n") == after.count(b"\r\n") or b"\r\n" not in before
    assert ask("--undo")[0] == 0
    assert file.read_bytes() == before


PYPROJECTS = {
    "a project": '[project]\nname = "x"  # ours\n\n[tool.ruff]\nline-length = 100\n',
    "our other table": '[tool.gradcheck-suite.lint]\nignore = ["GCS9"]\n[tool.z]\na = 1\n',
    "without a line end": "[tool.ruff]\nx = 1",
    "line ends of Windows": "[tool.ruff]\r\nx = 1\r\n",
    "arrays of tables": '[[tool.mypy.overrides]]\nmodule = "x"\n',
    "empty": "",
}


@pytest.mark.parametrize("kind", PYPROJECTS)
def test_settings_come_behind_what_is_there(kind, project, ask):
    before = PYPROJECTS[kind].encode()
    file = project / "pyproject.toml"
    file.write_bytes(before)
    assert ask("settings", "pytest", "--yes")[0] == 0
    after = file.read_bytes()
    assert after.startswith(before)
    table = read_toml(after, "")["tool"]["gradcheck-suite"]
    assert table["pytest"] == {"audit": "error"}
    assert set(table) == {"lint", "pytest"}
    assert ask("--undo")[0] == 0
    assert file.read_bytes() == before


GITLAB = """\
# ours
stages: [build, check]

.base: &base
  image: x

build:
  <<: *base
  stage: build
  script:
    - !reference [.base, script]
"""


@pytest.mark.parametrize(
    ("before", "stage"), [(GITLAB, "build"), ("x:\n  script: [a]", None), (None, None)]
)
def test_a_pipeline_of_gitlab_gains_a_job(before, stage, project, ask):
    git(project, "remote", "set-url", "origin", "https://gitlab.com/someone/something")
    file = project / ".gitlab-ci.yml"
    if before is not None:
        file.write_text(before)
    assert ask("ci", "--yes")[0] == 0
    job = read_yaml(file.read_bytes(), "")["gradcheck-lint"]
    assert job.get("stage") == stage
    assert job["artifacts"]["reports"] == {"codequality": "gl-code-quality-report.json"}
    assert file.read_text().startswith(before or "")
    assert not (project / ".github").exists()
    assert ask("--undo")[0] == 0
    assert (file.read_text() if file.exists() else None) == before


def test_nothing_that_shows_a_service_asks_for_its_name(project, ask):
    git(project, "remote", "remove", "origin")
    _, out, _ = ask("ci", "--yes")
    assert "ci: neither a remote nor a folder shows GitHub or GitLab; --ci names one" in out
    ask("ci", "--yes", "--ci", "github")
    assert (project / ".github" / "workflows" / "gradcheck-lint.yml").is_file()


@pytest.mark.parametrize(
    ("path", "text", "reason"),
    [
        (".pre-commit-config.yaml", "repos: []\n", "has `repos` in brackets; add the hook by hand"),
        (".pre-commit-config.yaml", "repo: x\n", "has no list `repos`"),
        (".pre-commit-config.yaml", "- a\n", "holds no mapping"),
        (".pre-commit-config.yaml", "repos: [\n", "can't be read as YAML"),
        (".pre-commit-config.yaml", b"# \xff\nrepos:\n- a: b\n", "is not UTF-8"),
        ("pyproject.toml", "[tool\n", "can't be read as TOML"),
        ("pyproject.toml", b"# \xff\n", "can't be read as TOML in UTF-8"),
        ("pyproject.toml", "tool = {ruff = {}}\n", "has no place for [tool.gradcheck-suite."),
        ("pyproject.toml", "tool = 3\n", "has a `tool` that is no table"),
    ],
)
def test_a_file_that_can_not_be_changed_is_one_line_and_the_rest_is_written(
    path, text, reason, project, ask
):
    content = text if isinstance(text, bytes) else text.encode()
    (project / path).write_bytes(content)
    status, out, _ = ask("--yes")
    assert status == 2
    told = [line for line in out.splitlines() if f"left out: {path} {reason}" in line]
    assert len(told) == (1 if path.startswith(".pre") else 2)
    assert (project / path).read_bytes() == content
    assert (project / ".github" / "workflows" / "gradcheck-lint.yml").is_file()


def test_what_is_no_file_is_one_line(project, ask):
    (project / "pyproject.toml").mkdir()
    os.mkfifo(project / ".pre-commit-config.yaml")
    status, out, _ = ask("--yes")
    assert status == 2
    assert "settings: left out: pyproject.toml can't be read: " in out
    assert "pre-commit: left out: .pre-commit-config.yaml can't be read: it is not a reg" in out


def test_a_read_only_file_stays_as_it_is(project, ask):
    file = project / "pyproject.toml"
    file.write_text("[tool.x]\n")
    file.chmod(0o444)
    status, _, err = ask("--yes")
    assert status == 2
    assert "pyproject.toml can't be written: it is read-only; `--undo` takes back" in err
    assert file.read_text() == "[tool.x]\n"
    assert ask("--undo")[0] == 0
    assert not (project / ".pre-commit-config.yaml").exists()


def test_a_link_out_of_the_repository_is_not_followed(project, ask, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "pyproject.toml"
    outside.write_text("[tool.x]\n")
    (project / "pyproject.toml").symlink_to(outside)
    status, _, err = ask("settings", "--yes")
    assert status == 2
    assert "it is a symbolic link to" in err
    assert outside.read_text() == "[tool.x]\n"


def test_without_a_repository_there_is_one_line(tmp_path, monkeypatch, ask):
    monkeypatch.chdir(tmp_path)
    status, out, err = ask("--yes")
    assert (status, out) == (2, "")
    assert "is in no work tree of git" in err
    assert err.endswith("begin one with `git init`, or go to yours\n")
    assert len(err.splitlines()) == 1


def test_without_git_there_is_one_line(project, monkeypatch, ask):
    monkeypatch.setenv("PATH", "")
    status, _, err = ask("--yes")
    assert status == 2
    assert err == "gradcheck-suite: error: git is not installed here; expected `git` on PATH\n"


def test_the_nearest_pyproject_is_the_one(project, monkeypatch, ask):
    inner = project / "packages" / "one"
    inner.mkdir(parents=True)
    (inner / "pyproject.toml").write_text("")
    monkeypatch.chdir(inner)
    assert ask("settings", "--yes")[0] == 0
    assert "gradcheck-suite" in (inner / "pyproject.toml").read_text()
    assert not (project / "pyproject.toml").exists()


def test_a_dry_run_shows_and_writes_nothing(project, ask):
    before = everything_in(project)
    status, out, _ = ask("--dry-run")
    assert status == 0
    assert "+[tool.gradcheck-suite.lint]" in out
    assert out.endswith("nothing was written (--dry-run)\n")
    assert everything_in(project) == before


@pytest.mark.slow
def test_nobody_to_ask_is_a_usage_error(project):
    done = warm_python.run(["-m", "gradcheck_suite", "init"], cwd=project)
    assert done.returncode == 2
    assert "there is no terminal to ask on, so that nothing was written; give --yes" in done.stderr


@pytest.mark.parametrize(("answer", "writes"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_the_answer_decides(answer, writes, project, ask, monkeypatch):
    ours, theirs = pty.openpty()
    os.write(ours, answer.encode())
    with os.fdopen(theirs) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        status, out, _ = ask()
    os.close(ours)
    assert status == 0
    assert "Write .pre-commit-config.yaml, pyproject.toml, .github/" in out
    assert (project / "pyproject.toml").exists() is writes


def test_what_was_added_since_stays(project, ask):
    ask("settings", "pre-commit", "--yes")
    file = project / "pyproject.toml"
    file.write_text("# first\n" + file.read_text() + "\n[tool.ruff]\n")
    assert ask("--undo")[0] == 0
    assert file.read_text() == "# first\n\n[tool.ruff]\n"


def test_what_was_changed_since_is_left_and_told(project, ask):
    ask("settings", "pre-commit", "--yes")
    file = project / "pyproject.toml"
    file.write_text(file.read_text().replace("error", "note"))
    status, out, _ = ask("--undo")
    assert status == 2
    assert "pyproject.toml was changed since where init wrote; take that out by hand" in out
    assert "took back .pre-commit-config.yaml" in out
    file.unlink()
    assert ask("--undo")[0] == 0


def test_there_may_be_nothing_to_undo(project, ask):
    status, _, err = ask("--undo")
    assert status == 2
    assert "init has written nothing in this clone" in err


def test_a_broken_record_is_named(project, ask):
    (project / ".git" / "gradcheck-suite-init.json").write_text("{}")
    status, _, err = ask("--undo")
    assert status == 2
    assert "gradcheck-suite-init.json can't be used" in err


def test_a_work_tree_of_its_own_keeps_its_own_record(project, ask, monkeypatch):
    git(project, "-c", "user.name=x", "-c", "user.email=x", "commit", "--allow-empty", "-m", "x")
    git(project, "worktree", "add", "beside")
    monkeypatch.chdir(project / "beside")
    assert ask("settings", "--yes")[0] == 0
    monkeypatch.chdir(project)
    assert ask("--undo")[0] == 2
    monkeypatch.chdir(project / "beside")
    assert ask("--undo")[0] == 0
    assert not (project / "beside" / "pyproject.toml").exists()


def test_an_unknown_part_names_the_parts(project, ask):
    status, _, err = ask("precommit")
    assert status == 2
    assert "init knows no part 'precommit'; expected pre-commit, settings, pytest, ci" in err
    assert init._PARTS == plan.PARTS


def test_tests_that_do_not_name_torch_are_not_audited(project, ask):
    (project / "tests" / "test_model.py").write_text("def test_it(): ...\n")
    _, out, _ = ask("pytest", "--yes")
    assert "pytest: no test in tests names torch" in out
    shutil.rmtree(project / "tests")
    _, out, _ = ask("pytest", "--yes")
    assert "pytest: there are no tests here" in out


def test_a_reader_who_leaves_keeps_nothing_from_being_written(project):
    command = [sys.executable, "-m", "gradcheck_suite", "init", "--yes"]
    ours = Path(__file__).parents[2]
    path = os.pathsep.join(map(str, (ours, ours / "lint_rules", ours / "pytest_plugin")))
    process = subprocess.Popen(
        command,
        cwd=project,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0
    assert everything_in(project).keys() >= ALL


def test_a_script_with_spaces_is_named_as_a_shell_takes_it(project, ask):
    (project / "train.py").rename(project / "train me\x1b.py")
    _, out, _ = ask("settings", "--yes")
    assert "\n  gradcheck-suite audit 'train me\\x1b.py'" in out
    assert "\x1b" not in out


def test_a_script_with_relative_imports_is_to_be_run_as_a_module(project, ask):
    package = project / "src" / "ops_of_init"
    package.mkdir(parents=True)
    (package / "train.py").write_text(f"from .model import Net\n{LOOP}")
    (project / "train.py").unlink()
    command = "\n  PYTHONPATH=src gradcheck-suite audit -m ops_of_init.train  what a run"
    assert command in ask("settings", "--yes")[1]


def test_undo_asks_nothing_and_takes_a_yes(project, ask):
    before = everything_in(project)
    assert ask("settings", "--yes")[0] == 0
    status, _, said = ask("--undo", "--dry-run")
    assert (status, "--undo takes back what was written" in said) == (2, True)
    assert ask("--undo", "--yes")[0] == 0
    assert everything_in(project) == before
