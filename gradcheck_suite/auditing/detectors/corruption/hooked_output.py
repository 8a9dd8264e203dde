"""Outputs that a forward hook has kept, and that a later layer writes in place.

A hook with ``self.value = output`` keeps no copy. Where the next layer works in place, as
``ReLU(inplace=True)`` does, the hook has that layer's output. Torch raises nothing, as nobody had
saved what the hook has. The first calls of a module with such a hook are followed.
"""

from __future__ import annotations

import ast
import functools
import weakref
from contextlib import suppress
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from gradcheck_suite import catalogue
from gradcheck_suite._runtime.frames import code_of
from gradcheck_suite._torch_compat import version_of
from gradcheck_suite.auditing.call_sites import is_user_code, location_of
from gradcheck_suite.auditing.detectors.base import Occurrences, related
from gradcheck_suite.auditing.events import BackwardStarted, ForwardHookRegistered, SessionEnded
from gradcheck_suite.auditing.object_names.tensor_names import operation_words
from gradcheck_suite.auditing.saved_tensors.write_log import Write
from gradcheck_suite.auditing.source_analysis.source import function_at, tree_of
from gradcheck_suite.findings import Finding, Location, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["HookedOutputDetector"]

_MOST_CALLS = 8
"""Calls of a module that are followed after a hook was registered. A bound on cost."""

_MOST_HOOKS = 256
"""Hooks that are followed. A bound on cost."""

_ITEMS = 100
"""Items of one container that are looked at. A bound on cost."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A tensor that a hook has kept of a module's output."""

    tensor: weakref.ref[Tensor]
    version: int
    sequence: int
    kind: str
    code: CodeType
    detached: bool


@dataclass(frozen=True, slots=True)
class _Overwritten:
    """One that was written since."""

    kept: _Kept
    write: Write | None


class HookedOutputDetector:
    """Reports kept-by-reference (GCS111) of what forward hooks have kept."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._hooks = 0
        self._kept: list[_Kept] = []
        self._found: Occurrences[CodeType, _Overwritten] = Occurrences()

    def subscriptions(self) -> Subscriptions:
        """Follow what hooks keep, up to the next backward."""
        return {
            ForwardHookRegistered: self._register,
            BackwardStarted: self._look,
            SessionEnded: self._look,
        }

    def _register(self, event: ForwardHookRegistered) -> None:
        code = code_of(event.hook)
        if code is None or not is_user_code(code) or self._hooks >= _MOST_HOOKS:
            return
        self._hooks += 1
        calls = 0
        hook = event.hook

        def after_call(module: nn.Module, result: Any) -> None:
            nonlocal calls
            calls += 1
            if calls >= _MOST_CALLS:
                stop()
            self._look()
            # One of inference mode has no version that a write would move.
            is_followed = isinstance(result, Tensor) and not result.is_inference()
            if is_followed and self._recorder.state.running:
                self._keep(module, hook, code, result)

        stop = self._recorder.module_calls.listen(event.module, after_call)

    def _keep(
        self, module: nn.Module, hook: Callable[..., object], code: CodeType, result: Tensor
    ) -> None:
        address = _address(result)
        for tensor in _reached_from(hook):
            if address is not None and _address(tensor) == address:
                sequence = self._recorder.state.clock.moment.sequence
                kept = weakref.ref(tensor), version_of(tensor), sequence
                detached = result.requires_grad and not tensor.requires_grad
                self._kept.append(_Kept(*kept, type(module).__name__, code, detached))
                # Who takes it out of the hook's object may let go of it before the backward.
                self._recorder.module_calls.after_each = self._look
                return

    def _look(self, _event: object = None) -> None:
        if not self._kept:  # nearly always
            return
        waiting, self._kept = self._kept, []
        for kept in waiting:
            tensor = kept.tensor()
            if tensor is None:
                continue
            if version_of(tensor) == kept.version:
                self._kept.append(kept)
                continue
            writes = self._recorder.write_log.since(kept.sequence, tensor)
            found = _Overwritten(kept, writes[0] if writes else None)
            self._found.note(kept.code, functools.partial(_itself, found))
        del self._kept[:-_MOST_HOOKS]
        if not self._kept:
            self._recorder.module_calls.after_each = None

    def findings(self) -> list[Finding]:
        """Return one finding for each hook."""
        return self._found.findings(_finding)


def _itself(found: _Overwritten) -> _Overwritten:
    return found


def _reached_from(hook: Any) -> Iterator[Tensor]:
    """Yield the tensors that a hook can have kept: in its object, closure, arguments or globals."""
    if isinstance(hook, functools.partial):
        for each in (*hook.args, *hook.keywords.values()):
            yield from _tensors_in(each)
        yield from _reached_from(hook.func)
        return
    yield from _tensors_in(getattr(hook, "__self__", hook))
    function = getattr(hook, "__func__", hook)
    for cell in getattr(function, "__closure__", None) or ():
        with suppress(ValueError):  # nothing in it yet
            yield from _tensors_in(cell.cell_contents)
    for default in getattr(function, "__defaults__", None) or ():
        yield from _tensors_in(default)
    code = getattr(function, "__code__", None)
    everywhere = getattr(function, "__globals__", {})
    for name in () if code is None else code.co_names:
        yield from _tensors_in(everywhere.get(name))


def _tensors_in(value: Any, depth: int = 2) -> Iterator[Tensor]:
    """Yield a tensor, or those in the items or attributes of something."""
    if isinstance(value, Tensor):
        yield value
        return
    is_code = isinstance(value, (type, ModuleType, FunctionType))
    items = value if isinstance(value, dict) else getattr(value, "__dict__", None)
    if is_code or not isinstance(items, dict):
        items = {}
    inside = list(value if isinstance(value, (list, tuple)) else items.values())
    for each in inside[-_ITEMS:] if depth else ():
        yield from _tensors_in(each, depth - 1)


def _address(tensor: Tensor) -> int | None:
    try:
        return tensor.data_ptr() or None
    except (RuntimeError, NotImplementedError):  # it has no memory of its own
        return None


def _finding(found: _Overwritten, count: int) -> Finding:
    kept, write = found.kept, found.write
    location = _kept_at(kept.code)
    by = "in place" if write is None else f"by {operation_words(write.operation)}"
    return Finding.of(
        catalogue.KEPT_BY_REFERENCE,
        f"the output of {kept.kind} that a forward hook has kept here was overwritten {by} later "
        "in the forward: it is no longer what that layer returned; expected a copy",
        detector="audit",
        # Without its graph it is for a log or a picture.
        severity=Severity.NOTE if kept.detached else None,
        location=location,
        related=related(
            (None if write is None else location_of(write.site), "overwritten here"),
            apart_from=location,
        ),
        hint="keep output.clone(), or give the next layer inplace=False",
        evidence={"count": count, "module": kept.kind},
    )


def _kept_at(code: CodeType) -> Location:
    """Return the first line of a hook that uses its last argument, the output."""
    output = code.co_varnames[max(code.co_argcount - 1, 0) : code.co_argcount]
    tree = tree_of(code.co_filename)
    lines = [
        node.lineno
        for node in (ast.walk(tree) if tree is not None else ())
        if isinstance(node, ast.Name) and node.id in output
        if code.co_firstlineno <= node.lineno <= max(line or 0 for _, _, line in code.co_lines())
    ]
    line = min(lines, default=code.co_firstlineno)
    return Location(code.co_filename, line, function=function_at(code.co_filename, line))
