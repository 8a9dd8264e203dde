"""Which module a parameter was found in, so that the next who asks needs no search for it."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["Homes"]


class Homes:
    """Remembers where parameters are registered; keeps neither them nor the modules.

    To find a parameter's module takes a search through all that Python keeps. To see whether it is
    still there takes a look at that module alone.

    >>> from torch import nn
    >>> homes, layer = Homes(), nn.Linear(2, 2)
    >>> homes.note(layer.weight, layer)
    >>> homes.has(layer.weight), homes.has(layer.bias)
    (True, False)
    >>> layer.weight = nn.Parameter(layer.weight.detach())
    >>> homes.has(layer.weight)
    False
    """

    def __init__(self) -> None:
        self._modules: dict[int, weakref.ref[nn.Module]] = {}

    def note(self, parameter: Tensor, module: nn.Module) -> None:
        """Remember that ``module`` has ``parameter`` registered."""
        self._modules[id(parameter)] = weakref.ref(module)

    def has(self, parameter: Tensor) -> bool:
        """Return whether the module that ``parameter`` was found in lives and still has it."""
        reference = self._modules.get(id(parameter))
        module = None if reference is None else reference()
        if module is None:
            return False
        return any(each is parameter for each in module._parameters.values())  # noqa: SLF001 - this module's own, without those of its children
