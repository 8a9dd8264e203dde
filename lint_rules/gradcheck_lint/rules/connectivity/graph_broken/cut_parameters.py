"""Find parameters and models of which everything that is computed is cut from the graph."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.analyses.ways_out import ways_out
from gradcheck_lint.model.flow import GradMode
from gradcheck_lint.model.knowledge import PARAMETER_CLASSES
from gradcheck_lint.model.name_sources import sources_of
from gradcheck_lint.model.syntax import boolean, dotted_name, last_word, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel

__all__ = ["CutParameter", "cut_models", "cut_parameters"]


class CutParameter(NamedTuple):
    """What cuts the only way on, and the parameter, or the model, that is behind it."""

    cut: cst.CSTNode
    name: str


def cut_parameters(function: FunctionModel) -> Iterator[CutParameter]:
    """Yield the parameters of a module that its forward uses for nothing but what is cut."""
    scope, owner = function.scope, function.scope.owner
    if owner is None or owner.methods.get("forward") is not scope:
        return
    maker = owner.methods.get("__init__")
    if maker is None or not function.module.scopes.derives_from(owner, "torch.nn.Module"):
        return
    for target, value in maker.assignments:
        root, _, attribute = (dotted_name(target) or "").partition(".")
        called = dotted_name(value.func) if type(value) is cst.Call else None
        if (
            root != maker.first_parameter
            or attribute not in scope.words
            or function.module.scopes.resolve_import(called or "") not in PARAMETER_CLASSES
            or any(boolean(each) is False for each in walk(value))
            or _is_used_elsewhere(attribute, function)
        ):
            continue
        own = f"{scope.first_parameter}.{attribute}"
        uses = [each for each in scope.nodes_of(cst.Attribute) if dotted_name(each) == own]
        ways = ways_out(list(uses), function)
        if not ways.is_open and ways.cuts:
            yield CutParameter(ways.cuts[0], own)


def _is_used_elsewhere(attribute: str, function: FunctionModel) -> bool:
    return any(
        attribute in other.words
        for other in function.module.scopes.functions
        if other is not function.scope and not _SETS_UP.search(other.name)
    )


_SETS_UP: Final = re.compile(r"init|reset")


def cut_models(function: FunctionModel) -> Iterator[CutParameter]:
    """Yield what cuts all outputs of a model whose optimizer is made in this function."""
    module = function.module
    if not module.mentions(b".backward("):
        return
    for call in function.scope.nodes_of(cst.Call):
        if not module.makes_optimizer(call):
            continue
        named_groups = (
            source
            for argument in call.args
            for source in sources_of(function.scope).get(dotted_name(argument.value) or "") or ()
        )
        for node in (each for root in (call, *named_groups) for each in walk(root)):
            named = dotted_name(node.func) if type(node) is cst.Call else None
            if named is None or not named.endswith(".parameters"):
                continue
            model = last_word(named.removesuffix(".parameters"))
            cuts = _cuts_of(model, function)
            if cuts:
                yield CutParameter(cuts[0], model)


def _cuts_of(model: str, function: FunctionModel) -> list[cst.CSTNode]:
    """Return what cuts the outputs of a model, nothing where one of them may have its graph."""
    module, cuts = function.module, list[cst.CSTNode]()
    for other in module.functions():
        if model not in other.scope.words:
            continue
        handed = (last_word(dotted_name(each.value)) for each in other.scope.nodes_of(cst.Arg))
        if model in handed:
            return []
        runs: list[cst.CSTNode] = []
        for call in other.scope.nodes_of(cst.Call):
            name = dotted_name(call.func) or ""
            if last_word(name) == model:
                runs.append(call)
            elif f".{model}." in f".{name}" and last_word(name) not in _HARMLESS:
                return []
        if not runs or other.mode is GradMode.DISABLED:
            continue
        ways = ways_out(runs, other)
        if ways.is_open:
            return []
        cuts += [cut for cut in ways.cuts if not any(cut is run for run in runs)]
    return cuts


_HARMLESS: Final = frozenset(
    (
        *("cpu", "cuda", "eval", "load_state_dict", "named_parameters", "parameters"),
        *("requires_grad_", "state_dict", "to", "train", "zero_grad"),
    )
)
