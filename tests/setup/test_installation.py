"""What ``doctor`` finds where something is missing, broken, blocked or set up wrongly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from gradcheck_suite.commands import doctor
from gradcheck_suite.setup import installation
from gradcheck_suite.setup.installation import PARTS, examine

ROOT = Path(__file__).parents[2]


def ask(*arguments, cwd=ROOT, path=(), **variables):
    ours = [ROOT, ROOT / "pytest_plugin", ROOT / "lint_rules"]
    return subprocess.run(
        [sys.executable, "-m", "gradcheck_suite", "doctor", *arguments],
        cwd=cwd,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (*path, *ours))),
            "PYTHONWARNINGS": "ignore",
            **variables,
        },
        capture_output=True,
        text=True,
        check=False,
    )


def checks_of(done):
    assert "Traceback" not in done.stderr, done.stderr
    return {check["part"]: check for check in json.loads(done.stdout)["checks"]}


def fake_torch(folder: Path, source: str) -> Path:
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text(source)
    return folder


@pytest.mark.slow
def test_all_that_is_installed_here_works():
    done = ask()
    assert done.returncode == 0, done.stdout
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[-1] == "All that was asked for works."
    assert f"  torch            {metadata.version('torch')}" in done.stdout
    for part in ("lint", "pytest", "settings", "terminal"):
        assert any(line.startswith(f"  works    {part}: ") for line in lines), part
    assert any(line.startswith(("  works    run-time", "  limited  run-time")) for line in lines)


TORCHES = {
    "absent": (
        "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')",
        ("absent", "PyTorch is not installed", "pip install 'gradcheck-suite[torch]'"),
    ),
    "too old": ("__version__ = '2.4.1'", ("fails", "needs PyTorch 2.6 or later", None)),
    "broken": (
        "raise ImportError('libtorch_cpu.so: undefined symbol')",
        ("fails", "ImportError: libtorch_cpu.so: undefined symbol", None),
    ),
    "another": ("", ("fails", "`import torch` finds something else here", None)),
    "fatal": (
        "import os, sys; sys.stderr.write('Illegal instruction'); os._exit(132)",
        ("fails", "a process that imports torch ended with 132: Illegal instruction", None),
    ),
    "talkative": (
        "print('welcome'); raise ValueError('no driver')",
        ("fails", "ValueError: no driver", None),
    ),
}


@pytest.mark.parametrize("kind", TORCHES)
def test_a_torch_that_does_not_work_is_told_in_one_line(kind, tmp_path):
    source, (status, message, hint) = TORCHES[kind]
    done = ask("run-time", "--output-format", "json", path=[fake_torch(tmp_path, source)])
    check = checks_of(done)["run-time"]
    assert (done.returncode, check["status"], check["hint"]) == (1, status, hint)
    assert message in check["message"]
    assert "\n" not in check["message"]


def test_without_torch_the_linter_works_and_is_all_that_was_asked_for(tmp_path):
    torch = fake_torch(tmp_path, TORCHES["absent"][0])
    done = ask("lint", path=[torch])
    assert done.returncode == 0, done.stdout
    assert "  works    lint: gradcheck-lint finds a mistake" in done.stdout


def test_a_linter_that_can_not_be_imported_is_told(tmp_path):
    (tmp_path / "libcst").mkdir()
    (tmp_path / "libcst" / "__init__.py").write_text("raise ImportError('native is missing')")
    done = ask("lint", path=[tmp_path])
    assert done.returncode == 1
    assert "ImportError: native is missing" in done.stdout
    assert done.stdout.endswith("Does not work: lint.\n")


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", raising=False)
    (tmp_path / "conftest.py").write_text("raise RuntimeError('of the user')\n")
    return tmp_path


def the_check(part, folder):
    (check,) = examine(folder, frozenset({part})).checks
    return check


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "status", "message", "hint"),
    [
        ("", "works", "loads the plugin", None),
        (
            '[tool.pytest.ini_options]\naddopts = "-p no:gradcheck_suite"\n',
            "absent",
            "does not load the plugin",
            "-p no:gradcheck_suite",
        ),
        (
            '[tool.gradcheck-suite.pytest]\nadit = "error"\n',
            "fails",
            "has no setting 'adit'; did you mean 'audit'?",
            None,
        ),
        ("[tool.pytest", "fails", "pytest does not start here", None),
    ],
)
def test_the_plugin_is_loaded_blocked_or_set_up_wrongly(project, text, status, message, hint):
    (project / "pyproject.toml").write_text(text)
    check = the_check("pytest", project)
    assert check.status == status
    assert message in check.message
    assert (hint or "") in (check.hint or "")


@pytest.mark.slow
def test_autoloading_that_is_off_is_named(project, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    check = the_check("pytest", project)
    assert check.status == "absent"
    assert "PYTEST_DISABLE_PLUGIN_AUTOLOAD is set" in check.hint


def test_without_pytest_there_is_no_plugin(project, monkeypatch):
    monkeypatch.setattr(installation, "_version_of", lambda _: None)
    check = the_check("pytest", project)
    assert (check.status, check.hint) == ("absent", "pip install 'gradcheck-suite[pytest]'")


@pytest.mark.parametrize(
    ("text", "status", "message"),
    [
        (None, "works", "there are none: every rule, failing on errors"),
        ('[tool.gradcheck-suite.lint]\nignore = ["GCS9"]\n', "works", "those of the linter are in"),
        ("[tool.gradcheck-suite.lint]\nignroe = []\n", "fails", "no key `ignroe`; did you mean"),
        ("[tool.gradcheck-suite.lnt]\n", "fails", "has no table `lnt`; did you mean `lint`?"),
        ("[tool.gradcheck-suite\n", "fails", "is not valid TOML"),
    ],
)
def test_settings_are_read_as_the_linter_reads_them(project, text, status, message):
    if text is not None:
        (project / "pyproject.toml").write_text(text)
    check = the_check("settings", project)
    assert check.status == status
    assert message in check.message


def test_a_cache_that_can_not_be_written_costs_time_alone(project, monkeypatch):
    (project / "file").touch()
    monkeypatch.setenv("GRADCHECK_LINT_CACHE_DIR", str(project / "file" / "below"))
    check = the_check("cache", project)
    assert (check.status, check.hint) == ("limited", "name a folder in GRADCHECK_LINT_CACHE_DIR")
    assert "is no folder to write in" in check.message
    monkeypatch.setenv("GRADCHECK_LINT_CACHE_DIR", str(project / "new" / "below"))
    assert the_check("cache", project).status == "works"
    assert not (project / "new").exists()


def git(folder, *words):
    subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)


def test_the_hook_is_set_up_and_installed_one_after_the_other(project):
    assert the_check("pre-commit", project).status == "absent"
    assert "is in no work tree of git" in the_check("pre-commit", project).message
    git(project, "init")
    check = the_check("pre-commit", project)
    assert (check.status, check.hint) == ("absent", "gradcheck-suite init")
    config = project / ".pre-commit-config.yaml"
    config.write_text("repos:\n# - id: gradcheck-lint\n")
    assert the_check("pre-commit", project).status == "absent"
    config.write_text("repos:\n- repo: x\n  hooks:\n  - id: gradcheck-lint\n")
    check = the_check("pre-commit", project)
    assert (check.status, check.hint) == ("limited", "pre-commit install")
    hook = project / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexec python -m pre_commit hook-impl\n")
    assert the_check("pre-commit", project).status == "works"


def test_hooks_are_looked_for_where_git_looks(project):
    git(project, "init")
    git(project, "config", "core.hooksPath", "own-hooks")
    (project / ".pre-commit-config.yaml").write_text("- id: gradcheck-lint\n")
    (project / "own-hooks").mkdir()
    (project / "own-hooks" / "pre-commit").write_text("pre-commit run\n")
    assert the_check("pre-commit", project).status == "works"


@pytest.mark.parametrize("part", ["png", "strategies", "completion", "lsp"])
def test_an_extra_is_there_too_old_broken_or_absent(project, monkeypatch, part):
    assert the_check(part, project).status == "works"
    monkeypatch.setattr(installation, "_version_of", lambda _: "0.0.1")
    check = the_check(part, project)
    assert (check.status, check.hint) == ("fails", f"pip install 'gradcheck-suite[{part}]'")
    assert "0.0.1 is older than" in check.message
    monkeypatch.setattr(installation, "_version_of", lambda _: None)
    assert the_check(part, project).status == "absent"


@pytest.mark.parametrize("part", ["lightning", "transformers", "accelerate", "ignite"])
def test_a_framework_is_too_old_or_absent(project, monkeypatch, part):
    monkeypatch.setattr(installation, "_version_of", lambda _: "0.0.1")
    check = the_check(part, project)
    assert (check.status, check.hint) == ("fails", f"pip install 'gradcheck-suite[{part}]'")
    assert "0.0.1 is older than" in check.message
    monkeypatch.setattr(installation, "_version_of", lambda _: None)
    assert the_check(part, project).status == "absent"


def test_a_framework_is_imported_for_who_names_it(project, monkeypatch):
    monkeypatch.setattr(installation, "try_run_time", lambda: dict(WELL))
    imported = []
    monkeypatch.setattr(installation, "_version_of", lambda _: "99.0")
    monkeypatch.setattr(installation, "import_module", imported.append)
    monkeypatch.setattr(installation, "find_spec", lambda name: name != "transformers" or None)
    checks = {check.part: check for check in examine(project).checks}
    assert not {"lightning", "ignite.engine", "accelerate"} & set(imported)
    assert "`doctor lightning` also imports it" in checks["lightning"].message
    assert checks["lightning"].status == checks["ignite"].status == "works"
    assert checks["transformers"].status == "fails"
    check = the_check("lightning", project)
    assert (check.status, imported[-1:]) == ("works", ["lightning"])
    assert "also imports" not in check.message


def test_what_was_not_set_up_fails_only_who_asked_for_it(project, monkeypatch):
    monkeypatch.setattr(installation, "_version_of", lambda _: None)
    monkeypatch.setattr(installation, "try_run_time", lambda: dict(WELL))
    everything = examine(project)
    assert {check.part for check in everything.checks if check.status == "absent"} >= {"png"}
    assert everything.ok
    assert not examine(project, frozenset({"png"})).ok


WELL = {"limits": [], "distributed": True}


@pytest.mark.parametrize(
    ("trial", "words"),
    [
        ({"limits": ["the graph does not tell"], "distributed": True}, "the graph does not tell"),
        ({"limits": [], "distributed": False}, "built without torch.distributed"),
    ],
)
def test_limits_of_a_torch_are_told_and_fail_nothing(project, monkeypatch, trial, words):
    monkeypatch.setattr(installation, "try_run_time", lambda: trial)
    found = examine(project, frozenset({"run-time"}))
    assert (found.checks[0].status, found.ok) == ("limited", True)
    assert words in found.checks[0].message


def test_an_output_that_lacks_characters_is_told():
    check = checks_of(ask("terminal", "--output-format", "json", PYTHONIOENCODING="ascii"))
    assert check["terminal"]["status"] == "limited"
    assert check["terminal"]["hint"] == "set PYTHONUTF8=1"


def test_an_unknown_part_is_a_usage_error_that_names_the_parts():
    done = ask("torhc")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"doctor knows no part 'torhc'; expected {', '.join(PARTS)}" in done.stderr


def test_the_help_names_every_part():
    assert doctor._PARTS == PARTS


def test_json_tells_versions_checks_and_the_outcome():
    done = ask("completion", "--output-format", "json")
    document = json.loads(done.stdout)
    assert list(document) == ["schema", "tool", "version", "ok", "versions", "checks"]
    assert document["ok"] is True
    assert document["versions"][0]["name"] == "Python"
    assert document["checks"] == [
        {
            "part": "completion",
            "status": "works",
            "message": "--print-completion works",
            "hint": None,
            "asked": True,
        }
    ]
