"""Watch a training loop and turn it into one ordered stream of events."""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gradcheck_suite._torch_compat import (
    engine_entry_points,
    inside_backward,
    push_saved_tensors_hooks,
    remove_saved_tensors_hooks,
    saved_tensors_hooks_are_disabled,
    top_saved_tensors_hooks,
)
from gradcheck_suite.auditing.call_sites import CallSite, call_site
from gradcheck_suite.auditing.events import (
    BackwardFinished,
    BackwardStarted,
    StepFinished,
    StepStarted,
)
from gradcheck_suite.auditing.generations import Generation, Generations
from gradcheck_suite.auditing.patches import Patches
from gradcheck_suite.auditing.saved_tensors import SavedTensors
from gradcheck_suite.auditing.writers import Writers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from torch.autograd.graph import Node
    from torch.utils.hooks import RemovableHandle

    from gradcheck_suite.auditing.events import Detector, Event
    from gradcheck_suite.auditing.options import AuditOptions

__all__ = ["OptimizerStep", "Recorder"]

_KEPT_STEPS = 256


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    """A finished step, for telling which optimizer wrote a parameter and where."""

    sequence: int
    optimizer: weakref.ref[Optimizer]
    site: CallSite | None


class Recorder:
    """Installs the hooks, takes them away again, and tells the detectors what happened.

    A mistake in a detector must not reach the user's program: it is kept in ``failures``, and
    that detector hears nothing more.

    Attributes:
        tick: returns the next number of the one count that orders saves, writes and steps.
        step: the number of finished optimizer steps.
        backwards: the number of outermost backwards begun.
        inside_step: whether an optimizer's own code is running.
        running: whether the hooks are installed.
    """

    def __init__(self, options: AuditOptions) -> None:
        self.options = options
        self.tick: Callable[[], int] = itertools.count(1).__next__
        self.step = 0
        self.backwards = 0
        self.inside_step = False
        self.failures: list[str] = []
        self.hook_regions = 0
        self.transform_regions = 0
        self.backwards_elsewhere = 0
        self.was_disabled = False
        self.generations = Generations(self.tick)
        self.saved_tensors = SavedTensors(self)
        self.writers = Writers(self)
        self.recent_steps: deque[OptimizerStep] = deque(maxlen=_KEPT_STEPS)
        self._detectors: list[Detector] = []
        self._patches = Patches()
        self._handles: list[RemovableHandle] = []
        self._lock = threading.RLock()
        self.running = False
        self._thread = 0
        self._set_fingerprints()

    def subscribe(self, detectors: Iterable[Detector]) -> None:
        """Tell these detectors every event from now on."""
        self._detectors.extend(detectors)

    def start(self) -> None:
        """Install every hook on this thread."""
        self.running = True
        self._thread = threading.get_ident()
        top = top_saved_tensors_hooks()
        if saved_tensors_hooks_are_disabled() or top is not None:
            # Ours would replace hooks of the user's that are meant to act on these tensors.
            self.was_disabled = True
        else:
            push_saved_tensors_hooks(self.saved_tensors.hooks)
        for owner, name in engine_entry_points():
            self._patches.replace(owner, name, self._watched_engine(getattr(owner, name)))
        graph = torch.autograd.graph
        self._patches.replace(
            graph,
            "disable_saved_tensors_hooks",
            self._stepping_aside(graph.disable_saved_tensors_hooks),
        )
        hooks = graph.saved_tensors_hooks
        self._patches.replace(hooks, "__enter__", self._counting_regions(hooks.__enter__))
        if self.options.name_writers:
            self.writers.install(self._patches)
        self._handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]

    def stop(self) -> None:
        """Take every hook away again."""
        self.running = False
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._patches.restore()
        self.writers.uninstall()
        remove_saved_tensors_hooks(self.saved_tensors.hooks)
        self.inside_step = False

    def emit(self, event: Event) -> None:
        """Tell every detector, in order."""
        if not self.running:
            return
        with self._lock:
            for detector in tuple(self._detectors):
                try:
                    detector.handle(event)
                except Exception as error:  # noqa: BLE001, PERF203 - the user's program goes on
                    self._detectors.remove(detector)
                    self._note_failure(type(detector).__name__, error)

    def _note_failure(self, where: str, error: Exception) -> None:
        self.failures.append(f"{where}: {type(error).__name__}: {error}")

    def _watched_engine(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def run(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.running or inside_backward() or torch.compiler.is_compiling():
                return original(t_outputs, *args, **kwargs)
            generation = self._begin_backward(t_outputs)
            keeps, creates = _keeps_graph(args, kwargs)
            failed = True
            try:
                result = original(t_outputs, *args, **kwargs)
                failed = False
            finally:
                self._end_backward(generation, keeps=keeps, creates=creates, failed=failed)
            return result

        return run

    def _begin_backward(self, outputs: Any) -> Generation:
        site = call_site()
        index = self.backwards
        self.backwards += 1
        self.backwards_elsewhere += threading.get_ident() != self._thread
        self.inside_step = False
        try:
            generation = self.generations.open(index, _roots(outputs), site, self.step)
        except Exception as error:  # noqa: BLE001 - as in emit
            self._note_failure("generations", error)
            generation = Generation(index, site)
        self.emit(BackwardStarted(index=index, site=site, chain=generation.chain))
        return generation

    def _end_backward(
        self, generation: Generation, *, keeps: bool, creates: bool, failed: bool
    ) -> None:
        if not keeps and not failed:
            generation.free()
        self.emit(
            BackwardFinished(
                index=generation.index,
                site=generation.site,
                creates_graph=creates,
                failed=failed,
            )
        )

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        self.emit(StepStarted(index=self.step, optimizer=optimizer, site=call_site()))
        self.inside_step = True

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        self.inside_step = False
        site = call_site()
        self.recent_steps.append(OptimizerStep(self.tick(), weakref.ref(optimizer), site))
        self.emit(StepFinished(index=self.step, optimizer=optimizer, site=site))
        self.step += 1
        self.writers.forget_before(self.generations.oldest_save)
        self._set_fingerprints()

    def _set_fingerprints(self) -> None:
        saved = self.saved_tensors
        saved.take_fingerprints = saved.want_fingerprints or self.options.checksums_on(self.step)
        saved.want_fingerprints = False

    def _stepping_aside(
        self, original: Callable[[str], AbstractContextManager[None]]
    ) -> Callable[[str], AbstractContextManager[None]]:
        # torch.func refuses to run under saved-tensors hooks. Ours make room for it, and come
        # back; where the user's own lie above them, torch refuses as it does without an audit.
        @contextmanager
        def disable_saved_tensors_hooks(error_message: str) -> Iterator[None]:
            hooks = self.saved_tensors.hooks
            top = top_saved_tensors_hooks()
            aside = top is not None and top[0] is hooks[0]
            if aside:
                remove_saved_tensors_hooks(hooks)
                self.transform_regions += 1
            try:
                with original(error_message):
                    yield
            finally:
                if aside and self.running:
                    push_saved_tensors_hooks(hooks)

        functools.update_wrapper(disable_saved_tensors_hooks, original)
        return disable_saved_tensors_hooks

    def _counting_regions(self, original: Callable[[Any], None]) -> Callable[[Any], None]:
        @functools.wraps(original)
        def __enter__(hooks: Any) -> None:  # noqa: N807 - the name that it stands in for
            self.hook_regions += 1
            return original(hooks)

        return __enter__


def _roots(outputs: Any) -> Iterator[Node]:
    for output in outputs if isinstance(outputs, (tuple, list)) else (outputs,):
        node = getattr(output, "grad_fn", None) or getattr(output, "node", None)
        # A leaf's own node outlives every graph and so can't stand for one.
        if node is not None and node.next_functions:
            yield node


def _keeps_graph(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool, bool]:
    """Read retain_graph and create_graph from the arguments of the engine's entry point."""
    retain = args[1] if len(args) > 1 else kwargs.get("keep_graph", kwargs.get("retain_graph"))
    create = args[2] if len(args) > 2 else kwargs.get("create_graph", False)  # noqa: PLR2004
    return bool(retain) or bool(create), bool(create)
