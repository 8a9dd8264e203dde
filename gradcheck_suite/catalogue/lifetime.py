"""Graphs that live too long (GCS2xx)."""

from __future__ import annotations

from gradcheck_suite.catalogue._entry import Entry
from gradcheck_suite.severity import Severity

GRAPH_KEPT = Entry(
    code="GCS201",
    slug="graph-kept",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="A loss, output or metric is stored with its graph: memory leak",
    what="""
A tensor with a `grad_fn` outlives its step: appended to a list, added to a running total, put
into a dict, an attribute, a closure, a meter, a replay buffer, or held by the traceback of a kept
exception. It holds the graph that made it.
""",
    why="""
Memory grows with every step until the process dies far from the cause. What is held depends on
backward: without one, as for a metric or a validation loss, every activation of the step; after
one the saved activations are freed, and what stays is the graph's nodes, the hooks and tensors
attached to them and the output itself. A running total links every step into one graph.
""",
    example="""\
import torch
import torch.nn.functional as F


def train_epoch(model, optimizer, loader):
    total = 0.0
    history = []
    for x, y in loader:
        output = model(x)
        loss = F.mse_loss(output, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss  # GCS201
        history.append(output)  # GCS201
    return total / len(loader), history
""",
    instead="""\
import torch
import torch.nn.functional as F


def train_epoch(model, optimizer, loader):
    total = 0.0
    history = []
    for x, y in loader:
        output = model(x)
        loss = F.mse_loss(output, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        history.append(output.detach())
    return total / len(loader), history
""",
    detection="""
In source: a value that is shown to carry a graph is added to something that outlives the turn of
the loop, and nothing detaches it (`.item()`, `.detach()`, `float()`, `no_grad`). A sum or list that
is itself backpropagated needs its graphs and is not reported.

At run time: the graphs and saved tensors still alive are counted by the step that made them. What
survives step after step is a leak, and the objects that hold it are named.

Severity: error where growth was seen or is certain from source, else warning.
""",
    fixable=True,
)

STATE_NOT_DETACHED = Entry(
    code="GCS202",
    slug="state-not-detached",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="Hidden state carried from step to step with its graph",
    what="""
The state of a recurrent network, a memory or a running estimate goes from one training step into
the next without `.detach()`, so each loss reaches back through all earlier steps.
""",
    why="""
The second backward runs into the graph that the first one freed: `RuntimeError: Trying to backward
through the graph a second time`. With `retain_graph=True` the next one fails as soon as the
optimizer has changed the weights (`modified by an inplace operation`). Where nothing raises,
because no backward runs or no weight changes, memory grows with every step.
""",
    example="""\
import torch
from torch import nn


def train(cell, batches):
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)
    state = torch.zeros(2, cell.hidden_size)
    for x, target in batches:
        state = cell(x, state)  # GCS202
        loss = (state - target).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    instead="""\
import torch
from torch import nn


def train(cell, batches):
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)
    state = torch.zeros(2, cell.hidden_size)
    for x, target in batches:
        state = cell(x, state.detach())
        loss = (state - target).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    detection="""
In source: in a loop that calls backward, a name that is bound outside the loop is passed to a
module or recurrence and bound again to its result, and no path detaches it. Backpropagation
through the whole sequence, with one backward after the loop, is not reported.

At run time: a graph made in an earlier step is reached by this step's backward, or torch raises
one of the two errors above at such an edge.

Severity: error when seen, or when every path through the loop carries the graph; else warning.
""",
)

