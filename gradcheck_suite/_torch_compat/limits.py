"""What this torch does not let us see or tell, found by what it has."""

from __future__ import annotations

from gradcheck_suite._torch_compat.engine import STACK_IS_KEPT
from gradcheck_suite._torch_compat.functions import checkpoint_entry_points
from gradcheck_suite._torch_compat.nodes import (
    SAVED_TENSORS_TELL,
    SAVED_TENSORS_UNPACK,
    next_sequence_number,
)

__all__ = ["limits"]


def limits() -> tuple[str, ...]:
    """Return a sentence for each thing that is not covered with this torch.

    Empty where all that the tool can tell can be told (torch 2.12 to 2.15).
    """
    told: list[str] = []
    if STACK_IS_KEPT:
        told.append(
            "saved-tensors hooks that were pushed before gradcheck_suite was loaded are not known, "
            "and are taken to be absent"
        )
    if not SAVED_TENSORS_TELL:
        told.append(
            "type and bytes of a saved tensor that was overwritten are not told by the graph; "
            "while a profiler runs, nothing of saved tensors is"
        )
    elif not SAVED_TENSORS_UNPACK:
        told.append(
            "of several tensors that one op saved under one name, those that were overwritten are "
            "told by the version and the shape that torch's error names"
        )
    if next_sequence_number is None:
        told.append("the graph does not tell what was saved under gs.record()")
    if checkpoint_entry_points()[1] is None:
        told.append(
            "a checkpoint that is not reentrant is not compared with its first run (GCS613)"
        )
    return tuple(told)
