"""Functions that stand in for those that write into their first argument, and tell of each call.

Training code calls few of them outside ``optimizer.step()``, so this costs next to nothing, where
a torch-function or dispatch mode would slow every call down.
"""

from __future__ import annotations

import functools
import sys
import types
from typing import TYPE_CHECKING, Any, SupportsIndex

import torch

from gradcheck_suite._torch_compat import (
    bound_method_maker,
    forget_compiler_tables,
    forget_torchscript,
    in_place_functions,
    teach_torchscript,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from gradcheck_suite._runtime.patches import Patches
    from gradcheck_suite.auditing.saved_tensors.write_log import WriteLog

    _StandIn: TypeAlias = "Callable[..., Any]"

__all__ = ["InPlaceReplacements"]


class _Acting:
    """Whom all stand-ins tell, as there are hundreds: the writers of the audit that runs."""

    __slots__ = ("write_log",)

    def __init__(self) -> None:
        self.write_log: WriteLog | None = None


_acting = _Acting()


class _Watched:
    """Stand in for a function that writes into its first argument, and take note of each call.

    It equals the original, since torch hands the function that it finds under a name to
    ``__torch_function__``, and programs look up there what they have registered by function.
    """

    def __init__(self, original: Callable[..., Any], name: str) -> None:
        functools.update_wrapper(self, original)
        self.original = original
        self._name = name
        self._copies = name == "copy_"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        write_log = _acting.write_log
        if write_log is not None and write_log.before_write is not None:
            write_log.look_before(args[0] if args else kwargs.get("input"), _running_frame(1))
        try:
            result = self.original(*args, **kwargs)
        except RuntimeError as error:
            if write_log is not None:
                write_log.refused(args[0] if args else kwargs.get("input"), self._name, error)
            raise
        if write_log is not None and write_log.listening and not _is_compiling():
            written = args[0] if args else kwargs.get("input")
            caller = _running_frame(1)
            if self._copies:
                source = args[1] if len(args) > 1 else kwargs.get("src")
                write_log.look_at_copy(written, source, caller)
            if write_log.last() is not written or not write_log.runs_again(self._name, caller):
                write_log.note(written, self._name, caller)
        return result

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, _Watched):
            other = other.original
        return bool(self.original == other)

    def __hash__(self) -> int:
        return hash(self.original)

    def __repr__(self) -> str:
        return repr(self.original)

    # Compilers copy the functions that they trace; a function is its own copy.
    def __copy__(self) -> _Watched:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> _Watched:
        return self

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        return self.original.__reduce_ex__(protocol)


class _WatchedAssignment(_Watched):
    """Stand in for ``Tensor.__setitem__``, which loops call for one element after another."""

    def __call__(self, tensor: torch.Tensor, index: Any, value: Any, /) -> Any:
        write_log = _acting.write_log
        if write_log is not None and write_log.before_write is not None:
            write_log.look_before(tensor, _running_frame(1))
        try:
            result = self.original(tensor, index, value)
        except RuntimeError as error:
            if write_log is not None:
                write_log.refused(tensor, self._name, error)
            raise
        if write_log is None:
            return result
        caller = _running_frame(1)
        if write_log.last() is tensor and write_log.runs_again(self._name, caller):
            if write_log.on_repeat is not None:
                write_log.assigned_again(tensor)
        elif write_log.listening and not _is_compiling():
            write_log.note(tensor, self._name, caller)
        return result


_is_compiling = torch.compiler.is_compiling
_running_frame = sys._getframe  # noqa: SLF001 - the only cheap way


def _operator(original: Callable[..., Any], name: str) -> Callable[[Any, Any], Any]:
    """Return a function that does what ``_Watched`` does, for an operator, in half the time.

    Loops write by operators more than by any other means. A function is called sooner than an
    object, but does not equal the original.
    """
    running_frame = _running_frame
    acting = _acting

    @functools.wraps(original)
    def operate(tensor: Any, other: Any, /) -> Any:
        write_log = acting.write_log
        if write_log is None:
            return original(tensor, other)
        if write_log.before_write is not None:
            write_log.look_before(tensor, running_frame(1))
        try:
            result = original(tensor, other)
        except RuntimeError as error:
            write_log.refused(tensor, name, error)
            raise
        if write_log.last() is tensor and write_log.runs_again(name, running_frame(1)):
            return result
        if write_log.listening and result is not NotImplemented and not _is_compiling():
            write_log.note(tensor, name, running_frame(1))
        return result

    return operate


# Torch never hands these to ``__torch_function__``: it looks `add_` up for `__iadd__`.
_OPERATORS = frozenset(
    {"__iadd__", "__ifloordiv__", "__imod__", "__imul__", "__isub__", "__itruediv__"}
)
# Made once for each function, as there are hundreds: an audit begins and ends in little time.
_MADE: dict[tuple[object, str], tuple[Callable[..., Any], _StandIn, object]] = {}


def _stand_in(owner: object, name: str) -> tuple[Callable[..., Any], _StandIn, object]:
    """Return a function, what stands in for it, and what to put in its place for that."""
    original: Callable[..., Any] = getattr(owner, name)
    made = _MADE.get((owner, name))
    if made is None or made[0] is not original:
        placed: object
        stand_in: _StandIn
        if owner is torch.Tensor and name in _OPERATORS:
            placed = stand_in = _operator(original, name)
        else:
            kind = _WatchedAssignment if name == "__setitem__" else _Watched
            placed = stand_in = kind(original, name)
            if isinstance(owner, type):
                placed = bound_method_maker(stand_in)
        made = _MADE[owner, name] = original, stand_in, placed
    return made


class InPlaceReplacements:
    """All of these functions, put in place together."""

    def __init__(self) -> None:
        self._originals: dict[_StandIn, Callable[..., Any]] = {}

    def begin(self, write_log: WriteLog, patches: Patches) -> None:
        """Tell ``write_log`` of each call from now on."""
        if not self._originals:
            self._place(patches)
        _acting.write_log = write_log
        write_log.begin()

    def end(self) -> None:
        """Tell nobody any more."""
        if _acting.write_log is not None:
            _acting.write_log.end()
            _acting.write_log = None

    def _place(self, patches: Patches) -> None:
        for owner, name in in_place_functions():
            original, stand_in, placed = _stand_in(owner, name)
            self._originals[stand_in] = original
            patches.replace(owner, name, placed)
        teach_torchscript(self._originals)
        forget_compiler_tables()

    def forget(self) -> None:
        """Clear what other parts of torch know about them, once they have been taken away."""
        if self._originals:
            forget_torchscript(self._originals)
            forget_compiler_tables()
            self._originals = {}
