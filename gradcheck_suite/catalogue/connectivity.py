"""Graphs that are cut and parameters that nobody trains (GCS4xx)."""

from __future__ import annotations

from gradcheck_suite.catalogue._entry import Entry
from gradcheck_suite.severity import Severity

GRAPH_BROKEN = Entry(
    code="GCS401",
    slug="graph-broken",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="The way from parameters to the loss is cut or has zero slope",
    what="""
Something between a parameter and the loss ends differentiation: `.item()`, `float()`,
`torch.tensor(...)` of tensors, `.detach()`, a detour through NumPy, `argmax`, a comparison. Or it
has a derivative of zero everywhere: `round`, `floor`, `sign`.
""",
    why="""
If the whole loss is cut off, backward raises `element 0 of tensors does not require grad and does
not have a grad_fn`. If only one term or branch is, nothing raises: that term is a constant to the
optimizer and does not train anything. `round`, `floor` and `sign` keep the graph and pass on
gradients that are exactly zero, so `.grad` is there and looks alive.
""",
    example="""\
import torch
import torch.nn.functional as F


def train(encoder, prior, decoder, optimizer, loader):
    for x in loader:
        code = encoder(x)
        rate = torch.tensor(prior(code).mean().item())  # GCS401
        loss = F.mse_loss(decoder(code), x) + 0.1 * rate
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    instead="""\
import torch.nn.functional as F


def train(encoder, prior, decoder, optimizer, loader):
    for x in loader:
        code = encoder(x)
        rate = prior(code).mean()
        loss = F.mse_loss(decoder(code), x) + 0.1 * rate
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    detection="""
In source: a value that comes from a model or parameter passes through one of these operations and
is then used in a loss that is differentiated. Values that are only logged, stop-gradients by an
explicit `.detach()` in an expression that also uses the attached value (straight-through
estimators, targets), and weights computed under `no_grad` are not reported. A penalty on gradients
that `autograd.grad` returned without `create_graph=True` is such a term, too.

At run time: backward is called on a tensor without a graph, or parameters that took part in the
forward are not reached by it; the line where the graph ends is named.

Severity: error where the whole loss is cut, else warning.
""",
)

FORWARD_UNDER_NO_GRAD = Entry(
    code="GCS402",
    slug="forward-under-no-grad",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="The forward pass to be differentiated runs without recording",
    what="""
The forward of a training step, or the part of it that is to be trained, runs under
`torch.no_grad()` or `torch.inference_mode()`, in a function decorated with them, or after
`torch.set_grad_enabled(False)` that nobody took back.
""",
    why="""
If all of it is affected, backward raises `element 0 of tensors does not require grad and does not
have a grad_fn`. If only the backbone is, nothing raises: the head trains and the backbone's
gradients stay None. Features made under `inference_mode` may raise `Inference tensors cannot be
saved for backward` in the next layer.

A backward alone under `no_grad`, with the forward outside, computes the right gradients.
""",
    example="""\
import torch
import torch.nn.functional as F


def train(backbone, head, loader):
    parameters = [*backbone.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for x, y in loader:
        with torch.no_grad():
            features = backbone(x)  # GCS402
        optimizer.zero_grad()
        F.cross_entropy(head(features), y).backward()
        optimizer.step()
""",
    instead="""\
import torch
import torch.nn.functional as F


def train(backbone, head, loader):
    parameters = [*backbone.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for x, y in loader:
        features = backbone(x)
        optimizer.zero_grad()
        F.cross_entropy(head(features), y).backward()
        optimizer.step()
""",
    detection="""
In source: the innermost grad-mode context of each call decides (an `enable_grad` inside a
`no_grad` counts). Reported are a loss made without recording and then differentiated, and a
grad mode that is switched off and not switched on again before the next training step.

At run time: backward is called on a tensor that was made while recording was off, or an
optimizer's parameters were used only while it was off.

Severity: error where the loss has no graph; a warning where a part may be frozen on purpose.
""",
)

