"""Who keeps graphs alive: one look through the garbage collector's references, on suspicion.

The search starts at the tensors whose graphs reach a generation that should be gone, and climbs
from each to whatever refers to it, level by level, until one thing holds several generations.
"""

from __future__ import annotations

import gc
import sys
import types
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from gradcheck_suite._torch_compat import node_metadata
from gradcheck_suite.auditing.call_sites import is_user_code, location_of, variables_of
from gradcheck_suite.auditing.generations import MARK, Generation
from gradcheck_suite.auditing.packed import Holder
from gradcheck_suite.findings import Location

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

    from torch.autograd.graph import Node


__all__ = ["HeldGraphs", "Owner", "find_holder"]

_NODES = 5_000
_LEVELS = 9
_MOST_TENSORS = 2_000
_MOST_PER_LEVEL = 5_000

_Container: TypeAlias = "list[Any] | dict[Any, Any] | set[Any] | deque[Any] | torch.Tensor"


@dataclass(frozen=True, slots=True)
class Owner:
    """The name by which the program reaches what holds the graphs.

    ``kind`` is one of "local", "global", "attribute", "closure". ``scope`` is the function, the
    module or the class; ``location`` is the place of that scope where it is known. ``direct`` says
    that the name stands for the holder itself and not for something that contains it.
    """

    kind: str
    name: str
    scope: str
    location: Location | None
    file: str | None
    direct: bool = True


@dataclass(frozen=True, slots=True)
class HeldGraphs:
    """One thing that keeps the graphs of several backwards.

    Attributes:
        container: "list", "dict", "set", "deque" or "tensor" (a sum over graphs).
        generations: the backwards whose graphs it keeps, oldest first.
        bound: the greatest length of a bounded deque, else None.
        length: how many things it holds; 1 for a tensor.
        through: what lies between it and the graphs, such as "exception" or "closure".
        saved_bytes: the bytes of saved tensors that those graphs still keep.
        owner: its name, or None where none was found.
    """

    container: str
    generations: tuple[int, ...]
    bound: int | None
    length: int
    through: str | None
    saved_bytes: int
    owner: Owner | None


def find_holder(wanted: Iterable[int], *, at_least: int) -> HeldGraphs | None:
    """Return what holds the graphs of at least ``at_least`` of the ``wanted`` backwards.

    Args:
        wanted: the numbers of the backwards whose graphs should be gone.
        at_least: how many of them one holder must keep.

    Returns:
        The holder closest to the graphs, or None if there is none: the graphs are garbage in a
        cycle, or different things keep one each.
    """
    search = _Search(frozenset(wanted), at_least)
    try:
        return search.run()
    finally:
        search.forget()


