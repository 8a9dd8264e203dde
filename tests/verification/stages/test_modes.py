"""Forward mode, batched gradients and compiled code are compared on request."""

# ruff: noqa: ARG004 - forward and backward have to take what they do not use
from __future__ import annotations

import shutil

import pytest
import torch
from torch import nn
from torch.autograd import Function

from gradcheck_suite import audit
from gradcheck_suite.verification import check_gradients


class Sine(Function):
    """Correct in every mode."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()

    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return t * x.cos()


class ForwardSign(Sine):
    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return -t * x.cos()


class ForwardRaises(Sine):
    @staticmethod
    def jvp(ctx, t):
        raise IndexError("tuple index out of range")


class NoForward(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()


class CountsFromFront(NoForward):
    """Right for one gradient; under vmap the batch is normalised with the rest."""

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if torch._C._functorch.is_legacy_batchedtensor(g):
            return 2 * g * x.cos()
        return g * x.cos()


class WrongVmap(Sine):
    """Its vmap forgets the cosine's argument."""

    generate_vmap_rule = False

    @staticmethod
    def vmap(info, in_dims, x):
        return 2 * x.sin(), 0


class WrongWhenCompiled(NoForward):
    """Right in eager mode only."""

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos() * (2 if torch.compiler.is_compiling() else 1)


@pytest.fixture
def x():
    return torch.linspace(-1.5, 2.0, 8, dtype=torch.float64).requires_grad_()


def test_modes_are_not_compared_unless_asked_for(x):
    report = check_gradients(ForwardSign, x)
    assert report.findings == ()
    assert not any("mode" in line for line in report.summary["covered"])


@pytest.mark.parametrize("function", [torch.sin, Sine, nn.Tanh()])
def test_forward_mode_agrees(x, function):
    report = check_gradients(function, x, forward_mode=True)
    assert report.findings == ()
    assert "forward mode: agrees with reverse mode" in report.summary["covered"]


def test_a_wrong_jvp_is_found_at_its_line(x):
    (finding,) = check_gradients(ForwardSign, x, forward_mode=True).findings
    assert finding.code == "GCS605"
    assert "so forward mode is wrong" in finding.message
    assert finding.location.function == "ForwardSign.jvp"


def test_a_jvp_that_raises_is_found(x):
    (finding,) = check_gradients(ForwardRaises, x, forward_mode=True).findings
    assert finding.code == "GCS605"
    assert "jvp of ForwardRaises raises" in finding.message


def test_no_forward_mode_is_not_covered(x):
    report = check_gradients(NoForward, x, forward_mode=True)
    assert report.findings == ()
    assert any(line.startswith("forward mode: ") for line in report.not_covered)


def test_a_wrong_backward_is_told_once(x):
    class BackwardSign(Sine):
        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return -g * x.cos()

    report = check_gradients(BackwardSign, x, forward_mode=True)
    assert [finding.code for finding in report.findings] == ["GCS601"]


def test_only_the_wrong_input_is_named_in_forward_mode(x):
    class Product(Function):
        @staticmethod
        def forward(x, y):
            return x * y

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g * y, g * x

        @staticmethod
        def jvp(ctx, t, s):
            x, y = ctx.saved_tensors
            return t * y + 2 * s * x

    y = (x.detach() + 2).requires_grad_()
    (finding,) = check_gradients(Product, (x, y), forward_mode=True).findings
    assert finding.evidence["input"] == "y"


@pytest.mark.parametrize("function", [torch.sin, Sine, NoForward, nn.Softmax(dim=0)])
def test_batched_gradients_agree(x, function):
    report = check_gradients(function, x, batched=True)
    assert report.findings == ()
    assert "batched gradients: agree with a loop" in report.summary["covered"]
    over_inputs = "vmap over the inputs: agrees with a loop" in report.summary["covered"]
    assert over_inputs == (function is Sine)


def test_a_backward_that_differs_under_vmap_is_found(x):
    (finding,) = check_gradients(CountsFromFront, x, batched=True).findings
    assert finding.code == "GCS606"
    assert finding.location.function == "CountsFromFront.backward"


def test_a_wrong_vmap_is_found(x):
    (finding,) = check_gradients(WrongVmap, x, batched=True).findings
    assert finding.code == "GCS606"
    assert "vmap of the function" in finding.message
    assert finding.location.function == "WrongVmap.vmap"


def test_a_backward_that_looks_at_values_is_not_covered(x):
    class Looks(NoForward):
        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * x.cos() if g.sum().item() == g.sum().item() else None

    report = check_gradients(Looks, x, batched=True)
    assert report.findings == ()
    assert any(line.startswith("batched gradients: RuntimeError") for line in report.not_covered)


needs_compiler = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler"
)


@needs_compiler
@pytest.mark.slow
def test_compiled_code_agrees(x):
    report = check_gradients(lambda x: (x.sin() * x).sum(), x, compiled=True)
    assert report.findings == ()
    assert any(line.startswith("compiled code: agrees") for line in report.summary["covered"])


@needs_compiler
@pytest.mark.slow
def test_what_is_wrong_in_compiled_code_is_found(x):
    report = check_gradients(WrongWhenCompiled, x, compiled=True)
    assert [finding.code for finding in report.findings] == ["GCS611"]
    assert "finite differences agree with eager mode" in report.findings[0].message


@pytest.mark.slow
@needs_compiler
def test_after_an_audit_compiled_code_is_still_compiled(x):
    with audit():
        pass
    report = check_gradients(WrongWhenCompiled, x, compiled=True)
    assert [finding.code for finding in report.findings] == ["GCS611"]


@pytest.mark.slow
@needs_compiler
def test_what_can_be_compiled_only_in_parts_says_so(x):
    def broken(x):
        return x.sin() * (2 if float(x.detach().sum()) > 0 else 3)

    report = check_gradients(broken, x, compiled=True)
    assert report.findings == ()
    assert any("only parts of the function can be" in line for line in report.not_covered)


def test_random_functions_are_not_compiled(x):
    report = check_gradients(nn.Dropout(), x, compiled=True)
    assert any("compiled code: the function is random" in line for line in report.not_covered)


def test_without_a_compiler_compiled_code_is_not_covered(x, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    report = check_gradients(torch.sin, x, compiled=True)
    assert "compiled code: there is no C++ compiler (g++ or clang++)" in report.not_covered
