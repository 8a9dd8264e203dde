"""All rules of the linter, one module each.

``RULE_MODULES`` maps codes to modules, so that the command line knows the codes without reading
the rules (which need libcst).
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gradcheck_lint.rules._rule import Rule

RULE_MODULES: Final[Mapping[str, tuple[str, str]]] = {
    "GCS101": ("gradcheck_lint.rules.leaf_inplace", "LeafInplace"),
    "GCS201": ("gradcheck_lint.rules.graph_kept", "GraphKept"),
    "GCS301": ("gradcheck_lint.rules.missing_zero_grad", "MissingZeroGrad"),
}


def load_rules(codes: Collection[str] | None = None) -> tuple[Rule, ...]:
    """Return the rules with these codes, or all of them, in the order of their codes."""
    chosen: list[Rule] = []
    for code, (module, name) in RULE_MODULES.items():
        if codes is None or code in codes:
            rule: type[Rule] = getattr(importlib.import_module(module), name)
            chosen.append(rule())
    return tuple(chosen)
