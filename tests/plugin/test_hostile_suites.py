"""Whole-suite mode over tests that share state, leave it changed, or replace parts of torch."""

from __future__ import annotations

import json
import textwrap

import pytest

SUITE = '''
    import threading
    import unittest
    import warnings

    @pytest.fixture(scope="module")
    def shared():
        model = torch.nn.Linear(3, 1)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    @pytest.fixture(scope="class")
    def trained():
        return train()

    def step(model, optimizer, clear=True):
        if clear:
            optimizer.zero_grad()
        model(torch.ones(5, 3)).pow(2).mean().backward()
        optimizer.step()

    class TestShared:
        def test_first_steps(self, shared):
            step(*shared)
            step(*shared)

        def test_further_steps(self, shared, trained):
            step(*shared)

        def test_half_a_step(self, shared):
            shared[1].zero_grad()
            shared[0](torch.ones(5, 3)).sum().backward()

        def test_the_other_half(self, shared):
            shared[1].step()

    class TestOld(unittest.TestCase):
        def test_sub_tests(self):
            for steps in (1, 2):
                with self.subTest(steps=steps):
                    train()

        def test_sub_tests_that_forget(self):
            for clear in (True, False):
                with self.subTest(clear=clear):
                    train(clear=clear)

    @pytest.mark.parametrize("text", ["a/b", "\\u00fc [x]", "new\\nline", "::"])
    def test_odd_names(text):
        train(clear=False)

    def test_leaves_grad_mode_off():
        torch.set_grad_enabled(False)

    def test_grad_mode_is_on():
        assert torch.is_grad_enabled()

    def test_leaves_an_audit_open():
        import gradcheck_suite
        gradcheck_suite.audit().__enter__()

    def test_no_audit_is_open_but_this():
        from gradcheck_suite.auditing.session import open_sessions
        assert len(open_sessions()) == 1

    def test_expects_torch_to_refuse():
        loss = torch.ones(2, requires_grad=True).exp().sum()
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()

    def overwrites():
        y = torch.ones(2, requires_grad=True).exp()
        y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            y.sum().backward()

    def test_expects_torch_to_notice():
        overwrites()

    @pytest.mark.autograd_audit
    def test_asks_what_is_wrong():
        overwrites()

    def test_replaces_parts_of_torch(monkeypatch):
        monkeypatch.setattr(torch.Tensor, "add_", lambda self, other: self)
        monkeypatch.setattr(torch.nn.Module, "zero_grad", lambda self: None)
        monkeypatch.setattr(torch.optim.Optimizer, "zero_grad", lambda self: None)
        assert torch.ones(2).add_(1).tolist() == [1, 1]

    def test_parts_of_torch_are_back():
        assert torch.ones(2).add_(1).tolist() == [2, 2]
        train()

    def test_trains_in_a_thread():
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()

    def test_records_warnings(recwarn):
        warnings.warn("mine")
        assert [str(w.message) for w in recwarn] == ["mine"]

    def documented():
        """
        >>> train() and None
        >>> train(clear=False)
        """
'''
FORGETS = {
    "test_training.py::TestOld::test_sub_tests_that_forget",
    "test_training.py::test_training.documented",
    "test_training.py::test_odd_names[a/b]",
    "test_training.py::test_odd_names[::]",
}


def test_only_what_is_wrong_fails(run_tests, pytester):
    result = run_tests(
        SUITE,
        *("--doctest-modules", "--gradcheck-suite-audit", "--gradcheck-suite-report=r.json"),
    )

    result.assert_outcomes(passed=15, failed=7)
    findings = json.loads((pytester.path / "r.json").read_text())["findings"]
    by_rule = {finding["rule"]: finding for finding in findings}
    assert set(by_rule) == {"missing-zero-grad", "inplace-on-saved-output", "backward-twice"}
    forgets, overwrites = by_rule["missing-zero-grad"], by_rule["inplace-on-saved-output"]
    assert forgets["evidence"]["tests_count"] == 6
    assert set(forgets["evidence"]["tests"]) >= FORGETS
    assert overwrites["evidence"]["tests_count"] == 2
    text = result.stdout.str()
    _, _, told = text.partition("findings that failed no test")
    assert "test_expects_torch_to_notice: error GCS108" in told
    assert "test_asks_what_is_wrong: error" not in told
    assert "test_leaves_grad_mode_off: left grad mode disabled; it was put back" in text
    assert "test_leaves_an_audit_open: left an audit open; it was closed" in text


@pytest.mark.slow
def test_in_workers_that_stop_at_the_first_failure(write_tests, pytester):
    write_tests(SUITE)

    result = pytester.runpytest_subprocess(
        *("-n2", "-x", "-p", "no:randomly", "-p", "no:asyncio", "-p", "no:cacheprovider"),
        *("--gradcheck-suite-audit", "--gradcheck-suite-report=r.json"),
    )

    assert result.ret != 0
    counts = result.parseoutcomes()
    assert 1 <= counts["failed"] < 5
    findings = json.loads((pytester.path / "r.json").read_text())["findings"]
    assert sum(f["evidence"]["tests_count"] for f in findings) >= counts["failed"]


