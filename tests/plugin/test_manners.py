"""What tests leave behind, repeated tests, debuggers, and a start that costs nothing."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from gradcheck_suite.examples import CHECK_OPTIONS
from gradcheck_suite.severity import Severity
from gradcheck_suite.verification import check_gradients
from pytest_gradcheck_suite import options

LEFT = """
    import gradcheck_suite
    from gradcheck_suite._torch_compat import top_saved_tensors_hooks

    pytestmark = pytest.mark.usefixtures("gradient_check")

    @pytest.fixture
    def no_grad():
        with torch.no_grad():
            yield

    @pytest.fixture
    def put_back():
        yield
        torch.set_grad_enabled(True)

    def test_grad_mode():
        torch.set_grad_enabled(False)

    def test_after_grad_mode():
        assert torch.is_grad_enabled()

    def test_anomaly_mode():
        torch.autograd.set_detect_anomaly(True)

    def test_audit():
        gradcheck_suite.audit().__enter__()

    def test_hooks():
        torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x).__enter__()

    def test_after_all(autograd_audit):
        assert not torch.is_anomaly_enabled()
        train()
        assert not any("hooks" in line for line in autograd_audit.session.report.not_covered)

    def test_fixture_owns_the_mode(no_grad):
        torch.set_grad_enabled(True)

    def test_fixture_puts_it_back(put_back):
        torch.set_grad_enabled(False)

    @pytest.fixture
    def leaves_all(tmp_path_factory):
        torch.set_grad_enabled(False)
        torch.autograd.set_detect_anomaly(True)
        torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x).__enter__()
        return 3

    def test_fixture_leaves_all(leaves_all):
        pass

    def test_after_the_fixture():
        assert torch.is_grad_enabled()
        assert not torch.is_anomaly_enabled()
        assert top_saved_tensors_hooks() is None

    @pytest.fixture(scope="class")
    def all_without():
        torch.set_grad_enabled(False)
        yield
        torch.set_grad_enabled(True)

    class TestShared:
        @pytest.mark.parametrize("turn", [1, 2])
        def test_without(self, all_without, turn):
            assert not torch.is_grad_enabled()

    class TestOld:
        @classmethod
        def setup_class(cls):
            torch.set_grad_enabled(False)

        @classmethod
        def teardown_class(cls):
            torch.set_grad_enabled(True)

        @pytest.mark.parametrize("turn", [1, 2])
        def test_without(self, turn):
            assert not torch.is_grad_enabled()
