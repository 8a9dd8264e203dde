"""Parameters that are zero and never leave it, as what they are multiplied by is zero as well.

The gradient of each factor of a product is made of the other one: where both matrices of a low-rank
adapter start at zero, or a gate and the last layer behind it, both gradients are zero for ever. One
such factor alone moves at the first step. Suspected are zeros that an optimizer owns and whose
gradient was zero in each step looked at; that they are factors of one product shows in the graph
of one backward. A layer whose units are dead, or rows that are never used, are no such factors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.detectors.leaf_records import next_looked_at
from gradcheck_suite.auditing.detectors.reachable_parameters import in_order
from gradcheck_suite.auditing.events import Attention, BackwardStarted, SessionEnded, StepFinished
from gradcheck_suite.auditing.object_names.module_tree import assignment_of
from gradcheck_suite.auditing.object_names.tensor_names import listed, local_name, written
from gradcheck_suite.auditing.saved_tensors.checksums import read_answers
from gradcheck_suite.auditing.user_modes import ops_are_recorded, without_user_modes
from gradcheck_suite.findings import Finding, Location, Severity
from gradcheck_suite.reporting.text import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor
    from torch.autograd.graph import Node

    from gradcheck_suite.auditing.detectors.leaf_records import LeafRecord, LeafRecords  # noqa: TC004 - nobody asks for the types of the fields
    from gradcheck_suite.auditing.events import Subscriptions

__all__ = ["ZeroFactorsDetector"]

_ENOUGH = 6
"""Looks at steps that find the gradients zero before that is told. Chosen: the sixth is the ninth
step; what waits for another part of the model, as a gate that is opened, has mostly moved by then.
"""

_GRAPHS = 4
"""Backwards whose graphs are looked through once zeros are suspected. A bound on cost: those of a
program with several losses."""

_KEEPS_ZERO = frozenset(
    {"Alias", "Clone", "Div", "Expand", "Gelu", "NativeDropout", "Neg", "Permute", "Relu"}
    | {"ReshapeAlias", "Select", "Silu", "Slice", "Squeeze", "T", "Tanh", "ToCopy", "Transpose"}
    | {"UnsafeView", "Unsqueeze", "View"}
)
"""Ops that make zeros of zeros in their first input, as torch names their nodes, in front of
``Backward`` and the number of the overload."""

_PRODUCTS = frozenset(("Bmm", "Convolution", "Dot", "Mm", "Mul", "Mv"))
"""Ops that multiply their first two inputs; that of a convolution adds a third."""

_SUMS = frozenset(("Add", "Cat", "Stack", "Sub"))

_PRODUCTS_ADDED = frozenset(("Addbmm", "Addmm", "Addmv", "Baddbmm"))
"""Ops that add the product of their second and third inputs to the first."""


@dataclass(frozen=True, slots=True)
class _Product:
    """Two factors of one product that are all zeros: the records and names of their leaves.

    Attributes:
        records: of the leaves that make the first factor zero, and the second.
        names: what the program calls them.
        made: where one of each is made, if that is known.
        site: where the backward is called.
    """

    records: tuple[LeafRecord, ...]
    names: tuple[str, ...]
    made: tuple[Location | None, Location | None]
    site: CallSite | None


class ZeroFactorsDetector:
    """Reports parameter-without-gradient (GCS403) of zeros that are multiplied by zeros."""

    def __init__(self, leaves: LeafRecords) -> None:
        self._leaves = leaves
        self._suspects: list[LeafRecord] = []
        self._graphs = _GRAPHS
        self._found: dict[frozenset[int], _Product] = {}
        self._ended = False

    def subscriptions(self) -> Subscriptions:
        """Look for zeros that get gradients of zeros, and then through a graph."""
        return {
            BackwardStarted: self._begin_backward,
            StepFinished: self._end_step,
            SessionEnded: self._end,
        }

    def findings(self) -> list[Finding]:
        """Return one finding for each line that makes them, once nothing can move any more."""
        if not self._ended:
            return []
        by_line: dict[object, list[_Product]] = {}
        for each in self._found.values():
            if all(map(_is_stuck, each.records)):
                by_line.setdefault(each.made[0] or each.site, []).append(each)
        return [_finding(products) for products in by_line.values()]

    def _end(self, _event: SessionEnded) -> None:
        self._ended = True

    def _end_step(self, event: StepFinished) -> Attention | int | None:
        if not self._leaves.is_looking:
            return next_looked_at(event.number)
        self._ended = False
        if event.number < _ENOUGH - 2:
            return _ENOUGH - 2  # the first step by which there may be so many looks but one
        if not self._graphs or self._suspects:
            return None
        suspects = [
            each
            for each in self._leaves.stepped
            if each.with_zeros and _is_stuck(each, _ENOUGH - 1) and each.sums is not None
        ]
        if not suspects and self._leaves.turns == 1:
            return next_looked_at(event.number)
        if len(suspects) > 1 and not ops_are_recorded():
            # The second of the sums is the norm.
            are_zero = without_user_modes(
                read_answers, [each.sums[1] == 0 for each in suspects if each.sums is not None]
            )
            chosen = [each for each, is_zero in zip(suspects, are_zero, strict=True) if is_zero]
            known = set().union(*self._found)
            self._suspects = [each for each in chosen if id(each) not in known]
        return Attention.AWAKE if len(self._suspects) > 1 else None

    def _begin_backward(self, event: BackwardStarted) -> Attention | None:
        if not self._suspects:
            return Attention.ASLEEP
        self._graphs -= 1
        zeros = {
            id(leaf): each for each in self._suspects if (leaf := each.reference()) is not None
        }
        starts = [node for root in event.roots if (node := root.grad_fn) is not None]
        pairs = _products_of_zeros(in_order(starts) or (), zeros)
        for first, second in pairs:
            factors = [zeros[first], zeros[second]]
            key = frozenset(map(id, factors))
            if key not in self._found:
                self._found[key] = self._product(factors, event.site)
        if pairs or not self._graphs:
            self._suspects = []
        return None

    def _product(self, factors: list[LeafRecord], site: CallSite | None) -> _Product:
        leaves = [each.reference() for each in factors]
        first, second = (None if leaf is None else self._made_at(leaf) for leaf in leaves)
        names = tuple(
            name
            for each, leaf in zip(factors, leaves, strict=True)
            if leaf is not None
            and (name := written(each.name) if each.name else local_name(leaf)) is not None
        )
        return _Product(tuple(factors), names, (first, second), site)

    def _made_at(self, leaf: Tensor) -> Location | None:
        """Return where a class of the user's assigns it, or the innermost layer that has it."""
        for model in self._leaves.modules():
            path = next((name for name, each in model.named_parameters() if each is leaf), None)
            while path:
                path, _, name = path.rpartition(".")
                place = assignment_of(model.get_submodule(path), name)
                if place is not None:
                    return place
        return None


