"""Reads of ``.grad`` that can give nothing but None.

Torch warns of each such read, and the warning says where it was shown, not what to do about it:
here it becomes a finding on the user's line, and stays one where warnings go to a log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.events import NonLeafGradientRead
from gradcheck_suite.findings import Finding

if TYPE_CHECKING:
    from gradcheck_suite.auditing.events import Subscriptions

__all__ = ["NonLeafGradDetector"]


class NonLeafGradDetector:
    """Reports grad-read-on-non-leaf (GCS407)."""

    def __init__(self) -> None:
        self._sites: dict[CallSite, None] = {}

    def subscriptions(self) -> Subscriptions:
        """Note the line of each read."""
        return {NonLeafGradientRead: self._note}

    def _note(self, event: NonLeafGradientRead) -> None:
        self._sites[event.site] = None

    def findings(self) -> list[Finding]:
        """Return one finding for each line."""
        return [
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
