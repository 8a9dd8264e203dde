"""Each loop of the bank: the mistake is found, once, at its line; correct ones pass in silence."""

from __future__ import annotations

import inspect
import warnings

import pytest

from gradcheck_suite.findings import Severity
from tests.auditing.loops import (  # noqa: F401 - they fill the bank
    adversaries,
    agents,
    augmentations,
    averages,
    below,
    by_hand,
    checkpoints,
    clipping,
    computed_weights,
    copies,
    evaluations,
    everyday,
    frozen_statistics,
    guards,
    later_runs,
    loads,
    order,
    owners_and_modes,
    parts,
    rates,
    resumes,
    scaling,
    schedules,
    seeds,
    sixteen_bits,
    surroundings,
    swapped_weights,
    terms,
    unmoved,
    unused,
)
from tests.auditing.loops.bank import BUGGY, CLEAN

_REFUSALS = ("scale", "inf checks", "update()", "nested_tensorlist")


def run_quietly(loop):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            loop()
        except (AssertionError, RuntimeError) as error:
            assert any(word in str(error) for word in _REFUSALS), error  # noqa: PT017 - torch refuses some


@pytest.mark.parametrize("name", BUGGY)
@pytest.mark.sampled(every=4)
def test_the_mistake_is_found(audited, line_of, name):
    code, loop = BUGGY[name]
    session = audited(lambda: run_quietly(loop))
    found = [finding for finding in session.findings if finding.code == code]
    assert found, session.findings
    for finding in found:
        assert finding.evidence.get("refused", False) == ("torch refuses" in finding.message)
    if "# <- here" in inspect.getsource(loop):
        assert {finding.location.line for finding in found} == {line_of(loop)}, found
    loud = session.report.at_least(Severity.WARNING)
    assert {f.code for f in loud} <= {code, *ALSO.get(name, ())}


ALSO = {
    "head_replaced": ["GCS308"],
    "model_built_again": ["GCS307"],
    "state_assigned": ["GCS307"],
    "copy_trained_in_place_of_the_model": ["GCS307"],
    "whole_model_loaded_after_its_optimizer_in_a_resumed_run": ["GCS307"],
    "agent_whose_policy_is_made_again_for_the_next_task": ["GCS307"],
    "second_fold_trains_a_copy": ["GCS307"],
}
"""What else is true of a loop."""


@pytest.mark.parametrize("name", ALSO)
def test_parameters_that_nobody_trains_are_told_of_once(audited, name):
    session = audited(lambda: run_quietly(BUGGY[name][1]))
    codes = [finding.code for finding in session.findings]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("name", CLEAN)
@pytest.mark.sampled(every=4)
def test_nothing_is_said_but_notes(audited, name):
    session = audited(lambda: run_quietly(CLEAN[name]))
    assert session.report.at_least(Severity.WARNING) == ()
    assert len(session.findings) <= 1


def test_the_bank_is_large_enough():
    assert len(BUGGY) >= 50
    assert len(CLEAN) >= 80


