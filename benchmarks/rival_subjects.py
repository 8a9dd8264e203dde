"""Training steps and functions with one mistake each, for plugins of pytest to find.

Each subject is the source of a module that defines ``make_setup`` and ``step``, or ``function`` and
``inputs``. ``wrong`` stands in it where ``right`` would be correct; the line of the mistake is the
one that ends in ``# here``: of a loss that is scaled wrongly, the backward. Subjects of kind
"frozen" are tested with what is below the name ``0`` of the model declared frozen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["training", "accumulation", "mixed precision", "frozen", "leak", "function"]


@dataclass(frozen=True, slots=True)
class Subject:
    """One mistake, and the same code without it."""

    name: str
    kind: Kind
    source: str
    wrong: str
    right: str

    def text(self, *, is_wrong: bool) -> str:
        """Return the module with the mistake, or without."""
        return self.source.replace("@@", self.wrong if is_wrong else self.right)


_SETUP = """\
import torch
from torch import nn
from support import Setup

def make_setup():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    return Setup(model=model, optimizers=torch.optim.SGD(model.parameters(), lr=0.05))

"""
_STEP = """\
def step(setup, batch):
    x, y = batch
    model, optimizer = setup.model, next(iter(setup.optimizers.values()))
"""
_ZERO = "    optimizer.zero_grad()\n"
_LOSS = "    loss = (model(x) - y).pow(2).mean()\n"
_OF_HIDDEN = "    loss = (model[2](hidden) - y).pow(2).mean()\n"
_APPLY = "    loss.backward()\n    optimizer.step()\n"
_RETURN = "    return loss.detach()\n"


def _training(name: str, body: str, wrong: str, right: str, setup: str = _SETUP) -> Subject:
    return Subject(name, "training", setup + _STEP + body, wrong, right)


_TRAINING = (
    _training(
        "no zero_grad",
        "@@" + _LOSS + "    loss.backward()\n    optimizer.step()  # here\n" + _RETURN,
        "",
        "    optimizer.zero_grad()\n",
    ),
    _training(
        "zero_grad between backward and step",
        _LOSS + "@@    optimizer.step()\n" + _RETURN,
        "    loss.backward()\n    optimizer.zero_grad()  # here\n",
        "    optimizer.zero_grad()\n    loss.backward()\n",
    ),
    _training(
        "step before backward",
        "    optimizer.zero_grad()\n" + _LOSS + "@@" + _RETURN,
        "    optimizer.step()  # here\n    loss.backward()\n",
        "    loss.backward()\n    optimizer.step()\n",
    ),
    _training(
        "clipping after the step",
        "    optimizer.zero_grad()\n" + _LOSS + "    loss.backward()\n@@" + _RETURN,
        "    optimizer.step()\n    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # here\n",
        "    nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n    optimizer.step()\n",
    ),
    _training(
        "a loss without its graph",
        "    optimizer.zero_grad()\n    hidden = model[1](model[0](x))\n    out = model[2](@@\n"
        "    loss = (out - y).pow(2).mean()\n" + _APPLY + _RETURN,
        "hidden.detach())  # here",
        "hidden)",
    ),
    _training(
        "a forward under no_grad",
        "    optimizer.zero_grad()\n@@        hidden = model[1](model[0](x))\n"
        + _OF_HIDDEN
        + _APPLY
        + _RETURN,
        "    with torch.no_grad():  # here\n",
        "    if True:\n",
    ),
    _training(
        "a saved tensor overwritten through .data",
        "    optimizer.zero_grad()\n    hidden = model[1](model[0](x))\n@@"
        + _OF_HIDDEN
        + _APPLY
        + _RETURN,
        "    hidden.data.mul_(0.5)  # here\n",
        "    hidden = hidden * 0.5\n",
    ),
    _training(
        "a saved tensor overwritten by numpy",
        "    optimizer.zero_grad()\n    hidden = torch.exp(model[0](x))\n@@"
        + _OF_HIDDEN
        + _APPLY
        + _RETURN,
        "    hidden.detach().numpy()[:] *= 0.5  # here\n",
        "    hidden = hidden * 0.5\n",
    ),
    _training(
        "a head that came after the optimizer",
        "    optimizer.zero_grad()\n"
        + _LOSS
        + "    loss.backward()\n    optimizer.step()\n"
        + _RETURN,
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)  # here\n"
        "    model[2] = nn.Linear(8, 1)\n",
        "    model[2] = nn.Linear(8, 1)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)\n",
        _SETUP.replace(
            "    return Setup(model=model, optimizers="
            "torch.optim.SGD(model.parameters(), lr=0.05))",
            "@@    return Setup(model=model, optimizers=optimizer)",
        ),
    ),
    _training(
        "a layer that the loss does not use",
        "    optimizer.zero_grad()\n@@    loss.backward()\n    optimizer.step()\n" + _RETURN,
        "    loss = (model[0](x).mean(1, keepdim=True) - y).pow(2).mean()  # here\n",
        _LOSS,
    ),
    _training(
        "another optimizer's gradients left behind",
        "    setup.optimizers['g'].zero_grad()\n@@"
        "    loss = (model.d(model.g(x).detach()) - y).pow(2).mean()\n    loss.backward()\n"
        "    setup.optimizers['d'].step()  # here\n" + _RETURN,
        "    setup.optimizers['d'].zero_grad()\n    model.d(model.g(x)).mean().backward()\n"
        "    setup.optimizers['g'].step()\n",
        "    model.d(model.g(x)).mean().backward()\n    setup.optimizers['g'].step()\n"
        "    setup.optimizers['d'].zero_grad()\n",
        """\
