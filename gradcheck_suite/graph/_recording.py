"""Record a forward, and on request its backward, for the graph that is traced afterwards."""

from __future__ import annotations

import threading
import weakref
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from gradcheck_suite.errors import UsageError
from gradcheck_suite.graph._forwards import OutermostForwards
from gradcheck_suite.graph._gradients import BackwardWatch
from gradcheck_suite.graph._module_tree import Member, members_of, modules_within, paths_in
from gradcheck_suite.graph._packed import Packed, SavedWatch
from gradcheck_suite.graph._sources import source_lines_noted
from gradcheck_suite.graph._spans import CallFacts, ModuleWatch
from gradcheck_suite.reporting.text import plural

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from gradcheck_suite.graph._gradients import WatchedBackward
    from gradcheck_suite.graph._module_tree import Named
    from gradcheck_suite.graph.model import AutogradGraph, EdgeGradient, ModuleCall

__all__ = ["Recording", "record"]


def record(
    model: torch.nn.Module | None = None,
    *,
    modules: bool = True,
    saved: bool = True,
    source: bool = False,
    backward: bool = False,
) -> Recording:
    """Record a forward round which this is a ``with`` block, so that its graph can tell more.

    >>> import torch
    >>> import gradcheck_suite as gs
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    >>> with gs.record() as recording:
    ...     loss = model(torch.ones(4, 3)).sum()
    >>> graph = recording.trace_graph(loss)
    >>> [graph.module_of(node) for node in graph.nodes if node.leaf is None]
    [None, '1', '0', '0']

    What runs within computes what it would have computed, bit for bit, and everything that was
    put in place is taken away at the end, also after an exception. Only the thread that enters is
    recorded. Nothing is kept of the tensors but shapes, dtypes and bytes.

    Args:
        model: names the modules; else the modules called from outside any other do.
        modules: note which module call makes each node, by hooks on all modules.
        saved: note what each node saves, what in-place writes into views save included, by a pair
            of saved-tensors hooks. They keep torch's check for tensors that were overwritten, and
            stay away where hooks of yours are in place.
        source: note the line of your code that makes each node, by torch's anomaly mode: forward
            takes about ten times as long.
        backward: measure the gradient on every edge of each backward that runs within. Small
            gradients (up to 64 KiB, on the CPU) are copied as backward computes them;
            their norms and counts are worked out when you first look (``graph``, ``trace_graph``,
            ``not_recorded``), and are the same whenever that is. After a backward up to 16 MiB of
            copies wait, within one up to 32; when there are more, all are worked out there and
            then. Larger gradients are worked out within backward.

    Raises:
        UsageError: ``model`` is not a module.
    """
    if model is not None and not isinstance(model, torch.nn.Module):
        raise UsageError(
            f"record expected model= to be a torch.nn.Module, got {type(model).__name__}; leave it "
            "out to name modules by what is called"
        )
    return Recording(model, modules=modules, saved=saved, source=source, backward=backward)


