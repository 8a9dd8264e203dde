"""What this rank has sent to the others, or meant not to send."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from gradcheck_suite.auditing.call_sites import CallSite

__all__ = ["Exchanges"]

_MOST_METRICS = 16
"""Floats in one exchange that may be losses, counts or the like. Chosen: gradients and activations
are more."""

_MOST_OBJECTS = 1 << 16
"""Bytes in one exchange that may be a pickled dictionary of such."""


class Exchanges:
    """Takes note of what may carry gradients, parameters or activations to other ranks.

    Attributes:
        since_step: how many such exchanges there were since an optimizer's last step.
        metrics: how many others there were in all.
        waiting: the identities of parameters whose gradients wait for FSDP to reduce them.
        suspended_at: where ``no_sync()`` was called last since then.
        samples_by_rank: whether a DistributedSampler was gone through: the ranks share the data.
    """

    def __init__(self) -> None:
        self.since_step = self.metrics = 0
        self.waiting: set[int] = set()
        self.suspended_at: CallSite | None = None
        self.samples_by_rank = False

    def note(self, arguments: object) -> None:
        """Take note of an exchange of these tensors, if it is more than metrics."""
        if _carries_tensors(arguments):
            self.since_step += 1
        else:
            self.metrics += 1

    def end_step(self) -> None:
        """Begin anew."""
        self.since_step = 0
        self.suspended_at = None


def _carries_tensors(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        if value.dtype is torch.uint8:
            return value.numel() > _MOST_OBJECTS
        return (value.is_floating_point() or value.is_complex()) and value.numel() > _MOST_METRICS
    return isinstance(value, (list, tuple)) and any(map(_carries_tensors, value))
