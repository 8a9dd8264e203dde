"""What torch refuses or warns of is told at the line to change, also if the program catches it."""

# ruff: noqa: ARG004 - torch gives every forward and backward a ctx
from __future__ import annotations

import copy
import gc
import warnings
import weakref
from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import gradcheck_suite as gs
from gradcheck_suite.auditing.detectors.refusals import messages
from gradcheck_suite.auditing.detectors.refusals.messages import (
    advice_on_error,
    advice_on_warning,
)


def leaf(*shape):
    return torch.ones(*(shape or (3,)), requires_grad=True)


class ReturnsAView(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.mul(2).view(-1)  # <- here

    @staticmethod
    def backward(ctx, grad):
        return grad.view(2, 2) * 2


class ReturnsItsOwn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.mul(2).view(-1).clone()

    @staticmethod
    def backward(ctx, grad):
        return grad.view(2, 2) * 2


class WithMask(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        mask = (x > 0).to(x.dtype)
        ctx.save_for_backward(mask)
        return x * mask, mask

    @staticmethod
    def backward(ctx, grad):  # <- here
        return grad * ctx.saved_tensors[0]


class TakesTooMany(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad, other):  # <- here
        return grad * 2


class Sums(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad.sum(0)  # <- here


class NoBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2


class SavesANumber(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x, 3)
        return x * 3


class ReturnsANumber(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 3

    @staticmethod
    def backward(ctx, grad):
        return 3.0


def writes_a_chunk():
    first, second = (leaf() * 1).chunk(2)
    second *= first  # <- here


def writes_what_it_loops_over():
    for row in leaf(2, 2) * 1:
        row.add_(1)  # <- here


def writes_a_view_made_under_no_grad():
    x = leaf() * 1
    with torch.no_grad():
        head = x[:2]
    head.mul_(2)  # <- here


def writes_what_a_function_returned(function=ReturnsAView):
    y = function.apply(leaf(2, 2) * 1)
    y += 1
    y.sum().backward()


def backs_through_a_mask():
    out, mask = WithMask.apply(leaf())
    (out.sum() + mask.mean()).backward()


def asks_for_an_unused():
    torch.autograd.grad((leaf() * 2).sum(), leaf())  # <- here


def asks_for_what_requires_nothing():
    torch.autograd.grad((leaf() * 2).sum(), torch.ones(3))  # <- here


def loss_of_each_sample():
    loss = leaf() * 2
    loss.backward()  # <- here


def gradient_of_another_shape():
    (leaf() * 2).backward(torch.ones(2))  # <- here


def to_numpy():
    return (leaf() * 2).numpy()  # <- here


def whole_numbers():
    torch.tensor([1, 2]).requires_grad_()  # <- here


def parameter_of_whole_numbers():
    nn.Parameter(torch.tensor([1, 2]))  # <- here


def flag_of_a_computed():
    x = leaf() * 2
    x.requires_grad = False  # <- here


def copies_a_computed():
    copy.deepcopy({"best": leaf() * 2})  # <- here


def hook_on_a_constant():
    torch.ones(3).register_hook(print)  # <- here


def keeps_the_gradient_of_a_constant():
    torch.ones(3).retain_grad()  # <- here


def saves_an_inference_tensor():
    with torch.inference_mode():
        x = torch.ones(3)
    return leaf() * x  # <- here


def writes_an_inference_tensor():
    with torch.inference_mode():
        x = torch.ones(3)
    x.add_(1)  # <- here


def no_parameters():
    torch.optim.SGD([], lr=0.1)  # <- here


def a_parameter_in_two_groups():
    p = nn.Parameter(torch.ones(2))
    torch.optim.SGD([{"params": [p]}, {"params": [p]}], lr=0.1)  # <- here


def computes_something_else_again():
    calls = []

    def block(x):
        calls.append(1)
        return x.sin() if len(calls) > 1 else x.sin().exp()

    checkpoint(block, leaf(), use_reentrant=False).sum().backward()  # <- here


def grad_through_a_reentrant_checkpoint():
    x = leaf()
    y = checkpoint(torch.sin, x, use_reentrant=True)
    torch.autograd.grad(y.sum(), x)  # <- here


def gradient_that_does_not_fit():
    leaf().grad = torch.ones(7)  # <- here


def assigns_a_parameter():
    net = nn.Linear(2, 2)
    net.weight = net.weight * 2  # <- here


def detaches_a_chunk():
    (leaf(4) * 1).split(2)[0].detach_()  # <- here


def no_backward_at_all():
    NoBackward.apply(leaf()).sum().backward()  # <- here


def saves_a_number():
    SavesANumber.apply(leaf())  # <- here


def returns_a_number():
    ReturnsANumber.apply(leaf()).sum().backward()  # <- here


def indexes_a_scalar():
    loss = leaf().sum()
    loss.backward()
    return loss.data[0]  # <- here


def clips_what_is_not_finite():
    p = leaf()
    p.grad = torch.full((3,), float("nan"))
    nn.utils.clip_grad_norm_([p], 1.0, error_if_nonfinite=True)  # <- here


def transforms_a_plain_function():
    torch.func.grad(lambda x: Sums.apply(x).sum())(torch.ones(3))  # <- here


@pytest.mark.parametrize(
    ("refused", "code", "words"),
    [
        (writes_a_chunk, "GCS103", "one of the views that chunk, split"),
        (writes_what_it_loops_over, "GCS103", "a loop over a tensor"),
        (writes_a_view_made_under_no_grad, "GCS103", "made without recording (no_grad mode)"),
        (asks_for_an_unused, "GCS401", "that the result does not depend on"),
        (asks_for_what_requires_nothing, "GCS401", "a tensor that does not require grad"),
        (loss_of_each_sample, "GCS410", "expected a scalar loss"),
        (gradient_of_another_shape, "GCS410", "has another shape"),
        (to_numpy, "GCS410", "handed to numpy"),
        (whole_numbers, "GCS410", "a tensor of whole numbers"),
        (parameter_of_whole_numbers, "GCS410", "a tensor of whole numbers"),
        (flag_of_a_computed, "GCS410", "requires_grad of a computed tensor"),
        (copies_a_computed, "GCS410", "copied by deepcopy"),
        (hook_on_a_constant, "GCS410", "a tensor without a graph"),
        (keeps_the_gradient_of_a_constant, "GCS410", "a tensor without a graph"),
        (saves_an_inference_tensor, "GCS402", "made in inference mode"),
        (writes_an_inference_tensor, "GCS402", "made in inference mode"),
        (no_parameters, "GCS410", "was given no parameters"),
        (a_parameter_in_two_groups, "GCS410", "two groups of one optimizer"),
        (computes_something_else_again, "GCS410", "when it ran again in backward"),
        (grad_through_a_reentrant_checkpoint, "GCS410", "a reentrant checkpoint"),
        (gradient_that_does_not_fit, "GCS410", "does not fit its parameter"),
        (assigns_a_parameter, "GCS102", "the parameter `weight` was to be replaced"),
        (detaches_a_chunk, "GCS410", "expected detach()"),
        (no_backward_at_all, "GCS410", "a custom Function that has no backward"),
        (saves_a_number, "GCS410", "something that is no tensor"),
        (returns_a_number, "GCS410", "returned a float as a gradient"),
        (indexes_a_scalar, "GCS903", "expected item()"),
        (clips_what_is_not_finite, "GCS604", "NaN or infinite"),
        (transforms_a_plain_function, "GCS410", "under torch.func"),
    ],
)
def test_what_leaves_the_audit_is_explained_at_the_line(refused, code, words, line_of):
    with pytest.raises(Exception) as raised, gs.audit() as session:  # noqa: PT011 - any
        refused()
    found = [each for each in session.findings if each.evidence.get("refused")]
    assert [each.code for each in found] == [code]
    assert words in found[0].message
    assert found[0].location.line == line_of(refused)
    assert found[0].location.function.startswith(refused.__name__)
    assert found[0].evidence["count"] == 1
    expected = "warning" if code == "GCS102" else "error"  # the highest that this code may have
    assert found[0].severity.value == expected
    assert raised.value.__traceback__ is not None
    assert not [line for line in session.report.not_covered if "bug in" in line]


@pytest.mark.parametrize(
    ("refused", "place", "code", "words"),
    [
        (writes_what_a_function_returned, ReturnsAView, "GCS103", "ReturnsAView returns a view"),
        (backs_through_a_mask, WithMask, "GCS501", "as many gradients as forward has outputs"),
        (
            lambda: TakesTooMany.apply(leaf()).sum().backward(),
            TakesTooMany,
            "GCS501",
            "backward of TakesTooMany does not take as many",
        ),
        (
            lambda: Sums.apply(leaf(3, 2)).sum().backward(),
            Sums,
            "GCS601",
            "input 0 that does not fit it (got [2] but expected shape",
        ),
    ],
)
def test_a_custom_function_is_told_where_it_is_written(refused, place, code, words, line_of):
    with pytest.raises((RuntimeError, TypeError)), gs.audit() as session:
        refused()
    (finding,) = session.findings
    assert finding.code == code
    assert words in finding.message
    assert finding.location.line == line_of(place)
    assert [each.message for each in finding.related] == ["torch refuses here"]


def test_a_function_that_returns_its_own_memory(audited):
    assert not audited(lambda: writes_what_a_function_returned(ReturnsItsOwn)).findings


class Hooked(nn.Module):
    def __init__(self, *, inplace):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.act = nn.SiLU(inplace=True) if inplace else nn.SiLU()  # <- here

    def forward(self, x):
        return self.act(self.conv(x)).sum()


def test_a_module_that_writes_what_a_hook_made_a_view(line_of):
    net = Hooked(inplace=True)
    net.conv.register_full_backward_hook(lambda *_: None)
    with pytest.raises(RuntimeError, match="is a view"), gs.audit() as session:
        net(torch.ones(1, 1, 4, 4, requires_grad=True)).backward()
    (finding,) = session.findings
    assert finding.code == "GCS103"
    assert finding.location.line == line_of(Hooked.__init__)
    assert "a full backward hook" in finding.message
    assert [each.message for each in finding.related] == ["called here"]


def test_a_module_that_writes_nothing_under_a_hook(audited):
    net = Hooked(inplace=False)
    net.conv.register_full_backward_hook(lambda *_: None)
    x = torch.ones(1, 1, 4, 4, requires_grad=True)
    assert not audited(lambda: net(x).backward()).findings


def test_what_the_program_catches_is_told_as_less_certain(audited, only, line_of):
    def loop():
        for _ in range(3):
            with suppress(RuntimeError):
                writes_a_chunk()

    finding = only(audited(loop), "GCS103")
    assert finding.severity.value == "warning"
    assert finding.location.line == line_of(writes_a_chunk)
    assert finding.evidence["count"] == 3
    assert finding.evidence["lowered"] == ("the program caught the exception and went on",)


def test_the_cause_of_the_exception_that_leaves():
    def loop():
        try:
            writes_a_chunk()
        except RuntimeError as error:
            raise ValueError("training failed") from error

    with pytest.raises(ValueError, match="training failed"), gs.audit() as session:
        loop()
    (finding,) = session.findings
    assert (finding.code, finding.severity.value) == ("GCS103", "error")


def test_a_detector_that_knows_more_speaks_alone(line_of):
    def loop():
        y = leaf().exp()
        y.mul_(2)  # <- here
        y.sum().backward()

    with pytest.raises(RuntimeError, match="inplace operation"), gs.audit() as session:
        loop()
    (finding,) = session.findings
    assert finding.code == "GCS108"
    assert finding.location.line == line_of(loop)


def test_an_error_of_the_programs_own_is_its_own_business():
    with pytest.raises(RuntimeError, match="no such file"), gs.audit() as session:
        raise RuntimeError("no such file")
    assert not session.findings


def test_nothing_of_the_exception_is_kept():
    kept = []

    def loop():
        x = leaf() * 1
        kept.append(weakref.ref(x))
        with suppress(RuntimeError):
            x.unbind()[0].add_(1)

    with gs.audit() as session:
        loop()
        gc.collect()
        assert kept[0]() is None
    assert [each.code for each in session.findings] == ["GCS103"]


# Warnings


def volatile():
    torch.autograd.Variable(torch.ones(2), volatile=True)  # <- here


def hook_of_the_old_kind():
    net = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    net.register_backward_hook(lambda *_: None)
    net(torch.ones(1, 2)).sum().backward()  # <- here


def broadcasts_the_target():
    return nn.functional.mse_loss(leaf(4, 1), torch.ones(4))  # <- here


def copies_a_tensor():
    return torch.tensor(leaf())  # <- here


def a_parameter_twice_in_a_group():
    p = nn.Parameter(torch.ones(2))
    torch.optim.SGD([p, p], lr=0.1)  # <- here


def hook_without_inputs():
    net = nn.Embedding(2, 2)
    net.register_full_backward_hook(lambda *_: None)
    net(torch.tensor([0])).sum().backward()  # <- here


@pytest.mark.parametrize(
    ("warned", "code", "severity", "words"),
    [
        (volatile, "GCS902", "warning", "which torch ignores"),
        (hook_of_the_old_kind, "GCS410", "warning", "a backward hook of the old kind"),
        (broadcasts_the_target, "GCS410", "warning", "have different shapes"),
        (copies_a_tensor, "GCS410", "note", "made a copy without its graph"),
        (a_parameter_twice_in_a_group, "GCS410", "warning", "stands twice in one group"),
        (hook_without_inputs, "GCS410", "note", "torch warns here: Full backward hook is firing"),
    ],
)
def test_torchs_own_warning_is_a_finding_at_its_line(warned, code, severity, words, line_of):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        warned()
    if not told:
        pytest.skip(f"this torch does not warn of `{warned.__name__}`")
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        with gs.audit() as session:
            warned()
    assert recorded
    found = [each for each in session.findings if "torch" in each.evidence]
    assert [(each.code, each.severity.value) for each in found] == [(code, severity)]
    assert words in found[0].message
    assert found[0].location.line == line_of(warned)


@pytest.mark.parametrize(
    "words",
    ["the gradient server is slow", "torch.load with weights_only", "GradScaler is not enabled"],
)
def test_warnings_of_the_programs_own_are_its_own(words):
    with warnings.catch_warnings(record=True), gs.audit() as session:
        warnings.simplefilter("always")
        warnings.warn(words, stacklevel=1)
    assert not session.findings


def test_a_scaler_may_have_left_the_first_step_out():
    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    with warnings.catch_warnings(record=True), gs.audit() as session:
        warnings.simplefilter("always")
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(net(torch.full((1, 2), 1e3)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
    assert [each.severity.value for each in session.findings if each.code == "GCS306"] == ["note"]


# Words of other versions of torch


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Output 1 of SplitBackward0 is a view and is being modified inplace. This", "GCS103"),
        ("Output 0 of UnbindBackward0 is a view and is being modified inplace.", "GCS103"),
        ("Output 0 of BackwardHookFunctionBackward is a view and is being modified in", None),
        (
            "Output 0 of BackwardHookFunctionBackward is a view and is being modified inplace",
            "GCS103",
        ),
        ("One of the differentiated Tensors appears to not have been used in the graph.", "GCS401"),
        ("The differentiated Tensor at index 3 appears to not have been used in", "GCS401"),
        ("element 0 of tensors does not require grad and does not have a grad_fn", "GCS401"),
        ("element 0 of variables does not require grad and does not have a grad_fn", "GCS401"),
        ("Trying to backward through the graph a second time (or directly access", "GCS208"),
        ("a view of a leaf Variable that requires grad is being used in an in-place", "GCS101"),
        ("can't optimize a non-leaf Tensor", "GCS102"),
        ("unscale_() has already been called on this optimizer since the last update().", "GCS310"),
        ("No inf checks were recorded for this optimizer.", "GCS310"),
        ("Attempting to unscale FP16 gradients.", "GCS310"),
        ("Function MmBackward0 returned an invalid gradient at index 1 - expected dev", "GCS601"),
        ("Function 'SqrtBackward0' returned nan values in its 0th output.", "GCS604"),
        ("Legacy autograd function with non-static forward method is deprecated.", "GCS502"),
        ("Some elements marked as dirty during the forward method were not returned", "GCS503"),
        ("A view was created in inference mode and is being modified inplace in normal", "GCS103"),
        ("Setting requires_grad=True on inference tensor outside InferenceMode is not", "GCS402"),
        ("Expected to have finished reduction in the prior iteration before starting", "GCS403"),
        ("Expected to mark a variable ready only once. This error is caused by", "GCS410"),
        ("Checkpointing is not compatible with .grad() or when an `inputs` parameter", "GCS410"),
        ("assigned grad has data of a different size", "GCS410"),
        ("attempting to assign a gradient to a tensor that has data of a different type", "GCS410"),
        ("trying to differentiate twice a function that was marked with @once_differ", None),
        (
            "trying to differentiate twice a function that was marked with @once_differentiable",
            "GCS410",
        ),
        ("derivative for aten::nextafter is not implemented", "GCS410"),
        ("the derivative for 'target' is not implemented.", "GCS410"),
        ("the derivative of 'index_fill' is not implemented.", "GCS410"),
        ("Found dtype Double but expected Float", "GCS410"),
        ("grad can be computed only for real scalar outputs but got torch.complex64", "GCS410"),
        ("The total norm of order 2.0 for gradients from `parameters` is non-finite, so", "GCS604"),
        ("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)", None),
        ("CUDA out of memory. Tried to allocate 20.00 MiB", None),
    ],
)
def test_the_words_of_each_version(text, code):
    meanings = list(advice_on_error(text, in_backward=True))
    assert next((each.entry.code for each, _ in meanings), None) == code
    for advice, groups in meanings:
        assert "{" not in advice.words.format(**groups)


def test_a_mixed_dtype_is_autograds_business_in_backward_alone():
    assert not list(advice_on_error("Found dtype Double but expected Float", in_backward=False))


@pytest.mark.parametrize(
    ("text", "from_torch", "known"),
    [
        ("Using non-full backward hooks on a Module that does not return a single", True, True),
        ("Detected call of `lr_scheduler.step()` before `optimizer.step()`.", True, True),
        ("Converting a tensor with requires_grad=True to a scalar may lead to", True, True),
        (
            "Error detected in SqrtBackward0. Traceback of forward call: loss.backward()",
            True,
            False,
        ),
        ("torch.cuda.amp.GradScaler(args...) is deprecated.", True, False),
        ("something about gradients", False, False),
    ],
)
def test_the_words_of_warnings(text, from_torch, known):
    assert (advice_on_warning(text, from_torch=from_torch) is not None) is known


def test_every_sentence_says_what_was_expected():
    for advice in (*messages._ERRORS, *messages._WARNINGS):
        assert "expected" in advice.words
        assert not advice.words.endswith(".")
