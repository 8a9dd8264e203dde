"""Who calls what was found may speak against it, also from another file."""

from __future__ import annotations

import pytest

from gradcheck_lint.project.importers import importers_of

MODEL = """
    import torch
    from torch import nn

    class Sage(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def inference(self, graph):
            y = torch.zeros(10, 3)
            for i in range(10):
                y[i] = self.layer(graph[i])
            return y
"""


@pytest.mark.parametrize(
    ("call", "silent"),
    [
        ("with torch.no_grad():\n            model.inference(g)", True),
        ("model.inference(g)", False),
    ],
    ids=["under no_grad", "with a graph"],
)
def test_callers_in_another_file_decide_whether_anything_is_recorded(
    project, findings, call, silent
):
    project(
        model=MODEL,
        evaluate=f"""
    import torch
    from model import Sage

    def evaluate(model, g):
        {call}

    def main(g):
        evaluate(Sage(), g)
""",
    )
    assert findings("model") == ([] if silent else [("GCS106", 12, "warning")])


def test_caller_of_what_a_package_hands_on_is_found(project, findings):
    convert = """
        import torch
        from torch import nn

        def convert(model):
            new = nn.Linear(2, 2)
            new.weight.copy_(model.weight)
            return new
    """
    use = """
        import torch
        from pkg import convert

        def main(model):
            with torch.no_grad():
                convert(model)
    """
    project(pkg__INIT="from .tools import convert\n", pkg__tools=convert)
    assert [code for code, _, _ in findings("pkg__tools")] == ["GCS101"]
    project(use=use)
    assert findings("pkg__tools") == []
    project(other=use.replace("with torch.no_grad():", "if model:"))
    assert findings("pkg__tools") == [("GCS101", 6, "warning")]


def test_importers_are_known_by_their_imports_nearest_first(project):
    root = project(
        a__model="x = 1\n",
        a__use="from . import model\n",
        use="from a.model import x\n",
        other="import model_of_others\n# model\n",
    )
    found = importers_of(str(root), str(root / "a" / "model.py"))
    assert found == [str(root / "a" / "use.py"), str(root / "use.py")]


def test_no_callers_are_looked_for_in_what_is_too_large(project, monkeypatch):
    root = project(a__model="x = 1\n", a__use="from . import model\n")
    monkeypatch.setattr("gradcheck_lint.project.importers._MOST_FOLDERS", 0)
    assert importers_of(str(root), str(root / "a" / "model.py")) == []
