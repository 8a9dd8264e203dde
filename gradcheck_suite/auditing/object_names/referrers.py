"""The name by which a program reaches an object: from the object up to something that has one.

The climb goes through the garbage collector's referrers, level by level, and ends at the nearest
variable: of a running function, of a module, of a class, of a closure, of a suspended generator.
"""

from __future__ import annotations

import contextvars
import functools
import gc
import json
import sys
import threading
import types
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from torch import nn
from torch.autograd.graph import Node

from gradcheck_suite._torch_compat import custom_function_class
from gradcheck_suite.auditing.call_sites import kind_of_file, location_of, variables_of
from gradcheck_suite.auditing.object_names.heap import SearchEndedError
from gradcheck_suite.findings import Location

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from gradcheck_suite.auditing.object_names.heap import Heap

__all__ = ["CACHE", "GrowthName", "Owner", "RunningFrames", "is_ours", "owner_of"]

CACHE: Final = type(functools.lru_cache(len))
"""The type of what ``functools.lru_cache`` returns, which has no public name."""

_LEVELS = 10
"""Steps from a holder up to a name. A bound on cost, as each searches all objects; a list in an
attribute is two steps from its object, and programs nest few objects."""

_MOST_PER_LEVEL = 100
"""Objects that are searched for in one step, the first. A bound on cost."""

_LONGEST_PATH = 60
"""Characters of a path such as ``self.log["train"][0]``; of a longer one, the middle is left out.
Chosen, so that messages stay readable."""

_LONGEST_KEY = 24
"""Characters of a key that is written out in such a path. Chosen, as above."""

_SEARCHED_ITEMS = 10_000
"""Items of a container that are compared to find an index. A bound on cost: without one, the
container is named all the same."""

_MODULE_DICTIONARIES = frozenset({"_buffers", "_modules", "_parameters"})
_SUSPENDED: dict[type, tuple[str, str]] = {
    types.GeneratorType: ("gi_frame", "generator"),
    types.CoroutineType: ("cr_frame", "coroutine"),
    types.AsyncGeneratorType: ("ag_frame", "generator"),
}


@dataclass(frozen=True, slots=True)
class GrowthName:
    """The name nearest to the holder, whose growth the source may show.

    ``files`` are those of the variable, or of the classes that have the attribute; ``function`` is
    the qualified name of the function that a variable belongs to, if to one; ``classes``, ``base``
    and ``key`` are as in ``growth_of``.
    """

    files: tuple[str, ...]
    name: str
    function: str | None = None
    attribute: bool = False
    classes: frozenset[str] = frozenset()
    base: str | None = None
    key: str | int | None = None


@dataclass(frozen=True, slots=True)
class Owner:
    """The name by which the program reaches an object.

    Attributes:
        kind: "local", "global", "class", "closure", "default" (of an argument), "function" (an
            attribute of one), "generator", "coroutine", "cache", "thread-local", "context",
            "attribute" (of an object that nothing named refers to) or "ctx" (of the node of an
            autograd Function).
        name: the variable, or the attribute.
        scope: the function, module or class that it belongs to.
        path: the way from it to the object, as Python would write it: ``log["train"].values``.
        location: where the scope is, where that is known.
        direct: whether the name stands for the object itself.
        grows: the name nearest to the object.
    """

    kind: str
    name: str
    scope: str
    path: str = ""
    location: Location | None = None
    direct: bool = True
    grows: GrowthName | None = None


@dataclass(frozen=True, slots=True)
class _Scope:
    """The variables of a function that is running, and whether it is the user's own."""

    code: types.CodeType
    variables: dict[str, Any]
    users: bool


