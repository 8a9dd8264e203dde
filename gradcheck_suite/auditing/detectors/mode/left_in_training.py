"""Batch norm that `eval()` of its model does not reach, as a class overrides `train()`.

`eval()` is `train(False)`, and goes through the children of a module. A method `train` of the
program's own that leaves some of them out leaves them in the mode they are in, which is training
from the start on: each evaluation then moves their running statistics, and normalizes by its batch.
Layers that the method itself, or anybody later, puts into training mode are meant to be in it.
"""

from __future__ import annotations

import ast
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn

from gradcheck_suite import catalogue
from gradcheck_suite._torch_compat import BATCH_NORMS
from gradcheck_suite.auditing.call_sites import CallSite, call_site, is_user_code, location_of
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.events import Attention, ModeChanged, SessionEnded
from gradcheck_suite.auditing.object_names.tensor_names import listed, variable_of, written
from gradcheck_suite.auditing.source_analysis.source import innermost, tree_of
from gradcheck_suite.findings import Finding, Location, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator  # noqa: TC004 - nobody asks for the types

    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["LeftInTrainingDetector"]

_MOST_LOOKS = 64
"""Calls of `eval()` after which the layers are looked at. A bound on cost: each goes through all
modules beneath. A class that leaves some out does so each time."""


@dataclass(slots=True, eq=False)
class _LeftOut:
    """Layers that an `eval()` has left in training mode.

    Attributes:
        model: what `eval()` was called on.
        name: what the user calls it.
        eval_at: where.
        overridden_at: the method that leaves them out.
        layers: the layers, by their names.
        called_at: where they ran so first.
        stops: end the listening to them.
    """

    model: weakref.ref[nn.Module]
    name: str
    eval_at: CallSite | None
    overridden_at: Location
    layers: dict[str, weakref.ref[nn.Module]]
    called_at: CallSite | None = None
    stops: list[Callable[[], None]] = field(default_factory=list)

    def end(self) -> None:
        """Listen no more."""
        for stop in self.stops:
            stop()
        self.stops = []


class LeftInTrainingDetector:
    """Reports train-mode-in-eval (GCS701) of layers that `eval()` leaves out."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._looks = 0
        self._waiting: list[_LeftOut] = []
        self._found: dict[Location, _LeftOut] = {}

    def subscriptions(self) -> Subscriptions:
        """Look at what is put into evaluation mode."""
        return {ModeChanged: self._change, SessionEnded: self._end}

    def findings(self) -> list[Finding]:
        """Return one finding for each method that leaves layers out."""
        return [_finding(where, left) for where, left in self._found.items()]

    def _end(self, _event: SessionEnded) -> None:
        for left in self._waiting:
            left.end()
        self._waiting = []

    def _change(self, event: ModeChanged) -> Attention | None:
        if self._waiting:
            # Another mode for a part of it: what is in training mode now is meant to be.
            mine = set(map(id, event.module.modules()))
            for left in self._waiting:
                if any(id(each()) in mine for each in (left.model, *left.layers.values())):
                    left.end()
            self._waiting = [left for left in self._waiting if left.stops]
        if event.training:
            return None
        self._looks += 1
        if self._looks > _MOST_LOOKS:
            return None if self._waiting else Attention.ASLEEP
        self._look(event)
        return None

    def _look(self, event: ModeChanged) -> None:
        meant = {id(part) for each in event.turned_on for part in each.modules()}
        by_method: dict[Location, dict[str, weakref.ref[nn.Module]]] = {}
        for name, layer, method in _left_out(event.module):
            if id(layer) not in meant and method not in self._found:
                by_method.setdefault(method, {})[name] = weakref.ref(layer)
        for method, layers in by_method.items():
            if _sets_modes_by_hand(method):
                continue
            name = variable_of(event.module) or type(event.module).__name__
            left = _LeftOut(weakref.ref(event.module), name, event.site, method, layers)
            left.stops = [self._listen(left, each) for each in layers.values()]
            self._waiting.append(left)

    def _listen(self, left: _LeftOut, layer: weakref.ref[nn.Module]) -> Callable[[], None]:
        def look(layer: nn.Module, _output: Any) -> None:
            model = left.model()
            if model is not None and layer.training and not model.training:
                left.called_at = call_site()
                self._found.setdefault(left.overridden_at, left)
            left.end()

        module = layer()
        assert module is not None
        return self._recorder.module_calls.listen(module, look)


def _left_out(model: nn.Module) -> Iterator[tuple[str, nn.Module, Location]]:
    """Yield batch norm in training mode, and the method `train` above it that leaves it out."""
    for path, layer in model.named_modules():
        if not isinstance(layer, BATCH_NORMS) or not layer.training or _own_train(layer):
            continue
        if not layer.track_running_stats or layer.momentum is None:
            continue  # nothing moves, or it is to be estimated anew
        chain = [model]
        for name in filter(None, path.split(".")):
            chain.append(chain[-1].get_submodule(name))
        # The first that is still in training mode: by its own method, or by that of the one above.
        last = next(number for number, each in enumerate(chain) if each.training)
        method = _own_train(chain[last]) or _own_train(chain[max(last - 1, 0)])
        if method is not None:
            yield path, layer, method


def _own_train(module: nn.Module) -> Location | None:
    """Return where the program defines `train` for a module, None where it is torch's."""
    code = getattr(getattr(type(module), "train", None), "__code__", None)
    if code is None or not is_user_code(code):
        return None
    name = f"{type(module).__name__}.train"
    return Location(code.co_filename, code.co_firstlineno, function=name)


def _sets_modes_by_hand(method: Location) -> bool:
    """Return whether a method assigns to `training` of another, or its source is not known."""
    tree = tree_of(method.path)
    function = None if tree is None else innermost(tree, method.line)
    if function is None:
        return True
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == "training"
        and isinstance(node.ctx, ast.Store)
        and not (isinstance(node.value, ast.Name) and node.value.id == "self")
        for node in ast.walk(function)
    )


def _finding(where: Location, left: _LeftOut) -> Finding:
    names = [written(f"{left.name}.{name}" if name else left.name) for name in left.layers]
    those = "they" if len(names) > 1 else "it"
    return Finding.of(
        catalogue.TRAIN_MODE_IN_EVAL,
        f"this train() leaves out {listed(names)}: after `{left.name}.eval()` {those} ran in "
        "training mode all the same, normalized by the batch and moved the running statistics; "
        "expected every layer in evaluation mode",
        detector="audit",
        severity=Severity.WARNING,
        location=where,
        related=related(
            (location_of(left.eval_at), "eval() was called here"),
            (location_of(left.called_at), "it ran in training mode here"),
            apart_from=where,
        ),
        hint="call super().train(mode) first, and put what is frozen into evaluation mode after it",
        evidence={"model": left.name, "layers": tuple(names)},
    )