def _is_stuck(record: LeafRecord, looks: int = _ENOUGH) -> bool:
    """Return whether all gradients looked at were zeros, and nothing has changed it."""
    return record.changed is False and not record.with_gradient and record.with_zeros >= looks


def _products_of_zeros(
    order: Iterable[Node], zeros: dict[int, LeafRecord]
) -> list[tuple[int, int]]:
    """Return the leaves of each product both of whose factors are zero by leaves of ``zeros``.

    Args:
        order: the nodes of a graph, each after those that it depends on.
        zeros: leaves that are all zeros, by identity.
    """
    # By which leaf what a node has made is known to be all zeros.
    by: dict[Node | None, int] = {}
    found: dict[tuple[int, int], None] = {}
    for node in order:
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            if id(leaf) in zeros:
                by[node] = id(leaf)
            continue
        name = type(node).__name__.partition("Backward")[0]
        edges = [edge for edge, _ in node.next_functions]
        because: int | None = None
        if name in _KEEPS_ZERO:
            because = by.get(edges[0])
        elif name in _SUMS:
            because = _first_of(edges, by)
        elif name in _PRODUCTS or name in _PRODUCTS_ADDED:
            added = edges[:1] if name in _PRODUCTS_ADDED else edges[2:]
            one, other = edges[1:3] if name in _PRODUCTS_ADDED else (*edges, None)[:2]
            pair = by.get(one), by.get(other)
            if pair[0] is not None and pair[1] is not None and pair[0] != pair[1]:
                found[pair[0], pair[1]] = None
            is_bare = name == "Convolution" and None in added
            if not added or is_bare or _first_of(added, by) is not None:
                because = pair[0] if pair[0] is not None else pair[1]
        if because is not None:
            by[node] = because
    return list(found)


def _first_of(edges: Sequence[Node | None], by: dict[Node | None, int]) -> int | None:
    """Return by which leaf the first is zero, if all are."""
    leaves = [by.get(edge) for edge in edges]
    return leaves[0] if leaves and None not in leaves else None


def _finding(products: list[_Product]) -> Finding:
    first = products[0]
    where = first.made[0] or location_of(first.site)
    names = list(dict.fromkeys(name for each in products for name in each.names))
    records = {id(record): record for each in products for record in each.records}
    looks = min(each.with_zeros for each in records.values())
    which = plural(len(records), "parameter") + (f" ({listed(tuple(names))})" if names else "")
    return Finding.of(
        catalogue.PARAMETER_WITHOUT_GRADIENT,
        f"{which} are all zeros and multiplied by one another, so that the gradient of each is "
        f"zero: it was in each of {looks} steps looked at, and none of them moved; expected one of "
        "two factors to start at other values",
        detector="audit",
        severity=Severity.WARNING,
        location=where,
        related=related(
            (first.made[1], "the other factor is made here, of zeros as well"), apart_from=where
        ),
        hint="initialize one of the two at random, as LoRA does with its first matrix",
        evidence={"steps": looks, "parameters": [*names], "count": len(records)},
    )
