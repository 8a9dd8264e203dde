"""``gradient_check.accumulation`` in tests of a user."""

from __future__ import annotations

LOOP = """
    def make():
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(state, batches, accumulation_steps, divisor=None):
        model, optimizer = state
        for index, x in enumerate(batches):
            loss = model(x).pow(2).mean() / (divisor or accumulation_steps)
            loss.backward()  # here
            if (index + 1) % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    def not_divided(*arguments):
        loop(*arguments, divisor=1)

    batch = torch.randn(8, 3)
"""


def test_the_test_fails_with_the_line_of_the_backward(run_tests):
    result = run_tests(
        LOOP
        + """
    def test_right(gradient_check):
        report = gradient_check.accumulation(make, loop, batch)
        assert report.summary["micro_batches"] == 4

    def test_wrong(gradient_check):
        gradient_check.accumulation(make, not_divided, batch, micro_batches=2)

    def test_of_an_object(gradient_check):
        model, optimizer = make()
        gradient_check.accumulation((model, optimizer), loop, batch)
        assert model.weight.grad is None

    @pytest.mark.autograd_audit
    def test_inside_of_an_audit(gradient_check):
        gradient_check.accumulation(make, loop, batch)
    """
    )
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*error GCS311 accumulation-mismatch*",
            "*2 times the gradient of the full batch*",
            "*loss.backward()  # here*",
        ]
    )
    assert "check_accumulation(make" not in result.stdout.str()


def test_the_report_is_returned_or_another_severity_fails(run_tests):
    result = run_tests(
        LOOP
        + """
    def test_report(gradient_check):
        report = gradient_check.accumulation(make, not_divided, batch, check=False)
        assert [finding.rule for finding in report.findings] == ["accumulation-mismatch"]

    def noisy(state, batches, accumulation_steps):
        model, optimizer = state
        for index, x in enumerate(batches):
            noise = torch.nn.functional.dropout(torch.ones(1), 0.5)
            (model(x).mean() * (noise + torch.rand(())) / accumulation_steps).backward()
            if (index + 1) % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    def test_note(gradient_check):
        gradient_check.accumulation(make, noisy, batch)

    def test_note_that_fails(gradient_check):
        gradient_check.accumulation(make, noisy, batch, fail_on="note")

    @pytest.mark.gradient_check(fail_on="note")
    def test_note_that_fails_by_its_marker(gradient_check):
        gradient_check.accumulation(make, noisy, batch)
    """
    )
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["*note GCS311*can't be compared with that of the full batch*"])


def test_what_is_asked_wrongly_is_told_at_the_line_of_the_test(run_tests):
    result = run_tests(
        LOOP
        + """
    def test_number(gradient_check):
        gradient_check.accumulation(make, loop, batch, micro_batches=3)

    def test_of_the_user(gradient_check):
        gradient_check.accumulation(make, lambda *_: 1 / 0, batch)
    """,
        "--tb=short",
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "*in test_number",
            "*gradient_check.accumulation(make, loop, batch, micro_batches=3)",
            "*a batch of 8 can't be cut into 3 equal micro-batches; give a batch of 6, or split=",
            "*in <lambda>",
            "*ZeroDivisionError: division by zero",
        ]
    )
    assert "accumulation/runs.py" not in result.stdout.str()
