"""Who keeps graphs alive: one look through the garbage collector's references, on suspicion.

The search starts at the tensors whose graphs reach a generation that should be gone, and climbs
from each to whatever refers to it, level by level, until one thing holds several generations.
"""

from __future__ import annotations

import gc
import itertools
import sys
import types
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import nn
from torch.autograd.graph import Node

from gradcheck_suite._runtime.frames import code_of
from gradcheck_suite._torch_compat import (
    custom_function_class,
    gradient_hooks,
    is_leaf_node,
    node_metadata,
    node_of,
    read_saved,
    saved_attribute_names,
)
from gradcheck_suite.auditing.call_sites import CallSite
from gradcheck_suite.auditing.object_names.heap import SearchEndedError
from gradcheck_suite.auditing.object_names.referrers import (
    CACHE,
    Owner,
    RunningFrames,
    is_ours,
    owner_of,
)
from gradcheck_suite.auditing.saved_tensors.graph_lifetime import MARK, Generation
from gradcheck_suite.auditing.saved_tensors.saved_tensor import PackedTensor, packed_tensors_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import TypeGuard

    from gradcheck_suite.auditing.object_names.heap import Heap
    from gradcheck_suite.findings import Location

__all__ = ["FreedGraphs", "HeldGraphs", "Owner", "UnusedGraphs", "find_holders", "hook_around"]

_NODES = 5_000
"""Nodes under one tensor that are looked at for freed graphs. A bound on cost, for each of up to
``_MOST_TENSORS``: a fourth of ``MOST_NODES`` of ``reachable_parameters``."""

_LEVELS = 9
"""Steps from a tensor up to what holds several graphs. A bound on cost, as each searches all
objects."""

_TENSORS_OF_ONE = 6
"""Tensors over the same graphs that the search starts from. A bound on cost: those of one step are
mostly held alike, and more than one are tried as some are held by the graph alone."""

_MOST_TENSORS = 120
"""Tensors that the search starts from in all: twenty graphs with as many each. A bound on cost, as
each step takes time in proportion."""

_MOST_PER_LEVEL = 400
"""Objects that are searched for in one step. A bound on cost; more than three for each tensor of
the start."""

_SEARCHED_ITEMS = 10_000
"""Items of an array of objects that are compared with the tensors. A bound on cost."""

_LINKS_OF_A_CHAIN = 3
"""Objects of one type, each reached through the one before, that make a chain, with the holder.
Chosen: the least that goes on; two may be an object and its part."""

_LEVELS_AFTER = 2
"""Further steps once a holder was found, for others that hold graphs by themselves. A bound on
cost."""

_MOST_HOLDERS = 4
"""Holders that one search tells. Chosen, for length: a loop that keeps its loss, its output and a
metric has three."""


@dataclass(frozen=True, slots=True)
class HeldGraphs:
    """One thing that keeps the graphs of several backwards.

    Attributes:
        container: "list", "dict", "set", "deque", "cache", "array" (of Python objects), "tensor" (a
            sum or another tensor over graphs), "chain" (objects of one type, each with a reference
            to the one before), or "nodes" (those of one autograd Function, each of which keeps its
            own graph).
        generations: the backwards whose graphs it keeps, oldest first, as far as was looked.
        bound: the greatest length of a bounded deque or cache, else None.
        length: how many things it holds; 1 for a tensor.
        through: what lies between it and the graphs, such as "exception" or "closure".
        saved_bytes: the bytes of saved tensors that those graphs still keep.
        owner: its name, or None where none was found.
        element: for a chain, the type of its objects; for a tensor, the op that made it.
        identity: of the thing, as long as it lives.
        recorded: the line that saved the first tensor of a graph that it keeps, where that is
            known.
        key: the text under which a dictionary in it has a graph; None where none has.
    """

    container: str
    generations: tuple[int, ...]
    bound: int | None
    length: int
    through: str | None
    saved_bytes: int
    owner: Owner | None
    element: str | None = None
    identity: int = 0
    recorded: CallSite | None = None
    key: str | None = None


class Wanted(Protocol):
    """Graphs that are looked for, in groups that have a number each."""

    def under(self, root: Node, known: dict[Node, set[int]]) -> set[int]:
        """Return the numbers of those that ``root`` leads to."""
        ...

    def has_saved(self, packed: PackedTensor) -> bool:
        """Return whether a saved tensor is of one of them."""
        ...

    def recorded(self, number: int) -> CallSite | None:
        """Return the line that recorded one that was found."""
        ...


