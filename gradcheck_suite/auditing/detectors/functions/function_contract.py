"""What custom autograd.Functions do in a run that their contract forbids.

The first graphs are searched for them; their backward is then watched from both sides.
"""

from __future__ import annotations

import dis
import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gradcheck_suite import catalogue
from gradcheck_suite._runtime.frames import definition_line
from gradcheck_suite._runtime.memory import is_readable
from gradcheck_suite._torch_compat import (
    custom_function_class,
    version_of,
)
from gradcheck_suite.auditing.call_sites import kind_of_file, location_of
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.detectors.gradients import is_nonzero
from gradcheck_suite.auditing.detectors.reachable_parameters import reachable_graph
from gradcheck_suite.auditing.events import (
    Attention,
    BackwardStarted,
    LegacyFunctionCalled,
)
from gradcheck_suite.auditing.saved_tensors.checksums import Fingerprint, fingerprint, same_content
from gradcheck_suite.auditing.user_modes import ops_are_recorded, without_user_modes
from gradcheck_suite.findings import Finding, Location, Related, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import CodeType

    from torch import Tensor
    from torch.autograd.graph import Node

    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder
    from gradcheck_suite.auditing.saved_tensors.write_log import Write

__all__ = [
    "FunctionContractDetector",
    "is_the_users",
    "line_in",
    "users_function",
    "users_functions",
]

_SEARCHED = 4
"""Backwards whose graphs are searched for Functions. A bound on cost: as many as ``ALWAYS_WALKED``
of ``reachable_parameters``, whose graphs are walked in any case."""

_WATCHED_RUNS = 32
"""So many times one node's backward is watched. A bound on cost: a graph may be kept for thousands
of backwards, as torch's gradcheck does, and the code is the same in each."""


@dataclass(frozen=True, slots=True)
class _Given:
    """A gradient as a backward was given it.

    The version alone tells too much: a view such as ``grad.unsqueeze(-1)`` shares it, and what
    changes the view's shape in place moves it.
    """

    version: int
    since: int
    layout: tuple[object, ...]
    content: Fingerprint | None

    @classmethod
    def of(cls, gradient: Tensor | None, now: int) -> _Given:
        """Note version, shape and contents."""
        if gradient is None:
            return cls(0, now, (), None)
        return cls(version_of(gradient), now, _layout_of(gradient), _content_of(gradient))

    def differs(self, gradient: Tensor) -> bool:
        """Return whether shape or contents are others now; True where they can't be read."""
        if self.content is None or _layout_of(gradient) != self.layout or ops_are_recorded():
            return True
        same: bool = without_user_modes(same_content, self.content, gradient)
        return not same


def _layout_of(gradient: Tensor) -> tuple[object, ...]:
    strides = gradient.stride() if gradient.layout is torch.strided else ()
    return gradient.shape, strides


def _content_of(gradient: Tensor) -> Fingerprint | None:
    if ops_are_recorded():
        return None
    try:
        return without_user_modes(fingerprint, gradient)
    except RuntimeError:  # wrapped by a transform, or no memory left for the sums
        return None


