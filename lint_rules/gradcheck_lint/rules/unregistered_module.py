"""GCS404: layers in a plain container."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import libcst as cst

from gradcheck_lint.model.function_class import body_of
from gradcheck_lint.model.syntax import ASSIGNING, assigned_pairs, dotted_name
from gradcheck_lint.rules._container_kinds import form_of, is_nested, kinds_in
from gradcheck_lint.rules._container_texts import LIST_BOUND, puts_container_on_attribute
from gradcheck_lint.rules._registering import has_other_base, is_registered
from gradcheck_lint.rules._rule import Invalid, Rule, Valid, Violation
from gradcheck_lint.rules._wrapping import wrapped
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class UnregisteredModule(Rule):
    """Layers or parameters are kept in a plain list, dict or tuple, unseen by ``parameters()``."""

    entry = catalogue.UNREGISTERED_MODULE

    def may_find(self, function: FunctionModel) -> bool:
        """Tell whether the function is a constructor that puts a container on an attribute."""
        scope = function.scope
        if not _constructs(function):
            return False
        if scope.text is not None and not puts_container_on_attribute(function):
            return False
        return function.module.scopes.derives_from(scope.owner, "torch.nn.")

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every plain container of layers that a module's ``__init__`` puts on self."""
        owner, scopes = function.scope.owner, function.module.scopes
        if owner is None or not _constructs(function):
            return
        if not scopes.derives_from(owner, "torch.nn."):
            return
        first = function.scope.first_parameter
        text = function.scope.text
        lists = None if text is None else frozenset(LIST_BOUND.findall(text))
        for node in body_of(function.scope):
            if type(node) not in ASSIGNING:
                continue
            for target, value in assigned_pairs(node):
                if type(target) is not cst.Attribute or dotted_name(target.value) != first:
                    continue
                if type(value) is cst.Name and lists is not None and value.value not in lists:
                    continue
                assert isinstance(node, (cst.Assign, cst.AnnAssign))
                kinds = kinds_in(value, node, target, function)
                severity = _severity(kinds)
                if severity is not None and has_other_base(owner, function):
                    severity = Severity.WARNING
                if severity is not None and not is_registered(
                    target.attr.value, function, first or ""
                ):
                    yield _violation(function, node, target, value, (kinds, severity))

    invalid: ClassVar[tuple[Invalid, ...]] = (
        Invalid(
            """\
from collections import OrderedDict, defaultdict
from torch import nn

class Towers(nn.Module):
    def __init__(self, width, depth, tasks):
        super().__init__()
        self.pairs = [(nn.Linear(width, width), nn.ReLU()) for _ in range(depth)]
        self.norms = OrderedDict()
        self.heads = defaultdict(list)
        self.gates = [None] * depth
        for i in range(depth):
            self.norms[f"norm{i}"] = nn.LayerNorm(width)
            self.gates[i] = nn.Linear(width, 1)
        for task in tasks:
            self.heads[task].append(nn.Linear(width, 1))
""",
            lines=(7, 8, 9, 10),
        ),
        Invalid(
            """\
from torch import nn

class Pair(nn.Module):
    def __init__(self, width):
        super().__init__()
        first, last = nn.Linear(width, width), nn.Linear(width, width)
        self.layers = [first, last]
""",
            lines=(7,),
            fixed="""\
from torch import nn

class Pair(nn.Module):
    def __init__(self, width):
        super().__init__()
        first, last = nn.Linear(width, width), nn.Linear(width, width)
        self.layers = nn.ModuleList([first, last])
""",
            safely_fixed="""\
from torch import nn

class Pair(nn.Module):
    def __init__(self, width):
        super().__init__()
        first, last = nn.Linear(width, width), nn.Linear(width, width)
        self.layers = [first, last]
""",
        ),
        Invalid(
            """\
import torch

class Heads(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = {"l": torch.nn.Linear(3, 1), "r": torch.nn.Linear(3, 1)}
        self.odd = {"a.b": torch.nn.Linear(3, 1), "type": torch.nn.Linear(3, 1)}
""",
            lines=(6, 7),
            fixed="""\
import torch

class Heads(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = torch.nn.ModuleDict({"l": torch.nn.Linear(3, 1), "r": torch.nn.Linear(3, 1)})
        self.odd = {"a.b": torch.nn.Linear(3, 1), "type": torch.nn.Linear(3, 1)}
""",
            safely_fixed="""\
import torch

class Heads(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = {"l": torch.nn.Linear(3, 1), "r": torch.nn.Linear(3, 1)}
        self.odd = {"a.b": torch.nn.Linear(3, 1), "type": torch.nn.Linear(3, 1)}
""",
        ),
        Invalid(
            """\
import torch
import torch.nn as nn

class Stack(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.layers = []
        for _ in range(depth):
            layer = nn.Linear(width, width)
            self.layers.append(layer)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x
""",
            lines=(7,),
            fixed="""\
import torch
import torch.nn as nn

class Stack(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.layers = nn.ModuleList()
        for _ in range(depth):
            layer = nn.Linear(width, width)
            self.layers.append(layer)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x
""",
            safely_fixed="""\
import torch
import torch.nn as nn

class Stack(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.layers = []
        for _ in range(depth):
            layer = nn.Linear(width, width)
            self.layers.append(layer)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x
""",
        ),
        Invalid(
            """\
import torch
from torch import nn

class Network(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.layers = [nn.Linear(width, width) for _ in range(depth)]
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return self.head(x)
""",
            lines=(7,),
            fixed="""\
import torch
from torch import nn

class Network(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return self.head(x)
""",
            safely_fixed="""\
import torch
from torch import nn

class Network(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.layers = [nn.Linear(width, width) for _ in range(depth)]
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return self.head(x)
""",
        ),
        Invalid(
            """\
import torch
import torch.nn as nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3)

class Pyramid(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.scales = [nn.Parameter(torch.ones(1)) for _ in range(n)]
""",
            lines=(12,),
            fixed="""\
import torch
import torch.nn as nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3)

class Pyramid(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(1)) for _ in range(n)])
""",
            safely_fixed="""\
import torch
import torch.nn as nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3)

class Pyramid(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.scales = [nn.Parameter(torch.ones(1)) for _ in range(n)]
""",
        ),
        Invalid(
            """\
import torch
import torch.nn as nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3)

class Pyramid(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.blocks = {"a": Block(), "b": Block()}
""",
            lines=(12,),
            fixed="""\
import torch
import torch.nn as nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3)

class Pyramid(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.blocks = nn.ModuleDict({"a": Block(), "b": Block()})
""",
            safely_fixed="""\
import torch
import torch.nn as nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3)

class Pyramid(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.blocks = {"a": Block(), "b": Block()}
""",
        ),
        Invalid(
            """\
import lightning as L
from torch import nn

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(2, 1)]
""",
            lines=(7,),
            fixed="""\
import lightning as L
from torch import nn

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 1)])
""",
            safely_fixed="""\
import lightning as L
from torch import nn

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(2, 1)]
""",
        ),
        Invalid(
            """\
from torch import nn

class Stack(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers: list[nn.Module] = []
        for _ in range(depth):
            self.layers.append(nn.Linear(width, width))
        self.heads: list[nn.Module] = [nn.Linear(width, 1), nn.Linear(width, 2)]
""",
            lines=(6, 9),
        ),
        Invalid(
            """\
from torch import nn

class Layers(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.layers = []
        for _ in range(depth):
            self.layers += [nn.Linear(width, width), nn.ReLU()]

class Blocks(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        blocks = []
        for _ in range(depth):
            blocks.append(nn.Linear(width, width))
        self.blocks = blocks

class Convolutions(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.first = list(nn.Conv1d(width, width, 1) for _ in range(depth))
        self.last = [nn.Conv1d(width, width, 1)] * depth
""",
            lines=(6, 16, 21, 22),
            fixed="""\
from torch import nn

class Layers(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.layers = nn.ModuleList()
        for _ in range(depth):
            self.layers += [nn.Linear(width, width), nn.ReLU()]

class Blocks(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        blocks = []
        for _ in range(depth):
            blocks.append(nn.Linear(width, width))
        self.blocks = blocks

class Convolutions(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.first = list(nn.Conv1d(width, width, 1) for _ in range(depth))
        self.last = [nn.Conv1d(width, width, 1)] * depth
""",
            safely_fixed="""\
from torch import nn

class Layers(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.layers = []
        for _ in range(depth):
            self.layers += [nn.Linear(width, width), nn.ReLU()]

class Blocks(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        blocks = []
        for _ in range(depth):
            blocks.append(nn.Linear(width, width))
        self.blocks = blocks

class Convolutions(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.first = list(nn.Conv1d(width, width, 1) for _ in range(depth))
        self.last = [nn.Conv1d(width, width, 1)] * depth
""",
        ),
    )

    valid: ClassVar[tuple[Valid, ...]] = (
        Valid(
            """\
from collections import OrderedDict
from torch import nn

class Towers(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        first, last = nn.Linear(width, width), nn.Linear(width, width)
        self.first = first
        self.body = nn.Sequential(first, last)
        self.order = [first, last]
        self.pairs = [(nn.ReLU(), nn.Tanh()) for _ in range(depth)]
        self.sizes = [None] * depth
        self.names = OrderedDict()
        for i in range(depth):
            self.sizes[i] = width
            self.names[i] = f"layer{i}"
""",
            why="registered on an attribute of their own, or nothing to train",
        ),
        Valid(
            """\
from torch import nn

class Stack(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        layers = []
        for _ in range(depth):
            layers.append(nn.Linear(width, width))
        self.layers = layers
        self.body = nn.Sequential(*layers)
        heads = nn.ModuleList()
        heads.append(nn.Linear(width, 1))
        self.heads = heads
        sizes = [width] * depth
        self.sizes = sizes
""",
            why="registered elsewhere, or no layers",
        ),
        Valid(
            """\
import torch
from torch import nn

class Network(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.widths = [width for _ in range(depth)]
        self.activations = [nn.ReLU(), nn.Tanh()]
        self.stages = [nn.Linear(width, width)]
        for i, stage in enumerate(self.stages):
            self.add_module(f"stage{i}", stage)
        self.parts = [nn.Linear(1, 1)]
        self.all_parts = nn.ModuleList(self.parts)
        self.one = nn.Linear(1, 1)
        self.aliases = [self.one]
        self.frozen = [nn.Linear(1, 1).requires_grad_(False)]
""",
            why="registered otherwise, without weights, or numbers",
        ),
    )


