"""What stands in a block of a page is so: programs run and print it, settings parse."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml

from pytest_gradcheck_suite.options import OPTIONS
from tests import warm_python

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    DOCS / "tutorial.md",
    DOCS / "index.md",
    *sorted((DOCS / "how-to").glob("*.md")),
    *sorted((DOCS / "coming-from").glob("*.md")),
]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAM = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def output_of(program: str, folder: Path) -> str:
    """Run a program as ``example.py`` of a folder and return what it prints."""
    path = folder / "example.py"
    path.write_text(program, encoding="utf-8")
    done = warm_python.run([path.name], cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.sampled(every=18)
@each_page
def test_programs_print_what_the_page_says(page, tmp_path):
    for program, said in PROGRAM.findall(page.read_text("utf-8")):
        assert output_of(program, tmp_path) == said


def test_a_program_that_prints_something_else_would_be_seen(tmp_path):
    assert output_of("print(1)\n", tmp_path) != "2\n"


@each_page
def test_programs_and_settings_can_be_read(page):
    readers = {"python": ast.parse, "toml": tomllib.loads, "yaml": yaml.safe_load}
    for language, block in FENCE.findall(page.read_text("utf-8")):
        readers.get(language, str)(block)


@each_page
def test_commands_have_the_options_that_a_page_gives_them(page):
    sources = "\n".join(
        path.read_text("utf-8")
        for folder in ("gradcheck_suite", "lint_rules", "pytest_plugin")
        for path in (ROOT / folder).rglob("*.py")
    )
    text = page.read_text("utf-8")
    commands = re.findall(r"(?:gradcheck-lint|gradcheck-suite|pytest) [^`\n|]*", text)
    options = {option for command in commands for option in re.findall(r"--[\w-]+", command)}
    foreign = {"--no-python", "--nproc-per-node", "--epochs"}
    of_pytest = {f"--gradcheck-suite-{name}" for name in OPTIONS}
    unknown = [each for each in options - foreign - of_pytest if f'"{each}"' not in sources]
    assert unknown == []
