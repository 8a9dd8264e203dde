"""Find modules with a ``backward`` that autograd never calls."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.syntax import dotted_name

if TYPE_CHECKING:
    from gradcheck_lint.model.module import FunctionModel, ModuleModel

__all__ = ["is_uncalled_backward"]


def is_uncalled_backward(function: FunctionModel) -> bool:
    """Return whether this is the ``backward`` of a module, which nothing in the file calls.

    It takes a gradient and returns one, as that of an ``autograd.Function``. A layer that goes
    backward by hand reads what its ``forward`` has kept, or keeps the gradients of its weights: who
    trains by such layers calls them, in another file perhaps.
    """
    scope, module = function.scope, function.module
    owner = scope.owner
    if owner is None or scope.name.rpartition(".")[2] != "backward" or scope.linked:
        return False
    if type(scope.node) is not cst.FunctionDef or not _is_plain_module(function):
        return False
    given = [each.name.value for each in scope.node.params.params]
    if len(given) < _SELF_AND_GRADIENT or not _GRADIENT.search(given[1]):
        return False
    forward = owner.methods.get("forward")
    if forward is None or not any(scope.nodes_of(cst.Return)) or any(scope.nodes_of(cst.Expr)):
        return False
    kept = {dotted_name(target) or "" for target, _ in forward.assignments}
    written = {dotted_name(target) or "" for target, _ in scope.assignments}
    if any("." in name for name in kept | written):
        return False
    return not _calls_backward(module)


_SELF_AND_GRADIENT: Final = 2
_GRADIENT: Final = re.compile(r"(?i)grad|^d_?(?:y|out|output|x|z|l)$|delta|upstream")


def _is_plain_module(function: FunctionModel) -> bool:
    """Return whether a class derives from modules of torch and of the file alone."""
    scopes, owner = function.module.scopes, function.scope.owner
    bases = {base for each in scopes.lineage(owner) for base in each.bases}
    known = [scopes.resolve_import(base) or "" for base in bases if base not in scopes.classes]
    return bool(known) and all(name.startswith("torch.nn.") for name in known)


def _calls_backward(module: ModuleModel) -> bool:
    """Return whether the file names a ``backward`` that is not that of a loss.

    One that is handed on, or is given a gradient: ``x.register_hook(self.backward)``.
    """
    key = "backward of a module is called"
    if key not in module.memo:
        module.memo[key] = any(
            _may_be_of_module(node, plain)
            for function in module.functions()
            if "backward" in function.scope.words
            for plain in [_of_losses(function)]
            for node in function.scope.nodes_of(cst.Attribute)
        )
    return bool(module.memo[key])


def _may_be_of_module(node: cst.Attribute, plain: set[int]) -> bool:
    return node.attr.value == "backward" and id(node) not in plain


def _of_losses(function: FunctionModel) -> set[int]:
    """Return the ``x.backward`` that are called without a gradient."""
    return {
        id(call.func)
        for call in function.scope.nodes_of(cst.Call)
        if all(argument.keyword is not None for argument in call.args)
    }
