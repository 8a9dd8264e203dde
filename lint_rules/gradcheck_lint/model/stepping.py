"""Tell by words alone whether a function may step with an optimizer, before it is read.

Many things have a method of this name: schedulers of a diffusion, environments, profilers. What
is taken for an optimizer is called like one, or is made by a class of ``torch.optim``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gradcheck_lint.model.nearness import STEPS

if TYPE_CHECKING:
    from gradcheck_lint.model.module import ModuleModel
    from gradcheck_lint.model.scopes import FunctionScope

_NAMED_OPTIMIZER: Final = re.compile(r"(?i)optim|(?<![^\W_])opt(?![^\W\d_])")
"""A word that ``training_calls`` takes for the name of an optimizer, or for a part of one."""
_OPTIMIZER_PACKAGE: Final = re.compile(rb"\boptim\b")


def may_make_optimizer(module: ModuleModel) -> bool:
    """Tell whether the source names ``torch.optim``, without which it has no class of it."""
    return module.matches(_OPTIMIZER_PACKAGE)


def may_step(module: ModuleModel, scope: FunctionScope) -> bool:
    """Tell whether the source of a function may call ``step()`` of an optimizer."""
    if STEPS.isdisjoint(scope.words):
        return False
    text = scope.text
    is_named = text is None or _NAMED_OPTIMIZER.search(text) is not None
    return is_named or may_make_optimizer(module) or bool(module.zeroed_names)


def may_step_anywhere(module: ModuleModel) -> bool:
    """Tell whether any function of a file may call ``step()`` of an optimizer."""
    known: bool | None = module.memo.get("may step")
    if known is None:
        known = any(may_step(module, scope) for scope in module.scopes.functions)
        module.memo["may step"] = known
    return known
