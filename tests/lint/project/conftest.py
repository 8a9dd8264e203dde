from __future__ import annotations

import textwrap

import pytest

from gradcheck_lint.engine import lint
from gradcheck_lint.project.importers import forget_index


@pytest.fixture
def project(tmp_path):
    """Return a function that writes files below a root."""

    def write(**sources):
        forget_index()
        for name, source in sources.items():
            path = tmp_path.joinpath(*name.split("__"))
            path = path.with_name(path.name.replace("INIT", "__init__") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(source).lstrip("\n"))
        return tmp_path

    return write


@pytest.fixture
def findings(project, tmp_path):
    """Return a function that says what is told of one file: code, line and severity."""

    def find(name):
        path = tmp_path.joinpath(*name.split("__")).with_suffix(".py")
        linted = lint(path.read_bytes(), str(path), root=str(tmp_path))
        return [(f.code, f.location.line, f.severity.value) for f in linted.findings]

    return find