PARAMETER_WITHOUT_GRADIENT = Entry(
    code="GCS403",
    slug="parameter-without-gradient",
    severity=Severity.WARNING,
    in_source=False,
    at_run_time=True,
    title="A trainable parameter that no backward reaches",
    what="""
A parameter with `requires_grad=True` gets no gradient: its layer is not called, its output is not
used, or the way to the loss is cut.
""",
    why="""
Nothing raises: the optimizer skips parameters whose `.grad` is None, and the layer keeps its
initial values. Under `DistributedDataParallel` the same layer makes the next forward raise
`Expected to have finished reduction in the prior iteration`.
""",
    example="""\
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)

    def forward(self, x):
        return self.first(self.first(x).relu()) + x
""",
    instead="""\
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)

    def forward(self, x):
        return self.second(self.first(x).relu()) + x
""",
    detection="""
At run time: no path of the traced graph leads to the parameter, or no backward has written to it
over the audited steps. Parameters that are frozen, and experts or branches that had a gradient in
some step, are not reported.

Severity: warning; some models use a layer only later.
""",
)

UNREGISTERED_MODULE = Entry(
    code="GCS404",
    slug="unregistered-module",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="Modules or parameters in a plain list, dict or tuple",
    what="""
A module keeps layers or parameters in a Python list, dict or tuple. `nn.Module` registers what is
assigned to its attributes directly or through `ModuleList`, `ModuleDict`, `ParameterList` and
`ParameterDict`; it does not look into plain containers.
""",
    why="""
The forward works, and nothing raises as long as some other layer is registered. But
`parameters()`, `state_dict()`, `.to(device)`, `.train()` and `.eval()` all miss these layers: they
are not optimized, not saved, not moved, and keep dropout on in evaluation. If no layer is
registered the optimizer raises `optimizer got an empty parameter list`.
""",
    example="""\
from torch import nn


class Network(nn.Module):
    def __init__(self, size, n):
        super().__init__()
        self.layers = [nn.Linear(size, size) for _ in range(n)]  # GCS404
        self.head = nn.Linear(size, 1)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return self.head(x)
""",
    instead="""\
from torch import nn


class Network(nn.Module):
    def __init__(self, size, n):
        super().__init__()
        layers = [nn.Linear(size, size) for _ in range(n)]
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(size, 1)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return self.head(x)
""",
    detection="""
In source: an attribute of an `nn.Module` is assigned a container whose elements are shown to be
modules or parameters and that is not wrapped, added to or registered elsewhere.

At run time: a parameter with a gradient lies in a plain container attribute of a module and is not
among the model's `parameters()`.

Severity: error; a warning where the elements may be registered under another attribute.
""",
    fixable=True,
)

FORCED_REQUIRES_GRAD = Entry(
    code="GCS405",
    slug="forced-requires-grad",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="requires_grad is forced onto a loss that has no graph",
    what="""
`torch.tensor(loss, requires_grad=True)`, `loss.requires_grad_()` or `loss.requires_grad = True` on
a loss that is cut off from the model: the usual way to silence `does not require grad and does not
have a grad_fn`.
""",
    why="""
It makes the loss a leaf of its own. Backward runs, sets `loss.grad` to 1 and reaches nothing else:
every parameter's gradient stays None, every step is a no-op, the loss is flat. `torch.tensor` of a
tensor gives a `UserWarning` about copying; the other two give no warning at all.

On a loss that has a graph `requires_grad_()` has no effect and is not reported.
""",
    example="""\
import torch
import torch.nn.functional as F


def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        loss = torch.tensor(loss.item(), requires_grad=True)  # GCS405
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    instead="""\
import torch
import torch.nn.functional as F


def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    detection="""
In source: a tensor made from a computed loss with `requires_grad=True`, or `requires_grad` set on
a value whose graph is shown to be cut, and a backward on it.

At run time: backward is called on a scalar that is a leaf.

Severity: error; a warning where source cannot show that the graph is cut.
""",
)

