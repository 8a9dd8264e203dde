"""Examples of modules and Functions: how to make one, and inputs to check its gradients with.

Nothing here needs torch, so that a package may decorate its classes at no cost. Whoever runs the
examples, as the pytest plugin does, asks ``registered_examples``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from gradcheck_suite.errors import UsageError

__all__ = ["CHECK_OPTIONS", "Example", "example", "registered_examples", "unknown_option"]

_T = TypeVar("_T")

CHECK_OPTIONS: Final = (
    "kwargs",
    "parameters",
    "dtype",
    "probes",
    "seed",
    "skip_outputs",
    "order",
    "full",
    "variations",
    "forward_mode",
    "batched",
    "compiled",
    "time_limit",
    "max_memory",
)
"""The keyword arguments of ``check_gradients``, known without loading torch."""


@dataclass(frozen=True, slots=True)
class Example:
    """What to check, and on which inputs.

    Attributes:
        target: a class of ``nn.Module`` or ``autograd.Function``, a module, or a function.
        make_inputs: returns inputs as ``check_gradients`` takes them.
        make: returns the module to check; by default a module class is called without arguments.
        name: tells several examples of one target apart.
        options: keyword arguments of ``check_gradients``.
    """

    target: Any
    make_inputs: Callable[[], Any]
    make: Callable[[], Any] | None = None
    name: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not callable(self.target):
            raise UsageError(
                "example: the target must be a module, a module class, an autograd.Function or a "
                f"function, got {self.target!r}"
            )
        if not callable(self.make_inputs):
            raise UsageError(
                f"example of {_called(self.target)}: make_inputs must be a function without "
                f"arguments that returns the inputs, got {self.make_inputs!r}; write "
                "@example(lambda: torch.randn(2, 3))"
            )
        if self.make is not None and not callable(self.make):
            raise UsageError(
                f"example of {_called(self.target)}: make must be a function without arguments "
                f"that returns the module, got {self.make!r}"
            )
        for option in self.options:
            if option not in CHECK_OPTIONS:
                raise UsageError(
                    unknown_option(
                        f"example of {_called(self.target)}",
                        option,
                        ("make", "name", *CHECK_OPTIONS),
                    )
                )


_EXAMPLES: list[Example] = []


def example(
    make_inputs: Callable[[], Any],
    *,
    make: Callable[[], Any] | None = None,
    name: str | None = None,
    **options: Any,
) -> Callable[[_T], _T]:
    """Give a module class, an ``autograd.Function`` or a function an example to be checked on.

    ``pytest --gradcheck-suite-modules=PACKAGE`` makes a test of each. The class itself comes back
    unchanged; several examples may be stacked.

    >>> class Scale:  # stands for a torch.nn.Module
    ...     pass
    >>> example(lambda: [1.0, 2.0], name="short")(Scale) is Scale
    True
    >>> registered_examples(__name__)[-1].name
    'short'

    Args:
        make_inputs: returns inputs as ``check_gradients`` takes them; called anew for each check,
            under a seed.
        make: returns the module to check, for a class that takes arguments.
        name: tells several examples of one target apart.
        options: keyword arguments of ``check_gradients``, such as ``order=2``.

    Raises:
        UsageError: something isn't callable, or there is no such option.
    """

    def register(target: _T) -> _T:
        _EXAMPLES.append(Example(target, make_inputs, make, name, options))
        return target

    return register


def registered_examples(package: str) -> tuple[Example, ...]:
    """Return the examples of what is defined in ``package`` or below it, in order of definition."""
    return tuple(
        known
        for known in _EXAMPLES
        if f"{getattr(known.target, '__module__', None) or ''}.".startswith(f"{package}.")
    )


def unknown_option(subject: str, name: str, known: tuple[str, ...]) -> str:
    """Say that ``subject`` has no argument ``name``, and which was probably meant.

    >>> unknown_option("example", "ordr", ("order", "full"))
    "example has no argument 'ordr'; did you mean 'order'?"
    """
    near = difflib.get_close_matches(name, known, n=1)
    advice = f"did you mean {near[0]!r}?" if near else f"it knows {', '.join(map(repr, known))}"
    return f"{subject} has no argument {name!r}; {advice}"


def _called(target: object) -> str:
    return getattr(target, "__qualname__", None) or type(target).__qualname__
