"""The calls of a few suspected modules, for one step: were they called, and how?"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import checkpoint

from gradcheck_suite.auditing.call_sites import CallSite, call_site, user_sites

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
        checkpoint: the line that called that checkpoint.
    """

    recording: bool
    has_graph: bool
    in_checkpoint: bool
    sites: tuple[CallSite, ...]
    checkpoint: CallSite | None = None


class ModuleWatch:
    """Notes the calls of some modules until it is closed."""

    def __init__(self, modules: Iterable[nn.Module], listening: ModuleCalls) -> None:
        self.calls: dict[int, list[Call]] = {}
        self._ends: list[Callable[[], None]] = []
        for module in modules:
            self.calls[id(module)] = []
            self._ends.append(listening.listen(module, self._note))

    def _note(self, module: nn.Module, output: object) -> None:
        calls = self.calls[id(module)]
        if len(calls) >= _MOST_CALLS:
            return
        sites, files = user_sites()
        inside = _CHECKPOINT in files
        calls.append(
            Call(
                recording=torch.is_grad_enabled(),
                has_graph=_has_graph(output),
                in_checkpoint=inside,
                sites=sites,
                checkpoint=_checkpoint_site() if inside else None,
            )
        )

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
