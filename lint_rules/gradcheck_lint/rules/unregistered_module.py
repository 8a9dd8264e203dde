"""GCS404: layers in a plain container."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

import libcst as cst

from gradcheck_lint.model.function_class import assignments, body_of, returns
from gradcheck_lint.model.knowledge import PARAMETER_CLASSES, TORCH_MODULES_WITH_WEIGHTS
from gradcheck_lint.model.syntax import bound_names, dotted_name, is_none, positional, walk
from gradcheck_lint.rules._rule import Invalid, Rule, Valid, Violation
from gradcheck_lint.rules._wrapping import wrapped
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import ClassScope


class UnregisteredModule(Rule):
    """Layers or parameters are kept in a plain list, dict or tuple, unseen by ``parameters()``."""

    entry = catalogue.UNREGISTERED_MODULE

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every plain container of layers that a module's ``__init__`` puts on self."""
        owner, scopes = function.scope.owner, function.module.scopes
        if owner is None or not function.scope.name.endswith("__init__"):
            return
        if not scopes.derives_from(owner, "torch.nn."):
            return
        first = function.scope.first_parameter
        for node in body_of(function.scope):
            if not isinstance(node, cst.Assign) or len(node.targets) != 1:
                continue
            target = node.targets[0].target
            if not isinstance(target, cst.Attribute) or dotted_name(target.value) != first:
                continue
            elements = _elements(node.value) or _appended(node, target, function)
            if not elements:
                continue
            kinds = {_kind(element, function) for element in elements}
            if not kinds & {"module", "parameter", "likely"} and _is_run(target.attr.value, owner):
                kinds = {_kind_by_name(element, function) for element in elements}
            severity = _severity(kinds)
            if severity is None or _is_registered(target.attr.value, function, first or ""):
                continue
            what, wrapper = _names(kinds, node.value)
            yield Violation(
                node,
                f"`{first}.{target.attr.value}` is a plain {_form(node.value)} of {what}: "
                "`parameters()` does not find them, so no optimizer trains them and no state_dict "
                "or `.to()` reaches them",
                severity,
                f"wrap it: `nn.{wrapper}(...)`",
                fix=wrapped(node.value, wrapper, function),
            )

    invalid: ClassVar[tuple[Invalid, ...]] = (
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
    )

    valid: ClassVar[tuple[Valid, ...]] = (
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


_FORMS: dict[type[cst.CSTNode], str] = {
    cst.List: "list",
    cst.ListComp: "list",
    cst.Tuple: "tuple",
    cst.Dict: "dict",
    cst.DictComp: "dict",
}
_WITHOUT_WEIGHTS = frozenset(
    {
        "ReLU",
        "ReLU6",
        "Tanh",
        "Sigmoid",
        "GELU",
        "SiLU",
        "ELU",
        "LeakyReLU",
        "Softmax",
        "LogSoftmax",
        "Dropout",
        "Dropout2d",
        "Dropout3d",
        "Identity",
        "Flatten",
        "Upsample",
        "Hardswish",
        "Mish",
        "Softplus",
        "SELU",
        "MaxPool1d",
        "MaxPool2d",
        "MaxPool3d",
        "AvgPool1d",
        "AvgPool2d",
        "AvgPool3d",
        "AdaptiveAvgPool1d",
        "AdaptiveAvgPool2d",
        "AdaptiveMaxPool2d",
        "ZeroPad2d",
        "ReflectionPad2d",
        "ReplicationPad2d",
        "PixelShuffle",
    }
)


def _elements(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return the expressions that make the elements of a plain container."""
    if isinstance(node, (cst.List, cst.Tuple)):
        return [element.value for element in node.elements]
    if isinstance(node, cst.ListComp):
        return [node.elt]
    if isinstance(node, cst.DictComp):
        return [node.value]
    if isinstance(node, cst.Dict):
        return [element.value for element in node.elements]
    return []


def _severity(kinds: set[str | None]) -> Severity | None:
    """Return how sure it is that the container holds parameters; None if nothing says so."""
    if kinds & {"module", "parameter"}:
        return Severity.ERROR
    return Severity.WARNING if kinds == {"likely"} else None


def _appended(
    node: cst.Assign, target: cst.Attribute, function: FunctionModel
) -> list[cst.BaseExpression]:
    """Return what the method appends to a list that it makes empty."""
    if not isinstance(node.value, cst.List) or node.value.elements:
        return []
    path = dotted_name(target)
    assigned: dict[str, list[cst.BaseExpression]] = {}
    appended: list[cst.BaseExpression] = []
    for other in body_of(function.scope):
        if isinstance(other, cst.Assign) and isinstance(other.targets[0].target, cst.Name):
            assigned.setdefault(other.targets[0].target.value, []).append(other.value)
        elif isinstance(other, cst.Call) and dotted_name(other.func) == f"{path}.append":
            appended.extend(positional(other))
        elif isinstance(other, (cst.Assign, cst.AugAssign)) and other is not node:
            targets = [other.target] if isinstance(other, cst.AugAssign) else other.targets
            if any(
                dotted_name(getattr(item, "target", item)) == path for item in targets
            ) and not is_none(other.value):
                return []
    registered = {
        dotted_name(other.value)
        for other in body_of(function.scope)
        if isinstance(other, cst.Assign) and isinstance(other.targets[0].target, cst.Attribute)
    }
    found: list[cst.BaseExpression] = []
    for value in appended:
        name = dotted_name(value)
        if name is not None and name in registered:
            return []
        found.extend(assigned.get(name or "") or [value])
    return found


def _form(node: cst.BaseExpression) -> str:
    return _FORMS[type(node)]


def _kind(node: cst.BaseExpression, function: FunctionModel, depth: int = 0) -> str | None:
    """Say whether an element is a new layer with weights or a parameter; None for neither.

    "likely" is a class of another file that has the name of one of torch's layers with weights.
    """
    if not isinstance(node, cst.Call) or depth > _MOST_CALLS:
        return None
    scopes = function.module.scopes
    name = dotted_name(node.func) or ""
    qualified = scopes.resolve_import(name) or ""
    last = qualified.rpartition(".")[2]
    if qualified in PARAMETER_CLASSES:
        return "parameter"
    if qualified == "torch.nn.Sequential":
        inner = {_kind(layer, function, depth) for layer in _layers(node, function)}
        return "module" if "module" in inner else "likely" if "likely" in inner else None
    if qualified.startswith("torch.nn.") and last[:1].isupper():
        has_weights = last not in _WITHOUT_WEIGHTS and "Loss" not in last
        return "module" if has_weights else None
    own = scopes.classes.get(name)
    if own is not None:
        is_module = scopes.derives_from(own, "torch.nn.Module")
        return _kind_of_class(own, function, depth + 1) if is_module else None
    is_likely = f"torch.nn.{last}" in TORCH_MODULES_WITH_WEIGHTS
    return "likely" if is_likely else _made_by(name, function, depth + 1)


_MOST_CALLS = 3


def _layers(node: cst.Call, function: FunctionModel) -> list[cst.BaseExpression]:
    """Return what a Sequential is made of, also where that is a list with a name."""
    found = positional(node)
    starred = {dotted_name(argument.value) for argument in node.args if argument.star}
    for other in body_of(function.scope):
        if isinstance(other, cst.Assign) and len(other.targets) == 1:
            if dotted_name(other.targets[0].target) in starred:
                found.extend(_elements(other.value))
        elif isinstance(other, cst.AugAssign) and dotted_name(other.target) in starred:
            found.extend(_elements(other.value))
        elif (
            isinstance(other, cst.Call)
            and isinstance(other.func, cst.Attribute)
            and other.func.attr.value == "append"
            and dotted_name(other.func.value) in starred
        ):
            found.extend(positional(other))
    return found


def _made_by(name: str, function: FunctionModel, depth: int) -> str | None:
    """Return what a function or method of this file returns, if it is always the same."""
    scopes, scope = function.module.scopes, function.scope
    owner, _, method = name.rpartition(".")
    called = scope.nested.get(name) or scopes.top.nested.get(name)
    if owner and owner == scope.first_parameter:
        called = scopes.method(scope.owner, method)
    if called is None or isinstance(called.node, cst.Module):
        return None
    inside = function.module.function(called)
    bound = assignments(called)
    kinds: set[str | None] = set()
    for returned in returns(called):
        value = returned.value or cst.Name("None")
        sources = bound.get(dotted_name(value) or "") or [value]
        kinds.update(_kind(source, inside, depth) for source in sources)
    return kinds.pop() if len(kinds) == 1 else None


def _kind_of_class(owner: ClassScope, function: FunctionModel, depth: int) -> str | None:
    """Say whether a class of this file makes layers with weights, or what is likely one."""
    scopes = function.module.scopes
    kinds: set[str | None] = set()
    for scope in scopes.lineage(owner):
        maker = scope.methods.get("__init__")
        if maker is None:
            continue
        inside = function.module.function(maker)
        for node in body_of(maker):
            if isinstance(node, cst.Call) and depth <= _MOST_CALLS:
                qualified = scopes.resolve_import(dotted_name(node.func) or "") or ""
                if qualified == "torch.nn.ModuleList":
                    continue
                kinds.add(_kind(node, inside, depth) or _kind_by_name(node, inside))
    if kinds & {"module", "parameter"}:
        return "module"
    return "likely" if "likely" in kinds else None


def _kind_by_name(node: cst.BaseExpression, function: FunctionModel) -> str | None:
    """Say whether what another file makes has the name of a layer."""
    if not isinstance(node, cst.Call):
        return None
    name = dotted_name(node.func) or ""
    qualified = function.module.scopes.resolve_import(name) or ""
    if not qualified or qualified.startswith("torch."):
        return None
    return "likely" if _LAYER.search(name.rpartition(".")[2]) else None


_LAYER = re.compile(
    r"(?:Block|Layer|Conv|Linear|Norm(?!al)|Attention|Encoder|Decoder|Network|MLP|Transformer"
    r"|Resnet|Head|Expert|Adapter|LSTM|GRU)|^(?:get|make|build|create)_\w*(?:block|layer|conv)"
)


def _is_run(attribute: str, owner: ClassScope) -> bool:
    """Tell whether a method calls the elements of the list."""
    for method in owner.methods.values():
        first = method.first_parameter
        for node in body_of(method):
            if isinstance(node, cst.For) and _mentions(node.iter, f"{first}.{attribute}"):
                names = set(bound_names(node.target))
                if any(
                    isinstance(call, cst.Call) and dotted_name(call.func) in names
                    for call in walk(node.body)
                ):
                    return True
            elif (
                isinstance(node, cst.Call)
                and isinstance(node.func, cst.Subscript)
                and dotted_name(node.func.value) == f"{first}.{attribute}"
            ):
                return True
    return False


def _mentions(node: cst.CSTNode, path: str) -> bool:
    return any(isinstance(item, cst.Attribute) and dotted_name(item) == path for item in walk(node))


def _is_registered(  # noqa: PLR0911 - one answer for each way to register
    attribute: str, function: FunctionModel, first: str
) -> bool:
    """Tell whether the class hands the container on, adds it as modules, or says it's frozen."""
    path = f"{first}.{attribute}"
    owner = function.scope.owner
    assert owner is not None
    for method in owner.methods.values():
        for node in body_of(method):
            if isinstance(node, cst.Call):
                name = dotted_name(node.func) or ""
                if name.rpartition(".")[2] in {"add_module", "register_module", "setattr"}:
                    return True
                if name.rpartition(".")[2] in {"parameters", "named_parameters"} and (
                    method.name.rpartition(".")[2] == "parameters"
                ):
                    return True
                for argument in node.args:
                    if dotted_name(argument.value) == path and name not in _ITERATORS:
                        return True
                    if isinstance(argument.value, cst.StarredElement):
                        return True
            elif isinstance(node, cst.Assign) and dotted_name(node.value) == path:
                return True
    for method_name in ("parameters", "named_parameters", "__setattr__"):
        if method_name in owner.methods:
            return True
    return False


_ITERATORS = frozenset({"enumerate", "zip", "len", "reversed", "iter", "range", "list", "tuple"})


def _names(kinds: set[str | None], node: cst.BaseExpression) -> tuple[str, str]:
    holder = "Dict" if isinstance(node, (cst.Dict, cst.DictComp)) else "List"
    if kinds == {"parameter"}:
        return "parameters", f"Parameter{holder}"
    return "modules", f"Module{holder}"