FROZEN_PARAMETER = Entry(
    code="GCS406",
    slug="frozen-parameter",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=True,
    title="A frozen parameter is handed to an optimizer, or frozen by accident",
    what="""
A parameter with `requires_grad=False` is in an optimizer's groups, or the pattern that freezes by
name matches more than was meant.
""",
    why="""
Nothing raises. A frozen parameter has no gradient and is skipped, weight decay included, so the
optimizer group only looks as if it trained. A pattern such as `startswith("layers.1")` also takes
`layers.10` to `layers.19`: part of the model silently stops learning.
""",
    example="""\
import torch


def freeze_first_layers(model):
    for name, parameter in model.named_parameters():
        if name.startswith(("layers.0", "layers.1")):  # GCS406
            parameter.requires_grad_(False)
    return torch.optim.AdamW(model.parameters(), lr=1e-4)
""",
    instead="""\
import torch


def freeze_first_layers(model):
    for name, parameter in model.named_parameters():
        if name.startswith(("layers.0.", "layers.1.")):
            parameter.requires_grad_(False)
    trainable = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(trainable, lr=1e-4)
""",
    detection="""
In source: a parameter is frozen and the optimizer is then given all parameters of the model; or a
name pattern ends inside a number or word.

At run time: an optimizer steps while it owns parameters that do not require grad; they are named.

Severity: warning for a pattern that takes more than whole names; a note otherwise, as skipping
frozen parameters is harmless.
""",
)

GRAD_READ_ON_NON_LEAF = Entry(
    code="GCS407",
    slug="grad-read-on-non-leaf",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=True,
    title=".grad of an intermediate tensor is read without retain_grad()",
    what="""
Code reads `.grad` of a tensor that was computed, not created: an activation, an output, an input
after `.to(...)` or arithmetic.
""",
    why="""
Backward keeps gradients of leaves only. The attribute is None, and torch warns `The .grad
attribute of a Tensor that is not a leaf Tensor is being accessed`. The next line fails with
`'NoneType' object has no attribute ...`, or takes None for "no gradient".
""",
    example="""\
from torch import nn


def activation_gradient(encoder: nn.Module, head: nn.Module, x):
    hidden = encoder(x)
    head(hidden).sum().backward()
    return hidden.grad.norm()  # GCS407
""",
    instead="""\
from torch import nn


def activation_gradient(encoder: nn.Module, head: nn.Module, x):
    hidden = encoder(x)
    hidden.retain_grad()
    head(hidden).sum().backward()
    return hidden.grad.norm()
""",
    detection="""
In source: `.grad` is read from a name whose value is shown to be the result of an operation or
module, and `retain_grad()` is called on it on no path.

At run time: torch warns that the attribute is read from a tensor that has a `grad_fn` and does not
retain its gradient. A warning that the program filters out is not seen.

Severity: warning.
""",
)

CHECKPOINT_CUTS_GRAPH = Entry(
    code="GCS408",
    slug="checkpoint-cuts-graph",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=True,
    title="Reentrant checkpoint whose inputs do not require grad",
    what="""
`torch.utils.checkpoint.checkpoint(block, x)` with `use_reentrant=True`, the default of torch 2.13,
is given no input that requires grad: the first block of a network, or any block above a frozen
one.
""",
    why="""
The reentrant kind records a graph only if an input requires grad; the block's parameters do not
count. They get no gradient. torch warns `None of the inputs have requires_grad=True. Gradients
will be None`; if nothing else requires grad, backward raises, otherwise training goes on without
the block.
""",
    example="""\
from torch import nn
from torch.utils.checkpoint import checkpoint


class Network(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.stem = nn.Linear(width, width)
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        stem = checkpoint(self.stem, x, use_reentrant=True)  # GCS408
        return self.head(stem)
""",
    instead="""\
from torch import nn
from torch.utils.checkpoint import checkpoint


class Network(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.stem = nn.Linear(width, width)
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(checkpoint(self.stem, x, use_reentrant=False))
""",
    detection="""
In source: a call with `use_reentrant=True` in a module's forward, whose only tensor is what forward
itself was given.

At run time: such a call returns an output without a graph while recording is on and the called
module has parameters that require grad.

Severity: warning.
""",
)

ENTRIES = (
    GRAPH_BROKEN,
    FORWARD_UNDER_NO_GRAD,
    PARAMETER_WITHOUT_GRADIENT,
    UNREGISTERED_MODULE,
    FORCED_REQUIRES_GRAD,
    FROZEN_PARAMETER,
    GRAD_READ_ON_NON_LEAF,
    CHECKPOINT_CUTS_GRAPH,
)
