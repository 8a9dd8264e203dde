"""What is remembered of a file holds while the files that it rests on are as they were."""

from __future__ import annotations

import pytest

from gradcheck_lint.cache import Cache
from gradcheck_lint.config import Settings
from gradcheck_lint.project.importers import forget_index
from gradcheck_lint.runner import Options, lint_paths

ENGINE = """
    def step(model, optimizer, x):
        {reset}
        model(x).sum().backward()
        optimizer.step()
"""
MAIN = """
    import torch
    from engine import step

    def main(model, loader):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in loader:
            step(model, optimizer, x)
"""


@pytest.fixture
def codes(project, tmp_path):
    """Return a function that lints ``main.py`` with what is remembered, and says what is told."""
    root = tmp_path / "project"

    def lint():
        forget_index()
        cache = Cache(tmp_path / "cache")
        settings = Settings(root)
        options = Options(cache=cache)
        run = lint_paths([str(root / "main.py")], settings_for=lambda _: settings, options=options)
        return [finding.code for finding in run.report.findings]

    return lint


def test_change_of_another_file_is_seen(project, codes):
    project(project__engine=ENGINE.format(reset="pass"), project__main=MAIN, project__setup="")
    assert codes() == ["GCS301"] == codes()
    project(project__engine=ENGINE.format(reset="optimizer.zero_grad()"))
    assert codes() == []
    project(project__engine=ENGINE.format(reset="pass"))
    assert codes() == ["GCS301"]


def test_file_that_turns_up_is_seen(project, codes, tmp_path):
    project(project__main=MAIN, project__setup="")
    assert codes() == []
    project(project__engine=ENGINE.format(reset="pass"))
    assert codes() == ["GCS301"]
    (tmp_path / "project" / "engine.py").unlink()
    assert codes() == []


def test_caller_that_turns_up_is_seen(project, codes):
    leaf = """
        import torch
        from torch import nn

        def convert(model):
            new = nn.Linear(2, 2)
            new.weight.copy_(model.weight)
            return new
    """
    use = """
        import torch
        from main import convert

        def f(model):
            with torch.no_grad():
                convert(model)
    """
    project(project__main=leaf, project__setup="")
    assert codes() == ["GCS101"] == codes()
    project(project__use=use)
    assert codes() == []
