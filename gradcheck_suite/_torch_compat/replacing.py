"""Functions of torch that are replaced for a while, and who has to be told."""

# ruff: noqa: SLF001 - private names are what this package is for
# pyright: reportAttributeAccessIssue=false
# (torch's stubs leave some of them out)
from __future__ import annotations

import ctypes
import functools
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


_Function = TypeVar("_Function", bound="Callable[..., Any]")

__all__ = [
    "bound_method_maker",
    "forget_compiler_tables",
    "forget_torchscript",
    "in_place_functions",
    "never_compiled",
    "teach_torchscript",
]


def bound_method_maker(function: Callable[..., Any]) -> object:
    """Return a class attribute that binds ``function`` to instances without running Python code.

    CPython's C interface has had ``PyInstanceMethod_New`` since 3.0. Where it is missing, the
    function itself is returned, which must bind itself.
    """
    make = getattr(getattr(ctypes, "pythonapi", None), "PyInstanceMethod_New", None)
    if make is None:
        return function
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.py_object,)
    bound: object = make(function)
    return bound


@functools.cache
def in_place_functions() -> tuple[tuple[Any, str], ...]:
    """Return the owner and name of each function that writes into its first argument (torch 2.13).

    These are the methods of ``torch.Tensor`` with a trailing underscore, the augmented and
    indexed assignments, and the functions behind ``inplace=True`` and ``torch._foreach_*_``.
    """
    found: list[tuple[Any, str]] = [(torch.Tensor, name) for name in _AUGMENTED]
    found += [(torch.Tensor, name) for name in dir(torch.Tensor) if _writes(name)]
    found += [(torch, name) for name in dir(torch) if _writes(name)]
    found += [
        (torch, name) for name in dir(torch) if name.startswith("_foreach_") and name.endswith("_")
    ]
    activations = sys.modules["torch._C._nn"]
    found += [(activations, name) for name in dir(activations) if _writes(name)]
    found += [
        (torch._VF, name)
        for name in ("alpha_dropout_", "dropout_", "feature_alpha_dropout_", "feature_dropout_")
        if hasattr(torch._VF, name)
    ]
    return tuple((owner, name) for owner, name in found if hasattr(owner, name))


_AUGMENTED = (
    "__iadd__",
    "__iand__",
    "__ifloordiv__",
    "__ilshift__",
    "__imod__",
    "__imul__",
    "__ior__",
    "__ipow__",
    "__irshift__",
    "__isub__",
    "__itruediv__",
    "__ixor__",
    "__setitem__",
)
_CHANGE_NO_ELEMENT = frozenset(
    {
        "as_strided_",
        "detach_",
        "is_shared_",
        "rename_",
        "requires_grad_",
        "set_",
        "share_memory_",
        "squeeze_",
        "swapaxes_",
        "swapdims_",
        "t_",
        "transpose_",
        "unsqueeze_",
    }
)


def _writes(name: str) -> bool:
    return name.endswith("_") and not name.startswith("_") and name not in _CHANGE_NO_ELEMENT


def teach_torchscript(replacements: Mapping[Any, Callable[..., Any]]) -> int:
    """Let ``torch.jit.script`` compile each replacement as the operator it maps to (torch 2.13).

    Returns:
        How many of the originals are operators that TorchScript knows.
    """
    table = _torchscript_table()
    known = {
        id(replacement): table[id(original)]
        for replacement, original in replacements.items()
        if id(original) in table
    }
    table.update(known)
    return len(known)


def forget_torchscript(replacements: Iterable[Any]) -> None:
    """Undo ``teach_torchscript``: the table goes by address, which may come to be used again."""
    table = _torchscript_table()
    for replacement in replacements:
        table.pop(id(replacement), None)


def _torchscript_table() -> dict[int, str]:
    # Drawn up on first use from the functions that torch has then: the originals, as this runs
    # before any is replaced.
    table: Callable[[], dict[int, str]] | None = getattr(
        sys.modules.get("torch.jit._builtins"), "_get_builtin_table", None
    )
    return {} if table is None else table()


def forget_compiler_tables() -> None:
    """Make ``torch.compile`` look torch's functions up again, if it has done so (torch 2.13).

    It maps function objects to names once; a table drawn up while functions were replaced would
    know the replacements only.
    """
    rules = sys.modules.get("torch._dynamo.trace_rules")
    table = getattr(rules, "get_torch_obj_rule_map", None)
    if table is not None:
        table.cache_clear()


def never_compiled(function: _Function) -> _Function:
    """Have ``torch.compile`` run ``function`` and what it calls as it stands; return it.

    For what torch calls while a compiled program runs: where a part of that program could not be
    compiled, as beyond dynamo's limit of recompilations, it takes each frame of Python that it
    meets for a part of the user's code (torch 2.13). On torch 2.6 what ``function`` calls is not
    included. ``torch.compiler.disable`` does the same, at the cost of a call each time.
    """
    code = function.__code__
    frames: Any = getattr(torch._C._dynamo, "eval_frame", None)
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))
    elif hasattr(frames, "skip_code"):
        frames.skip_code(code)
    return function
