"""The programs of docs/how-to/frameworks.md and the README, where their framework is installed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import gradcheck_suite.integrations
from gradcheck_suite.integrations import frameworks

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "frameworks.md"
SECTION = re.compile(r"^## (\w+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECTIONS = dict(SECTION.findall(PAGE.read_text("utf-8")))
ALL = [each for each in vars(frameworks).values() if isinstance(each, frameworks.Framework)]


def test_each_framework_that_is_supported_has_a_section_and_a_module():
    folder = Path(gradcheck_suite.integrations.__path__[0])
    for each in ALL:
        assert (folder / f"{each.extra}.py").is_file()
        assert f"gradcheck-suite[{each.extra}]" in SECTIONS[each.name]
        assert f"{'.'.join(map(str, each.oldest))} or later" in SECTIONS[each.name]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("framework", ALL, ids=lambda each: each.extra)
def test_its_program_runs_and_finds_what_it_says(framework, tmp_path, monkeypatch):
    for module in framework.modules[:1]:
        pytest.importorskip(module, reason=f"{framework.name} is not installed")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    (program,) = PROGRAM.findall(SECTIONS[framework.name])
    path = tmp_path / "example.py"
    path.write_text(program, "utf-8")
    namespace = {"__name__": "example"}
    exec(compile(program, str(path), "exec"), namespace)
    said = set(re.findall(r"GCS\d{3}", program))
    session = namespace.get("session")
    for name in ("callback", "handler"):
        if name in namespace:
            session = namespace[name].session
    if session is not None:
        assert {each.code for each in session.findings} == said


@pytest.mark.filterwarnings("ignore")
def test_the_block_of_the_readme_runs(tmp_path, monkeypatch):
    programs = PROGRAM.findall((ROOT / "README.md").read_text("utf-8"))
    (program,) = (each for each in programs if "gradcheck_suite.integrations" in each)
    lightning = pytest.importorskip("lightning", reason="Lightning is not installed")
    monkeypatch.chdir(tmp_path)
    namespace = {"lightning": lightning}
    exec(program, namespace)
    callback = namespace["GradcheckCallback"]
    assert any(isinstance(each, callback) for each in namespace["trainer"].callbacks)