class RunningFrames:
    """All frames that run now, by identity, and the variables of those that are not torch's.

    Those that an exception on its way has ended count too: its traceback keeps their variables.

    No frame is kept: one that refers to itself, through a variable of ours, would keep everything
    that the functions below it have in hand until the garbage collector runs.
    """

    def __init__(self) -> None:
        self.identities: set[int] = set()
        self.scopes: list[_Scope] = []
        waiting: list[FrameType | None] = list(sys._current_frames().values())  # noqa: SLF001 - public
        link = sys.exc_info()[2]
        while link is not None:
            waiting.append(link.tb_frame)
            link = link.tb_next
        while waiting:
            frame = waiting.pop()
            while frame is not None and id(frame) not in self.identities:
                self.identities.add(id(frame))
                code = frame.f_code
                kind = kind_of_file[code.co_filename]
                if kind != _MACHINERY and frame.f_locals is not frame.f_globals:
                    self.scopes.append(_Scope(code, variables_of(frame), kind == _USER))
                frame = frame.f_back
        self.dictionaries = {id(scope.variables) for scope in self.scopes}

    def forget(self) -> None:
        """Drop every reference to the user's objects."""
        self.scopes.clear()

    def anchor_of(self, thing: object) -> _Anchor | None:
        """Return the variable that is ``thing``: one of the user's own code, if there is any."""
        best: _Anchor | None = None
        for scope in self.scopes:
            for name, value in scope.variables.items():
                if value is not thing:
                    continue
                rank = (0 if scope.users else _LIBRARYS) + (name == "self")
                if best is None or rank < best.rank:
                    best = _Anchor(rank, _variable("local", name, scope.code), 0)
        return best


_USER, _MACHINERY = 0, 2
"""Values of ``kind_of_file``, as in ``call_sites``."""

_LIBRARYS = 4
"""The ranks of a library's own variables begin here: above those of the user's, 0 of a local
variable up to 3 of a thread-local one."""


def is_ours(thing: object) -> bool:
    """Return whether an object is a part of the audit itself."""
    if str(type(thing).__module__).startswith("gradcheck_suite."):
        return True
    return isinstance(thing, types.FrameType) and "gradcheck_suite" in (
        thing.f_globals.get("__name__") or ""
    )


@dataclass(frozen=True, slots=True)
class _Node:
    """An object on the way up, and the one below it that it refers to."""

    thing: Any
    below: _Node | None = None

    def chain(self) -> list[Any]:
        """Return the objects from this one down to the holder."""
        things = []
        node: _Node | None = self
        while node is not None:
            things.append(node.thing)
            node = node.below
        return things


@dataclass(frozen=True, slots=True)
class _Anchor:
    """A variable: what it stands for is ``start`` places down the chain of a node.

    Of several that are equally near, the one of the lowest rank is told.
    """

    rank: int
    owner: Owner
    start: int


def owner_of(holder: object, frames: RunningFrames, heap: Heap, *, skip: set[int]) -> Owner | None:
    """Return the nearest name of ``holder``, or None, also where there is no time to look on.

    Args:
        holder: any object.
        frames: what runs now.
        heap: where it is looked for.
        skip: the identities of containers of ours, which refer to the user's objects too.
    """
    level = [_Node(holder)]
    seen = {id(holder)} | skip | frames.identities | frames.dictionaries
    attribute: Owner | None = None
    for _ in range(_LEVELS):
        named: list[tuple[_Anchor, list[Any]]] = []
        for node in level:
            anchor = _anchor(node.chain()) or frames.anchor_of(node.thing)
            if anchor is not None:
                named.append((anchor, node.chain()))
            elif attribute is None:
                attribute = _attribute(node.chain())
        if named:
            anchor, chain = min(named, key=lambda entry: entry[0].rank)
            below = chain[anchor.start :]
            if anchor.rank >= _LIBRARYS:
                # What a library calls it says less than whose attribute it is, however deep in
                # objects of the library's own.
                place = next((at for at, o in enumerate(below) if _is_users(type(o))), None)
                if place is not None:
                    attribute = _attribute(below[place:]) or attribute
                    if attribute is not None:
                        return attribute
            return _with_path(anchor.owner, below)
        try:
            level = _referrers(level, seen, heap)[:_MOST_PER_LEVEL]
        except SearchEndedError:
            break
        if not level:
            break
    return attribute


