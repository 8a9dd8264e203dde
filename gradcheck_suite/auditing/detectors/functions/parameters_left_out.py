"""Parameters that a custom Function uses and whose gradients its backward never asks for.

A backward that recomputes, as of an adjoint method, a reversible block or a checkpoint of one's
own, asks ``autograd.grad`` for the gradients of its inputs. What the recomputed graph reaches
besides, a layer that the Function was not given, gets nothing through it. A Function that asks for
no parameter at all leaves them to another way, as an implicit layer does.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.detectors.functions.function_contract import is_the_users
from gradcheck_suite.auditing.detectors.reachable_parameters import nodes_under
from gradcheck_suite.auditing.events import Attention, GradientsAskedInside, StepFinished
from gradcheck_suite.auditing.object_names.leaf_places import LeafPlace, places_of
from gradcheck_suite.auditing.object_names.module_tree import ModuleTree
from gradcheck_suite.auditing.object_names.tensor_names import listed
from gradcheck_suite.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["ParametersLeftOutDetector"]

_LOOKED_AT = 16
"""Calls of ``autograd.grad`` inside of one Function that are looked at. A bound on cost: a solver
makes one for each of its steps, and all of them ask for the same."""

_MOST_NODES = 2_000
"""Nodes of each recomputed graph that are looked at. A bound on cost."""

_UNOWNED = "no optimizer owns them"


@dataclass(slots=True)
class _Function:
    """What the backward of a Function asks for, of parameters alone.

    Attributes:
        site: where it calls ``autograd.grad``.
        looked_at: how many of these calls were looked at.
        asked: the identities of what it asks for, and of what the Function was given.
        reached: what the graphs reach.
    """

    site: CallSite | None
    looked_at: int = 0
    asked: set[int] = field(default_factory=set)
    reached: dict[int, weakref.ref[Tensor]] = field(default_factory=dict)

    def left_out(self) -> list[Tensor]:
        """Return the parameters that live and are never asked for."""
        if self.asked.isdisjoint(self.reached):
            return []
        left = (known() for key, known in self.reached.items() if key not in self.asked)
        return [each for each in left if each is not None]


class ParametersLeftOutDetector:
    """Reports GCS404 and GCS401 of what a Function does not hand on.

    Args:
        recorder: whose events these are.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._functions: dict[type, _Function] = {}
        self._settled: set[type] = set()
        self._findings: list[Finding] = []

    def subscriptions(self) -> Subscriptions:
        """Look at what Functions ask for until a step has ended."""
        return {GradientsAskedInside: self._look, StepFinished: self._settle}

    def findings(self) -> list[Finding]:
        """Return one finding for each place that such parameters are kept at."""
        return self._findings

    def _look(self, event: GradientsAskedInside) -> Attention | None:
        if event.function in self._settled:
            return None
        known = self._functions.get(event.function)
        if known is None:
            if not is_the_users(event.function):
                return None
            known = self._functions[event.function] = _Function(event.site)
        if known.looked_at >= _LOOKED_AT:
            return None
        known.looked_at += 1
        # What was saved by hooks comes back as another tensor, with the same node.
        inputs = (each for each in event.inputs if isinstance(each, Tensor) and each.requires_grad)
        asked = _parameters_of(get_gradient_edge(each).node for each in inputs)
        known.asked.update(map(id, asked))
        for leaf in _parameters_of(edge for edge, _ in event.node.next_functions):
            known.asked.add(id(leaf))
        for leaf in _parameters_of(nodes_under(event.roots, most=_MOST_NODES)):
            known.reached.setdefault(id(leaf), weakref.ref(leaf))
        return Attention.AWAKE

    def _settle(self, _event: StepFinished) -> Attention:
        for function, known in self._functions.items():
            left_out = known.left_out()
            if left_out:
                self._findings += self._findings_of(function, known, left_out)
        self._settled.update(self._functions)
        self._functions.clear()
        return Attention.ASLEEP

    def _findings_of(
        self, function: type, known: _Function, left_out: list[Tensor]
    ) -> Iterable[Finding]:
        places = places_of(left_out, ModuleTree(self._recorder.heap))
        groups: dict[object, list[tuple[Tensor, LeafPlace | None]]] = {}
        for leaf in left_out:
            place = places.get(id(leaf))
            is_kept_so = place is not None and place.kind == "container"
            key = (place.module, place.attribute) if place is not None and is_kept_so else None
            groups.setdefault(key, []).append((leaf, place))
        for group in groups.values():
            is_owned = any(self._recorder.optimizers.owners(leaf) for leaf, _ in group)
            yield _finding(function, known, [place for _, place in group], is_owned=is_owned)


def _parameters_of(nodes: Iterable[Any]) -> Iterable[Tensor]:
    leaves = (getattr(node, "variable", None) for node in nodes)
    return (leaf for leaf in leaves if isinstance(leaf, nn.Parameter))


def _finding(
    function: type, known: _Function, places: list[LeafPlace | None], *, is_owned: bool
) -> Finding:
    number = "1 parameter" if len(places) == 1 else f"{len(places)} parameters"
    names = sorted({place.name for place in places if place is not None})
    which = f" ({listed(names)})" if names else ""
    asks = location_of(known.site)
    first = places[0]
    message = (
        f"backward of {function.__name__} computes through {number}{which} and asks for no "
        f"gradient of {'it' if len(places) == 1 else 'them'}, as it does for others: they are "
        "no inputs of the Function"
    )
    if first is not None and first.kind == "container" and first.container is not None:
        better = "ModuleDict" if first.container[0] == "dict" else "ModuleList"
        return Finding.of(
            catalogue.UNREGISTERED_MODULE,
            f"{message}; the {first.container[0]} `{first.attribute}` of {first.module} is not "
            "registered, so that parameters() misses what it holds",
            detector="audit",
            severity=Severity.WARNING,
            location=first.location,
            related=related((asks, "it asks for gradients here")),
            hint=f"self.{first.attribute} = nn.{better}(...)",
            evidence={"parameters": len(places), "function": function.__name__},
        )
    return Finding.of(
        catalogue.GRAPH_BROKEN,
        message,
        detector="audit",
        severity=Severity.WARNING,
        doubts=[] if is_owned else [_UNOWNED],
        location=asks,
        hint="give apply() all parameters that forward uses, and return their gradients",
        evidence={"parameters": len(places), "function": function.__name__, "names": tuple(names)},
    )
