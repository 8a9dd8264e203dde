from __future__ import annotations


class TestFixture:
    def test_a_clean_block_passes_and_gives_the_session(self, run_tests):
        result = run_tests("""
            def test_clean(autograd_audit):
                with autograd_audit() as session:
                    train()
                assert session.report.ok
        """)

        result.assert_outcomes(passed=1)
        assert "findings" not in result.stdout.str()

    def test_findings_fail_the_test_where_the_block_ends(self, run_tests):
        result = run_tests("""
            def test_forgets(autograd_audit):
                with autograd_audit():
                    train(clear=False)
        """)

        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(
            [
                ">       with autograd_audit():",
                "E       Failed: error GCS301 missing-zero-grad*",
                "test_training.py:*: Failed",
            ]
        )
        assert "auditing.py" not in result.stdout.str()

    def test_the_failure_of_the_block_stays_first(self, run_tests):
        result = run_tests("""
            def test_breaks(autograd_audit):
                with autograd_audit():
                    train(clear=False)
                    assert 1 == 2, "mine"
        """)

        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(
            [
                "E  *AssertionError: mine",
                "*- gradcheck-suite -*",
                "error GCS301 missing-zero-grad*",
                "FAILED test_training.py::test_breaks - AssertionError: mine*",
            ]
        )

    def test_a_skip_inside_the_block_is_a_skip(self, run_tests):
        result = run_tests("""
            def test_skips(autograd_audit):
                with autograd_audit():
                    train(clear=False)
                    pytest.skip("no data")
        """)

        result.assert_outcomes(skipped=1)

    def test_two_blocks_in_one_test(self, run_tests):
        result = run_tests("""
            def test_two(autograd_audit):
                with autograd_audit():
                    train()
                with pytest.raises(pytest.fail.Exception, match="GCS301"):
                    with autograd_audit():
                        train(clear=False)
        """)

        result.assert_outcomes(passed=1)

    def test_wrong_use_is_shown_at_the_line_of_the_test(self, run_tests):
        result = run_tests("""
            def test_usage(autograd_audit):
                with autograd_audit(no_such_option=1):
                    pass
        """)

        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(
            [">       with autograd_audit(no_such_option=1):", "E  *UsageError: *no_such_option*"]
        )
        assert "fixtures.py" not in result.stdout.str()

    def test_inside_a_marked_test(self, run_tests):
        result = run_tests("""
            @pytest.mark.autograd_audit
            def test_both(autograd_audit):
                with autograd_audit():
                    train()
        """)

        result.assert_outcomes(passed=1)


class TestMarker:
    def test_audits_the_whole_test(self, run_tests):
        result = run_tests("""
            @pytest.mark.autograd_audit
            def test_forgets():
                train(clear=False)

            @pytest.mark.autograd_audit
            def test_clean():
                train()

            def test_not_marked():
                train(clear=False)
        """)

        result.assert_outcomes(failed=1, passed=2)
        result.stdout.fnmatch_lines(["*_ test_forgets _*", "error GCS301 missing-zero-grad*"])
        assert "plugin.py" not in result.stdout.str()

    def test_the_failure_of_the_test_stays_first(self, run_tests):
        result = run_tests("""
            @pytest.mark.autograd_audit
            def test_breaks():
                train(clear=False)
                raise KeyError("mine")
        """)

        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(
            ["E       KeyError: 'mine'", "*- gradcheck-suite -*", "error GCS301*"]
        )

    def test_on_a_class_with_xfail_and_first_failure_stop(self, run_tests):
        result = run_tests(
            """
            @pytest.mark.autograd_audit
            class TestAll:
                @pytest.mark.xfail(reason="known")
                def test_known(self):
                    train(clear=False)

                def test_forgets(self):
                    train(clear=False)

                def test_never_runs(self):
                    train()
            """,
            "-x",
        )

        result.assert_outcomes(xfailed=1, failed=1)

    def test_on_a_unittest_test_case(self, run_tests):
        result = run_tests("""
            import unittest

            @pytest.mark.autograd_audit
            class TestCase(unittest.TestCase):
                def test_forgets(self):
                    train(clear=False)

                def test_breaks(self):
                    train(clear=False)
                    self.assertEqual(1, 2)
        """)

        result.assert_outcomes(failed=2)
        result.stdout.fnmatch_lines(["E       AssertionError: 1 != 2"])

    def test_one_slug_needs_no_list(self, run_tests):
        result = run_tests("""
            @pytest.mark.autograd_audit(allow="missing-zero-grad")
            def test_meant():
                train(clear=False)
        """)

        result.assert_outcomes(passed=1)

    def test_wrong_arguments_make_that_test_an_error(self, run_tests):
        for arguments, message in [
            ("fail_on='fatal'", "fail_on of @pytest.mark.autograd_audit must be one of*"),
            ("'warning'", "@pytest.mark.autograd_audit takes keyword arguments only*"),
            ("level='error'", "@pytest.mark.autograd_audit has no argument 'level'*"),
        ]:
            result = run_tests(f"""
                @pytest.mark.autograd_audit({arguments})
                def test_it():
                    raise SystemExit("ran")

                def test_other():
                    pass
            """)

            result.assert_outcomes(errors=1, passed=1)
            result.stdout.fnmatch_lines(["*ERROR at setup of test_it*", message])


