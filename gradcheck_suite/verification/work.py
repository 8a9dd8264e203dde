"""How much a call does: how many of torch's operators it runs, and how many elements they make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gradcheck_suite._torch_compat import noting_operators

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradcheck_suite.verification.calling import Subject

__all__ = ["Work", "work_of"]


@dataclass(frozen=True, slots=True)
class Work:
    """What one call took.

    Attributes:
        operators: how many of torch's operators ran, those within custom Functions too.
        elements: how many elements they made, all together.
    """

    operators: int
    elements: int


def work_of(subject: Subject) -> Work | None:
    """Call a function at its point, without gradients, and count; None where it raises."""
    operators = elements = 0

    def note(_operator: object, _given: Sequence[object], result: object) -> None:
        nonlocal operators, elements
        operators += 1
        for part in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(part, torch.Tensor):
                elements += part.numel()

    try:
        with torch.no_grad(), noting_operators(note):
            subject([variable.value for variable in subject.variables])
    except Exception:  # noqa: BLE001 - the user's function, perhaps off the point
        return None
    return Work(operators, elements)
