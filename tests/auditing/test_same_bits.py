"""An audited run gives bit for bit what the bare run gives."""

from __future__ import annotations

import contextlib
import copy
import pickle
import random
import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import gradcheck_suite as gs


def dropout_net():
    return nn.Sequential(
        nn.Linear(12, 16), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(16, 3)
    )


def conv_net():
    return nn.Sequential(
        nn.Unflatten(1, (1, 3, 4)),
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(48, 3),
    )


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        return self.head(self.layer(x.view(-1, 3, 4)).flatten(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTM(4, 5, 2, batch_first=True, dropout=0.2)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.cell(x.view(-1, 3, 4))[0][:, -1])


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.utils.parametrizations.spectral_norm(nn.Linear(12, 8))
        self.second = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
        self.head = nn.Linear(8, 3)
        self.table = nn.Embedding(7, 8, max_norm=1.0)

    def forward(self, x):
        hidden = torch.tanh(self.second(self.first(x))) + self.table(torch.arange(len(x)) % 7)
        return self.head(hidden)


class Checkpointed(nn.Module):
    def __init__(self, *, use_reentrant):
        super().__init__()
        self.first = nn.Linear(12, 8)
        self.body = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Dropout(0.3))
        self.head = nn.Linear(8, 3)
        self.use_reentrant = use_reentrant

    def forward(self, x):
        return self.head(checkpoint(self.body, self.first(x), use_reentrant=self.use_reentrant))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(12, 12, bias=False)
        self.decode = nn.Linear(12, 12, bias=False)
        self.decode.weight = self.encode.weight
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        return self.head(self.decode(torch.relu(self.encode(x))))


MODELS = {
    "dropout": dropout_net,
    "conv": conv_net,
    "transformer": Encoder,
    "lstm": Recurrent,
    "norms": Normed,
    "checkpoint": lambda: Checkpointed(use_reentrant=False),
    "checkpoint-reentrant": lambda: Checkpointed(use_reentrant=True),
    "tied": Tied,
}
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
    "lbfgs": lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, max_iter=3),
}


def train(make_model, make_optimizer, *, steps=5, autocast=False, double_backward=False):
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    model = make_model()
    optimizer = make_optimizer(model.parameters())
    losses = []
    for _ in range(steps):
        x, y = torch.randn(6, 12), torch.randint(3, (6,))
        x.requires_grad_(double_backward)

        def closure(x=x, y=y):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                loss = nn.functional.cross_entropy(model(x), y)
            if double_backward:
                (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
                loss = loss + gradient.pow(2).sum()
            loss.backward()
            losses.append(loss.detach().clone())
            return loss

        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    state = [value.clone() for value in model.state_dict().values()]
    generators = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
    return losses, state, generators


def assert_same(make_model, make_optimizer, **options):
    bare = train(make_model, make_optimizer, **options)
    with gs.audit(checksum_every=2) as session:
        watched = train(make_model, make_optimizer, **options)
    assert session.findings == ()
    for ours, theirs in zip(watched[:2], bare[:2], strict=True):
        assert len(ours) == len(theirs)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert torch.equal(watched[2][0], bare[2][0])
    assert watched[2][1:] == bare[2][1:]
    return session


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.sampled(every=3)
def test_parameters_losses_and_generators_are_the_same(model, optimizer):
    session = assert_same(MODELS[model], OPTIMIZERS[optimizer])
    assert session.report.summary["steps"] == 5


@pytest.mark.parametrize("model", ["dropout", "conv"])
def test_under_autocast(model):
    assert_same(MODELS[model], OPTIMIZERS["adam"], autocast=True)


@pytest.mark.parametrize("model", ["dropout", "tied"])
def test_through_a_gradient_penalty(model):
    assert_same(MODELS[model], OPTIMIZERS["sgd"], double_backward=True)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_torch_func_runs_as_without_an_audit():
    def loss(weight, x):
        return (weight @ x).tanh().sum()

    weight, batch = torch.randn(3, 3), torch.randn(5, 3)
    per_sample = torch.func.vmap(torch.func.grad(loss), (None, 0))
    expected = per_sample(weight, batch)
    with gs.audit() as session:
        assert torch.equal(per_sample(weight, batch), expected)
        torch.func.hessian(lambda x: x.sin().sum())(batch[0])
        parameter = torch.randn(3, requires_grad=True)
        (parameter * parameter).sum().backward()
    assert session.report.summary["saved_tensors_checked"] == 2
    assert any("torch.func" in line for line in session.report.not_covered)


def test_hooks_of_the_users_win_and_are_told():
    x = torch.randn(4, requires_grad=True)
    with gs.audit() as session:
        with torch.autograd.graph.save_on_cpu():
            loss = (x.exp() * 2).sum()
        loss.backward()
    assert session.report.summary["saved_tensors"] == 0
    (line,) = [line for line in session.report.not_covered if "save_on_cpu" in line]
    assert "torch checks no versions there" in line


def test_hooks_that_were_there_before_stay_in_charge():
    packed = []

    def pack(tensor):
        packed.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        with gs.audit() as session:
            torch.randn(4, requires_grad=True).exp().sum().backward()
        torch.randn(4, requires_grad=True).exp().sum().backward()
    assert len(packed) == 2
    assert any("left in charge" in line for line in session.report.not_covered)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_compiled_code_compiles_and_runs_as_before(fullgraph):
    torch._dynamo.reset()
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))

    def step(x):
        hidden = net(x) * 2
        hidden.add_(1)
        hidden += 1
        hidden[0] = 0
        return nn.functional.leaky_relu(hidden, inplace=True).sum()

    x = torch.randn(3, 4)
    step(x).backward()
    expected = [parameter.grad.clone() for parameter in net.parameters()]
    compiled = torch.compile(step, backend="eager", fullgraph=fullgraph)
    for context in (gs.audit(), contextlib.nullcontext()):
        with context:
            net.zero_grad()
            compiled(x).backward()
        for parameter, gradient in zip(net.parameters(), expected, strict=True):
            assert torch.equal(parameter.grad, gradient)
    torch._dynamo.reset()


