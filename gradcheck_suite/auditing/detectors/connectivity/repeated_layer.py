"""Lists of layers that have one layer several times."""

from __future__ import annotations

import ast
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of, user_files_with
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.events import ForwardFinished
from gradcheck_suite.auditing.object_names.tensor_names import variable_of, written
from gradcheck_suite.auditing.source_analysis.source import function_at, name_of, tree_of
from gradcheck_suite.findings import Finding, Location, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_suite.auditing.events import Subscriptions

__all__ = ["RepeatedLayerDetector"]

_LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


@dataclass(frozen=True, slots=True)
class _Repeated:
    """A layer that a container has several times: the name of that, and how many of how many."""

    container: str
    kind: str
    layer: str
    times: int
    entries: int
    made: Location | None
    called: CallSite | None


class RepeatedLayerDetector:
    """Reports repeated-layer (GCS412)."""

    def __init__(self) -> None:
        self._seen: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._found: dict[object, _Repeated] = {}

    def subscriptions(self) -> Subscriptions:
        """Look at each model when it is first called."""
        return {ForwardFinished: self._look}

    def _look(self, event: ForwardFinished) -> None:
        model = event.module
        if model in self._seen:
            return
        self._seen.add(model)
        for path, container in model.named_modules():
            if not isinstance(container, _LISTS):
                continue
            for layer, times in _repeated(container):
                called = variable_of(model) or type(model).__name__
                name = written(f"{called}.{path}") if path else called
                kind = type(layer).__name__
                made = _multiplied_list(kind)
                self._found.setdefault(
                    made or name,
                    _Repeated(
                        name,
                        type(container).__name__,
                        kind,
                        times,
                        len(container),
                        made,
                        event.site,
                    ),
                )

    def findings(self) -> list[Finding]:
        """Return one finding for each line that multiplies a list, or else for each container."""
        return [_finding(repeated) for repeated in self._found.values()]


def _repeated(container: nn.Module) -> Iterator[tuple[nn.Module, int]]:
    """Yield what a container has several times and what is trained, and how often."""
    # By name, of `children()` each comes once.
    entries = list(container._modules.values())  # noqa: SLF001 - as said
    for layer in {id(each): each for each in entries if each is not None}.values():
        times = sum(each is layer for each in entries)
        if times > 1 and any(each.requires_grad for each in layer.parameters()):
            yield layer, times


def _multiplied_list(kind: str) -> Location | None:
    """Return the line of the user's that multiplies a list with a call of this class in it."""
    found = []
    for path in user_files_with(kind):
        tree = tree_of(path)
        for node in () if tree is None else ast.walk(tree):
            if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
                continue
            for side in (node.left, node.right):
                if isinstance(side, ast.List) and _calls(side, kind):
                    function = function_at(path, node.lineno)
                    found.append(Location(path=path, line=node.lineno, function=function))
    return found[0] if len(found) == 1 else None


def _calls(items: ast.List, kind: str) -> bool:
    return any(isinstance(each, ast.Call) and name_of(each) == kind for each in items.elts)


def _finding(repeated: _Repeated) -> Finding:
    called = location_of(repeated.called)
    where = repeated.made or called
    return Finding.of(
        catalogue.REPEATED_LAYER,
        f"{repeated.times} of {repeated.entries} entries of the {repeated.kind} "
        f"`{repeated.container}` are one and the same {repeated.layer}, with one set of "
        "parameters; expected a layer for each, unless they are to share it",
        detector="audit",
        severity=Severity.NOTE if repeated.made is None else Severity.WARNING,
        location=where,
        related=related((called, "its model is called here"), apart_from=where),
        hint=f"make each anew: [{repeated.layer}(...) for _ in range({repeated.times})]",
        evidence={
            "times": repeated.times,
            "entries": repeated.entries,
            "layer": repeated.layer,
            "container": repeated.container,
        },
    )
