"""Tell which grad mode a decorator or a ``with`` puts in force, and who expects an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.flow import GradMode
from gradcheck_lint.model.knowledge import GRAD_MODE_CONTEXTS, HARMLESS_PACKAGES
from gradcheck_lint.model.nearness import ANY_MODE
from gradcheck_lint.model.syntax import boolean, dotted_name, keyword, walk
from gradcheck_lint.model.values import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gradcheck_lint.model.reading import Reading
    from gradcheck_lint.model.scopes import FunctionScope, Scopes

_KNOWN_CONTEXTS = frozenset(
    {"open", "no_sync", "autocast", "suppress", "nullcontext", "lock", "accumulate", "timer"}
    | {"Timer", "profile", "tqdm", "Progress", "Live", "SummaryWriter", "no_backward_sync"}
)
_KNOWN_DECORATORS = frozenset({"staticmethod", "classmethod", "property", "setter", "getter"})
_DECORATOR_PACKAGES = HARMLESS_PACKAGES | {"abc", "click", "hydra", "pytest", "typer", "unittest"}
_ERROR_CONTEXTS = frozenset(
    {"raises", "assertRaises", "assertRaisesRegex", "assertRaisesRegexp", "suppress"}
)
_TORCH_ERRORS = frozenset({"RuntimeError", "Exception", "BaseException"})


def mode_inside(reading: Reading, context: cst.BaseExpression, mode: GradMode) -> GradMode:
    """Return the grad mode in a ``with`` that enters ``context``, given the mode outside."""
    call = context if type(context) is cst.Call else None
    name = dotted_name(call.func if call else context)
    qualified = reading.qualified(name)
    asked = _asked_mode(qualified, call)
    if asked is not None:
        return asked
    last = (name or "").rpartition(".")[2]
    if call is None:
        return _mode_of_kept(reading, name, mode)
    if qualified is not None and qualified.partition(".")[0] in _DECORATOR_PACKAGES:
        return mode
    if last in _KNOWN_CONTEXTS or last in _ERROR_CONTEXTS:
        return mode
    return _mode_inside_own(reading, call, mode)


def _mode_inside_own(reading: Reading, call: cst.Call, mode: GradMode) -> GradMode:
    """Return the mode in a context that a function or class of the project makes."""
    function = _maker(reading, call)
    if function is None:
        return GradMode.UNKNOWN
    inside = reading.surroundings.mode_at_yield(function)
    if inside is not None:
        return mode if inside is GradMode.AMBIENT else inside
    return GradMode.UNKNOWN if reading.surroundings.near.has(function, ANY_MODE) else mode


def _mode_of_kept(reading: Reading, name: str | None, mode: GradMode) -> GradMode:
    """Return the mode in a context that a name holds, as in ``ctx = torch.autocast("cuda")``."""
    made = {value.node for value in reading.look_up(name)} if name is not None else set()
    if not made or not all(type(node) is cst.Call for node in made):
        return GradMode.UNKNOWN
    modes = {mode_inside(reading, node, mode) for node in made if type(node) is cst.Call}
    return modes.pop() if len(modes) == 1 else GradMode.UNKNOWN


def _maker(reading: Reading, call: cst.Call) -> FunctionScope | None:
    """Return the function that makes a context, or the method that is run when it is entered."""
    function: FunctionScope | None = None
    if type(call.func) is cst.Name:
        functions = {value.function for value in reading.look_up(call.func.value)}
        function = functions.pop() if len(functions) == 1 else None
        owner = reading.scopes.classes.get(call.func.value)
        function = function or reading.scopes.method(owner, "__enter__")
    elif type(call.func) is cst.Attribute:
        receiver = reading.look_up(dotted_name(call.func.value) or "")
        owners = {value.name for value in receiver if value.kind is Kind.INSTANCE}
        if len(owners) == 1 and len(receiver) == 1:
            owner = reading.scopes.classes.get(owners.pop())
            function = reading.scopes.method(owner, call.func.attr.value)
    return function


def unrecorded_by_with(nodes: Iterable[cst.CSTNode], scopes: Scopes) -> set[int]:
    """Return the nodes inside of ``with torch.no_grad():`` and the like."""
    return {
        id(inner)
        for node in nodes
        if type(node) is cst.With and _turns_off(node, scopes)
        for inner in walk(node.body)
    }


def _turns_off(node: cst.With, scopes: Scopes) -> bool:
    for item in node.items:
        call = item.item if type(item.item) is cst.Call else None
        name = dotted_name(call.func if call else item.item)
        if _asked_mode(scopes.resolve_import(name or ""), call) is GradMode.DISABLED:
            return True
    return False


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
        call = expression if type(expression) is cst.Call else None
        name = dotted_name(call.func if call else expression)
        qualified = scopes.resolve_import(name) if name else None
        asked = _asked_mode(qualified, call)
        if asked is not None:
            mode = asked
        elif not _leaves_mode_alone(name, qualified):
            mode = GradMode.UNKNOWN
    return mode


def _leaves_mode_alone(name: str | None, qualified: str | None) -> bool:
    if qualified is not None:
        return qualified.partition(".")[0] in _DECORATOR_PACKAGES
    return (name or "").rpartition(".")[2] in _KNOWN_DECORATORS


def expects_error(context: cst.BaseExpression) -> bool:
    """Tell whether a ``with`` catches what its body raises, as ``pytest.raises`` does."""
    name = dotted_name(context.func) if type(context) is cst.Call else None
    return (name or "").rpartition(".")[2] in _ERROR_CONTEXTS


def catches_torch_errors(node: cst.Try | cst.TryStar) -> bool:
    """Tell whether a ``try`` has a handler for what torch raises on misuse."""
    for handler in node.handlers:
        if handler.type is None:
            return True
        kinds = [handler.type]
        if type(handler.type) is cst.Tuple:
            kinds = [element.value for element in handler.type.elements]
        if any((dotted_name(kind) or "").rpartition(".")[2] in _TORCH_ERRORS for kind in kinds):
            return True
    return False
