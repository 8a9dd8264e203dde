"""What is kept in the graph in place of a saved tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import weakref

    from torch import Tensor

    from gradcheck_suite.auditing.call_sites import CallSite
    from gradcheck_suite.auditing.checksums import Fingerprint
    from gradcheck_suite.auditing.generations import Birth

__all__ = ["Holder"]


class Holder:
    """What is kept in the graph in place of a saved tensor.

    ``tensor`` is the saved tensor itself for a leaf, so that ``leaf.data = ...`` acts as it does
    without an audit, and an alias cut from the graph for any other: the tensor itself would close
    a reference cycle through its node that no garbage collector sees. ``original`` finds that one
    while it lives, to name its producer as torch would.
    """

    __slots__ = (
        "__weakref__",
        "address",
        "birth",
        "fingerprint",
        "original",
        "output_number",
        "producer",
        "sequence",
        "site",
        "tensor",
        "version",
    )

    tensor: Tensor
    version: int
    address: int
    birth: Birth
    fingerprint: Fingerprint | None
    original: weakref.ref[Tensor] | None
    sequence: int
    site: CallSite | None
    producer: type | None
    output_number: int
