"""The README: every block runs, prints what it says, and its links work wherever it is shown."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

from gradcheck_suite._addresses import DOCUMENTATION, REPOSITORY
from gradcheck_suite.setup.plan import FROM_REPOSITORY
from tests import warm_python

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
BLOCKS = [match.groups() for match in BLOCK.finditer(README)]
LINK = re.compile(r"\]\(([^)\s]+)\)")

IN_PYTEST = """
import torch
from torch import nn

MyFunction, x, weight = torch.mul, torch.ones(2, requires_grad=True), torch.ones(2)
model, batches = nn.Linear(2, 1), [torch.ones(4, 2)] * 3


def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in batches:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()


"""


def blocks(language):
    return [(block, said) for kind, block, said in BLOCKS if kind == language]


# Those of pytest run below, that of a framework in tests/integrations/test_frameworks_page.py.
ELSEWHERE = ("def test_", "gradcheck_suite.integrations")
PROGRAMS = [
    (block, said)
    for block, said in blocks("python")
    if not any(words in block for words in ELSEWHERE)
]


def test_it_is_short():
    assert README.count("\n") < 150


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_programs_print_what_is_said(number, tmp_path):
    program, said = PROGRAMS[number]
    (tmp_path / "example.py").write_text(program, "utf-8")
    done = warm_python.run(["example.py"], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, said or ""), done.stderr


@pytest.mark.slow
def test_the_tests_pass(tmp_path):
    (tests,) = (block for block, _ in blocks("python") if "def test_" in block)
    (tmp_path / "test_example.py").write_text(IN_PYTEST + tests, "utf-8")
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "test_example.py"]
    done = warm_python.run(words, cwd=tmp_path)
    assert "2 passed" in done.stdout, done.stdout


def test_the_command_prints_what_is_said():
    ((block, _),) = blocks("console")
    command, _, said = block.removeprefix("$ ").partition("\n")
    program, *words = shlex.split(command)
    assert program == "gradcheck-lint"
    lint = [sys.executable, "-m", "gradcheck_lint", "--no-cache", *words]
    done = subprocess.run(lint, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == said


def test_the_hook_is_one_of_ours():
    ((block, _),) = blocks("yaml")
    (entry,) = yaml.safe_load(block)
    ours = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    assert {hook["id"] for hook in entry["hooks"]} <= {hook["id"] for hook in ours}
    assert entry["repo"] == REPOSITORY
    # What `init` writes is the same, once the address is a real one.
    assert block.strip() == FROM_REPOSITORY.strip()


def test_the_first_commands_are_there():
    (demo, _), (tests, _), (block, _) = blocks("")
    made = {line.partition(":")[0] for line in (ROOT / "Makefile").read_text("utf-8").splitlines()}
    assert {demo.removeprefix("make ").strip(), tests.removeprefix("make ").strip()} <= made
    install, audit = block.splitlines()
    metadata = ProjectMetadata(str(ROOT), PluginManager())
    assert "gradcheck-suite[torch]" in install
    assert "torch" in metadata.core.optional_dependencies
    assert audit.split()[0] in metadata.core.scripts


def test_on_pypi_every_link_is_an_address():
    core = ProjectMetadata(str(ROOT), PluginManager()).core
    links = [link for link in LINK.findall(core.readme) if not link.startswith("#")]
    assert len(links) == len(LINK.findall(README))
    assert all(link.startswith(f"{REPOSITORY}/") for link in links)
    assert f"{REPOSITORY}/raw/main/docs/audit.svg" in links
    assert core.urls["Repository"] == REPOSITORY
    assert core.urls["Documentation"].startswith(DOCUMENTATION)


def test_the_picture_is_no_taller_than_a_screen():
    svg = (ROOT / "docs" / "audit.svg").read_text("utf-8")
    _, _, width, height = re.search(r'viewBox="([^"]*)"', svg)[1].split()
    assert float(height) <= 900
    assert float(width) <= 1200
    assert not re.search(r"https?://(?!www\.w3\.org)", svg)
