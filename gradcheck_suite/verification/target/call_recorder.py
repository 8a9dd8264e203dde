"""Watch one forward of a model: every custom Function, module and op, with its real inputs.

Each call is handed to a visitor before it is made, so that nothing has to be kept: what the visitor
does to find out about it is not seen. Everything that is replaced for that is put back at the end.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from gradcheck_suite._torch_compat import around_custom_functions, without_reentrant_checkpoints
from gradcheck_suite.findings import Location

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

__all__ = ["Call", "CallRecorder", "Kind"]

Kind: TypeAlias = Literal["function", "module", "container", "operation"]

_TORCH = os.path.dirname(os.path.abspath(torch.__file__))  # noqa: PTH100, PTH120 - compared as text
_OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
_NOT_THEIRS = (_TORCH + os.sep, _OURS + os.sep, "<")
_SKIPPED = frozenset(
    {
        "__get__",
        "__set__",
        "__delete__",
        "backward",
        "clone",
        "contiguous",
        "detach",
        "register_hook",
        "requires_grad_",
        "retain_grad",
    }
)


@dataclass(frozen=True, slots=True)
class Call:
    """One call within a model's forward.

    Attributes:
        kind: what is called.
        name: of the class, module class or op.
        path: the module that the call is in, or is of; "" for the model itself.
        turn: the how manieth call of this thing at this path it is, from 1.
        target: what is called.
        args: positional arguments, as they were.
        kwargs: keyword arguments.
        location: the line of the caller.
        number: calls count from 0, in the order in which they begin.
        parent: the number of the call that this one is part of, or None.
    """

    kind: Kind
    name: str
    path: str
    turn: int
    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    location: Location | None
    number: int
    parent: int | None


class CallRecorder:
    """Hand every call of the wanted kinds to a visitor while a model runs."""

    def __init__(
        self, model: object, kinds: frozenset[Kind], visit: Callable[[Call], None]
    ) -> None:
        self._kinds = kinds
        self._visit = visit
        self._paths: dict[int, str] = {}
        if isinstance(model, nn.Module):
            # A compiled module holds the one it was made of; users know both by one name.
            self._paths = {
                id(module): ".".join(part for part in path.split(".") if part != "_orig_mod")
                for path, module in model.named_modules()
            }
        self._inside: list[str] = []
        self._open: list[int] = []
        self._count = 0
        self._turns: Counter[tuple[Kind, str, str]] = Counter()
        self._paused = False

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Watch what happens inside; not re-entrant, and for one thread."""
        module_call = nn.Module.__call__
        recorder = self

        def around(cls: type, inputs: tuple[Any, ...], proceed: Callable[..., Any]) -> Any:
            if recorder._paused:
                return proceed()
            return recorder._observed(
                "function", cls.__qualname__, cls, (inputs, {}), lambda *_: proceed()
            )

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if recorder._paused:
                return module_call(module, *args, **kwargs)
            return recorder._module(module, args, kwargs, module_call)

        class Operations(TorchFunctionMode):
            def __torch_function__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                del types
                kwargs = kwargs or {}
                name = getattr(func, "__name__", str(func))
                if recorder._paused or name in _SKIPPED or not torch.is_grad_enabled():
                    return func(*args, **kwargs)
                return recorder._observed("operation", name, func, (args, kwargs), func)

        # Nothing is lost by running checkpointed blocks as they stand: reentrant checkpointing
        # runs them without gradients.
        nn.Module.__call__ = call  # type: ignore[method-assign]
        try:
            with (
                around_custom_functions(around),
                without_reentrant_checkpoints(lambda: recorder._paused),
                Operations() if "operation" in self._kinds else nullcontext(),
            ):
                yield
        finally:
            nn.Module.__call__ = module_call  # type: ignore[method-assign]

    def _module(
        self,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        original: Callable[..., Any],
    ) -> Any:
        path = self._paths.get(id(module))
        if path is None:
            # A module that is not registered belongs to where it is called.
            path = f"{self._inside[-1] if self._inside else ''}.<{type(module).__name__}>"
        self._inside.append(path)
        try:
            kind: Kind = "container" if any(True for _ in module.children()) else "module"
            name = type(module).__name__
            return self._observed(
                kind, name, module, (args, kwargs), lambda *a, **k: original(module, *a, **k)
            )
        finally:
            self._inside.pop()

    def _observed(
        self,
        kind: Kind,
        name: str,
        target: Any,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        original: Callable[..., Any],
    ) -> Any:
        args, kwargs = arguments
        if kind not in self._kinds:
            return original(*args, **kwargs)
        path = self._inside[-1] if self._inside else ""
        self._turns[kind, path, name] += 1
        call = Call(
            kind=kind,
            name=name,
            path=path,
            turn=self._turns[kind, path, name],
            target=target,
            args=args,
            kwargs=kwargs,
            location=_caller(),
            number=self._count,
            parent=self._open[-1] if self._open else None,
        )
        self._count += 1
        self._paused = True
        try:
            self._visit(call)
        finally:
            self._paused = False
        self._open.append(call.number)
        try:
            return original(*args, **kwargs)
        finally:
            self._open.pop()


def _caller() -> Location | None:
    """Return the innermost line that is neither torch's nor ours."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - documented, and made for this
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith(_NOT_THEIRS):
            name: str = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
            return Location(path, frame.f_lineno, function=name)
        frame = frame.f_back
    return None
