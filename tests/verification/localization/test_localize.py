from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from gradcheck_suite.errors import UsageError
from gradcheck_suite.verification.localization import localize


class Norm(torch.autograd.Function):
    """LayerNorm; its gradient lacks a term where ``bad``."""

    @staticmethod
    def forward(ctx, x, weight, bad):
        scale = torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5)
        normal = (x - x.mean(-1, keepdim=True)) * scale
        ctx.save_for_backward(normal, scale, weight)
        ctx.bad = bad
        return normal * weight

    @staticmethod
    def backward(ctx, grad_output):
        normal, scale, weight = ctx.saved_tensors
        grad = grad_output * weight
        inner = grad - grad.mean(-1, keepdim=True)
        if not ctx.bad:
            inner = inner - normal * (grad * normal).mean(-1, keepdim=True)
        return inner * scale, (grad_output * normal).sum(tuple(range(normal.dim() - 1))), None


class Clamping(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # noqa: ARG004
        return 2 * x

    @staticmethod
    def backward(ctx, grad_output):  # noqa: ARG004
        return (2 * grad_output).clamp(-5, 5)


apply_norm = Norm.apply  # under another name, as users write


class NormLayer(nn.Module):
    def __init__(self, width, *, bad):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bad = bad

    def forward(self, x):
        return apply_norm(x, self.weight, self.bad)


class Block(nn.Module):
    def __init__(self, width, *, bad):
        super().__init__()
        self.norm = NormLayer(width, bad=bad)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        normal = self.norm(x)
        x = x + self.attention(normal, normal, normal, need_weights=False)[0]
        return x + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))


class Net(nn.Module):
    def __init__(self, width=16, depth=5, bad=None):
        super().__init__()
        self.embed = nn.Linear(6, width)
        self.blocks = nn.ModuleList(Block(width, bad=index == bad) for index in range(depth))
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def places(report):
    return [(f.evidence["module"], f.evidence["called"]) for f in report.findings]


