from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

import gradcheck_suite as gs
from gradcheck_suite.graph.layout.labels import marked_nodes


def codes(graph):
    return [finding.code for finding in graph.findings]


def line():
    return inspect.currentframe().f_back.f_lineno


def traced(model, *inputs, loss=torch.sum, **options):
    with gs.record(model, **options) as recording:
        value = loss(model(*inputs))
    return recording.trace_graph(value, model=model)


class TestModifiedSinceSaved:
    def test_named_with_saver_and_line(self):
        with gs.record(source=True) as recording:
            x = torch.ones(3, requires_grad=True)
            y, saved_at = x.exp(), line()
            y += 1
        graph = recording.trace_graph(y.sum())

        (finding,) = graph.findings
        assert finding.code == "GCS103"
        assert "result (3,) float32, which ExpBackward0 (#3" in finding.message
        assert finding.location.line == saved_at
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            y.sum().backward()

    def test_plain_traces_see_it_too(self):
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        loss = y.sum()
        assert not gs.trace_graph(loss).findings
        y += 1
        assert codes(gs.trace_graph(loss)) == ["GCS103"]

    def test_writes_that_backward_does_not_mind(self):
        x = torch.ones(3, requires_grad=True)
        y = x * 2
        y += 1
        batch_norm = nn.BatchNorm1d(3)
        z = batch_norm(y.expand(4, 3)).relu_().sum()
        assert not gs.trace_graph(z, model=batch_norm).findings
        z.backward()


class TestSliceWrites:
    def test_a_loop_is_one_finding(self):
        cell = nn.Linear(2, 2)
        out = torch.zeros(20, 2)
        for t in range(20):
            out[t] = cell(torch.ones(2))
        (finding,) = gs.trace_graph(out.sum()).findings

        assert finding.code == "GCS106"
        assert finding.severity is gs.Severity.WARNING
        assert "20 in-place writes into slices of one tensor (20, 2) float32" in finding.message
        assert "3.1 KiB in all" in finding.message
        out.sum().backward()

    def test_every_write_of_the_loop_is_marked(self):
        out = torch.zeros(20, 2)
        for t in range(20):
            out[t] = torch.ones(2, requires_grad=True)
        graph = gs.trace_graph(out)
        writes = {node.id for node in graph.nodes if node.op == "CopySlices"}
        assert len(writes) == 20
        assert set(marked_nodes(graph)) == writes

    def test_a_short_loop_is_a_note(self):
        out = torch.zeros(5, 2)
        for t in range(5):
            out[t] = torch.ones(2, requires_grad=True)
        assert gs.trace_graph(out.sum()).findings[0].severity is gs.Severity.NOTE

    def test_two_writes_by_hand_and_writes_to_many_tensors_are_silent(self):
        x = torch.ones(4, requires_grad=True)
        y = torch.zeros(4)
        y[:2], y[2:] = x[2:], x[:2]
        many = []
        for _ in range(10):
            one = x.clone()
            one[0] = 1
            many.append(one)
        assert not gs.trace_graph([y, torch.stack(many)]).findings


class TestNonFinite:
    def test_names_the_first_bad_op_in_words(self):
        class Norm(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.zeros(3))

            def forward(self, x):
                return (x * self.scale).square().sum().sqrt()

        model = Norm()
        with gs.record(model, source=True, backward=True) as recording:
            model(torch.ones(3)).backward()
        (finding,) = recording.graph.findings

        assert finding.code == "GCS604"
        assert "backward makes infinity in SqrtBackward0 (#1" in finding.message
        assert "in module Norm" in finding.message
        assert "finite (norm 1)" in finding.message
        assert "sqrt(x + eps)" in finding.hint
        assert finding.location.function == "forward"

    def test_nan(self):
        x = torch.zeros(2, requires_grad=True)
        with gs.record(backward=True) as recording:
            torch.where(x > 0, x.sqrt(), x).sum().backward()
        (finding,) = recording.graph.findings
        assert "makes NaN in SqrtBackward0" in finding.message

    def test_an_infinite_start_is_nobodys_fault(self):
        x = torch.ones(2, requires_grad=True)
        with gs.record(backward=True) as recording:
            x.sin().backward(torch.tensor([1.0, float("inf")]))
        assert not recording.graph.findings

    def test_huge_but_finite(self):
        x = torch.ones(8, requires_grad=True)
        with gs.record(backward=True) as recording:
            (x * 1e30).sum().backward()
        assert not recording.graph.findings


class NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(_, x, y):
        return x * y

    @staticmethod
    def backward(_, grad):
        return grad, None


class TestLeavesThatGetNone:
    def test_dropped_by_a_custom_function(self):
        x = torch.ones(2, requires_grad=True)
        y = torch.ones(2, requires_grad=True)
        with gs.record(backward=True) as recording:
            NoGradient.apply(x.sin(), y).sum().backward()
        (finding,) = recording.graph.findings

        assert finding.code == "GCS508"
        assert "NoGradientBackward (#2) returned no gradient for its input 1" in finding.message
        assert y.grad is None

    def test_another_path_gives_one(self):
        x = torch.ones(2, requires_grad=True)
        with gs.record(backward=True) as recording:
            (NoGradient.apply(x.sin(), x) + x).sum().backward()
        assert not recording.graph.findings

    def test_only_some_inputs_were_asked_for(self):
        x = torch.ones(2, requires_grad=True)
        y = torch.ones(2, requires_grad=True)
        with gs.record(backward=True) as recording:
            torch.autograd.grad((x * y).sum(), x)
        assert not recording.graph.findings


