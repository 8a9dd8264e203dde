"""Tell which grad mode a decorator or a ``with`` puts in force, and who expects an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.flow import GradMode
from gradcheck_lint.model.knowledge import GRAD_MODE_CONTEXTS, HARMLESS_PACKAGES
from gradcheck_lint.model.syntax import boolean, dotted_name, keyword

if TYPE_CHECKING:
    from gradcheck_lint.model.reading import Reading
    from gradcheck_lint.model.scopes import FunctionScope, Scopes

_KNOWN_CONTEXTS = frozenset({"open", "no_sync", "autocast", "suppress", "nullcontext", "lock"})
_KNOWN_DECORATORS = frozenset({"staticmethod", "classmethod", "property", "setter", "getter"})
_DECORATOR_PACKAGES = HARMLESS_PACKAGES | {"abc", "click", "hydra", "pytest", "typer", "unittest"}
_ERROR_CONTEXTS = frozenset(
    {"raises", "assertRaises", "assertRaisesRegex", "assertRaisesRegexp", "suppress"}
)
_TORCH_ERRORS = frozenset({"RuntimeError", "Exception", "BaseException"})


def mode_inside(reading: Reading, context: cst.BaseExpression, mode: GradMode) -> GradMode:
    """Return the grad mode in a ``with`` that enters ``context``, given the mode outside."""
    call = context if isinstance(context, cst.Call) else None
    name = dotted_name(call.func if call else context)
    qualified = reading.qualified(name)
    asked = _asked_mode(qualified, call)
    if asked is not None:
        return asked
    last = (name or "").rpartition(".")[2]
    if call is None and isinstance(context, cst.Name):
        return GradMode.UNKNOWN
    if qualified is not None and qualified.partition(".")[0] in _DECORATOR_PACKAGES:
        return mode
    if call is not None and (last in _KNOWN_CONTEXTS or last in _ERROR_CONTEXTS):
        return mode
    return GradMode.UNKNOWN


def _asked_mode(qualified: str | None, call: cst.Call | None) -> GradMode | None:
    """Return the mode that one of torch's own contexts asks for, or None for anything else."""
    package, _, last = (qualified or "").rpartition(".")
    if package != "torch" or last not in GRAD_MODE_CONTEXTS:
        return None
    wanted: bool | None = GRAD_MODE_CONTEXTS[last]
    if call is not None and last in {"set_grad_enabled", "inference_mode"}:
        argument = keyword(call, "mode") or (call.args[0].value if call.args else None)
        if argument is not None:
            wanted = boolean(argument)
            if last == "inference_mode" and wanted is not None:
                wanted = not wanted
        elif last == "set_grad_enabled":
            wanted = None
    if wanted is None:
        return GradMode.UNKNOWN
    return GradMode.ENABLED if wanted else GradMode.DISABLED


def initial_mode(scopes: Scopes, scope: FunctionScope) -> GradMode:
    """Return the grad mode that a function's body starts in; the innermost decorator wins."""
    node = scope.node
    if isinstance(node, cst.Module):
        return GradMode.ENABLED
    if node.name.value in {"forward", "backward", "setup_context"} and scopes.derives_from(
        scope.owner, "torch.autograd.Function"
    ):
        return GradMode.DISABLED
    mode = GradMode.AMBIENT
    for decorator in node.decorators:
        expression = decorator.decorator
        call = expression if isinstance(expression, cst.Call) else None
        name = dotted_name(call.func if call else expression)
        qualified = scopes.resolve_import(name) if name else None
        asked = _asked_mode(qualified, call)
        if asked is not None:
            mode = asked
        elif not _leaves_mode_alone(name, qualified):
            mode = GradMode.UNKNOWN
    return mode


def is_turned_off(scopes: Scopes, scope: FunctionScope) -> bool:
    """Tell whether a decorator turns recording off, and none turns it on.

    That others, which are not known, turn it on again in between is not to be expected.
    """
    node = scope.node
    if isinstance(node, cst.Module):
        return False
    asked = set()
    for decorator in node.decorators:
        expression = decorator.decorator
        call = expression if isinstance(expression, cst.Call) else None
        name = dotted_name(call.func if call else expression)
        asked.add(_asked_mode(scopes.resolve_import(name) if name else None, call))
    return GradMode.DISABLED in asked and asked <= {GradMode.DISABLED, None}


def _leaves_mode_alone(name: str | None, qualified: str | None) -> bool:
    if qualified is not None:
        return qualified.partition(".")[0] in _DECORATOR_PACKAGES
    return (name or "").rpartition(".")[2] in _KNOWN_DECORATORS


def expects_error(context: cst.BaseExpression) -> bool:
    """Tell whether a ``with`` catches what its body raises, as ``pytest.raises`` does."""
    name = dotted_name(context.func) if isinstance(context, cst.Call) else None
    return (name or "").rpartition(".")[2] in _ERROR_CONTEXTS


def catches_torch_errors(node: cst.Try | cst.TryStar) -> bool:
    """Tell whether a ``try`` has a handler for what torch raises on misuse."""
    for handler in node.handlers:
        if handler.type is None:
            return True
        kinds = [handler.type]
        if isinstance(handler.type, cst.Tuple):
            kinds = [element.value for element in handler.type.elements]
        if any((dotted_name(kind) or "").rpartition(".")[2] in _TORCH_ERRORS for kind in kinds):
            return True
    return False
