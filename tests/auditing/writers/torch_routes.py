"""Writers that go through torch."""

from __future__ import annotations

import torch
from torch import nn

from tests.auditing.writers.bank import case, parts


def hidden():
    """A leaf, and a forward that keeps its exponential in a list."""
    leaf = torch.linspace(0.5, 1.5, 6).reshape(2, 3).requires_grad_()
    kept = []

    def forward():
        kept[:] = [leaf.exp()]
        return (kept[0] * 2 * kept[0]).sum()

    return kept, forward


@case
def in_place_method(fixed):
    kept, forward = hidden()

    def write():
        with torch.no_grad():
            kept[0].mul_(3)  # <- written

    return parts(fixed, forward, write)


@case
def augmented_assignment(fixed):
    kept, forward = hidden()

    def write():
        h = kept[0].detach()
        h += 1  # <- written

    return parts(fixed, forward, write)


@case
def slice_assignment(fixed):
    kept, forward = hidden()

    def write():
        kept[0].detach()[0, 1:] = 7.0  # <- written

    return parts(fixed, forward, write)


@case
def out_argument(fixed):
    kept, forward = hidden()

    def write():
        torch.add(torch.ones(2, 3), 1, out=kept[0].detach())  # <- written

    return parts(fixed, forward, write)


@case
def out_argument_of_data(fixed):
    kept, forward = hidden()

    def write():
        torch.mul(torch.ones(2, 3), 5, out=kept[0].data)  # <- written

    return parts(fixed, forward, write)


@case
def copy_into_data(fixed):
    kept, forward = hidden()

    def write():
        kept[0].data.copy_(torch.zeros(2, 3))  # <- written

    return parts(fixed, forward, write)


@case
def foreach_on_data(fixed):
    kept, forward = hidden()

    def write():
        torch._foreach_mul_([kept[0].data], 2.0)  # <- written

    return parts(fixed, forward, write)


@case
def update_by_hand(fixed):
    layer = nn.Linear(3, 1)
    x = torch.ones(2, 3, requires_grad=True)

    def write():
        for parameter in layer.parameters():
            parameter.data.add_(torch.ones_like(parameter), alpha=-0.1)  # <- written

    return parts(fixed, lambda: layer(x).sum(), write)


@case
def optimizer_step_too_early(fixed):
    layer = nn.Linear(3, 1)
    x = torch.ones(2, 3, requires_grad=True)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    (layer(x) ** 2).sum().backward()

    def write():
        optimizer.step()  # <- written

    return parts(fixed, lambda: torch.sum(layer(x) ** 2), write)


@case
def data_assigned(fixed):
    layer = nn.Linear(3, 1)
    x = torch.ones(2, 3, requires_grad=True)
    scale = torch.ones(3, requires_grad=True)

    def write():
        scale.data = scale.data * 2  # <- written

    return parts(fixed, lambda: layer(x * scale).sum(), write)


@case
def data_assigned_to_a_parameter(fixed):
    norm = nn.LayerNorm(3)
    x = torch.randn(2, 3, requires_grad=True)

    def write():
        norm.weight.data = torch.full((3,), 0.5) - norm.weight.data  # <- written

    return parts(fixed, lambda: norm(x).pow(2).sum(), write)


@case
def data_assigned_by_setattr(fixed):
    weight = torch.ones(3, requires_grad=True)
    x = torch.randn(2, 3, requires_grad=True)

    def write():
        name = "data"
        setattr(weight, name, weight.data + 1)  # <- written

    return parts(fixed, lambda: torch.sum(x * weight), write)


@case
def vector_to_parameters(fixed):
    layer = nn.Linear(3, 1)
    x = torch.ones(2, 3, requires_grad=True)
    weight = nn.Parameter(torch.ones(3))

    def write():
        flat = nn.utils.parameters_to_vector([weight])
        nn.utils.vector_to_parameters(flat * 2, [weight])  # <- written

    return parts(fixed, lambda: layer(x * weight).sum(), write)


@case
def swapped_storage(fixed):
    weight = torch.ones(3, requires_grad=True)
    x = torch.randn(2, 3, requires_grad=True)

    def write():
        with torch.no_grad():
            weight.set_(torch.full((3,), float(weight[0]) + 1))  # <- written

    return parts(fixed, lambda: torch.sum(x * weight), write)


