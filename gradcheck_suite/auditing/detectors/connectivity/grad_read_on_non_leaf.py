"""Computed tensors that are taken for leaves: by a read of ``.grad``, or by an optimizer.

Torch warns of each such read, and refuses such a tensor for an optimizer, without a word on what
to do about it: here both become findings on the user's line, also where warnings go to a log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.events import NonLeafGradientRead, NonLeafRefused
from gradcheck_suite.findings import Finding

if TYPE_CHECKING:
    from gradcheck_suite.auditing.events import Subscriptions

__all__ = ["GradReadOnNonLeafDetector"]


class GradReadOnNonLeafDetector:
    """Reports grad-read-on-non-leaf (GCS407) and leaf-rebound (GCS102)."""

    def __init__(self) -> None:
        self._sites: dict[CallSite, None] = {}
        self._refused: dict[NonLeafRefused, None] = {}

    def subscriptions(self) -> Subscriptions:
        """Note the line of each read and of each refusal."""
        return {NonLeafGradientRead: self._note, NonLeafRefused: self._note_refusal}

    def _note_refusal(self, event: NonLeafRefused) -> None:
        self._refused[event] = None

    def _note(self, event: NonLeafGradientRead) -> None:
        self._sites[event.site] = None

    def findings(self) -> list[Finding]:
        """Return one finding for each line."""
        refusals = [
            Finding.of(
                catalogue.LEAF_REBOUND,
                f"{event.optimizer} was given a tensor that an operation has made, and not the "
                "leaf that it was made from: torch refuses it, as backward fills the gradients of "
                "leaves only",
                detector="audit",
                location=location_of(event.site),
                hint="make the tensor first, as in torch.randn(3, device=device), and ask for its "
                "gradient then, with requires_grad_(); or give the optimizer the leaf",
                evidence={"optimizer": event.optimizer, "refused": True},
            )
            for event in self._refused
        ]
        return refusals + [
            Finding.of(
                catalogue.GRAD_READ_ON_NON_LEAF,
                "`.grad` was read of a tensor that an operation has made: backward keeps the "
                "gradients of leaves only, so this is None; expected retain_grad() on that tensor "
                "before backward()",
                detector="audit",
                location=location_of(site),
                hint="call tensor.retain_grad() before backward(), or torch.autograd.grad(loss, "
                "tensor)",
            )
            for site in self._sites
        ]