def find_holders(
    wanted: Wanted, groups: Mapping[int, int], heap: Heap, *, at_least: int
) -> tuple[HeldGraphs, ...]:
    """Return what holds graphs of at least ``at_least`` different groups.

    Args:
        wanted: the graphs that should be gone.
        groups: their numbers, each with its group, as the step of a backward.
        heap: where they are looked for.
        at_least: of how many groups one holder must keep some.

    Returns:
        The holders closest to the graphs, none of which keeps them through another, as far as
        there was time to look; none where different things keep one graph each.
    """
    search = _Search(wanted, groups, heap, at_least)
    try:
        return search.run()
    finally:
        search.forget()


class FreedGraphs:
    """The graphs of backwards that have freed them, by the number of the backward."""

    def __init__(self, generations: Iterable[Generation]) -> None:
        self.generations = frozenset(generations)
        self._births = {birth() for each in self.generations for birth in each.births}

    def has_saved(self, packed: PackedTensor) -> bool:
        """Return whether it was saved since the backward before one of these."""
        return packed.moment.birth in self._births

    def recorded(self, number: int) -> None:
        """Return None: which line recorded a graph is freed with what that line had saved."""

    def under(self, root: Node, known: dict[Node, set[int]]) -> set[int]:
        """Return the generations whose freed graphs ``root`` leads to, down to the first marks.

        There is none where a backward could still go all the way from it to a leaf.
        """
        if root in known:
            return known[root]
        found: set[int] = set()
        newest = node_metadata(root).get(MARK)
        if isinstance(newest, Generation) and newest not in self.generations:
            # The latest backward itself began here: what that went through has not outlived it.
            known[root] = found
            return found
        # Each node with the mark, of a backward that has freed only a part, that it lies below.
        seen: dict[Node, Generation | None] = {}
        waiting: list[tuple[Node, Generation | None]] = [(root, None)]
        while waiting and len(seen) < _NODES:
            node, above = waiting.pop()
            if node in seen and (above is None or seen[node] is not None):
                continue
            marked = node_metadata(node).get(MARK)
            if _is_partly_freed(marked):
                above = marked
            elif isinstance(marked, Generation):
                # One of another audit, which may have been before, has a number too.
                if marked in self.generations:
                    found.add(marked.index)
                seen[node] = above
                continue
            seen[node] = above
            if above is None and node in known:
                found |= known[node]
                continue
            if above in self.generations and _buffers_of(node) == "freed":
                found.add(above.index)
                continue
            waiting.extend(
                (function, above)
                for function, _ in node.next_functions
                if function is not None and function.next_functions
            )
        if found and _leads_to_a_leaf(root):
            found = set()
        known[root] = found
        return found


class UnusedGraphs:
    """Graphs that still have what they saved, by the time between two backwards it was saved in.

    Args:
        births: these times, or parts of them, each with the number of what it counts for.
    """

    def __init__(self, births: Mapping[object, int]) -> None:
        self._births = births
        self._first: dict[int, PackedTensor] = {}

    def _number_of(self, packed: PackedTensor) -> int | None:
        birth = packed.moment.birth
        return self._births.get(birth.turn, self._births.get(birth))

    def has_saved(self, packed: PackedTensor) -> bool:
        """Return whether it was saved in one of these times."""
        return self._number_of(packed) is not None

    def recorded(self, number: int) -> CallSite | None:
        """Return the line that saved the first tensor that was found of that time."""
        first = self._first.get(number)
        return None if first is None else first.site

    def under(self, root: Node, known: dict[Node, set[int]]) -> set[int]:
        """Return the numbers of the times in which the graph under ``root`` saved something."""
        found = known.get(root)
        if found is not None:
            return found
        found = set()
        seen = {root}
        waiting = [root]
        while waiting:
            node = waiting.pop()
            for packed in packed_tensors_of(node, type(node)):
                number = self._number_of(packed)
                if number is not None:
                    found.add(number)
                    self._note(number, packed)
            for edge, _ in node.next_functions:
                if edge is not None and edge not in seen and len(seen) < _NODES:
                    seen.add(edge)
                    waiting.append(edge)
        known[root] = found
        return found

    def _note(self, number: int, packed: PackedTensor) -> None:
        first = self._first.get(number)
        # What was walked last lies deepest; within one moment nothing else tells an order.
        if first is None or packed.moment.sequence <= first.moment.sequence:
            self._first[number] = packed


