"""Idioms of published code that only look like a mistake, and wrong kin of each of them."""

from __future__ import annotations

import pytest

from gradcheck_lint.engine import lint_source

_HEAD = """\
import numpy as np
import torch
from torch import autograd, nn, optim
from torch.autograd import Variable

"""

# The code of the mistake that each looks like comes first.
_CORRECT = {
    "GCS102 attribute made a leaf again": """\
def fit(state, xs):
    state.w = torch.zeros(3, requires_grad=True)
    state.b = torch.zeros(3, requires_grad=True)
    for x in xs:
        (x @ state.w + state.b).mean().backward()
        state.w = (state.w - 0.1 * state.w.grad).detach().requires_grad_()
        state.b = state.b - 0.1 * state.b.grad
        state.b.requires_grad_()
""",
    "GCS102 object handed on": """\
def fit(state, xs):
    state.w = torch.zeros(3, requires_grad=True)
    for x in xs:
        (x @ state.w).mean().backward()
        state.w = state.w - 0.1 * state.w.grad
        state.refresh()
""",
    "GCS106 truths have no graph": """\
def collect(model, xs):
    done = torch.zeros(len(xs), dtype=torch.bool)
    for i, x in enumerate(xs):
        done[i] = model(x)["done"].any()
    return done
""",
    "GCS106 gradients have no graph": """\
class Influence:
    def scores_of(self, tests):
        for x in tests:
            loss = self.model(x)["loss"]
            gradients = autograd.grad(loss, self.used)
            scores = torch.zeros(len(self.train))
            for i, score in enumerate(self.calculate(x, gradients)):
                scores[i] = score
            yield scores
""",
    "GCS106 numbers by declaration": """\
class Influence:
    def scores_of(self, tests):
        for x in tests:
            loss = self.model(x)["loss"]
            scores = torch.zeros(len(self.train))
            for i, score in enumerate(self.calculate(x, loss)):
                scores[i] = score
            yield scores

    def calculate(self, x, loss) -> List[float]:
        raise NotImplementedError
""",
    "GCS202 a memory of segments": """\
from transformer import Decoder

def train(loader, optimizer):
    model, mems = Decoder(), []
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x, y, mems)
        loss, mems = out[0], out[1:]
        loss.mean().backward()
        optimizer.step()
""",
    "GCS203 closure": """\
def benchmark(renderer, x):
    loss = renderer(x).sum()

    def once():
        loss.backward(retain_graph=True)
        torch.cuda.synchronize()

    return once
""",
    "GCS203 losses of one graph": """\
def independent(loss_fn, data, parameters):
    losses = loss_fn(data)
    for key in losses.keys():
        if not key.startswith("loss"):
            continue
        losses[key].sum().backward(retain_graph=True)
        assert all(p.grad is None for p in parameters)
""",
    "GCS203 somebody else's tensor": """\
def perform(transport, activations, place):
    batch = activations[place.index][0]
    batch.tensor.backward(retain_graph=True)
""",
    "GCS204 an operator differentiates": """\
class Predictor:
    def on_predict_end(self):
        self.net.eval()
        outputs = self.net(self.x)
        self.value = self.operator(self.x, outputs).cpu().numpy()
""",
    "GCS204 the caller may differentiate": """\
class Estimator:
    def _predict_framework(self, x, y=None):
        self.model.eval()
        outputs = self.model(x)
        return outputs[-1], y
""",
    "GCS207 the module itself": """\
class Converted(nn.Module):
    def __init__(self, model, x):
        super().__init__()
        found = []

        def hook(layer, given, out):
            found.append(layer)

        for child in model.children():
            child.register_forward_hook(hook)
        model(x)
        self.layers = nn.ModuleList(found)
""",
    "GCS301 property of another file": """\
from estimators import Estimator

class Smoothed(Estimator):
    def fit(self, loader):
        for x, y in loader:
            self._optimizer.zero_grad()
            self.loss(self.model(x), y).backward()
            self.optimizer.step()
""",
    "GCS301 property": """\
class Trainer:
    def __init__(self, model):
        self.model = model
        self._sgd = optim.SGD(model.parameters(), 0.1)

    @property
    def optimizer(self):
        return self._sgd

    def fit(self, loader):
        for x in loader:
            self._sgd.zero_grad()
            self.model(x).mean().backward()
            self.optimizer.step()
""",
    "GCS301 half steps of an unknown optimizer": """\
def train(model, batch):
    optimizer = model.get_optimizer()
    for _ in range(10):
        losses = model.train_step(batch)
        optimizer.zero_grad()
        losses["beta"].backward()
        optimizer.first_step()
        losses["all"].backward()
        optimizer.step()
""",
    "GCS307 nothing to train": """\
def train(loader, model):
    optimizer = optim.SGD(model.parameters(), 0.1)
    model.criterion = nn.CrossEntropyLoss()
    model.activation = nn.Sequential(nn.ReLU(), nn.Dropout(0.1))
    setattr(model, "drop", nn.Dropout(0.1))
    for x, y in loader:
        optimizer.zero_grad()
        model.criterion(model(x), y).backward()
        optimizer.step()
""",
    "GCS307 set before": """def train(loader, model, name):
    setattr(model, "head", nn.Linear(3, 2))
    optimizer = optim.SGD(model.parameters(), 0.1)
    setattr(optimizer, "head", model.head)
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
""",
    "GCS307 no module": """class Holder:
    def __init__(self, net):
        self.net = net

    def parameters(self):
        return self.net.parameters()

def train(loader, net):
    holder = Holder(net)
    optimizer = optim.SGD(holder.parameters(), 0.1)
    holder.frozen = nn.Linear(3, 2)
    for x in loader:
        optimizer.zero_grad()
        holder.net(x).mean().backward()
        optimizer.step()
""",
    "GCS310 a scaler that scales by hooks": """\
from scaling import LayerwiseGradientScaler

def train(model, loader, criterion):
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    scaler = LayerwiseGradientScaler(model)
    for x, y in loader:
        optimizer.zero_grad()
        scaler.scale()
        loss = criterion(model(x), y)
        loss.backward()
        scaler.unscale()
        scaler.step(optimizer)
""",
    "GCS401 an adversarial batch": """\
def train(model, attack, criterion, loader, optimizer):
    for x, y in loader:
        start = x.cpu().detach().numpy()
        change = attack.generate(start) - start
        noisy = torch.from_numpy(start + change) + torch.randn_like(x)
        loss = criterion(model(noisy), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    "GCS401 targets": """\
class Estimator:
    def gradient(self, x, y):
        x = x.clone().detach().requires_grad_(True)
        inputs, prepared = self.prepare(x, y=y)
        if isinstance(prepared, np.ndarray):
            targets = torch.from_numpy(prepared)
        else:
            targets = prepared
        loss = self.loss(self.model(inputs)[-1].reshape(-1), targets)
        loss.backward()
        return x.grad
""",
    "GCS401 weights made of gradients": """\
class Autoencoder:
    def step(self, nll, adversarial, last):
        first = autograd.grad(nll, last, retain_graph=True)[0]
        second = autograd.grad(adversarial, last, retain_graph=True)[0]
        weight = first.norm() / second.norm()
        loss = nll + weight * adversarial
        loss.backward()

    def other(self, x):
        adversarial = -self.critic(x).mean()
        nll = self.generator(x).mean()
        weight = autograd.grad(nll, self.last, retain_graph=True)[0].norm()
        loss = nll + weight * adversarial
        loss.backward()
""",
    "GCS401 a step of the attack": """\
def train(model, loader, optimizer, criterion):
    for x, y in loader:
        x.requires_grad_()
        gradient = autograd.grad(criterion(model(x), y), x)[0]
        loss = criterion(model(x + 0.1 * gradient.sign()), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    "GCS401 a penalty with a graph": """\
def train(critic, loader, optimizer, weight):
    for x in loader:
        x.requires_grad_()
        out = critic(x)
        gradient = autograd.grad(out.sum(), x, create_graph=True)[0]
        loss = out.mean() + weight * gradient.norm()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    "GCS405 a gradient put into place": """\
def candidate(transform, differentiable, start):
    raw = transform.inv(start)
    free = raw.detach().clone().requires_grad_(True)
    minimizer = optim.LBFGS([free], max_eval=20)

    def closure():
        minimizer.zero_grad()
        y = differentiable(transform(free))
        autograd.backward(free, autograd.grad(y, free, retain_graph=True))
        return y

    minimizer.step(closure)
    return transform(free)
""",
    "GCS902 nothing is recorded": """\
def test(model, loader):
    model.eval()
    with torch.no_grad():
        for x in loader:
            print(model(Variable(x, volatile=True)))
""",
}

_WRONG = {
    "GCS102 attribute": """\
def fit(state, xs):
    state.w = torch.zeros(3, requires_grad=True)
    for x in xs:
        (x @ state.w).mean().backward()
        state.w = state.w - 0.1 * state.w.grad
""",
    "GCS106 floats": """\
def collect(model, xs):
    found = torch.zeros(len(xs), dtype=torch.float32)
    for i, x in enumerate(xs):
        found[i] = model(x).mean()
    return found
""",
    "GCS203 made anew in each iteration": """\
def train(model, loader, optimizer):
    for x in loader:
        losses = model(x)
        optimizer.zero_grad()
        losses["all"].sum().backward(retain_graph=True)
        optimizer.step()
""",
    "GCS204 metric": """\
class Predictor:
    def predict(self):
        self.net.eval()
        outputs = self.net(self.x)
        return self.metric(outputs, self.y).cpu().numpy()
""",
    "GCS207 the output": """\
class Probe:
    def __init__(self, model):
        self.found = []
        model.layer.register_forward_hook(self.keep)

    def keep(self, layer, given, out):
        self.found.append(out)
""",
    "GCS301 another optimizer": """\
class Trainer:
    def __init__(self, model, critic):
        self.model, self.critic = model, critic
        self.optimizer = optim.SGD(model.parameters(), 0.1)
        self.critic_optimizer = optim.SGD(critic.parameters(), 0.1)

    def fit(self, loader):
        for x in loader:
            self.critic_optimizer.zero_grad()
            self.model(x).mean().backward()
            self.optimizer.step()
""",
    "GCS307 set by name": """\
def train(loader, model):
    optimizer = optim.SGD(model.parameters(), 0.1)
    setattr(model, "head", nn.Linear(3, 2))
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
""",
    "GCS307 an instance": """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.head(self.body(x))

def train(loader):
    net = Net()
    optimizer = optim.SGD(net.parameters(), 0.1)
    net.head = nn.Sequential(nn.ReLU(), nn.Linear(3, 2))
    for x in loader:
        optimizer.zero_grad()
        net(x).mean().backward()
        optimizer.step()
""",
    "GCS310 a scaler": """\
from scaling import ShardedGradScaler

def train(model, loader, criterion):
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    scaler = ShardedGradScaler()
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        scaler.step(optimizer)
        scaler.update()
""",
    "GCS401 a penalty of constants": """\
def penalty_of(critic, real, fake):
    share = torch.rand(real.size(0), 1)
    mixed = (share * real + (1 - share) * fake).requires_grad_(True)
    out = critic(mixed)
    ones = torch.ones_like(out)
    gradient = autograd.grad(out, mixed, grad_outputs=ones, retain_graph=True)[0]
    return ((gradient.norm(2, dim=1) - 1) ** 2).mean()

def train(critic, loader, optimizer, weight):
    for real, fake in loader:
        optimizer.zero_grad()
        penalty = penalty_of(critic, real, fake)
        loss = critic(fake).mean() - critic(real).mean() + weight * penalty
        loss.backward()
        optimizer.step()
""",
    "GCS401 a penalty added in place": """\
def train(critic, loader, optimizer, options):
    for real in loader:
        optimizer.zero_grad()
        x = real.clone().requires_grad_(True)
        out = critic(x)
        gradient, = autograd.grad(out.sum(), x, retain_graph=True)
        penalty = gradient.pow(2).sum() / 2
        loss = out.mean()
        loss += options.weight * penalty
        loss.backward()
        optimizer.step()
""",
    "GCS405 a seed of ones": """\
def train(model, loader, optimizer):
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean().detach().requires_grad_()
        loss.backward(torch.ones_like(loss))
        optimizer.step()
""",
    "GCS902 recorded": """\
def test(model, loader):
    with torch.enable_grad():
        for x in loader:
            print(model(Variable(x, volatile=True)))
""",
}

_ONE_GRADIENT_FOR_TWO_INPUTS = """\
class Reduce(autograd.Function):
    @staticmethod
    def forward(ctx, group, x):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        if ctx.group.size == 1:
            return gradient
        return None, gradient * 2
"""


@pytest.mark.parametrize("program", _CORRECT.values(), ids=_CORRECT.keys())
def test_nothing_is_said_of_what_is_right(program: str) -> None:
    compile(program, "train.py", "exec")
    findings = lint_source((_HEAD + program).encode(), "train.py")
    assert [finding.code for finding in findings if finding.code != "GCS901"] == []


@pytest.mark.parametrize("name", _WRONG)
def test_what_is_wrong_is_found(name: str) -> None:
    found = lint_source((_HEAD + _WRONG[name]).encode(), "train.py")
    assert name[:6] in [finding.code for finding in found]


def test_one_gradient_for_two_inputs_does_not_make_a_tensor_of_the_first() -> None:
    found = lint_source((_HEAD + _ONE_GRADIENT_FOR_TWO_INPUTS).encode(), "train.py")
    assert [finding.code for finding in found] == ["GCS501"]
