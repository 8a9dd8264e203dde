"""Audit every test, make tests of examples, and write one report for the run."""

from __future__ import annotations

import json
import sys
from xml.etree import ElementTree

import pytest
import torch

from gradcheck_suite._addresses import page_of

PACKAGE = """
    import torch
    import gradcheck_suite

    @gradcheck_suite.example(lambda: torch.randn(3, 4))
    class Plain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 2)

        def forward(self, x):
            return self.linear(x).tanh()

    @gradcheck_suite.example(lambda: torch.randn(2, 3), make=lambda: Sized(3), name="three")
    @gradcheck_suite.example(lambda: torch.randn(2, 3))
    class Sized(torch.nn.Module):
        def __init__(self, size):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(size))

        def forward(self, x):
            return x * self.weight

    @gradcheck_suite.example(lambda: torch.randn(3, dtype=torch.float64, requires_grad=True))
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return 3 * x * grad

    class Lonely(torch.nn.Module):
        pass
"""


@pytest.fixture
def package(pytester):
    """Write a package with examples, good and bad, and one module that can't be imported."""

    def write(name):
        folder = pytester.mkpydir(name)
        pytester.makepyfile(
            **{f"{name}/layers": PACKAGE, f"{name}/broken": "raise OSError('gone')"}
        )
        pytester.syspathinsert()
        return folder

    return write


SUITE = """
    import unittest

    @pytest.mark.parametrize("clear", [True, False])
    def test_training(clear):
        train(clear=clear)

    @pytest.mark.autograd_audit(allow=["missing-zero-grad"])
    def test_allowed():
        train(clear=False)

    def test_allows(autograd_audit):
        autograd_audit.allow("GCS301")
        train(clear=False)

    @pytest.mark.xfail(reason="known")
    def test_known():
        train(clear=False)

    class TestOld(unittest.IsolatedAsyncioTestCase):
        async def test_async(self):
            train(clear=False)
"""