WORDS = {
    "beginning_loaded_after_each_epoch": (
        "warning",
        "a weight of Adam was set back to what it had been before the first step, 3 times, and",
    ),
    "copies_in_the_groups_after_the_moments_were_loaded": (
        "warning",
        "Adam was given the states of 4 parameters, none of which it owned any more at its first",
    ),
    "optimizer_made_again_after_its_moments_were_loaded": (
        "warning",
        "Adam was given a state and never stepped after that: another Adam took 3 steps of its",
    ),
    "heads_in_another_order_in_the_resumed_run": (
        "warning",
        "`heads.news.bias` got the moments of `heads.news.weight`, `heads.news.bias`, `heads.mail",
    ),
    "inner_loop_that_runs_the_original": (
        "warning",
        "of optimizers that are made anew, and none of them ever found a gradient",
    ),
    "average_made_before_a_load": ("warning", "copies of them from before the load"),
    "block_that_rectifies_what_it_adds": (
        "warning",
        "`x` is written in place by relu_() inside the call of `block`, and read again after it",
    ),
    "noise_in_the_target": (
        "warning",
        "`given`, which `noise` returns, and `wanted` are one memory",
    ),
    "windows_scaled_in_the_series": ("warning", "`window` lies in the memory of `self.values`"),
    "computed_weight_filled": (
        "warning",
        "normal_() set a weight here, 2 times, which weight_norm computes from other parameters",
    ),
    "features_dropped_in_place": ("warning", "writes into the input `x` of Sequential in memory"),
    "resumed_without_the_schedule": (
        "warning",
        "AdamW was restored at a learning rate of 0.002857",
    ),
    "schedule_made_after_its_optimizer_was_restored": (
        "warning",
        "AdamW steps at a learning rate of 0.01, where its LambdaLR began, and the state",
    ),
    "resumed_without_the_optimizer_of_the_schedule": (
        "warning",
        "leaves the rates of the optimizer as they are; expected a step at 0.002857",
    ),
    "loaded_after_the_optimizer_had_copied_the_weights": (
        "warning",
        "were loaded, and after the first step what SGD keeps for them stood there",
    ),
    "share_of_zero_for_a_parameter_of_zeros": (
        "warning",
        "_ByNorm.step() never changed 2 parameters (`model[0].bias`, `model[2].bias`), though",
    ),
    "rule_that_leaves_out_a_group": (
        "warning",
        "in each of 6 steps looked at and the learning rate was above 0, and moved 2 others; exp",
    ),
    "both_factors_of_an_adapter_start_at_zero": (
        "warning",
        "2 parameters (`model.down.weight`, `model.up.weight`) are all zeros and multiplied by",
    ),
    "critic_steps_after_the_backward_of_the_actor": (
        "warning",
        "of a loss for which Adam had been cleared added to",
    ),
    "workers_whose_gradients_are_shared_and_never_cleared": (
        "error",
        "of 4 parameters that no optimizer owns and that Adam.step() had used already",
    ),
    "numbers_written_over_nan": ("warning", "infinity reached parameters in 2 backward()"),
    "hooks_of_parameters_that_write_over_nan": ("warning", "what is replaced trains nothing"),
    "penalty_as_a_number": ("warning", "`0.1 * penalty` adds to the value of the loss and nothing"),
    "divergence_without_recording": ("warning", "recording is off where it is computed"),
    "rate_that_is_rounded": ("warning", "the slope of `torch.round(...)` is zero everywhere"),
    "zero_between": ("error", "cleared before SGD.step() could use them, so that it found none, 8"),
    "zero_on_each_micro_batch": ("warning", "the last of 4 backward() calls"),
    "zero_on_each_micro_batch_of_two_losses": ("warning", "the last 2 of 8 backward() calls"),
    "no_backward": ("error", "SGD.step() ran 8 times without a gradient"),
    "step_doubled": ("warning", "Adam.step() used the gradients that its last step had used"),
    "clip_after_step": ("error", "clipped gradients that SGD.step() had used already"),
    "clip_each_micro_batch": ("warning", "clipped the running sum again and again"),
    "clip_without_unscale": ("error", "still multiplied by the loss scale, in 8 steps of SGD"),
    "dropout_without_its_generator": (
        "warning",
        "with other random numbers (torch's generator), 8",
    ),
    "layers_dropped_by_python": ("warning", "with other random numbers (Python's generator)"),
    "noise_of_numpy": ("warning", "with other random numbers (NumPy's generator)"),
    "evaluated_between_forward_and_backward": ("warning", "in another mode"),
    "stepped_between_forward_and_backward": ("error", "with 4 parameters changed since, 4 times"),
    "average_without_buffers": ("warning", "running mean 0 and variance 1 that it was made with"),
    "average_that_is_not_taken_back": ("warning", "and training went on from them, 2 times"),
    "scheduler_first": ("warning", "StepLR.step() ran before the first SGD.step()"),
    "head_replaced": ("error", "(`model[2].weight`, `model[2].bias`) that no optimizer owns"),
    "layer_added_late": ("warning", "though Adam trains other parameters of the same model"),
    "model_built_again": ("warning", "SGD owns 4 parameters that no loss depends on"),
    "generator_first": ("warning", "which SGD had stepped on, left to Adam"),
    "scaled_loss_unused": ("error", "divided gradients of SGD by the loss scale"),
    "inference_mode_in_training_mode": ("warning", "with BatchNorm1d in training mode"),
    "rate_of_a_group_rounded_to_zero": ("warning", "`param_groups[0]` (2 parameters: `model[0].we"),
    "rate_that_forward_overwrites": ("warning", "went from 0.3 to 0 when `model` was called in ev"),
    "range_that_evaluation_moves": ("warning", "training goes on with a statistic of the evaluat"),
    "features_that_hooks_kept_without_recording": ("warning", "recording is off where it is comp"),
    "eval_for_ever": ("warning", "and 6 steps followed without train(): its Dropout"),
}


@pytest.mark.parametrize("name", WORDS)
def test_severity_and_words(audited, name):
    code, loop = BUGGY[name]
    session = audited(lambda: run_quietly(loop))
    (finding,) = [finding for finding in session.findings if finding.code == code]
    severity, words = WORDS[name]
    assert finding.severity.value == severity
    assert words in finding.message
    assert finding.hint
