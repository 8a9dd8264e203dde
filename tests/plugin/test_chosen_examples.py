"""Examples of packages that a command line names, and what of a package is looked at."""

from __future__ import annotations

import textwrap

import pytest

LAYERS = """
    import gradcheck_suite
    import torch

    class Layer(torch.nn.Linear):
        def __init__(self):
            super().__init__(3, 2)

    @gradcheck_suite.example(lambda: torch.randn(2, 3), name="two")
    @gradcheck_suite.example(lambda: torch.randn(1, 3), name="one")
    class Twice(Layer): ...

    class Outer:
        @gradcheck_suite.example(lambda: torch.randn(2, 3))
        class Inner(Layer): ...
"""
TESTS = """
    def test_one(): pass
    def test_two(): pass
"""


@pytest.fixture
def package(pytester):
    """Write a package, from the text of each of its files."""

    def write(name, *, namespace=False, **files):
        if not namespace:
            files["__init__"] = ""
        for file, text in files.items():
            path = pytester.path / name / f"{file}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        pytester.syspathinsert()
        return name

    return write


def outcome(result):
    """Return the ids of the tests that passed, of a run with ``-rA``."""
    return [
        line.removeprefix("PASSED ").partition("::")[2]
        for line in result.outlines
        if line.startswith("PASSED ")
    ]


class TestIds:
    @pytest.mark.parametrize(
        ("ids", "chosen"),
        [
            (["layers.Outer.Inner"], ["layers.Outer.Inner"]),
            (["layers::Outer::Inner"], ["layers.Outer.Inner"]),
            (["layers.Twice"], ["layers.Twice[one]", "layers.Twice[two]"]),
            (["layers.Twice[two]"], ["layers.Twice[two]"]),
            (
                ["layers.Twice[one]", "layers.Outer"],
                ["layers.Twice[one]", "layers.Outer.Inner"],
            ),
        ],
    )
    def test_an_example_is_chosen_as_a_test_is(self, run_tests, package, ids, chosen):
        # Examples are known by name for as long as the process lives.
        name = package(f"pkgchosen{len(''.join(ids))}", layers=LAYERS)

        result = run_tests(
            TESTS,
            f"--gradcheck-suite-modules={name}",
            "-rA",
            *(f"gradcheck-suite::{name}::{each}" for each in ids),
        )

        assert outcome(result) == [f"{name}::{each}" for each in chosen]

    @pytest.mark.slow
    def test_together_with_tests_and_in_workers(self, write_tests, pytester, package):
        package("pkgmixed", layers=LAYERS)
        write_tests(TESTS)
        arguments = [
            *("-p", "no:randomly", "-p", "no:asyncio", "-p", "no:cacheprovider", "-rA"),
            *("--gradcheck-suite-modules=pkgmixed", "gradcheck-suite::pkgmixed::layers.Outer"),
        ]

        alone = pytester.runpytest_subprocess(*arguments, "-n1")
        mixed = pytester.runpytest_subprocess(*arguments, "test_training.py::test_two")

        assert outcome(alone) == ["pkgmixed::layers.Outer.Inner"]
        assert outcome(mixed) == ["test_two", "pkgmixed::layers.Outer.Inner"]

    def test_an_id_that_none_has(self, run_tests, package):
        package("pkgnone", layers=LAYERS)

        result = run_tests(
            "", "--gradcheck-suite-modules=pkgnone", "gradcheck-suite::pkgnone::layers.Nobody"
        )

        assert result.ret == 4
        result.stderr.fnmatch_lines(
            ["*no example is called gradcheck-suite::pkgnone::layers.Nobody; to list them, *"]
        )


