"""Mistakes in places of all kinds: the right one is named, and no look-alike beside it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from gradcheck_suite.errors import UsageError
from gradcheck_suite.verification.localization import localize

WIDTH = 8


class Gate(torch.autograd.Function):
    """x * sigmoid(x); where ``bad``, backward forgets the second term."""

    @staticmethod
    def forward(ctx, x, bad):
        ctx.save_for_backward(x)
        ctx.bad = bad
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad_output * (s if ctx.bad else s + x * s * (1 - s)), None


class Scores(torch.autograd.Function):
    """q @ k.T / sqrt(d); where ``bad``, the gradient for k lacks the scale."""

    @staticmethod
    def forward(ctx, q, k, bad):
        ctx.save_for_backward(q, k)
        ctx.bad = bad
        return q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5

    @staticmethod
    def backward(ctx, grad_output):
        q, k = ctx.saved_tensors
        scale = q.shape[-1] ** -0.5
        for_k = grad_output.transpose(-1, -2) @ q
        return grad_output @ k * scale, for_k if ctx.bad else for_k * scale, None


class Coarse(torch.autograd.Function):
    """Twice the input; wrong in one floating-point type only."""

    @staticmethod
    def forward(ctx, x, wrong_in):
        ctx.wrong = x.dtype == wrong_in
        return 2 * x

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * (1.0 if ctx.wrong else 2.0), None


class Gated(nn.Module):
    def __init__(self, bad=False):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.bad = bad

    def forward(self, x):
        return x + Gate.apply(self.linear(x), self.bad)


class Attention(nn.Module):
    def __init__(self, bad=False):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.bad = bad

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return x + self.out(Scores.apply(q, k, self.bad).softmax(-1) @ v)


class Rounder(nn.Module):
    def __init__(self, wrong_in):
        super().__init__()
        self.wrong_in = wrong_in

    def forward(self, x):
        return Coarse.apply(x, self.wrong_in)


class Looped(nn.Module):
    """A ModuleList in a loop, with a residual stream."""

    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Checkpointed(Looped):
    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x


class Twice(nn.Module):
    """One module in two places."""

    def __init__(self, bad=False):
        super().__init__()
        self.shared = Gated(bad)
        self.between = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.shared(self.between(self.shared(x)))


class Tied(nn.Module):
    """Embedding and head share a weight; a wrong op lies between."""

    def __init__(self, bad=False):
        super().__init__()
        self.embed = nn.Embedding(11, WIDTH)
        self.body = Gated(bad)
        self.head = nn.Linear(WIDTH, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.body(self.embed(tokens)))


class Cut(nn.Module):
    """Takes its input for a constant in one of two terms."""

    def __init__(self, bad=True):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.bad = bad

    def forward(self, x):
        scale = x.abs().mean(-1, keepdim=True)
        return self.linear(x / (1 + (scale.data if self.bad else scale)))


class Named(nn.Module):
    """Returns a dict, calls functionals, writes in place, picks by index."""

    def __init__(self, bad=False):
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.bad = bad

    def forward(self, x):
        h = F.gelu(self.up(x)).mul_(1.5)
        h = torch.where(h > 0, h, 0.1 * h)
        return {"out": self.down(Gate.apply(h, self.bad))[..., :3], "aux": F.normalize(h, dim=-1)}


def hooked(layer):
    layer.linear.register_full_backward_hook(
        lambda _module, grad_input, _grad_output: tuple(2 * grad for grad in grad_input)
    )
    return layer


def tokens(*shape):
    return torch.randint(11, shape, generator=torch.Generator().manual_seed(0))


def batch(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def gated(*, bad, count=12, kind=Looped):
    return kind([Gated(index in bad) for index in range(count)])


CASES = {
    "first of twelve": (lambda b: gated(bad={0} if b else ()), {"layers.0"}),
    "last of twelve": (lambda b: gated(bad={11} if b else ()), {"layers.11"}),
    "two of twelve": (lambda b: gated(bad={3, 8} if b else ()), {"layers.3", "layers.8"}),
    "three of twelve": (
        lambda b: gated(bad={1, 5, 9} if b else ()),
        {"layers.1", "layers.5", "layers.9"},
    ),
    "inside attention": (
        lambda b: Looped([Attention(b and index == 2) for index in range(4)]),
        {"layers.2"},
    ),
    "attention beside gates": (
        lambda b: Looped([Gated(), Attention(b), Gated()]),
        {"layers.1"},
    ),
    "in a checkpointed block": (
        lambda b: gated(bad={2} if b else (), count=4, kind=Checkpointed),
        {"layers.2"},
    ),
    "a shared module": (Twice, {"shared"}),
    "between tied weights": (Tied, {"body"}),
    "a Sequential of 48": (
        lambda b: nn.Sequential(*[Gated(b and index == 31) for index in range(48)]),
        {"31"},
    ),
    "nested Sequentials": (
        lambda b: nn.Sequential(nn.Sequential(Gated(), nn.Sequential(Gated(b), nn.Tanh()))),
        {"0.1.0"},
    ),
    "among functionals and dicts": (Named, {""}),
    "in a type of its own": (
        lambda b: Looped([Gated(), Rounder(torch.float32 if b else None)]),
        {"layers.1"},
    ),
    "beside dropout and batch norm": (
        lambda b: nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(4), nn.Dropout(0.3), Gated(b)
        ),
        {"3"},
    ),
    "in eval mode": (lambda b: nn.Sequential(nn.Dropout(0.5), Gated(b)).eval(), {"1"}),
    "a frozen backbone": (
        lambda b: nn.Sequential(nn.Linear(WIDTH, WIDTH).requires_grad_(False), Gated(b)),
        {"1"},
    ),
    "behind a recurrent layer": (
        lambda b: nn.Sequential(_Recurrent(), Gated(b)),
        {"1"},
    ),
    "under a parametrization": (
        lambda b: nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)), Gated(b)
        ),
        {"1"},
    ),
    "a module that cuts the graph": (
        lambda b: nn.Sequential(nn.Linear(WIDTH, WIDTH), Cut(b), nn.Tanh()),
        {"1"},
    ),
    "a compiled module": (
        lambda b: nn.Sequential(Gated(), torch.compile(Gated(b), backend="eager"), Gated()),
        {"1"},
    ),
    "a hook that doubles": (
        lambda b: nn.Sequential(Gated(), hooked(Gated()) if b else Gated(), Gated()),
        {"1.linear"},
    ),
}


class _Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, x):
        return self.gru(x)[0]


def given(name):
    return tokens(3, 4) if name == "between tied weights" else batch(3, 4, WIDTH)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(every=4)
def test_the_wrong_place_is_named_and_nothing_else(name):
    torch.manual_seed(1)
    build, places = CASES[name]
    report = localize(build(True), given(name))
    assert {finding.evidence["module"] for finding in report.findings} == places


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(every=4)
def test_its_right_twin_is_silent(name):
    torch.manual_seed(1)
    report = localize(CASES[name][0](False), given(name), level="calls")
    assert [finding.message for finding in report.findings] == []


@pytest.mark.slow
def test_what_is_wrong_in_half_precision_only_is_named_there():
    torch.manual_seed(1)
    model = Looped([Gated(), Rounder(torch.bfloat16), Gated()])
    assert localize(model, batch(3, 4, WIDTH)).findings == ()
    report = localize(model.bfloat16(), batch(3, 4, WIDTH, dtype=torch.bfloat16))
    assert {finding.evidence["module"] for finding in report.findings} == {"layers.1"}


def test_a_hook_that_changes_the_gradient_is_told_as_such():
    torch.manual_seed(1)
    (finding,) = localize(nn.Sequential(Gated(), hooked(Gated())), batch(3, 4, WIDTH)).findings
    assert "Linear `1.linear`: gradient of `output` with respect to `input` is 2 times" in (
        finding.message
    )
    assert finding.hint.startswith("a backward hook sits on `1.linear`: ")


def test_compiled_modules_run_as_written_and_that_is_told():
    torch.manual_seed(1)
    model = nn.Sequential(torch.compile(Gated(), backend="eager"))
    report = localize(model, batch(3, 4, WIDTH), level="functions")
    assert [verdict.output for verdict in report.verdicts] == ["0: Gate"]
    assert any("compiled modules ran as they were written" in line for line in report.not_covered)


def test_copies_of_the_model_on_many_devices_cannot_be_looked_into():
    with pytest.raises(UsageError, match=r"give it the model that it holds: model\.module"):
        localize(nn.DataParallel(Gated()), batch(3, 4, WIDTH))
