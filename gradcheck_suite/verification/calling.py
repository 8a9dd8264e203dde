"""Turn a function or module and its inputs into a pure function of named tensors.

Every call gets fresh copies of every tensor and the same random draws, so that the user's
tensors, buffers and generators are only ever read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from torch import nn
from torch.func import functional_call

from gradcheck_suite.errors import UsageError
from gradcheck_suite.verification.arguments import (
    BoundMethod,
    describe,
    name_arguments,
    resolve_target,
    split_arguments,
)
from gradcheck_suite.verification.randomness import RandomState
from gradcheck_suite.verification.trees import leaves_with_paths, replace_leaves

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gradcheck_suite.verification.options import CheckOptions

__all__ = ["Arrangement", "Constant", "Output", "Subject", "Variable", "build_subject"]

_CHECKED = (torch.float32, torch.float64)

Arrangement: TypeAlias = Callable[
    [Sequence[torch.Tensor], Sequence[torch.Tensor]],
    tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]],
]
"""Gives variables and constants another place in memory or other values, differentiably."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A tensor with respect to which gradients are checked; ``value`` is our own copy."""

    name: str
    value: torch.Tensor
    kind: Literal["input", "parameter"]


@dataclass(frozen=True, slots=True)
class Constant:
    """A tensor that the function gets and that no gradient is checked for; our own copy."""

    name: str
    value: torch.Tensor
    kind: Literal["input", "parameter", "buffer"]


@dataclass(frozen=True, slots=True)
class Output:
    """One tensor that the function returned, under the expression that reaches it."""

    name: str
    tensor: torch.Tensor


class Subject:
    """A callable with its arguments, seen as a function of its variables.

    Attributes:
        title: what the user would call it.
        variables: the tensors that gradients are checked for.
        constants: the other tensors that it gets.
        not_covered: sentences on what is held constant.
        evaluations: how often it has been called.
    """

    def __init__(
        self,
        *,
        title: str,
        call: Callable[[_Given], object],
        variables: tuple[Variable, ...],
        constants: tuple[Constant, ...] = (),
        not_covered: tuple[str, ...],
        seed: int,
        cast: torch.dtype | None,
    ) -> None:
        self.title = title
        self.variables = variables
        self.constants = constants
        self.not_covered = not_covered
        self._seed = seed
        self._count = [0]
        self._arrangement: Arrangement | None = None
        self._call = call
        self._cast = cast
        self._randomness = RandomState.from_seed(seed)

    def __call__(self, values: Sequence[torch.Tensor]) -> list[Output]:
        """Call the function with these values for its variables.

        Raises:
            UsageError: it returns no tensor.
        """
        self._randomness.restore()
        self._count[0] += 1
        constants: Sequence[torch.Tensor] = [constant.value.clone() for constant in self.constants]
        if self._arrangement is not None:
            values, constants = self._arrangement(values, constants)
        result = self._call(_Given(values, constants))
        outputs = [
            Output(name, leaf)
            for name, leaf in leaves_with_paths(result, "output")
            if isinstance(leaf, torch.Tensor)
        ]
        if not outputs:
            raise UsageError(
                f"{self.title} returned {describe(result)}, which holds no tensor; return the "
                "tensors whose gradients are to be checked"
            )
        return outputs

    @property
    def evaluations(self) -> int:
        """How often the function has been called, here and at other points."""
        return self._count[0]

    def elsewhere(
        self,
        *,
        values: Sequence[torch.Tensor] | None = None,
        constants: Sequence[torch.Tensor] | None = None,
        arrangement: Arrangement | None = None,
    ) -> Subject:
        """Return the same function at another point, or with its tensors arranged differently.

        Args:
            values: for the variables, of any shape that the function takes.
            constants: for the constants.
            arrangement: what the variables and constants pass through before each call.
        """
        other = Subject(
            title=self.title,
            call=self._call,
            variables=tuple(
                Variable(variable.name, value.detach().clone(), variable.kind)
                for variable, value in zip(self.variables, values, strict=True)
            )
            if values is not None
            else self.variables,
            constants=tuple(
                Constant(constant.name, value.detach().clone(), constant.kind)
                for constant, value in zip(self.constants, constants, strict=True)
            )
            if constants is not None
            else self.constants,
            not_covered=self.not_covered,
            seed=self._seed,
            cast=self._cast,
        )
        other._count = self._count
        other._arrangement = arrangement
        return other

    def first_call(self) -> list[Output]:
        """Call the function at the given point; what it raises there arrives unchanged.

        Raises:
            UsageError: it fails only because its tensors were cast to another type.
        """
        values = [variable.value.clone().requires_grad_() for variable in self.variables]
        with torch.enable_grad():
            try:
                return [Output(known.name, known.tensor.detach().clone()) for known in self(values)]
            except RuntimeError as error:
                if self._cast is not None and "dtype" in str(error):
                    raise UsageError(
                        f"{self.title} does not run in {_name(self._cast)}: {error}. It probably "
                        "holds tensors of its own, which only dtype='native' leaves as they are"
                    ) from error
                raise