class TestRunsOfFiles:
    """Examples that a configuration file asks for, in runs that name files or tests."""

    @pytest.mark.parametrize(
        ("arguments", "examples"),
        [
            ((), 3),
            ((".",), 3),
            (("test_training.py",), 0),
            (("test_training.py::test_one",), 0),
            (("test_training.py", "."), 3),
            (("--pyargs", "test_training"), 3),
        ],
    )
    def test_they_are_left_out_and_the_header_says_so(
        self, run_tests, package, arguments, examples
    ):
        name = package(f"pkgfiles{len(''.join(arguments))}", layers=LAYERS)

        result = run_tests(TESTS, "-rA", *arguments, gradcheck_suite_modules=name)

        assert len([i for i in outcome(result) if i.startswith(f"{name}::")]) == examples
        said = f"examples of {name}, left out as files or tests are named" in result.stdout.str()
        assert said == (examples == 0)

    @pytest.mark.slow
    def test_test_paths_of_the_configuration_are_no_choice(self, run_tests, package):
        package("pkgpaths", layers=LAYERS)

        for workers in ((), ("-n1",)):
            result = run_tests(
                TESTS,
                *("-rA", *workers),
                gradcheck_suite_modules="pkgpaths",
                testpaths="test_training.py",
            )
            result.assert_outcomes(passed=5)

    def test_asked_for_on_the_command_line_they_stay(self, run_tests, package):
        package("pkgasked", layers=LAYERS)

        result = run_tests(TESTS, "--gradcheck-suite-modules=pkgasked", "test_training.py")

        result.assert_outcomes(passed=5)


class TestWhatIsLookedAt:
    def test_namespaces_are_gone_through(self, run_tests, package):
        package("pkgspace", namespace=True, **{"inner/deep/layers": LAYERS, "other/layers": LAYERS})

        result = run_tests("", "--gradcheck-suite-modules=pkgspace", "-rA")

        assert outcome(result)[::3] == [
            "pkgspace::inner.deep.layers.Twice[one]",
            "pkgspace::other.layers.Twice[one]",
        ]
        result.assert_outcomes(passed=6)

    def test_a_folder_that_may_be_no_part_is_named(self, run_tests, package, pytester):
        package("pkgbare", layers=LAYERS, **{"templates/layers": "raise OSError('no part')"})
        for folder in ("data", "__pycache__", "with-dash"):
            (pytester.path / "pkgbare" / folder).mkdir()

        result = run_tests("", "--gradcheck-suite-modules=pkgbare")

        result.assert_outcomes(passed=3)
        told = result.stdout.str().partition("left behind or left out")[2]
        assert "pkgbare: did not look into pkgbare.templates, which has no __init__.py" in told
        assert told.count("did not look into") == 1

    def test_a_part_that_leaves_grad_mode_off(self, run_tests, package):
        package("pkgoff", layers=LAYERS, off="import torch; torch.set_grad_enabled(False)")

        result = run_tests(
            """
            def test_grad_mode():
                assert torch.is_grad_enabled()
            """,
            "--gradcheck-suite-modules=pkgoff",
        )

        result.assert_outcomes(passed=4)
        result.stdout.fnmatch_lines(["pkgoff: its import left grad mode disabled; it was put back"])

    def test_circles_are_named(self, run_tests, package):
        package(
            "pkgcircle",
            layers=LAYERS,
            one="from pkgcircle.two import second; first = 1",
            two="from pkgcircle.one import first; second = 2",
        )

        result = run_tests("", "--gradcheck-suite-modules=pkgcircle")

        result.assert_outcomes(passed=3)
        result.assert_outcomes(passed=3)
        result.stdout.fnmatch_lines(["pkgcircle: could not import pkgcircle.one (ImportError: *"])


def test_what_can_not_be_made(run_tests, package):
    source = """
        import abc
        import dataclasses
        import functools
        import gradcheck_suite
        import torch

        def points():
            return torch.randn(2, 3)

        @gradcheck_suite.example(points)
        class Abstract(torch.nn.Module, abc.ABC):
            @abc.abstractmethod
            def forward(self, x): ...

        @gradcheck_suite.example(points, make=functools.partial(torch.nn.Linear, wrong=3))
        class Refused(torch.nn.Module): ...

        @gradcheck_suite.example(points, make=lambda: Data(3))
        @dataclasses.dataclass(eq=False)
        class Data(torch.nn.Module):
            size: int

            def __post_init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.ones(self.size))

            def forward(self, x, *, scale=1.0):
                return x * self.weight * scale

        @gradcheck_suite.example(lambda: {"x": points(), "scale": 2.0})
        class Named(Data):
            def __init__(self):
                super().__init__(3)
    """
    package("pkgmade", layers=source)

    result = run_tests("", "--gradcheck-suite-modules=pkgmade")

    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(
        [
            "*_ layers.Abstract _*",
            "UsageError: Abstract is abstract, and can't be made; give the example to a class *",
            "*_ layers.Refused _*",
            "TypeError: *unexpected keyword argument 'wrong'",
        ]
    )
    assert "modules.py" not in result.stdout.str()
