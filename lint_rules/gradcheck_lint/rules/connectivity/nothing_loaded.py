"""GCS413: a state is loaded, and nobody looks at how much of it has fitted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.syntax import boolean, dotted_name, keyword, positional
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class NothingLoaded(Rule):
    """A state is loaded with ``strict=False``, and what did not fit is not looked at."""

    entry = catalogue.NOTHING_LOADED

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every such call that is a statement of its own."""
        if "load_state_dict" not in function.scope.words:
            return
        nodes = function.scope.nodes
        for node in nodes:
            if type(node) is cst.Expr and _passes_over_names(node.value):
                prefix = ""
                if function.module.matches(_WRAPS) and not function.module.matches(_UNWRAPS):
                    prefix = "; names begin with `module.` where a wrapped model was saved"
                yield Violation(
                    node.value,
                    "names that do not fit are passed over by `strict=False`, be it all of them, "
                    f"and what this returns of them is thrown away{prefix}",
                    Severity.NOTE,
                    "look at what it returns: `missing, unexpected = model.load_state_dict(...)`",
                )


_WRAPS: Final = re.compile(rb"\bD(?:istributedD)?ataParallel\(")
_UNWRAPS: Final = re.compile(rb"""["']module\.|\.module\b|unwrap""")


def _passes_over_names(node: cst.BaseExpression) -> bool:
    if type(node) is not cst.Call or type(node.func) is not cst.Attribute:
        return False
    if node.func.attr.value != "load_state_dict" or dotted_name(node.func.value) == "super":
        return False
    given = positional(node)
    strict = keyword(node, "strict") or (given[1] if len(given) > 1 else None)
    return boolean(strict) is False
