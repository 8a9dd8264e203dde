"""Walk the modules within a model, under every name that each has."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["Member", "Named", "members_of", "modules_within", "paths_in"]

Named: TypeAlias = "tuple[str, torch.nn.Module]"
"""The path of a module, "" for the outermost, and it."""
Member: TypeAlias = "tuple[str, str, torch.Tensor]"
"""Kind ("parameter" or "buffer"), name and tensor."""
_Line: TypeAlias = "tuple[torch.nn.Module, _Line | None]"
"""A module with those that it lies in, the innermost first."""

_Module = torch.nn.Module


def modules_within(root: torch.nn.Module, prefix: str = "") -> list[Named]:
    """Return a module and those within it, in the order of ``Module.named_modules``.

    One that has several names comes once for each, as with ``remove_duplicate=False``; but one
    that lies within itself, of which torch would find no end, is not entered again there.
    """
    usual = _Module.named_modules
    found: list[Named] = []
    seen: set[int] = set()
    pending: list[tuple[str, torch.nn.Module, _Line | None]] = [(prefix, root, None)]
    while pending:
        path, module, above = pending.pop()
        if id(module) in seen and _lies_within(module, above):
            continue
        seen.add(id(module))
        if type(module).named_modules is not usual:
            found += module.named_modules(prefix=path, remove_duplicate=False)
            continue
        found.append((path, module))
        children = module._modules  # noqa: SLF001 - torch's own way
        if children:
            line = (module, above)
            start = f"{path}." if path else ""
            pending += [
                (start + name, child, line)
                for name, child in reversed(children.items())
                if child is not None
            ]
    return found


def _lies_within(module: torch.nn.Module, line: _Line | None) -> bool:
    while line is not None:
        if line[0] is module:
            return True
        line = line[1]
    return False


def paths_in(trees: Iterable[tuple[torch.nn.Module, Iterable[Named]]]) -> dict[int, str]:
    """Name each module by ``id``: by the first name that it has in the first that it is in."""
    paths: dict[int, str] = {}
    for _, modules in trees:
        for path, module in modules:
            paths.setdefault(id(module), path)
    return paths


def members_of(root: torch.nn.Module, modules: Sequence[Named]) -> Iterator[Member]:
    """Yield the parameters and buffers of a module.

    Args:
        root: the module.
        modules: those within it, as ``modules_within`` returns them; the first brings the prefix
            of all names.
    """
    if not _names_as_usual(root):
        prefix = modules[0][0]
        for name, parameter in root.named_parameters(prefix, remove_duplicate=False):
            yield "parameter", name, parameter
        for name, buffer in root.named_buffers(prefix, remove_duplicate=False):
            yield "buffer", name, buffer
        return
    for path, module in modules:
        for name, tensor in module._parameters.items():  # noqa: SLF001 - torch's own way
            if tensor is not None:
                yield "parameter", f"{path}.{name}" if path else name, tensor
    for path, module in modules:
        for name, held in module._buffers.items():  # noqa: SLF001 - torch's own way
            if held is not None:
                yield "buffer", f"{path}.{name}" if path else name, held


def _names_as_usual(root: torch.nn.Module) -> bool:
    """Return whether a module leaves it to torch to name what is in it; FSDP, for one, does not."""
    kind = type(root)
    return all(
        getattr(kind, name) is getattr(_Module, name)
        for name in ("named_parameters", "named_buffers", "_named_members")
    )
