"""Is backward linear in the incoming gradient?

A power of two scales floating-point numbers exactly, so ``backward(s * g) / s`` must equal
``backward(g)``. Parts of a gradient add up exactly, so the gradients of two complementary parts
must add up to that of the whole: a backward that keeps only the largest entries scales well and
fails this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gradcheck_suite.verification.contracts.comparison import REVERSED_AND_SCALED, added
from gradcheck_suite.verification.contracts.pulling import Breach
from gradcheck_suite.verification.directions import generator_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_suite.verification.contracts.pulling import Probed

__all__ = ["probe_linearity"]


def probe_linearity(probed: Probed) -> Iterator[Breach]:
    """Compare the gradients of scaled and of split incoming gradients with those of the whole."""
    scaled = probed.pullback.pull({i: g * REVERSED_AND_SCALED for i, g in probed.given.items()})
    back = [None if part is None else part / REVERSED_AND_SCALED for part in scaled]
    apart = probed.apart(probed.row, back)
    if apart > probed.allowed:
        yield Breach(
            "nonlinear", "backward(-1024 * g) / -1024 differs from backward(g)", None, apart
        )
        return
    masks = {
        index: (torch.rand(given.shape, generator=generator_for(index)) < 0.5).to(given.device)  # noqa: PLR2004 - a half
        for index, given in probed.given.items()
    }
    one = probed.pullback.pull({i: g.where(masks[i], 0.0) for i, g in probed.given.items()})
    two = probed.pullback.pull({i: g.where(~masks[i], 0.0) for i, g in probed.given.items()})
    total = [added(parts) for parts in zip(one, two, strict=True)]
    apart = probed.apart(probed.row, total)
    if apart > probed.allowed:
        yield Breach(
            "nonlinear", "backward(g) differs from backward(g1) + backward(g - g1)", None, apart
        )
