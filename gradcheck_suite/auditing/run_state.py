"""The one count that orders what happens in an audit, and the moment that it stands at."""

from __future__ import annotations

__all__ = ["Birth", "Clock", "Moment"]

_new_object = object.__new__


class Birth:
    """The time between two backwards in which tensors were saved.

    It lives for as long as one of these tensors is kept. ``sequence`` is the number that it began
    with.
    """

    __slots__ = ("__weakref__", "index", "sequence")

    def __init__(self, index: int, sequence: int) -> None:
        self.index = index
        self.sequence = sequence


class Moment:
    """A time at which nothing but saving happened; one object for all that was saved in it.

    Attributes:
        sequence: the number of the last write, step or backward before it.
        birth: the time between two backwards that it lies in.
        step: the number of optimizer steps finished by then.
    """

    __slots__ = ("birth", "sequence", "step")

    def __init__(self, sequence: int, birth: Birth, step: int) -> None:
        self.sequence = sequence
        self.birth = birth
        self.step = step


class Clock:
    """Counts writes, steps and backwards in the order in which they happen.

    Saving a tensor does not move it: a saved tensor keeps the current moment, and whatever happens
    to its memory afterwards has a greater number.

    Attributes:
        moment: the current moment.
    """

    __slots__ = ("moment",)

    def __init__(self) -> None:
        self.moment = Moment(0, Birth(0, 0), 0)

    def tick(self) -> int:
        """Begin a new moment and return its number."""
        now = self.moment
        # Every write comes here: what does without `__init__` takes a third of the time.
        moment = self.moment = _new_object(Moment)
        sequence = moment.sequence = now.sequence + 1
        moment.birth = now.birth
        moment.step = now.step
        return sequence

    def after_backward(self, index: int) -> Birth:
        """Begin the time before backward number ``index``."""
        now = self.moment
        birth = Birth(index, now.sequence + 1)
        self.moment = Moment(birth.sequence, birth, now.step)
        return birth

    def after_step(self, step: int) -> int:
        """Begin the time in which ``step`` steps are finished, and return its number."""
        now = self.moment
        self.moment = Moment(now.sequence + 1, now.birth, step)
        return now.sequence + 1