def _referrers(level: list[_Node], seen: set[int], heap: Heap) -> list[_Node]:
    by_identity = {id(node.thing): node for node in level}
    things = [node.thing for node in level]
    # Not kept in ``seen``: an identity may come again once these are gone.
    own = {id(by_identity), id(things), id(level)}
    found: list[_Node] = []
    for referrer in heap.referrers(things):
        if id(referrer) in seen or id(referrer) in own or is_ours(referrer):
            continue
        seen.add(id(referrer))
        below = next((id(r) for r in gc.get_referents(referrer) if id(r) in by_identity), None)
        if below is not None:
            found.append(_Node(referrer, by_identity[below]))
    return found


def _anchor(chain: list[Any]) -> _Anchor | None:
    """Return the variable whose home the first object of the chain is."""
    module_of_it = chain[0]
    for kind, find in _HOMES:
        if issubclass(type(module_of_it), kind):
            return find(chain)
    if type(module_of_it).__name__ == "hamt_bitmap_node":
        return _in_context(chain)
    return _on_ctx(chain)


def _in_module(chain: list[Any]) -> _Anchor | None:
    namespace = chain[0]
    name = namespace.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    if module is None or getattr(module, "__dict__", None) is not namespace or len(chain) == 1:
        return None
    variable = _key_of(namespace, chain[1])
    if variable is None:
        return None
    file = getattr(module, "__file__", None)
    rank = 1 if file is None or kind_of_file[file] == _USER else 5
    owner = Owner("global", variable, module.__name__, grows=GrowthName(_some(file), variable))
    return _Anchor(rank, owner, 1)


def _in_class(chain: list[Any]) -> _Anchor | None:
    kind, value = chain[0], chain[2] if len(chain) > 2 else None  # noqa: PLR2004 - see below
    # Between a class and the value of its attribute lies the dictionary of the class.
    name = _key_of(vars(kind), value)
    if value is None or name is None:
        return None
    grows = _growth_name(kind, name, kind.__name__)
    return _Anchor(2, Owner("class", name, kind.__qualname__, grows=grows), 2)


def _in_function(chain: list[Any]) -> _Anchor | None:
    function = chain[0]
    code = function.__code__
    part, inner, *content = [*chain[1:], None, None]
    if part is function.__closure__:
        for name, cell in zip(code.co_freevars, part or (), strict=True):
            if cell is inner and content[0] is not None:
                owner = _variable("closure", name, code)
                # The function around it is where such a variable grows, or another in it.
                grows = GrowthName((code.co_filename,), name)
                return _Anchor(2, replace(owner, grows=grows), 3)
    elif part is function.__defaults__ and part:
        names = code.co_varnames[: code.co_argcount][-len(part) :]
        for name, value in zip(names, part, strict=False):
            if value is inner:
                return _Anchor(2, _variable("default", name, code), 2)
    elif part is not None and (part is function.__kwdefaults__ or part is function.__dict__):
        name = _key_of(part, inner)
        kind = "default" if part is function.__kwdefaults__ else "function"
        if name is not None:
            return _Anchor(2, _variable(kind, name, code), 2)
    return None


def _in_suspended(chain: list[Any]) -> _Anchor | None:
    attribute, kind = _SUSPENDED[type(chain[0])]
    frame = getattr(chain[0], attribute)
    if frame is None or len(chain) == 1:
        return None
    name = _key_of(variables_of(frame), chain[1])
    return None if name is None else _Anchor(2, _variable(kind, name, frame.f_code), 1)


def _in_cache(chain: list[Any]) -> _Anchor:
    function = chain[0].__wrapped__
    name = getattr(function, "__qualname__", "a function").rpartition("<locals>.")[2]
    code = getattr(function, "__code__", None)
    where = None if code is None else location_of((code, -1))
    return _Anchor(2, Owner("cache", name, name, name, where), len(chain))


