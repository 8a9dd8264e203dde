"""What the user calls a tensor."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch
from torch import nn

from gradcheck_suite.auditing.call_sites import innermost_frames, user_frames, variables_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from torch import Tensor

__all__ = ["ParameterNames", "listed", "local_name", "operation_words", "variable_of", "written"]

_LISTED = 5
"""Names that are listed before the dots. Chosen, for length."""

_FRAMES = 12
"""Frames of the user's, from the innermost out, whose variables are looked at, and items of a list
or tuple there. A bound on cost; a tensor is mostly named in the innermost."""

_CALLERS = 4
"""The user's frames, from the innermost, whose variables are asked for a module's name. A bound on
cost: a module is mostly called by who knows it."""

_WORDS = {
    "__iadd__": "+=",
    "__iand__": "&=",
    "__ifloordiv__": "//=",
    "__ilshift__": "<<=",
    "__imod__": "%=",
    "__imul__": "*=",
    "__ior__": "|=",
    "__ipow__": "**=",
    "__irshift__": ">>=",
    "__isub__": "-=",
    "__itruediv__": "/=",
    "__ixor__": "^=",
    "__setitem__": "an indexed assignment",
}


def operation_words(name: str) -> str:
    """Return an in-place operation as the user wrote it.

    >>> operation_words("__iadd__"), operation_words("add_")
    ('+=', 'add_()')
    """
    return _WORDS.get(name, f"{name}()")


class ParameterNames:
    """Finds the qualified name of a parameter or buffer."""

    def __init__(self, model: nn.Module | None = None) -> None:
        self.model = model

    def of(self, tensor: Tensor) -> str | None:
        """Return ``"layer.weight"`` for the memory of ``tensor``, or None.

        The audited model is asked first, then the modules that the running functions know.
        """
        wanted = _storage(tensor)
        if wanted is None:
            return None
        for module in self.modules():
            for named in (module.named_parameters, module.named_buffers):
                for name, candidate in named():
                    if _storage(candidate) == wanted:
                        return name
        return None

    def modules(self) -> Iterator[nn.Module]:
        """Yield the audited model, and the modules that the running functions know.

        Those in variables come first, then those that are attributes of their ``self``.
        """
        if self.model is not None:
            yield self.model
        seen: set[int] = {id(self.model)}
        known = [{**everywhere, **variables} for variables, everywhere in _some_frames()]
        owners = [getattr(variables.get("self"), "__dict__", {}) for variables in known]
        for variables in (*known, *owners):
            for value in list(variables.values()):
                if issubclass(type(value), nn.Module) and id(value) not in seen:
                    seen.add(id(value))
                    yield value  # pyright: ignore[reportReturnType]  # its type was just asked


def listed(names: Sequence[str]) -> str:
    """Write the first few of these names as code.

    >>> listed(["weight", "bias"])
    '`weight`, `bias`'
    """
    shown = ", ".join(f"`{name}`" for name in names[:_LISTED])
    return shown if len(names) <= _LISTED else f"{shown}, ..."


def written(path: str) -> str:
    """Return the name of a parameter as a program would write it.

    >>> written("model.layers.0.weight"), written("model._orig_mod.head.bias")
    ('model.layers[0].weight', 'model.head.bias')
    """
    return re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", path.replace("._orig_mod", ""))


def variable_of(module: nn.Module) -> str | None:
    """Return the variable that a running function has the module in.

    That may be an attribute of ``self``, or an entry of a dict.
    """
    frames = innermost_frames(_CALLERS)
    return next((name for frame in frames if (name := _name_in(frame, module)) is not None), None)


def _name_in(frame: FrameType, module: nn.Module) -> str | None:
    variables = variables_of(frame)
    inside = getattr(variables.get("self"), "__dict__", {})
    for names in (variables, inside, inside.get("_modules", {}), frame.f_globals):
        for name, value in list(names.items()):
            if value is module and name != "self":
                return str(name)
    for name, value in variables.items():
        if type(value) is dict and len(value) <= _FRAMES:
            for key, item in list(value.items()):
                if item is module:
                    return f"{name}[{key!r}]".replace("'", '"')
    return None


def local_name(tensor: Tensor) -> str | None:
    """Return the variable of a running function that holds exactly this memory, or None.

    One of the same shape comes before one of another, as for a transposed view.
    """
    wanted = _address(tensor)
    if wanted is None:
        return None
    return _name_at(lambda value: _address(value) == wanted) or _name_at(
        lambda value: _extent(value) == (wanted[0], wanted[1].numel())
    )


def _name_at(is_wanted: Callable[[object], bool]) -> str | None:
    for variables, _ in _some_frames():
        for name, value in variables.items():
            if name.startswith("__"):
                continue
            if is_wanted(value):
                return name
            if type(value) in (list, tuple) and len(value) <= _FRAMES:  # type: ignore[arg-type]
                for index, item in enumerate(value):  # type: ignore[arg-type, var-annotated]
                    if is_wanted(item):
                        return f"{name}[{index}]"
    return None


def _some_frames() -> Iterator[tuple[dict[str, object], dict[str, object]]]:
    for count, frame in enumerate(user_frames()):
        if count >= _FRAMES:
            return
        yield variables_of(frame), frame.f_globals


def _storage(tensor: object) -> int | None:
    if not issubclass(type(tensor), torch.Tensor):
        return None
    try:
        return tensor.untyped_storage().data_ptr() or None  # type: ignore[attr-defined]
    except (RuntimeError, NotImplementedError):
        return None


def _address(tensor: object) -> tuple[int, torch.Size] | None:
    if not issubclass(type(tensor), torch.Tensor):
        return None
    try:
        address: int = tensor.data_ptr()  # type: ignore[attr-defined]  # its type was just asked
    except (RuntimeError, NotImplementedError):
        return None
    return (address, tensor.shape) if address else None  # type: ignore[attr-defined]  # as above


def _extent(tensor: object) -> tuple[int, int] | None:
    found = _address(tensor)
    # Of a tensor with holes, as many elements may lie elsewhere.
    if found is None or not tensor.is_contiguous():  # type: ignore[attr-defined]  # a tensor
        return None
    return found[0], found[1].numel()
