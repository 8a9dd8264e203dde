"""GCS703: functional dropout that evaluation mode does not switch off."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.syntax import dotted_name, is_literal, keyword, positional, walk
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class DropoutIgnoresEval(Rule):
    """A module drops values without regard to its mode."""

    entry = catalogue.DROPOUT_IGNORES_EVAL

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every functional dropout of a module's method that no mode decides about."""
        scope, module = function.scope, function.module
        if not module.mentions(b"dropout") or scope.owner is None:
            return
        if not module.scopes.derives_from(scope.owner, "torch.nn.Module"):
            return
        # Whatever depends on `self.training` may be asked before the call.
        if any("training" in method.words for method in scope.owner.methods.values()):
            return
        if _MEANT.search(f"{scope.owner.name} {scope.name}"):
            return
        for node in scope.nodes_of(cst.Call):
            name = module.scopes.resolve_import(dotted_name(node.func) or "") or ""
            if _drops_always(name, node):
                yield _violation(node, name)


_FUNCTIONS: Final = frozenset(
    f"torch.nn.functional.{name}"
    for name in (
        "dropout",
        "dropout1d",
        "dropout2d",
        "dropout3d",
        "alpha_dropout",
        "feature_alpha_dropout",
    )
)
_ATTENTION: Final = "torch.nn.functional.scaled_dot_product_attention"
_PLACE_OF_TRAINING: Final = 2
_PLACE_OF_DROPOUT: Final = 4
_MEANT: Final = re.compile(
    r"monte|(?<![a-z])mc|MC|bayes|uncertain|augment|corrupt|nois", re.IGNORECASE
)
"""Names of what drops values on purpose, whatever the mode."""


def _drops_always(name: str, call: cst.Call) -> bool:
    """Return whether a call drops values in evaluation mode as well, by torch's own default."""
    if any(argument.star for argument in call.args):
        return False
    given = positional(call)
    if name in _FUNCTIONS:
        chance = keyword(call, "p") or (given[1] if len(given) > 1 else None)
        is_told = keyword(call, "training") is not None or len(given) > _PLACE_OF_TRAINING
        return not is_told and not _is_decided(chance)
    if name == _ATTENTION:
        chance = keyword(call, "dropout_p")
        if chance is None and len(given) > _PLACE_OF_DROPOUT:
            chance = given[_PLACE_OF_DROPOUT]
        return chance is not None and not _is_decided(chance) and _is_setting(chance)
    return False


def _is_decided(chance: cst.BaseExpression | None) -> bool:
    """Return whether a probability may be 0 by a condition, or is 0."""
    if isinstance(chance, (cst.Integer, cst.Float)):
        return float(chance.value) == 0.0
    return chance is not None and any(
        isinstance(node, (cst.IfExp, cst.Call, cst.BinaryOperation)) for node in walk(chance)
    )


def _is_setting(chance: cst.BaseExpression) -> bool:
    """Return whether a probability is a number or what a module keeps, and no argument or local."""
    return is_literal(chance) or (dotted_name(chance) or "").startswith("self.")


def _violation(call: cst.Call, name: str) -> Violation:
    last = name.rpartition(".")[2]
    if name == _ATTENTION:
        return Violation(
            call,
            f"`{last}` with `dropout_p` drops values whatever the mode of the module is: eval() "
            "does not switch it off",
            Severity.WARNING,
            "pass `dropout_p=p if self.training else 0.0`",
        )
    return Violation(
        call,
        f"`{last}` without `training=` drops values whatever the mode of the module is: eval() "
        "does not switch it off",
        Severity.WARNING,
        f"pass `training=self.training`, or use the module for it in place of `{last}`",
    )
