"""Find the tensors in whatever was given, and where backward starts for each."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias

import torch
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from gradcheck_suite.errors import UsageError
from gradcheck_suite.graph.trace.leaves import plain_shape
from gradcheck_suite.reporting.text import plural, visible

__all__ = ["FoundRoots", "Start", "find_roots"]

_Source: TypeAlias = "torch.Tensor | GradientEdge | Node"
_OPAQUE = (
    *(str, bytes, bytearray, memoryview, int, float, complex, range),
    *(type, FunctionType, MethodType, ModuleType),
    *(torch.nn.Module, torch.optim.Optimizer, torch.storage.UntypedStorage, Iterator),
)
_PASSED = "the tensor you passed"
_NAMES_SHOWN = 5
_NAME_LENGTH = 80


@dataclass(frozen=True, slots=True)
class Start:
    """Where backward starts for one root."""

    name: str
    node: Node
    output_index: int
    shape: tuple[int, ...] | None
    dtype: torch.dtype | None


@dataclass(frozen=True, slots=True)
class FoundRoots:
    """The roots in the order in which they were met, and the names of tensors without a graph."""

    starts: tuple[Start, ...]
    ignored: tuple[str, ...]


def find_roots(given: object, *, called: str = _PASSED) -> FoundRoots:
    """Find every tensor in ``given`` that requires grad.

    Looks into mappings, other collections, dataclasses and the attributes of other objects, each
    object once. A tensor met under two names keeps the first. ``called`` is the name of a tensor
    that is not within anything.

    Raises:
        UsageError: ``given`` is a module or a generator, holds no tensor, or none with a graph.
    """
    if type(given) is torch.Tensor and given.requires_grad:
        return FoundRoots((_start_at(called, given),), ())
    _refuse(given, called)
    starts: list[Start] = []
    ignored: list[tuple[str, torch.Tensor]] = []
    for name, source in _sources(given, called):
        if isinstance(source, torch.Tensor):
            if not source.requires_grad:
                ignored.append((name, source))
                continue
            start = _start_at(name, source)
        elif isinstance(source, GradientEdge):
            start = Start(name, source.node, source.output_nr, None, None)
        else:
            start = Start(name, source, 0, None, None)
        starts.append(start)
    if not starts:
        raise UsageError(_nothing_to_trace(given, ignored, called))
    return FoundRoots(tuple(starts), tuple(name for name, _ in ignored))


def _start_at(name: str, root: torch.Tensor) -> Start:
    edge = get_gradient_edge(root)
    return Start(name, edge.node, edge.output_nr, plain_shape(root), root.dtype)


def _refuse(given: object, called: str) -> None:
    asked = "trace_graph expected tensors, got" if called == _PASSED else f"{called} is"
    give = _verb(called)
    if isinstance(given, torch.nn.Module):
        example = (
            "trace_graph(model(x), model=model)" if called == _PASSED else "return model(x), model"
        )
        raise UsageError(
            f"{asked} the module {type(given).__name__}. A module has no graph until it is called: "
            f"{give} what it returns, and the module for its names, as in {example}"
        )
    if isinstance(given, Iterator):
        raise UsageError(
            f"{asked} a {type(given).__name__}, which could be read only once. "
            f"{give.capitalize()} list(...) of it"
        )
    if isinstance(given, type) or (callable(given) and not isinstance(given, torch.Tensor)):
        if isinstance(given, Node) or not isinstance(given, (type, FunctionType, MethodType)):
            return
        name = getattr(given, "__qualname__", "it")
        raise UsageError(
            f"{asked} {visible(name)}, which is not a tensor but makes them: call it and {give} "
            "what it returns"
        )


def _verb(called: str) -> str:
    return "pass" if called == _PASSED else "return"


def _sources(given: object, called: str) -> Iterator[tuple[str, _Source]]:
    """Yield each tensor in ``given`` once, with its path, in the order of the containers."""
    seen: set[int] = set()
    # Each value is kept alive by the container that it came from, so that ids stay unique; but
    # a mapping may make its values anew, hence this list.
    alive: list[object] = []
    pending: list[tuple[str, object]] = [("", given)]
    while pending:
        name, value = pending.pop()
        if value is None or isinstance(value, _OPAQUE) or id(value) in seen or _is_array(value):
            continue
        seen.add(id(value))
        alive.append(value)
        if isinstance(value, (torch.Tensor, GradientEdge, Node)):
            yield name or called, value
        else:
            pending.extend(reversed(_members(name, value)))


def _is_array(value: object) -> bool:
    return hasattr(value, "__array__") and not isinstance(value, torch.Tensor)


def _members(name: str, value: Any) -> list[tuple[str, object]]:
    if isinstance(value, Mapping):
        return [(f"{name}[{_key(key)}]", member) for key, member in value.items()]
    if isinstance(value, tuple) and (fields := getattr(value, "_fields", None)):
        return [(_attribute(name, field), getattr(value, field)) for field in fields]
    if isinstance(value, Sequence):
        return [(f"{name}[{index}]", member) for index, member in enumerate(value)]
    if isinstance(value, Collection):
        return [(f"{name}{{{index}}}", member) for index, member in enumerate(value)]
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return [(_attribute(name, field), getattr(value, field, None)) for field in names]
    attributes = dict(getattr(value, "__dict__", {}))
    for owner in type(value).__mro__:
        slots = owner.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            attributes.setdefault(slot, getattr(value, slot, None))
    return [(_attribute(name, attribute), member) for attribute, member in attributes.items()]


def _attribute(name: str, attribute: str) -> str:
    return f"{name}.{attribute}" if name else attribute


def _key(key: object) -> str:
    if isinstance(key, (str, int, float, bool)):
        return _short(repr(key))
    return f"<{type(key).__name__}>"


def _short(text: str) -> str:
    text = visible(text)
    return text if len(text) <= _NAME_LENGTH else text[: _NAME_LENGTH - 1] + "…"


def _nothing_to_trace(given: object, ignored: list[tuple[str, torch.Tensor]], called: str) -> str:
    kind = type(given).__name__
    what = "what trace_graph was given" if called == _PASSED else called
    give = _verb(called)
    if not ignored:
        return (
            f"there is no tensor in {what} ({_short(kind)}). {give.capitalize()} the loss, "
            "or a list, dict or object that holds tensors"
        )
    only = ignored[0][1]
    one, some = (
        ("the tensor given to trace_graph", "given to trace_graph")
        if called == _PASSED
        else (called, f"in {called}")
    )
    subject = (
        f"{one} ({_described(only)}) has no graph"
        if only is given
        else f"none of the {plural(len(ignored), 'tensor')} {some} has a graph: "
        + ", ".join(f"{name} ({_described(tensor)})" for name, tensor in ignored[:_NAMES_SHOWN])
        + (", …" if len(ignored) > _NAMES_SHOWN else "")
    )
    if all(not _can_require_grad(tensor) for _, tensor in ignored):
        return (
            f"{subject}. Only floating-point and complex tensors can have one; "
            f"{give} the loss, not labels or indices"
        )
    return (
        f"{subject}: requires_grad is False, expected True. It was made from tensors that don't "
        "require grad, under torch.no_grad() or inference_mode(), or it was detached; "
        f"{give} the loss as forward returned it"
    )


def _can_require_grad(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _described(tensor: torch.Tensor) -> str:
    shape = plain_shape(tensor)
    return (
        f"{str(tensor.dtype).removeprefix('torch.')}, shape {shape if shape is not None else '?'}"
    )
