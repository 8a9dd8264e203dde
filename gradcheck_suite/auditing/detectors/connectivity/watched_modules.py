"""The calls of a few suspected modules, for one step: were they called, and how?"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import checkpoint

from gradcheck_suite.auditing.call_sites import (
    CallSite,
    call_site,
    is_user_code,
    user_frames,
    user_sites,
    variables_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType

    from torch import nn

    from gradcheck_suite.auditing.instrumentation.module_calls import ModuleCalls

__all__ = ["Call", "ModuleWatch"]

_MOST_CALLS = 16
"""Calls of one module that are noted in the step that is watched. A bound on cost: each call goes
up the whole stack for the user's lines, and a recurrent cell has thousands."""

_CHECKPOINT = checkpoint.__file__


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a watched module.

    Attributes:
        recording: whether gradients were recorded.
        has_graph: whether its output got one.
        in_checkpoint: whether a checkpoint that records nothing itself was running.
        sites: the user's lines that led to the call, innermost first.
        receivers: the objects whose methods those lines are in, while they live.
        checkpoint: the line that called that checkpoint.
    """

    recording: bool
    has_graph: bool
    in_checkpoint: bool
    sites: tuple[CallSite, ...]
    receivers: Mapping[CodeType, weakref.ref[Any]] = field(default_factory=dict)
    checkpoint: CallSite | None = None

    def variables_at(self, site: CallSite) -> dict[str, object]:
        """Return what is known of the variables of a line's function: whose method it is."""
        code = site[0]
        known = self.receivers.get(code)
        receiver = None if known is None else known()
        return {} if receiver is None else {code.co_varnames[0]: receiver}


class ModuleWatch:
    """Notes the calls of some modules until it is closed."""

    def __init__(self, modules: Iterable[nn.Module], listening: ModuleCalls) -> None:
        self.calls: dict[int, list[Call]] = {}
        self._receivers: dict[CodeType, weakref.ref[Any]] = {}
        self._ends: list[Callable[[], None]] = []
        for module in modules:
            self.calls[id(module)] = []
            self._ends.append(listening.listen(module, self._note))

    def _note(self, module: nn.Module, output: object) -> None:
        calls = self.calls[id(module)]
        if len(calls) >= _MOST_CALLS:
            return
        sites, files = user_sites()
        self._note_receivers()
        inside = _CHECKPOINT in files
        calls.append(
            Call(
                recording=torch.is_grad_enabled(),
                has_graph=_has_graph(output),
                in_checkpoint=inside,
                sites=sites,
                receivers=self._receivers,
                checkpoint=_checkpoint_site() if inside else None,
            )
        )

    def _note_receivers(self) -> None:
        for frame in user_frames():
            code = frame.f_code
            if code.co_argcount and is_user_code(code) and code not in self._receivers:
                receiver = variables_of(frame).get(code.co_varnames[0])
                # Of what has a class of the user's; other objects have no methods to look into.
                if hasattr(type(receiver), "__weakref__"):
                    self._receivers[code] = weakref.ref(receiver)

    def close(self) -> None:
        """Listen no more."""
        for end in self._ends:
            end()
        self._ends = []


def _checkpoint_site() -> CallSite | None:
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the only cheap way
    while frame is not None and frame.f_code.co_filename != _CHECKPOINT:
        frame = frame.f_back
    return None if frame is None else call_site(frame)


def _has_graph(output: Any) -> bool:
    if isinstance(output, torch.Tensor):
        return output.grad_fn is not None
    if isinstance(output, (tuple, list)):
        return any(map(_has_graph, output))
    if isinstance(output, dict):
        return any(map(_has_graph, output.values()))
    return True
