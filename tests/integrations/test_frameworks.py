"""What is said of a framework that is missing or too old; none has to be installed for that."""

from __future__ import annotations

import importlib
import subprocess
import sys
from types import ModuleType

import pytest

from gradcheck_suite.errors import MissingDependencyError, UsageError
from gradcheck_suite.integrations.frameworks import Framework, load

MODULES = ("lightning", "transformers", "accelerate", "ignite")
GALE = Framework("Gale", ("gale.torch", "torch_gale"), "gale", (2, 0))


@pytest.fixture
def installed(monkeypatch):
    """Return what installs a module of this name."""

    def install(name, version=None):
        for part in (name.partition(".")[0], name):
            module = ModuleType(part)
            monkeypatch.setitem(sys.modules, part, module)
        if version is not None:
            module.__version__ = version
        return module

    return install


@pytest.mark.parametrize("name", MODULES)
def test_without_the_framework_the_import_says_what_to_install(monkeypatch, name):
    for module in ("lightning.pytorch", "pytorch_lightning", "ignite.engine", *MODULES):
        monkeypatch.setitem(sys.modules, module, None)
    ours = f"gradcheck_suite.integrations.{name}"
    monkeypatch.delitem(sys.modules, ours, raising=False)
    with pytest.raises(
        MissingDependencyError,
        match=rf"integrations\.{name} needs \w+, which is not installed here; install it with: "
        rf"pip install 'gradcheck-suite\[{name}\]'$",
    ):
        importlib.import_module(ours)


def test_one_that_is_too_old_is_said_to_be(installed):
    installed("gale.torch", version="1.9.5")
    with pytest.raises(
        MissingDependencyError,
        match=r"integrations\.gale needs Gale 2\.0 or later, and 1\.9\.5 is installed here; "
        r"upgrade it: pip install --upgrade 'gradcheck-suite\[gale\]'$",
    ):
        load(GALE)


@pytest.mark.parametrize("version", ["2.0.0", "10.1", "3.0.0.dev1", "of my own", None])
def test_one_that_is_new_enough_or_of_no_known_version_is_taken(installed, version):
    module = installed("gale.torch", version)
    assert load(GALE) is module


def test_of_two_names_the_one_that_the_program_has_imported_is_taken(installed):
    other = installed("torch_gale", version="2.1")
    assert load(GALE) is other


def test_one_whose_import_fails_is_not_said_to_be_missing(monkeypatch, tmp_path):
    (tmp_path / "broken_gale.py").write_text("import no_such_part_of_it\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    broken = Framework("Gale", ("broken_gale",), "gale", (2, 0))
    with pytest.raises(MissingDependencyError, match="import of the broken_gale that is installed"):
        load(broken)


def test_nothing_of_ours_imports_a_framework_unasked():
    program = (
        "import sys, gradcheck_suite as gs, gradcheck_suite.integrations\n"
        "gs.audit, gs.check_gradients, gs.trace_graph\n"
        f"print(*{{*{MODULES}, 'pytorch_lightning'}}.intersection(sys.modules))\n"
        "print(*(name for name in sys.modules if 'integrations.' in name))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == []


def test_a_wrong_option_is_told_where_the_callback_is_made(monkeypatch, installed):
    installed("lightning.pytorch", "2.5").Callback = object
    monkeypatch.delitem(sys.modules, "gradcheck_suite.integrations.lightning", raising=False)
    ours = importlib.import_module("gradcheck_suite.integrations.lightning")
    monkeypatch.delitem(sys.modules, "gradcheck_suite.integrations.lightning")
    with pytest.raises(UsageError, match="audit has no option 'max_step'; did you mean"):
        ours.GradcheckCallback(max_step=3)