class _Search:
    def __init__(
        self, wanted: Wanted, groups: Mapping[int, int], heap: Heap, at_least: int
    ) -> None:
        self.heap = heap
        self.wanted = wanted
        self.groups = groups
        self.saved_bytes = 0
        self.at_least = at_least
        self.reached: dict[int, set[int]] = {}
        self.objects: dict[int, Any] = {}
        self.child: dict[int, int] = {}
        self.frames = RunningFrames()
        self.own = {id(self.objects)}

    def forget(self) -> None:
        """Drop every reference to the user's objects."""
        self.objects.clear()
        self.frames.forget()

    def run(self) -> tuple[HeldGraphs, ...]:
        found: list[HeldGraphs] = []
        with suppress(SearchEndedError):
            self._look(found)
        return tuple(found[:_MOST_HOLDERS])

    def _look(self, found: list[HeldGraphs]) -> None:
        tensors = self._tensors()
        self.own.add(id(tensors))
        sums = [tensor for tensor in tensors.values() if self._holds_enough(tensor)]
        if sums:
            # Of a sum and what is computed from it, the one that goes furthest back.
            most = max(sums, key=lambda tensor: len(self.reached[id(tensor)]))
            found.append(self._describe(most))
        frontier = {k: each for k, each in tensors.items() if not self._holds_enough(each)}
        levels = _LEVELS
        while frontier and levels > 0:
            levels -= 1
            frontier = self._referrers(frontier)
            for holder in self._holders_in(frontier):
                found.append(self._describe(holder))
                # What holds it holds the graphs through it.
                del frontier[id(holder)]
                levels = min(levels, _LEVELS_AFTER)
        if not found:
            other = self._array_over(tensors) or self._nodes_over(tensors)
            found += [] if other is None else [other]

    def _holds_enough(self, thing: object) -> bool:
        groups = {self.groups[index] for index in self.reached[id(thing)]}
        return len(groups) >= self.at_least

    def _holders_in(self, level: dict[int, Any]) -> list[Any]:
        enough = [thing for thing in level.values() if self._holds_enough(thing)]
        growing = [thing for thing in enough if self._can_grow(thing) and self._adds_up(thing)]
        return growing or [thing for thing in enough if self._links_of_its_type(thing)][:1]

    def _can_grow(self, thing: object) -> bool:
        if isinstance(thing, dict):
            return not self._is_namespace(thing)
        return isinstance(thing, (list, set, deque, CACHE)) or issubclass(type(thing), torch.Tensor)

    def _is_namespace(self, mapping: dict[Any, Any]) -> bool:
        if _is_of_a_module(mapping):
            return True
        return any(
            getattr(holder, "__dict__", None) is mapping
            for holder in self.heap.referrers([mapping])
            if type(holder) is not list and not isinstance(holder, types.FrameType)
        )

    def _adds_up(self, thing: object) -> bool:
        """Return whether it keeps more than any one thing in it does by itself.

        A list of one trainer, which has the last loss of each of its optimizers, does not.
        """
        if isinstance(thing, CACHE):
            return True
        child = self.child.get(id(thing))
        return child is None or len(self.reached[child]) < len(self.reached[id(thing)])

    def _tensors(self) -> dict[int, Any]:
        found: dict[int, Any] = {}
        known: dict[Node, set[int]] = {}
        several: dict[frozenset[int], int] = {}
        addresses: set[int] = set()
        for candidate in self.heap.instances(torch.Tensor, PackedTensor):
            if type(candidate) is PackedTensor:
                if self.wanted.has_saved(candidate):
                    self._add_bytes(candidate.tensor, addresses)
                continue
            node = node_of(candidate)
            if node is None or len(found) >= _MOST_TENSORS:
                continue
            reached = self.wanted.under(node, known)
            # Each level of the search takes time in proportion to what it starts from.
            same = frozenset(reached)
            several[same] = several.get(same, 0) + 1
            if reached and several[same] <= _TENSORS_OF_ONE:
                found[id(candidate)] = candidate
                self.reached[id(candidate)] = reached
        del known
        self.objects.update(found)
        return found

    def _add_bytes(self, tensor: torch.Tensor, addresses: set[int]) -> None:
        if tensor.data_ptr() not in addresses:
            addresses.add(tensor.data_ptr())
            self.saved_bytes += tensor.numel() * tensor.element_size()

    def _referrers(self, frontier: dict[int, Any]) -> dict[int, Any]:
        targets = list(frontier.values())[:_MOST_PER_LEVEL]
        skip = {id(targets), id(frontier), *self.own}
        skip |= self.frames.identities | self.frames.dictionaries
        level: dict[int, Any] = {}
        for referrer in self.heap.referrers(targets):
            key = id(referrer)
            if key in skip or is_ours(referrer) or _is_of_a_module(referrer):
                continue
            before = self.reached.get(key, set())
            reached = set(before)
            for child in gc.get_referents(referrer):
                if id(child) in frontier and id(child) != key:
                    reached |= self.reached[id(child)]
                    if len(self.reached[id(child)]) >= len(
                        self.reached.get(self.child.get(key, 0), ())
                    ):
                        self.child[key] = id(child)
            # Again, where more has been found below it: a chain grows link by link.
            if len(reached) > len(before):
                level[key] = referrer
                self.reached[key] = reached
        del targets
        self.objects.update(level)
        return level

    def _below(self, thing: object) -> list[Any]:
        """Return the way from a thing down to a tensor."""
        way: list[Any] = []
        key = self.child.get(id(thing))
        while key is not None and len(way) < 2 * _LEVELS:
            way.append(self.objects[key])
            key = self.child.get(key)
        return way

    def _links_of_its_type(self, thing: object) -> bool:
        """Return whether the thing reaches the graphs through others of its own type."""
        if isinstance(thing, (types.ModuleType, types.FrameType, dict, type)):
            return False
        links = sum(type(each) is type(thing) for each in self._below(thing))
        return links >= _LINKS_OF_A_CHAIN - 1

    def _describe(self, holder: Any) -> HeldGraphs:
        kind, element = _kind_of(holder)
        return HeldGraphs(
            container=kind,
            generations=tuple(sorted(self.reached[id(holder)])),
            bound=_bound_of(holder),
            length=1 if kind in ("tensor", "chain") else _length_of(holder),
            through=self._between(holder),
            saved_bytes=self.saved_bytes,
            owner=owner_of(holder, self.frames, self.heap, skip=self.own),
            element=element,
            identity=id(holder),
            recorded=self.wanted.recorded(min(self.reached[id(holder)])),
            key=self._key_below(holder),
        )

    def _key_below(self, holder: object) -> str | None:
        """Return the text under which a dictionary in the holder has what keeps a graph."""
        way = self._below(holder)
        for thing, below in itertools.pairwise(way):
            if type(thing) is dict and not self._is_namespace(thing):
                keys = (key for key, value in list(thing.items()) if value is below)
                return next((key for key in keys if isinstance(key, str)), None)
        return None

    def _between(self, holder: object) -> str | None:
        for thing in self._below(holder):
            if isinstance(thing, BaseException):
                return "exception"
            if isinstance(thing, types.FunctionType):
                return "closure"
        return None

    def _array_over(self, tensors: dict[int, Any]) -> HeldGraphs | None:
        """Return an array of Python objects, which the garbage collector does not look into."""
        numpy = sys.modules.get("numpy")
        if numpy is None:
            return None
        arrays = [each for each in self.heap.referents(numpy.ndarray) if each.dtype == object]
        for array in arrays:
            reached: set[int] = set()
            for _, item in zip(range(_SEARCHED_ITEMS), array.flat, strict=False):
                if id(item) in tensors:
                    reached |= self.reached[id(item)]
            self.reached[id(array)] = reached
            if self._holds_enough(array):
                self.objects[id(array)] = array
                arrays.clear()
                return self._describe(array)
        return None

    def _nodes_over(self, tensors: dict[int, Any]) -> HeldGraphs | None:
        """Return the nodes of one Function whose attributes keep their own graphs."""
        kept: dict[tuple[type, str], set[int]] = {}
        example: dict[tuple[type, str], Any] = {}
        for key, thing in self.objects.items():
            function = custom_function_class(thing) if isinstance(thing, Node) else None
            if function is None:
                continue
            for name, value in vars(thing).items():
                if id(value) in tensors:
                    kept.setdefault((function, name), set()).update(self.reached[id(value)])
                    example[function, name] = self.objects[key]
        for (function, name), generations in kept.items():
            self.reached[id(function)] = generations
            if self._holds_enough(function):
                value = getattr(example[function, name], name)
                owner = owner_of(value, self.frames, self.heap, skip=self.own)
                return HeldGraphs(
                    container="nodes",
                    generations=tuple(sorted(generations)),
                    recorded=self.wanted.recorded(min(generations)),
                    bound=None,
                    length=len(generations),
                    through=None,
                    saved_bytes=self.saved_bytes,
                    owner=owner,
                    element=function.__qualname__,
                    identity=id(function),
                )
        return None


