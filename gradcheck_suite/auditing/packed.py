"""What is kept in the graph in place of a saved tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import weakref

    from torch import Tensor

    from gradcheck_suite.auditing.call_sites import CallSite
    from gradcheck_suite.auditing.checksums import Fingerprint
    from gradcheck_suite.auditing.clock import Moment

__all__ = ["CHECKSUMMED", "Holder"]

CHECKSUMMED: Final = -2
"""Stands for an address that no tensor has, so that each use of this one takes a closer look."""


class Holder:
    """What is kept in the graph in place of a saved tensor.

    Attributes:
        tensor: the saved tensor itself for a leaf, so that ``leaf.data = ...`` acts as it does
            without an audit, and an alias cut from the graph for any other: the tensor itself
            would close a reference cycle through its node that no garbage collector sees.
        version: its version when it was saved.
        address: for a leaf, where its memory lay; None where that can't change (an alias of ours)
            or isn't known; ``CHECKSUMMED`` where ``fingerprint`` is to be compared.
        fingerprint: set only where ``address`` is ``CHECKSUMMED``.
        checked_address: set with ``fingerprint``: where the memory lay.
        first: set with ``fingerprint``: who has taken it when the same tensor was saved before;
            None for this one.
        proven_at: set with ``fingerprint``: when the contents were last seen to be the same.
        original: finds the saved tensor while it lives, to name its producer as torch would.
        moment: when it was saved: what happened before, and between which backwards and steps.
        site: the line of the user's code that saved it.
    """

    __slots__ = (
        "__weakref__",
        "address",
        "checked_address",
        "fingerprint",
        "first",
        "moment",
        "original",
        "proven_at",
        "site",
        "tensor",
        "version",
    )

    tensor: Tensor
    version: int
    address: int | None
    fingerprint: Fingerprint
    checked_address: int
    first: Holder | None
    proven_at: Moment | None
    original: weakref.ref[Tensor] | None
    moment: Moment
    site: CallSite | None
