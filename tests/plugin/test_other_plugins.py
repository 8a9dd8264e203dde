"""Real runs beside the plugins that training repositories use."""

from __future__ import annotations

import json


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
        """,
        "--reruns=1",
        "--gradcheck-suite-report=r.json",
    )

    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*1 failed, 1 passed, 2 rerun*"])
    document = json.loads((pytester.path / "r.json").read_text())
    assert document["summary"]["tests"] == 2
    (finding,) = document["findings"]
    assert finding["rule"] == "missing-zero-grad"


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
