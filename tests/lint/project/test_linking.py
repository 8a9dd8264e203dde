"""What a file imports from its project is known as if it stood in the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradcheck_lint.engine import lint
from gradcheck_suite.severity import Severity

ENGINE = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(3, 3)

        def forward(self, x):
            return self.a(x)

    def build(model, lr):
        return torch.optim.SGD(model.parameters(), lr=lr)

    def train_step(model, optimizer, x, y):
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()

    def clear(optimizer):
        optimizer.zero_grad()
"""

LOOP = """
    import torch
    {imports}

    def main(loader):
        model = {prefix}Net()
        optimizer = {prefix}build(model, 0.1)
        for x, y in loader:
            {body}
"""

STEP = "{prefix}train_step(model, optimizer, x, y)"
CLEARED = "{prefix}clear(optimizer); {prefix}train_step(model, optimizer, x, y)"

WAYS = {
    "relative": ("from .engine import Net, build, clear, train_step", ""),
    "absolute": ("from pkg.engine import Net, build, clear, train_step", ""),
    "module": ("from . import engine", "engine."),
    "module, absolute": ("import pkg.engine", "pkg.engine."),
    "module, renamed": ("import pkg.engine as e", "e."),
    "star": ("from .engine import *", ""),
    "package that hands it on": ("from pkg import Net, build, clear, train_step", ""),
    "as a script beside it": ("from engine import Net, build, clear, train_step", ""),
}


@pytest.mark.parametrize(("imports", "prefix"), WAYS.values(), ids=WAYS)
def test_step_that_another_file_makes_is_one_of_this_loop(project, findings, imports, prefix):
    def main(body):
        text = LOOP.format(imports=imports, prefix=prefix, body=body.format(prefix=prefix))
        handed_on = "from .engine import Net, build, clear, train_step"
        project(setup="", pkg__INIT=handed_on, pkg__engine=ENGINE, pkg__main=text)
        return findings("pkg__main")

    assert main(STEP) == [("GCS301", 8, "error")]
    assert main(CLEARED) == []


def test_finding_names_the_call_and_the_place_in_the_other_file(project):
    body = STEP.format(prefix="")
    text = LOOP.format(imports="from engine import *", prefix="", body=body)
    root = project(engine=ENGINE, main=text)
    path = root / "main.py"
    (found,) = lint(path.read_bytes(), str(path), root=str(root)).findings
    assert (found.location.line, found.location.function) == (8, "main")
    places = {(Path(r.location.path).name, r.location.line) for r in found.related}
    assert places == {("engine.py", 18), ("engine.py", 17), ("main.py", 7)}
    assert not found.fixable


def test_names_of_the_importing_file_are_told_apart_by_what_they_mean(project, findings):
    project(
        other="""
            import torch.optim as F
            from torch import nn

            class Head(nn.Module):
                def forward(self, x):
                    return x

            def build(model):
                return F.SGD(model.parameters(), lr=0.1)
        """,
        main="""
            import torch
            import torch.nn.functional as F
            from other import build

            class Head:
                pass

            def main(model, loader):
                optimizer = build(model)
                for x, y in loader:
                    F.mse_loss(model(x), y).backward()
                    optimizer.step()
        """,
    )
    assert findings("main") == [("GCS301", 12, "error")]


@pytest.mark.parametrize("imports", ["from outside import build", "from .. import outside"])
def test_nothing_outside_of_the_root_is_read(project, tmp_path, imports):
    project(outside=ENGINE, inside__main=f"import torch\n{imports}\nloss.backward()\n")
    path = tmp_path / "inside" / "main.py"
    linted = lint(path.read_bytes(), str(path), root=str(path.parent))
    assert str(tmp_path / "outside.py") not in linted.sources


def test_link_out_of_the_root_is_not_followed(project, tmp_path):
    project(outside=ENGINE, inside__main="import torch\nfrom engine import build\nbuild(1, 2)\n")
    (tmp_path / "inside" / "engine.py").symlink_to(tmp_path / "outside.py")
    path = tmp_path / "inside" / "main.py"
    assert (
        str(path.with_name("engine.py"))
        not in lint(path.read_bytes(), str(path), root=str(path.parent)).sources
    )


def test_files_that_import_each_other_and_files_that_cannot_be_read_are_no_error(project, findings):
    project(
        a="import torch\nfrom b import g\nfrom c import h\n\ndef f(x):\n    return g(x).loss\n",
        b="import torch\nfrom a import f\n\ndef g(x):\n    return f(x).loss\n",
        c="def h(:\n",
    )
    assert findings("a") == findings("b") == []


def test_value_of_another_file_is_known(project, findings):
    project(
        setting="""
            import torch
            model = torch.nn.Linear(2, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        """,
        main="""
            import torch
            from setting import model, optimizer

            for x in range(3):
                model(torch.ones(2)).sum().backward()
                optimizer.step()
        """,
    )
    assert findings("main") == [("GCS301", 6, "error")]


def test_method_and_attribute_of_a_base_in_another_file_are_known(project, findings):
    project(
        base="""
            import torch

            class Base:
                def __init__(self, model):
                    self.model = model
                    self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

                def reset(self):
                    self.optimizer.zero_grad()
        """,
        main="""
            import torch
            from base import Base

            class Trainer(Base):
                def fit(self, loader):
                    for x in loader:
                        self.model(x).sum().backward()
                        self.optimizer.step()

            class Right(Base):
                def fit(self, loader):
                    for x in loader:
                        self.reset()
                        self.model(x).sum().backward()
                        self.optimizer.step()
        """,
    )
    assert findings("main") == [("GCS301", 8, "error")]


def test_package_that_hands_on_a_class_of_the_same_name_is_followed(project, findings):
    project(
        models__INIT="from .net import Net\n",
        models__net="""
            import torch
            from torch import nn
            from .parts import Scale

            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.scale = Scale()

                @torch.no_grad()
                def forward(self, x):
                    return self.scale(x)
        """,
        models__parts="from torch import nn\n\nclass Scale(nn.Module):\n    pass\n",
        main="""
            import torch
            from models import Net

            def main(data):
                model = Net()
                for x in data:
                    model.eval()
                    print(model(x))
        """,
    )
    # Its forward records nothing, which only the other file says.
    assert findings("main") == []


def test_root_is_found_by_what_marks_a_project(tmp_path):
    from gradcheck_lint.project.layout import common_root, root_of

    (tmp_path / "setup.cfg").write_text("")
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert root_of(str(tmp_path / "a" / "b" / "x.py")) == str(tmp_path)
    paths = [str(tmp_path / "a" / "b"), str(tmp_path / "a" / "c.py")]
    assert common_root(paths) == str(tmp_path / "a")


def test_severity_is_as_in_one_file(project, tmp_path):
    project(
        helpers="def log(model, loss):\n    print(model, loss)\n",
        main="""
            import torch
            from helpers import log

            def main(model, loader):
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                for x in loader:
                    loss = model(x).sum()
                    loss.backward()
                    log(model, loss)
                    optimizer.step()
        """,
    )
    path = tmp_path / "main.py"
    alone = lint(path.read_bytes(), str(path)).findings
    whole = lint(path.read_bytes(), str(path), root=str(tmp_path)).findings
    assert [f.severity for f in whole] == [Severity.ERROR]
    assert all(f.severity <= Severity.ERROR for f in alone)
