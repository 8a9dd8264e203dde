"""Run small programs, such as the examples of rules, with stubs for what they leave out.

A program is driven by what it defines: functions and methods are called with stubs by the names of
their parameters, modules and Functions are given a tensor and differentiated.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import warnings
from dataclasses import dataclass

import torch
from torch import nn

from tests.lint.program_variants import NAMES

BATCHES = 3
"""How many batches a stub of a data loader has."""


_MEANT = {new: name for name, new in NAMES.items()}


class _Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)
        self.log_softmax = False

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


@dataclass(frozen=True)
class Result:
    """What came of a program: the values it computed and left behind, or what it raised."""

    values: tuple
    raised: str | None = None


def run(source, *, pairs, classes):
    """Run a program.

    Args:
        source: what it is.
        pairs: whether a data loader gives inputs with targets.
        classes: whether targets are numbers of classes.
    """
    torch.manual_seed(0)
    stubs = _Stubs(pairs=pairs, classes=classes)
    namespace = {"__name__": "program", "flag": False}
    values = []
    raised = None
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            # The scaler of a GPU is switched off where there is none; the CPU's scales.
            exec(re.sub("[\"']cuda[\"']", "'cpu'", source), namespace)
            defined = [v for v in namespace.values() if getattr(v, "__module__", None) == "program"]
            values.extend(_plain(_drive(value, stubs)) for value in defined)
        except Exception as error:  # noqa: BLE001 - whatever a program raises
            raised = f"{type(error).__name__}: {error}"
    return Result((*values, *map(_plain, stubs.state())), raised)


class _Stubs:
    """Values for parameters, by name; the same object for the same name."""

    def __init__(self, *, pairs, classes):
        self._model = _Model()
        self._x = [torch.randn(4, 4) for _ in range(BATCHES)]
        y = [torch.randint(4, (4,)) if classes else torch.randn(4, 4) for _ in range(BATCHES)]
        self._y = y
        self._loader = list(zip(self._x, y, strict=True)) if pairs else self._x
        self._made = {}

    def __getitem__(self, name):
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def _make(self, name):
        made = {
            "loader": lambda: self._loader,
            "optimizer": lambda: torch.optim.SGD(self._model.parameters(), lr=0.1),
            "model": lambda: self._model,
            "criterion": lambda: nn.functional.mse_loss,
            "scaler": lambda: torch.amp.GradScaler("cpu", init_scale=1024.0),
            "x": lambda: self._x[0],
            "y": lambda: self._y[0],
        }
        # Anything else is a width or a number of things.
        return made.get(_MEANT.get(name, name), lambda: 4)()

    def state(self):
        """Return what a program can have changed."""
        yield [parameter.detach() for parameter in self._model.parameters()]
        yield [parameter.grad for parameter in self._model.parameters()]
        for made in self._made.values():
            if isinstance(made, torch.optim.Optimizer):
                yield made.state_dict()["state"]


def _drive(value, stubs):
    if not inspect.isclass(value):
        return value(*_arguments(value, stubs))
    if issubclass(value, torch.autograd.Function):
        x = stubs["x"].clone().requires_grad_()
        value.apply(x).square().sum().backward()
        return x.grad
    instance = value(*_arguments(value, stubs))
    if isinstance(instance, nn.Module):
        output = instance(stubs["x"])
        output.square().sum().backward()
        return [output.detach(), [parameter.grad for parameter in instance.parameters()]]
    methods = [getattr(instance, name) for name in vars(value) if not name.startswith("_")]
    whole = [one for one in methods if _is_loop(one)] or methods
    results = [one(*_arguments(one, stubs)) for one in whole]
    return [results, {k: v for k, v in vars(instance).items() if isinstance(v, (list, dict))}]


def _is_loop(method):
    return bool({"loader", NAMES["loader"]} & set(inspect.signature(method).parameters))


def _arguments(called, stubs):
    return [stubs[name] for name in inspect.signature(called).parameters]


def _plain(value):
    """Return a value as what can be compared bit for bit, without graphs."""
    if isinstance(value, torch.Tensor):
        return ("tensor", value.dtype, tuple(value.shape), value.detach().numpy().tobytes())
    if isinstance(value, dict):
        return tuple((key, _plain(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value))
    return value if isinstance(value, (int, float, str, bool, type(None))) else type(value).__name__
