"""The wheel and the editable install, in fresh environments, beside folders of our names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PACKAGES = ("gradcheck_suite", "pytest_gradcheck_suite", "gradcheck_lint")


@dataclass(frozen=True)
class Environment:
    folder: Path
    kind: str

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def run(self, *command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.folder / "bin" / command[0]), *map(str, command[1:])],
            cwd=cwd,
            env=bare_environment(),
            capture_output=True,
            text=True,
            check=False,
        )


def bare_environment() -> dict[str, str]:
    """What a user's shell has: nothing of the environment that runs these tests."""
    mine = ("PYTHON", "COVERAGE", "PYTEST", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(mine)}


def must(command: list[str | Path], **options: object) -> None:
    done = subprocess.run(
        list(map(str, command)),
        env={**bare_environment(), "PIP_CONSTRAINT": "", **options.pop("env", {})},
        capture_output=True,
        text=True,
        check=False,
        **options,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT]
    must(build, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module", params=["wheel", "editable"])
def environment(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    """A fresh virtual environment with gradcheck-suite, pytest and mypy; no torch."""
    kind = request.param
    folder = tmp_path_factory.mktemp(kind)
    must([sys.executable, "-m", "venv", folder])
    what = [request.getfixturevalue("wheel")] if kind == "wheel" else ["--editable", ROOT]
    constraints = str(ROOT / "constraints.txt")
    must(
        [folder / "bin" / "python", "-m", "pip", "install", "--quiet", *what, "pytest", "mypy"],
        env={"PIP_CONSTRAINT": constraints, "PIP_BUILD_CONSTRAINT": constraints},
    )
    return Environment(folder, kind)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's project, with folders of its own that bear our folders' names."""
    for name in ("lint_rules", "pytest_plugin"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong package')\n")
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "\n"
        "def train(model, optimizer, batches):\n"
        "    for batch in batches:\n"
        "        loss = model(batch).sum()\n"
        "        loss.backward()\n"
        "        optimizer.step()\n"
    )
    (tmp_path / "test_it.py").write_text(
        "def test_nothing():\n    assert True\n\n"
        "def test_the_plugin_is_there(request):\n"
        "    assert request.config.pluginmanager.hasplugin('gradcheck_suite')\n"
    )
    (tmp_path / "typed.py").write_text(
        "from gradcheck_suite import Finding, Report, Severity\n"
        "from gradcheck_lint.engine import lint_source\n"
        "\n"
        "def errors(report: Report) -> tuple[Finding, ...]:\n"
        "    return report.at_least(Severity.ERROR)\n"
        "\n"
        "wrong: int = lint_source(b'', 'x.py')\n"
    )
    return tmp_path


def test_pytest_runs_beside_folders_of_our_names(environment: Environment, project: Path) -> None:
    done = environment.run("python", "-m", "pytest", "-q", cwd=project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_lint_finds_the_mistake_without_torch(environment: Environment, project: Path) -> None:
    done = environment.run("gradcheck-lint", "--output-format", "json", "train.py", cwd=project)
    assert done.returncode == 1, done.stdout + done.stderr
    (finding,) = json.loads(done.stdout)["findings"]
    assert (finding["code"], finding["path"]) == ("GCS301", "train.py")
    assert environment.run("python", "-c", "import torch", cwd=project).returncode != 0


def test_mypy_reads_our_types(environment: Environment, project: Path) -> None:
    done = environment.run("mypy", "--strict", "typed.py", cwd=project)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "typed.py:7" in done.stdout
    assert "Found 1 error" in done.stdout


def test_run_time_names_say_what_to_install(environment: Environment, project: Path) -> None:
    done = environment.run(
        "python", "-c", "import gradcheck_suite as gs; gs.check_gradients", cwd=project
    )
    assert done.returncode == 1
    assert "pip install 'gradcheck-suite[torch]'" in done.stderr.splitlines()[-1]


def test_commands_say_what_to_install(environment: Environment, project: Path) -> None:
    done = environment.run("gradcheck-suite", "audit", "train.py", cwd=project)
    assert done.returncode == 2
    assert "pip install 'gradcheck-suite[torch]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_explain_needs_no_torch(environment: Environment, project: Path) -> None:
    done = environment.run("gradcheck-suite", "explain", "missing-zero-grad", cwd=project)
    assert done.returncode == 0, done.stderr
    assert "GCS301" in done.stdout


def test_catalogue_is_read_from_the_wheel_itself(wheel: Path, tmp_path: Path) -> None:
    program = (
        "from gradcheck_suite import catalogue\n"
        "assert '.whl' in catalogue.__file__\n"
        "for entry in catalogue.ENTRIES: assert entry.title and entry.example\n"
    )
    must([sys.executable, "-c", program], cwd=tmp_path, env={"PYTHONPATH": str(wheel)})


def test_wheel_holds_what_it_should(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for package in PACKAGES:
        assert f"{package}/py.typed" in names
    assert "gradcheck_suite/_examples/digits/digits.csv.gz" in names
    assert "gradcheck_suite/reporting/schemas/report-1.schema.json" in names
    entries = (ROOT / "gradcheck_suite" / "catalogue" / "entries").glob("GCS*")
    assert {f"gradcheck_suite/catalogue/entries/{file.name}" for file in entries} <= names
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == set(PACKAGES)
