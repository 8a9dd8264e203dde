"""Every feature in xdist's workers, where all that is found must come back to one process."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

SOURCE = """
    import gradcheck_suite
    import unittest

    kept = []

    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))

        def forward(self, x):
            return (self.weight * x).sum()

    @pytest.mark.parametrize("function", [torch.sin, Wrong.apply])
    def test_check(gradient_check, function):
        gradient_check(function, x())

    @pytest.mark.gradient_check(fail_on="warning")
    def test_marked_check(gradient_check, only_a_warning):
        gradient_check(torch.sin, x())

    def test_warned(gradient_check, only_a_warning):
        gradient_check(torch.sin, x())

    @pytest.mark.parametrize("name", ["one", "two", "three"])
    def test_snapshot(gradient_check, name):
        gradient_check.snapshot(Scaled(), torch.ones(3), name=name)

    def test_block(autograd_audit):
        with autograd_audit():
            train(clear=False)

    @pytest.mark.autograd_audit(allow=["missing-zero-grad"])
    def test_allowed():
        train(clear=False)

    @pytest.mark.xfail(strict=True)
    @pytest.mark.autograd_audit
    def test_known():
        train(clear=False)

    @pytest.mark.no_graph_leak(steps=3)
    def test_leaks():
        kept.append(torch.nn.Linear(3, 1)(torch.ones(2, 3)).sum())

    def test_picture(autograd_graph):
        autograd_graph((x() ** 2).sum())
        assert False, "mine"

    class TestOld(unittest.TestCase):
        @pytest.mark.autograd_audit
        def test_forgets(self):
            train(clear=False)

    def test_leaves_grad_mode_off(gradient_check):
        torch.set_grad_enabled(False)

    @pytest.mark.autograd_audit(alow=[])
    def test_misspelt():
        pass

    @pytest.mark.anyio
    async def test_coroutine(autograd_audit, anyio_backend_name):
        if anyio_backend_name == "asyncio":
            train(clear=False)
"""


@pytest.mark.slow
def test_every_feature(write_tests, run_tests, pytester):
    pytester.makeconftest("""
        import pytest

        @pytest.fixture
        def anyio_backend():
            return "asyncio"
    """)
    write_tests(SOURCE)
    result = pytester.runpytest_subprocess(
        *("-n2", "-p", "no:randomly", "-p", "no:asyncio", "-p", "no:cacheprovider"),
        *("--gradcheck-suite-update-snapshots", "--gradcheck-suite-report=out/r.json"),
        "--junitxml=r.xml",
    )

    failed = {
        "test_check[apply]",
        "test_marked_check",
        "test_block",
        "test_leaks",
        "test_picture",
        "test_forgets",
        "test_coroutine",
    }
    cases = list(ElementTree.parse(pytester.path / "r.xml").iter("testcase"))
    assert {case.get("name") for case in cases if case.find("failure") is not None} == failed
    result.assert_outcomes(passed=7, failed=7, xfailed=1, errors=1)
    document = json.loads((pytester.path / "out" / "r.json").read_text())
    tests = {
        finding["rule"]: {name.rpartition("::")[2] for name in finding["evidence"]["tests"]}
        for finding in document["findings"]
    }
    assert tests["missing-zero-grad"] == {
        "test_block",
        "test_known",
        "test_forgets",
        "test_coroutine",
    }
    assert tests["wrong-gradient"] == {"test_check[apply]"}
    assert tests["parameter-without-gradient"] == {"test_marked_check", "test_warned"}
    assert {"test_leaks"} in tests.values()
    assert len(list((pytester.path / "out").glob("*test_picture*.html"))) == 1
    text = result.stdout.str()
    assert "@pytest.mark.autograd_audit has no argument 'alow'; did you mean 'allow'?" in text
    assert text.count("findings that failed no test") == 1
    assert text.count("left behind or left out") == 1
    assert "test_leaves_grad_mode_off: left grad mode disabled; it was put back" in text
    assert len(list((pytester.path / "__gradients__").rglob("*.json"))) == 3
    run_tests(SOURCE, "-k", "test_snapshot").assert_outcomes(passed=3, deselected=13)


@pytest.mark.parametrize("where", ["here", "in workers"])
@pytest.mark.slow
def test_no_more_failures_than_asked_for(run_tests, pytester, where):
    """What was found by then is in the report."""
    result = run_tests(
        """
        @pytest.mark.parametrize("turn", range(9))
        def test_forgets(turn):
            train(clear=False)
        """,
        *("--maxfail=2", "--gradcheck-suite-audit", "--gradcheck-suite-report=r.json"),
        *(() if where == "here" else ("-n2",)),
    )

    assert result.ret != 0
    failed = result.parseoutcomes()["failed"]
    assert 2 <= failed < 9 if where == "in workers" else failed == 2
    (finding,) = json.loads((pytester.path / "r.json").read_text())["findings"]
    assert finding["rule"] == "missing-zero-grad"
    assert finding["evidence"]["tests_count"] >= failed


SWEEP = """
    import gradcheck_suite

    OPERATORS = [torch.sin, torch.cos, torch.tanh, torch.exp, torch.sigmoid, torch.cumsum]
    WRONG = [Wrong.apply, lambda x: x.detach() * x]

    @pytest.mark.parametrize("number", range(6))
    def test_operator(gradient_check, number):
        dims = (0,) if OPERATORS[number] is torch.cumsum else ()
        gradient_check(OPERATORS[number], (x(), *dims))

    @pytest.mark.parametrize("number", range(2))
    def test_wrong_operator(gradient_check, number):
        gradient_check(WRONG[number], x())

    @pytest.mark.parametrize("number", range(2))
    def test_by_function(number):
        gradcheck_suite.check_gradients(WRONG[number], x()).raise_for_findings()

    @pytest.mark.parametrize("number", range(6))
    def test_right_by_function(number):
        dims = (0,) if OPERATORS[number] is torch.cumsum else ()
        report = gradcheck_suite.check_gradients(OPERATORS[number], (x(), *dims))
        assert [verdict.status for verdict in report.verdicts] == ["pass"]
"""


@pytest.mark.slow
def test_a_sweep_of_checks_comes_to_the_same_as_in_one_process(run_tests, pytester):
    found = {}
    for workers in ("0", "2"):
        result = run_tests(
            SWEEP,
            *("-n", workers, "--gradcheck-suite-report=r.json", "--junitxml=r.xml"),
        )
        result.assert_outcomes(passed=12, failed=4)
        cases = ElementTree.parse(pytester.path / "r.xml").iter("testcase")
        outcomes = sorted((case.get("name"), case.find("failure") is None) for case in cases)
        document = json.loads((pytester.path / "r.json").read_text())
        found[workers] = outcomes, sorted(map(json.dumps, document["findings"]))

    assert found["0"] == found["2"]
    outcomes, findings = found["2"]
    assert len(dict(outcomes)) == len(outcomes)
    told = [json.loads(each)["evidence"]["tests"] for each in findings]
    named = sorted(each.rpartition("::")[2] for tests in told for each in tests)
    assert named == ["test_wrong_operator[0]", "test_wrong_operator[1]"]
