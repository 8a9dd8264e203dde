"""What was noted of a forward and its backwards: all that tracing and the checks ask for."""

from __future__ import annotations

import threading
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING

from gradcheck_suite.graph.recording.backward import BackwardRecorder
from gradcheck_suite.graph.recording.module_spans import CallRecord, ModuleCallRecorder
from gradcheck_suite.graph.recording.saved_tensors import RecordedSave, SavedTensorRecorder
from gradcheck_suite.graph.trace.module_tree import Member, members_of, modules_within, paths_in
from gradcheck_suite.reporting.text import plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from gradcheck_suite.graph.model import EdgeGradient, ModuleCall
    from gradcheck_suite.graph.trace.module_tree import Named

__all__ = ["RecordedRun"]


class RecordedRun:
    """What one recording has noted.

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
        self._modules = ModuleCallRecorder() if modules else None
        self._saved = SavedTensorRecorder() if saved else None
        self._backward = BackwardRecorder() if backward else None
        self._calls: tuple[ModuleCall, ...] | None = None
        self._paths: dict[int, str] = {}
        self._called: tuple[weakref.ref[torch.nn.Module] | None, ...] = ()
        self._facts: tuple[CallRecord, ...] = ()
        self._members: tuple[tuple[str, str, weakref.ref[torch.Tensor]], ...] = ()
        self._describing = threading.RLock()

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
        if self._saved is not None and not self._saved.is_recording:
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
    def facts(self) -> tuple[CallRecord, ...]:
        """Return what each call was like."""
        return self._facts

    @property
    def packed(self) -> tuple[RecordedSave, ...]:
        """Return what was saved."""
        return () if self._saved is None else self._saved.packed()

    def saw_saving_at(self, sequence_number: int | None) -> bool:
        """Return whether what the node with this number saved was noted."""
        return (
            self._saved is not None
            and sequence_number is not None
            and self._saved.covers(sequence_number)
        )

    def missed_saving_at(self, sequence_number: int | None) -> bool:
        """Return whether hooks of the program's own (checkpointing) held what this node saved."""
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
        """Return whether source lines were asked for."""
        return self._wants_source

    @property
    def notes_saved(self) -> bool:
        """Return whether what nodes save was asked for, and could be noted."""
        return self._saved is not None and self._saved.is_recording

    @property
    def notes_gradients(self) -> bool:
        """Return whether gradients were asked for."""
        return self._backward is not None

    @property
    def forgotten_backwards(self) -> int:
        """Count the backwards of which nothing is kept, as many have run since."""
        return 0 if self._backward is None else self._backward.forgotten

    @property
    def unread_gradients(self) -> int:
        """Count the gradients that were seen and could not be measured."""
        recorded = self._backward.backwards if self._backward is not None else ()
        return sum(each.stats.unread for each in recorded)

    def call_at(self, sequence_number: int | None) -> int | None:
        """Return the id of the innermost call that made the node with this number."""
        if self._modules is None or sequence_number is None:
            return None
        number = self._modules.call_at(sequence_number)
        return None if number is None else number + 1

    def gradients(self) -> dict[tuple[int, int], EdgeGradient]:
        """Return what flowed along the edges of all backwards, the latest for each edge."""
        merged: dict[tuple[int, int], EdgeGradient] = {}
        for recorded in self._backward.backwards if self._backward is not None else ():
            merged.update(recorded.gradients)
        return merged

    def incoming(self) -> dict[tuple[int, int], EdgeGradient]:
        """Return the gradients that backwards started with."""
        merged: dict[tuple[int, int], EdgeGradient] = {}
        for recorded in self._backward.backwards if self._backward is not None else ():
            merged.update(recorded.incoming)
        return merged

    @property
    def is_partial(self) -> bool:
        """Return whether a backward was limited to some inputs."""
        return self._backward is not None and any(
            recorded.is_partial for recorded in self._backward.backwards
        )

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