class Recording:
    """What :func:`record` noted; a context manager that can be entered once.

    Attributes:
        is_over: whether the ``with`` block has ended.
    """

    def __init__(
        self,
        model: torch.nn.Module | None,
        *,
        modules: bool,
        saved: bool,
        source: bool,
        backward: bool,
    ) -> None:
        self.is_over = False
        self._model = model
        self._model_then: weakref.ref[torch.nn.Module] | None = None
        self._wants_source = source
        self._modules = ModuleWatch() if modules else None
        self._saved = SavedWatch() if saved else None
        self._backward = BackwardWatch() if backward else None
        self._outermost: OutermostForwards | None = None
        if self._backward is not None:
            if self._modules is None:
                self._outermost = OutermostForwards(self._backward.look_ahead)
            else:
                self._modules.at_end = self._backward.look_ahead
        self._stack = ExitStack()
        self._entered = False
        self._calls: tuple[ModuleCall, ...] | None = None
        self._paths: dict[int, str] = {}
        self._called: tuple[weakref.ref[torch.nn.Module] | None, ...] = ()
        self._facts: tuple[CallFacts, ...] = ()
        self._members: tuple[tuple[str, str, weakref.ref[torch.Tensor]], ...] = ()
        self._describing = threading.RLock()

    def __enter__(self) -> Recording:
        if self._entered:
            raise UsageError(
                "this recording has been entered before; call gs.record() anew for each forward"
            )
        self._entered = True
        with ExitStack() as started:
            if self._wants_source:
                started.enter_context(source_lines_noted())
            if self._modules is not None:
                started.callback(self._modules.stop)
                self._modules.start()
            if self._outermost is not None:
                started.callback(self._outermost.stop)
                self._outermost.start()
            if self._saved is not None:
                started.callback(self._saved.stop)
                self._saved.start()
            if self._backward is not None:
                started.callback(self._backward.stop)
                self._backward.start()
            self._stack = started.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()
        self._name_modules()
        self.is_over = True
        if self._modules is not None:
            self._called = self._modules.forget_modules()
        if self._backward is not None and error is None:
            # A graph that a backward has not freed holds tensors: turn it into plain data at once.
            for watched in self._backward.backwards:
                if watched.keeps_graph or watched.failed:
                    self._graph_of(watched)
        if self._model is not None:
            self._model_then, self._model = weakref.ref(self._model), None

    def trace_graph(self, tensors: object, model: torch.nn.Module | None = None) -> AutogradGraph:
        """Trace the graph behind ``tensors`` with what was recorded.

        The same as ``gs.trace_graph(tensors, model, recording=self)``.
        """
        from gradcheck_suite.graph._trace import trace_graph  # noqa: PLC0415 - imports this module

        return trace_graph(tensors, model, recording=self)

    @property
    def graph(self) -> AutogradGraph:
        """Return the graph of the last backward that ran within the block, with its gradients.

        The first time it is described and its gradients are worked out, which takes a while; a
        graph that backward kept (``retain_graph=True``) or failed in is described as the block
        ends. It is plain data then: nothing in it changes any more.

        Raises:
            UsageError: ``backward=True`` was not asked for, or no backward ran within.
        """
        if self._backward is None:
            raise UsageError(
                "this recording has no backward: ask for gs.record(backward=True) and call "
                "backward within the block, or pass the loss to trace_graph"
            )
        if not self._backward.backwards:
            raise UsageError(
                "no backward ran on the recording thread within the block: call loss.backward() "
                "in it"
            )
        return self._graph_of(self._backward.backwards[-1])

    def _graph_of(self, watched: WatchedBackward) -> AutogradGraph:
        from gradcheck_suite.graph._trace import graph_of_backward  # noqa: PLC0415 - imports this module

        model = self._model if self._model_then is None else self._model_then()
        with self._describing:
            if watched.graph is None:
                watched.graph = graph_of_backward(watched, model=model, recording=self)
        return watched.graph

    def _name_modules(self) -> None:
        watch = self._modules
        if watch is None:
            return
        trees: list[tuple[torch.nn.Module, list[Named]]] = []
        if self._model is not None:
            trees.append((self._model, modules_within(self._model)))
        paths = paths_in(trees)
        called = tuple(module for module in watch.roots() if id(module) not in paths)
        others = [(root, modules_within(root, name)) for name, root in self._named_roots(called)]
        # What lies in the model goes by the model's names.
        self._paths = {**paths_in(others), **paths}
        trees += others
        self._members = tuple(
            (kind, name, weakref.ref(tensor))
            for root, tree in trees
            for kind, name, tensor in members_of(root, tree)
        )
        self._facts = tuple(watch.facts)

    def _named_roots(
        self, called: tuple[torch.nn.Module, ...]
    ) -> list[tuple[str, torch.nn.Module]]:
        if self._model is None and len(called) == 1:
            return [("", called[0])]
        roots: list[tuple[str, torch.nn.Module]] = []
        taken: set[str] = set()
        for module in called:
            name = kind = type(module).__name__
            count = 1
            while name in taken:
                count += 1
                name = f"{kind}_{count}"
            taken.add(name)
            roots.append((name, module))
        return roots

    @property
    def not_recorded(self) -> tuple[str, ...]:
        """Return sentences on what was asked for and could not be recorded; none within the block.

        This looks at the gradients of all backwards.
        """
        if not self.is_over:
            return ()
        gaps: list[str] = []
        if self._modules is not None and self._modules.elsewhere:
            gaps.append("modules that ran on other threads than the one that entered record()")
        if self._saved is not None and not self._saved.is_watching:
            gaps.append(
                "what in-place writes into views saved: saved-tensors hooks of yours were in place "
                "when record() was entered"
            )
        unread = self.unread_gradients
        if unread:
            gaps.append(
                f"{plural(unread, 'gradient')} of a kind whose numbers can't be read, or "
                "overwritten on the way"
            )
        return tuple(gaps)

    # What tracing asks for.

    @property
    def calls(self) -> tuple[ModuleCall, ...]:
        """Return the module calls, in their order; within the block those so far."""
        if self._modules is None:
            return ()
        if not self.is_over:
            self._name_modules()
            return self._modules.calls(self._paths)
        with self._describing:
            if self._calls is None:
                self._calls = self._modules.calls(self._paths)
            return self._calls

    def calls_in(self, model: torch.nn.Module | None) -> tuple[ModuleCall, ...]:
        """Return the module calls, named by ``model`` as far as they are of modules within it."""
        calls = self.calls
        if model is None or not self._called:
            return calls
        paths = paths_in([(model, modules_within(model))])
        modules = (None if known is None else known() for known in self._called)
        return tuple(
            call
            if (path := paths.get(id(module))) is None or path == call.path
            else replace(call, path=path)
            for call, module in zip(calls, modules, strict=True)
        )

    @property
    def facts(self) -> tuple[CallFacts, ...]:
        """Return what each call was like."""
        return self._facts

    @property
    def packed(self) -> tuple[Packed, ...]:
        """Return what was saved."""
        return () if self._saved is None else self._saved.packed()

    def saw_saving_at(self, sequence_number: int | None) -> bool:
        """Whether what the node with this number saved was noted."""
        return (
            self._saved is not None
            and sequence_number is not None
            and self._saved.covers(sequence_number)
        )

    def missed_saving_at(self, sequence_number: int | None) -> bool:
        """Whether hooks of the program's own (checkpointing) held what this node saved."""
        return (
            self._saved is not None
            and sequence_number is not None
            and self._saved.was_away_at(sequence_number)
        )

    def members(self) -> Iterator[Member]:
        """Yield the parameters and buffers that names are known of, as far as they live."""
        for kind, name, reference in self._members:
            tensor = reference()
            if tensor is not None:
                yield kind, name, tensor

    @property
    def notes_sources(self) -> bool:
        """Whether source lines were asked for."""
        return self._wants_source

    @property
    def notes_saved(self) -> bool:
        """Whether what nodes save was asked for, and could be noted."""
        return self._saved is not None and self._saved.is_watching

    @property
    def notes_gradients(self) -> bool:
        """Whether gradients were asked for."""
        return self._backward is not None

    @property
    def forgotten_backwards(self) -> int:
        """Count the backwards of which nothing is kept, as many have run since."""
        return 0 if self._backward is None else self._backward.forgotten

    @property
    def unread_gradients(self) -> int:
        """Count the gradients that were seen and could not be measured."""
        watched = self._backward.backwards if self._backward is not None else ()
        return sum(each.figures.unread for each in watched)

    def call_at(self, sequence_number: int | None) -> int | None:
        """Return the id of the innermost call that made the node with this number."""
        if self._modules is None or sequence_number is None:
            return None
        number = self._modules.call_at(sequence_number)
        return None if number is None else number + 1

    def gradients(self) -> dict[tuple[int, int], EdgeGradient]:
        """Return what flowed along the edges of all backwards, the latest for each edge."""
        merged: dict[tuple[int, int], EdgeGradient] = {}
        for watched in self._backward.backwards if self._backward is not None else ():
            merged.update(watched.gradients)
        return merged

    def incoming(self) -> dict[tuple[int, int], EdgeGradient]:
        """Return the gradients that backwards started with."""
        merged: dict[tuple[int, int], EdgeGradient] = {}
        for watched in self._backward.backwards if self._backward is not None else ():
            merged.update(watched.incoming)
        return merged

    @property
    def is_partial(self) -> bool:
        """Whether a backward was limited to some inputs."""
        return self._backward is not None and any(
            watched.is_partial for watched in self._backward.backwards
        )

    def __repr__(self) -> str:
        state = "over" if self.is_over else "running" if self._entered else "not started"
        return f"<Recording: {state}, {len(self._facts)} module calls>"