def _is_partly_freed(mark: object) -> TypeGuard[Generation]:
    return isinstance(mark, Generation) and mark.freed_by is not None and mark.partly


def _buffers_of(node: Node) -> Literal["freed", "kept"] | None:
    """Say what became of the tensors that a node had saved; None where it never had any."""
    kept = False
    for name in saved_attribute_names(type(node)):
        saved = read_saved(node, name)
        if saved.freed:
            return "freed"
        kept = kept or any(each is not None for each in saved.tensors)
    return "kept" if kept else None


def _leads_to_a_leaf(root: Node) -> bool:
    """Return whether a way from ``root`` to a leaf has buffers, and all of them are still kept.

    A way without any proves nothing: a bias that is added can be differentiated for ever.
    """
    seen: set[tuple[Node, bool]] = set()
    waiting = [(root, False)]
    while waiting and len(seen) < _NODES:
        node, kept = waiting.pop()
        if (node, kept) in seen or (node, True) in seen:
            continue
        seen.add((node, kept))
        mark = node_metadata(node).get(MARK)
        if isinstance(mark, Generation) and mark.freed_by is not None and not mark.partly:
            continue
        buffers = _buffers_of(node)
        if buffers == "freed":
            continue
        kept = kept or buffers == "kept"
        for function, _ in node.next_functions:
            if function is None:
                continue
            if function.next_functions:
                waiting.append((function, kept))
            elif kept and is_leaf_node(function):
                return True
    return False


