"""Backwards that call a module again: adjoint methods, fixed points, checkpoints."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gradcheck_suite.verification import check_gradients
from gradcheck_suite.verification.target import parameter_swap


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


class Adjoint(torch.autograd.Function):
    """Calls a module without recording, and again with recording in its backward."""

    factor = 1.0

    @staticmethod
    def forward(ctx, module, x, *parameters):
        ctx.module = module
        ctx.save_for_backward(x, *parameters)
        with torch.no_grad():
            return module(x)

    @classmethod
    def backward(cls, ctx, grad_output):
        x, *parameters = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = ctx.module(x)
        grads = torch.autograd.grad(y, (x, *parameters), grad_output, allow_unused=True)
        return None, grads[0], *(cls.factor * grad for grad in grads[1:])


class WrongAdjoint(Adjoint):
    factor = 1.5


def through(function, module, x):
    return function.apply(module, x, *[p for p in module.parameters() if p.requires_grad])


class Through(nn.Module):
    def __init__(self, inner, function=Adjoint):
        super().__init__()
        self.inner = inner
        self.function = function

    def forward(self, x):
        return through(self.function, self.inner, x)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()


class FixedPoint(nn.Module):
    """An equilibrium, whose gradient a hook makes out of one more step."""

    steps = 60

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.outer = nn.Linear(3, 3).double(), nn.Linear(3, 3).double()
        nn.init.orthogonal_(self.inner.weight, 0.3)

    def step(self, z, x):
        return torch.tanh(self.inner(z) + self.outer(x))

    def forward(self, x):
        with torch.no_grad():
            z = torch.zeros_like(x)
            for _ in range(self.steps):
                z = self.step(z, x)
        z = self.step(z, x)
        if z.requires_grad:
            reached, given = z.detach(), x.detach()

            def solve(grad):
                with torch.enable_grad():
                    before = reached.clone().requires_grad_()
                    after = self.step(before, given)
                found = grad
                for _ in range(self.steps):
                    found = torch.autograd.grad(after, before, found, retain_graph=True)[0] + grad
                return found

            z.register_hook(solve)
        return z


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, x):
        return x + checkpoint(self.inner, x, use_reentrant=False)


@pytest.mark.parametrize("make", [lambda: Through(network()), FixedPoint, Checkpointed])
def test_it_finds_the_parameters_that_forward_found(make):
    report = check_gradients(make(), draw(4, 3), order=1)
    assert report.findings == ()
    assert {verdict.status for verdict in report.verdicts} == {"pass"}
    assert len(report.verdicts) > 1
    assert not any("can't be run twice" in line for line in report.not_covered)


def test_a_module_that_a_function_reads_is_found_too():
    module = network()
    report = check_gradients(lambda x: through(Adjoint, module, x), draw(4, 3), order=1)
    assert report.findings == ()
    names = {verdict.input for verdict in report.verdicts}
    assert {"x", "module.0.weight", "module.2.bias"} <= names


def test_a_wrong_factor_is_found():
    report = check_gradients(Through(network(), WrongAdjoint), draw(4, 3))
    assert {verdict.input for verdict in report.verdicts if verdict.status == "fail"} == {
        "inner.0.weight", "inner.0.bias", "inner.2.weight", "inner.2.bias",
    }  # fmt: skip
    assert all("1.5 times the numeric one" in finding.message for finding in report.findings)


def test_a_hook_that_takes_no_none_is_told_and_no_error():
    report = check_gradients(FixedPoint(), draw(4, 3))
    (line,) = [line for line in report.not_covered if "undefined gradients" in line]
    assert "a hook raises" in line
    assert not any("undefined gradients" in line for line in report.summary["covered"])


class Refused(nn.Module):
    """Can't be copied, so that the check works on the user's own."""

    def __init__(self):
        super().__init__()
        self.inner = network()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls > 4:
            raise KeyboardInterrupt
        return self.inner(x)

    def __deepcopy__(self, memo):
        raise TypeError("not this one")


def kept(module):
    return {name: (id(value), value.detach().clone()) for name, value in module.named_parameters()}


def assert_kept(module, before):
    after = kept(module)
    assert after.keys() == before.keys()
    for name, (number, values) in before.items():
        assert after[name][0] == number
        assert torch.equal(after[name][1], values)


def test_modules_get_their_own_tensors_back():
    module = network()
    before = kept(module)
    report = check_gradients(lambda x: 2 * module(x), draw(4, 3), forward_mode=True, batched=True)
    assert report.findings == ()
    assert_kept(module, before)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_also_after_an_exception(error):
    module = Refused()
    before = kept(module)
    with pytest.raises(KeyboardInterrupt):
        check_gradients(module, draw(4, 3))
    assert_kept(module, before)

    def fails(x):
        if x.abs().max() != 0:
            y = module.inner(x)
            raise error(str(y.shape))

    with pytest.raises(error):
        check_gradients(fails, draw(4, 3))
    assert_kept(module, before)


def test_without_the_private_name_of_torch_the_rest_is_the_same(monkeypatch):
    monkeypatch.setattr(parameter_swap, "standing_in", lambda *_: None)
    module = network()
    before = kept(module)
    assert check_gradients(lambda x: 2 * module(x), draw(4, 3)).findings == ()
    assert check_gradients(copy.deepcopy(module), draw(4, 3)).findings == ()
    assert_kept(module, before)


def test_compiled_code_is_compared_as_before():
    report = check_gradients(network(), draw(4, 3), compiled=True)
    assert report.findings == ()


class Assigns(torch.autograd.Function):
    """Puts a value into a buffer behind autograd's back, and hands the buffer on."""

    @staticmethod
    def forward(ctx, buffer, value, index):
        ctx.index = index
        buffer.data[index] = value
        return buffer

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, grad_output[ctx.index], None