@case
def storage_filled(fixed):
    kept, forward = hidden()

    def write():
        kept[0].untyped_storage().fill_(0)  # <- written

    return parts(fixed, forward, write)


@case
def storage_copied(fixed):
    kept, forward = hidden()

    def write():
        other = torch.full((2, 3), 9.0)
        kept[0].untyped_storage().copy_(other.untyped_storage())  # <- written

    return parts(fixed, forward, write)


@case
def storage_element(fixed):
    kept, forward = hidden()

    def write():
        storage = kept[0].untyped_storage()
        storage[3] = (storage[3] + 1) % 128  # <- written

    return parts(fixed, forward, write)


@case
def storage_freed_and_gathered_before(fixed):
    kept, forward = hidden()

    def write():
        storage = kept[0].untyped_storage()
        size, values = storage.nbytes(), kept[0].detach().clone()
        storage.resize_(0)
        storage.resize_(size)
        kept[0].data.copy_(values)
        kept[0].data.fill_(4.0)  # <- written

    return parts(fixed, forward, write)


@case
def dlpack_alias(fixed):
    kept, forward = hidden()

    def write():
        torch.from_dlpack(kept[0].detach()).zero_()  # <- written

    return parts(fixed, forward, write)


@case
def dispatcher_call(fixed):
    kept, forward = hidden()

    def write():
        torch.ops.aten.add_.Tensor(kept[0].data, torch.ones(2, 3))  # <- written

    return parts(fixed, forward, write)


@case
def version_counter_kept(fixed):
    kept, forward = hidden()

    def write():
        h = kept[0].detach()
        with torch.autograd._unsafe_preserve_version_counter(h):
            torch.ops.aten.mul_.Scalar(h, 2.0)  # <- written

    return parts(fixed, forward, write)


@case
def view_of_data(fixed):
    kept, forward = hidden()

    def write():
        kept[0].data.view(-1)[2:4].fill_(9)  # <- written

    return parts(fixed, forward, write)


@case
def index_put_on_data(fixed):
    kept, forward = hidden()

    def write():
        kept[0].data[torch.tensor([0]), torch.tensor([1])] = 5.0  # <- written

    return parts(fixed, forward, write)


@case
def scatter_into_data(fixed):
    kept, forward = hidden()

    def write():
        kept[0].data.scatter_(1, torch.tensor([[0], [1]]), 8.0)  # <- written

    return parts(fixed, forward, write)


@case
def activation_in_place_on_data(fixed):
    leaf = torch.linspace(-1, 1, 6).requires_grad_()
    kept = []

    def forward():
        kept[:] = [leaf * 2]
        return kept[0].pow(2).sum()

    def write():
        nn.functional.relu(kept[0].data, inplace=True)  # <- written

    return parts(fixed, forward, write)


@case
def initialised_again(fixed):
    layer = nn.Linear(3, 1)
    x = torch.ones(2, 3, requires_grad=True)

    def write():
        nn.init.normal_(layer.weight.data)  # <- written

    return parts(fixed, lambda: layer(x).sum(), write)


@case
def state_dict_loaded(fixed):
    layer = nn.Linear(3, 1)
    x = torch.ones(2, 3, requires_grad=True)

    def write():
        state = {name: value + 1 for name, value in layer.state_dict().items()}
        layer.load_state_dict(state)  # <- written

    return parts(fixed, lambda: layer(x).sum(), write)


@case
def scripted_writer(fixed):
    kept, forward = hidden()
    scripted = torch.jit.script(_doubled)

    def write():
        scripted(kept[0].data)  # <- written

    return parts(fixed, forward, write)


def _doubled(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.mul_(2.0)


_doubled.__annotations__ = {"tensor": torch.Tensor, "return": torch.Tensor}


@case
def batched_norm_momentum(fixed):
    norm = nn.BatchNorm1d(3).eval()
    x = torch.randn(4, 3, requires_grad=True)

    def write():
        norm.running_mean.numpy()[:] += 1.0  # <- written

    return parts(fixed, lambda: norm(x).pow(2).sum(), write)


@case
def indices_of_an_embedding(fixed):
    table = nn.Embedding(5, 2)
    tokens = torch.tensor([0, 1, 2])

    def write():
        tokens.numpy()[:] = (tokens.numpy() + 1) % 5  # <- written

    return parts(fixed, lambda: table(tokens).pow(2).sum(), write)
