"""How the plugin gets on with the rest of pytest."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from xml.etree import ElementTree

import pytest

LOADED = """
    import sys
    import pytest_gradcheck_suite.plugin
    {extra}
    heavy = sorted({{"torch", "libcst", "rich", "numpy"}} & set(sys.modules))
    print(" ".join(heavy))
"""


def heavy_modules_after(extra):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LOADED).format(extra=extra)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.split()


class TestImport:
    def test_the_plugin_loads_nothing_heavy(self):
        assert heavy_modules_after("") == []

    def test_this_test_can_fail(self):
        assert "libcst" in heavy_modules_after("import libcst")


class TestInformation:
    def test_fixtures_markers_and_flags_are_described(self, run_tests):
        fixtures = run_tests("", "--fixtures").stdout.str()
        markers = run_tests("", "--markers").stdout.str()
        flags = run_tests("", "--help").stdout.str()

        assert "Check every gradient of a function or module" in fixtures
        assert "Audit the test: it fails" in fixtures
        assert "Trace the graph of tensors" in fixtures
        assert "@pytest.mark.autograd_audit(fail_on='error', allow=[]): audit" in markers
        assert "@pytest.mark.no_graph_leak(steps=1, limit=0): run" in markers
        assert "@pytest.mark.gradient_check(fail_on='error', **options)" in markers
        assert "--gradcheck-suite-fail-on={error,warning,note}" in flags
        assert "gradcheck_suite_fail_on" in flags

    def test_disabled(self, run_tests):
        result = run_tests(
            """
            def test_gone(gradient_check):
                pass
            """,
            "-p",
            "no:gradcheck_suite",
        )

        result.assert_outcomes(errors=1)
        result.stdout.fnmatch_lines(["*fixture 'gradient_check' not found"])


def test_the_summary_of_pytest_says_what_a_report_was_raised_for(run_tests, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    result = run_tests("""
        import gradcheck_suite as gs

        def test_asks_itself():
            gs.check_gradients(Wrong, x()).raise_for_findings()
    """)

    result.stdout.fnmatch_lines(
        [
            ">       gs.check_gradients(Wrong, x()).raise_for_findings()",
            "FAILED test_training.py::test_asks_itself - *Error: 1 error: GCS601 wrong-gradient: *",
        ]
    )
    assert "findings.py" not in result.stdout.str()


class TestReports:
    SOURCE = """
        @pytest.mark.autograd_audit
        def test_forgets():
            train(clear=False)

        @pytest.mark.autograd_audit
        def test_breaks():
            train(clear=False)
            assert False, "mine"

        def test_warned(gradient_check, only_a_warning):
            gradient_check(torch.sin, x())
    """

    def test_junit_xml(self, run_tests, pytester):
        result = run_tests(self.SOURCE, "--junitxml=junit.xml")

        result.assert_outcomes(failed=2, passed=1)
        cases = {
            case.get("name"): case
            for case in ElementTree.parse(pytester.path / "junit.xml").iter("testcase")
        }
        assert "GCS301" in cases["test_forgets"].find("failure").text
        assert "mine" in cases["test_breaks"].find("failure").get("message")
        assert cases["test_warned"].find("failure") is None

    @pytest.mark.slow
    def test_parallel(self, write_tests, pytester):
        write_tests(self.SOURCE)

        result = pytester.runpytest_subprocess(
            "-p", "no:cacheprovider", "-p", "no:asyncio", "-n", "2"
        )

        result.assert_outcomes(failed=2, passed=1)
        text = result.stdout.str()
        assert text.count("error GCS301 missing-zero-grad  ") == 2
        assert "- gradcheck-suite -" in text
        assert text.count("findings that failed no test") == 1
        assert "test_training.py::test_warned: warning GCS403" in text


class TestWithoutTorch:
    @pytest.fixture
    def runs_start_where_torch_is_loaded(self):
        """Here they do not."""

    @pytest.fixture(autouse=True)
    def _without_torch(self, pytester):
        """Make every import of torch fail as if it were not installed."""
        pytester.makeconftest("""
            import importlib.abc
            import sys

            class NoTorch(importlib.abc.MetaPathFinder):
                def find_spec(self, name, path, target=None):
                    if name.partition(".")[0] == "torch":
                        raise ModuleNotFoundError("No module named 'torch'", name="torch")

            sys.meta_path.insert(0, NoTorch())
        """)

    @pytest.mark.slow
    def test_fixtures_and_markers_say_what_to_install(self, pytester):
        pytester.makepyfile("""
            import pytest

            def test_check(gradient_check):
                pass

            def test_audit(autograd_audit):
                pass

            def test_graph(autograd_graph):
                pass

            @pytest.mark.gradient_check(order=2)
            def test_marked_check(gradient_check):
                pass

            @pytest.mark.autograd_audit
            def test_marked():
                pass

            @pytest.mark.no_graph_leak
            def test_leak():
                pass

            def test_plain():
                pass
        """)

        result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:asyncio", "-rA")

        result.assert_outcomes(errors=4, failed=2, passed=1)
        text = result.stdout.str()
        for user in (
            "the fixture gradient_check",
            "the fixture autograd_audit",
            "the fixture autograd_graph",
            "@pytest.mark.autograd_audit",
            "@pytest.mark.no_graph_leak",
        ):
            assert f"\n{user} needs PyTorch, which is not installed here; install it with: " in text
        assert text.count("pip install 'gradcheck-suite[torch]'") >= 6
        assert "Traceback" not in text
        assert "exception" not in text

    @pytest.mark.parametrize("flag", ["--gradcheck-suite-audit", "--gradcheck-suite-modules=some"])
    def test_a_run_that_needs_it_for_every_test_does_not_start(self, run_tests, pytester, flag):
        # Python takes such an entry for a module that is not there.
        pytester.makeconftest("import sys; sys.modules['torch'] = None")

        result = run_tests("", flag)

        assert result.ret == 4
        result.stderr.fnmatch_lines(
            [f"*{flag.partition('=')[0]} needs PyTorch*pip install 'gradcheck-suite?torch?'*"]
        )
