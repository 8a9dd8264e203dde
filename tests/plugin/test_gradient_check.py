from __future__ import annotations

import pytest


class TestOutcome:
    def test_right_gradients_pass_and_the_report_is_returned(self, run_tests):
        result = run_tests("""
            def test_sine(gradient_check):
                report = gradient_check(torch.sin, x())
                assert report.ok
                assert report.verdicts
        """)

        result.assert_outcomes(passed=1)
        assert "findings" not in result.stdout.str()

    def test_wrong_gradients_fail_with_the_report_at_the_line_of_the_test(self, run_tests):
        result = run_tests("""
            def test_wrong(gradient_check):
                gradient_check(Wrong.apply, x())
        """)

        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(
            [
                ">       gradient_check(Wrong.apply, x())",
                "E       Failed: error GCS601 wrong-gradient*",
                "E       gradcheck-suite verify: 1 error*",
                "test_training.py:*: Failed",
            ]
        )
        assert "fixtures.py" not in result.stdout.str()
        assert "outcomes.py" not in result.stdout.str()

    def test_expected_failures_stay_expected(self, run_tests):
        result = run_tests("""
            @pytest.mark.xfail(reason="known")
            def test_wrong(gradient_check):
                gradient_check(Wrong.apply, x())

            def test_raises(gradient_check):
                with pytest.raises(pytest.fail.Exception, match="GCS601"):
                    gradient_check(Wrong.apply, x())
        """)

        result.assert_outcomes(xfailed=1, passed=1)

    def test_what_the_function_raises_arrives_unchanged(self, run_tests):
        result = run_tests("""
            def broken(x):
                raise LookupError("mine")

            def test_broken(gradient_check):
                with pytest.raises(LookupError, match="^mine$"):
                    gradient_check(broken, x())
        """)

        result.assert_outcomes(passed=1)

    RAISES = """
        class Raises(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, grad):
                raise LookupError("mine")

        def test_forward(gradient_check):
            error = LookupError("mine")
            error.__context__ = KeyError("context")

            def broken(x):
                raise error

            with pytest.raises(LookupError) as caught:
                gradient_check(broken, x())
            assert caught.value is error
            assert isinstance(error.__context__, KeyError)
            assert not error.__suppress_context__
            gradient_check(broken, x())

        def test_backward(gradient_check):
            gradient_check(Raises.apply, x())

        def test_snapshot(gradient_check):
            gradient_check.snapshot(Raises.apply, x())
    """

    @pytest.mark.slow
    def test_frames_of_ours_are_left_out_of_what_the_function_raises(self, run_tests):
        result = run_tests(self.RAISES)

        result.assert_outcomes(failed=3)
        result.stdout.fnmatch_lines(
            ["E  *LookupError: mine", ">  *gradient_check(Raises.apply, x())"]
        )
        assert "gradcheck_suite/" not in result.stdout.str()
        assert "gradcheck_suite/" in run_tests(self.RAISES, "--full-trace").stdout.str()

    def test_wrong_use_is_shown_at_the_line_of_the_test(self, run_tests):
        result = run_tests("""
            def test_usage(gradient_check):
                gradient_check(torch.sin, x(), dtype='int3')
        """)

        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(
            [">       gradient_check(torch.sin, x(), dtype='int3')", "E       *UsageError: *dtype*"]
        )
        assert "fixtures.py" not in result.stdout.str()


class TestFailOn:
    def test_milder_findings_are_told_at_the_end(self, run_tests):
        result = run_tests("""
            def test_warned(gradient_check, only_a_warning):
                gradient_check(torch.sin, x())
        """)

        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines(
            [
                "*= gradcheck-suite: findings that failed no test =*",
                "test_training.py::test_warned: warning GCS403 *: head is left out",
            ]
        )

    def test_the_argument_comes_before_the_flag(self, run_tests):
        result = run_tests(
            """
            def test_strict(gradient_check, only_a_warning):
                gradient_check(torch.sin, x(), fail_on="warning")
            """,
            "--gradcheck-suite-fail-on=error",
        )

        result.assert_outcomes(failed=1)

    def test_a_wrong_argument(self, run_tests):
        result = run_tests("""
            def test_strict(gradient_check):
                gradient_check(torch.sin, x(), fail_on="fatal")
        """)

        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(
            [
                (
                    "*fail_on of gradient_check(...) must be one of 'error', 'warning', 'note'; "
                    "got 'fatal'"
                )
            ]
        )