def _kind_of(holder: Any) -> tuple[str, str | None]:
    if issubclass(type(holder), torch.Tensor):
        node = holder.grad_fn
        return "tensor", None if node is None else type(node).__name__.removesuffix("Backward0")
    for kind in (deque, dict, list, set):
        if isinstance(holder, kind):
            return kind.__name__, None
    if isinstance(holder, CACHE):
        return "cache", None
    if type(holder).__name__ == "ndarray":
        return "array", None
    return "chain", type(holder).__name__


def _bound_of(holder: Any) -> int | None:
    if isinstance(holder, deque):
        return holder.maxlen
    if isinstance(holder, CACHE):
        bound: int | None = holder.cache_info().maxsize
        return bound
    return None


def _length_of(holder: Any) -> int:
    if isinstance(holder, CACHE):
        length: int = holder.cache_info().currsize
        return length
    return holder.size if type(holder).__name__ == "ndarray" else len(holder)


def _is_of_a_module(thing: object) -> bool:
    """Return whether these are the names of a module, which do not grow, nor does what has them.

    The names of a script keep the last loss of each of its optimizers; the table of modules and
    every function of the script keep those names.
    """
    return type(thing) is dict and "__name__" in thing and "__builtins__" in thing


_OF_MODULES = {
    "_forward_hooks": "forward hook",
    "_forward_pre_hooks": "forward pre-hook",
    "_backward_hooks": "backward hook",
    "_backward_pre_hooks": "backward pre-hook",
}


def hook_around(place: Location, heap: Heap) -> str | None:
    """Return the kind and owner of the hook that a line belongs to, or None.

    None, too, where there is no time left for searches.

    >>> from gradcheck_suite.auditing.object_names.heap import Heap
    >>> from gradcheck_suite.findings import Location
    >>> layer = nn.Linear(2, 2)
    >>> handle = layer.register_forward_hook(lambda *_: None)
    >>> hook_around(Location("nowhere.py", 1), Heap()) is None
    True
    """
    try:
        things = heap.instances(nn.Module, torch.Tensor)
    except SearchEndedError:
        return None
    for kind, hook in _registered(things):
        code = code_of(hook)
        if code is not None and code.co_filename == place.path:
            lines = [line for _, _, line in code.co_lines() if line is not None]
            if lines and min(lines) <= place.line <= max(lines):
                return kind
    return None


def _registered(things: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    for thing in things:
        if issubclass(type(thing), nn.Module):
            for name, kind in _OF_MODULES.items():
                for hook in list(vars(thing).get(name, {}).values()):
                    yield f"{kind} of {type(thing).__name__}", hook
        else:
            for hook in gradient_hooks(thing):
                yield "tensor hook", hook