def build_subject(
    target: object,
    inputs: object,
    kwargs: Mapping[str, object] | None,
    options: CheckOptions,
) -> Subject:
    """Make a pure function of named tensors of what the user gave.

    Args:
        target: a function, a module, a bound method of a module or an ``autograd.Function`` class.
        inputs: a tensor, a tuple or list of positional arguments, or a dict of keyword arguments.
        kwargs: further keyword arguments.
        options: cast and parameters are obeyed here.

    Raises:
        UsageError: there is nothing to check, or it can't be called so.
    """
    call, module, signature_of, title = resolve_target(target)
    positional, keyword = split_arguments(inputs, kwargs)
    names = name_arguments(signature_of, positional, keyword, title)
    builder = _Builder(options)
    arguments = [builder.add(value, name) for value, name in zip(positional, names, strict=True)]
    keywords = {name: builder.add(value, name) for name, value in keyword.items()}
    state: dict[str, _Slot] = {}
    if module is not None:
        state = builder.add_state(module)
    builder.require_variables(title, module=module)

    def run(given: _Given) -> object:
        args = tuple(template(given) for template in arguments)
        named = {name: template(given) for name, template in keywords.items()}
        if module is None:
            return call(*args, **named)
        tensors = {name: slot(given) for name, slot in state.items()}
        return functional_call(module, tensors, args, named)

    return Subject(
        title=title,
        call=run,
        variables=tuple(builder.variables),
        constants=tuple(builder.constants),
        not_covered=(*builder.not_covered, *builder.shared_storage()),
        seed=options.seed,
        cast=options.cast,
    )


@dataclass(frozen=True, slots=True)
class _Given:
    """The tensors of one call."""

    values: Sequence[torch.Tensor]
    constants: Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Slot:
    """Where a tensor of an argument comes from: the variable or the constant of this index."""

    index: int
    varies: bool

    def __call__(self, given: _Given) -> torch.Tensor:
        return given.values[self.index] if self.varies else given.constants[self.index]


