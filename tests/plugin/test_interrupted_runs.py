"""Runs that end before their last test: what was found by then is told all the same."""

from __future__ import annotations

import json

import pytest

SOURCE = """
    import os
    import sys

    def test_forgets():
        train(clear=False)

    def test_leaves_grad_mode_off():
        torch.set_grad_enabled(False)

    @pytest.mark.autograd_audit(allow=[])
    def test_ends_the_run():
        train()
        {end}

    def test_after():
        assert torch.is_grad_enabled()
        train(clear=False)
"""


@pytest.mark.slow
def test_the_keyboard(run_tests_apart, pytester):
    # What Python makes of Ctrl-C.
    source = SOURCE.format(end="raise KeyboardInterrupt")
    result = run_tests_apart(source, "--gradcheck-suite-audit", "--gradcheck-suite-report=r.json")

    assert result.ret == 2
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "error GCS301 missing-zero-grad *",
            "gradcheck-suite: report written to *r.json",
            "*::test_leaves_grad_mode_off: left grad mode disabled; it was put back*",
            "*! KeyboardInterrupt !*",
        ]
    )
    (finding,) = json.loads((pytester.path / "r.json").read_text())["findings"]
    assert finding["evidence"]["tests"] == ["test_training.py::test_forgets"]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["json", "sarif", "html", "xml", "md"])
def test_a_worker_that_dies(write_tests, pytester, suffix):
    write_tests(SOURCE.format(end="os._exit(3)"))

    result = pytester.runpytest_subprocess(
        *("-n1", "-p", "no:randomly", "-p", "no:asyncio", "-p", "no:cacheprovider"),
        *("--gradcheck-suite-audit", f"--gradcheck-suite-report=r.{suffix}"),
    )

    result.assert_outcomes(passed=1, failed=3)
    text = result.stdout.str()
    assert "crashed while running 'test_training.py::test_ends_the_run'" in text
    assert "::test_leaves_grad_mode_off: left grad mode disabled; it was put back" in text
    report = (pytester.path / f"r.{suffix}").read_text()
    assert "GCS301" in report
    if suffix == "json":
        (finding,) = json.loads(report)["findings"]
        assert finding["evidence"]["tests_count"] == 2


def test_last_failures_and_other_ways_of_importing(write_tests, pytester):
    write_tests(SOURCE.format(end="pass"))
    arguments = ("-p", "no:randomly", "-p", "no:asyncio", "--gradcheck-suite-audit")

    first = pytester.runpytest_inprocess(*arguments, "--import-mode=importlib", "--durations=3")
    again = pytester.runpytest_inprocess(*arguments, "--lf")
    stepwise = pytester.runpytest_inprocess(*arguments, "--sw")
    unseen = pytester.runpytest_inprocess(*arguments, "-p", "no:terminal")

    first.assert_outcomes(passed=2, failed=2)
    again.assert_outcomes(failed=2)
    stepwise.assert_outcomes(failed=1)
    assert unseen.ret == 1
    assert unseen.outlines == []
