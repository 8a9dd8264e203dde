"""Programs of all kinds: each is drawn in every format, and in words that say something."""

from __future__ import annotations

import json
import math
import warnings
from xml.etree import ElementTree as ET

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import gradcheck_suite as gs
from gradcheck_suite.graph.render.text import graph_to_text


def leaf(*shape, dtype=None):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def lstm_on_packed_sequences():
    model = nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True)
    packed = nn.utils.rnn.pack_padded_sequence(
        torch.randn(3, 5, 3), torch.tensor([5, 3, 1]), batch_first=True
    )
    out, (h, c) = model(packed)
    return (out.data.sum() + h.sum() + c.sum()), model


def gru_cell_over_time():
    model = nn.GRUCell(3, 4)
    state = torch.zeros(2, 4)
    for _ in range(60):
        state = model(torch.ones(2, 3), state)
    return state.sum(), model


def gan_with_two_losses():
    model = nn.ModuleDict({"g": nn.Linear(2, 3), "d": nn.Linear(3, 1)})
    fake = model["g"](torch.randn(4, 2))
    loss = {
        "generator": -model["d"](fake).mean(),
        "critic": model["d"](fake.detach()).mean() - model["d"](torch.randn(4, 3)).mean(),
    }
    return loss, model


def checkpointing(*, reentrant):
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    return checkpoint(model, leaf(2, 3), use_reentrant=reentrant).sum(), model


def double_backward():
    x = leaf(3)
    (first,) = torch.autograd.grad((x.sin() ** 2).sum(), x, create_graph=True)
    return first.pow(2).sum(), None


def gradient_penalty():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    x = leaf(2, 3)
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return model(x).mean() + (slope.norm() - 1) ** 2, model


def complex_numbers():
    z = leaf(4, dtype=torch.complex64)
    return (torch.fft.fft(z * z.conj()).abs() ** 2).sum(), None


def sparse_matrix():
    table = nn.EmbeddingBag(9, 3, sparse=True, mode="sum")
    matrix = torch.sparse_coo_tensor(torch.tensor([[0, 1], [2, 0]]), leaf(2), (3, 3))
    rows = table(torch.tensor([1, 2, 4]), torch.tensor([0, 1]))
    return torch.sparse.mm(matrix, torch.ones(3, 1)).sum() + rows.sum(), table


def in_place_chain():
    x = leaf(6).clone()
    for _ in range(20):
        x.mul_(1.1).add_(1).clamp_(min=-5)
    x[1:3].exp_()
    return x.sum(), None


def hooks_everywhere():
    x = leaf(3)
    y = x.exp()
    y.retain_grad()
    y.register_hook(lambda g: g * 2)
    z = y.sin()
    z.grad_fn.register_prehook(lambda _: None)
    x.register_post_accumulate_grad_hook(lambda _: None)
    return z.sum(), None


def views_of_views():
    x = leaf(4, 6)
    y = x.view(2, 2, 6).transpose(0, 2)[1:, ..., 0].unsqueeze(0).expand(3, 5, 2)
    a, b = y.split([2, 3], dim=1)
    return a.unbind(0)[1].diagonal().sum() + b.flatten().unfold(0, 3, 2).sum(), None


class Halves(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cut):
        ctx.cut = cut
        ctx.mark_non_differentiable(marks := torch.arange(3))
        return x[:cut], x[cut:], marks, None

    @staticmethod
    def backward(_ctx, first, second, *_):
        return torch.cat([first, second]), None


def custom_function_with_many_outputs():
    first, second, *_ = Halves.apply(leaf(5) * 1, 2)
    return first.sum() * second.sum(), None


def functional_call():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    parameters = {name: leaf(*p.shape) for name, p in model.named_parameters()}
    return torch.func.functional_call(model, parameters, (torch.randn(5, 3),)).sum(), None


def per_sample_gradients():
    x = leaf(4, 3)
    mapped = torch.func.vmap(torch.func.grad(lambda z: (z**3).sum()))(x)
    return mapped.sum(), None


def forward_mode():
    x = leaf(3)
    _, tangent = torch.func.jvp(lambda z: (z.sin() * x).sum(), (x,), (torch.ones(3),))
    return tangent, None


def wrapped_as_by_data_parallel():
    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, *args):
            return self.module(*args)

    model = Wrapper(Wrapper(nn.Sequential(nn.Conv1d(2, 3, 3), nn.GELU(), nn.Flatten())))
    return model(torch.randn(2, 2, 8)).sum(), model


def compiled():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    return torch.compile(model, backend="eager")(torch.randn(2, 3)).sum(), model


def parametrized():
    model = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(3, 3)),
        parametrizations.spectral_norm(nn.Linear(3, 3)),
        parametrizations.orthogonal(nn.Linear(3, 3)),
    )
    return model(torch.randn(2, 3)).sum(), model