def handed_on(x):
    buffer = torch.zeros(2, 3, dtype=x.dtype)
    buffer = Assigns.apply(buffer, x.sin(), 0)
    return Assigns.apply(buffer, x * x, 1)


def looked_back(x):
    buffer = Assigns.apply(torch.zeros(2, 3, dtype=x.dtype), x.sin(), 0)
    later = Assigns.apply(buffer, x * x, 0)
    return buffer[0] + later[0]


def test_a_buffer_that_is_handed_on_is_a_warning_where_the_gradient_is_right():
    report = check_gradients(handed_on, draw(3), order=1)
    (finding,) = report.findings
    assert (finding.code, finding.severity.value) == ("GCS503", "warning")
    assert "here every gradient is right all the same" in finding.message
    assert {verdict.status for verdict in report.verdicts} == {"pass"}


def test_one_that_is_read_again_is_an_error():
    report = check_gradients(looked_back, draw(3), order=1)
    assert any(finding.severity.value == "error" for finding in report.findings)


class Constant(torch.autograd.Function):
    """Returns a gradient for what its output does not depend on."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x.exp()

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        return grad_output * x.exp(), grad_output * y


def test_a_gradient_of_what_has_no_effect_is_said_to_be_that():
    report = check_gradients(Constant, (draw(4), draw(4)), order=1)
    (finding,) = report.findings
    assert "the output stays the same however far it is moved" in finding.message
    assert finding.hint == (
        "Constant.backward must return None for what the output does not depend on"
    )


def test_a_surrogate_loss_is_said_to_be_perhaps_meant():
    report = check_gradients(lambda x: (x - x.detach()).exp().sum(), draw(4), order=1)
    (finding,) = report.findings
    assert "the output stays the same however far it is moved" in finding.message
    assert "a surrogate loss" in finding.hint


class FewSteps(torch.autograd.Function):
    """A square root by a few steps of Newton's method, with the gradient of the exact one."""

    @staticmethod
    def forward(ctx, x):
        y = x
        for _ in range(3):
            y = (y + x / y) / 2
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output / (2 * x.sqrt())


def test_a_small_error_is_said_to_be_perhaps_meant():
    x = torch.tensor([2.0, 2.5, 3.0], dtype=torch.float64, requires_grad=True)
    report = check_gradients(FewSteps, x, order=1, variations=())
    (finding,) = report.findings
    assert finding.code == "GCS601"
    assert "approximates on purpose" in finding.hint
