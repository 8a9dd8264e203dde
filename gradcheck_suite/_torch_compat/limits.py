"""What this torch does not let us see or tell, found by what it has."""

# ruff: noqa: SLF001 - private names are what this package is for

from __future__ import annotations

import torch
import torch.utils._python_dispatch
from torch import nn
from torch.nn.utils import parametrize

from gradcheck_suite._torch_compat.engine import STACK_IS_KEPT
from gradcheck_suite._torch_compat.functions import checkpoint_entry_points
from gradcheck_suite._torch_compat.nodes import (
    SAVED_TENSORS_TELL,
    SAVED_TENSORS_UNPACK,
    next_sequence_number,
)

__all__ = ["limits"]

_FALLS_BACK: tuple[tuple[object, str, str], ...] = (
    (
        torch.utils._python_dispatch,
        "_disable_current_modes",
        "a dispatch mode of the program sees what the tool computes itself",
    ),
    (
        torch._C,
        "_DisableFuncTorch",
        "what the tool computes under a transform of torch.func is transformed as well",
    ),
    (
        torch._C,
        "_are_functorch_transforms_active",
        "calls under a transform of torch.func are taken for plain ones",
    ),
    (nn.Module, "_compiled_call_impl", "modules that Module.compile() has changed are not known"),
    (
        parametrize,
        "_cache_enabled",
        "what parametrize.cached() keeps is taken to be computed anew (GCS201, GCS318)",
    ),
    (
        nn.utils.stateless,
        "_reparametrize_module",
        "modules are not checked with other parameters than their own",
    ),
    (torch.utils.hooks.RemovableHandle, "next_id", "hooks registered in between are not noticed"),
)
"""Who has a private name, the name, and what is not known or told without it. All are there in
torch 2.6 to 2.15."""


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
    told += [words for owner, name, words in _FALLS_BACK if not hasattr(owner, name)]
    return tuple(told)