import torch
from torch import nn
from support import Setup

def make_setup():
    model = nn.ModuleDict({"g": nn.Linear(4, 4), "d": nn.Linear(4, 1)})
    optimizers = {name: torch.optim.SGD(part.parameters(), lr=0.05) for name, part in model.items()}
    return Setup(model=model, optimizers=optimizers)

""",
    ),
    _training(
        "evaluation mode that is never left",
        "    optimizer.zero_grad()\n"
        + _LOSS
        + "    loss.backward()\n    optimizer.step()\n@@"
        + _RETURN,
        "    model.eval()  # here\n    with torch.no_grad():\n        model(x)\n",
        "    model.eval()\n    with torch.no_grad():\n        model(x)\n    model.train()\n",
        _SETUP.replace("nn.Tanh()", "nn.Dropout(0.1)"),
    ),
    _training(
        "a NaN gradient of a norm at zero",
        "    optimizer.zero_grad()\n    out = model(x)\n    gap = out - out.detach()\n"
        "    loss = (out - y).pow(2).mean() + @@\n    loss.backward()\n    optimizer.step()\n"
        + _RETURN,
        "gap.pow(2).sum().sqrt()  # here",
        "torch.linalg.vector_norm(gap)",
    ),
)
_TWO_OPTIMIZERS = """\
import torch
from torch import nn
from support import Setup

def make_setup():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    return Setup(model=model, optimizers={
        "base": torch.optim.SGD(@@.parameters(), lr=0.05),
        "head": torch.optim.SGD(model[2].parameters(), lr=0.05)})

"""
_UPDATES = (
    _training(
        "a parameter in two optimizers",
        "    for each in setup.optimizers.values():\n        each.zero_grad()\n"
        + _LOSS
        + "    loss.backward()\n    setup.optimizers['base'].step()\n"
        "    setup.optimizers['head'].step()  # here\n" + _RETURN,
        "model",
        "model[:2]",
        _TWO_OPTIMIZERS,
    ),
    _training(
        "an optimizer of another copy of the model",
        _ZERO + _LOSS + "    loss.backward()  # here\n    optimizer.step()\n" + _RETURN,
        "import copy; optimizer = torch.optim.SGD(model.parameters(), lr=0.05); "
        "model = copy.deepcopy(model)",
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.05)",
        _SETUP.replace(
            "    return Setup(model=model, optimizers="
            "torch.optim.SGD(model.parameters(), lr=0.05))",
            "    @@\n    return Setup(model=model, optimizers=optimizer)",
        ),
    ),
    _training(
        "a frozen parameter that momentum moves",
        "    if setup.step_index == 2:\n        model[0].requires_grad_(False)\n"
        + _LOSS
        + "    loss.backward()\n    optimizer.step()  # here\n    optimizer.zero_grad(@@)\n"
        + _RETURN,
        "set_to_none=False",
        "",
        _SETUP.replace("lr=0.05", "lr=0.05, momentum=0.5"),
    ),
    _training(
        "a learning rate of zero",
        _ZERO + _LOSS + "    loss.backward()\n    optimizer.step()  # here\n" + _RETURN,
        "0.0",
        "0.05",
        _SETUP.replace("lr=0.05", "lr=@@"),
    ),
)
_FROZEN_SETUP = """\
import torch
from torch import nn
from support import Setup

