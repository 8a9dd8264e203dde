from __future__ import annotations

import dataclasses
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import torch
from torch import nn

import gradcheck_suite as gs


@dataclasses.dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor


class Slotted:
    __slots__ = ("loss", "unset")

    def __init__(self, loss: torch.Tensor) -> None:
        self.loss = loss


class Holder:
    def __init__(self, loss: torch.Tensor) -> None:
        self.loss = loss
        self.myself = self


class ModelOutput(OrderedDict):
    pass


Pair = namedtuple("Pair", "loss extra")


@pytest.fixture
def loss():
    return torch.randn(3, requires_grad=True).exp().sum()


def names(given):
    return [root.name for root in gs.trace_graph(given).roots]


class TestContainers:
    def test_a_tensor(self, loss):
        assert names(loss) == ["the tensor you passed"]

    def test_nested_containers_in_order(self, loss):
        other = loss * 2

        assert names({"a": [other, (loss,)], "b": {"c": loss + 1}}) == [
            "['a'][0]",
            "['a'][1][0]",
            "['b']['c']",
        ]

    def test_a_tensor_met_twice_keeps_its_first_name(self, loss):
        assert names([loss, {"again": loss}]) == ["[0]"]

    @pytest.mark.parametrize(
        ("wrap", "name"),
        [
            (lambda t: Output(t, torch.ones(1)), "loss"),
            (lambda t: Pair(t, 3), "loss"),
            (Slotted, "loss"),
            (Holder, "loss"),
            (lambda t: ModelOutput(loss=t), "['loss']"),
            (lambda t: {"x": {t}}, "['x']{0}"),
            (lambda t: {"v": t}.values(), "{0}"),
            (lambda t: [range(10**12), np.ones(10**6), t], "[2]"),
            (lambda t: {None: t}, "[<NoneType>]"),
        ],
    )
    def test_holders(self, loss, wrap, name):
        assert names(wrap(loss)) == [name]

    def test_a_container_that_holds_itself(self, loss):
        cycle = [loss]
        cycle.append(cycle)

        assert names(cycle) == ["[0]"]

    def test_a_very_deep_container(self, loss):
        deep = loss
        for _ in range(5_000):
            deep = [deep]

        assert len(names(deep)) == 1

    def test_a_node_and_a_gradient_edge(self, loss):
        edge = torch.autograd.graph.get_gradient_edge(loss)

        assert gs.trace_graph(loss.grad_fn).nodes[0].op == "SumBackward0"
        assert gs.trace_graph(edge).nodes == gs.trace_graph(loss).nodes

    def test_a_hostile_key(self, loss):
        (name,) = names({"<script>\n\x1b[31m" + "k" * 10_000: loss})

        assert "\n" not in name
        assert "\x1b" not in name
        assert len(name) < 120


class TestRefused:
    def test_a_module(self):
        with pytest.raises(gs.UsageError, match=r"got the module Linear.*trace_graph\(model\(x\)"):
            gs.trace_graph(nn.Linear(2, 2))

    def test_a_function(self):
        with pytest.raises(gs.UsageError, match="call it and pass what it returns"):
            gs.trace_graph(lambda: None)

    def test_a_generator(self):
        with pytest.raises(gs.UsageError, match="read only once"):
            gs.trace_graph(tensor for tensor in [torch.ones(1)])

    @pytest.mark.parametrize("given", [None, 3, "loss", [], {"a": None}, object()])
    def test_no_tensor_at_all(self, given):
        with pytest.raises(gs.UsageError, match="there is no tensor"):
            gs.trace_graph(given)

    def test_a_tensor_without_a_graph(self):
        with pytest.raises(gs.UsageError, match=r"float32, shape \(2,\).*requires_grad is False"):
            gs.trace_graph(torch.ones(2))

    def test_a_loss_made_under_no_grad(self, loss):
        with torch.no_grad():
            cut = loss * 2

        with pytest.raises(gs.UsageError, match="no_grad"):
            gs.trace_graph([cut])

    def test_integer_tensors(self):
        with pytest.raises(gs.UsageError, match="Only floating-point and complex tensors"):
            gs.trace_graph({"labels": torch.arange(3), "mask": torch.ones(2, dtype=torch.bool)})

    def test_a_model_that_is_not_a_module(self, loss):
        with pytest.raises(gs.UsageError, match=r"model= expected a torch.nn.Module, got dict"):
            gs.trace_graph(loss, model={"a": loss})