class _Search:
    def __init__(self, wanted: frozenset[int], at_least: int) -> None:
        self.wanted = wanted
        self.at_least = at_least
        self.reached: dict[int, set[int]] = {}
        self.objects: dict[int, Any] = {}
        self.child: dict[int, int] = {}
        self.live, self.scopes = _live_frames()
        self.own: set[int] = set()

    def forget(self) -> None:
        """Drop every reference to the user's objects."""
        self.objects.clear()
        self.scopes.clear()

    def run(self) -> HeldGraphs | None:
        frontier = self._tensors()
        for tensor in frontier.values():
            if len(self.reached[id(tensor)]) >= self.at_least:
                return self._describe(tensor)
        for _ in range(_LEVELS):
            if not frontier:
                return None
            frontier = self._referrers(frontier)
            best = max(
                (found for found in frontier.values() if _can_grow(found)),
                key=lambda found: len(self.reached[id(found)]),
                default=None,
            )
            if best is not None and len(self.reached[id(best)]) >= self.at_least:
                return self._describe(best)
        return None

    def _tensors(self) -> dict[int, Any]:
        found: dict[int, Any] = {}
        known: dict[Node, set[int]] = {}
        everything = gc.get_objects()
        for candidate in everything:
            if not issubclass(type(candidate), torch.Tensor) or type(candidate) is Holder:
                continue
            node = candidate.grad_fn
            if node is None:
                continue
            reached = _generations_under(node, known) & self.wanted
            if reached:
                found[id(candidate)] = candidate
                self.reached[id(candidate)] = reached
                if len(found) >= _MOST_TENSORS:
                    break
        del everything, known
        self.objects.update(found)
        return found

    def _referrers(self, frontier: dict[int, Any]) -> dict[int, Any]:
        targets = list(frontier.values())[:_MOST_PER_LEVEL]
        skip = {id(targets), id(frontier), id(self.objects), *self.live}
        skip.update(id(scope.variables) for scope in self.scopes)
        level: dict[int, Any] = {}
        for referrer in gc.get_referrers(*targets):
            key = id(referrer)
            if key in skip or key in self.objects or _is_ours(referrer):
                continue
            reached: set[int] = set()
            for child in gc.get_referents(referrer):
                if id(child) in frontier:
                    reached |= self.reached[id(child)]
                    self.child.setdefault(key, id(child))
            if reached:
                level[key] = referrer
                self.reached[key] = reached
        del targets
        self.objects.update(level)
        return level

    def _describe(self, holder: _Container) -> HeldGraphs:
        generations = tuple(sorted(self.reached[id(holder)]))
        is_tensor = issubclass(type(holder), torch.Tensor)
        return HeldGraphs(
            container="tensor" if is_tensor else _container_kind(holder),
            generations=generations,
            bound=holder.maxlen if isinstance(holder, deque) else None,
            length=1 if is_tensor else len(holder),
            through=self._between(holder),
            saved_bytes=_saved_bytes(generations),
            owner=self._owner(holder),
        )

    def _between(self, holder: object) -> str | None:
        key = self.child.get(id(holder))
        while key is not None:
            thing = self.objects[key]
            if isinstance(thing, BaseException):
                return "exception"
            if isinstance(thing, types.FunctionType):
                return "closure"
            key = self.child.get(key)
        return None

    def _owner(self, holder: object) -> Owner | None:
        """Climb from the holder to the nearest thing that has a name."""
        seen = {id(holder)}
        level: list[Any] = [holder]
        for _ in range(_LEVELS):
            for thing in level:
                owner = self._name_of(thing)
                if owner is not None:
                    return replace(owner, direct=thing is holder)
            following: list[Any] = []
            for referrer in gc.get_referrers(*level):
                if id(referrer) in seen or referrer is level or _is_ours(referrer):
                    continue
                if id(referrer) in self.live or referrer is self.objects:
                    continue
                seen.add(id(referrer))
                following.append(referrer)
            seen.add(id(following))
            level = following[:200]
        return None

    def _name_of(self, thing: object) -> Owner | None:
        for scope in self.scopes:
            for name, value in scope.variables.items():
                if value is thing:
                    code = scope.code
                    function = getattr(code, "co_qualname", code.co_name)
                    # Where it stands now says little; where it begins is where it is known by.
                    where = location_of((code, -1))
                    return Owner("local", name, function, where, code.co_filename)
        for referrer in gc.get_referrers(thing):
            named = _named_by(referrer, thing)
            if named is not None:
                return named
        return None


def _named_by(referrer: Any, thing: object) -> Owner | None:  # noqa: PLR0911 - one for each kind
    if isinstance(referrer, types.CellType):
        return _closure_owner(referrer)
    if type(referrer) is dict:
        name = next((key for key, value in referrer.items() if value is thing), None)
        if not isinstance(name, str):
            return None
        if "__name__" in referrer and sys.modules.get(referrer["__name__"], None) is not None:
            module = sys.modules[referrer["__name__"]]
            if vars(module) is referrer:
                file = getattr(module, "__file__", None)
                return Owner("global", name, module.__name__, None, file)
        for holder in gc.get_referrers(referrer):
            if not _is_ours(holder) and getattr(holder, "__dict__", None) is referrer:
                return _attribute(holder, name)
        return None
    # From Python 3.11 on, an object may hold its attributes without a dictionary.
    if type(referrer).__module__ not in ("builtins", "collections", "types"):
        attributes = getattr(referrer, "__dict__", None)
        if isinstance(attributes, dict):
            for name, value in attributes.items():
                if value is thing:
                    return _attribute(referrer, name)
    return None


