"""What a program has declared to stay as it is, and what it was then."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gradcheck_suite._runtime.memory import is_readable
from gradcheck_suite._torch_compat import version_of
from gradcheck_suite.auditing.saved_tensors.checksums import fingerprint, same_content
from gradcheck_suite.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from gradcheck_suite.auditing.object_names.tensor_names import ParameterNames
    from gradcheck_suite.auditing.saved_tensors.checksums import Fingerprint

__all__ = ["Frozen", "FrozenTensor"]


class FrozenTensor:
    """A tensor that is to stay as it is; it is not kept alive.

    Attributes:
        name: what it is called.
        is_buffer: whether no optimizer is meant for it.
        since: the time when it was what it should be.
    """

    __slots__ = ("_content", "_gradient", "_place", "_tensor", "is_buffer", "name", "since")

    def __init__(self, name: str, tensor: Tensor, since: int) -> None:
        self.name = name
        self.is_buffer = not isinstance(tensor, nn.Parameter)
        self.since = since
        self._tensor = weakref.ref(tensor)
        self._content: Fingerprint | None = fingerprint(tensor)
        self._place = _place_of(tensor)
        self._gradient = _gradient_of(tensor)

    def tensor(self) -> Tensor | None:
        """Return the tensor, if it lives."""
        return self._tensor()

    def got_gradient(self) -> bool:
        """Return whether it has another gradient than before, one that is not all zero."""
        tensor = self._tensor()
        if tensor is None:
            return False
        gradient = _gradient_of(tensor)
        if gradient == self._gradient:
            return False
        self._gradient = gradient
        latest = tensor.grad
        return latest is not None and is_readable(latest) and bool(latest.any())

    def has_changed(self, *, thoroughly: bool) -> bool:
        """Return whether its contents are others; ``thoroughly`` also where nothing tells of it."""
        tensor = self._tensor()
        if tensor is None or self._content is None:
            return False
        place = _place_of(tensor)
        if place == self._place and not thoroughly:
            return False
        self._place = place
        return not same_content(self._content, tensor)


class Frozen:
    """Holds what was declared; nearly always nothing.

    Attributes:
        tensors: what was declared and not told of yet.
    """

    def __init__(self) -> None:
        self.tensors: list[FrozenTensor] = []

    def add(
        self, what: tuple[Any, ...], model: nn.Module | None, names: ParameterNames, since: int
    ) -> None:
        """Take note of modules, tensors, and patterns of the names that ``model`` gives them.

        Raises:
            UsageError: there is nothing of that kind, or a pattern fits nothing.
        """
        found: dict[int, tuple[str, Tensor]] = {}
        for each in what:
            for name, tensor in _tensors_of(each, model):
                found.setdefault(id(tensor), (name, tensor))
        if not found:
            raise UsageError(
                "frozen: expected modules, parameters or patterns of names, as in "
                "frozen(model.encoder); got nothing that has a parameter or a buffer"
            )
        known = {id(each.tensor()) for each in self.tensors}
        for key, (name, tensor) in found.items():
            if key not in known:
                self.tensors.append(FrozenTensor(names.of(tensor) or name, tensor, since))


def _tensors_of(what: Any, model: nn.Module | None) -> Iterator[tuple[str, Tensor]]:
    if isinstance(what, nn.Module):
        yield from _named(what)
    elif isinstance(what, torch.Tensor):
        yield "a tensor", what
    elif isinstance(what, str):
        yield from _matching(what, model)
    elif isinstance(what, Iterable):
        for each in what:
            yield from _tensors_of(each, model)
    else:
        raise UsageError(
            "frozen: expected modules, parameters or patterns of names, as in "
            f"frozen(model.encoder); got {type(what).__name__}"
        )


def _matching(pattern: str, model: nn.Module | None) -> Iterator[tuple[str, Tensor]]:
    if model is None:
        raise UsageError(
            f"frozen: the pattern {pattern!r} needs a model to look for names in: "
            f"frozen({pattern!r}, model=model)"
        )
    named = list(_named(model))
    matching = [
        (name, tensor)
        for name, tensor in named
        if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")
    ]
    if not matching:
        some = ", ".join(name for name, _ in named[:5])
        raise UsageError(
            f"frozen: no parameter and no buffer of the {type(model).__name__} fits {pattern!r}; "
            f"its names are such as {some}"
        )
    yield from matching


def _named(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _place_of(tensor: Tensor) -> tuple[int, int]:
    try:
        return version_of(tensor), tensor.data_ptr()
    except (RuntimeError, NotImplementedError):  # made under inference_mode, or sparse
        return 0, 0


def _gradient_of(tensor: Tensor) -> tuple[int, int]:
    gradient = tensor.grad
    return (0, 0) if gradient is None else (id(gradient), version_of(gradient))