class Base(nn.Sequential):
    def train(self, mode=True):
        return super().train(@@)

def make_setup():
    model = nn.Sequential(Base(nn.Linear(4, 8), nn.BatchNorm1d(8)), nn.Tanh(), nn.Linear(8, 1))
    model[0].requires_grad_(False)
    model.train()
    return Setup(model=model, optimizers=torch.optim.SGD(model[2].parameters(), lr=0.05))

"""


def _frozen(name: str, body: str, wrong: str, right: str, setup: str) -> Subject:
    return Subject(name, "frozen", setup + _STEP + body, wrong, right)


_FROZEN = (
    _frozen(
        "a frozen layer that gets gradients",
        _ZERO + _LOSS + "    loss.backward()  # here\n    optimizer.step()\n" + _RETURN,
        "",
        "model[0].requires_grad_(False)",
        _SETUP.replace("    return", "    @@\n    return"),
    ),
    _frozen(
        "running statistics of a frozen layer",
        _ZERO
        + "    loss = (model(x) - y).pow(2).mean()  # here\n    loss.backward()\n"
        + "    optimizer.step()\n"
        + _RETURN,
        "mode",
        "False",
        _FROZEN_SETUP,
    ),
    _frozen(
        "a frozen layer that is averaged with another",
        _ZERO
        + _LOSS
        + "    loss.backward()\n    optimizer.step()\n    with torch.no_grad():\n"
        + "        model[@@].weight.mul_(0.99)  # here\n"
        + _RETURN,
        "0",
        "2",
        _SETUP.replace("    return", "    model[0].requires_grad_(False)\n    return"),
    ),
)
_AMP_SETUP = _SETUP.replace(
    "lr=0.05))\n", 'lr=0.05),\n                 scaler=torch.amp.GradScaler("cpu"))\n'
)


def _mixed(name: str, body: str, wrong: str, right: str) -> Subject:
    head = _STEP + "    scaler = setup.scaler\n    optimizer.zero_grad()\n" + _LOSS
    return Subject(name, "mixed precision", _AMP_SETUP + head + body, wrong, right)


_MIXED = (
    _mixed(
        "clipping scaled gradients",
        "    scaler.scale(loss).backward()\n@@    nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
        "  # here\n    scaler.step(optimizer)\n    scaler.update()\n" + _RETURN,
        "",
        "    scaler.unscale_(optimizer)\n",
    ),
    _mixed(
        "a step past the scaler",
        "    scaler.scale(loss).backward()\n@@    scaler.update()\n" + _RETURN,
        "    optimizer.step()  # here\n",
        "    scaler.step(optimizer)\n",
    ),
    _mixed(
        "no update of the scaler",
        "    scaler.scale(loss).backward()\n    scaler.step(optimizer)  # here\n@@" + _RETURN,
        "",
        "    scaler.update()\n",
    ),
    _mixed(
        "a loss that is not scaled",
        "    @@.backward()\n    scaler.step(optimizer)  # here\n    scaler.update()\n" + _RETURN,
        "loss",
        "scaler.scale(loss)",
    ),
    _mixed(
        "a scaler that leaves out every step",
        "    scaler.scale(loss@@).backward()\n    scaler.step(optimizer)  # here\n"
        "    scaler.update()\n" + _RETURN,
        " / 0.0",
        "",
    ),
)
_WINDOW = """\
def make_step(accumulation_steps):
    def step(setup, batch):
        x, y = batch
        model, optimizer = setup.model, setup.optimizer
        last = (setup.step_index + 1) % accumulation_steps == 0
