"""Which modules own a parameter, found on suspicion through the garbage collector."""

from __future__ import annotations

import inspect
import linecache
import re
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from gradcheck_suite._runtime.frames import definition_line
from gradcheck_suite.auditing.call_sites import kind_of_file
from gradcheck_suite.auditing.object_names.heap import SearchEndedError
from gradcheck_suite.auditing.object_names.optimizers import parameters_of
from gradcheck_suite.auditing.object_names.tensor_names import variable_of, written
from gradcheck_suite.findings import Location

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gradcheck_suite.auditing.object_names.heap import Heap

__all__ = ["ModuleTree", "assignment_of", "forced_at", "forward_of"]

_PLAIN = (list, tuple, dict, set, deque)
_DEEP = 3
"""How many plain containers, one in the other, are entered from that in an attribute to find
modules. A bound on cost."""


class ModuleTree:
    """Every module that lives now, and which of them holds which. Keep it for one look only.

    Empty where there is no time left for searches.

    Attributes:
        modules: all of them.
        owned: the identities of what any optimizer owns, known to the audit or not.
        is_whole: whether there was time for the search.
    """

    def __init__(self, heap: Heap) -> None:
        self.modules: list[nn.Module] = []
        self.owned: set[int] = set()
        self.is_whole = False
        with suppress(SearchEndedError):
            for thing in heap.instances(nn.Module, Optimizer):
                if issubclass(type(thing), nn.Module):
                    self.modules.append(thing)
                elif "param_groups" in thing.__dict__:
                    self.owned.update(map(id, parameters_of(thing)))
            self.is_whole = True
        self._parents: dict[int, list[tuple[nn.Module, str]]] = {}
        self._owners: dict[int, list[tuple[nn.Module, str]]] = {}
        for module in self.modules:
            for name, child in module.__dict__.get("_modules", {}).items():
                if child is not None:
                    self._parents.setdefault(id(child), []).append((module, name))
            for name, tensor in module.__dict__.get("_parameters", {}).items():
                if tensor is not None:
                    self._owners.setdefault(id(tensor), []).append((module, name))

    def owners(self, parameter: Tensor) -> list[tuple[nn.Module, str]]:
        """Return the modules that have ``parameter`` registered, with its name there."""
        return self._owners.get(id(parameter), [])

    def parent(self, module: nn.Module) -> tuple[nn.Module, str] | None:
        """Return the first module that has this one registered, with its name there."""
        found = self._parents.get(id(module))
        return found[0] if found else None

    def path(self, module: nn.Module) -> str:
        """Return what the outermost module calls this one; its class for the outermost itself."""
        names: list[str] = []
        seen = {id(module)}
        current = module
        while (up := self.parent(current)) is not None and id(up[0]) not in seen:
            current = up[0]
            seen.add(id(current))
            names.append(up[1])
        return ".".join(reversed(names)) or type(module).__name__

    def outermost(self, module: nn.Module) -> nn.Module:
        """Return the module that this one is in and that is in no other."""
        *_, outermost = self.ancestry(module)
        return outermost

    def ancestry(self, module: nn.Module) -> Iterator[nn.Module]:
        """Yield this module and those that it is in, the outermost last."""
        seen = {id(module)}
        yield module
        while (up := self.parent(module)) is not None and id(up[0]) not in seen:
            module = up[0]
            seen.add(id(module))
            yield module

    def name(self, module: nn.Module) -> str:
        """Return what the program calls a module: by a variable, if a running function has one."""
        root = self.outermost(module)
        start = variable_of(root) or type(root).__name__
        return start if root is module else written(f"{start}.{self.path(module)}")

    def siblings(self, module: nn.Module) -> list[nn.Module]:
        """Return the others in the same list or dict of modules."""
        up = self.parent(module)
        if up is None:
            return []
        holder = up[0]
        if not isinstance(holder, (nn.ModuleList, nn.ModuleDict)):
            return self.siblings(holder)
        return [child for child in holder.children() if child is not module]

    def in_plain_containers(self) -> Iterator[tuple[nn.Module, str, object, nn.Module | Tensor]]:
        """Yield modules and tensors in plain containers: holder, attribute, container, item."""
        for module in self.modules:
            for name, value in list(vars(module).items()):
                # Torch's own registers and hooks begin with an underscore, and so may a user's.
                if type(value) in _PLAIN and value and name not in _REGISTERS:
                    for item in _inside(value, _DEEP):
                        yield module, name, value, item


_REGISTERS = frozenset(vars(nn.Module())) - {"training"}


def _inside(container: Any, deep: int) -> Iterator[nn.Module | Tensor]:
    items: Iterable[Any] = container.values() if type(container) is dict else container
    for item in list(items)[:1000]:
        if issubclass(type(item), (nn.Module, nn.Parameter)):
            yield item
        elif type(item) in _PLAIN and deep:
            yield from _inside(item, deep - 1)


def forward_of(module: nn.Module) -> Location | None:
    """Return where the forward of a module of the user's is defined."""
    function = inspect.unwrap(type(module).forward)
    code = getattr(function, "__code__", None)
    if code is None or kind_of_file[code.co_filename]:
        return None
    name = getattr(code, "co_qualname", code.co_name)
    return Location(path=code.co_filename, line=definition_line(code), function=name)


def assignment_of(module: nn.Module, name: str) -> Location | None:
    """Return where a class of the user's first assigns ``self.name``."""
    for owner in type(module).__mro__:
        try:
            lines, first = inspect.getsourcelines(owner)
        except (OSError, TypeError):
            continue
        file = inspect.getsourcefile(owner)
        if file is None or kind_of_file[file]:
            continue
        wanted = re.compile(rf"\.{re.escape(name)}\s*(:[^=]+)?=[^=]")
        for offset, line in enumerate(lines):
            if wanted.search(line):
                return Location(path=file, line=first + offset, function=owner.__qualname__)
    return forward_of(module)


def forced_at(place: Location) -> Location | None:
    """Return the last line before this one, in its function, that sets requires_grad."""
    for number in range(place.line, max(place.line - 40, 0), -1):
        text = linecache.getline(place.path, number)
        if re.search(r"requires_grad_\(|requires_grad\s*=\s*True|Variable\(", text):
            return Location(path=place.path, line=number, function=place.function)
        if re.match(r"\s*(async\s+)?def\s", text):
            return None
    return None
