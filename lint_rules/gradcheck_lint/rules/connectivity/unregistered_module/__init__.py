"""GCS404: layers in a plain container."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.syntax import assigned_pairs, dotted_name
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.connectivity.unregistered_module.container_kinds import (
    form_of,
    is_nested,
    kinds_in,
)
from gradcheck_lint.rules.connectivity.unregistered_module.registration import (
    has_other_base,
    is_registered,
)
from gradcheck_lint.rules.connectivity.unregistered_module.wrapping import wrapped
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class UnregisteredModule(Rule):
    """Layers or parameters are kept in a plain list, dict or tuple, unseen by ``parameters()``."""

    entry = catalogue.UNREGISTERED_MODULE

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every plain container of layers that a module's ``__init__`` puts on self."""
        owner, scopes = function.scope.owner, function.module.scopes
        if owner is None or not _constructs(function):
            return
        if not scopes.derives_from(owner, "torch.nn."):
            return
        first = function.scope.first_parameter
        for node in function.scope.nodes_of(cst.Assign, cst.AnnAssign):
            for target, value in assigned_pairs(node):
                if type(target) is not cst.Attribute or dotted_name(target.value) != first:
                    continue
                assert isinstance(node, (cst.Assign, cst.AnnAssign))
                kinds = kinds_in(value, node, target, function)
                severity = _severity(kinds)
                if severity is Severity.ERROR and has_other_base(owner, function):
                    severity = Severity.WARNING
                if severity is not None and not is_registered(
                    target.attr.value, function, first or ""
                ):
                    yield _violation(function, node, target, value, (kinds, severity))


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
    is_open = type(node) is cst.AnnAssign or _is_filled_by_key(value) or "elsewhere" in kinds
    return Violation(
        node,
        f"`{dotted_name(target)}` is a plain {form_of(value)} of {what}: "
        "`parameters()` does not find them, so "
        + (
            "only who else has them can train them"
            if "elsewhere" in kinds
            else "no optimizer trains them and no state_dict or `.to()` reaches them"
        ),
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
    return any(dotted_name(node.func) == path for node in maker.nodes_of(cst.Call))


def _severity(kinds: set[str | None]) -> Severity | None:
    """Return how sure it is that the container holds parameters; None if nothing says so."""
    if kinds & {"module", "parameter"}:
        return Severity.ERROR
    if "elsewhere" in kinds:
        return Severity.NOTE
    return Severity.WARNING if kinds == {"likely"} else None


def _is_filled_by_key(value: cst.BaseExpression) -> bool:
    """Tell whether this is an empty dictionary, whose keys need not suit a ``ModuleDict``."""
    return type(value) is cst.Dict and not value.elements


def _names(kinds: set[str | None], node: cst.BaseExpression) -> tuple[str, str]:
    is_dict = isinstance(node, (cst.Dict, cst.DictComp)) or form_of(node) == "dict"
    holder = "Dict" if is_dict else "List"
    if kinds == {"parameter"}:
        return "parameters", f"Parameter{holder}"
    return "modules", f"Module{holder}"
