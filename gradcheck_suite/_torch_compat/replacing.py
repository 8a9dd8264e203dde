"""Functions of torch that are replaced for a while, and who has to be told."""

# ruff: noqa: SLF001 - private names are what this package is for
# pyright: reportAttributeAccessIssue=false
# (torch's stubs leave some of them out)
from __future__ import annotations

import ctypes
import functools
import inspect
import sys
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


_Function = TypeVar("_Function", bound="Callable[..., Any]")

__all__ = [
    "bound_method_maker",
    "forget_compiler_tables",
    "forget_torchscript",
    "in_place_functions",
    "leave_uncompiled",
    "left_out_of_compiled_code",
    "never_compiled",
    "step_was_called",
    "teach_torchscript",
    "trace_original_of",
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


def trace_original_of(replacement: object) -> None:
    """Have ``torch.compile`` see the function that is wrapped in place of its replacement.

    Torch uses ``_torchdynamo_inline`` for what its own decorators wrap, such as
    ``torch.jit.script_if_tracing`` (``_dynamo/variables/functions.py``, torch 2.6 to 2.13).
    """
    original = getattr(replacement, "__wrapped__", None)
    if not (isinstance(replacement, FunctionType) and isinstance(original, FunctionType)):
        return
    # What is never compiled (``torch._disable_dynamo``) is called as it stands, by way of ours.
    if original.__code__.co_filename != sys.modules["torch._compile"].__file__:
        # It looks through one only.
        vars(replacement)["_torchdynamo_inline"] = vars(original).get(
            "_torchdynamo_inline", original
        )


def left_out_of_compiled_code(hook: _Function) -> _Function:
    """Have ``torch.compile`` see a function that does nothing in place of a hook; return it.

    As ``trace_original_of``. To ask whether a compiler runs would cost two calls each time.
    """
    vars(hook)["_torchdynamo_inline"] = _do_nothing
    return hook


def _do_nothing(*_arguments: Any) -> None:
    """Stand for a hook."""


def leave_uncompiled(package: str, *, but: str, with_all_below: Iterable[type]) -> None:
    """Have ``torch.compile`` run each function of a package as it stands, ``but`` for a part of it.

    What is loaded by now is meant, with all that is defined inside of functions and classes. What
    they call of other packages is compiled as ever, as a wrapper calls functions of the user's; not
    so below the methods of some classes, which call none. On torch 2.6 these are as the others.
    """
    for name, module in list(sys.modules.items()):
        within = f"{name}."
        if within.startswith(f"{package}.") and not within.startswith(f"{but}."):
            for function in _functions_of(module):
                for code in _code_inside(function.__code__):
                    _skip_frames_of(code, and_below=False)
    for owner in with_all_below:
        for function in _functions_of(owner):
            _skip_frames_of(function.__code__, and_below=True)


def _skip_frames_of(code: CodeType, *, and_below: bool) -> None:
    frames: Any = getattr(torch._C._dynamo, "eval_frame", None)
    if hasattr(frames, "set_code_exec_strategy"):
        action = frames._FrameAction
        below = action.SKIP if and_below else action.DEFAULT
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(action.SKIP, below))
    elif hasattr(frames, "skip_code"):
        frames.skip_code(code)


_FUNCTIONS = (FunctionType, classmethod, staticmethod, functools._lru_cache_wrapper)


def _functions_of(owner: Any) -> Iterator[FunctionType]:
    """Yield the functions of a module, or of a class, and of the classes that it defines.

    What is made for a class, such as by ``dataclass``, is its own too, whatever module it names.
    """
    is_class = isinstance(owner, type)
    home = owner.__module__ if is_class else owner.__name__
    for value in list(vars(owner).values()):
        parts = (value.fget, value.fset) if isinstance(value, property) else (value,)
        for part in parts:
            if isinstance(part, _FUNCTIONS):
                function = inspect.unwrap(cast("Callable[..., Any]", part))
                own = is_class or function.__module__ == home
                if own and isinstance(function, FunctionType):
                    yield function
        if isinstance(value, type) and value.__module__ == home and value is not owner:
            yield from _functions_of(value)


def _code_inside(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_inside(constant)


def never_compiled(function: _Function) -> _Function:
    """Have ``torch.compile`` run ``function`` and what it calls as it stands; return it.

    For what torch calls while a compiled program runs: where a part of that program could not be
    compiled, as beyond dynamo's limit of recompilations, it takes each frame of Python that it
    meets for a part of the user's code (torch 2.13). On torch 2.6 what ``function`` calls is not
    included. ``torch.compiler.disable`` does the same, at the cost of a call each time.
    """
    _skip_frames_of(function.__code__, and_below=True)
    return function


def step_was_called(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer that has a scheduler has stepped, as the scheduler goes by.

    Schedulers wrap its ``step`` to note it (``lr_scheduler.py``, torch 2.6 to 2.13), which a step
    that is compiled does too.
    """
    return bool(getattr(optimizer, "_opt_called", False))
