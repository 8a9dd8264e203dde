"""When a check stops taking up further work."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

__all__ = ["Deadline"]


@dataclass(frozen=True, slots=True)
class Deadline:
    """The moment, by ``time.monotonic``, at which a check stops taking up further work."""

    moment: float = math.inf

    @classmethod
    def after(cls, seconds: float | None) -> Deadline:
        """Return the deadline that lies so many seconds ahead; None for none."""
        return cls() if seconds is None else cls(time.monotonic() + seconds)

    @property
    def passed(self) -> bool:
        """Whether it is too late to begin anything else."""
        return time.monotonic() >= self.moment

    def or_after(self, seconds: float) -> Deadline:
        """Return this deadline or the one so many seconds ahead, whichever comes first."""
        return Deadline(min(self.moment, time.monotonic() + seconds))
