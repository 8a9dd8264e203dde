"""GCS207: a hook that stores tensors with their graph."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

import libcst as cst

from gradcheck_lint.model.function_class import assignments, body_of, names_in
from gradcheck_lint.model.syntax import dotted_name, last_word, positional, walk
from gradcheck_lint.rules._emptying import is_emptied_anywhere
from gradcheck_lint.rules._rule import Invalid, Rule, Valid, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class HookKeepsGraph(Rule):
    """A hook appends what it is given to a list, with its graph."""

    entry = catalogue.HOOK_KEEPS_GRAPH

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every append of an undetached argument in a function that is used as a hook."""
        yield from _in_lambdas(function)
        if isinstance(function.scope.node, cst.Module) or b".clear()" in function.module.source:
            return
        name = function.scope.name.rpartition(".")[2]
        if name not in _hooks(function) or function.scope.nested:
            return
        parameters = [parameter.name.value for parameter in function.scope.node.params.params]
        # The first is the module that is hooked, which has no graph.
        given = set(parameters[1 if function.scope.owner is None else 2 :])
        for node in body_of(function.scope):
            if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
                continue
            handed = positional(node)
            if node.func.attr.value != "append" or len(handed) != 1:
                continue
            stored = handed[0]
            while isinstance(stored, cst.Subscript):
                stored = stored.value
            if not isinstance(stored, cst.Name) or stored.value not in given & names_in(stored):
                continue
            if _goes_with_the_hook(function, node.func.value) or _may_stay_small(
                function, node.func.value
            ):
                continue
            yield _violation(node, stored.value)

    invalid: ClassVar[tuple[Invalid, ...]] = (
        Invalid(
            """\
import torch
from torch import nn

class Features:
    def __init__(self, layer: nn.Module):
        self.outputs = []
        self.handle = layer.register_forward_hook(self.store)

    def store(self, module, inputs, output):
        self.outputs.append(output)
""",
            lines=(10,),
            severity=Severity.WARNING,
        ),
        Invalid(
            """\
from torch import nn

outputs = []

class Probe:
    def __init__(self, net: nn.Module):
        self.found = []
        net.stem.register_forward_hook(lambda module, args, output: self.found.append(output))

def watch(net):
    net.fc.register_forward_hook(lambda m, i, o: outputs.append(o))
""",
            lines=(8, 11),
            severity=Severity.WARNING,
        ),
    )

    valid: ClassVar[tuple[Valid, ...]] = (
        Valid(
            """\
outputs = []

def watch(net):
    net.fc.register_forward_hook(lambda m, i, o: outputs.append(o.detach()))

def features(net, x):
    found = []
    handle = net.fc.register_forward_hook(lambda m, i, o: found.append(o))
    net(x)
    handle.remove()
    return found
""",
            why="detached, or a list that lives for one call",
        ),
        Valid(
            """\
import torch
from torch import nn

class Extractor(nn.Module):
    def forward(self, x):
        found = []

        def keep(module, inputs, output):
            found.append(output)

        handles = [layer.register_forward_hook(keep) for layer in self.layers]
        self.body(x)
        for handle in handles:
            handle.remove()
        return found
""",
            why="list and hook live for one call",
        ),
        Valid(
            """\
import torch
from torch import nn

class Features:
    def __init__(self, layer: nn.Module):
        self.outputs = []
        self.handle = layer.register_forward_hook(self.store)

    def store(self, module, inputs, output):
        self.outputs.append(output.detach())

    def keep(self, output):
        self.outputs.append(output)
""",
            why="detached; the other function is no hook",
        ),
    )


def _in_lambdas(function: FunctionModel) -> Iterator[Violation]:
    """Yield every `register_forward_hook(lambda m, i, o: outputs.append(o))` that lasts."""
    if "register_forward_hook" not in function.scope.words:
        return
    if b".clear()" in function.module.source:
        return
    local = assignments(function.scope)
    for node in body_of(function.scope):
        if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
            continue
        handed = positional(node)
        hook = handed[0] if handed else None
        if node.func.attr.value != "register_forward_hook" or not isinstance(hook, cst.Lambda):
            continue
        body = hook.body
        if not isinstance(body, cst.Call) or not isinstance(body.func, cst.Attribute):
            continue
        stored = positional(body)
        given = [parameter.name.value for parameter in hook.params.params]
        if body.func.attr.value != "append" or len(stored) != 1 or len(given) != _HOOK_ARGUMENTS:
            continue
        target = dotted_name(body.func.value)
        if dotted_name(stored[0]) != given[-1] or target is None or target in local:
            continue
        if not _may_stay_small(function, body.func.value):
            yield _violation(body, given[-1])


_HOOK_ARGUMENTS = 3


def _violation(node: cst.CSTNode, stored: str) -> Violation:
    return Violation(
        node,
        f"the hook appends `{stored}` with its graph on every forward, and nothing "
        "in this file empties the list: all graphs stay in memory",
        Severity.WARNING,
        f"store `{stored}.detach()`, and remove the hook when it is done",
    )


def _hooks(function: FunctionModel) -> frozenset[str]:
    """Return the names of the functions that the file registers as hooks."""
    memo = function.module.memo
    if "hooks" not in memo:
        memo["hooks"] = frozenset(
            (dotted_name(argument) or "").rpartition(".")[2]
            for node in walk(function.module.tree)
            if isinstance(node, cst.Call)
            and isinstance(node.func, cst.Attribute)
            and node.func.attr.value == "register_forward_hook"
            for argument in positional(node)[:1]
        )
    found: frozenset[str] = memo["hooks"]
    return found


def _may_stay_small(function: FunctionModel, target: cst.BaseExpression) -> bool:
    """Tell whether the list is no plain one, is emptied, or is filled where nothing is recorded."""
    module = function.module
    if b"backward" not in module.source and _RECORDS_NOTHING.search(module.source):
        return True
    while isinstance(target, cst.Subscript):
        target = target.value
    path = dotted_name(target)
    if path is None:
        return False
    for scope in module.scopes.functions:
        for node in scope.nodes:
            if isinstance(node, cst.Assign) and isinstance(node.value, cst.Call):
                made = (dotted_name(node.value.func) or "").rpartition(".")[2]
                names = (dotted_name(known.target) or "" for known in node.targets)
                if made not in _UNBOUNDED and last_word(path) in map(last_word, names):
                    return True
    return is_emptied_anywhere(module, path, function.scope.parent)


_UNBOUNDED = frozenset({"list", "dict", "defaultdict", "OrderedDict"})
_RECORDS_NOTHING = re.compile(rb"no_grad|inference_mode|set_grad_enabled")


def _goes_with_the_hook(function: FunctionModel, target: cst.BaseExpression) -> bool:
    """Tell whether the list is a local of the enclosing function, which removes the hook."""
    around = function.scope.parent
    if around is None or isinstance(around.node, cst.Module) or not isinstance(target, cst.Name):
        return False
    return target.value in assignments(around) and any(
        isinstance(node, cst.Attribute) and node.attr.value == "remove" for node in body_of(around)
    )
