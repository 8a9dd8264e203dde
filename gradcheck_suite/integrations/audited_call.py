"""Audit a method of one object, where a framework has no hook that always comes at the end."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

__all__ = ["AuditedCall"]

_Owner = TypeVar("_Owner")


class AuditedCall(Generic[_Owner]):
    """Stands for a method of one object: calls it inside a context.

    From its first call on, it does not keep the object alive; before, that may have nobody else, as
    in ``Trainer(...).train()``. A copy of the object, also one for another process, has its own
    method again.

    Args:
        owner: the object; its attribute ``name`` becomes this.
        name: of the method.
        context: makes the context, given the object.

    >>> from contextlib import nullcontext
    >>> class Loop:
    ...     def run(self, times):
    ...         return "run" * times
    >>> loop = Loop()
    >>> call = AuditedCall(loop, "run", nullcontext)
    >>> loop.run(2)
    'runrun'
    """

    def __init__(
        self, owner: _Owner, name: str, context: Callable[[_Owner], AbstractContextManager[Any]]
    ) -> None:
        self._owner = weakref.ref(owner)
        self._uncalled: _Owner | None = owner
        self._name = name
        self._context = context
        self._before = vars(owner).get(name)
        self.__wrapped__ = getattr(type(owner), name)
        self.__doc__ = self.__wrapped__.__doc__
        vars(owner)[name] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method."""
        owner, self._uncalled = self._owner(), None
        if owner is None:
            raise ReferenceError(f"the object that {self._name}() is a method of is gone")
        with self._context(owner):
            if self._before is not None:
                return self._before(*args, **kwargs)
            return self.__wrapped__(owner, *args, **kwargs)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, str]]:
        # What it is copied for has no such attribute yet, and so gives the method of its class.
        return getattr, (self._owner(), self._name)
