"""Functions whose forward writes into its input, or saves what a second derivative needs."""

# ruff: noqa: ARG004 - torch gives every forward and backward a ctx
from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd.function import once_differentiable

import gradcheck_suite as gs


def train(function, *extra, steps=3, twice=False):
    net = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        x = torch.randn(3, 4, requires_grad=True)
        out = function.apply(net(x), *extra)
        loss = out.mul(1.5).sum()
        if twice:
            (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
            loss = loss + gradient.pow(2).sum()
        loss.backward()
        optimizer.step()


class Shifts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x -= 1.0  # <- here
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad


class ShiftsWithSetup(torch.autograd.Function):
    @staticmethod
    def forward(x):
        x -= 1.0  # <- here
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad


class ShiftsAndSaysSo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x -= 1.0
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class CountsCalls(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, calls):
        calls += 1  # a statistic, which no gradient flows to
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2, None


class SavesIntermediate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        exponential = torch.exp(-x)
        ctx.save_for_backward(exponential)  # <- here
        return 1 / (1 + exponential)

    @staticmethod
    def backward(ctx, grad):
        (exponential,) = ctx.saved_tensors
        return grad * exponential / (1 + exponential) ** 2


class SavesIntermediateOnce(SavesIntermediate):
    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (exponential,) = ctx.saved_tensors
        return grad * exponential / (1 + exponential) ** 2


class SavesOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.sigmoid(x)
        ctx.save_for_backward(out, x.view(-1))
        return out

    @staticmethod
    def backward(ctx, grad):
        out, _ = ctx.saved_tensors
        return grad * out * (1 - out)


class SavesMask(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        mask = (x > 0).to(x.dtype)
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, grad):
        (mask,) = ctx.saved_tensors
        return grad * mask


class SavesGiven(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weights):
        (weight,) = weights
        ctx.save_for_backward(weight)
        return x * weight

    @staticmethod
    def backward(ctx, grad):
        (weight,) = ctx.saved_tensors
        return grad * weight, None


class SavesOfGiven(torch.autograd.Function):
    """What it saves depends on what needs no gradient."""

    @staticmethod
    def forward(ctx, x, temperature):
        scale = 1 / (2 * temperature)
        ctx.save_for_backward(scale)
        return x * scale

    @staticmethod
    def backward(ctx, grad):
        (scale,) = ctx.saved_tensors
        return grad * scale, None


class SavesNoise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        noise = torch.randn_like(x)
        ctx.save_for_backward(noise)
        return x * noise

    @staticmethod
    def backward(ctx, grad):
        (noise,) = ctx.saved_tensors
        return grad * noise


class SavesOfBoth(torch.autograd.Function):
    """Is wrong in its second derivative, as what is saved depends on x as well."""

    @staticmethod
    def forward(ctx, x, temperature):
        exponential = torch.exp(x / temperature)
        ctx.save_for_backward(exponential, temperature)  # <- here
        return exponential + 1

    @staticmethod
    def backward(ctx, grad):
        exponential, temperature = ctx.saved_tensors
        return grad * exponential / temperature, None


@pytest.mark.parametrize("function", [Shifts, ShiftsWithSetup])
def test_an_input_that_is_written_to_unsaid(audited, only, line_of, function):
    finding = only(audited(lambda: train(function)), "GCS503")
    assert finding.location.line == line_of(function)
    assert "wrote into its input `x`" in finding.message
    assert "ctx.mark_dirty(x)" in finding.hint


def test_a_second_derivative_through_an_intermediate(audited, only, line_of):
    finding = only(audited(lambda: train(SavesIntermediate, steps=4, twice=True)), "GCS507")
    assert finding.location.line == line_of(SavesIntermediate)
    assert finding.severity.value == "warning"
    assert "saved tensor 0 (3x4)" in finding.message


def given(*, requires_grad=False):
    return torch.linspace(1, 2, 4).requires_grad_(requires_grad)


def test_one_that_depends_on_an_input_with_a_gradient_too_is_a_mistake(audited, only, line_of):
    session = audited(lambda: train(SavesOfBoth, given(), steps=4, twice=True))
    finding = only(session, "GCS507")
    assert finding.location.line == line_of(SavesOfBoth)
    assert finding.severity.value == "warning"


def test_one_that_may_depend_on_what_gets_no_gradient_alone_is_a_note(audited, only):
    net = nn.Linear(4, 3)

    class Gated(SavesOfGiven):
        @staticmethod
        def forward(ctx, x, gate):
            return SavesOfGiven.forward(ctx, x, gate.exp())

    def run():
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(4):
            optimizer.zero_grad()
            x = torch.randn(4, requires_grad=True)
            out = Gated.apply(net(x), net(x))
            (gradient,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            (out.sum() + gradient.pow(2).sum()).backward()
            optimizer.step()

    finding = only(audited(run), "GCS507")
    assert finding.severity.value == "note"
    assert finding.evidence["lowered"] == (
        "`gate` gets no gradient, and may be all that it was computed from",
    )


def test_one_beside_random_numbers_is_a_note(audited, only):
    finding = only(audited(lambda: train(SavesNoise, steps=4, twice=True)), "GCS507")
    assert finding.severity.value == "note"
    assert "draws random numbers" in finding.evidence["lowered"][0]


@pytest.mark.parametrize(
    ("function", "extra", "twice"),
    [
        (ShiftsAndSaysSo, (), False),
        (CountsCalls, (torch.zeros(()),), False),
        (SavesIntermediate, (), False),  # nobody differentiates it twice
        (SavesOutput, (), True),
        (SavesMask, (), True),
        (SavesGiven, ((torch.linspace(1, 2, 12).view(3, 4),),), True),
        (SavesIntermediateOnce, (), False),
        (SavesOfGiven, (given(),), True),
        (SavesOfGiven, (given(requires_grad=True),), True),
    ],
)
def test_nothing_is_said_of_those_that_keep_their_contract(audited, function, extra, twice):
    session = audited(lambda: train(function, *extra, steps=5, twice=twice))
    assert session.findings == ()


def test_forward_is_put_back():
    kept = Shifts.__dict__["forward"], dict(SavesIntermediateOnce.__dict__)
    with gs.audit():
        train(Shifts)
        train(SavesIntermediateOnce)
        assert Shifts.__dict__["forward"] is not kept[0]
    assert Shifts.__dict__["forward"] is kept[0]
    assert dict(SavesIntermediateOnce.__dict__) == kept[1]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_function_that_was_looked_at_compiles_as_before():
    with gs.audit() as session:
        train(SavesOutput)
        compiled = torch.compile(
            lambda x: SavesOutput.apply(x) * 2, backend="eager", fullgraph=True
        )
        x = torch.randn(3, requires_grad=True)
        compiled(x).sum().backward()
    assert session.findings == ()
    out = torch.sigmoid(x.detach())
    assert torch.allclose(x.grad, 2 * out * (1 - out))


class KeepsItsOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.y = torch.exp(x)  # <- here
        return ctx.y

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.y


class KeepsNumbers(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.exp(x)
        ctx.save_for_backward(y)
        ctx.largest, ctx.copy = y.max().item(), y.detach()
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0]


def scores(function):
    net = nn.Linear(4, 4)
    for _ in range(3):
        function.apply(net(torch.randn(2, 4))).mean().item()


def test_an_output_on_ctx_where_no_backward_runs(audited, line_of):
    session = audited(lambda: scores(KeepsItsOutput))
    (finding,) = [each for each in session.findings if each.code == "GCS205"]
    assert finding.location.line == line_of(KeepsItsOutput)
    assert "keeps the tensor `ctx.y` (2x4) as an attribute" in finding.message
    assert finding.severity.value == "warning"


def test_numbers_and_detached_copies_on_ctx(audited):
    assert "GCS205" not in [each.code for each in audited(lambda: scores(KeepsNumbers)).findings]


def test_an_output_on_ctx_where_nothing_is_recorded(audited):
    def loop():
        with torch.no_grad():
            scores(KeepsItsOutput)

    assert not audited(loop).findings


def test_forward_is_put_back_where_no_backward_ran(audited):
    before = vars(KeepsItsOutput)["forward"]
    audited(lambda: scores(KeepsItsOutput))
    assert vars(KeepsItsOutput)["forward"] is before


class Attaches(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, extra):
        ctx.save_for_backward(extra)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        (extra,) = ctx.saved_tensors
        return grad, torch.ones_like(extra)


def attach(x):
    return Attaches.apply(x, x.square().mean())


class Attached(nn.Module):
    def forward(self, x):
        return attach(x)


ATTACHED = Attached()


def thrown_away_at_once(x):
    Attaches.apply(x, x.square().mean())  # <- here
    return x


def thrown_away_by_the_caller(x):
    attach(x)  # <- here
    return x


def thrown_away_by_the_caller_of_a_module(x):
    ATTACHED(x)  # <- here
    return x


def kept(x):
    return attach(x)


def kept_once_of_twice(x):
    attach(x)
    return attach(x)


def written_in_place(x):
    y = x.clone()
    ShiftsAndSaysSo.apply(y)
    return y


def regress(run, steps=5, before=0):
    net = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(before):
        thrown_away_at_once(net(torch.randn(3, 4)))
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(6):
            run(net(torch.randn(3, 4))).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize(
    "run",
    [thrown_away_at_once, thrown_away_by_the_caller, thrown_away_by_the_caller_of_a_module],
)
def test_a_result_that_is_thrown_away(audited, only, line_of, run):
    finding = only(audited(lambda: regress(run)), "GCS318")
    assert finding.location.line == line_of(run)
    assert finding.severity.value == "warning"
    assert finding.message.startswith("what Attaches returns is thrown away here, ")
    assert finding.evidence["count"] >= 3
    assert finding.evidence["function"] == "Attaches"


@pytest.mark.parametrize("run", [kept, kept_once_of_twice, written_in_place])
def test_a_result_that_is_used(audited, run):
    assert audited(lambda: regress(run)).findings == ()


@pytest.mark.parametrize("run", [kept, torch.relu])
def test_a_call_before_training_loads_a_kernel(audited, run):
    session = audited(lambda: regress(run, before=4))
    assert "GCS318" not in [each.code for each in session.findings]
