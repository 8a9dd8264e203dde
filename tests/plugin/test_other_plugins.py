"""Real runs beside the plugins that training repositories use."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest


def test_rerunfailures(run_tests, pytester):
    result = run_tests(
        """
        runs = []

        @pytest.mark.autograd_audit
        def test_flaky():
            runs.append(1)
            train(clear=len(runs) > 1)

        @pytest.mark.autograd_audit
        def test_forgets():
            train(clear=False)

        def test_leaves_grad_mode_off_each_time():
            torch.set_grad_enabled(False)
            runs.append(1)
            assert len(runs) > 3
        """,
        *("--reruns=1", "--gradcheck-suite-report=r.json", "--junitxml=r.xml"),
    )

    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*each_time: left grad mode *", "*1 failed, 2 passed, 3 rerun*"])
    document = json.loads((pytester.path / "r.json").read_text())
    assert document["summary"]["tests"] == 3
    (finding,) = document["findings"]
    assert finding["rule"] == "missing-zero-grad"
    # What the first run of the flaky test did is told, though the test passed in the end.
    told = result.stdout.str().partition("findings that failed no test")[2]
    assert "::test_flaky: error GCS301 missing-zero-grad: " in told
    assert "::test_forgets: error GCS301" not in told
    runs = [
        (case.get("name"), len(list(case.iter("property"))))
        for case in ElementTree.parse(pytester.path / "r.xml").iter("testcase")
    ]
    assert runs[:4] == [("test_flaky", 1), ("test_flaky", 0), *[("test_forgets", 1)] * 2]


@pytest.mark.slow
def test_anyio(run_tests):
    result = run_tests(
        """
        import anyio

        pytestmark = pytest.mark.anyio
        kept = []

        @pytest.fixture
        def anyio_backend():
            return "asyncio"

        @pytest.mark.parametrize("clear", [True, False])
        async def test_training(autograd_audit, clear):
            await anyio.sleep(0)
            train(clear=clear)

        @pytest.mark.autograd_audit
        async def test_marked():
            train(clear=False)

        @pytest.mark.no_graph_leak(steps=3)
        async def test_keeps():
            kept.append(torch.nn.Linear(3, 1)(torch.ones(2, 3)).sum())
            await anyio.sleep(0)
        """
    )

    result.assert_outcomes(passed=1, failed=3)
    # In CI, pytest repeats the whole message in its summary.
    heads = [line for line in result.outlines if line.startswith("error GCS301 missing-zero-grad ")]
    assert len(heads) == 2
    text = " ".join(result.stdout.str().split())
    assert "3 autograd graphs outlived 3 runs of its body" in text


def test_strict_xfail(run_tests):
    result = run_tests(
        """
        pytestmark = [pytest.mark.xfail(strict=True), pytest.mark.autograd_audit]

        def test_known():
            train(clear=False)

        def test_mended():
            train()
        """
    )

    result.assert_outcomes(xfailed=1, failed=1)
    result.stdout.fnmatch_lines(["*XPASS(strict)*"])


@pytest.mark.slow
def test_randomly(run_tests, pytester):
    """In any order, and with the global generators seeded anew for each test."""
    source = """
        import random

        @pytest.mark.parametrize("clear", [True, False, True, True])
        def test_training(clear):
            train(clear=clear)

        @pytest.mark.no_graph_leak(steps=2)
        def test_leaks_not():
            torch.nn.Linear(3, 1)(torch.ones(2, 3)).sum()

        def test_seed(gradient_check):
            print("seed of the check", gradient_check(torch.sin, x()).summary["seed"])

        def test_draws(autograd_audit):
            before = random.getstate()
            with autograd_audit():
                train()
            assert random.getstate() == before
    """
    orders, seeds = set(), set()
    for seed in (1, 2):
        result = run_tests(
            source,
            *("-p", "randomly", f"--randomly-seed={seed}", "-v", "-s"),
            *("--gradcheck-suite-audit", "--gradcheck-suite-report=r.json"),
        )

        result.assert_outcomes(passed=6, failed=1)
        text = result.stdout.str()
        assert f"Using --randomly-seed={seed}" in text
        (finding,) = json.loads((pytester.path / "r.json").read_text())["findings"]
        assert finding["evidence"]["tests"] == ["test_training.py::test_training[False]"]
        orders.add(tuple(re.findall(r"::(test_\w+)", text.partition("collected")[2]))[:7])
        seeds.add(text.partition("seed of the check ")[2].split()[0])
    assert len(orders) == 2
    # Ours follows from the test's name alone.
    assert len(seeds) == 1


@pytest.mark.slow
def test_asyncio(run_tests):
    result = run_tests(
        """
        import asyncio

        pytestmark = pytest.mark.asyncio
        kept = []

        @pytest.mark.parametrize("clear", [True, False])
        async def test_training(autograd_audit, clear):
            await asyncio.sleep(0)
            train(clear=clear)
            assert autograd_audit.session.report.summary["steps"] == 3

        @pytest.mark.autograd_audit
        async def test_marked():
            train(clear=False)

        @pytest.mark.no_graph_leak(steps=3)
        async def test_keeps():
            kept.append(torch.nn.Linear(3, 1)(torch.ones(2, 3)).sum())
            await asyncio.sleep(0)

        async def test_leaves_grad_mode_off(gradient_check):
            torch.set_grad_enabled(False)

        async def test_after():
            assert torch.is_grad_enabled()
        """,
        *("-p", "pytest_asyncio.plugin", "-o", "asyncio_default_fixture_loop_scope=function"),
    )

    result.assert_outcomes(passed=3, failed=3)
    heads = [line for line in result.outlines if line.startswith("error GCS301 missing-zero-grad ")]
    assert len(heads) == 2
    text = " ".join(result.stdout.str().split())
    assert "3 autograd graphs outlived 3 runs of its body" in text
    assert "test_leaves_grad_mode_off: left grad mode disabled; it was put back" in text
