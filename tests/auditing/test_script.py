"""A script runs under audit as it does under Python."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from gradcheck_suite.auditing.script import audit_script
from gradcheck_suite.errors import UsageError


@pytest.fixture
def script(tmp_path):
    def write(source, name="train.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(source), encoding="utf-8")
        return path

    return write


@pytest.fixture(autouse=True)
def everything_is_put_back():
    before = (sys.argv, list(sys.path), sys.modules["__main__"], os._exit)
    yield
    assert (sys.argv, list(sys.path), sys.modules["__main__"], os._exit) == before


LEAKY = """\
import torch
weight = torch.randn(3, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
history = []
for step in range(5):
    optimizer.zero_grad()
    loss = (weight ** 2).sum()
    loss.backward()
    optimizer.step()
    history.append(loss)
"""


def test_a_list_of_losses_at_the_top_of_a_short_script(script):
    path = script(LEAKY)
    outcome = audit_script(str(path))
    (finding,) = outcome.report.findings
    assert (finding.code, finding.location.line) == ("GCS201", 10)
    assert finding.location.path == str(path)
    assert "list `history` in module __main__" in finding.message
    assert outcome.exit_status == 0


THREE_PLAYERS = """\
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
    def forward(self, x):
        return self.layer(x).tanh()
class Trainer:
    def __init__(self):
        self.nets = [Net() for _ in range(3)]
        self.one, self.two, self.three = (torch.optim.Adam(n.parameters()) for n in self.nets)
    def step(self):
        a, b, c = self.nets
        for optimizer in (self.one, self.two, self.three):
            optimizer.zero_grad()
        self.first = a(torch.randn(3, 4)).square().mean(); self.first.backward(); self.one.step()
        self.second = b(torch.randn(3, 4)).square().mean(); self.second.backward(); self.two.step()
        self.third = c(torch.randn(3, 4)).square().mean(); self.third.backward(); self.three.step()
trainers = [Trainer()]
for _ in range(6):
    trainers[0].step()
one, two, three = (Net() for _ in range(3))
for_one, for_two, for_three = (torch.optim.SGD(n.parameters(), 0.1) for n in (one, two, three))
for _ in range(6):
    first = one(torch.randn(3, 4)).mean(); for_one.zero_grad(); first.backward(); for_one.step()
    second = two(torch.randn(3, 4)).mean(); for_two.zero_grad(); second.backward(); for_two.step()
    third = three(torch.randn(3, 4)).mean(); for_three.zero_grad(); third.backward()
    for_three.step()
"""


def test_the_last_losses_of_several_optimizers_at_the_top_of_a_script(script):
    assert audit_script(str(script(THREE_PLAYERS))).report.findings == ()


LOOK = """\
import json, os, pickle, sys
class Thing: pass
pickle.loads(pickle.dumps(Thing()))
assert sys.modules["__main__"].Thing is Thing
print(json.dumps({
    "argv": sys.argv[1:], "name": __name__, "file": __file__, "package": __package__,
    "path": sys.path[0], "spec": __spec__ and __spec__.name, "doc": __doc__,
    "cached": __cached__, "annotations": "__annotations__" in globals(),
}))
"""


def test_the_script_sees_what_python_shows_it(script, capfd):
    path = script(LOOK)
    arguments = ["--epochs", "3", "-m", "x"]
    assert audit_script(str(path), arguments).exit_status == 0
    ours = capfd.readouterr().out
    theirs = subprocess.run(
        [sys.executable, str(path), *arguments], capture_output=True, text=True, check=True
    ).stdout
    assert ours == theirs


def test_a_module_sees_what_python_m_shows_it(script, capfd, tmp_path, monkeypatch):
    (tmp_path / "trainer").mkdir()
    script("", "trainer/__init__.py")
    script(LOOK, "trainer/__main__.py")
    script(LOOK, "trainer/fit.py")
    monkeypatch.chdir(tmp_path)
    for name in ("trainer", "trainer.fit"):
        assert audit_script(name, ["a"], as_module=True).exit_status == 0
        ours = capfd.readouterr().out
        theirs = subprocess.run(
            [sys.executable, "-m", name, "a"], capture_output=True, text=True, check=True
        ).stdout
        assert ours == theirs
        for module in [key for key in sys.modules if key.split(".")[0] == "trainer"]:
            del sys.modules[module]


FAILING = """\
def inner():
    raise ValueError("boom")

def outer():
    try:
        inner()
    except ValueError as error:
        raise RuntimeError("again") from error

outer()
"""


def test_an_exception_is_shown_as_python_shows_it(script, capfd):
    path = script(FAILING)
    outcome = audit_script(str(path))
    assert outcome.exit_status == 1
    theirs = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)  # noqa: PLW1510
    assert capfd.readouterr().err == theirs.stderr


def test_a_syntax_error_is_shown_as_python_shows_it(script, capfd):
    path = script("x = (\n")
    outcome = audit_script(str(path))
    assert outcome.exit_status == 1
    theirs = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)  # noqa: PLW1510
    assert capfd.readouterr().err == theirs.stderr


@pytest.mark.parametrize(
    ("source", "status", "error"),
    [
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit(0)", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit(-1)", 255, ""),
        ("import sys; sys.exit('no data')", 1, "no data\n"),
        ("raise SystemExit(7)", 7, ""),
    ],
)
def test_the_status_is_the_one_that_the_script_asked_for(script, capfd, source, status, error):
    assert audit_script(str(script(source))).exit_status == status
    assert capfd.readouterr().err == error


def test_an_interrupted_script_keeps_its_report(script, capfd):
    source = LEAKY + "raise KeyboardInterrupt\n"
    outcome = audit_script(str(script(source)))
    assert outcome.exit_status == 130
    assert [finding.code for finding in outcome.report.findings] == ["GCS201"]
    assert "KeyboardInterrupt" in capfd.readouterr().err


def test_an_except_hook_of_the_users_is_asked(script, capfd):
    source = """\
    import sys
    def hook(kind, error, traceback):
        print("hook:", kind.__name__, error, traceback.tb_frame.f_code.co_name)
    sys.excepthook = hook
    1 / 0
    """
    kept = sys.excepthook
    try:
        assert audit_script(str(script(source))).exit_status == 1
    finally:
        sys.excepthook = kept
    assert capfd.readouterr().out == "hook: ZeroDivisionError division by zero <module>\n"


def test_an_except_hook_that_fails_hides_nothing(script, capfd):
    source = "import sys\nsys.excepthook = lambda *_: 1 / 0\nraise ValueError('mine')\n"
    kept = sys.excepthook
    try:
        assert audit_script(str(script(source))).exit_status == 1
    finally:
        sys.excepthook = kept
    assert "ValueError: mine" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("target", "as_module", "words"),
    [
        ("missing.py", False, "there is no file missing.py"),
        (".", False, ". is a directory"),
        ("no_such_module_here", True, "there is no module no_such_module_here"),
        ("no.such.module", True, "there is no module no.such.module"),
    ],
)
def test_what_cannot_be_run(target, as_module, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as info:
        audit_script(target, as_module=as_module)
    assert words in str(info.value)


@pytest.fixture
def package_in_src(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "src" / "ops_that_train"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "train.py").write_text("from . import __name__ as name\nprint(name)\n")
    return folder


@pytest.mark.filterwarnings("ignore::ImportWarning")
def test_a_script_of_a_package_is_said_to_be_run_as_a_module(package_in_src, capfd):
    command = "PYTHONPATH=src gradcheck-suite audit -m ops_that_train.train\n"
    assert audit_script("src/ops_that_train/train.py").exit_status == 1
    error, _, said = capfd.readouterr().err.rstrip("\n").rpartition("\n")
    assert error.endswith("ImportError: attempted relative import with no known parent package")
    assert f"{said}\n".endswith(f"run it as a module of its package: {command}")
    with pytest.raises(UsageError) as info:
        audit_script("ops_that_train.train", as_module=True)
    assert f"{info.value}\n".endswith(f"it lies in src, where Python does not look: {command}")
    # Other errors of imports, and what is in no package, are left to the traceback.
    (package_in_src / "train.py").write_text("import no_such_dependency\n")
    assert audit_script("src/ops_that_train/train.py").exit_status == 1
    assert "run it as a module" not in capfd.readouterr().err


def test_a_module_is_looked_for_where_pytest_looks(package_in_src, tmp_path):
    (tmp_path / "src").rename(tmp_path / "my lib")
    settings = '[tool.pytest.ini_options]\npythonpath = ["my lib"]\n'
    for written, words in (("", "expected what python"), (settings, "PYTHONPATH='my lib' ")):
        (tmp_path / "pyproject.toml").write_text(written)
        with pytest.raises(UsageError, match=words):
            audit_script("ops_that_train.train", as_module=True)


def test_source_in_another_encoding(script, tmp_path, capfd):
    path = tmp_path / "latin.py"
    path.write_bytes("# -*- coding: latin-1 -*-\nprint(len('\xe9'))\n".encode("latin-1"))
    assert audit_script(str(path)).exit_status == 0
    assert capfd.readouterr().out == "1\n"