class TestAuditOfEveryTest:
    def test_every_kind_of_test(self, run_tests, pytester):
        result = run_tests(
            SUITE,
            "--gradcheck-suite-audit",
            "--gradcheck-suite-report=all.json",
            "--junitxml=junit.xml",
        )

        result.assert_outcomes(passed=3, failed=2, xfailed=1)
        result.stdout.fnmatch_lines(
            ["gradcheck-suite: seed 0; audit of every test, failing on error"]
        )
        document = json.loads((pytester.path / "all.json").read_text())
        (finding,) = document["findings"]
        assert finding["rule"] == "missing-zero-grad"
        assert finding["evidence"]["tests_count"] == 3
        assert "test_training.py::test_training[[]False]" not in finding["evidence"]["tests"]
        assert "test_training.py::test_training[False]" in finding["evidence"]["tests"]
        cases = {
            case.get("name"): [p.get("value") for p in case.iter("property")]
            for case in ElementTree.parse(pytester.path / "junit.xml").iter("testcase")
        }
        assert cases["test_training[True]"] == []
        assert cases["test_training[False]"][0].startswith("error GCS301 missing-zero-grad: ")

    def test_what_watches_in_place_functions_stays_from_test_to_test(self, run_tests):
        source = """
            import torch

            seen = []

            def test_one():
                seen.append(torch.Tensor.add_)

            def test_two():
                assert torch.Tensor.add_ is seen[0]
                assert torch.ones(2).add_(1).tolist() == [2, 2]
        """
        before = torch.Tensor.add_
        run_tests(source, "--gradcheck-suite-audit").assert_outcomes(passed=2)
        assert torch.Tensor.add_ is before

    def test_modules_of_ours_are_imported_plainly_and_audits_go_with_their_tests(self, run_tests):
        source = """
            import gc
            import sys
            import weakref
            from pytest_gradcheck_suite.runtime import _OwnModulesFinder

            sessions = []

            def test_one(autograd_audit):
                assert type(sys.meta_path[0]) is _OwnModulesFinder
                spec = sys.meta_path[0].find_spec("pytest_gradcheck_suite.leaks")
                assert spec is None or spec.origin.endswith("leaks.py")
                assert sys.meta_path[0].find_spec("torch.nn") is None
                train()
                sessions.append(weakref.ref(autograd_audit.session))

            def test_two():
                gc.collect()
                assert sessions[0]() is None

            def test_another_takes_it_out():
                sys.meta_path[:] = [f for f in sys.meta_path if type(f) is not _OwnModulesFinder]
        """
        finders = list(sys.meta_path)
        run_tests(source, "--gradcheck-suite-audit").assert_outcomes(passed=3)
        assert sys.meta_path == finders

    def test_off_on_the_command_line_comes_before_the_configuration(self, run_tests, pytester):
        source = """
            def test_training():
                train(clear=False)
        """

        run_tests(source, gradcheck_suite_audit="error").assert_outcomes(failed=1)
        run_tests(
            source, "--gradcheck-suite-audit=off", gradcheck_suite_audit="error"
        ).assert_outcomes(passed=1)
        pytester.makepyprojecttoml("[tool.gradcheck-suite.pytest]\naudit = true")
        run_tests(source).assert_outcomes(failed=1)
        run_tests(source, "--gradcheck-suite-audit=off").assert_outcomes(passed=1)

    def test_many_findings_that_fail_nothing_are_not_all_listed(self, run_tests):
        result = run_tests("""
            @pytest.mark.parametrize("number", range(52))
            def test_warned(gradient_check, only_a_warning, number):
                gradient_check(torch.sin, x())
        """)

        result.assert_outcomes(passed=52)
        text = result.stdout.str()
        assert text.count(": warning GCS403 ") == 50
        assert "... and 2 more; --gradcheck-suite-report=FILE.json has all" in text

    def test_a_path_is_not_taken_for_a_severity(self, run_tests):
        result = run_tests("", "--gradcheck-suite-audit", "test_training.py")

        assert result.ret == 4
        result.stderr.fnmatch_lines(["*--gradcheck-suite-audit=error tests/*"])

    @pytest.mark.slow
    def test_parallel_with_one_summary_and_one_report(self, write_tests, pytester, package):
        package("pkgpar")
        write_tests(SUITE)

        result = pytester.runpytest_subprocess(
            "-n2",
            "-p",
            "no:randomly",
            "-p",
            "no:asyncio",
            "-p",
            "no:cacheprovider",
            "--gradcheck-suite-audit",
            "--gradcheck-suite-modules=pkgpar",
            "--gradcheck-suite-report=all.sarif",
        )

        result.assert_outcomes(passed=5, failed=4, xfailed=1)
        text = result.stdout.str()
        assert text.count("left behind or left out") == 1
        assert text.count("pkgpar: 1 without an example, and not checked: layers.Lonely") == 1
        results = json.loads((pytester.path / "all.sarif").read_text())["runs"][0]["results"]
        assert sorted(found["ruleId"] for found in results) == ["GCS301", "GCS601"]


