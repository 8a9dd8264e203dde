from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

import gradcheck_suite as gs
from gradcheck_suite.findings import Severity


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.first = nn.Linear(4, 1)
        self.second = nn.Linear(4, 1)

    def forward(self, x):
        hidden = self.body(x).relu()
        return self.first(hidden), self.second(hidden)


class Decorated(torch.autograd.Function):
    """A Function like those of mixed-precision libraries, with plain state on the node."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x):
        ctx.mode, ctx.factor = "mean", torch.tensor(2.0)
        return x * ctx.factor

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    @once_differentiable
    def backward(ctx, grad):
        return grad * ctx.factor


class Recompute(torch.autograd.Function):
    """Run a module without a graph, and again, with one, in backward."""

    @staticmethod
    def forward(ctx, run, x):
        ctx.run = run
        ctx.save_for_backward(x)
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.run(x)
        torch.autograd.backward(y, grad)
        return None, x.grad


def _again(run, x, grad):
    with torch.enable_grad():
        torch.autograd.backward(run(x), grad)


HIDDEN_MODULE = nn.Linear(3, 3)


class RecomputeByHelper(torch.autograd.Function):
    """The same through a helper, and with a module that the node doesn't hold."""

    @staticmethod
    def forward(_, x):
        with torch.no_grad():
            return HIDDEN_MODULE(x)

    @staticmethod
    def backward(_, grad):
        _again(HIDDEN_MODULE, torch.ones(3), grad)
        return grad


@pytest.fixture
def x():
    return torch.randn(2, 3)


@pytest.fixture
def two_heads():
    return TwoHeads()


class TestReported:
    def test_an_unused_head_is_one_warning_that_names_it(self, two_heads, x):
        graph = gs.trace_graph(two_heads(x)[0].sum(), model=two_heads)

        (finding,) = graph.findings
        assert finding.code == "GCS403"
        assert finding.rule == "parameter-without-gradient"
        assert finding.severity is Severity.WARNING
        assert finding.detector == "graph"
        assert finding.location is None
        assert "2 of 6 trainable parameters of TwoHeads: second.weight, second.bias" in (
            finding.message
        )
        assert finding.evidence["parameters"] == ("second.weight", "second.bias")
        assert graph.report.findings == graph.findings
        assert graph.report.ok

    def test_a_detached_body(self, two_heads, x):
        hidden = two_heads.body(x).detach()

        graph = gs.trace_graph([two_heads.first(hidden), two_heads.second(hidden)], two_heads)

        assert graph.findings[0].evidence["parameters"] == ("body.weight", "body.bias")

    def test_another_model(self, two_heads, x):
        graph = gs.trace_graph(two_heads(x), model=nn.Linear(2, 2))

        assert len(graph.findings[0].evidence["parameters"]) == 2

    def test_an_unused_part_beside_a_harmless_custom_function(self, two_heads, x, square):
        graph = gs.trace_graph(square.apply(two_heads(x)[0]), model=two_heads)

        assert len(graph.findings[0].evidence["parameters"]) == 2

    def test_an_unused_part_beside_decorated_functions(self, two_heads, x):
        graph = gs.trace_graph(Decorated.apply(two_heads(x)[0]), model=two_heads)

        assert len(graph.findings[0].evidence["parameters"]) == 2

    def test_many_names_are_cut_short_in_the_message_only(self, x):
        model = nn.ModuleList(nn.Linear(3, 3) for _ in range(20))

        (finding,) = gs.trace_graph(model[0](x), model=model).findings

        assert "and 30 more" in finding.message
        assert len(finding.evidence["parameters"]) == 38

    def test_a_lazy_module_that_never_ran(self, x):
        model = nn.ModuleDict({"used": nn.Linear(3, 3), "lazy": nn.LazyLinear(2)})

        (finding,) = gs.trace_graph(model["used"](x), model=model).findings

        assert finding.evidence["parameters"] == ("lazy.weight", "lazy.bias")


class TestSilent:
    def test_without_a_model(self, two_heads, x):
        assert gs.trace_graph(two_heads(x)[0]).findings == ()

    def test_all_reached(self, two_heads, x):
        first, second = two_heads(x)

        assert gs.trace_graph((first + second).sum(), model=two_heads).findings == ()

    def test_a_second_root_reaches_the_rest(self, two_heads, x):
        assert gs.trace_graph(two_heads(x), model=two_heads).findings == ()

    def test_frozen(self, two_heads, x):
        two_heads.second.requires_grad_(False)

        assert gs.trace_graph(two_heads(x)[0], model=two_heads).findings == ()

    def test_tied(self, x):
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        model[1].weight, model[1].bias = model[0].weight, model[0].bias

        assert gs.trace_graph(model[0](x), model=model).findings == ()

    def test_buffers(self, x):
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, affine=False))

        assert gs.trace_graph(model(x), model=model).findings == ()

    def test_parametrized(self, x):
        model = torch.nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))

        assert gs.trace_graph(model(x), model=model).findings == ()

    def test_functional_call(self, two_heads, x):
        parameters = dict(two_heads.named_parameters())

        output = torch.func.functional_call(two_heads, parameters, (x,))

        assert gs.trace_graph(output, model=two_heads).findings == ()

    def test_compiled(self, x):
        model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        compiled = torch.compile(model, backend="aot_eager")

        graph = gs.trace_graph(compiled(x), model=model)

        assert graph.findings == ()
        assert graph.nodes[0].op == "CompiledFunctionBackward"


class TestNotJudged:
    """Parameters behind a backward that no edge shows: neither reported nor passed over."""

    def not_judged(self, loss, model):
        graph = gs.trace_graph(loss, model=model)
        assert graph.findings == ()
        return [line for line in graph.report.not_covered if "backward of its own" in line]

    def test_reentrant_checkpoint(self, x):
        layer = nn.Linear(3, 3)
        loss = checkpoint(layer, x.requires_grad_(), use_reentrant=True).sum()

        (line,) = self.not_judged(loss, layer)

        assert "weight, bias" in line
        assert "CheckpointFunctionBackward (#2)" in line
        assert "at least" not in str(gs.trace_graph(loss, model=layer))

    def test_a_function_that_holds_a_module(self, x):
        layer = nn.Linear(3, 3)

        assert self.not_judged(Recompute.apply(layer, x.requires_grad_()), layer)

    def test_a_function_whose_helper_switches_grad_mode_on(self, x):
        loss = RecomputeByHelper.apply(x.requires_grad_())

        assert self.not_judged(loss, HIDDEN_MODULE)

    def test_everything_reached_leaves_nothing_unsaid(self, x):
        layer = nn.Linear(3, 3)
        loss = Recompute.apply(torch.tanh, layer(x))

        assert self.not_judged(loss, layer) == []
