"""Record a forward, and on request its backward, for the graph that is traced afterwards."""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch

from gradcheck_suite.errors import UsageError
from gradcheck_suite.graph.recording.module_spans import OutermostForwards
from gradcheck_suite.graph.recording.recorded_run import RecordedRun
from gradcheck_suite.graph.trace.source_lines import source_lines_noted
from gradcheck_suite.graph.tracing import graph_of_backward, trace_graph

if TYPE_CHECKING:
    from types import TracebackType

    from gradcheck_suite.graph.model import AutogradGraph
    from gradcheck_suite.graph.recording.backward import RecordedBackward

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


class Recording(RecordedRun):
    """What :func:`record` noted; a context manager that can be entered once.

    Attributes:
        is_over: whether the ``with`` block has ended.
    """

    def __init__(self, model: torch.nn.Module | None, **wanted: bool) -> None:
        super().__init__(model, **wanted)
        self._stack = ExitStack()
        self._entered = False
        self._outermost: OutermostForwards | None = None
        if self._backward is not None:
            if self._modules is None:
                self._outermost = OutermostForwards(self._backward.prepare)
            else:
                self._modules.at_end = self._backward.prepare

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
            for recorded in self._backward.backwards:
                if recorded.keeps_graph or recorded.failed:
                    self._graph_of(recorded)
        if self._model is not None:
            self._model_then = weakref.ref(self._model)
            self._model = None

    def trace_graph(self, tensors: object, model: torch.nn.Module | None = None) -> AutogradGraph:
        """Trace the graph behind ``tensors`` with what was recorded.

        The same as ``gs.trace_graph(tensors, model, recording=self)``.
        """
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

    def _graph_of(self, recorded: RecordedBackward) -> AutogradGraph:
        model = self._model if self._model_then is None else self._model_then()
        with self._describing:
            if recorded.graph is None:
                recorded.graph = graph_of_backward(recorded, model=model, recording=self)
        return recorded.graph

    def __repr__(self) -> str:
        state = "over" if self.is_over else "running" if self._entered else "not started"
        return f"<Recording: {state}, {len(self._facts)} module calls>"