def _violation(
    function: FunctionModel,
    node: cst.Assign | cst.AnnAssign,
    target: cst.Attribute,
    value: cst.BaseExpression,
    held: tuple[set[str | None], Severity],
) -> Violation:
    kinds, severity = held
    what, wrapper = _names(kinds, value)
    # An annotation would not suit what a fix puts there.
    is_open = isinstance(node, cst.AnnAssign) or _is_filled_by_key(value)
    return Violation(
        node,
        f"`{dotted_name(target)}` is a plain {form_of(value)} of {what}: "
        "`parameters()` does not find them, so no optimizer trains them and no state_dict "
        "or `.to()` reaches them",
        severity,
        f"wrap it: `nn.{wrapper}(...)`",
        fix=None if is_open or is_nested(value) else wrapped(value, wrapper, function),
    )


def _constructs(function: FunctionModel) -> bool:
    """Tell whether this is the constructor of a class, or a method that it calls on ``self``."""
    scope = function.scope
    if scope.owner is None:
        return False
    name = scope.name.rpartition(".")[2]
    if name == "__init__":
        return True
    maker = function.module.scopes.method(scope.owner, "__init__")
    if maker is None or name not in maker.words:
        return False
    path = f"{maker.first_parameter}.{name}"
    return any(type(node) is cst.Call and dotted_name(node.func) == path for node in body_of(maker))


def _severity(kinds: set[str | None]) -> Severity | None:
    """Return how sure it is that the container holds parameters; None if nothing says so."""
    if kinds & {"module", "parameter"}:
        return Severity.ERROR
    return Severity.WARNING if kinds == {"likely"} else None


def _is_filled_by_key(value: cst.BaseExpression) -> bool:
    """Tell whether this is an empty dictionary, whose keys need not suit a ``ModuleDict``."""
    return isinstance(value, cst.Dict) and not value.elements


def _names(kinds: set[str | None], node: cst.BaseExpression) -> tuple[str, str]:
    is_dict = isinstance(node, (cst.Dict, cst.DictComp)) or form_of(node) == "dict"
    holder = "Dict" if is_dict else "List"
    if kinds == {"parameter"}:
        return "parameters", f"Parameter{holder}"
    return "modules", f"Module{holder}"
