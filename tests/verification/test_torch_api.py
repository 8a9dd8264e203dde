from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import torch
from torch.autograd.gradcheck import GradcheckError

import gradcheck_suite as gs
from gradcheck_suite.errors import UsageError


class OneWrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        grad = grad_output * x
        grad[3] *= 2
        return grad_output * weight, grad


class CubeWithoutSecond(torch.autograd.Function):
    """Right at order 1; the gradient of its gradient is wrong."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 3 * x.detach() ** 2


class Tolerant(torch.autograd.Function):
    """sin, wrong by a relative error of 1e-4: within torch's tolerance."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * x.cos() * 1.0003


@pytest.mark.parametrize("name", ["gradcheck", "gradgradcheck"])
def test_the_signatures_are_torchs(name):
    ours = inspect.signature(getattr(gs, name)).parameters
    torchs = inspect.signature(getattr(torch.autograd, name)).parameters
    assert list(ours) == list(torchs)
    for key, parameter in torchs.items():
        assert ours[key].kind is parameter.kind
        if key not in {"eps", "atol", "rtol"}:
            assert ours[key].default == parameter.default


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*_vmap_internals:FutureWarning")  # torch 2.6 of itself
def test_right_gradients_pass(randn):
    x, weight = randn(4), randn(4)
    assert gs.gradcheck(torch.mul, (x, weight)) is True
    assert gs.gradcheck(torch.mul, [x, weight]) is True
    assert gs.gradcheck(torch.sin, x, fast_mode=True) is True
    assert gs.gradgradcheck(torch.mul, (x, weight)) is True
    assert gs.gradcheck(torch.mul, (x, weight), check_forward_ad=True, check_batched_grad=True)
    assert gs.gradgradcheck(torch.mul, (x, weight), check_fwd_over_rev=True)
    assert gs.gradgradcheck(torch.sin, x, torch.ones(4).double().requires_grad_())
    assert gs.gradgradcheck(torch.sin, x, gen_non_contig_grad_outputs=True)


@pytest.mark.parametrize("options", [{}, {"eps": 1e-6}, {"atol": 1e-5, "fast_mode": True}])
def test_the_message_names_entry_count_and_place(randn, options):
    with pytest.raises(GradcheckError) as caught:
        gs.gradcheck(OneWrong.apply, (randn(6), randn(6)), **options)
    message = str(caught.value)
    assert "Jacobian mismatch for output 0 with respect to input 1" in message
    assert "OneWrong.backward" in message
    assert "[3]`" in message
    assert "GCS601" in message
    assert f"{__file__}:" in message


def test_false_instead_of_an_exception(randn):
    inputs = (randn(6), randn(6))
    assert gs.gradcheck(OneWrong.apply, inputs, raise_exception=False) is False
    assert gs.gradcheck(OneWrong.apply, inputs, raise_exception=False, rtol=1e-3) is False
    assert gs.gradgradcheck(CubeWithoutSecond.apply, randn(3), raise_exception=False) is False


def test_order_2_is_told_apart(randn):
    assert gs.gradcheck(CubeWithoutSecond.apply, randn(3))
    with pytest.raises(GradcheckError, match="gradient of"):
        gs.gradgradcheck(CubeWithoutSecond.apply, randn(3))


def test_tolerances_decide_where_they_are_given(randn):
    x = randn(5)
    assert gs.gradcheck(Tolerant.apply, x, rtol=1e-2)
    assert torch.autograd.gradcheck(Tolerant.apply, x)
    with pytest.raises(GradcheckError):
        gs.gradcheck(Tolerant.apply, x)


def test_float32_needs_no_tolerances(randn):
    model = torch.nn.Linear(4, 3)
    x = randn(5, 4, dtype=torch.float32)
    with pytest.warns(UserWarning, match="double precision"):
        assert gs.gradcheck(model, x)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_the_contract_is_torchs(randn):
    x = randn(3)
    with pytest.raises(ValueError, match="require gradient"):
        gs.gradcheck(torch.sin, x.detach())
    with pytest.raises(AssertionError, match="check_forward_ad or check_backward_ad"):
        gs.gradcheck(torch.sin, x, check_backward_ad=False)
    with pytest.raises(AssertionError, match="check_fwd_over_rev or check_rev_over_rev"):
        gs.gradgradcheck(torch.sin, x, check_rev_over_rev=False)
    assert gs.gradcheck(torch.sin, x, check_backward_ad=False, check_forward_ad=True)
    with pytest.raises(UsageError, match="rtol must be a number"):
        gs.gradcheck(torch.sin, x, rtol="much")


