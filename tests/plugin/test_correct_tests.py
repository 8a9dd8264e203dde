"""Whole-suite mode over right tests that come close to mistakes, and over such mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

CORRECT = Path(__file__).parent / "suites" / "correct_idioms.py"


# One of them trains in several threads. Torch ends the process where one thread reads a `.grad`
# while the backward of another fills it (plain torch 2.13 too), and detectors still do so.
@pytest.mark.flaky(reruns=2)
@pytest.mark.slow
def test_correct_tests_pass(run_tests_apart, pytester):
    source = CORRECT.read_text()
    pytester.makepyfile(test_correct=source)

    # One of them compiles, for which torch loads modules that can be loaded once in a process.
    result = run_tests_apart("", "--gradcheck-suite-audit", "--gradcheck-suite-report=r.json")

    result.assert_outcomes(passed=source.count("\ndef test_") + 1)
    findings = json.loads((pytester.path / "r.json").read_text())["findings"]
    # Errors, but not of these tests: torch has refused what they expected it to, or they have
    # kept a handful of losses to compare them.
    errors = {f["rule"] for f in findings if f["severity"] == "error"}
    assert errors <= {
        "graph-kept",
        "graph-broken",
        "forward-under-no-grad",
        "leaf-inplace",
        "backward-arity",
        "backward-twice",
        "state-not-detached",
        "scaler-misuse",
    }
    kept = [f["evidence"]["tests"] for f in findings if f["rule"] == "graph-kept"]
    assert {name.rpartition("::")[2] for tests in kept for name in tests} == {
        "test_losses_in_a_list_go_down",
        "test_losses_from_a_helper_go_down",
    }


TRAINER = """
    import torch

    class Trainer:
        def __init__(self):
            self.model = torch.nn.Linear(3, 1)
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
            self.losses = []

        def step(self):
            self.optimizer.zero_grad()
            loss = self.model(torch.ones(2, 3)).pow(2).mean()
            loss.backward()
            self.optimizer.step()
            return loss

        def fit(self):
            for _ in range(5):
                self.losses.append(self.step())

    def fit():
        trainer, losses = Trainer(), []
        for _ in range(5):
            losses.append(trainer.step())
        return losses[-1].item()

    def forgets_backward():
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).sum()
            optimizer.step()
"""
MISTAKES = """
    from trainer import Trainer, fit, forgets_backward

    def test_an_attribute_of_the_library():
        trainer = Trainer()
        trainer.fit()

    def test_a_list_of_the_library():
        fit()

    def test_no_backward():
        forgets_backward()

    kept = []

    def test_what_outlives_the_test():
        trainer = Trainer()
        for _ in range(5):
            kept.append(trainer.step())

    def losses_of(trainer):
        losses = []
        for _ in range(5):
            losses.append(trainer.step())
        return losses

    @pytest.mark.autograd_audit
    def test_asks():
        assert len(losses_of(Trainer())) == 5

    def test_does_not_ask():
        assert len(losses_of(Trainer())) == 5

    def test_keeps_and_asserts_on_something_else():
        trainer, losses = Trainer(), []
        for _ in range(5):
            losses.append(trainer.step())
        assert trainer

    def test_keeps_in_a_function_of_its_file():
        losses_of(Trainer())

    def test_expects_torch_to_refuse():
        with pytest.raises(RuntimeError, match="does not require grad"):
            x().detach().sum().backward()

    def test_expects_and_asks(autograd_audit):
        with pytest.raises(RuntimeError, match="does not require grad"):
            x().detach().sum().backward()
"""


@pytest.mark.slow
def test_mistakes_of_the_code_under_test_fail(run_tests, pytester):
    pytester.makepyfile(trainer=TRAINER)
    pytester.syspathinsert()

    result = run_tests(MISTAKES, "--gradcheck-suite-audit", "-rf")

    result.assert_outcomes(passed=2, failed=8)
    result.stdout.fnmatch_lines_random(
        [
            "FAILED *::test_an_attribute_of_the_library - *",
            "FAILED *::test_a_list_of_the_library - *",
            "FAILED *::test_no_backward - *",
            "FAILED *::test_what_outlives_the_test - *",
            "FAILED *::test_asks - *",
            "FAILED *::test_keeps_and_asserts_on_something_else - *",
            "FAILED *::test_keeps_in_a_function_of_its_file - *",
            "FAILED *::test_expects_and_asks - *",
            (
                "test_training.py::test_does_not_ask: error GCS201 graph-kept: * keeps the graphs "
                "of * (test_training.py:*)"
            ),
            "test_training.py::test_expects_torch_to_refuse: error GCS401 *",
        ]
    )


def test_an_audit_that_a_fixture_holds_open_hears_all(run_tests):
    """Were another audit begun inside of it, it would hear nothing."""
    result = run_tests(
        """
        import gradcheck_suite

        @pytest.fixture
        def watched():
            with gradcheck_suite.audit() as session:
                yield session

        def test_looks_itself(watched):
            train(clear=False)
            assert [finding.rule for finding in watched.findings] == ["missing-zero-grad"]

        @pytest.mark.autograd_audit
        def test_asks_for_another(watched):
            train(clear=False)

        def test_inside_of_ours():
            with gradcheck_suite.audit() as session:
                train(clear=False)
            assert session.findings
        """,
        "--gradcheck-suite-audit",
    )

    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*_ test_asks_for_another _*",
            "*::test_looks_itself: was not audited: an audit was open already, and was left in *",
        ]
    )
