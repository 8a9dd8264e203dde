"""Every outermost ``backward()`` and ``autograd.grad()``, from its call to its end."""

from __future__ import annotations

import functools
import gc
import inspect
import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, cast

import torch

from gradcheck_suite._torch_compat import (
    current_node,
    custom_function_class,
    engine_entry_points,
    inside_backward,
    keeps_and_makes_graph,
    push_saved_tensors_hooks,
    step_aside_from_backward,
    transform_is_active,
)
from gradcheck_suite.auditing.call_sites import (
    call_site,
    called_by_the_user,
    exact_call_site,
    kind_of_file,
    variables_of,
)
from gradcheck_suite.auditing.events import (
    BackwardFailed,
    BackwardFinished,
    BackwardStarted,
    GradientsAskedInside,
    GradientsFound,
    GradientsReturned,
    GraphKept,
    GraphReused,
    LeafBackwardStarted,
    LossGivenAsGradient,
)
from gradcheck_suite.auditing.instrumentation.base import EventSource, is_compiling
from gradcheck_suite.auditing.object_names.optimizers import changes_since
from gradcheck_suite.auditing.saved_tensors.graph_lifetime import Generation
from gradcheck_suite.auditing.saved_tensors.saved_tensor import line_of_root
from gradcheck_suite.auditing.user_modes import without_user_modes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor
    from torch.autograd.graph import Node

    from gradcheck_suite._runtime.patches import Patches
    from gradcheck_suite._torch_compat import Following
    from gradcheck_suite.auditing.call_sites import CallSite
    from gradcheck_suite.auditing.object_names.optimizers import GradientState
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["BackwardSource"]

_INPUTS = 3
"""Where the engine is given the tensors whose gradients alone are asked for: the index, from 0,
among what follows the roots in torch's ``run_backward`` (gradients, two flags, inputs)."""

_STEPS_LOOKED_THROUGH = 8
"""In so many, the whole graph of each backward is looked at; after that in every eighth:
``_EVERY_ITERATION_UNTIL`` of ``graph_lifetime``."""


_OF_THE_USER = 2
"""The length of a ``CallSite`` at which no library stands between the user's line and torch."""

_LOOKS = 3
"""Backwards of one line of a library for whose loss a line of the user's is looked for in vain. A
bound on cost: a loss that is all the library's, such as that of a model of its own, has none."""

_NEVER = -sys.maxsize
"""Added to a count that is not to reach any bound."""


