"""GCS309, GCS311 and GCS303 of steps that used other backwards than most of the same optimizer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradcheck_suite.findings import Severity


def trained():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def loss_of(model):
    return model(torch.randn(6, 4)).square().mean()


def checked_before_the_loop():
    model, optimizer = trained()
    loss_of(model).backward()  # <- here
    for _ in range(6):
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()


def checked_before_an_accumulating_loop():
    model, optimizer = trained()
    loss_of(model).backward()  # <- here
    for turn in range(16):
        (loss_of(model) / 2).backward()
        if turn % 2:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("loop", [checked_before_the_loop, checked_before_an_accumulating_loop])
def test_a_first_step_that_also_applies_an_earlier_backward_is_told(audited, only, line_of, loop):
    finding = only(audited(loop), "GCS309")
    assert finding.severity is Severity.WARNING
    assert finding.location.line == line_of(loop)
    assert "the first SGD.step() also applied the gradients that this backward() had" in (
        finding.message
    )


def test_the_same_line_before_the_loop_and_in_it_is_told(audited, only):
    def loop():
        model, optimizer = trained()

        def fill():
            loss_of(model).backward()

        fill()
        for _ in range(6):
            fill()
            optimizer.step()
            optimizer.zero_grad()

    finding = only(audited(loop), "GCS309")
    assert finding.evidence["backwards"] == 2
    assert finding.evidence["usual_backwards"] == 1


def test_gradients_set_to_zero_by_hand_lower_it(audited, only):
    def loop():
        model, optimizer = trained()
        loss_of(model).backward()
        for parameter in model.parameters():
            parameter.grad.zero_()
        for _ in range(6):
            loss_of(model).backward()
            optimizer.step()
            optimizer.zero_grad()

    finding = only(audited(loop), "GCS309")
    assert finding.severity is Severity.NOTE
    assert finding.evidence["lowered"] == (
        "its gradients may have been set to zero by hand in between",
    )


def first_window_too_short():
    model, optimizer = trained()
    for turn in range(33):
        loss_of(model).backward()
        if turn % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()


def left_over_from_an_epoch():
    model, optimizer = trained()
    for _ in range(4):
        for turn in range(14):
            loss_of(model).backward()
            if (turn + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()


@pytest.mark.parametrize(
    ("loop", "words"),
    [
        (first_window_too_short, "the first of 9 calls of SGD.step() used 1 backward() call, the"),
        (left_over_from_an_epoch, "3 of 12 calls of SGD.step() used 6 backward() calls, the"),
    ],
)
def test_windows_of_another_length_than_most_are_a_note(audited, only, loop, words):
    finding = only(audited(loop), "GCS311")
    assert finding.severity is Severity.NOTE
    assert words in finding.message


def one_step_without_a_backward():
    model, optimizer = trained()
    for turn in range(16):
        optimizer.zero_grad()
        loss = loss_of(model)
        if turn != 9:
            loss.backward()
        optimizer.step()


def one_step_on_old_gradients():
    model, optimizer = trained()
    for turn in range(16):
        if turn != 9:
            optimizer.zero_grad()
            loss_of(model).backward()
        optimizer.step()


@pytest.mark.parametrize("loop", [one_step_without_a_backward, one_step_on_old_gradients])
def test_one_step_of_many_without_a_backward_is_a_note(audited, only, loop):
    finding = only(audited(loop), "GCS303")
    assert finding.severity is Severity.NOTE
    assert finding.message == (
        "1 of 16 calls of SGD.step() came without a new backward() (first its step 10); the others "
        "used 1 each"
    )


def attack_left_in_the_weights():
    model, optimizer = trained()
    for _ in range(6):
        optimizer.zero_grad()
        x = torch.randn(6, 4, requires_grad=True)
        model(x).square().mean().backward()  # <- here
        model((x + 0.1 * x.grad.sign()).detach()).square().mean().backward()
        optimizer.step()


def test_an_attack_whose_gradients_are_applied_too_is_a_note(audited, only, line_of):
    finding = only(audited(attack_left_in_the_weights), "GCS309")
    assert finding.severity is Severity.NOTE
    assert finding.location.line == line_of(attack_left_in_the_weights)


def last_window_of_each_epoch_shorter():
    model, optimizer = trained()
    for _ in range(3):
        for turn in range(10):
            loss_of(model).backward()
            if turn % 4 == 3 or turn == 9:
                optimizer.step()
                optimizer.zero_grad()


def cleared_after_the_check():
    model, optimizer = trained()
    loss_of(model).backward()
    for _ in range(6):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()


def longer_windows_later():
    model, optimizer = trained()
    for length in (1, 1, 1, 1, 1, 2, 2, 2):
        for _ in range(length):
            loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()


def penalty_now_and_then():
    model, optimizer = trained()
    for turn in range(16):
        optimizer.zero_grad()
        loss_of(model).backward()
        if turn % 4 == 0:
            model[0].weight.square().sum().backward()
        optimizer.step()


def step_before_the_loop_for_the_scheduler():
    model, optimizer = trained()
    optimizer.step()
    for _ in range(6):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()


def attack_cleared():
    model, optimizer = trained()
    for _ in range(6):
        x = torch.randn(6, 4, requires_grad=True)
        model(x).square().mean().backward()
        optimizer.zero_grad()
        model((x + 0.1 * x.grad.sign()).detach()).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize(
    "loop",
    [
        last_window_of_each_epoch_shorter,
        cleared_after_the_check,
        longer_windows_later,
        step_before_the_loop_for_the_scheduler,
        attack_cleared,
    ],
)
def test_correct_programs_pass_in_silence(audited, loop):
    assert audited(loop).findings == ()


def train_with_a_second_backward(second, steps=24):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        model(torch.randn(6, 4)).square().mean().backward()
        if step % 4 == 0:
            second(model, optimizer)
        optimizer.step()
        optimizer.zero_grad()


def perturbed(model, _optimizer):
    model(torch.randn(6, 4)).abs().mean().backward()  # <- here


def perturbed_after_clearing(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(6, 4)).abs().mean().backward()


def test_steps_that_add_the_backward_of_another_line_are_noted(audited, only, line_of):
    finding = only(audited(lambda: train_with_a_second_backward(perturbed)), "GCS309")
    assert finding.severity is Severity.NOTE
    assert finding.location.line == line_of(perturbed)
    assert "6 of 24 calls of SGD.step() applied the sum of this backward()" in finding.message


def test_steps_that_clear_before_it_are_left_alone(audited):
    session = audited(lambda: train_with_a_second_backward(perturbed_after_clearing))
    assert "GCS309" not in {finding.code for finding in session.findings}


def test_a_penalty_that_comes_now_and_then_is_no_more_than_a_note(audited, only):
    assert only(audited(penalty_now_and_then), "GCS309").severity is Severity.NOTE


def updates(broken_off, *, clear_before=False):
    model, optimizer = trained()
    for turn in range(12):
        for part in range(3):
            if clear_before:
                optimizer.zero_grad()
            loss_of(model).backward()
            if broken_off and turn % 4 == 1 and part == 1:
                break  # <- here
            optimizer.step()
            optimizer.zero_grad()


def updates_by_a_function():
    model, optimizer = trained()

    def update(too_far):
        loss_of(model).backward()
        if too_far:
            return  # <- here
        optimizer.step()
        optimizer.zero_grad()

    for turn in range(16):
        update(too_far=turn % 5 == 3)


def test_an_update_that_is_broken_off_leaves_its_gradients(audited, only, line_of):
    finding = only(audited(lambda: updates(broken_off=True)), "GCS309")
    assert finding.severity is Severity.WARNING
    assert finding.location.line == line_of(updates)
    assert "3 of 30 calls of SGD.step() also applied what an earlier backward() had left" in (
        finding.message
    )
    assert [each.message for each in finding.related] == [
        "this backward's gradients are left",
        "this step applied them with the next",
    ]


def test_so_does_a_function_that_returns_before_its_step(audited, only, line_of):
    finding = only(audited(updates_by_a_function), "GCS309")
    assert finding.location.line == line_of(updates_by_a_function)


@pytest.mark.parametrize("options", [{"broken_off": False}, {"clear_before": True}])
def test_nothing_is_said_where_they_are_cleared(audited, options):
    session = audited(lambda: updates(**{"broken_off": True, **options}))
    assert not session.findings


def test_a_window_that_is_longer_now_and_then_is_a_note(audited, only):
    def loop():
        model, optimizer = trained()
        for turn in range(16):
            for part in range(2):
                loss_of(model).backward()
                if part or turn % 5 != 3:
                    break
            optimizer.step()
            optimizer.zero_grad()

    assert only(audited(loop), "GCS311").severity is Severity.NOTE


def window_over_epochs(clear, *, batches=11, window=4, counts_anew=False, epochs=6):
    model, optimizer = trained()
    last, turn = -1, 0
    for _ in range(epochs):
        clear(model, optimizer)  # <- here
        if counts_anew:
            last = turn - 1
        for _ in range(batches):
            (loss_of(model) / window).backward()
            if turn - last >= window:
                optimizer.step()
                optimizer.zero_grad()
                last = turn
            turn += 1


def by_optimizer(_model, optimizer):
    optimizer.zero_grad()  # <- here


def by_model(model, _optimizer):
    model.zero_grad()  # <- here


@pytest.mark.parametrize("clear", [by_optimizer, by_model])
@pytest.mark.parametrize("batches", [5, 11])
def test_a_window_that_is_cleared_in_its_middle_is_told(audited, only, line_of, clear, batches):
    finding = only(audited(lambda: window_over_epochs(clear, batches=batches)), "GCS302")
    assert finding.severity is Severity.WARNING
    assert finding.location.line == line_of(clear)
    assert "windows of 4 backward() calls, gradients of the first of them were cleared here" in (
        finding.message
    )
    assert finding.evidence["usual_backwards"] == 4


def nothing(_model, _optimizer):
    """Let what is left of an epoch go on."""


def test_the_rest_of_an_epoch_may_go_on(audited):
    session = audited(lambda: window_over_epochs(clear=nothing))
    assert not session.report.at_least(Severity.WARNING)


def test_the_rest_of_an_epoch_that_is_left_out_is_told(audited, only, line_of):
    finding = only(
        audited(lambda: window_over_epochs(clear=by_optimizer, counts_anew=True)), "GCS302"
    )
    assert finding.severity is Severity.WARNING
    assert finding.location.line == line_of(by_optimizer)
    assert "the last accumulation window is never finished" in finding.message


def test_a_batch_left_out_once_with_what_was_added_up_is_a_note(audited, only):
    def loop():
        model, optimizer = trained()
        for turn in range(24):
            if turn == 9:
                optimizer.zero_grad()
            loss_of(model).backward()
            if turn % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()

    assert only(audited(loop), "GCS302").severity is Severity.NOTE


def test_a_probe_between_the_steps_is_no_part_of_a_window(audited):
    def loop():
        model, optimizer = trained()
        for turn in range(24):
            if turn % 3 == 0:
                loss_of(model).backward()
                optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
            optimizer.zero_grad()

    assert not audited(loop).report.at_least(Severity.WARNING)
