"""Find layers of a module that only run where nothing is recorded, or are always detached."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import libcst as cst

from gradcheck_lint.analyses.layers import kind_of
from gradcheck_lint.model.flow import GradMode
from gradcheck_lint.model.grad_mode import unrecorded_by_with
from gradcheck_lint.model.syntax import dotted_name
from gradcheck_lint.rules._rule import Violation
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel, ModuleModel
    from gradcheck_lint.model.scopes import FunctionScope

__all__ = ["detached_layers", "unrecorded_layers"]


def unrecorded_layers(function: FunctionModel) -> Iterator[Violation]:
    """Yield the call of each new layer that a module makes, and never runs with recording.

    It is likely a mistake where the module freezes other layers by name: those are the ones that
    are not to be trained.
    """
    if not function.module.mentions(b"no_grad", b"inference_mode"):
        return
    for layer in _untrained_layers(function):
        if layer.cut is not None:
            continue
        yield Violation(
            layer.call,
            f"`self.{layer.name}` is made here and only runs where nothing is recorded, so it "
            "never gets a gradient and keeps its initial values",
            Severity.WARNING if layer.freezes_others else Severity.NOTE,
            "end the no_grad block before it, or freeze it by `requires_grad_(False)` if it is "
            "not to be trained",
        )


def detached_layers(function: FunctionModel) -> Iterator[Violation]:
    """Yield the detach() of each new layer that a module makes, and never uses without one."""
    if not function.module.mentions(b"detach", b".data"):
        return
    for layer in _untrained_layers(function):
        if layer.cut is None:
            continue
        yield Violation(
            layer.cut,
            f"all that `self.{layer.name}` returns is taken out of the graph here, so it never "
            "gets a gradient and keeps its initial values",
            Severity.WARNING,
            "leave the graph, or freeze it by `requires_grad_(False)` if it is not to be trained",
        )


class _Layer(NamedTuple):
    """A layer that its module makes and never trains.

    ``call`` is where it runs, ``cut`` what takes the graph away from what it returns, None where
    nothing is recorded. ``freezes_others`` tells that the module freezes what it has not made.
    """

    name: str
    call: cst.Call
    cut: cst.BaseExpression | None
    freezes_others: bool


def _untrained_layers(function: FunctionModel) -> Iterator[_Layer]:
    module, owner = function.module, function.scope.owner
    if owner is None or owner.methods.get("__init__") is not function.scope:
        return
    if not module.scopes.derives_from(owner, "torch.nn.Module"):
        return
    made = _made_layers(function)
    calls = _calls(list(owner.methods.values()), module)
    recorded = {name for name, _, _, is_recorded in calls if is_recorded}
    frozen = _frozen(list(owner.methods.values()))
    if not recorded & made or "" in frozen:
        return
    reported: set[str] = set()
    for name, call, cut, _ in calls:
        if name not in made - recorded - frozen - reported or _MEANT.search(name) is not None:
            continue
        if not _is_used_otherwise(name, function, calls):
            reported.add(name)
            yield _Layer(name, call, cut, bool(frozen - made))


_MEANT: Final = re.compile(
    r"(?i)target|teacher|ema|momentum|(?:^|_)key|rand|fix|froz|proto|old|prior|pretrain|backbone"
    r"|stem|hash|feature|vgg|resnet|lpips|codebook|quant|embed_avg|probe"
)
"""Names of what is not trained, or not by a gradient, as a rule."""


def _made_layers(maker: FunctionModel) -> set[str]:
    """Return the attributes that a constructor puts a new layer of torch with weights into."""
    first = maker.scope.first_parameter
    return {
        name.partition(".")[2]
        for target, value in maker.scope.assignments
        if (name := dotted_name(target) or "").startswith(f"{first}.")
        and name.count(".") == 1
        and _is_of_torch(value, maker)
        and kind_of(value, maker) == "module"
    }


def _is_of_torch(value: cst.BaseExpression, maker: FunctionModel) -> bool:
    name = dotted_name(value.func) if type(value) is cst.Call else None
    return (maker.module.scopes.resolve_import(name or "") or "").startswith("torch.nn.")


_LayerCall: TypeAlias = "tuple[str, cst.Call, cst.BaseExpression | None, bool]"


def _calls(methods: list[FunctionScope], module: ModuleModel) -> list[_LayerCall]:
    """Return the attributes that methods call, where, what cuts it, and whether it's recorded."""
    found: list[_LayerCall] = []
    for method in methods:
        unrecorded = unrecorded_by_with(method.nodes, module.scopes)
        is_off = module.function(method).mode is GradMode.DISABLED
        cuts = {
            id(node.value): node
            for node in method.nodes_of(cst.Attribute)
            if node.attr.value in {"detach", "detach_", "data"}
        }
        for node in method.nodes_of(cst.Call):
            name = dotted_name(node.func) or ""
            owner, _, attribute = name.partition(".")
            if owner == method.first_parameter and attribute:
                cut = cuts.get(id(node))
                is_recorded = cut is None and not (is_off or id(node) in unrecorded)
                found.append((attribute, node, cut, is_recorded))
    return found


def _frozen(methods: list[FunctionScope]) -> set[str]:
    """Return the attributes that the class itself freezes, "" for all that it has.

    As in ``for p in self.encoder.parameters(): p.requires_grad = False`` and
    ``self.encoder.requires_grad_(False)``.
    """
    found: set[str] = set()
    for method in methods:
        if not {"requires_grad", "requires_grad_"} & method.words:
            continue
        first = method.first_parameter
        for node in method.nodes_of(cst.Attribute):
            if node.attr.value not in _FREEZING:
                continue
            name = dotted_name(node.value) or ""
            if name == first:
                found.add("")
            elif name.startswith(f"{first}."):
                found.add(name.partition(".")[2])
    return found


_FREEZING: Final = frozenset({"parameters", "named_parameters", "requires_grad_", "requires_grad"})


def _is_used_otherwise(name: str, maker: FunctionModel, calls: list[_LayerCall]) -> bool:
    """Return whether a layer is used in the file in another way than by these calls.

    Its weights may be loaded, copied, tied or frozen there.
    """
    called = {id(call.func) for attribute, call, *_ in calls if attribute == name}
    mentions = 0
    for function in maker.module.functions():
        for node in function.scope.nodes_with_lambdas:
            if type(node) is cst.Attribute and node.attr.value == name:
                mentions += id(node) not in called
    # One is where it is made.
    return mentions > 1