def test_in_the_debugger(run_tests, pytester):
    pytester.syspathinsert()
    pytester.makepyfile(
        quits="""
        class Debugger:
            quitting = False

            def __init__(self, *args, **kwargs):
                pass

            def reset(self):
                pass

            def interaction(self, _frame, error):
                trace = getattr(error, "__traceback__", error)
                while trace.tb_next:
                    trace = trace.tb_next
                code = trace.tb_frame.f_code
                print(f"stopped at {code.co_filename}:{trace.tb_lineno} in {code.co_name}")
        """
    )
    result = run_tests(
        """
        def test_forgets():
            train(clear=False)

        def test_after():
            train()
        """,
        *("--gradcheck-suite-audit", "--pdb", "--pdbcls=quits:Debugger"),
    )

    result.assert_outcomes(failed=1, passed=1)
    # Not in the plugin, to which the test has returned.
    file, line = _line_that_steps(pytester)
    assert result.stdout.str().count(f"stopped at {file}:{line} in train") == 1


def test_the_line_of_a_failure_is_that_of_the_mistake_or_of_the_test(run_tests, pytester):
    result = run_tests(
        """
        @pytest.mark.autograd_audit
        def test_forgets():
            train(clear=False)

        @pytest.mark.autograd_audit(fail_on="warning")
        def test_warned(only_a_warning):
            pass
        """,
        "--tb=line",
    )

    result.assert_outcomes(failed=2)
    file, line = _line_that_steps(pytester)
    result.stdout.fnmatch_lines(
        [f"{file}:{line}: Failed: error GCS301 *", f"{file}:*: Failed: warning GCS403 *"]
    )


def _line_that_steps(pytester):
    file = pytester.path / "test_training.py"
    lines = enumerate(file.read_text().splitlines(), start=1)
    return file, next(number for number, text in lines if "optimizer.step()" in text)


def test_what_torch_code_of_a_doctest_did_is_placed_in_its_file(run_tests, pytester):
    guide = """\
        # Guide

        >>> import torch
        >>> p = torch.nn.Parameter(torch.ones(3))
        >>> optimizer = torch.optim.SGD([p], lr=0.1)
        >>> for _ in range(3):
        ...     p.pow(2).sum().backward()
        ...     optimizer.step()
        """
    pytester.path.joinpath("guide.md").write_text(textwrap.dedent(guide))
    result = run_tests(
        """
        class Documented:
            '''Text.

            >>> def overwrites():
            ...     y = torch.ones(2, requires_grad=True).exp()
            ...     y.add_(1)
            ...     return y
            >>> overwrites().sum().backward()
            Traceback (most recent call last):
            RuntimeError: one of the variables needed for gradient computation
            '''
        """,
        *("--doctest-modules", "--doctest-glob=*.md", "--doctest-ignore-import-errors"),
        *("--gradcheck-suite-audit", "--gradcheck-suite-report=r.json"),
    )

    result.assert_outcomes(failed=2)
    assert "<doctest " not in result.stdout.str().partition("- gradcheck-suite -")[2]
    source = (pytester.path / "test_training.py").read_text().splitlines()
    saved, written, used = (
        next(n for n, text in enumerate(source, start=1) if part in text)
        for part in ("...     y = ", "...     y.add_", ">>> overwrites()")
    )
    forgets, overwrites = sorted(
        json.loads((pytester.path / "r.json").read_text())["findings"], key=lambda f: f["path"]
    )
    assert (forgets["path"], forgets["line"], forgets["related"][0]["line"]) == ("guide.md", 8, 7)
    assert (overwrites["path"], overwrites["line"]) == ("test_training.py", written)
    assert [related["line"] for related in overwrites["related"]] == [saved, used]
    assert f"by Exp at test_training.py:{saved} and" in overwrites["message"]


def test_a_unittest_case_that_fails_shows_its_findings_below(run_tests):
    result = run_tests(
        """
        import unittest

        class TestOld(unittest.TestCase):
            def test_fails(self):
                train(clear=False)
                self.assertEqual(1, 2)

            @pytest.mark.no_graph_leak(steps=3)
            def test_fails_at_once(self):
                self.assertEqual(1, 2)

            def test_is_skipped(self):
                train(clear=False)
                self.skipTest("later")

            @unittest.expectedFailure
            def test_is_expected_to_fail(self):
                self.assertEqual(1, 2)
        """,
        "--gradcheck-suite-audit",
    )

    result.assert_outcomes(failed=2, skipped=1, xfailed=1)
    result.stdout.fnmatch_lines(
        ["E * AssertionError: 1 != 2", "*- gradcheck-suite -*", "error GCS301 missing-zero-grad *"]
    )