def _in_thread(chain: list[Any]) -> _Anchor | None:
    # Between it and its attributes lie the dictionary of this thread and parts of its own.
    attributes = vars(chain[0])
    for place, thing in enumerate(chain[1:], 1):
        name = _key_of(attributes, thing)
        if name is not None:
            kind = type(chain[0]).__name__.lstrip("_")
            return _Anchor(3, Owner("thread-local", name, kind), place)
    return None


def _in_context(chain: list[Any]) -> _Anchor | None:
    if len(chain) == 1:
        return None
    parts = gc.get_referents(chain[0])
    # A variable and its value stand side by side in such a node, and are told in reverse.
    place = next((i for i, part in enumerate(parts[:-1]) if part is chain[1]), None)
    variable = None if place is None else parts[place + 1]
    if not isinstance(variable, contextvars.ContextVar):
        return None
    return _Anchor(3, Owner("context", variable.name, ""), 1)


def _on_ctx(chain: list[Any]) -> _Anchor | None:
    if len(chain) <= 2 or not isinstance(chain[0], Node):  # noqa: PLR2004 - as for classes
        return None
    function = custom_function_class(chain[0])
    name = _key_of(chain[1], chain[2]) if isinstance(chain[1], dict) else None
    if function is None or name is None:
        return None
    grows = _growth_name(function, name, "ctx")
    # What else refers to it says more.
    return _Anchor(6, Owner("ctx", name, function.__qualname__, grows=grows), 2)


_HOMES: tuple[tuple[Any, Callable[[list[Any]], _Anchor | None]], ...] = (
    (dict, _in_module),
    (type, _in_class),
    (types.FunctionType, _in_function),
    (tuple(_SUSPENDED), _in_suspended),
    (CACHE, _in_cache),
    (threading.local, _in_thread),
)


def _variable(kind: str, name: str, code: types.CodeType) -> Owner:
    function: str = getattr(code, "co_qualname", code.co_name)
    # Where it stands now says little; where it begins is where it is known by.
    where = location_of((code, -1))
    grows = GrowthName((code.co_filename,), name, function)
    return Owner(kind, name, function, name, where, grows=grows)


def _attribute(chain: list[Any]) -> Owner | None:
    """Return the attribute of the first object that the rest of the chain hangs from."""
    label = _label(chain) if len(chain) > 1 else None
    if label is None or label.attribute is None:
        return None
    kind = type(chain[0])
    owner = Owner("attribute", label.attribute, kind.__qualname__)
    path = "".join(part.text for part in _labels(chain)).removeprefix(".")
    grows = _nearest(chain, None)
    return replace(owner, path=path, direct=label.length == len(chain) - 1, grows=grows)


def _some(file: str | None) -> tuple[str, ...]:
    return () if file is None else (file,)


def _file_of(kind: type) -> str | None:
    return getattr(sys.modules.get(kind.__module__), "__file__", None)


def _is_users(kind: type) -> bool:
    file = _file_of(kind)
    return file is not None and kind_of_file[file] == _USER


def _growth_name(kind: type, name: str, base: str | None) -> GrowthName | None:
    """Return an attribute as the user's classes of this kind know it; None if it is a library's."""
    classes = [
        (each, file)
        for each in kind.__mro__
        if (file := _file_of(each)) is not None and kind_of_file[file] == _USER
    ]
    if not classes:
        return None
    files = tuple(dict.fromkeys(file for _, file in classes))
    names = frozenset(each.__qualname__ for each, _ in classes)
    return GrowthName(files, name, attribute=True, classes=names, base=base)


def _key_of(mapping: Any, value: object) -> str | None:
    for key, candidate in list(mapping.items()):
        if candidate is value and isinstance(key, str):
            return key
    return None


def _with_path(owner: Owner, chain: list[Any]) -> Owner:
    """Return the owner with the way from what its name stands for down to the holder."""
    start = (
        f"{owner.scope.rpartition('.')[2]}.{owner.name}" if owner.kind == "class" else owner.name
    )
    if owner.kind == "ctx":
        start = f"ctx.{owner.name}"
    labels = _labels(chain)
    path = start + "".join(label.text for label in labels)
    if len(path) > _LONGEST_PATH and len(labels) > 1:
        path = f"{start} ... {labels[-1].text}"
    grows = _nearest(chain, owner.name)
    if grows is None and owner.grows is not None:
        grows = replace(owner.grows, key=_key_in(labels[:1]))
    return replace(owner, path=path, direct=not labels, grows=grows)