def _attribute(holder: object, name: str) -> Owner:
    kind = type(holder)
    module = sys.modules.get(kind.__module__)
    return Owner("attribute", name, kind.__qualname__, None, getattr(module, "__file__", None))


def _closure_owner(cell: types.CellType) -> Owner | None:
    for cells in gc.get_referrers(cell):
        if not isinstance(cells, tuple):
            continue
        for function in gc.get_referrers(cells):
            if isinstance(function, types.FunctionType) and function.__closure__ is cells:
                for name, candidate in zip(function.__code__.co_freevars, cells, strict=True):
                    if candidate is cell:
                        place = location_of((function.__code__, -1))
                        return Owner(
                            "closure",
                            name,
                            function.__qualname__,
                            place,
                            function.__code__.co_filename,
                        )
    return None


def _generations_under(root: Node, known: dict[Node, set[int]]) -> set[int]:
    """Return the generations marked on the graph under ``root``, down to the first marks."""
    if root in known:
        return known[root]
    found: set[int] = set()
    seen: set[Node] = set()
    waiting = [root]
    while waiting and len(seen) < _NODES:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        marked = node_metadata(node).get(MARK)
        if isinstance(marked, Generation):
            found.add(marked.index)
            continue
        if node in known:
            found |= known[node]
            continue
        waiting.extend(
            function
            for function, _ in node.next_functions
            if function is not None and function.next_functions
        )
    known[root] = found
    return found


def _can_grow(thing: object) -> bool:
    if isinstance(thing, dict):
        return not _is_namespace(thing)
    return isinstance(thing, (list, set, deque)) or issubclass(type(thing), torch.Tensor)


def _is_namespace(mapping: dict[Any, Any]) -> bool:
    if "__name__" in mapping and "__builtins__" in mapping:
        return True
    return any(
        getattr(holder, "__dict__", None) is mapping
        for holder in gc.get_referrers(mapping)
        if type(holder) is not list and not isinstance(holder, types.FrameType)
    )


def _container_kind(holder: object) -> str:
    for kind in (deque, dict, list, set):
        if isinstance(holder, kind):
            return kind.__name__
    return type(holder).__name__


def _is_ours(thing: object) -> bool:
    if str(type(thing).__module__).startswith("gradcheck_suite."):
        return True
    return isinstance(thing, types.FrameType) and "gradcheck_suite" in (
        thing.f_globals.get("__name__") or ""
    )


@dataclass(frozen=True, slots=True)
class _Scope:
    """The variables of a function of the user's that is running."""

    code: types.CodeType
    variables: dict[str, Any]


def _live_frames() -> tuple[set[int], list[_Scope]]:
    """Return the identities of all running frames, and the variables of the user's.

    No frame is kept: one that refers to itself, through a variable of ours, would keep everything
    that the functions below it have in hand until the garbage collector runs.
    """
    live: set[int] = set()
    scopes: list[_Scope] = []
    waiting: list[FrameType | None] = list(sys._current_frames().values())  # noqa: SLF001 - public
    while waiting:
        frame = waiting.pop()
        while frame is not None:
            live.add(id(frame))
            code = frame.f_code
            if is_user_code(code) and frame.f_locals is not frame.f_globals:
                scopes.append(_Scope(code, variables_of(frame)))
            frame = frame.f_back
    return live, scopes


def _saved_bytes(generations: tuple[int, ...]) -> int:
    wanted = set(generations)
    seen: set[int] = set()
    total = 0
    for thing in gc.get_objects():
        if type(thing) is not Holder or thing.moment.birth.index not in wanted:
            continue
        if thing.tensor.data_ptr() not in seen:
            seen.add(thing.tensor.data_ptr())
            total += thing.tensor.numel() * thing.tensor.element_size()
    return total