"""
_PART = "        loss = (model(x) - y).pow(2).mean() / accumulation_steps\n"
_WHEN_LAST = "        loss.backward()\n        if last:\n            optimizer.step()\n"
_SCALED = (
    "        loss.backward()  # here\n        if last:\n            optimizer.step()\n"
    "            optimizer.zero_grad()\n"
)
_END = "        return loss.detach()\n    return step\n"


def _window(name: str, body: str, wrong: str, right: str) -> Subject:
    return Subject(name, "accumulation", _SETUP + _WINDOW + body + _END, wrong, right)


_ACCUMULATION = (
    _window(
        "zeroed at every micro-batch",
        "@@" + _PART + _WHEN_LAST,
        "        optimizer.zero_grad()  # here\n",
        "        if setup.step_index % accumulation_steps == 0:\n"
        "            optimizer.zero_grad()\n",
    ),
    _window(
        "never zeroed",
        _PART
        + "        loss.backward()\n        if last:\n            optimizer.step()  # here\n@@",
        "",
        "            optimizer.zero_grad()\n",
    ),
    _window(
        "a loss that is not divided",
        "        loss = (model(x) - y).pow(2).mean()@@\n" + _SCALED,
        "",
        " / accumulation_steps",
    ),
    _window(
        "a loss that is divided twice",
        _PART + "        loss = loss@@\n" + _SCALED,
        " / accumulation_steps",
        "",
    ),
    _window(
        "a mean over elements that are masked",
        "        parts = (model(x) - y).pow(2) * (x > 0)\n"
        "        loss = parts.sum() / @@ / accumulation_steps\n" + _SCALED,
        "(x > 0).sum()",
        "x.numel()",
    ),
    _window(
        "clipping at every micro-batch",
        _PART + "        loss.backward()\n@@            optimizer.step()\n"
        "            optimizer.zero_grad()\n",
        "        nn.utils.clip_grad_norm_(model.parameters(), 0.01)  # here\n        if last:\n",
        "        if last:\n            nn.utils.clip_grad_norm_(model.parameters(), 0.01)\n",
    ),
    _window(
        "a step after the first micro-batch",
        _PART + "        loss.backward()\n        if @@:\n"
        "            optimizer.step()  # here\n            optimizer.zero_grad()\n",
        "setup.step_index % accumulation_steps == 0",
        "last",
    ),
)


def _leak(name: str, body: str, wrong: str, right: str, head: str = "") -> Subject:
    beginning = _STEP + "    optimizer.zero_grad()\n" + _LOSS
    rest = "    loss.backward()\n    optimizer.step()\n" + _RETURN
    return Subject(name, "leak", head + _SETUP + beginning + body + rest, wrong, right)


_LEAKS = (
    _leak("losses in a list", "    log.append(@@\n", "loss)  # here", "loss.item())", "log = []\n"),
    _leak(
        "a running sum of losses",
        '    total["loss"] = total["loss"] + @@\n',
        "loss  # here",
        "loss.item()",
        'total = {"loss": 0.0}\n',
    ),
    _leak(
        "a hook that stores outputs",
        "    if not kept:\n        model[0].register_forward_hook(keep)\n    kept.append(None)\n",
        "out)  # here",
        "out.detach().mean().item())",
        "kept = []\ndef keep(module, args, out):\n    kept.append(@@\n",
    ),
)


def _function(name: str, backward: str, wrong: str, right: str) -> Subject:
    source = f"""\
import torch

class Op(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.pow(3)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return {backward}

function = Op.apply
inputs = (torch.linspace(-1.0, 1.0, 6, dtype=torch.float64),)
"""
    return Subject(name, "function", source, wrong, right)


_FUNCTIONS = (
    _function("a wrong factor in backward", "@@ * x.pow(2) * grad", "2", "3"),
    _function("a second derivative that is wrong", "3 * @@.pow(2) * grad", "x.detach()", "x"),
    _function(
        "a backward that writes into its argument",
        "@@",
        "grad.mul_(3 * x.pow(2))",
        "grad * (3 * x.pow(2))",
    ),
    _function("a backward that is not linear", "3 * x.pow(2) * @@", "grad.clamp(-1, 1)", "grad"),
)
SUBJECTS = (
    *(*_TRAINING, *_UPDATES, *_FROZEN),
    *(*_ACCUMULATION, *_MIXED, *_LEAKS, *_FUNCTIONS),
)