class FunctionContractDetector:
    """Reports GCS205, GCS502, GCS506 and GCS610.

    Attributes:
        differentiated: the user's Functions in the graphs that were searched.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._searched = 0
        self._cut_short = False
        self._found: dict[object, Finding] = {}
        self.differentiated: dict[type, None] = {}

    def subscriptions(self) -> Subscriptions:
        """Search the first graphs, and see what torch refuses to call."""
        return {
            BackwardStarted: self._before_backward,
            LegacyFunctionCalled: self._note_legacy,
        }

    def findings(self) -> list[Finding]:
        """Return one finding for each Function and mistake."""
        return list(self._found.values())

    def not_covered(self) -> list[str]:
        """Return what to say of Functions that were not found."""
        if not self._cut_short:
            return []
        return ["custom autograd.Functions deep in graphs that are too large to search"]

    def _before_backward(self, event: BackwardStarted) -> Attention | None:
        if self._searched >= _SEARCHED:
            return Attention.ASLEEP
        self._searched += 1
        found = reachable_graph(event)
        self._cut_short = self._cut_short or not found.complete
        for node in found.custom:
            function = custom_function_class(node)
            if function is not None and is_the_users(function):
                self.differentiated[function] = None
                self.look_at_context(node, function)
                self._watch(node, function)
        return None

    def look_at_context(self, context: Any, function: type, outputs: Sequence[Tensor] = ()) -> None:
        """Report the tensors of a graph that a ctx has as attributes.

        Args:
            context: the ctx, which is the node.
            function: whose it is.
            outputs: what forward returns, which does not require grad yet as it returns.
        """
        for name, value in list(vars(context).items()):
            if not isinstance(value, torch.Tensor):
                continue
            if value.requires_grad or any(value is output for output in outputs):
                shape = "x".join(map(str, value.shape)) or "scalar"
                self._found["ctx", function, name] = Finding.of(
                    catalogue.TENSOR_ON_CTX,
                    f"{function.__name__} keeps the tensor `ctx.{name}` ({shape}) as an attribute: "
                    "autograd checks no version of it, and an output kept so is freed by the "
                    "garbage collector alone",
                    detector="audit",
                    location=line_in(function, "forward", rf"\.{re.escape(name)}\b[^=]*=[^=]"),
                    hint="ctx.save_for_backward(...) in forward, ctx.saved_tensors in backward",
                    evidence={"function": function.__name__, "attribute": name},
                )

    def _watch(self, node: Node, function: type) -> None:
        versions: list[_Given] = []
        clock = self._recorder.state.clock
        runs = 0

        def before(given: Sequence[Tensor | None]) -> None:
            nonlocal runs
            runs += 1
            if runs > _WATCHED_RUNS:
                # A graph that is kept for thousands of backwards, as torch's gradcheck does.
                versions.clear()
                for handle in handles:
                    handle.remove()
                return
            now = clock.tick()
            versions[:] = [_Given.of(gradient, now) for gradient in given]

        handles = [
            node.register_prehook(before),
            node.register_hook(self._after(function, versions)),
        ]

    def _after(self, function: type, versions: list[_Given]) -> Callable[..., None]:
        ignores = not _reads_gradients(function)

        def after(made: Sequence[Tensor | None], given: Sequence[Tensor | None]) -> None:
            if ignores:
                self._note_ignored(function, made, given)
            for known, gradient in zip(versions, given, strict=False):
                if gradient is None or version_of(gradient) == known.version:
                    continue
                writes = self._recorder.write_log.since(known.since, gradient)
                if writes or known.differs(gradient):
                    self._note_modified(function, writes)

        return after

    def _note_modified(self, function: type, writes: Sequence[Write]) -> None:
        key = ("modified", function)
        if key in self._found:
            return
        defined = line_in(function, "backward", None)
        # What takes no note of its writes is mostly `out=`.
        where = location_of(writes[0].site) if writes else line_in(function, "backward", r"\bout=")
        self._found[key] = Finding.of(
            catalogue.GRAD_OUTPUT_MODIFIED,
            f"backward of {function.__name__} wrote into the gradient that it was given; others "
            "may be given the same tensor, and then see the change",
            detector="audit",
            location=where,
            related=related((defined, "in this backward"), apart_from=where),
            hint="write to a copy: grad = grad_output.clone()",
            evidence={"function": function.__name__},
        )

    def _note_ignored(
        self, function: type, made: Sequence[Tensor | None], given: Sequence[Tensor | None]
    ) -> None:
        """Report a backward that has returned a gradient without a look at what it was given."""
        key = ("ignored", function)
        # Of a loss that is differentiated as it stands, the incoming gradient is 1.
        is_plain = all(each is None or without_user_modes(_is_one, each) for each in given)
        if key in self._found or is_plain or not any(is_nonzero(each) for each in made):
            return
        self._found[key] = Finding.of(
            catalogue.NONLINEAR_BACKWARD,
            f"backward of {function.__name__} never reads the gradient that it is given, which was "
            "not 1, and returned another than zero: what comes after it in the model, and a weight "
            "of the loss, do not count below it",
            detector="audit",
            severity=Severity.WARNING,
            location=line_in(function, "backward", r"\breturn\b"),
            hint="multiply what is returned by the incoming gradient",
            evidence={"function": function.__name__},
        )

    def _note_legacy(self, event: LegacyFunctionCalled) -> None:
        name = event.function.__name__
        called = location_of(event.site)
        where = line_in(event.function, "forward", None)
        self._found["legacy", event.function] = Finding.of(
            catalogue.LEGACY_FUNCTION,
            f"an instance of {name} was called, whose forward and backward are no static methods; "
            "torch refuses",
            detector="audit",
            location=where or called,
            related=() if called is None or where is None else (Related(called, "called here"),),
            hint=(
                "make forward and backward static methods that take ctx in place of self, and call "
                f"{name}.apply(...)"
            ),
            evidence={"function": name, "refused": True},
        )


def _reads_gradients(function: type) -> bool:
    """Return whether the code of backward reads a gradient that it is given, or may."""
    code = _code_of(function, "backward")
    if code is None or "locals" in code.co_names:
        return True
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
    given = set(code.co_varnames[1:count])
    return any(
        not given.isdisjoint(each.argval if isinstance(each.argval, tuple) else (each.argval,))
        for each in dis.get_instructions(code)
        if each.opname.startswith("LOAD_")
    )


def _is_one(gradient: Tensor) -> bool:
    if not is_readable(gradient) or ops_are_recorded():
        return True  # for all that is known
    return bool((gradient == 1).all())


def is_the_users(function: type) -> bool:
    """Return whether an autograd Function is defined in the user's own code."""
    code = _code_of(function, "backward")
    return code is not None and not kind_of_file[code.co_filename]


def _code_of(function: type, method: str) -> CodeType | None:
    """Return the code of a method as the user wrote it, beneath decorators."""
    written = inspect.unwrap(getattr(function, method, None) or len)
    code: CodeType | None = getattr(written, "__code__", None)
    return code


def users_functions() -> list[type]:
    """Return the Functions that the user's code defines."""
    waiting: list[type] = [torch.autograd.Function]
    found: dict[type, None] = {}
    while waiting:
        function = waiting.pop()
        waiting.extend(function.__subclasses__())
        if is_the_users(function):
            found[function] = None
    return list(found)


def users_function(name: str) -> type | None:
    """Return the user's Function of this name, if there is just one."""
    found = [function for function in users_functions() if function.__name__ == name]
    return found[0] if len(found) == 1 else None


def line_in(function: type, method: str, pattern: str | None) -> Location | None:
    """Return the first line of a method that the pattern is found in, else where it begins."""
    code = _code_of(function, method)
    if code is None:
        return None
    line = definition_line(code)
    try:
        lines, first = inspect.getsourcelines(code)
    except (OSError, TypeError):
        lines, first = [], line
    if pattern is not None:
        line = next((first + i for i, text in enumerate(lines) if re.search(pattern, text)), line)
    return Location(path=code.co_filename, line=line, function=f"{function.__qualname__}.{method}")