def _nearest(chain: list[Any], start: str | None) -> GrowthName | None:
    """Return the attribute nearest to the holder that is of a class of the user's, or None."""
    found: GrowthName | None = None
    base = start
    labels = list(_placed_labels(chain))
    for number, (place, label) in enumerate(labels, 1):
        if label.attribute is not None:
            name = _growth_name(type(chain[place]), label.attribute, base)
            if name is not None:
                key = _key_in([after for _, after in labels[number : number + 1]])
                found = replace(name, key=key)
            base = label.attribute
    return found


def _key_in(labels: list[_Label]) -> str | int | None:
    """Return the key or place that the first of these labels spells out."""
    text = labels[0].text if labels else ""
    try:
        key = json.loads(text[1:-1]) if text.startswith("[") else None
    except ValueError:
        return None
    return key if isinstance(key, (str, int)) else None


@dataclass(frozen=True, slots=True)
class _Label:
    """How Python writes the way from an object to one ``length`` places further down."""

    text: str
    length: int
    attribute: str | None = None


def _labels(chain: list[Any]) -> list[_Label]:
    return [label for _, label in _placed_labels(chain)]


def _placed_labels(chain: list[Any]) -> Iterator[tuple[int, _Label]]:
    place = 0
    while place < len(chain) - 1:
        label = _label(chain[place:])
        if label is None:
            place += 1
            continue
        yield place, label
        place += label.length


def _label(chain: list[Any]) -> _Label | None:
    owner, thing = chain[0], chain[1]
    fields: tuple[str, ...] | None = getattr(owner, "_fields", None)
    if isinstance(owner, tuple) and fields is not None:
        index = _index_of(owner, thing)
        name = fields[index] if index is not None and index < len(fields) else None
        return None if name is None else _Label(f".{name}", 1, name)
    if isinstance(owner, (list, tuple, deque)):
        index = _index_of(owner, thing)
        return _Label("[...]" if index is None else f"[{index}]", 1)
    if isinstance(owner, dict):
        return _Label(f"[{_key_text(owner, thing)}]", 1)
    return _attribute_label(chain)


def _attribute_label(chain: list[Any]) -> _Label | None:
    owner, thing = chain[0], chain[1]
    attributes = getattr(owner, "__dict__", None)
    if not isinstance(attributes, dict):
        attributes = {}
    if thing is attributes and len(chain) > 2:  # noqa: PLR2004 - the object, its dictionary, a value
        inner = _attribute_label([owner, *chain[2:]])
        return None if inner is None else _Label(inner.text, inner.length + 1, inner.attribute)
    name = _key_of(attributes, thing) or _slot_of(owner, thing)
    if name is None:
        return None
    if name in _MODULE_DICTIONARIES and isinstance(owner, nn.Module) and len(chain) > 2:  # noqa: PLR2004 - as above
        name = _key_of(thing, chain[2])
        return None if name is None else _Label(f".{name}", 2, name)
    return _Label(f".{name}", 1, name)


def _slot_of(owner: object, thing: object) -> str | None:
    for kind in type(owner).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            if isinstance(name, str) and getattr(owner, name, None) is thing:
                return name
    return None


def _index_of(items: Any, thing: object) -> int | None:
    for index, item in zip(range(_SEARCHED_ITEMS), items, strict=False):
        if item is thing:
            return index
    return None


def _key_text(mapping: dict[Any, Any], thing: object) -> str:
    for key, value in list(mapping.items()):
        if value is thing:
            if isinstance(key, str) and len(key) <= _LONGEST_KEY:
                return json.dumps(key)
            return str(key) if isinstance(key, int) else "..."
    return "..."
