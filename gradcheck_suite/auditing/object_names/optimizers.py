"""The optimizers of a run, and what backward has done to the gradients of their parameters."""

from __future__ import annotations

import itertools
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from torch.optim import Optimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor, nn

    from gradcheck_suite.auditing.call_sites import CallSite  # noqa: TC004 - nobody asks for the types of fields

__all__ = [
    "GradientState",
    "Optimizers",
    "ParameterModules",
    "Schedule",
    "Schedules",
    "changes_since",
    "innermost_optimizer",
    "parameters_of",
]

GradientState: TypeAlias = "tuple[list[Tensor], list[tuple[int, int]] | None]"
"""Parameters, and the identity of the gradient of each, 0 for None, and its version; None where no
parameter has a gradient."""


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """Return the parameters that ``optimizer`` has now."""
    found: list[Tensor] = []
    for group in optimizer.param_groups:
        found += group["params"]
    return found


def innermost_optimizer(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer that this one wraps, as libraries do, or itself if it wraps none.

    What wraps another holds it, and gives its parameter groups for its own.

    >>> import torch
    >>> class Wrapper(torch.optim.Optimizer):
    ...     def __init__(self, inner):
    ...         self.inner = inner
    ...         self.param_groups = inner.param_groups
    >>> inner = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    >>> innermost_optimizer(Wrapper(Wrapper(inner))) is inner
    True
    """
    for _ in range(_MOST_WRAPPERS):
        groups = getattr(optimizer, "param_groups", None)
        inner = next(
            (
                held
                for held in list(getattr(optimizer, "__dict__", {}).values())
                if isinstance(held, Optimizer) and getattr(held, "param_groups", ()) is groups
            ),
            None,
        )
        if inner is None:
            break
        optimizer = inner
    return optimizer


def _with_wrapped(optimizer: Optimizer) -> tuple[Optimizer, Optimizer]:
    return optimizer, innermost_optimizer(optimizer)


_MOST_WRAPPERS = 8
"""Of wrappers one in another, so many are looked through: two that hold each other end it."""


@dataclass(slots=True)
class Schedule:
    """A learning-rate scheduler that was made in the audit.

    Attributes:
        reference: the scheduler.
        optimizer: whose rates it sets.
        kinds: the classes of both.
        made_at: where it was made.
        missed: how many steps of the optimizer were watched while it was not stepped.
    """

    reference: weakref.ref[Any]
    optimizer: weakref.ref[Optimizer]
    kinds: tuple[str, str]
    made_at: CallSite | None
    missed: int = 0


class Schedules:
    """Knows every scheduler that was made in the audit, and which of them were stepped.

    Attributes:
        unstepped: those that were not, nor by another one that they are a part of.
        running: the optimizers of those that were.
    """

    def __init__(self, on_new: Callable[[], object]) -> None:
        self._on_new = on_new
        self.unstepped: list[Schedule] = []
        self.running: list[weakref.ref[Optimizer]] = []

    def made(self, scheduler: Any, parts: Iterable[Any], site: CallSite | None) -> None:
        """Know this scheduler, and that it steps its parts itself."""
        own = set(map(id, parts))
        optimizer = innermost_optimizer(scheduler.optimizer)
        kinds = (type(scheduler).__name__, type(optimizer).__name__)
        made = Schedule(weakref.ref(scheduler), weakref.ref(optimizer), kinds, site)
        self.unstepped = [each for each in self.unstepped if id(each.reference()) not in own]
        self.unstepped.append(made)
        self._on_new()

    def count_of(self, optimizer: Optimizer) -> int:
        """Return how many of them set the rates of this optimizer."""
        made = [*(each.optimizer for each in self.unstepped), *self.running]
        return sum(each() is optimizer for each in made)

    def stepped(self, scheduler: Any) -> None:
        """Note that this scheduler was stepped."""
        waiting: list[Schedule] = []
        for each in self.unstepped:
            if each.reference() is scheduler:
                self.running.append(each.optimizer)
            else:
                waiting.append(each)
        self.unstepped = waiting


class Optimizers:
    """Knows every optimizer that was made, cleared or stepped in the audit.

    Args:
        model: the audited model, whose parameters count as known; None for none in particular.
        only: look at these optimizers and no other; None means every one.

    Attributes:
        on_new: called when an optimizer is seen for the first time.
        without_backward: the identities of those that are told of as stepping without a backward.
        cut_off: the identities of those that are told of as cut off from their loss altogether.
        bare_at: the number of the last backward that began with no gradient at all.
        replaced: the identities of the parameters that are told of as no longer the model's.
        parameter_modules: in which modules parameters have been found.
    """

    def __init__(self, model: nn.Module | None, only: Iterable[Optimizer] | None) -> None:
        self._model = None if model is None else weakref.ref(model)
        self._only: weakref.WeakSet[Optimizer] | None = None
        if only is not None:
            self._only = weakref.WeakSet(same for each in only for same in _with_wrapped(each))
        # By identity: an optimizer may define equality, and weak sets of such would lose some.
        self._known: dict[int, weakref.ref[Optimizer]] = {}
        self._numbers: dict[int, int] = {}
        self._next = itertools.count()
        self.on_new: Callable[[], object] | None = None
        self.without_backward: set[int] = set()
        self.cut_off: set[int] = set()
        self.replaced: set[int] = set()
        self.parameter_modules = ParameterModules()
        self.bare_at = -1
        for optimizer in self._only or ():
            self.note(innermost_optimizer(optimizer))

    def noted(self, optimizer: Optimizer) -> Optimizer | None:
        """Know this optimizer, or what it wraps; return it, or None where the audit looks past it.

        What was made or has stepped by torch's own methods is known as itself.
        """
        if id(optimizer) not in self._known:
            optimizer = innermost_optimizer(optimizer)
            self.note(optimizer)
        return optimizer if self._only is None or optimizer in self._only else None

    def note(self, optimizer: Optimizer) -> bool:
        """Know this optimizer from now on, and return whether the audit looks at it."""
        key = id(optimizer)
        if key not in self._known:
            known = self._known
            self._known[key] = weakref.ref(optimizer, lambda _: known.pop(key, None))
            self._numbers[key] = next(self._next)
            if self.on_new is not None:
                self.on_new()
        return self._only is None or optimizer in self._only

    def number_of(self, optimizer: Optimizer) -> int:
        """Return a number for this optimizer that no other one has, even after it is gone."""
        if id(optimizer) not in self._known:
            self.note(optimizer)
        return self._numbers[id(optimizer)]

    @property
    def any_known(self) -> bool:
        """Return whether there is a model or an optimizer that the audit looks at."""
        return self._model is not None or bool(self._known)

    @property
    def count(self) -> int:
        """The number of those that live."""
        return len(self._known)

    def known(self) -> list[Optimizer]:
        """Return the optimizers that live, in the order in which they were first seen."""
        known = []
        for reference in list(self._known.values()):
            optimizer = reference()
            if optimizer is not None:
                known.append(optimizer)
        return known

    def owners(self, parameter: Tensor) -> list[Optimizer]:
        """Return the known optimizers that have ``parameter`` in one of their groups."""
        return [
            optimizer
            for optimizer in self.known()
            if any(candidate is parameter for candidate in parameters_of(optimizer))
        ]

    def parameters(self) -> list[Tensor]:
        """Return every parameter of the known optimizers and of the model, each once."""
        optimizers = self.known()
        if not optimizers and self._model is None:
            return []
        if len(optimizers) == 1 and self._model is None:
            return parameters_of(optimizers[0])
        found = {id(tensor): tensor for each in optimizers for tensor in parameters_of(each)}
        model = None if self._model is None else self._model()
        if model is not None:
            found.update((id(tensor), tensor) for tensor in model.parameters())
        return list(found.values())

    def gradients(self) -> GradientState:
        """Return what the known parameters have for gradients now."""
        parameters = self.parameters()
        for parameter in parameters:
            if parameter.grad is not None:
                break
        else:
            return parameters, None
        return parameters, [
            (0, 0) if (gradient := parameter.grad) is None else (id(gradient), gradient._version)  # noqa: SLF001 - as below
            for parameter in parameters
        ]


def changes_since(before: GradientState) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the parameters whose gradient is another tensor now, and those that were added to."""
    parameters, states = before
    if states is None:
        return tuple([each for each in parameters if each.grad is not None]), ()
    created = []
    accumulated = []
    for parameter, (identity, version) in zip(parameters, states, strict=True):
        gradient = parameter.grad
        if gradient is None:
            continue
        if id(gradient) != identity:
            created.append(parameter)
        elif gradient._version != version:  # noqa: SLF001 - `version_of`, spared a call
            accumulated.append(parameter)
    return tuple(created), tuple(accumulated)


class ParameterModules:
    """Remembers where parameters are registered; keeps neither them nor the modules.

    To find a parameter's module takes a search through all that Python keeps. To see whether it is
    still there takes a look at that module alone.

    >>> from torch import nn
    >>> known, layer = ParameterModules(), nn.Linear(2, 2)
    >>> known.note(layer.weight, layer)
    >>> known.has(layer.weight), known.has(layer.bias)
    (True, False)
    >>> layer.weight = nn.Parameter(layer.weight.detach())
    >>> known.has(layer.weight)
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
