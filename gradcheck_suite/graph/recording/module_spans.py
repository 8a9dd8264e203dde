"""See the forwards of modules begin and end, and know which call made a node.

That is told by the sequence numbers between the start and the end of the call.
"""

from __future__ import annotations

import warnings
import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from gradcheck_suite._torch_compat import (
    inside_backward,
    next_sequence_number,
    storage_key,
    without_torch_function,
)
from gradcheck_suite.graph.model import ModuleCall

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["CallRecord", "ModuleCallRecorder", "OutermostForwards"]

_position: Callable[[], int] = next_sequence_number or int
_PRUNE_AT = 4_096
"""From so many on, memory that is gone is forgotten."""
_MEMBERS = 1_000
"""So many members of a container are looked at: a list of a million numbers holds no tensor."""
_WARNING_ON_HOOKS = r"Using `torch\.compile\(module\)` when there are global hooks"


@dataclass(slots=True)
class CallRecord:
    """What a module call was like: whether grad mode was on, and what came in and went out.

    ``output_requires_grad`` is None where nothing that came out could. ``cut_from`` is the number
    of an earlier call whose output, which required grad, came in without: it was detached.
    """

    module: torch.nn.Module | None
    parent: int | None
    grad_enabled: bool
    input_requires_grad: bool
    output_requires_grad: bool | None = None
    cut_from: int | None = None


@dataclass(slots=True)
class ModuleCallRecorder:
    """Hooks round the forward of every module, on one thread.

    Modules that run under backward (recomputed by checkpointing) and those that torch.compile
    traces are left alone. ``elsewhere`` says that modules ran on other threads. ``at_end`` is given
    the tensors with a graph that a module returned which no other called.
    """

    facts: list[CallRecord] = field(default_factory=list)
    elsewhere: bool = False
    at_end: Callable[[Sequence[torch.Tensor]], None] | None = None
    _open: list[int] = field(default_factory=list)
    _starts: list[int] = field(default_factory=list)
    _innermost: list[int | None] = field(default_factory=list)
    # By `storage_key`, which no other storage has while there is a weak reference to this one.
    _made_with_graph: dict[int | None, tuple[int, StorageWeakRef]] = field(default_factory=dict)
    _prune_at: int = 0
    _thread: int = 0
    _unhook: Callable[[], None] | None = None
    _forgotten: list[tuple[int, str]] = field(default_factory=list)

    def start(self) -> None:
        """Install the hooks."""
        if next_sequence_number is None:
            return
        self._thread = get_ident()
        self._unhook = hook_every_forward(self._before, self._after)

    def stop(self) -> None:
        """Remove the hooks."""
        if self._unhook is not None:
            self._unhook()
            self._unhook = None

    def _is_foreign(self) -> bool:
        if torch.compiler.is_compiling():
            return True
        if get_ident() == self._thread:
            return inside_backward()
        self.elsewhere = True
        return True

    # These two run for every call of a module: each line here is a part of forward.

    def _before(self, module: torch.nn.Module, args: Any) -> None:
        if self._is_foreign():
            return
        calls = self._open
        number = len(self.facts)
        facts = CallRecord(
            module, calls[-1] if calls else None, torch.is_grad_enabled(), input_requires_grad=False
        )
        with without_torch_function():
            for tensor in floating_tensors(args):
                if tensor.requires_grad:
                    facts.input_requires_grad = True
                elif facts.cut_from is None and self._made_with_graph:
                    made = self._made_with_graph.get(storage_key(tensor))
                    facts.cut_from = None if made is None else made[0]
        self.facts.append(facts)
        calls.append(number)
        self._starts.append(_position())
        self._innermost.append(number)

    def _after(self, module: torch.nn.Module, _args: Any, output: Any) -> None:
        if self._is_foreign():
            return
        closed = self._close(module)
        if closed is None:
            return
        calls = self._open
        facts = self.facts[closed]
        with without_torch_function():
            tensors = floating_tensors(output)
            for tensor in tensors:
                if not tensor.requires_grad:
                    facts.output_requires_grad = bool(facts.output_requires_grad)
                    continue
                facts.output_requires_grad = True
                if (storage := _storage(tensor)) is not None:
                    memory = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                    self._made_with_graph[memory.cdata] = closed, memory
                    if len(self._made_with_graph) > max(_PRUNE_AT, self._prune_at):
                        self._prune()
            if not calls and self.at_end is not None and facts.output_requires_grad:
                self.at_end(tensors)
        self._starts.append(_position())
        self._innermost.append(calls[-1] if calls else None)

    def _close(self, module: torch.nn.Module) -> int | None:
        """Return the number of a module's latest open call, which is open no more."""
        calls = self._open
        if calls and self.facts[calls[-1]].module is module:
            return calls.pop()
        # An exception may have passed calls by whose end nobody told.
        for place in range(len(calls) - 1, -1, -1):
            closed = calls[place]
            if self.facts[closed].module is module:
                del calls[place:]
                return closed
        return None

    def _prune(self) -> None:
        """Forget memory that is gone."""
        self._made_with_graph = {
            address: (made, memory)
            for address, (made, memory) in self._made_with_graph.items()
            if not memory.expired()  # type: ignore[no-untyped-call]
        }
        self._prune_at = 2 * len(self._made_with_graph)

    def call_at(self, sequence_number: int) -> int | None:
        """Return the number (from 0) of the innermost call that made this node, or None."""
        place = bisect_right(self._starts, sequence_number) - 1
        return self._innermost[place] if place >= 0 and not self._ended(place) else None

    def _ended(self, place: int) -> bool:
        # After the last mark nothing is known: it closes the last call, unless one was left open.
        return place == len(self._starts) - 1

    def calls(self, paths: Mapping[int, str]) -> tuple[ModuleCall, ...]:
        """Describe the calls; ``paths`` gives the names of modules by ``id``."""
        seen: Counter[int] = Counter()
        described: list[ModuleCall] = []
        for number, (facts, (key, kind)) in enumerate(
            zip(self.facts, self._forgotten or map(_known_by, self._called()), strict=True)
        ):
            seen[key] += 1
            path = paths.get(key)
            if path is None:
                above = described[facts.parent].path if facts.parent is not None else ""
                path = f"{above}.{kind}" if above else kind
            parent = None if facts.parent is None else facts.parent + 1
            described.append(ModuleCall(number + 1, path, kind, seen[key], parent))
        return tuple(described)

    def _called(self) -> Iterator[torch.nn.Module | None]:
        return (facts.module for facts in self.facts)

    def roots(self) -> tuple[torch.nn.Module, ...]:
        """Return the modules that were called from outside any other, each once."""
        outermost = (facts.module for facts in self.facts if facts.parent is None)
        return tuple({id(module): module for module in outermost if module is not None}.values())

    def forget_modules(self) -> tuple[weakref.ref[torch.nn.Module] | None, ...]:
        """Keep no module alive from now on, and return which module each call was of."""
        self._made_with_graph.clear()
        self._forgotten = list(map(_known_by, self._called()))
        known: dict[int, weakref.ref[torch.nn.Module]] = {}
        modules: list[weakref.ref[torch.nn.Module] | None] = []
        for facts in self.facts:
            module = facts.module
            if module is None:
                modules.append(None)
                continue
            facts.module = None
            modules.append(known.setdefault(id(module), weakref.ref(module)))
        return tuple(modules)


