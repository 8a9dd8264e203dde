"""Replace attributes for a while and put back exactly what was there."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

__all__ = ["Patches"]

_ABSENT = object()
_LEFT: WeakKeyDictionary[Any, dict[tuple[int, str], object]] = WeakKeyDictionary()
"""What has been left in place under the replacement of somebody else, and what was there before."""


class Patches:
    """A set of replaced attributes that can be undone together.

    An attribute that its owner only inherited is deleted again, so that the owner's own
    namespace ends as it began.
    """

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, object, object]] = []

    def replace(self, owner: Any, name: str, value: object) -> None:
        """Set ``owner.name`` to ``value`` and remember what to put back."""
        before = owner.__dict__.get(name, _ABSENT)
        setattr(owner, name, value)
        self._undo.append((owner, name, before, value))

    def restore(self) -> None:
        """Put everything back, the last replaced first.

        An attribute that somebody else has replaced since is left to them: putting the old value
        back would undo their work. If they are another set of these, it goes when theirs goes.
        """
        while self._undo:
            owner, name, before, value = self._undo.pop()
            if owner.__dict__.get(name, _ABSENT) is not value:
                _leave(owner, name, value, before)
                continue
            before = _what_stays(owner, name, before)
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


def _leave(owner: Any, name: str, value: object, before: object) -> None:
    try:
        _LEFT.setdefault(value, {})[id(owner), name] = before
    except TypeError:  # neither hashed nor referred to weakly: it stays
        return


def _what_stays(owner: Any, name: str, value: object) -> object:
    """Return what was there before all that has only been left in place."""
    place = id(owner), name
    while value is not _ABSENT:
        try:
            left = _LEFT.get(value)
        except TypeError:
            return value
        if left is None or place not in left:
            return value
        value = left.pop(place)
    return value