class TestExamples:
    def test_each_example_is_a_test(self, run_tests, package, pytester):
        package("pkgone")
        pytester.makeconftest("""
            def pytest_gradcheck_suite_examples(package):
                import torch
                from gradcheck_suite.examples import Example

                assert package == "pkgone"
                softplus = Example(torch.nn.Softplus(), lambda: torch.ones(2, requires_grad=True))
                return [softplus]
        """)

        result = run_tests("", "--gradcheck-suite-modules=pkgone", "-v")

        result.assert_outcomes(passed=3, failed=2)
        result.stdout.fnmatch_lines(
            [
                "gradcheck-suite::pkgone::layers::Plain PASSED*",
                "gradcheck-suite::pkgone::layers::Sized FAILED*",
                "gradcheck-suite::pkgone::layers::Sized?three? PASSED*",
                "gradcheck-suite::pkgone::layers::Wrong FAILED*",
                "gradcheck-suite::pkgone::*Softplus PASSED*",
                "UsageError: Sized can't be made without arguments*make=lambda: Sized(...))",
                "error GCS601 wrong-gradient*pkgone/layers.py:* in Wrong.backward()",
                "pkgone: could not import pkgone.broken (OSError: gone)",
                "pkgone: 1 without an example, and not checked: layers.Lonely",
            ]
        )

    def test_examples_without_names_without_source_and_from_a_dict(self, run_tests, pytester):
        pytester.mkpydir("pkgall")
        files = {
            "pkgall/layers": """
                import gradcheck_suite
                import torch

                def points():
                    return torch.ones(2, requires_grad=True)

                @gradcheck_suite.example(points)
                @gradcheck_suite.example(points)
                @gradcheck_suite.example(points)
                class Sine(torch.nn.Module):
                    def forward(self, x):
                        return x.sin()
            """,
            "pkgall/__main__": "raise SystemExit('ran')",
        }
        pytester.makepyfile(**files)
        pytester.syspathinsert()
        pytester.makeconftest("""
            import functools

            def pytest_gradcheck_suite_examples():
                import torch
                from pkgall.layers import points

                return {functools.partial(torch.mul, 2): points, torch.sigmoid: points}
        """)

        result = run_tests("", "--gradcheck-suite-modules=pkgall", "-v")

        result.assert_outcomes(passed=5)
        result.stdout.fnmatch_lines(
            [
                "gradcheck-suite::pkgall::layers::Sine PASSED*",
                "gradcheck-suite::pkgall::layers::Sine?2? PASSED*",
                "gradcheck-suite::pkgall::layers::Sine?3? PASSED*",
                "gradcheck-suite::pkgall::*partial PASSED*",
                "gradcheck-suite::pkgall::*sigmoid PASSED*",
            ]
        )
        assert "without an example" not in result.stdout.str()

    @pytest.mark.parametrize("audit", [(), ("--gradcheck-suite-audit",)])
    def test_an_example_that_raises_shows_what_raised_alone(self, run_tests, pytester, audit):
        layers = """
            import gradcheck_suite
            import torch

            class Layer(torch.nn.Linear):
                def __init__(self):
                    super().__init__(3, 2)

            class InMaking(Layer): ...
            class InTorch(Layer): ...
            class Arguments(Layer): ...

            gradcheck_suite.example(lambda: 1 / 0)(InMaking)
            gradcheck_suite.example(lambda: torch.ones(2, 5))(InTorch)
            gradcheck_suite.example(lambda x: x)(Arguments)
        """
        package = f"pkgraises{len(audit)}"
        pytester.mkpydir(package)
        pytester.makepyfile(**{f"{package}/layers": layers})
        pytester.syspathinsert()

        result = run_tests("", f"--gradcheck-suite-modules={package}", *audit)

        result.assert_outcomes(failed=3)
        result.stdout.fnmatch_lines(
            [
                f"{package}/layers.py:*: in <lambda>",
                "E   ZeroDivisionError: division by zero",
                "E   RuntimeError: *mat1 and mat2 shapes cannot be multiplied*",
                "UsageError: the example of layers.Arguments can't make its inputs: *'x'*",
            ]
        )
        failures = result.stdout.str().partition("= FAILURES =")[2]
        assert "pluggy" not in failures
        assert "pytest_gradcheck_suite" not in failures
        assert "def functional_call(" not in failures

    def test_selection_by_name(self, run_tests, package):
        package("pkgtwo")

        result = run_tests("", "-k", "Plain", gradcheck_suite_modules="pkgtwo")

        result.assert_outcomes(passed=1, deselected=3)

    def test_parts_that_end_the_process_or_skip_leave_the_others(
        self, run_tests, package, pytester
    ):
        """A script without a guard, or a part that needs what is not installed."""
        package("pkgends")
        for name, source in {
            "script.py": "import sys\nsys.exit(3)\n",
            "tools/__init__.py": "raise SystemExit('no data')\n",
            "optional/__init__.py": "import pytest\npytest.importorskip('no_such_module')\n",
        }.items():
            path = pytester.path / "pkgends" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(source)

        result = run_tests("", "--gradcheck-suite-modules=pkgends", "-k", "Plain")

        result.assert_outcomes(passed=1, deselected=3)
        text = result.stdout.str()
        assert "could not import pkgends.script (SystemExit: 3)" in text
        assert "could not import pkgends.tools (SystemExit: no data)" in text
        assert "could not import pkgends.optional (Skipped: could not import" in text
        assert "INTERNALERROR" not in text

    @pytest.mark.parametrize(
        ("source", "said"),
        [
            ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
            ("def f(:", "SyntaxError: invalid syntax"),
            ("import sys; sys.exit(2)", "SystemExit: 2"),
        ],
    )
    def test_a_package_that_fails_as_it_is_imported(self, run_tests, pytester, source, said):
        (pytester.mkpydir("pkgfails") / "__init__.py").write_text(source)

        result = run_tests("", "--gradcheck-suite-modules=pkgfails")

        assert result.ret == 4
        result.stderr.fnmatch_lines([f"*cannot import 'pkgfails': {said}*"])

    def test_a_package_that_is_not_there(self, run_tests):
        result = run_tests("", "--gradcheck-suite-modules=nowhere")

        assert result.ret == 4
        result.stderr.fnmatch_lines(["*cannot import 'nowhere'*setting pythonpath"])

    @pytest.mark.parametrize("file", ["ini", "pyproject"])
    def test_a_message_names_the_place_where_the_package_was_named(self, run_tests, pytester, file):
        table = '[tool.gradcheck-suite.pytest]\nmodules = ["nowhere"]\n'
        pytester.makepyprojecttoml(table if file == "pyproject" else "")
        result = run_tests("", **({"gradcheck_suite_modules": "nowhere"} if file == "ini" else {}))

        assert result.ret == 4
        where = {
            "ini": "gradcheck_suite_modules in the configuration file",
            "pyproject": "modules under ?tool.gradcheck-suite.pytest?",
        }[file]
        result.stderr.fnmatch_lines([f"ERROR: {where}: cannot import 'nowhere'*"])

    @pytest.mark.parametrize("given", ["[3]", "{3: 4}", "7"])
    def test_a_hook_that_returns_something_else(self, run_tests, package, pytester, given):
        package("pkgodd")
        pytester.makeconftest(f"def pytest_gradcheck_suite_examples():\n    return {given}")

        result = run_tests("", "--gradcheck-suite-modules=pkgodd")

        assert result.ret == 4
        result.stderr.fnmatch_lines(["*pytest_gradcheck_suite_examples: *"])


