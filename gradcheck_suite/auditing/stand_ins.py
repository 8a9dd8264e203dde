"""Functions that stand in for those that write into their first argument, and tell of each call.

Training code calls few of them outside ``optimizer.step()``, so this costs next to nothing, where
a torch-function or dispatch mode would slow every call down.
"""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex

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

    from gradcheck_suite.auditing.patches import Patches
    from gradcheck_suite.auditing.writers import Writers

__all__ = ["StandIns"]


class _Watched:
    """Stand in for a function that writes into its first argument, and take note of each call.

    It equals the original, since torch hands the function that it finds under a name to
    ``__torch_function__``, and programs look up there what they have registered by function.

    Attributes:
        writers: of the audit that runs; of all stand-ins at once, as there are hundreds.
    """

    writers: ClassVar[Writers | None] = None

    def __init__(self, original: Callable[..., Any], name: str) -> None:
        functools.update_wrapper(self, original)
        self.original = original
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        writers = _Watched.writers
        try:
            result = self.original(*args, **kwargs)
        except RuntimeError as error:
            if writers is not None:
                writers.refused(args[0] if args else kwargs.get("input"), self._name, error)
            raise
        if writers is not None and writers.listening and not _is_compiling():
            writers.note(args[0] if args else kwargs.get("input"), self._name)
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


_is_compiling = torch.compiler.is_compiling
# Made once for each function, as there are hundreds: an audit begins and ends in little time.
_WATCHED: dict[tuple[object, str], tuple[_Watched, object]] = {}


def _watched(owner: object, name: str, original: Callable[..., Any]) -> tuple[_Watched, object]:
    """Return the stand-in for a function, and what to put in the place of the function."""
    known = _WATCHED.get((owner, name))
    if known is None or known[0].original is not original:
        watched = _Watched(original, name)
        placed = bound_method_maker(watched) if isinstance(owner, type) else watched
        known = _WATCHED[owner, name] = watched, placed
    return known


class StandIns:
    """All of these functions, put in place together."""

    def __init__(self) -> None:
        self._placed: list[_Watched] = []

    def begin(self, writers: Writers, patches: Patches) -> None:
        """Tell ``writers`` of each call from now on."""
        if not self._placed:
            self._place(patches)
        _Watched.writers = writers
        writers.begin()

    def end(self) -> None:
        """Tell nobody any more."""
        if _Watched.writers is not None:
            _Watched.writers.end()
            _Watched.writers = None

    def _place(self, patches: Patches) -> None:
        for owner, name in in_place_functions():
            watched, placed = _watched(owner, name, getattr(owner, name))
            self._placed.append(watched)
            patches.replace(owner, name, placed)
        teach_torchscript({watched: watched.original for watched in self._placed})
        forget_compiler_tables()

    def forget(self) -> None:
        """Clear what other parts of torch know about them, once they have been taken away."""
        if self._placed:
            forget_torchscript(self._placed)
            forget_compiler_tables()
            self._placed = []
