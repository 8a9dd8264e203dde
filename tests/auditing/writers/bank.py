"""The form of a case: how to build its step, and which line writes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from types import ModuleType

    from torch import Tensor

Step: TypeAlias = Callable[[], None]
CASES: dict[str, Case] = {}
MARK = "# <- written"


@dataclass(frozen=True, slots=True)
class Case:
    """``build(fixed)`` returns one training step, with the write before or after backward.

    ``source`` holds the one line that is marked as the writer.
    """

    build: Callable[[bool], Step]
    source: object

    def line(self) -> tuple[str, int]:
        """Return the file and the number of the line that writes."""
        lines, first = inspect.getsourcelines(self.source)  # type: ignore[arg-type]
        hits = [number for number, text in enumerate(lines, first) if text.rstrip().endswith(MARK)]
        assert len(hits) == 1, (self.source, hits)
        return inspect.getsourcefile(self.source) or "", hits[0]  # type: ignore[arg-type]


def case(
    build: Callable[[bool], Step] | None = None, *, source: object | ModuleType = None
) -> Callable[..., object]:
    """Put a builder into the bank; ``source`` is where the marked line is, if not inside it."""

    def register(build: Callable[[bool], Step]) -> Callable[[bool], Step]:
        assert build.__name__ not in CASES, build.__name__
        CASES[build.__name__] = Case(build, source or build)
        return build

    return register if build is None else register(build)


def parts(fixed: bool, forward: Callable[[], Tensor], write: Callable[[], object]) -> Step:
    """Put a forward, a write and the backward into the order that is asked for."""

    def step() -> None:
        loss = forward()
        if not fixed:
            write()
        loss.backward()
        if fixed:
            write()

    return step