def test_undefined_gradients_and_reentrancy_are_checked(randn):
    class Undefined(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x.clone()

        @staticmethod
        def backward(ctx, grad_output):  # noqa: ARG004
            if grad_output is None:
                raise RuntimeError("no gradient")
            return grad_output

    class Jitter(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # noqa: ARG004
            return x * 2

        @staticmethod
        def backward(ctx, grad_output):  # noqa: ARG004
            return grad_output * (2 + 1e-9 * float(torch.rand(())))

    x = randn(3)
    with (
        pytest.raises(GradcheckError, match="undefined"),
        pytest.warns(UserWarning, match="undefined"),
    ):
        gs.gradcheck(Undefined.apply, x)
    assert gs.gradcheck(Undefined.apply, x, check_undefined_grad=False)
    with pytest.raises(GradcheckError, match="reentrant"):
        gs.gradcheck(Jitter.apply, x)
    assert gs.gradcheck(Jitter.apply, x, nondet_tol=1e-5)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_inputs_follow_torch(randn):
    sparse = torch.eye(3, dtype=torch.float64).to_sparse().requires_grad_()
    assert gs.gradcheck(lambda x: x.to_dense(), sparse, masked=True)
    assert gs.gradcheck(lambda x: x.to_dense().sin(), sparse, masked=True)


def test_at_a_kink_the_points_beside_it_count_unless_tolerances_are_given():
    x = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(torch.relu, x, raise_exception=False) is False
    assert gs.gradcheck(torch.relu, x) is True
    assert gs.gradcheck(torch.relu, x, raise_exception=False, atol=1e-5) is False


def test_complex_inputs(randn):
    z = torch.randn(4, dtype=torch.complex128, requires_grad=True)
    assert gs.gradcheck(lambda z: z * z.conj(), z)
    assert gs.gradgradcheck(lambda z: z**2, z)


_WRONG_BY_TORCHS_OWN_CHECK = {
    "NumpySortAutogradFunction",
    "NumpyCubeNotComposableAutogradFunction",
    "CubeGenVmapAutogradFunction",
    "ScaleGradGenVmapAutogradFunction",
    "ZeroGradientsGenVmapAutogradFunction",
}


def _samples():
    from torch.testing._internal.autograd_function_db import autograd_function_db
    from torch.testing._internal.custom_op_db import custom_op_db

    return [
        pytest.param(entry, id=f"{source}-{entry.name}")
        for source, entries in (("function", autograd_function_db), ("op", custom_op_db))
        for entry in entries
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("entry", _samples())
@pytest.mark.sampled(every=5)
def test_the_custom_functions_of_torchs_own_database_pass(entry):
    if not entry.supports_autograd:
        pytest.skip(f"torch's own database has no gradient of {entry.name} here")
    for sample in entry.sample_inputs("cpu", torch.float64, requires_grad=True):
        tree = (sample.input, sample.args, sample.kwargs)
        leaves, spec = torch.utils._pytree.tree_flatten(tree)
        places = [
            index
            for index, value in enumerate(leaves)
            if isinstance(value, torch.Tensor) and value.requires_grad
        ]

        def function(*given, leaves=leaves, places=places, spec=spec, sample=sample):
            filled = list(leaves)
            for place, value in zip(places, given, strict=True):
                filled[place] = value
            first, args, kwargs = torch.utils._pytree.tree_unflatten(filled, spec)
            result = entry.op(first, *args, **kwargs)
            parts = torch.utils._pytree.tree_leaves(result)
            return tuple(part for part in parts if isinstance(part, torch.Tensor))

        given = tuple(leaves[place] for place in places)
        # Some are wrong on purpose, or in outputs that only their own tests use.
        right = torch.autograd.gradcheck(function, given, raise_exception=False)
        assert gs.gradcheck(function, given, raise_exception=False) is right
        assert right or entry.name in _WRONG_BY_TORCHS_OWN_CHECK
        if right and entry.supports_gradgrad:
            again = torch.autograd.gradgradcheck(function, given, raise_exception=False)
            assert gs.gradgradcheck(function, given, raise_exception=False) is again


def test_a_function_without_a_gradient_is_refused_by_its_name():
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    with pytest.raises(ValueError, match="expects at least one output to require gradient"):
        gs.gradgradcheck(lambda x: x.detach(), (x,))


def calls_of(check):
    """Count how often a check calls a function and its backward."""
    calls = {"forward": 0, "backward": 0}

    def function(x):
        calls["forward"] += 1
        result = x.sin()
        if result.requires_grad:
            result.grad_fn.register_prehook(lambda _: calls.update(backward=calls["backward"] + 1))
        return result

    x = torch.linspace(-1, 1, 8, dtype=torch.float64, requires_grad=True)
    assert check(function, (x,))
    return calls["forward"], calls["backward"]


@pytest.mark.one_torch
def test_the_drop_in_calls_as_often_as_the_page_says():
    def fast(function, inputs):
        return torch.autograd.gradcheck(function, inputs, fast_mode=True)

    page = (Path(__file__).parents[2] / "docs" / "verification-dropin.md").read_text("utf-8")
    told = re.search(r"calls a function (\d+) times and its\s+backward (\d+) times", page)
    torchs = re.search(r"fast\s+mode (\d+) and (\d+) times", page)
    assert calls_of(gs.gradcheck) == tuple(map(int, told.groups()))
    assert calls_of(fast) == tuple(map(int, torchs.groups()))


def test_an_error_in_all_of_a_large_gradient_that_fast_mode_passes_is_seen():
    def function(x):
        result = x.sin()
        if result.requires_grad:
            result.register_hook(lambda grad: None if grad is None else 1.01 * grad)
        return result

    x = torch.linspace(-1, 1, 10_000, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(function, (x,), fast_mode=True)
    with pytest.raises(GradcheckError, match=r"1\.01 times the numeric one"):
        gs.gradcheck(function, (x,))
