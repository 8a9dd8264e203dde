"""Replace attributes for a while and put back exactly what was there."""

from __future__ import annotations

from typing import Any

__all__ = ["Patches"]

_ABSENT = object()


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
        back would undo their work.
        """
        while self._undo:
            owner, name, before, value = self._undo.pop()
            if owner.__dict__.get(name, _ABSENT) is not value:
                continue
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