def nested_tensor():
    nested = torch.nested.nested_tensor(
        [torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged, requires_grad=True
    )
    return (nested.sin() * 2).values().sum(), None


def sum_of_many(count=200):
    return torch.stack([leaf(2) for _ in range(count)]).sum(), None


def disconnected_parameters():
    model = nn.ModuleDict({"used": nn.Linear(2, 2), "idle": nn.Linear(2, 2)})
    return model["used"](torch.ones(1, 2)).sum(), model


def tied_and_frozen():
    model = nn.ModuleDict({"e": nn.Embedding(7, 4), "out": nn.Linear(4, 7, bias=False)})
    model["out"].weight = model["e"].weight
    model["n"] = nn.LayerNorm(4).requires_grad_(requires_grad=False)
    return model["out"](model["n"](model["e"](torch.tensor([1, 2])))).sum(), model


def attention_and_losses():
    model = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(2, 5, 8)
    out, weights = model(x, x, x)
    loss = nn.functional.huber_loss(out, x) + nn.functional.ctc_loss(
        weights.log_softmax(-1).transpose(0, 1), torch.ones(2, 2, dtype=torch.long), [5, 5], [2, 2]
    )
    return loss, model


def linear_algebra():
    x = leaf(3, 3)
    u, s, v = torch.linalg.svd(x @ x.mT + 3 * torch.eye(3))
    return (u.abs().sum() + s.sum() + torch.linalg.det(x) + torch.einsum("ij,kj", x, v).sum()), None


def mixed_precision():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.PReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(torch.randn(2, 1, 6, 6)).float().sum(), model


def upsampling_and_scatter():
    x = leaf(1, 2, 4, 4)
    y = nn.functional.interpolate(x, scale_factor=2, mode="bilinear")
    y = nn.functional.grid_sample(y, torch.zeros(1, 3, 3, 2))
    return torch.zeros(5).scatter_add(0, torch.tensor([0, 1, 1]), y.flatten()[:3]).sum(), None


def nothing_in_it():
    return leaf(0, 3).sum() + leaf(3)[:0].sum(), None


def infinities():
    x = torch.zeros(3, requires_grad=True)
    return (x.sqrt() + x.log()).sum() * math.inf, None


def deep_chain(length=500):
    y = leaf(1)
    for _ in range(length):
        y = y + 1
    return y, None


PROGRAMS = {
    make.__name__: make
    for make in (
        lstm_on_packed_sequences, gru_cell_over_time, gan_with_two_losses, double_backward,
        gradient_penalty, complex_numbers, sparse_matrix, in_place_chain, hooks_everywhere,
        views_of_views, custom_function_with_many_outputs, functional_call, per_sample_gradients,
        forward_mode, wrapped_as_by_data_parallel, compiled, parametrized, nested_tensor,
        sum_of_many, disconnected_parameters, tied_and_frozen, attention_and_losses,
        linear_algebra, mixed_precision, upsampling_and_scatter, nothing_in_it, infinities,
        deep_chain,
    )
}  # fmt: skip
PROGRAMS["checkpointing"] = lambda: checkpointing(reentrant=False)
PROGRAMS["reentrant_checkpointing"] = lambda: checkpointing(reentrant=True)


def total(tensors):
    parts = tensors.values() if isinstance(tensors, dict) else [tensors]
    return sum(part.sum() for part in parts)


PROGRAMS["sum_of_2_000"] = lambda: sum_of_many(2_000)
PROGRAMS["chain_of_100_000"] = lambda: deep_chain(100_000)
LARGE = ("sum_of_2_000", "chain_of_100_000")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.sweep if name in LARGE else ()) for name in PROGRAMS],
)
@pytest.mark.sampled(every=4)
def test_drawn_in_every_format(name, tmp_path):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with gs.record(source=name not in LARGE, backward=True) as recording:
            tensors, model = PROGRAMS[name]()
            before = gs.trace_graph(tensors, model)
            total(tensors).backward()
    graphs = {"before": before, "after": recording.graph}
    for when, graph in graphs.items():
        for suffix in ("svg", "html", "dot", "json", "txt"):
            graph.save(tmp_path / f"{when}.{suffix}")
        ET.parse(tmp_path / f"{when}.svg")
        data = json.loads((tmp_path / f"{when}.json").read_text(encoding="utf-8"))
        assert len(data["nodes"]) == len(graph.nodes)
        for width in (80, 120):
            lines = graph_to_text(graph, width=width).splitlines()
            assert max(map(len, lines)) <= width
    assert any(edge.gradient for edge in recording.graph.edges) or len(recording.graph.nodes) == 1
    pytest.importorskip("tensorboard", reason="an extra")
    recording.graph.save(tmp_path / "run.tfevents")


def measured(name, *, is_sure):
    """Run a program once more, and return what flowed along each edge of its backward."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with gs.record(modules=False, saved=False, backward=True) as recording:
            if not is_sure:
                # Any hook at all, so that nothing is taken for granted between two nodes.
                torch.ones(1, requires_grad=True).register_hook(print)
            tensors, _ = PROGRAMS[name]()
            total(tensors).backward()
    return recording.graph


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in LARGE])
def test_few_hooks_see_what_a_hook_on_each_node_sees(name):
    few, all_of_them = (measured(name, is_sure=is_sure) for is_sure in (True, False))

    assert [node.op for node in few.nodes] == [node.op for node in all_of_them.nodes]
    for one, other in zip(few.edges, all_of_them.edges, strict=True):
        assert (one.source, one.target) == (other.source, other.target)
        if one.gradient is None or other.gradient is None:
            assert one.gradient is other.gradient
            continue
        if one.gradient.norm is not None:
            assert one.gradient.norm == pytest.approx(other.gradient.norm, rel=1e-5)
        assert one.gradient.zeros == other.gradient.zeros
        assert one.gradient.elements == other.gradient.elements
        assert one.gradient.non_finite == other.gradient.non_finite