def test_a_model_that_must_compile_whole_is_not_compiled_for_each_step():
    torch._dynamo.reset()
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with gs.audit(report=False):
        for _ in range(14):
            optimizer.zero_grad()
            compiled(torch.randn(3, 4)).sum().backward()
            optimizer.step()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - graphs == 1
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_torchscript_compiles_under_and_after_an_audit():
    def make():
        return torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True)))

    with gs.audit():
        make()(torch.randn(2, 3)).sum().backward()
    make()(torch.randn(2, 3)).sum().backward()


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_trace_passes_torchs_own_check():
    # Which compares the names of values, taken from variables where operators run.
    model = nn.Sequential(
        *(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.Conv2d(2, 2, 1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(8, 3), nn.Tanh()),
    )
    with gs.audit():
        torch.jit.trace(model, torch.randn(2, 1, 6, 6), check_trace=True)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("grad", [True, False])
def test_tracers_record_the_same_program(grad):
    def net():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(inplace=True), nn.Dropout(0.1)
        )

    def programs():
        model, x = net(), torch.randn(2, 1, 5, 5)
        model(x).sum().backward()
        with torch.set_grad_enabled(grad):
            texts = [str(torch.fx.symbolic_trace(model).graph)]
            model.eval()
            texts.append(str(torch.jit.trace(model, x, check_trace=True).graph))
            texts.append(str(torch.export.export(model, (x,)).graph))
        return [re.sub(r" at 0x\w+|\.___torch_mangle_\d+", "", text) for text in texts]

    bare = programs()
    with gs.audit():
        assert programs() == bare


def test_gradients_inside_transforms_are_nobodys_loop():
    def per_sample(w, x):
        return torch.func.vmap(torch.func.grad(lambda w, x: (w @ x).tanh().sum()), (None, 0))(w, x)

    w, x = torch.randn(3, 3), torch.randn(5, 3)
    expected = per_sample(w, x)
    with gs.audit() as session:
        assert torch.equal(per_sample(w, x), expected)
        torch.randn(3, requires_grad=True).exp().sum().backward()
    assert session.report.summary["backwards"] == 1
    assert not [line for line in session.report.not_covered if "bug in" in line]


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls.append(str(function))
        return function(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.calls.append(function)
        return function(*args, **(kwargs or {}))


def no_hooks():
    return contextlib.nullcontext()


def idle_hooks():
    # Any pair of saved-tensors hooks makes torch itself detach what it unpacks.
    return torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)


@pytest.mark.parametrize(("mode", "bare"), [(Functions, no_hooks), (Operators, idle_hooks)])
def test_modes_of_the_users_see_nothing_of_ours(mode, bare):
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 1))
    x = torch.randn(3, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def calls():
        net.zero_grad()
        with mode() as seen:
            for _ in range(2):
                optimizer.zero_grad()
                out = net(x)
                loss = (out * out).add_(1).sum()
                loss.backward()
                optimizer.step()
        return seen.calls

    with bare():
        expected = calls()
    with gs.audit() as session:
        assert calls() == expected
    assert session.findings == ()


def test_functions_registered_before_the_audit_are_found_in_tables():
    table = {torch.Tensor.add_: "method", torch.relu_: "function"}
    with gs.audit():
        assert table[torch.Tensor.add_] == "method"
        assert table[torch.relu_] == "function"
        assert torch.Tensor.add_.__name__ == "add_"
        assert copy.deepcopy(torch.relu_) is torch.relu_
        assert pickle.loads(pickle.dumps(torch.Tensor.add_)) == torch.Tensor.add_