def failed(report):
    return [verdict.output for verdict in report.verdicts if verdict.status == "fail"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("level", ["auto", "functions", "modules", "calls"])
@pytest.mark.sampled(every=4)
def test_the_wrong_function_is_named_and_nothing_else(dtype, level):
    torch.manual_seed(3)
    report = localize(Net(bad=2).to(dtype), torch.randn(3, 4, 6, dtype=dtype), level=level)

    assert places(report) == [("blocks.2.norm", "Norm")]
    (finding,) = report.findings
    assert finding.location.function == "Norm.backward"
    assert finding.evidence["count"] == 2
    assert "applied in `blocks.2.norm`, calls 1, 2" in finding.message
    (called,) = finding.related
    assert called.message == "called here"
    assert called.location.function.endswith("NormLayer.forward") or (
        called.location.function == "forward"
    )
    assert all(name.startswith("blocks.2.norm") for name in failed(report))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("level", ["auto", "functions", "modules", "calls", "tree"])
def test_a_right_model_is_silent(dtype, level):
    torch.manual_seed(4)
    model = Net(depth=2).to(dtype)
    report = localize(
        model, torch.randn(3, 4, 6, dtype=dtype), level=level, loss=lambda y: y.square().mean()
    )
    assert report.findings == ()
    assert failed(report) == []
    assert report.summary["probed"]


def test_the_tree_leads_from_the_root_to_the_leaf():
    torch.manual_seed(3)
    report = localize(Net(bad=1).double(), torch.randn(3, 4, 6).double(), level="tree")
    assert places(report) == [("blocks.1.norm", "NormLayer")]
    assert {"Net", "blocks.1: Block"} <= set(failed(report))


def test_a_module_whose_own_forward_is_wrong_is_named():
    class Cutting(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return x.detach() * self.inner(x)

    model = nn.Sequential(nn.Linear(4, 4), Cutting(), nn.Linear(4, 1)).double()
    report = localize(model, torch.randn(5, 4).double())
    assert places(report) == [("1", "Cutting")]
    assert "its own forward" in report.findings[0].message


def test_nothing_of_the_model_is_modified():
    class Busy(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.calls = 0
            self.seen = []

        def forward(self, x):
            self.calls += 1
            self.seen.append(float(x.detach().sum()))
            return F.dropout(self.norm(x), 0.5).relu_()

    model = nn.Sequential(nn.Linear(4, 4), Busy())
    x = torch.randn(6, 4)
    before, given = copy.deepcopy(model), x.clone()
    state, call = torch.get_rng_state(), nn.Module.__call__
    report = localize(model, x)

    assert report.ok
    for (name, value), (_, old) in zip(
        model.state_dict().items(), before.state_dict().items(), strict=True
    ):
        assert torch.equal(value, old), name
    assert (model[1].calls, model[1].seen) == (0, [])
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(x, given)
    assert torch.equal(state, torch.get_rng_state())
    assert nn.Module.__call__ is call
    assert "apply" not in torch.autograd.Function.__mro__[1].__dict__
    assert not model[0]._forward_hooks


def test_everything_is_put_back_when_the_model_raises():
    def broken(x):
        raise ValueError("my own mistake")

    call = nn.Module.__call__
    with pytest.raises(ValueError, match="my own mistake"):
        localize(broken, torch.randn(3, requires_grad=True))
    assert nn.Module.__call__ is call
    assert "apply" not in torch.autograd.Function.__mro__[1].__dict__


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_blocks_are_looked_into(reentrant):
    class Checkpointed(Net):
        def forward(self, x):
            x = self.embed(x)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=reentrant)
            return self.head(x.mean(1))

    torch.manual_seed(3)
    report = localize(Checkpointed(bad=1, depth=2), torch.randn(3, 4, 6))
    assert places(report) == [("blocks.1.norm", "Norm")]


def test_a_breach_of_contract_of_a_function_is_found():
    class Clamped(nn.Module):
        def forward(self, x):
            return Clamping.apply(x)

    report = localize(nn.Sequential(nn.Linear(3, 3), Clamped()), torch.randn(2, 3))
    (finding,) = report.findings
    assert finding.code == "GCS610"
    assert finding.evidence["module"] == "1"


def test_containers_in_place_ops_and_shared_modules():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.shared = nn.Linear(4, 4)

        def forward(self, batch, *, scale):
            first = self.shared(batch["x"][0])
            second = self.shared(first)
            second += 1.0
            second.mul_(scale)
            second[0] = first[1].clone()
            with torch.no_grad():
                metric = self.shared(second)
            return {"out": (second.relu_(), metric), "count": 3}

    report = localize(Mixed(), ({"x": (torch.randn(5, 4),)},), {"scale": torch.tensor(0.5)})
    assert report.ok
    names = [verdict.output for verdict in report.verdicts]
    assert "shared: Linear" in names
    assert "shared: Linear (call 2)" in names
    assert {"add_", "mul_", "__setitem__"} <= {name.split(": ")[-1] for name in names}
    assert any("no input or output that requires grad" in line for line in report.not_covered)


def test_a_wrong_op_of_a_plain_function_is_named_by_its_line():
    @torch.overrides.wrap_torch_function(lambda x: (x,))
    def crooked(x):
        return x * x.detach()

    def model(x):
        return crooked(x.sin()).sum()

    report = localize(model, torch.randn(4, dtype=torch.float64, requires_grad=True))
    (finding,) = report.findings
    assert finding.evidence["called"] == "crooked"
    assert finding.location.path == __file__


def test_the_time_limit_is_kept_and_told():
    report = localize(Net(), torch.randn(3, 4, 6), level="modules", time_limit=1e-9)
    assert report.ok
    assert any("were left when the time was up" in line for line in report.not_covered)
    report = localize(Net(), torch.randn(3, 4, 6), time_limit=1e-3)
    assert any("that takes about" in line for line in report.not_covered)


def test_without_any_gradient_there_is_nothing_to_find():
    report = localize(lambda x: x + 1, torch.randn(3))
    assert "nothing in this model carries a gradient" in report.not_covered


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"level": "everything"}, "level must be one of"),
        ({"seed": -1}, "seed must be an integer"),
        ({"loss": 3}, "loss must be a function"),
        ({"time_limit": 0}, "time_limit must be a positive number"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(UsageError, match=words):
        localize(nn.Linear(2, 2), torch.randn(2), **options)


@pytest.mark.parametrize("model", [nn.Linear, 3])
def test_what_is_no_model_is_refused(model):
    with pytest.raises(UsageError, match="expected a module or another callable"):
        localize(model, torch.randn(2))


class HeadCutOff(nn.Module):
    def __init__(self, cut):
        super().__init__()
        self.body, self.head = nn.Linear(3, 3), nn.Linear(3, 1)
        self.cut = cut

    def forward(self, x):
        hidden = self.body(x)
        return self.head(hidden.detach() if self.cut else hidden)


class Checkpointed(HeadCutOff):
    """Reentrant: its graph is made in backward."""

    def __init__(self):
        super().__init__(cut=False)

    def forward(self, x):
        return self.head(checkpoint(self.body, x, use_reentrant=True))


def test_parameters_that_no_gradient_reaches_are_told():
    report = localize(HeadCutOff(cut=True), torch.randn(4, 3))
    (line,) = [each for each in report.not_covered if "no gradient reaches" in each]
    assert "no gradient reaches 2 of 4 parameters (`body.weight`, `body.bias`)" in line


@pytest.mark.parametrize(
    "model",
    [
        lambda: HeadCutOff(cut=False),
        lambda: HeadCutOff(cut=True).requires_grad_(requires_grad=False),
        Checkpointed,
    ],
)
def test_of_those_that_one_reaches_nothing_is_told(model):
    report = localize(model(), torch.randn(4, 3, requires_grad=True))
    assert not [each for each in report.not_covered if "no gradient reaches" in each]