"""


def test_what_a_test_leaves_behind_is_named_and_put_right(run_tests):
    result = run_tests(LEFT)

    result.assert_outcomes(passed=14)
    text = result.stdout.str().partition("left behind or left out")[2]
    for line in (
        "::test_grad_mode and 1 more: left grad mode disabled; it was put back",
        "::test_anomaly_mode and 1 more: left anomaly mode changed",
        "::test_audit: left an audit open; it was closed",
        "::test_hooks and 1 more: left saved-tensors hooks registered; they were removed",
    ):
        assert line in text
    assert text.count("test_training.py::") == 4


@pytest.mark.parametrize("phase", ["setup", "call", "teardown"])
def test_our_hooks_are_no_part_of_what_others_raise(run_tests, pytester, phase):
    pytester.makeconftest(f"""
        def pytest_runtest_{phase}(item):
            raise ValueError("theirs")
    """)

    result = run_tests("def test(): pass", "--gradcheck-suite-audit")

    result.stdout.fnmatch_lines(["E *ValueError: theirs", "conftest.py:*: ValueError"])
    assert "pytest_gradcheck_suite" not in result.stdout.str()


def test_an_audit_that_a_fixture_holds_open_is_left_open(run_tests):
    result = run_tests("""
        import gradcheck_suite
        from gradcheck_suite.auditing.session import open_sessions

        @pytest.fixture(scope="module")
        def watched():
            with gradcheck_suite.audit() as session:
                yield session

        @pytest.mark.parametrize("turn", [1, 2])
        def test_inside(watched, gradient_check, turn):
            assert open_sessions() == (watched,)
            train()
    """)

    result.assert_outcomes(passed=2)
    assert "left an audit open" not in result.stdout.str()


def test_a_test_that_is_run_again(run_tests, pytester):
    # What pytest-rerunfailures does: the same item, set up anew.
    pytester.makeconftest("""
        from _pytest.runner import runtestprotocol

        def pytest_runtest_protocol(item, nextitem):
            runtestprotocol(item, nextitem=nextitem, log=False)
            for report in runtestprotocol(item, nextitem=nextitem, log=False):
                item.ihook.pytest_runtest_logreport(report=report)
            return True
    """)

    result = run_tests("""
        runs = []

        def test_flaky(autograd_audit, gradient_check):
            runs.append(1)
            if len(runs) == 1:
                autograd_audit.allow("leaf-inplace")
            train(clear=len(runs) > 1)
    """)

    result.assert_outcomes(passed=1)
    assert "GCS301" not in result.stdout.str()


def test_a_debugger_sees_the_frame_of_the_test(run_tests, pytester):
    pytester.makepyfile(
        fake_pdb="""
        class Fake:
            def __init__(self, *_, **__): pass
            def reset(self): pass
            def setup(self, frame, traceback): pass
            def interaction(self, frame, traceback):
                import torch
                from gradcheck_suite._torch_compat import top_saved_tensors_hooks
                # From Python 3.13 on, what is shown is the exception itself.
                traceback = getattr(traceback, "__traceback__", traceback)
                while traceback.tb_next:
                    traceback = traceback.tb_next
                print("STOPPED IN", traceback.tb_frame.f_code.co_name, top_saved_tensors_hooks())
        """
    )
    pytester.syspathinsert()

    result = run_tests(
        """
        @pytest.mark.autograd_audit
        def test_breaks():
            train(clear=False)
            assert False
        """,
        "--pdb",
        "--pdbcls=fake_pdb:Fake",
    )

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*STOPPED IN test_breaks None*"])


class TestFixtures:
    def test_options(self, run_tests):
        result = run_tests("""
            def test_report(gradient_check):
                assert not gradient_check(Wrong.apply, x(), check=False).ok

            @pytest.mark.gradient_check(fail_on="note", order=2)
            def test_marked(gradient_check, only_a_warning):
                gradient_check(torch.sin, x())

            @pytest.fixture
            def early(autograd_audit):
                return autograd_audit.session

            def test_too_early(early):
                pass

            def test_unknown_slug(autograd_audit):
                autograd_audit.allow("missing-zero-gard")

            def test_fails_before_its_picture(autograd_graph):
                assert False, "mine"

            def test_picture(autograd_graph):
                graph = autograd_graph((x() ** 2).sum())
                assert graph.nodes == ()

            def test_no_picture(autograd_graph):
                with pytest.raises(Exception, match="no tensor"):
                    autograd_graph(3)

            def test_passes(autograd_graph):
                assert autograd_graph((x() ** 2).sum()).nodes
        """)

        result.assert_outcomes(passed=3, failed=4, errors=1)
        assert "test_fails_before_its_picture-" not in result.stdout.str()
        result.stdout.fnmatch_lines(
            [
                "*autograd_audit.session is there while the test runs*",
                "*has no mistake 'missing-zero-gard'; did you mean*missing-zero-grad*",
                "autograd graph 1: *test_picture-1.html",
            ]
        )

    def test_the_closest_marker_decides_each_option(self, run_tests):
        result = run_tests("""
            import gradcheck_suite
            from gradcheck_suite.findings import Report

            @pytest.fixture
            def asked(monkeypatch):
                options = {}

                def note(function, inputs, **arguments):
                    options.update(arguments)
                    return Report(tool="none")

                monkeypatch.setattr(gradcheck_suite, "check_gradients", note)
                return options

            @pytest.mark.gradient_check(order=1, probes=3)
            class TestAll:
                @pytest.mark.gradient_check(order=2)
                def test_one(self, asked, gradient_check):
                    gradient_check(torch.sin, x(), full=True)
                    seed = asked.pop("seed")
                    assert isinstance(seed, int)
                    assert asked == {"order": 2, "probes": 3, "full": True}
        """)

        result.assert_outcomes(passed=1)

    def test_a_picture_that_can_not_be_saved(self, run_tests, pytester):
        pytester.mkdir("out")
        result = run_tests(
            """
            import pathlib

            def test_loses_the_folder(autograd_graph):
                autograd_graph((x() ** 2).sum())
                pathlib.Path("out").rename("gone")
                pathlib.Path("out").write_text("")
                assert False, "mine"

            def test_puts_it_back():
                pathlib.Path("out").unlink()
                pathlib.Path("gone").rename("out")
            """,
            "--gradcheck-suite-report=out/r.json",
        )

        result.assert_outcomes(failed=1, passed=1)
        result.stdout.fnmatch_lines(
            ["E *mine", "*- gradcheck-suite -*", "the autograd graphs could not be saved: *"]
        )
        assert (pytester.path / "out" / "r.json").is_file()

    def test_a_fixture_of_the_same_name_is_the_users(self, run_tests):
        result = run_tests("""
            @pytest.fixture
            def autograd_audit():
                return "mine"

            def test_it(autograd_audit):
                assert autograd_audit == "mine"
                train(clear=False)
        """)

        result.assert_outcomes(passed=1)

    def test_asked_for_by_name_while_the_test_runs(self, run_tests):
        result = run_tests("""
            def test_late(request):
                audit = request.getfixturevalue("autograd_audit")
                with audit():
                    train(clear=False)
                    assert False, "mine"
        """)

        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*mine", "*- gradcheck-suite -*", "error GCS301 *"])

    @pytest.mark.parametrize(
        ("marker", "message"),
        [
            ("gradient_check(ordr=2)", "*has no argument 'ordr'; did you mean 'order'?"),
            ("gradient_check(fail_on='x')", "*fail_on of *must be one of*"),
            ("autograd_audit(alow=[])", "*has no argument 'alow'; did you mean 'allow'?"),
            ("autograd_audit(allow=['leaf-inplac'])", "*did you mean*leaf-inplace*"),
            ("autograd_audit(allow=3)", "*allow of *must be a list of slugs or codes; got 3"),
        ],
    )
    def test_wrong_markers(self, run_tests, marker, message):
        result = run_tests(f"""
            @pytest.mark.{marker}
            def test_it():
                pass

            def test_other():
                pass
        """)

        result.assert_outcomes(errors=1, passed=1)
        result.stdout.fnmatch_lines(["*ERROR at setup of test_it*", message])

    def test_neither_xfail_nor_skip_hides_a_wrong_marker(self, run_tests):
        result = run_tests("""
            @pytest.mark.xfail(strict=True)
            @pytest.mark.gradient_check(ordr=2)
            def test_known():
                assert False

            @pytest.mark.skip(reason="slow")
            @pytest.mark.gradient_check(ordr=2)
            def test_skipped():
                pass
        """)

        result.assert_outcomes(errors=2)

    def test_a_wrong_setting_ends_the_run_before_any_test(self, run_tests):
        flag = run_tests("def test_it(): pass", "--gradcheck-suite-seed=x")
        assert flag.ret == pytest.ExitCode.USAGE_ERROR
        flag.stderr.fnmatch_lines(["ERROR: --gradcheck-suite-seed must be an integer*"])
        ini = run_tests("def test_it(): pass", gradcheck_suite_fail_on="fatal")
        assert ini.ret == pytest.ExitCode.USAGE_ERROR
        ini.stderr.fnmatch_lines(["ERROR: gradcheck_suite_fail_on * must be one of *"])


def test_the_options_that_are_known_without_torch_are_those_of_check_gradients():
    parameters = list(inspect.signature(check_gradients).parameters)

    assert tuple(parameters[2:]) == CHECK_OPTIONS


def test_what_pytest_is_told_at_its_start_is_what_is_read_later():
    given = [name.replace("_", "-") for name in options.Settings._fields]
    assert [*options.OPTIONS, "update-snapshots", "given-by"] == given
    assert tuple(severity.value for severity in Severity) == options.SEVERITIES


COLLECT = """
import sys, pytest
sys.dont_write_bytecode = True
class Look:
    def pytest_unconfigure(self):
        heavy = {"torch", "libcst", "rich", "numpy"} & set(sys.modules)
        ours = {m for m in sys.modules if "gradcheck" in m and m != "pytest_gradcheck_suite"}
        ours = sorted(m.removeprefix("pytest_gradcheck_suite.") for m in ours)
        print("LOADED", sorted(heavy), ours)
# pytest-randomly loads numpy.
alone = ["--co", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
sys.exit(pytest.main([*alone, *sys.argv[1:]], plugins=[Look()]))
"""


class TestStart:
    def loaded(self, folder, *arguments):
        done = subprocess.run(
            [sys.executable, "-c", COLLECT, *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        return done.stdout.partition("LOADED ")[2].strip()

    @pytest.mark.slow
    def test_a_run_that_does_not_use_the_plugin_loads_next_to_nothing(self, tmp_path):
        assert (
            self.loaded(tmp_path) == "[] ['fixtures', 'hookspecs', 'markers', 'options', 'plugin']"
        )

    @pytest.mark.slow
    def test_this_test_can_fail(self, tmp_path):
        (tmp_path / "conftest.py").write_text("import rich")

        assert self.loaded(tmp_path).startswith("['rich']")