class TestReportFile:
    SOURCE = """
        def test_warned(gradient_check, only_a_warning):
            gradient_check(torch.sin, x())
    """

    @pytest.mark.parametrize(
        ("file", "text"),
        [
            ("r.html", "<html"),
            ("r.xml", "<testsuites"),
            ("r.sarif", "GCS403"),
            ("r.md", f"| [GCS403]({page_of('GCS403')}) | warning |"),
        ],
    )
    def test_formats(self, run_tests, pytester, file, text):
        result = run_tests(
            self.SOURCE, f"--gradcheck-suite-report={file}", "--gradcheck-suite-no-summary"
        )

        result.assert_outcomes(passed=1)
        assert "failed no test" not in result.stdout.str()
        assert text in (pytester.path / file).read_text()

    def test_folders_that_are_missing_are_made(self, run_tests, pytester):
        result = run_tests(
            """
            def test_depth(autograd_graph):
                autograd_graph(x().sum())
                assert False
            """,
            "--gradcheck-suite-report=some/where/r.json",
        )

        result.assert_outcomes(failed=1)
        assert json.loads((pytester.path / "some" / "where" / "r.json").read_text())
        assert list((pytester.path / "some" / "where").glob("*.html"))

    @pytest.mark.parametrize(
        ("file", "message"),
        [
            ("file/r.json", "*--gradcheck-suite-report is 'file/r.json', but '*/file' is not *"),
            (
                "r.pdf",
                "*--gradcheck-suite-report must end in one of .json, .sarif, .html, .xml, .md*",
            ),
            ("d.json", "*which is a folder; name a file"),
        ],
    )
    def test_paths_that_cannot_be(self, run_tests, pytester, file, message):
        pytester.mkdir("d.json")
        pytester.path.joinpath("file").touch()

        result = run_tests(self.SOURCE, f"--gradcheck-suite-report={file}")

        assert result.ret == 4
        result.stderr.fnmatch_lines([message])

    def test_a_file_that_cannot_be_written(self, run_tests):
        """What the tests have shown is shown all the same."""
        result = run_tests(
            self.SOURCE + "\n            import os; os.mkdir('r.json'); assert False, 'mine'",
            "--gradcheck-suite-report=r.json",
        )

        result.assert_outcomes(failed=1)
        assert result.ret == 1
        result.stdout.fnmatch_lines(
            ["E *AssertionError: mine", "ERROR: *cannot write *r.json: Is a directory"]
        )
        assert "report written" not in result.stdout.str()

    def test_a_file_that_cannot_be_written_and_nobody_to_say_so(self, run_tests):
        result = run_tests(
            self.SOURCE + "\n            import os; os.mkdir('r.json')",
            *("--gradcheck-suite-report=r.json", "-p", "no:terminal"),
        )

        assert result.ret == 4
        result.stderr.fnmatch_lines(["*cannot write *r.json: Is a directory"])

    @pytest.mark.parametrize("method", ["open", "mkdir"])
    def test_a_folder_that_may_only_be_read(self, run_tests, pytester, method):
        """Root may write everywhere, so what the system says to others is said here."""
        pytester.makeconftest(f"""
            import errno
            import pathlib

            original = pathlib.Path.{method}

            def refuse(self, *args, **kwargs):
                if "locked" in self.parts:
                    raise PermissionError(errno.EACCES, "Permission denied", str(self))
                return original(self, *args, **kwargs)

            def pytest_configure(config):
                pathlib.Path.{method} = refuse

            def pytest_unconfigure(config):
                pathlib.Path.{method} = original
        """)

        result = run_tests(self.SOURCE, "--gradcheck-suite-report=locked/in/r.json")

        result.assert_outcomes(passed=1)
        assert result.ret == 4
        result.stdout.fnmatch_lines(
            ["ERROR: --gradcheck-suite-report: cannot write *r.json: Permission denied"]
        )


