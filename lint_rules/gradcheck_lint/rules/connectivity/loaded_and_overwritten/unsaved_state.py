"""Find what a class decides by, or has for itself, and leaves out of its state."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.syntax import (
    boolean,
    dotted_name,
    integer,
    is_none,
    last_word,
    place_name,
    positional,
    walk,
)
from gradcheck_lint.rules._rule import Violation
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel, ModuleModel
    from gradcheck_lint.model.scopes import ClassScope, FunctionScope

__all__ = ["left_out_by_wrapper", "unsaved_state"]

_OWN_STATE: Final = frozenset(
    {
        *("get_extra_state", "set_extra_state", "_load_from_state_dict", "_save_to_state_dict"),
        *("state_dict", "load_state_dict", "__setstate__", "register_load_state_dict_post_hook"),
        "_register_load_state_dict_pre_hook",
    }
)


def unsaved_state(constructor: FunctionModel) -> Iterator[Violation]:
    """Yield each plain attribute of a module by which it sets its weights or buffers.

    It is a flag that says whether they have been set from data, or a count that a moving average
    follows; ``state_dict()`` has neither.
    """
    owner = constructor.scope.owner
    module = constructor.module
    if owner is None or not module.scopes.derives_from(owner, "torch.nn"):
        return
    if not _OWN_STATE.isdisjoint({*owner.methods, *constructor.scope.words}):
        return
    registered = _registered(constructor.scope)
    for target, value in constructor.scope.assignments:
        name = _own(target)
        is_plain = boolean(value) is not None or integer(value) == 0 or is_none(value)
        if name is None or not is_plain or _is_used_outside(name, owner, module):
            continue
        found = _decided_by(name, owner, registered)
        if found is None:
            continue
        change, written, is_flag = found
        what = (
            f"whether they are set is kept in `self.{name}`, a plain attribute: a model that is "
            "loaded sets them anew from its first batch"
            if is_flag
            else f"how is told by the count `self.{name}`, a plain attribute that begins at 0 "
            "again when the state is loaded"
        )
        yield Violation(
            change,
            f"this changes what `state_dict()` has, and {what}",
            Severity.WARNING if _restarts(module) else Severity.NOTE,
            f'keep it in a buffer: `self.register_buffer("{name}", torch.tensor(...))`',
            ((value, "not in the state"), (written, "set here")),
        )


def _own(node: cst.CSTNode | None) -> str | None:
    """Return the name of an attribute of ``self``."""
    name = dotted_name(node) or ""
    root, _, attribute = name.partition(".")
    return attribute if root == "self" and attribute.isidentifier() else None


def _registered(constructor: FunctionScope) -> frozenset[str]:
    """Return the parameters and buffers that a constructor makes, and the layers."""
    found = {_own(target) for target, value in constructor.assignments if type(value) is cst.Call}
    for node in constructor.nodes_of(cst.Call):
        given = positional(node)
        name = last_word(dotted_name(node.func))
        if name in {"register_buffer", "register_parameter"} and given:
            held = given[0]
            found.add(str(held.evaluated_value) if type(held) is cst.SimpleString else None)
    return frozenset(name for name in found if name is not None)


def _decided_by(
    name: str, owner: ClassScope, registered: frozenset[str]
) -> tuple[cst.CSTNode, cst.CSTNode, bool] | None:
    """Return what changes an attribute, what is written by it, and whether it is a flag."""
    for method in owner.methods.values():
        if method.name.endswith("__init__") or name not in method.words:
            continue
        for node in method.small_statements:
            if type(node) is cst.AugAssign and _own(node.target) == name:
                written = _moved(method)
                if written is not None and _is_calculated_with(name, method):
                    return node, written, False
            elif type(node) is cst.Assign and _own(node.targets[0].target) == name:
                written = _written(method, owner, registered)
                if (
                    boolean(node.value) is True
                    and written is not None
                    and _waits(name, owner, method)
                ):
                    return node, written, True
    return None


def _written(
    method: FunctionScope, owner: ClassScope, registered: frozenset[str], depth: int = 0
) -> cst.CSTNode | None:
    """Return what sets a parameter or a buffer in place, in a method or in one that it calls."""
    for node in method.nodes_of(cst.Call):
        called = place_name(node.func) or ""
        words = called.split(".")
        is_own = words[0] == "self" and len(words) > 2 and words[1] in registered  # noqa: PLR2004
        if is_own and words[-1].endswith("_") and words[-1] not in _OTHERS:
            return node
        filled = (place_name(next(iter(positional(node)), None)) or "").split(".")
        if words[-2:-1] == ["init"] and filled[0] == "self" and filled[-1] in registered:
            return node
        inner = owner.methods.get(words[1]) if words[0] == "self" and len(words) == 2 else None  # noqa: PLR2004
        if inner is not None and inner is not method and not depth:
            found = _written(inner, owner, registered, 1)
            if found is not None:
                return found
    for target, _ in method.assignments:
        words = (place_name(target) or "").split(".")
        if words[0] == "self" and words[-1] == "data" and words[1] in registered:
            return target
    return None


_OTHERS: Final = frozenset({"requires_grad_", "detach_", "share_memory_", "rename_"})


def _moved(method: FunctionScope) -> cst.CSTNode | None:
    """Return what moves tensors towards others: ``average.mul_(decay).add_(...)``."""
    for node in method.nodes_of(cst.Call):
        if type(node.func) is cst.Attribute and node.func.attr.value in _MOVING:
            return node
    return None


_MOVING: Final = frozenset({"mul_", "lerp_"})


def _is_calculated_with(name: str, method: FunctionScope) -> bool:
    """Return whether the number goes into a calculation, other than "every so many"."""
    return any(
        type(node.operator) is not cst.Modulo and any(_own(each) == name for each in walk(node))
        for node in method.nodes_of(cst.BinaryOperation)
    )


def _waits(name: str, owner: ClassScope, changing: FunctionScope) -> bool:
    """Return whether a test of an attribute decides whether a method changes it."""
    own = changing.name.rpartition(".")[2]
    for method in owner.methods.values():
        for node in method.nodes_of(cst.If) if name in method.words else ():
            if any(_own(each) == name for each in walk(node.test)) and (
                method is changing
                or any(type(each) is cst.Call and _own(each.func) == own for each in walk(node))
            ):
                return True
    return False


def _is_used_outside(name: str, owner: ClassScope, module: ModuleModel) -> bool:
    """Return whether anything but the class itself names an attribute: it may keep it."""
    return any(name in scope.words for scope in _outside(owner, module))


def _outside(owner: ClassScope, module: ModuleModel) -> Iterator[FunctionScope]:
    for function in module.functions():
        if function.scope.owner is not owner:
            yield function.scope


def _restarts(module: ModuleModel) -> bool:
    """Return whether a file goes on with a training: it loads the state of an optimizer."""
    key = "goes on with a training"
    if key not in module.memo:
        module.memo[key] = any(
            _OPTIMIZER.search((dotted_name(node.func) or module.text(node.func)).lower())
            for function in module.functions()
            if "load_state_dict" in function.scope.words
            for node in function.scope.nodes_of(cst.Call)
            if last_word(dotted_name(node.func)) == "load_state_dict"
        )
    return bool(module.memo[key])


_OPTIMIZER: Final = re.compile(r"opt(?!ions)\w*\.load_state_dict")


def left_out_by_wrapper(constructor: FunctionModel) -> Iterator[Violation]:
    """Yield the ``state_dict()`` of a wrapper that hands out another's and leaves out its own.

    Its own are copies of tensors that its constructor makes and its other methods write to.
    """
    owner, module = constructor.scope.owner, constructor.module
    saved, loaded = (
        (None, None)
        if owner is None
        else (owner.methods.get("state_dict"), owner.methods.get("load_state_dict"))
    )
    if owner is None or saved is None or loaded is None or not _restarts(module):
        return
    if "super" in saved.words or "__dict__" in saved.words:
        return
    handed = [node for node in saved.nodes_of(cst.Return) if node.value is not None]
    if len(handed) != 1 or type(handed[0].value) is not cst.Call:
        return
    given = (dotted_name(handed[0].value.func) or "").split(".")
    if given[:1] != ["self"] or given[-1] != "state_dict":
        return
    for target, value in constructor.scope.assignments:
        place: cst.CSTNode = target
        while type(place) is cst.Subscript:
            place = place.value
        kept = _own(place)
        if kept is None or not _copies(value):
            continue
        if kept in saved.words | loaded.words or not _is_carried(kept, owner):
            continue
        yield Violation(
            handed[0],
            f"what `self.{kept}` keeps is not in this state: a run that goes on begins with the "
            "copies of its new weights",
            Severity.WARNING,
            f"save and load `self.{kept}` beside it",
            ((value, "kept by the wrapper itself"),),
        )
        return


def _copies(value: cst.CSTNode) -> bool:
    return any(
        (type(node) is cst.Call and last_word(dotted_name(node.func)) in {"clone", "deepcopy"})
        or (type(node) is cst.Attribute and node.attr.value == "clone")
        for node in walk(value)
    )


def _is_carried(kept: str, owner: ClassScope) -> bool:
    """Return whether another method than those of construction and saving reads and moves it."""
    return any(
        kept in method.words and not method.words.isdisjoint({"add_", "mul_", "lerp_", "copy_"})
        for name, method in owner.methods.items()
        if name not in {"__init__", "state_dict", "load_state_dict"}
    )
