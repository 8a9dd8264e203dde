"""What ``import gradcheck_suite`` offers, and what it does not cost."""

from __future__ import annotations

import subprocess
import sys

import pytest

import gradcheck_suite as gs

HEAVY = ("torch", "libcst", "rich", "numpy")


def loaded_after(statement: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{statement}\nimport sys\nprint(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import gradcheck_suite",
        "from gradcheck_suite import Finding, Location, Report, Severity, UsageError",
        "import gradcheck_suite.cli",
        "import pytest_gradcheck_suite.plugin",
        "import gradcheck_lint",
        "import gradcheck_lint.cli",
    ],
)
def test_what_needs_nothing_heavy_imports_nothing_heavy(statement):
    assert not loaded_after(statement).intersection(HEAVY)


def test_lint_rules_import_libcst_but_no_torch():
    loaded = loaded_after("import gradcheck_lint.engine, gradcheck_lint.rules, libcst")
    assert "libcst" in loaded
    assert "torch" not in loaded


@pytest.mark.slow
def test_the_two_tests_above_can_fail():
    assert "torch" in loaded_after("import gradcheck_suite\ngradcheck_suite.check_gradients")


CHECK = """
import torch, gradcheck_suite
class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): ctx.save_for_backward(x); return x**3
    @staticmethod
    def backward(ctx, g): return 3 * ctx.saved_tensors[0]**2 * g
x = torch.ones(3, dtype=torch.float64, requires_grad=True)
assert gradcheck_suite.check_gradients(Cube, x).ok
"""


@pytest.mark.slow
def test_a_check_loads_no_compiler():
    assert "torch._dynamo" not in loaded_after(CHECK)
    assert "torch._dynamo" in loaded_after(f"{CHECK}\ntorch.compile(torch.sin)")


def test_every_public_name_is_there():
    for name in gs.__all__:
        assert getattr(gs, name) is not None
    assert set(gs.__all__) <= set(dir(gs))


def test_the_verb_is_a_function_and_no_module_bears_its_name():
    verbs = {name for name in gs.__all__ if name[0].islower()}
    assert {"audit", "check_gradients", "localize", "trace_graph", "record"} <= verbs
    for name in verbs:
        assert callable(getattr(gs, name))
        assert f"gradcheck_suite.{name}" not in sys.modules


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'adult'"):
        _ = gs.adult


def test_without_torch_a_run_time_name_says_what_to_install():
    program = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "import gradcheck_suite as gs\n"
        "try:\n"
        "    gs.audit\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout == (
        "gradcheck_suite.audit needs PyTorch, which is not installed here; "
        "install it with: pip install 'gradcheck-suite[torch]'\n"
    )