class TestFailOn:
    SOURCE = """
        pytestmark = pytest.mark.usefixtures("only_a_warning")

        @pytest.mark.autograd_audit
        def test_plain():
            pass

        @pytest.mark.autograd_audit(fail_on="error")
        def test_marked_error():
            pass

        @pytest.mark.autograd_audit(fail_on="warning")
        def test_marked_warning():
            pass
    """

    def test_errors_only_by_default(self, run_tests):
        run_tests(self.SOURCE).assert_outcomes(passed=2, failed=1)

    def test_the_configuration_file_decides(self, run_tests):
        result = run_tests(self.SOURCE, gradcheck_suite_fail_on="note")

        result.assert_outcomes(passed=1, failed=2)

    def test_the_flag_comes_before_the_configuration_file(self, run_tests):
        result = run_tests(
            self.SOURCE, "--gradcheck-suite-fail-on=error", gradcheck_suite_fail_on="note"
        )

        result.assert_outcomes(passed=2, failed=1)

    def test_a_wrong_configuration_file(self, run_tests):
        result = run_tests(self.SOURCE, gradcheck_suite_fail_on="never")

        assert result.ret == 4
        result.stderr.fnmatch_lines(
            ["*gradcheck_suite_fail_on in the configuration file must be one of*got 'never'"]
        )

    def test_a_wrong_switch_in_a_configuration_file_is_named(self, run_tests):
        result = run_tests(self.SOURCE, gradcheck_suite_summary="7")

        assert result.ret == 4
        result.stderr.fnmatch_lines(["*gradcheck_suite_summary in the configuration file: *'7'*"])

    def test_advice_on_the_flag_is_for_the_flag(self, run_tests):
        result = run_tests(self.SOURCE, gradcheck_suite_audit="maybe")

        assert result.ret == 4
        result.stderr.fnmatch_lines(
            ["*gradcheck_suite_audit in the configuration file must be one of*got 'maybe'"]
        )

    def test_a_wrong_flag(self, run_tests):
        result = run_tests(self.SOURCE, "--gradcheck-suite-fail-on=never")

        assert result.ret == 4

    def test_the_call_comes_before_all(self, run_tests):
        result = run_tests("""
            from gradcheck_suite.severity import Severity

            @pytest.mark.parametrize("severity", ["note", Severity.WARNING])
            def test_strict(autograd_audit, only_a_warning, severity):
                with pytest.raises(pytest.fail.Exception, match="GCS403"):
                    with autograd_audit(fail_on=severity):
                        pass

            @pytest.mark.autograd_audit(fail_on="warning")
            def test_mild(autograd_audit):
                with autograd_audit(fail_on="error"):
                    pass
        """)

        result.assert_outcomes(passed=3)


def test_what_a_test_declares_frozen_must_stay(run_tests):
    result = run_tests(
        """
    def fine_tune(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(5, 3)).pow(2).mean().backward()  # here
        optimizer.step()

    def make():
        return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))

    def test_stays(autograd_audit):
        model = make()
        model[0].requires_grad_(False)
        autograd_audit.frozen(model[0])
        fine_tune(model)

    def test_whole(autograd_audit):
        model = make()
        autograd_audit.frozen("0.*", model=model)
        fine_tune(model)

    def test_block(autograd_audit):
        model = make()
        autograd_audit.frozen(model[0])
        with autograd_audit(model):
            fine_tune(model)

    def test_in_a_block(autograd_audit):
        model = make()
        with autograd_audit(model) as session:
            session.frozen("0")
            fine_tune(model)

    def test_wrongly(autograd_audit):
        autograd_audit.frozen("0")
    """
    )
    result.assert_outcomes(passed=1, failed=4)
    text = result.stdout.str()
    assert text.count("backward() gave a gradient to `0.weight`, `0.bias`, 2 tensors") == 3
    assert text.count("# here") >= 3
    result.stdout.fnmatch_lines(["*the pattern '0' needs a model to look for names in*"])