class TwoParts(nn.Module):
    """An encoder, something between, and a head."""

    def __init__(self, between):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
        self.between = between
        self.head = nn.Linear(3, 1)

    def forward(self, x):
        return self.head(self.between(self.encoder(x)))


class Cuts(nn.Module):
    def forward(self, x):
        return x.round().detach() * 2


class FrozenEncoder(TwoParts):
    def forward(self, x):
        with torch.no_grad():
            hidden = self.encoder(x)
        return self.head(self.between(hidden))


class Detaching(TwoParts):
    def forward(self, x):
        return self.head(self.encoder(x).detach())


class TestBorders:
    def test_under_no_grad(self):
        graph = traced(FrozenEncoder(nn.Identity()), torch.ones(2, 3))
        (finding,) = graph.findings

        assert finding.code == "GCS402"
        assert "module encoder ran while recording was off" in finding.message
        assert "encoder.0.weight, encoder.0.bias" in finding.message

    def test_cut_in_a_module(self):
        (finding,) = traced(TwoParts(Cuts()), torch.ones(2, 3)).findings

        assert finding.code == "GCS401"
        assert "ends in module between, whose input required grad" in finding.message

    def test_cut_between_modules(self):
        (finding,) = traced(Detaching(nn.Identity()), torch.ones(2, 3)).findings

        assert finding.code == "GCS401"
        assert "ends between module encoder, whose output required grad, and module head" in (
            finding.message
        )

    def test_frozen_on_purpose_is_silent(self):
        model = FrozenEncoder(nn.Identity())
        model.encoder.requires_grad_(False)
        assert not traced(model, torch.ones(2, 3)).findings

    def test_whole_model_is_silent(self):
        assert not traced(TwoParts(nn.Identity()), torch.ones(2, 3)).findings

    def test_a_metric_without_gradient_explains_nothing(self):
        class WithMetric(TwoParts):
            def forward(self, x):
                self.between(self.encoder(x))
                return self.encoder(x).sum()

        (finding,) = traced(WithMetric(Cuts()), torch.ones(2, 3)).findings
        assert finding.code == "GCS403"
        assert "head.weight" in finding.message

    def test_modules_are_known_by_the_model_that_is_given_in_the_end(self):
        model = nn.ModuleDict({"online": nn.Linear(3, 1), "target": nn.Linear(3, 1)})
        with gs.record(backward=True) as recording:
            with torch.no_grad():
                wanted = model["target"](torch.ones(2, 3))
            loss = (model["online"](torch.ones(2, 3)) - wanted).pow(2).sum()
            loss.backward()
        graph = recording.trace_graph(loss, model=model)

        (finding,) = graph.findings
        assert finding.code == "GCS402"
        assert "module target ran while recording was off" in finding.message
        assert {call.path for call in graph.calls} == {"online", "target"}
        assert {call.path for call in recording.trace_graph(loss).calls} == {"Linear", "Linear_2"}


class TestDtypeChanges:
    """Found where they happen, whatever op it is; equal precision and what has none are silent."""

    def test_a_constant_of_another_dtype(self):
        model = nn.Linear(3, 4)
        scale = torch.linspace(0.5, 2.0, 4, dtype=torch.float64)
        with gs.record(model, source=True) as recording:
            y, changed_at = model(torch.randn(2, 3)) * scale, line()
            loss = y.square().mean()
        graph = recording.trace_graph(loss, model=model)

        (finding,) = graph.findings
        assert (finding.code, finding.severity.value) == ("GCS612", "note")
        assert "at 1 node of backward (1 x float64 to float32); MulBackward0 (#" in finding.message
        assert finding.location.line == changed_at
        (node,) = finding.evidence["nodes"]
        assert graph.node(node).op == "MulBackward0"

    def test_autocast_is_one_note_that_counts(self):
        model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(torch.randn(5, 3)), torch.zeros(5).long())
        graph = gs.trace_graph(loss, model=model)

        (finding,) = graph.findings
        assert finding.code == "GCS612"
        assert finding.evidence["changes"]["bfloat16 to float32"] >= 4
        assert finding.evidence["changes"]["float32 to bfloat16"] >= 1
        assert len(finding.evidence["nodes"]) == finding.evidence["count"]
        graph_classes = gs.graph.render.svg.graph_to_svg(graph, depth=-1)
        assert graph_classes.count('class="flag"') == finding.evidence["count"]

    def test_a_cast_and_its_way_back_are_both_marked(self):
        x = torch.randn(3, requires_grad=True)
        (finding,) = gs.trace_graph(x.half().exp().float().sum()).findings
        assert finding.evidence["changes"] == {"float16 to float32": 1, "float32 to float16": 1}

    def test_a_root_of_another_dtype(self):
        x = torch.randn(3, requires_grad=True)
        (finding,) = gs.trace_graph(x.double()).findings
        assert finding.evidence["changes"] == {"float64 to float32": 1}

    @pytest.mark.parametrize(
        "make",
        [
            lambda x: x.double().exp().sum() if x.dtype is torch.float64 else x.float().sum(),
            lambda x: torch.complex(x, x).abs().sum(),
            lambda x: torch.view_as_real(torch.fft.rfft(x)).sum(),
            lambda x: nn.functional.embedding(torch.tensor([0]), x[None]).sum(),
            lambda x: torch.stack([torch.sort(x)[0], x]).max(0)[0].sum(),
            lambda x: (x * torch.tensor(2.0, dtype=torch.float64)).sum(),
            lambda x: torch.where(x > 0, x, 0).sum() * 3,
        ],
        ids=["same", "complex", "fft", "embedding", "indices", "scalar", "where"],
    )
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_silent(self, make, dtype):
        assert not gs.trace_graph(make(torch.randn(4, dtype=dtype, requires_grad=True))).findings
