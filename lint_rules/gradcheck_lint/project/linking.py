"""Choose what is read together with a file: the definitions of its project that it uses.

A file is read with the functions, classes and values that it imports from its project, those that
these use, and so on, until a few thousand lines. Of each file there is a slice, the definitions
that are used and nothing else, so that what is imported costs what is used of it.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from gradcheck_lint.files import read_source
from gradcheck_lint.project.importers import importers_of
from gradcheck_lint.project.layout import Layout, layout_of
from gradcheck_lint.project.outline import STAR, Definition, Import, Outline, outline_of, words_of
from gradcheck_lint.project.sources import digest_of, digest_of_list, importers_key

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_CHARACTERS: Final = 20_000
"""What is read together with a file: some 500 lines, about as much as most files have."""
_FEW_LINES: Final = 25
_WORDS: Final = frozenset(
    {"torch", "nn", "F", "tensor", "Tensor", "Module", "forward", "backward", "grad", "no_grad"}
    | {"parameters", "state_dict", "optimizer", "zero_grad", "step", "loss", "detach"}
    | {"requires_grad"}
)
"""What a class or a long function has one of if it is about tensors."""
_MOST_FILES_BETWEEN: Final = 1
_MOST_HOPS: Final = 6
"""How many packages may hand a name on."""
_MOST_OUTLINES: Final = 512
_MOST_CALLERS: Final = 12
_METHOD: Final = re.compile(r"(?m)^[ \t]+(?:async )?def (\w+)")
_CALLED_EVERYWHERE: Final = frozenset(
    {"__init__", "__call__", "forward", "train", "eval", "step", "main", "run", "get", "update"}
)
"""Methods whose names say nothing of whose they are."""


class Target(NamedTuple):
    """A definition of another file: where it is and what it is called there."""

    path: str
    name: str


@dataclass(frozen=True, slots=True)
class Slice:
    """The definitions of one file that are read together with another.

    ``lines`` are the numbers that the lines of ``text`` have in the file, 0 for none. ``bindings``
    say what the names stand for that the file has from others.
    """

    path: str
    text: str
    lines: tuple[int, ...]
    bindings: Mapping[str, Target]


@dataclass(frozen=True, slots=True)
class Unit:
    """What is read together with a file; ``bindings`` are its own names for it.

    ``sources`` are the files that were looked into, each with a digest of its contents.
    """

    slices: tuple[Slice, ...] = ()
    bindings: Mapping[str, Target] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    path: str = ""


NO_UNIT: Final = Unit()


@dataclass(frozen=True, slots=True)
class _Source:
    digest: str
    outline: Outline | None


@lru_cache(maxsize=_MOST_OUTLINES)
def _source_of(source: bytes) -> _Source:
    return _Source(digest_of(source), outline_of(source))


def link(root: str, path: str, source: bytes, *, callers: bool = False) -> Unit:
    """Return what of the project at ``root`` is read together with the file at ``path``.

    That is what the file uses, and with ``callers`` also what uses the file.
    """
    layout = layout_of(root)
    own = _source_of(source).outline if layout.contains(path) else None
    if own is None:
        return NO_UNIT
    linker = _Linker(layout, os.path.realpath(path), own)
    linker.follow()
    if callers:
        linker.follow_callers()
    return linker.unit()


class _Linker:
    """The search for what one file uses, nearest definitions first."""

    def __init__(self, layout: Layout, path: str, own: Outline) -> None:
        self._layout = layout
        self._path = path
        self._outlines: dict[str, Outline | None] = {path: own}
        self._digests: dict[str, str] = {}
        self._found: dict[tuple[str, str], Target | None] = {}
        self._chosen: dict[str, dict[int, Definition]] = {}
        self._bindings: dict[str, dict[str, Target]] = {}
        self._used: dict[str, set[str]] = {}
        """The words of what was chosen of each file."""
        self._waiting: deque[tuple[str, Definition, int]] = deque()
        self._depth = 0
        """How many files lie between the file and what is being followed."""
        self._left = _MOST_CHARACTERS
        self._only_own = False
        """Whether definitions of other files are of no interest any more."""

    def follow(self) -> None:
        """Choose what the file uses, and what that uses."""
        own = self._outlines[self._path]
        assert own is not None
        text = "".join(own.lines)
        self._use_imports(self._path, words_of(text), text)
        while self._waiting:
            path, definition, self._depth = self._waiting.popleft()
            outline = self._outlines[path]
            assert outline is not None
            self._used.setdefault(path, set()).update(definition.words)
            for name in outline.definitions.keys() & definition.words:
                self._choose(Target(path, name))
            if self._depth < _MOST_FILES_BETWEEN:
                self._depth += 1
                self._use_imports(path, definition.words, definition.text)

    def follow_callers(self) -> None:
        """Choose what uses the file, in the files that import from it and in who runs that."""
        own = self._outlines[self._path]
        assert own is not None
        methods = frozenset(_METHOD.findall("".join(own.lines))) - _CALLED_EVERYWHERE
        self._left, self._only_own = _MOST_CHARACTERS, True
        waiting, seen = [self._path], {self._path}
        while waiting and len(seen) <= _MOST_CALLERS:
            known = waiting.pop(0)
            importers = importers_of(self._layout.root, known)
            self._digests[importers_key(self._layout.root, known)] = digest_of_list(importers)
            for path in importers:
                outline = None if path in seen else self._outline(path)
                if outline is not None and len(seen) <= _MOST_CALLERS:
                    seen.add(path)
                    self._choose_users(path, outline, methods)
                    if os.path.basename(path) == "__init__.py":  # noqa: PTH119 - str in
                        waiting.append(path)  # a package that hands it on

    def _choose_users(self, path: str, outline: Outline, methods: frozenset[str]) -> None:
        """Choose the statements of a file that name what it has from ours, and who names them."""
        text = "".join(outline.lines)
        self._use_imports(path, words_of(text), text)
        bindings = self._bindings.get(path, {})
        names = {
            part
            for local, target in bindings.items()
            if target.path == self._path
            for part in local.split(".")
        }
        if not names:
            return
        names |= methods
        waiting = list(outline.statements)
        while waiting:
            using = [known for known in waiting if not names.isdisjoint(known.words)]
            if not using:
                break
            for statement in using:
                waiting.remove(statement)
                if self._take(path, statement):
                    self._used.setdefault(path, set()).update(statement.words)
                    names.update(statement.names)

    def _use_imports(self, path: str, words: frozenset[str], text: str) -> None:
        outline = self._outlines[path]
        assert outline is not None
        for known in outline.imports:
            if known.name == STAR:
                self._use_star(path, known, words)
            elif known.local.partition(".")[0] in words:
                self._use(path, known, text)

    def _module(self, path: str, known: Import, name: str | None = None) -> str | None:
        """Return the file that an import means, and note where it would have been."""
        wanted = known.module if name is None else name
        found = self._layout.module(path, wanted, known.level)
        if found is None:
            for missing in self._layout.places(path, wanted, known.level):
                self._digests.setdefault(missing, "")
        return found

    def _use(self, path: str, known: Import, text: str) -> None:
        """Follow one import: of a definition, or of a module of which attributes are used."""
        module = self._module(path, known)
        if known.name:
            target = self._find(module, known.name) if module is not None else None
            if target is not None:
                self._bind(path, known.local, target)
                return
            below = f"{known.module}.{known.name}" if known.module else known.name
            module = self._module(path, known, below)
        if module is None:
            return
        pattern = rf"(?<![\w.]){re.escape(known.local)}\.(\w+)"
        for attribute in dict.fromkeys(re.findall(pattern, text)):
            target = self._find(module, attribute)
            if target is not None:
                self._bind(path, f"{known.local}.{attribute}", target)

    def _use_star(self, path: str, known: Import, words: frozenset[str]) -> None:
        module = self._module(path, known)
        outline = self._outline(module)
        if module is None or outline is None:
            return
        handed_on = {each.local for each in outline.imports}
        for name in sorted(words & (outline.definitions.keys() | handed_on)):
            target = self._find(module, name)
            if target is not None:
                self._bind(path, name, target)

    def _find(self, path: str, name: str, hops: int = _MOST_HOPS) -> Target | None:
        """Return where a name of a module is defined, through packages that hand it on."""
        key = (path, name)
        if key not in self._found:
            self._found[key] = None  # packages may import each other
            self._found[key] = self._look_for(path, name, hops)
        return self._found[key]

    def _look_for(self, path: str, name: str, hops: int) -> Target | None:
        outline = self._outline(path)
        if outline is None or not hops:
            return None
        if name in outline.definitions:
            return Target(path, name)
        for known in outline.imports:
            if known.local == name or known.name == STAR:
                module = self._module(path, known)
                if module is not None and known.name and module != path:
                    wanted = name if known.name == STAR else known.name
                    found = self._find(module, wanted, hops - 1)
                    if found is not None:
                        return found
        return None

    def _bind(self, path: str, local: str, target: Target) -> None:
        if target.path == self._path or (not self._only_own and self._choose(target)):
            self._bindings.setdefault(path, {}).setdefault(local, target)

    def _choose(self, target: Target) -> bool:
        """Take a definition in, unless that is too much; return whether it is there."""
        outline = self._outlines[target.path]
        if outline is None or target.path == self._path:
            return False
        for definition in outline.definitions[target.name]:
            if definition.first in self._chosen.get(target.path, ()):
                continue
            if not _may_matter(definition) or not self._take(target.path, definition):
                return False
            self._waiting.append((target.path, definition, self._depth))
        return True

    def _take(self, path: str, definition: Definition) -> bool:
        """Take a statement of a file in, unless that is too much."""
        size = len(definition.text)
        if size <= self._left:
            self._left -= size
            self._chosen.setdefault(path, {})[definition.first] = definition
            return True
        return False

    def _outline(self, path: str | None) -> Outline | None:
        if path is None:
            return None
        if path not in self._outlines:
            try:
                source = _source_of(read_source(path))
            except OSError:
                source = _Source("", None)
            self._digests[path] = source.digest
            self._outlines[path] = source.outline
        return self._outlines[path]

    def unit(self) -> Unit:
        """Return what was chosen, with a name of its own for each class and each import."""
        own = self._outlines[self._path]
        assert own is not None
        bindings = self._bindings.get(self._path, {})
        names = _Names()
        for definition in _classes(own):
            names.take(definition, Target(self._path, definition))
        for known in own.imports:
            names.take(known.local, bindings.get(known.local, known.statement))
        paths = [path for path, chosen in self._chosen.items() if chosen]
        renamed = {path: self._renamed(path, names) for path in paths}
        slices = tuple(self._slice(path, renamed) for path in paths)
        return Unit(slices, _called_anew(bindings, {}, renamed), self._digests, self._path)

    def _renamed(self, path: str, names: _Names) -> dict[str, str]:
        """Return new names for what another file means something else by."""
        meant: dict[str, object] = {
            name: Target(path, name)
            for definition in self._chosen[path].values()
            if definition.is_class
            for name in definition.names
        }
        for known in self._unlinked(path):
            meant.setdefault(known.local, known.statement)
        for local, target in self._bindings.get(path, {}).items():
            meant.setdefault(local, target)
        found: dict[str, str] = {}
        for name, meaning in meant.items():
            own = names.take(name, meaning)
            if own != name and "." not in name:
                found[name] = own
        return found

    def _unlinked(self, path: str) -> Iterator[Import]:
        """Yield the imports of a slice that are of no file of the project."""
        outline, used = self._outlines[path], self._used.get(path, set())
        bindings = self._bindings.get(path, {})
        assert outline is not None
        for known in outline.imports:
            is_used = known.name != STAR and known.local.partition(".")[0] in used
            if is_used and known.local not in bindings:
                yield known

    def _slice(self, path: str, renamed: Mapping[str, Mapping[str, str]]) -> Slice:
        outline = self._outlines[path]
        assert outline is not None
        numbers = sorted(
            {
                number
                for definition in self._chosen[path].values()
                for number in range(definition.first, definition.last + 1)
            }
        )
        own = renamed[path]
        imports = [
            replace(known, local=own.get(known.local, known.local)).statement + "\n"
            for known in self._unlinked(path)
        ]
        body = "".join(outline.lines[number - 1] for number in numbers)
        for old, new in own.items():
            body = re.sub(rf"(?<![\w.]){re.escape(old)}(?!\w)", new, body)
        text = "".join((*imports, body))
        bindings = _called_anew(self._bindings.get(path, {}), own, renamed)
        return Slice(path, text, (*(0 for _ in imports), *numbers), bindings)


def _may_matter(definition: Definition) -> bool:
    """Return whether a definition is short, or may be about tensors, by its words."""
    is_short = definition.last - definition.first < _FEW_LINES
    return is_short or not _WORDS.isdisjoint(definition.words)


def _classes(outline: Outline) -> Iterator[str]:
    for name, definitions in outline.definitions.items():
        if any(definition.is_class for definition in definitions):
            yield name


def _called_anew(
    bindings: Mapping[str, Target],
    own: Mapping[str, str],
    renamed: Mapping[str, Mapping[str, str]],
) -> dict[str, Target]:
    return {
        own.get(local, local): Target(path, renamed.get(path, {}).get(name, name))
        for local, (path, name) in bindings.items()
    }


class _Names:
    """What each name means: classes and imports are known by their names in all that is read."""

    def __init__(self) -> None:
        self._meanings: dict[str, object] = {}

    def take(self, name: str, meaning: object) -> str:
        """Return the name for a meaning, another one where it means something else already."""
        free, number = name, 1
        while self._meanings.setdefault(free, meaning) != meaning:
            number += 1
            free = f"{name}_{number}"
        return free
