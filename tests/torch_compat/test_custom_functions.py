"""Every call of a custom Function is seen, and everything is put back."""

# ruff: noqa: ARG004, ARG005, PLW0108 - they have to take what they do not use; a bound apply differs
from __future__ import annotations

import pytest
import torch
from torch.autograd.function import BackwardCFunction
from torch.utils.checkpoint import CheckpointFunction, checkpoint

from gradcheck_suite._torch_compat import around_custom_functions, without_reentrant_checkpoints


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2.0

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * 2.0


class Inherited(Double):
    pass


class Split(torch.autograd.Function):
    @staticmethod
    def forward(x, factor):
        return x * factor

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.factor = inputs

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.factor, None


BOUND_BEFORE = Double.apply


def seen_in(run):
    seen = []

    def around(cls, inputs, proceed):
        seen.append((cls, inputs, torch.is_grad_enabled()))
        return proceed()

    with around_custom_functions(around):
        result = run()
    return seen, result


@pytest.mark.parametrize(
    ("function", "call", "rest"),
    [
        (Double, Double.apply, ()),
        (Double, lambda x: Double.apply(x), ()),
        (Double, BOUND_BEFORE, ()),
        (Inherited, lambda x: Inherited.apply(x), ()),
        (Split, lambda x: Split.apply(x, 2.0), (2.0,)),
    ],
)
def test_a_call_is_seen_with_its_inputs_however_apply_was_reached(function, call, rest):
    x = torch.ones(3, requires_grad=True)
    seen, result = seen_in(lambda: call(x))
    ((cls, inputs, records),) = seen
    assert cls is function
    assert inputs[0] is x
    assert inputs[1:] == rest
    assert records
    result.sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0))


def test_a_class_that_inherits_its_forward_is_seen_once():
    x = torch.ones(1, requires_grad=True)
    seen, _ = seen_in(lambda: [Double.apply(x), Inherited.apply(x), Inherited.apply(x)])
    assert [cls for cls, _, _ in seen] == [Double, Inherited, Inherited]


def test_a_class_that_is_made_on_the_way_is_seen():
    def run():
        class Local(Double):
            pass

        return Local.apply(torch.ones(1, requires_grad=True))

    seen, _ = seen_in(run)
    assert [cls.__name__ for cls, _, _ in seen] == ["Local"]


def test_a_function_within_a_function_is_seen_inside_its_forward_without_grad():
    class Outer(Double):
        @staticmethod
        def forward(ctx, x):
            return Double.apply(x)

    seen, _ = seen_in(lambda: Outer.apply(torch.ones(1, requires_grad=True)))
    assert [(cls.__name__, records) for cls, _, records in seen] == [
        ("Outer", True),
        ("Double", False),
    ]


def test_grad_mode_is_that_of_the_caller():
    def run():
        with torch.no_grad():
            Double.apply(torch.ones(1, requires_grad=True))

    seen, _ = seen_in(run)
    assert [records for _, _, records in seen] == [False]


def test_forward_runs_as_it_does_alone():
    modes = []

    class Noting(Double):
        @staticmethod
        def forward(ctx, x):
            modes.append((torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()))
            return x * 2.0

    x = torch.ones(1, requires_grad=True)
    Noting.apply(x)
    seen_in(lambda: Noting.apply(x))
    assert modes[0] == modes[1]


def test_functions_of_torch_itself_are_left_alone():
    x = torch.ones(2, requires_grad=True)
    seen, _ = seen_in(lambda: checkpoint(torch.sin, x, use_reentrant=True))
    assert seen == []


def test_everything_is_put_back_also_after_an_error_and_from_within():
    before = vars(Double)["forward"], vars(BackwardCFunction).get("__init__")

    def fail(cls, inputs, proceed):
        with around_custom_functions(lambda cls, inputs, proceed: proceed()):
            Inherited.apply(inputs[0])
        raise ValueError("stop")

    with around_custom_functions(fail), pytest.raises(ValueError, match="stop"):
        Double.apply(torch.ones(1, requires_grad=True))
    assert (vars(Double)["forward"], vars(BackwardCFunction).get("__init__")) == before
    assert "forward" not in vars(Inherited)


def test_reentrant_checkpoints_run_as_if_they_were_not_there():
    before = vars(CheckpointFunction).get("apply")
    x = torch.ones(2, requires_grad=True)
    kept = False
    with without_reentrant_checkpoints(lambda: kept):
        assert checkpoint(torch.sin, x, use_reentrant=True).grad_fn.name() == "SinBackward0"
        kept = True
        y = checkpoint(torch.sin, x, use_reentrant=True)
    assert y.grad_fn.name() == "CheckpointFunctionBackward"
    assert vars(CheckpointFunction).get("apply") is before