class _Builder:
    """Collects variables and remembers how to put them back into the arguments."""

    def __init__(self, options: CheckOptions) -> None:
        self.variables: list[Variable] = []
        self.constants: list[Constant] = []
        self.not_covered: list[str] = []
        self._originals: list[tuple[str, torch.Tensor]] = []
        self._seen: list[str] = []
        self._options = options
        self._floating: list[str] = []
        self._unsuited: list[str] = []

    def add(self, argument: object, name: str) -> Callable[[_Given], object]:
        """Return a function that makes the argument anew from the variables' values."""
        leaves = list(leaves_with_paths(argument, name))
        if not any(isinstance(leaf, torch.Tensor) for _, leaf in leaves):
            return lambda _given: argument
        slots = [
            self._slot(leaf, path, "input") if isinstance(leaf, torch.Tensor) else None
            for path, leaf in leaves
        ]

        def rebuild(given: _Given) -> object:
            remaining = iter(slots)

            def fill(leaf: object) -> object:
                slot = next(remaining)
                return leaf if slot is None else slot(given)

            return replace_leaves(argument, fill)

        return rebuild

    def add_state(self, module: nn.Module) -> dict[str, _Slot]:
        """Return where every parameter and buffer of the module comes from."""
        prefix = "owner." if isinstance(module, BoundMethod) else ""
        taken = {variable.name for variable in self.variables}
        slots: dict[str, _Slot] = {}
        for full_name, parameter in module.named_parameters():
            if isinstance(parameter, nn.parameter.UninitializedParameter):
                raise UsageError(
                    f"parameter {full_name} has no shape yet; call the lazy module once before "
                    "its gradients are checked"
                )
            name = full_name.removeprefix(prefix)
            shown = f"self.{name}" if name in taken else name
            if self._options.parameters:
                slots[full_name] = self._slot(parameter, shown, "parameter")
            else:
                slots[full_name] = self._constant(shown, self._copy(parameter), "parameter")
        if slots and not self._options.parameters:
            self.not_covered.append("the module's parameters were held constant (parameters=False)")
        for full_name, buffer in module.named_buffers():
            slots[full_name] = self._constant(full_name, self._copy(buffer), "buffer")
        return slots

    def _constant(
        self, name: str, value: torch.Tensor, kind: Literal["input", "parameter", "buffer"]
    ) -> _Slot:
        self.constants.append(Constant(name, value, kind))
        return _Slot(len(self.constants) - 1, varies=False)

    def require_variables(self, title: str, *, module: nn.Module | None) -> None:
        """Raise a UsageError that says why, if there is nothing to check."""
        if self.variables:
            return
        if self._floating and not self._unsuited:
            names = ", ".join(f"`{name}`" for name in self._floating[:5])
            raise UsageError(
                f"no input of {title} requires grad, so there is no gradient to check; set "
                f"requires_grad_() on the inputs to check ({names})"
            )
        kind = "inputs" if module is None else "inputs or parameters"
        details = f": {'; '.join(self.not_covered)}" if self.not_covered else ""
        seen = ", ".join(self._seen[:5]) or "no tensors"
        raise UsageError(
            f"{title} has no {kind} of type float32 or float64 to check{details}; "
            f"got {seen}. Give a floating-point tensor that requires grad, such as "
            "torch.randn(4, 3, requires_grad=True)"
        )

    def shared_storage(self) -> list[str]:
        """Say which inputs share memory: they are checked as if they did not."""
        lines = []
        for index, (name, tensor) in enumerate(self._originals):
            for other_name, other in self._originals[:index]:
                if _share_storage(tensor, other):
                    lines.append(
                        f"`{other_name}` and `{name}` share storage; they were checked as two "
                        "independent tensors"
                    )
        return lines

    def _slot(self, tensor: torch.Tensor, name: str, kind: Literal["input", "parameter"]) -> _Slot:
        value = self._copy(tensor)
        reason = self._why_constant(tensor, value)
        if reason is None:
            _require_finite(value, name)
            self.variables.append(Variable(name, value, kind))
            if kind == "input":
                self._originals.append((name, tensor))
            return _Slot(len(self.variables) - 1, varies=True)
        self._seen.append(f"`{name}` of type {str(tensor.dtype).removeprefix('torch.')}")
        if tensor.is_floating_point() or tensor.is_complex():
            self.not_covered.append(f"{kind} `{name}` {reason} and was held constant")
            if tensor.requires_grad:
                self._unsuited.append(name)
            elif tensor.is_floating_point():
                self._floating.append(name)
        return self._constant(name, value, kind)

    @staticmethod
    def _why_constant(tensor: torch.Tensor, value: torch.Tensor) -> str | None:
        if not tensor.requires_grad:
            return "does not require grad"
        if value.layout != torch.strided:
            return f"is {_name(value.layout)}, which is not checked yet,"
        if value.dtype not in _CHECKED:
            return (
                f"is {_name(value.dtype)}, in which a gradient can't be resolved "
                "(dtype='float32' or 'float64' would),"
                if value.is_floating_point()
                else f"is {_name(value.dtype)}, which is not checked yet,"
            )
        return None

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        copied = tensor.detach().clone()
        if self._options.cast is not None and copied.is_floating_point():
            copied = copied.to(self._options.cast)
        return copied


def _require_finite(value: torch.Tensor, name: str) -> None:
    finite = torch.isfinite(value)
    if not bool(finite.all()):
        count = value.numel() - int(finite.sum())
        raise UsageError(
            f"`{name}` holds {count} non-finite value{'s' if count > 1 else ''} (NaN or Inf) of "
            f"{value.numel()}; no derivative can be measured there. Give finite inputs"
        )


def _share_storage(first: torch.Tensor, second: torch.Tensor) -> bool:
    if first is second:
        return True
    if torch.strided not in (first.layout, second.layout) or not first.numel() * second.numel():
        return False
    return first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()


def _name(kind: object) -> str:
    return str(kind).removeprefix("torch.")