class BackwardSource(EventSource):
    """Replaces the one name through which Python enters the autograd engine."""

    kinds = (
        BackwardStarted,
        LeafBackwardStarted,
        LossGivenAsGradient,
        GraphReused,
        GradientsFound,
        BackwardFailed,
        BackwardFinished,
        GradientsReturned,
        GraphKept,
        GradientsAskedInside,
    )
    always = True

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        # Asked once: every call counts here.
        self._tells_starts = recorder.bus.wants_any(self.kinds[:5])
        self._tells_ends = recorder.bus.wants_any(self.kinds[6:9])
        # By the place in a library: whether it is handed the loss; how often no line was found; and
        # the line of a forward.
        self._given: dict[tuple[int, ...], bool] = {}
        self._missed: Counter[tuple[int, ...]] = Counter()
        self._forwards: dict[tuple[int, ...], CallSite] = {}

    def install(self, patches: Patches) -> None:
        """Replace the engine's entry points."""
        for owner, name in engine_entry_points():
            patches.replace(owner, name, self._watched(getattr(owner, name)))

    def _watched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def run(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
            source: BackwardSource = self.acting
            recorder = source.recorder
            if not recorder.state.running:
                return source.run_while_paused(original, t_outputs, args, kwargs)
            if inside_backward() or is_compiling():
                if not (is_compiling() or kwargs.get("accumulate_grad", True)):
                    source.tell_inside(t_outputs, args)
                return original(t_outputs, *args, **kwargs)
            if transform_is_active():
                # What passes here are the transform's own wrapped tensors.
                return original(t_outputs, *args, **kwargs)
            if not recorder.state.step and recorder.skips_backward():
                return source.run_unwatched(original, t_outputs, args, kwargs)
            keeps, creates = keeps_and_makes_graph(args, kwargs)
            accumulates = bool(kwargs.get("accumulate_grad", True))
            # Some gradients alone may be asked for in both ways.
            partly = not accumulates or bool(args[_INPUTS:] and args[_INPUTS])
            is_early = recorder.state.step < _STEPS_LOOKED_THROUGH
            begin = source.begin_uncollected if is_early else source.begin
            given = args[0] if args and accumulates else ()
            generation, before = begin(t_outputs, given, accumulates=accumulates)
            failed = True
            result: Any = ()
            try:
                result = source.run_bare(original, t_outputs, args, kwargs, creates=creates)
                failed = False
            except BaseException as error:
                source.fail(generation, t_outputs, error)
                raise
            finally:
                if not keeps and not failed:
                    generation.free(generation.index, partly=partly)
                returned = () if accumulates else tuple(result)
                source.end(
                    generation, before, returned, keeps=keeps, creates=creates, failed=failed
                )
            return result

        return run

    def tell_inside(self, outputs: Any, args: Sequence[Any]) -> None:
        """Tell of an ``autograd.grad`` in the backward of a custom Function."""
        node = current_node()
        function = None if node is None else custom_function_class(node)
        if node is None or function is None or not args[_INPUTS:]:
            return
        roots = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        tensors = tuple(each for each in roots if isinstance(each, torch.Tensor))
        inputs = tuple(args[_INPUTS])
        asked = GradientsAskedInside(node, function, tensors, inputs, call_site())
        self.recorder.bus.emit(asked)

    def run_while_paused(
        self, original: Callable[..., Any], outputs: Any, args: Any, kwargs: Any
    ) -> Any:
        """Run a backward while the audit does not watch; one that fails may wake it."""
        try:
            return original(outputs, *args, **kwargs)
        except BaseException as error:
            if self.recorder.state.paused_for and self.recorder.resume():
                self.recorder.state.clock.tick()
                index = self.recorder.count_backward()
                self.fail(Generation(index, exact_call_site()), outputs, error)
            raise

    def run_unwatched(
        self, original: Callable[..., Any], outputs: Any, args: Any, kwargs: Any
    ) -> Any:
        """Run a backward that nobody is told of, unless it fails."""
        index = self.recorder.count_backward()
        self.recorder.state.clock.tick()
        creates = keeps_and_makes_graph(args, kwargs)[1]
        try:
            return self.run_bare(original, outputs, args, kwargs, creates=creates)
        except BaseException as error:
            self.fail(Generation(index, exact_call_site()), outputs, error)
            raise

    def run_bare(
        self, original: Callable[..., Any], outputs: Any, args: Any, kwargs: Any, *, creates: bool
    ) -> Any:
        """Run the engine, without our hooks on saved tensors where it saves none."""
        recorder = self.recorder
        hooks = recorder.hooks
        if creates or not step_aside_from_backward(hooks):
            return original(outputs, *args, **kwargs)
        recorder.state.is_aside = True
        try:
            return original(outputs, *args, **kwargs)
        finally:
            # The backward may have ended the audit, or begun it anew.
            if recorder.state.is_aside and recorder.state.running:
                push_saved_tensors_hooks(*hooks)
            recorder.state.is_aside = False

    def begin_uncollected(
        self, outputs: Any, given: Any, *, accumulates: bool
    ) -> tuple[Generation, GradientState]:
        """Do as ``begin``, while garbage collection is paused.

        Each node that is looked at is some objects of Python's, gone again by the end, which would
        set collections off again and again.
        """
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return self.begin(outputs, given, accumulates=accumulates)
        finally:
            if was_enabled:
                gc.enable()

    def begin(
        self, outputs: Any, given: Any, *, accumulates: bool
    ) -> tuple[Generation, GradientState]:
        """Tell that a backward begins, with these gradients; return what ``end`` needs."""
        recorder = self.recorder
        site = exact_call_site()
        index = recorder.count_backward()
        recorder.state.backwards_elsewhere += threading.get_ident() != recorder.state.thread
        recorder.write_log.listening = True
        before: GradientState = ([], None)
        try:
            roots = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
            nodes, tensors, has_leaf = _read(roots)
            following: dict[Node, Following] = {}
            called = site
            if site is not None and (site[_OF_THE_USER:] or kind_of_file[site[0].co_filename]):
                site = self._line_of_loss(site, nodes, tensors)
            recorder.state.backward_called = called, site
            generation = recorder.generations.open(
                index, nodes, site, recorder.state.step, following
            )
            chain = generation.chain
            started = BackwardStarted(index, site, chain, tensors, accumulates, {}, following)
            if self._tells_starts:
                recorder.bus.emit(started)
                if generation.reused:
                    recorder.bus.emit(GraphReused(started))
                if given and given[0] is roots[0] and roots[0].numel() == 1:
                    recorder.bus.emit(LossGivenAsGradient(started))
                if has_leaf:
                    recorder.bus.emit(LeafBackwardStarted(started))
            # Who keeps the event keeps no graph by it.
            following.clear()
            found = without_user_modes(recorder.optimizers.gradients)
            if found[1] is None:
                recorder.optimizers.bare_at = index
            elif self._tells_starts:
                recorder.bus.emit(GradientsFound(started))
            if accumulates:
                before = found
        except Exception as error:  # noqa: BLE001 - the user's program goes on
            recorder.bus.note_failure("backward", error)
            generation = Generation(index, site)
        return generation, before

    def _line_of_loss(
        self, site: CallSite, roots: Sequence[Node], tensors: Sequence[Tensor]
    ) -> CallSite:
        """Return at which line of the user's to tell of a backward.

        A library that trains calls it itself, on what some line of the user's has made. Where the
        user's line hands a loss to the library, that line is it.
        """
        key = tuple([each if isinstance(each, int) else id(each) for each in site])
        if key not in self._given:
            self._given[key] = _is_given_a_loss(tensors)
        if self._given[key]:
            return site
        made: CallSite | None = None
        if self._missed[key] < _LOOKS:
            made = line_of_root(roots, apart_from=site)
            # One that was found once is looked for each time.
            self._missed[key] += _NEVER if made is not None else 1
        if made is None:
            made = self._forwards.get(key) or self._line_of_forward(site)
            if made is not None:
                self._forwards[key] = made
        in_library = site[_OF_THE_USER:] or site
        return site if made is None else cast("CallSite", (*made[:2], *in_library))

    def _line_of_forward(self, site: CallSite) -> CallSite | None:
        """Return where the model was called since the last backward, for a loss that is cut off."""
        state = self.recorder.state
        if state.last_forward is None:
            return None
        lines, backwards = state.last_forward
        is_new = backwards == state.backwards - 1
        return lines[0] if is_new and lines[0][:2] != site[:2] else None

    def fail(self, generation: Generation, outputs: Any, error: BaseException) -> None:
        """Tell that it has failed."""
        roots = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        failed = BackwardFailed(generation.index, generation.site, _read(roots)[1], error)
        self.recorder.bus.emit(failed)

    def end(
        self,
        generation: Generation,
        before: GradientState,
        returned: tuple[Tensor | None, ...],
        *,
        keeps: bool,
        creates: bool,
        failed: bool,
    ) -> None:
        """Tell that it has ended."""
        recorder = self.recorder
        recorder.state.backward_called = None, None
        if recorder.saved_tensors.asked:
            recorder.saved_tensors.read_answers()
        if not self._tells_ends:
            return
        created, accumulated = without_user_modes(changes_since, before)
        finished = BackwardFinished(
            generation.index, generation.site, creates, failed, keeps, created, accumulated
        )
        recorder.bus.emit(finished)
        if returned:
            recorder.bus.emit(GradientsReturned(finished, returned))
        if keeps and not failed:
            recorder.bus.emit(GraphKept(finished))


def _is_given_a_loss(roots: Sequence[Tensor]) -> bool:
    """Return whether what the user's line has called was given one of these, or any graph."""
    frame = called_by_the_user(sys._getframe(1))  # noqa: SLF001 - as in call_sites
    if frame is None:
        return False
    given = inspect.getargs(frame.f_code)
    variables = variables_of(frame)
    names = (*given.args, given.varargs, given.varkw)
    given_values = [variables.get(name) for name in names if name is not None]
    return any(_has_graph(each) or any(each is root for root in roots) for each in given_values)


def _has_graph(value: object) -> bool:
    if isinstance(value, dict):
        value = tuple(value.values())
    values = value if isinstance(value, (tuple, list)) else (value,)
    return any(isinstance(each, torch.Tensor) and each.grad_fn is not None for each in values)


def _read(roots: Sequence[Any]) -> tuple[list[Node], tuple[Tensor, ...], bool]:
    """Return the nodes that backward starts from, the tensors, and whether some are leaves."""
    nodes = []
    tensors: tuple[Tensor, ...] = ()
    has_leaf = False
    for root in roots:
        if isinstance(root, torch.Tensor):
            tensors = (*tensors, root)
            node = root.grad_fn
        else:
            node = getattr(root, "node", None)
        # A leaf's own node outlives every graph and so can't stand for one.
        if node is not None and node.next_functions:
            nodes.append(node)
        else:
            has_leaf = True
    return nodes, tensors, has_leaf
