"""Does backward write into the gradient it was given?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gradcheck_suite.verification.contracts.pulling import Breach

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_suite.verification.contracts.pulling import Probed

__all__ = ["probe_writing"]


def probe_writing(probed: Probed) -> Iterator[Breach]:
    """Compare the incoming gradients before and after."""
    handed = {index: given.clone() for index, given in probed.given.items()}
    probed.pullback.pull(handed)
    for index, given in probed.given.items():
        if not torch.equal(torch.nan_to_num(given), torch.nan_to_num(handed[index])):
            yield Breach("written", "writes", index)
