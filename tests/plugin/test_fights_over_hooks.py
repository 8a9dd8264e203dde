"""Other plugins that want torch's saved-tensors hooks for themselves, or for nobody."""

from __future__ import annotations

import pytest

from gradcheck_suite import _torch_compat

CONFTEST = """
    import pytest
    from torch.autograd import graph
    from gradcheck_suite import _torch_compat

    acted = []

    def pack(tensor):
        acted.append(tensor.shape)
        return tensor

    def is_untouched():
        disabled = _torch_compat.saved_tensors_hooks_are_disabled()
        return _torch_compat.top_saved_tensors_hooks() is None and not disabled

    def runs_alone(item):
        return item.name.startswith("test_alone")
"""
FIXTURE = """
    @pytest.fixture(autouse=True)
    def other_plugin(request):
        assert is_untouched()
        if runs_alone(request.node):
            yield
        else:
            with {enter}:
                yield
        assert is_untouched()
"""
WRAPPER = """
    @pytest.hookimpl(wrapper=True, {place}=True)
    def pytest_runtest_call(item):
        if runs_alone(item):
            return (yield)
        with {enter}:
            return (yield)

    @pytest.fixture(autouse=True)
    def nothing_is_left():
        assert is_untouched()
        yield
        assert is_untouched()
"""
HOOKS = "graph.saved_tensors_hooks(pack, lambda tensor: tensor)"
ON_CPU = "graph.save_on_cpu()"
DISABLED = "graph.disable_saved_tensors_hooks('not here')"

SUITE = """
    def not_audited(session):
        lines = [line for line in session.report.not_covered if line.startswith("saved tensors")]
        return bool(lines) and session.report.summary["saved_tensors"] == 0

    def test_trains():
        train()

    def test_forgets():
        train(clear=False)

    def test_audits_itself(autograd_audit):
        train()
        assert not_audited(autograd_audit.session)

    def test_audits_two_blocks(autograd_audit):
        for _ in range(2):
            with autograd_audit() as session:
                train()
            assert not_audited(session)

    @pytest.mark.autograd_audit
    def test_marked():
        train(clear=False)

    def test_alone(autograd_audit):
        train()
        assert not not_audited(autograd_audit.session)
        assert autograd_audit.session.report.summary["saved_tensors"] > 0
"""


def assert_nothing_is_left():
    assert _torch_compat.top_saved_tensors_hooks() is None
    assert not _torch_compat.saved_tensors_hooks_are_disabled()


@pytest.mark.parametrize(
    ("enter", "why"),
    [
        (HOOKS, "the saved-tensors hooks of conftest were active before the audit"),
        (ON_CPU, "the saved-tensors hooks of torch.autograd.graph were active before the audit"),
        (DISABLED, "saved-tensors hooks are disabled here"),
    ],
)
class TestFixture:
    """A fixture enters the other's hooks around each test but the last."""

    def test_every_test_is_audited(self, run_tests, pytester, enter, why):
        pytester.makeconftest(CONFTEST + FIXTURE.format(enter=enter))

        result = run_tests(SUITE, "--gradcheck-suite-audit")

        # What does not need hooks is found all the same.
        result.assert_outcomes(passed=4, failed=2)
        result.stdout.fnmatch_lines(
            [
                "error GCS301 *",
                f"*::test_trains and 4 more: saved tensors were not audited: {why}*",
            ]
        )
        assert_nothing_is_left()

    @pytest.mark.sampled(every=3)
    def test_tests_that_ask_are_audited(self, run_tests, pytester, enter, why):
        pytester.makeconftest(CONFTEST + FIXTURE.format(enter=enter))

        result = run_tests(SUITE)

        result.assert_outcomes(passed=5, failed=1)
        text = result.stdout.str()
        assert f"::test_audits_itself and 2 more: saved tensors were not audited: {why}" in text
        assert "::test_trains" not in text.partition("left behind or left out")[2]
        assert_nothing_is_left()


@pytest.mark.parametrize("enter", [HOOKS, DISABLED])
@pytest.mark.parametrize("place", ["tryfirst", "trylast"])
def test_around_our_audit_and_inside_of_it(run_tests, pytester, enter, place):
    pytester.makeconftest(CONFTEST + WRAPPER.format(enter=enter, place=place))

    result = run_tests(SUITE, "--gradcheck-suite-audit")

    result.assert_outcomes(passed=4, failed=2)
    assert_nothing_is_left()


def test_the_hooks_of_the_other_act_as_without_us(run_tests, pytester):
    pytester.makeconftest(CONFTEST + FIXTURE.format(enter=HOOKS))
    source = """
        from conftest import acted

        def test_trains():
            train()
            print("packed", len(acted), "tensors")
    """

    def packed(*flags):
        result = run_tests(source, "-s", *flags)
        result.assert_outcomes(passed=1)
        return int(result.stdout.str().partition("packed ")[2].split()[0])

    assert packed("--gradcheck-suite-audit") == packed("-p", "no:gradcheck_suite") > 0
