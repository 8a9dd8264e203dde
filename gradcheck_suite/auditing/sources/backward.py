"""Every outermost ``backward()`` and ``autograd.grad()``, from its call to its end."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

import torch

from gradcheck_suite._torch_compat import (
    engine_entry_points,
    inside_backward,
    transform_is_active,
)
from gradcheck_suite.auditing.call_sites import call_site
from gradcheck_suite.auditing.events import BackwardFailed, BackwardFinished, BackwardStarted
from gradcheck_suite.auditing.generations import Generation
from gradcheck_suite.auditing.optimizers import changes_since
from gradcheck_suite.auditing.sources._base import Source, is_compiling
from gradcheck_suite.auditing.unseen import unseen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor
    from torch.autograd.graph import Node

    from gradcheck_suite.auditing.optimizers import GradientState
    from gradcheck_suite.auditing.patches import Patches
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["BackwardSource"]


class BackwardSource(Source):
    """Replaces the one name through which Python enters the autograd engine."""

    kinds = (BackwardStarted, BackwardFailed, BackwardFinished)
    always = True

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        # Asked once: every call counts here.
        self._tells_starts = recorder.wants(BackwardStarted)
        self._tells_ends = recorder.wants(BackwardFinished)

    def install(self, patches: Patches) -> None:
        """Replace the engine's entry points."""
        for owner, name in engine_entry_points():
            patches.replace(owner, name, self._watched(getattr(owner, name)))

    def _watched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def run(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
            source: BackwardSource = self.acting
            if not source.recorder.running or inside_backward() or is_compiling():
                return original(t_outputs, *args, **kwargs)
            if transform_is_active():
                # What passes here are the transform's own wrapped tensors.
                return original(t_outputs, *args, **kwargs)
            if source.recorder.passes_over_backward():
                return source.run_unwatched(original, t_outputs, args, kwargs)
            keeps, creates = _keeps_graph(args, kwargs)
            accumulates = bool(kwargs.get("accumulate_grad", True))
            generation, before = source.begin(t_outputs, accumulates=accumulates)
            failed = True
            try:
                result = original(t_outputs, *args, **kwargs)
                failed = False
            except BaseException as error:
                source.fail(generation, t_outputs, error)
                raise
            finally:
                source.end(generation, before, keeps=keeps, creates=creates, failed=failed)
            return result

        return run

    def run_unwatched(
        self, original: Callable[..., Any], outputs: Any, args: Any, kwargs: Any
    ) -> Any:
        """Run a backward that nobody is told of, unless it fails."""
        index = self.recorder.count_backward()
        self.recorder.clock.tick()
        try:
            return original(outputs, *args, **kwargs)
        except BaseException as error:
            self.fail(Generation(index, call_site()), outputs, error)
            raise

    def begin(self, outputs: Any, *, accumulates: bool) -> tuple[Generation, GradientState]:
        """Tell that a backward begins; return what ``end`` needs."""
        recorder = self.recorder
        site = call_site()
        index = recorder.count_backward()
        recorder.backwards_elsewhere += threading.get_ident() != recorder.thread
        recorder.writers.listening = True
        before: GradientState = []
        try:
            roots = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
            generation = recorder.generations.open(index, _nodes(roots), site, recorder.step)
            if self._tells_starts:
                recorder.emit(
                    BackwardStarted(
                        number=index,
                        site=site,
                        chain=generation.chain,
                        roots=_tensors(roots),
                        accumulates=accumulates,
                        reuses=bool(generation.reused),
                    )
                )
            if accumulates and self._tells_ends:
                before = unseen(recorder.optimizers.gradients)
        except Exception as error:  # noqa: BLE001 - the user's program goes on
            recorder.note_failure("backward", error)
            generation = Generation(index, site)
        return generation, before

    def fail(self, generation: Generation, outputs: Any, error: BaseException) -> None:
        """Tell that it has failed."""
        roots = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        failed = BackwardFailed(generation.index, generation.site, _tensors(roots), error)
        self.recorder.emit(failed)

    def end(
        self,
        generation: Generation,
        before: GradientState,
        *,
        keeps: bool,
        creates: bool,
        failed: bool,
    ) -> None:
        """Tell that it has ended."""
        if not keeps and not failed:
            generation.free()
        recorder = self.recorder
        if not self._tells_ends:
            return
        created, accumulated = unseen(changes_since, before)
        recorder.emit(
            BackwardFinished(
                number=generation.index,
                site=generation.site,
                creates_graph=creates,
                failed=failed,
                keeps_graph=keeps,
                created=created,
                accumulated=accumulated,
            )
        )


def _nodes(roots: Sequence[Any]) -> list[Node]:
    found = []
    for output in roots:
        node = getattr(output, "grad_fn", None) or getattr(output, "node", None)
        # A leaf's own node outlives every graph and so can't stand for one.
        if node is not None and node.next_functions:
            found.append(node)
    return found


def _tensors(roots: Sequence[Any]) -> tuple[Tensor, ...]:
    found = []
    for root in roots:
        if isinstance(root, torch.Tensor):
            found.append(root)  # noqa: PERF401 - a comprehension is one call more
    return tuple(found)


def _keeps_graph(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool, bool]:
    """Read retain_graph and create_graph from the arguments of the engine's entry point."""
    retain = args[1] if len(args) > 1 else kwargs.get("keep_graph", kwargs.get("retain_graph"))
    create = args[2] if len(args) > 2 else kwargs.get("create_graph", False)  # noqa: PLR2004
    return bool(retain) or bool(create), bool(create)