def _known_by(module: torch.nn.Module | None) -> tuple[int, str]:
    """Return what a module is known by when it is gone: its ``id``, and the name of its class."""
    return id(module), type(module).__name__


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Return the memory of a tensor; None for one that has none of its own."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse tensors, and subclasses that wrap others
        return None


class OutermostForwards:
    """Tells of what a module returned that no other called, on one thread.

    Args:
        at_end: is given the floating-point tensors in it, if one of them has a graph.
    """

    def __init__(self, at_end: Callable[[Sequence[torch.Tensor]], None]) -> None:
        self._at_end = at_end
        self._open: list[torch.nn.Module] = []
        self._thread = 0
        self._unhook: Callable[[], None] | None = None

    def start(self) -> None:
        """Install the hooks."""
        self._thread = get_ident()
        self._unhook = hook_every_forward(self._before, self._after)

    def stop(self) -> None:
        """Remove the hooks."""
        if self._unhook is not None:
            self._unhook()
            self._unhook = None
        self._open.clear()

    def _before(self, module: torch.nn.Module, _args: Any) -> None:
        if not self._is_foreign():
            self._open.append(module)

    def _after(self, module: torch.nn.Module, _args: Any, output: Any) -> None:
        if self._is_foreign():
            return
        while self._open:
            # An exception may have passed calls by whose end nobody told.
            if self._open.pop() is module:
                break
        if self._open:
            return
        with without_torch_function():
            tensors = floating_tensors(output)
            if any(tensor.requires_grad for tensor in tensors):
                self._at_end(tensors)

    def _is_foreign(self) -> bool:
        is_here = get_ident() == self._thread
        return torch.compiler.is_compiling() or not is_here or inside_backward()


def hook_every_forward(
    before: Callable[[torch.nn.Module, Any], None],
    after: Callable[[torch.nn.Module, Any, Any], None],
) -> Callable[[], None]:
    """Put hooks round the forward of every module; return what removes them."""
    # torch warns of any global hook, whatever it does; these leave compiled modules alone.
    filters = list(warnings.filters)
    warnings.filterwarnings("ignore", message=_WARNING_ON_HOOKS)
    ours = next((entry for entry in warnings.filters if entry not in filters), None)
    handles = (
        register_module_forward_pre_hook(before),
        register_module_forward_hook(after, always_call=True),
    )

    def unhook() -> None:
        for handle in handles:
            handle.remove()
        if ours is not None and ours in warnings.filters:
            warnings.filters.remove(ours)  # type: ignore[attr-defined]  # a list in fact

    return unhook


def floating_tensors(value: Any) -> list[torch.Tensor]:
    """Find the tensors that may need a gradient in what a module was given or returned."""
    if type(value) is tuple and len(value) == 1:
        (value,) = value
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() or value.is_complex() else []
    found: list[torch.Tensor] = []
    seen: set[int] = set()
    pending: list[Any] = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, torch.Tensor):
            if value.is_floating_point() or value.is_complex():
                found.append(value)
        elif isinstance(value, (tuple, list, dict)) and id(value) not in seen:
            seen.add(id(value))
            members = value.values() if isinstance(value, dict) else value
            pending.extend(reversed(tuple(islice(members, _MEMBERS))))
    return found