class TestSettings:
    def test_pyproject(self, run_tests, pytester):
        table = "[tool.gradcheck-suite.pytest]\nseed = 7\naudit = 'warning'\nfail-on = 'note'\n"
        pytester.makepyprojecttoml(table)

        by_pyproject = run_tests("def test(): pass")
        by_ini = run_tests("def test(): pass", gradcheck_suite_seed="8")
        by_flag = run_tests(
            "def test(): pass", "--gradcheck-suite-seed=9", gradcheck_suite_seed="8"
        )

        heads = [
            r.stdout.str().partition("gradcheck-suite: ")[2][:6]
            for r in (by_pyproject, by_ini, by_flag)
        ]
        assert heads == ["seed 7", "seed 8", "seed 9"]

    @pytest.mark.parametrize(
        ("table", "message"),
        [
            ("[tool.gradcheck-suite.pytst]\nseed = 1", "*'pytst'; did you mean 'pytest'?"),
            ("[tool.gradcheck-suite.pytest]\naudti = 'error'", "*'audti'; did you mean 'audit'?"),
            ("[tool.gradcheck-suite]\npytest = 1", "*pytest in * must be a table; got 1"),
            ("[tool.gradcheck-suite.pytest]\nseed = 'x'", "*seed under *must be an integer*'x'"),
            ("[tool.gradcheck-suite.pytest]\nmodules = [1]", "*modules under *must name packages*"),
            ("[tool.gradcheck-suite.pytest]\nmodules = 3", "*modules under *must name *; got 3"),
            ("[tool.gradcheck-suite.pytest]\nsummary = 'no'", "*summary under *true or false*"),
            ("[tool.gradcheck-suite.pytest", "*pyproject.toml is not TOML:*"),
        ],
    )
    def test_wrong_tables(self, run_tests, pytester, table, message):
        (pytester.path / "pyproject.toml").write_text(table)

        result = run_tests("", "-c", "tox.ini")  # or pytest itself reads it first

        assert result.ret == 4
        result.stderr.fnmatch_lines([message])

    def test_the_seed_of_a_test_follows_from_its_id(self, run_tests):
        source = """
            def test_seed(gradient_check, record_property):
                print("seed is", gradient_check(torch.sin, x()).summary["seed"])
        """

        def seed(*flags):
            return run_tests(source, "-s", *flags).stdout.str().partition("seed is ")[2].split()[0]

        first = seed()
        assert first == seed()
        assert first != seed("--gradcheck-suite-seed=1")