RETAIN_GRAPH = Entry(
    code="GCS203",
    slug="retain-graph",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=True,
    title="retain_graph=True without a second backward over that graph",
    what="""
`backward(retain_graph=True)` or `autograd.grad(..., retain_graph=True)` keeps every saved tensor
of a graph that nothing goes through again. Often it was added to silence `Trying to backward
through the graph a second time`.
""",
    why="""
The saved tensors stay until the loss is dropped, which in a loop is after the next forward: two
steps' activations are alive at once. As a cure for an error it hides the cause, which is a state
or total that still carries the previous step's graph (GCS202, GCS201); the next error is then
`modified by an inplace operation`.
""",
    example="""\
import torch.nn.functional as F


def train(model, optimizer, loader):
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward(retain_graph=True)  # GCS203
        optimizer.step()
""",
    instead="""\
import torch.nn.functional as F


def train(model, optimizer, loader):
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    detection="""
In source: no later backward or `autograd.grad` on any path may use the same graph. With
`create_graph=True` the graph is kept anyway and `retain_graph` is only redundant; that is not
reported.

At run time: a graph was retained and freed without a second pass; or two backwards from one and the
same loss filled a gradient with exactly twice what the first had left, and the step used it.

Severity: warning.
""",
)

EVAL_WITH_GRAPH = Entry(
    code="GCS204",
    slug="eval-with-graph",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=True,
    title="Validation or inference records graphs that nobody uses",
    what="""
A pass that never calls backward runs with gradient recording on: no `torch.no_grad()` and no
`torch.inference_mode()`. `model.eval()` changes dropout and batch norm; it does not stop
recording.
""",
    why="""
Results are right. Every layer saves what a backward would need, so peak memory is that of
training: a batch size that fits in evaluation with `no_grad` may run out of memory without it, and
any output that is kept becomes a leak (GCS201).
""",
    example="""\
from torch import nn


def evaluate(model: nn.Module, loader):
    model.eval()
    correct = 0
    for x, y in loader:
        correct += (model(x).argmax(dim=1) == y).sum().item()  # GCS204
    model.train()
    return correct
""",
    instead="""\
import torch
from torch import nn


@torch.no_grad()
def evaluate(model: nn.Module, loader):
    model.eval()
    correct = 0
    for x, y in loader:
        correct += (model(x).argmax(dim=1) == y).sum().item()
    model.train()
    return correct
""",
    detection="""
In source: a function or loop that puts a model in evaluation mode and calls it, uses no gradient,
and neither runs under `no_grad` or `inference_mode` nor is called only from there. A method that
merely has the name `eval` is not reported.

At run time: a graph was recorded while all modules were in evaluation mode and was freed without
any backward. Attacks, saliency maps and penalties, which do differentiate, are not reported. A
teacher or target network that is called amid training, and whose output is detached, is one too.

Severity: warning; a note for a teacher, whose graph lives only until its output is detached.
""",
)

TENSOR_ON_CTX = Entry(
    code="GCS205",
    slug="tensor-on-ctx",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=True,
    title="A tensor is kept as an attribute of ctx, not by save_for_backward",
    what="""
The forward of an `autograd.Function` writes `ctx.x = x` for a tensor instead of calling
`ctx.save_for_backward(x)`.
""",
    why="""
Three protections are lost. The version is not checked: if `x` is changed in place before backward,
the gradient is wrong without a word. The memory is not freed by backward but lives as long as the
graph. An output kept this way forms a reference cycle (output, its `grad_fn`, `ctx`, output) that
only Python's garbage collector breaks, so memory grows until it happens to run.
`saved_tensors_hooks`, which offload or inspect saved tensors, do not see the tensor.

Numbers, shapes and flags belong on `ctx`; this is about tensors only.
""",
    example="""\
from torch.autograd import Function


class Square(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x  # GCS205
        return x * x

    @staticmethod
    def backward(ctx, grad_output):
        return 2 * ctx.x * grad_output
""",
    instead="""\
from torch.autograd import Function


class Square(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 2 * x * grad_output
""",
    detection="""
In source: the value assigned to the attribute must be shown to be a tensor: an input that is used
or annotated as one, an output, or the result of a tensor operation.

At run time: the attributes of the Function's node in the graph are searched for tensors.

Severity: warning; the gradient is right as long as nothing writes to the tensor.
""",
)

CREATE_GRAPH_CYCLE = Entry(
    code="GCS206",
    slug="create-graph-cycle",
    severity=Severity.WARNING,
    in_source=True,
    at_run_time=True,
    title="backward(create_graph=True) ties parameters to their gradients",
    what="""
`loss.backward(create_graph=True)` stores gradients that carry a graph in `.grad`. That graph
leads back to the parameter which holds the gradient: a reference cycle.
""",
    why="""
torch warns once that this `will create a reference cycle between the parameter and its gradient`.
The cycle lies in C++: a parameter that is dropped while its `.grad` is set is never freed, not even
by `gc.collect()`, and neither are the activations behind it. Adding up such gradients over steps
without resetting them keeps every step's graph. Setting `.grad = None` in time breaks the cycle.

Where a penalty needs the graph of the gradients, `torch.autograd.grad(loss, parameters,
create_graph=True)` returns them and stores none.
""",
    example="""\
from torch import nn


def train_step(model: nn.Module, optimizer, x, y):
    optimizer.zero_grad()
    loss = (model(x) - y).pow(2).mean()
    loss.backward(create_graph=True)  # GCS206
    norm = sum(p.grad.pow(2).sum() for p in model.parameters())
    optimizer.step()
    return loss.item(), norm.item()
""",
    instead="""\
from torch import nn


def train_step(model: nn.Module, optimizer, x, y):
    optimizer.zero_grad()
    loss = (model(x) - y).pow(2).mean()
    loss.backward()
    norm = sum(p.grad.pow(2).sum() for p in model.parameters())
    optimizer.step()
    return loss.item(), norm.item()
""",
    detection="""
In source: a `.backward(...)` call with `create_graph=True`. A function that sets the gradients to
None afterwards on every path is not reported.

At run time: a `.grad` with a graph of its own is added to in a later step; or three such graphs
were dropped, and no later backward (nor `torch.autograd.grad`) went through any.

Severity: warning; a note where gradients are cleared each step, so that one step's graph is
recorded for nothing.
""",
)

HOOK_KEEPS_GRAPH = Entry(
    code="GCS207",
    slug="hook-keeps-graph",
    severity=Severity.ERROR,
    in_source=True,
    at_run_time=True,
    title="A hook stores activations or outputs with their graph",
    what="""
A forward hook, pre-hook or tensor hook puts a tensor that it was given, undetached, into a
container that outlives the step.
""",
    why="""
As GCS201, but out of sight of the training loop: each call adds one activation and the graph
behind it. A hook that is never removed does so in every later pass, evaluation included.
""",
    example="""\
from torch import nn


class Features:
    def __init__(self, layer: nn.Module):
        self.outputs = []
        self.handle = layer.register_forward_hook(self.store)

    def store(self, module, inputs, output):
        self.outputs.append(output)  # GCS207
""",
    instead="""\
from torch import nn


class Features:
    def __init__(self, layer: nn.Module):
        self.outputs = []
        self.handle = layer.register_forward_hook(self.store)

    def store(self, module, inputs, output):
        self.outputs.append(output.detach())

    def close(self):
        self.outputs.clear()
        self.handle.remove()
""",
    detection="""
In source: a function that is passed to a `register_*_hook` method appends one of its tensor
arguments to a list without `.detach()`. Other ways to store are seen at run time alone. A list
that is read by a loss in the same step, as for a perceptual loss, needs the graph.

At run time: surviving graphs (see GCS201) whose holder was filled from a hook.

Severity: error where growth was seen; else warning.
""",
)

ENTRIES = (
    GRAPH_KEPT,
    STATE_NOT_DETACHED,
    RETAIN_GRAPH,
    EVAL_WITH_GRAPH,
    TENSOR_ON_CTX,
    CREATE_GRAPH_CYCLE,
    HOOK_KEEPS_GRAPH,
)
