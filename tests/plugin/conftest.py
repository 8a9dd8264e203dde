from __future__ import annotations

import subprocess
import sys
import textwrap

import hypothesis  # noqa: F401 - its plugin loads it when a run ends
import pytest
import torch._dynamo  # noqa: F401 - see below

# Runs inside this process start from these modules, and must not load torch a second time, nor the
# parts of it that load when they are first needed.
import gradcheck_suite.auditing
import gradcheck_suite.reporting.console
import gradcheck_suite.reporting.html
import gradcheck_suite.reporting.json
import gradcheck_suite.reporting.junit
import gradcheck_suite.reporting.markdown
import gradcheck_suite.reporting.sarif
import gradcheck_suite.verification  # noqa: F401 - as above
import pytest_gradcheck_suite.gradient_check
import pytest_gradcheck_suite.graph_artifacts
import pytest_gradcheck_suite.leaks
import pytest_gradcheck_suite.lifecycle
import pytest_gradcheck_suite.module_tests
import pytest_gradcheck_suite.snapshots  # noqa: F401 - as above
from tests import warm_python

# Plugins that are installed here, left out unless a test is about them and takes them in again.
ALONE = ("-p", "no:randomly", "-p", "no:asyncio")

TRAINING = """
    import pytest
    import torch

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return 3 * x * grad

    def train(*, clear=True):
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            if clear:
                optimizer.zero_grad()
            model(torch.ones(5, 3)).pow(2).mean().backward()
            optimizer.step()

    @pytest.fixture
    def only_a_warning(monkeypatch):
        # Checks and audits then find nothing but a warning.
        import contextlib
        import types
        import gradcheck_suite
        from gradcheck_suite import catalogue, findings

        finding = findings.Finding.of(
            catalogue.PARAMETER_WITHOUT_GRADIENT, "head is left out", detector="audit"
        )
        report = findings.Report(tool="gradcheck-suite", findings=(finding,))
        told = types.SimpleNamespace(report=report, findings=report.findings)
        session = contextlib.nullcontext(told)
        for name, value in {"check_gradients": report, "audit": session}.items():
            monkeypatch.setattr(
                gradcheck_suite, name, lambda *_, value=value, **__: value, raising=False
            )

    def x():
        return torch.tensor([0.3, 0.7], dtype=torch.float64, requires_grad=True)

"""


@pytest.fixture(autouse=True)
def outside_ci(monkeypatch):
    """Let pytest write one summary everywhere: in CI it repeats whole failures."""
    for name in ("CI", "BUILD_NUMBER"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def runs_start_where_torch_is_loaded(monkeypatch):
    """Have pytest in a process of its own begin as other tests' commands do."""
    start = pytest.Pytester.popen

    def popen(pytester, cmdargs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options):
        program, *words = map(str, cmdargs)
        if (program, *words[:1]) != (sys.executable, "-mpytest"):
            return start(pytester, cmdargs, stdout, stderr, **options)
        return warm_python.start(["-m", "pytest", *words[1:]], stdout=stdout, stderr=stderr)

    monkeypatch.setattr(pytest.Pytester, "popen", popen)


@pytest.fixture
def write_tests(pytester):
    """Write a test file that has a wrong Function and a training loop to use."""

    def write(source, **settings):
        text = textwrap.dedent(TRAINING) + textwrap.dedent(source)
        pytester.makepyfile(test_training=text)
        lines = ["[pytest]", "filterwarnings = error", "addopts = --strict-markers"]
        lines += [f"{name} = {value}" for name, value in settings.items()]
        pytester.makeini("\n".join(lines))

    return write


@pytest.fixture
def run_tests(write_tests, pytester):
    """Write such a test file and run it in this process."""

    def run(source, *arguments, **settings):
        write_tests(source, **settings)
        # The plugin that is left out collects garbage five times, which takes a second here.
        quick = ("-p", "no:cacheprovider", "-p", "no:unraisableexception")
        return pytester.runpytest_inprocess(*quick, *ALONE, *arguments)

    return run


@pytest.fixture
def run_tests_apart(write_tests, pytester):
    """Write such a test file and run it in a process of its own.

    A search for holders goes through all objects, and here there are millions.
    """

    def run(source, *arguments, **settings):
        write_tests(source, **settings)
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", *ALONE, *arguments)

    return run
