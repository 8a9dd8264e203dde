"""Lists of layers that have one layer several times, and norms that stand at two places of a model.

A norm with running statistics that two modules have as their own, as where a decoder is built from
the layers of the encoder, is heard in one call of its model: where both call it, on maps of other
sizes, its statistics are averages of what has nothing to do with each other.
"""

from __future__ import annotations

import ast
import weakref
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of, user_files_with
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.events import ForwardFinished
from gradcheck_suite.auditing.object_names.tensor_names import variable_of, written
from gradcheck_suite.auditing.source_analysis.source import function_at, name_of, tree_of
from gradcheck_suite.findings import Finding, Location, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder

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


@dataclass(slots=True)
class _Shared:
    """A norm that two modules or more have as their own, while its model is called.

    Attributes:
        kind: its class.
        names: of those modules, by identity.
        waiting: the sizes of what it returned, since one of them returned.
        sizes: the sizes of what it returned to each of them.
    """

    kind: str
    names: dict[int, str]
    waiting: list[tuple[int, ...]] = field(default_factory=list)
    sizes: dict[int, set[tuple[int, ...]]] = field(default_factory=dict)

    def give(self, _layer: nn.Module, output: Any) -> None:
        """Take down a call of the norm."""
        if isinstance(output, Tensor):
            self.waiting.append(tuple(output.shape[2:]))

    def end(self, parent: nn.Module, _output: Any) -> None:
        """Take down that one of the modules has returned, whose the calls since were."""
        self.sizes.setdefault(id(parent), set()).update(self.waiting)
        self.waiting.clear()

    def places(self) -> list[tuple[str, tuple[int, ...]]]:
        """Return two modules that gave it maps of other sizes, and one size of each."""
        if self.waiting:
            return []  # whose call that was is not known
        found = [(self.names[key], sizes) for key, sizes in self.sizes.items() if sizes]
        for name, sizes in found[1:]:
            if sizes.isdisjoint(found[0][1]):
                return [(found[0][0], min(found[0][1])), (name, min(sizes))]
        return []


class RepeatedLayerDetector:
    """Reports repeated-layer (GCS412)."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._norms: dict[str, Finding] = {}
        self._calls = 0
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
        self._listen(model, event.site)
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

    def _listen(self, model: nn.Module, site: CallSite | None) -> None:
        """Hear the next call of a model that has a norm at two places."""
        called = variable_of(model) or type(model).__name__
        stops: list[Callable[[], None]] = []
        shared: list[_Shared] = []
        listen = self._recorder.module_calls.listen
        for norm, parents in _norms_at_two_places(model):
            names = {id(each): written(f"{called}.{path}") for path, each in parents}
            known = _Shared(type(norm).__name__, names)
            shared.append(known)
            stops += [listen(norm, known.give), *(listen(each, known.end) for _, each in parents)]
        if shared:
            self._calls = 0
            stops.append(listen(model, partial(self._heard, called, site, shared, stops)))

    def _heard(
        self,
        called: str,
        site: CallSite | None,
        shared: list[_Shared],
        stops: list[Callable[[], None]],
        _model: nn.Module,
        _output: Any,
    ) -> None:
        self._calls += 1
        if self._calls == 1 and not any(each.sizes for each in shared):
            return  # the end of the call in which the listening began
        for stop in stops:
            stop()
        found = [(each, places) for each in shared if (places := each.places())]
        if found:
            self._norms.setdefault(called, _of_norms(called, len(found), *found[0], site))

    def findings(self) -> list[Finding]:
        """Return one finding for each line that multiplies a list, container or model."""
        return [*map(_finding, self._found.values()), *self._norms.values()]


def _norms_at_two_places(
    model: nn.Module,
) -> Iterator[tuple[nn.Module, list[tuple[str, nn.Module]]]]:
    """Yield the norms with running statistics that several modules have, and these with paths."""
    parents: dict[int, list[tuple[str, nn.Module]]] = {}
    norms: dict[int, nn.Module] = {}
    for path, module in model.named_modules():
        for child in module.children():
            if getattr(child, "running_mean", None) is not None and module is not model:
                norms[id(child)] = child
                parents.setdefault(id(child), []).append((path, module))
    for key, having in parents.items():
        if len(having) > 1:
            yield norms[key], having


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


def _of_norms(
    called: str,
    count: int,
    shared: _Shared,
    places: list[tuple[str, tuple[int, ...]]],
    site: CallSite | None,
) -> Finding:
    (one, size), (other, other_size) = places
    sizes = ["x".join(map(str, each)) for each in (size, other_size)]
    more = f" (and {count - 1} more like it)" if count > 1 else ""
    return Finding.of(
        catalogue.REPEATED_LAYER,
        f"one {shared.kind} of `{called}` stands in `{one}` and in `{other}`, and one call of the "
        f"model gave it maps of {sizes[0]} and of {sizes[1]}{more}: its running statistics are "
        "averages over both places, with which it evaluates at either; expected one for each place",
        detector="audit",
        severity=Severity.WARNING,
        location=location_of(site),
        hint="make the layers of the second place anew, instead of taking those of the first",
        evidence={"places": [one, other], "norms": count},
    )
