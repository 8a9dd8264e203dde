"""Call what the user gave as a pure function of named tensors.

Every call gets fresh copies of every tensor and the same random draws, so that the user's
tensors, buffers and generators are only ever read.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch

from gradcheck_suite._torch_compat import node_output_types
from gradcheck_suite.errors import UsageError
from gradcheck_suite.verification.target.dense_views import (
    PLAIN,
    Representation,
    copied,
    seen_as_real,
)
from gradcheck_suite.verification.target.graph_walk import reachable
from gradcheck_suite.verification.target.random_state import OwnGenerators, RandomState
from gradcheck_suite.verification.target.tree import leaves_with_paths
from gradcheck_suite.verification.text import describe, short_name

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch.autograd.graph import Node

    from gradcheck_suite.verification.target.parameter_swap import ParameterSwap

__all__ = ["Arrangement", "Constant", "Given", "Output", "PureFunction", "Variable"]

Arrangement: TypeAlias = Callable[
    [Sequence[torch.Tensor], Sequence[torch.Tensor]],
    tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]],
]
"""Gives variables and constants another place in memory or other values, differentiably."""

_IN_PLACE = "leaf Variable that requires grad is being used in an in-place operation"
_LEAF = "torch::autograd::AccumulateGrad"
_FEW = 3
"""How many shapes a message names; only its length depends on it."""
_MOST_OUTPUTS = 16
"""For how many outputs it is looked up which variables reach them. A bound on cost: a walk through
the graph each."""
_NO_DEVICE = ("Found no NVIDIA driver", "not compiled with CUDA", "No CUDA GPUs", "no NVIDIA")


@dataclass(frozen=True, slots=True)
class Variable:
    """A tensor with respect to which gradients are checked.

    Attributes:
        name: the expression that reaches it.
        value: our own copy as dense real numbers, of which ``representation.rebuild`` makes what
            the function takes.
        kind: what it is to the user.
        representation: what the values stand for: a complex or sparse tensor, or themselves.
        fixed: where ``value`` is never moved, as it is not finite or its gradient is by design not
            the derivative; None where it is moved everywhere.
    """

    name: str
    value: torch.Tensor
    kind: Literal["input", "parameter"]
    representation: Representation = PLAIN
    fixed: torch.Tensor | None = None

    def moved_to(self, values: torch.Tensor) -> Variable:
        """Return the same variable with other values."""
        fixed = ~torch.isfinite(values.detach())
        if self.fixed is not None and self.fixed.shape == fixed.shape:
            fixed |= self.fixed & torch.isfinite(self.value)
        return replace(self, value=copied(values), fixed=fixed if bool(fixed.any()) else None)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the tensor that the function takes."""
        return self.representation.dtype or self.value.dtype

    def laid_out(self, values: torch.Tensor) -> torch.Tensor:
        """Return values that nobody else needs as they are, or copied if their layout differs."""
        like = self.value
        if values.stride() == like.stride() and values.storage_offset() == like.storage_offset():
            return values
        return self.copy(values)

    def copy(self, values: torch.Tensor | None = None) -> torch.Tensor:
        """Copy the value, or other values in its place, into memory laid out as the given one."""
        return copied(self.value if values is None else values, self.value)


@dataclass(frozen=True, slots=True)
class Constant:
    """A tensor that the function gets and that no gradient is checked for; our own copy."""

    name: str
    value: torch.Tensor
    kind: Literal["input", "parameter", "buffer"]


@dataclass(frozen=True, slots=True)
class Given:
    """The tensors of one call, as the function takes them."""

    values: Sequence[torch.Tensor]
    constants: Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True)
class Output:
    """One tensor that the function returned, under the expression that reaches it.

    ``tensor`` is dense and real wherever it can be made so: a complex output has real and
    imaginary parts in a last dimension of two; ``representation`` says so.
    """

    name: str
    tensor: torch.Tensor
    representation: Representation = PLAIN

    @property
    def dtype(self) -> torch.dtype:
        """The type of the tensor that the function gave."""
        return self.representation.dtype or self.tensor.dtype


class PureFunction:
    """A callable with its arguments, seen as a function of its variables.

    Attributes:
        title: what the user would call it.
        variables: the tensors that gradients are checked for.
        constants: the other tensors that it gets.
        not_covered: sentences on what is held constant.
        reached: the names of outputs, with the indices of variables that ``first_call`` computed
            them of.
        types_on_the_way: the types of what ``first_call`` computed from the variables.
    """

    def __init__(
        self,
        *,
        title: str,
        call: Callable[[Given], object],
        variables: tuple[Variable, ...],
        constants: tuple[Constant, ...] = (),
        not_covered: tuple[str, ...],
        seed: int,
        cast: torch.dtype | None,
        parameter_swap: ParameterSwap | None = None,
        generators: OwnGenerators | None = None,
    ) -> None:
        self.title = title
        self.variables = variables
        self.constants = constants
        self.not_covered = not_covered
        self.reached: frozenset[tuple[str, int]] = frozenset()
        self.types_on_the_way: frozenset[torch.dtype] = frozenset()
        self._seed = seed
        self._count = [0]
        self._arrangement: Arrangement | None = None
        self._call = call
        self._cast = cast
        self._parameter_swap = parameter_swap
        self._randomness = RandomState.from_seed(seed)
        self._generators = generators or OwnGenerators()

    def __call__(self, values: Sequence[torch.Tensor]) -> list[Output]:
        """Call the function with these values for its variables.

        Raises:
            UsageError: it returns no tensor.
        """
        return self._called(values, [constant.value.clone() for constant in self.constants])

    def _called(
        self, values: Sequence[torch.Tensor], constants: Sequence[torch.Tensor]
    ) -> list[Output]:
        self._randomness.restore()
        self._generators.restore()
        self._count[0] += 1
        values = [
            variable.representation.rebuild(value)
            for variable, value in zip(self.variables, values, strict=True)
        ]
        if self._arrangement is not None:
            values, constants = self._arrangement(values, constants)
        result = self._call(Given(values, constants))
        outputs = [
            _output(name, leaf)
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
    ) -> PureFunction:
        """Return the same function at another point, or with its tensors arranged differently.

        Args:
            values: for the variables, dense and real as ``Variable.value``, of any shape that the
                function takes.
            constants: for the constants.
            arrangement: what the tensors that the function takes pass through before each call.
        """
        other = PureFunction(
            title=self.title,
            call=self._call,
            variables=self.variables
            if values is None
            else tuple(
                variable.moved_to(value)
                for variable, value in zip(self.variables, values, strict=True)
            ),
            constants=self.constants
            if constants is None
            else tuple(
                replace(constant, value=value.detach().clone())
                for constant, value in zip(self.constants, constants, strict=True)
            ),
            not_covered=self.not_covered,
            seed=self._seed,
            cast=self._cast,
            parameter_swap=self._parameter_swap,
            generators=self._generators,
        )
        other._count = self._count
        other._arrangement = arrangement
        return other

    def compiled(self, *, whole: bool) -> PureFunction:
        """Return the same function, compiled by ``torch.compile`` on its first call.

        Args:
            whole: whether what can't be compiled raises, in place of running as it is.
        """
        other = copy.copy(self)
        compiled = torch.compile(self._call, fullgraph=whole)

        def called(given: Given) -> object:
            self.restore()
            return compiled(given)

        vars(other)["_call"] = called
        return other

    def as_now(self) -> Callable[[], None]:
        """Return what makes ready for a backward of the last call, after others have been made."""
        return _nothing if self._parameter_swap is None else self._parameter_swap.as_now()

    def restore(self) -> None:
        """Give the module its own tensors back, and the program its generators as they were."""
        self._generators.restore()
        if self._parameter_swap is not None:
            self._parameter_swap.restore()

    def within(self, context: Callable[[], AbstractContextManager[object]]) -> PureFunction:
        """Return the same function, every call of which runs in such a context."""
        other = copy.copy(self)
        call = self._call

        def called(given: Given) -> object:
            with context():
                return call(given)

        vars(other)["_call"] = called
        return other

    def draws_random_numbers(self) -> bool:
        """Return whether a call at the given point moves one of the random number generators."""
        with torch.no_grad():
            self([variable.value for variable in self.variables])
        return not (self._randomness.is_current() and self._generators.are_current())

    def leaves(self, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copy values for the variables into leaves that require grad."""
        return [
            variable.copy(value).requires_grad_()
            for variable, value in zip(self.variables, values, strict=True)
        ]

    def first_call(self) -> list[Output]:
        """Call the function at the given point; what it raises there arrives unchanged.

        Raises:
            UsageError: it fails only because its tensors were cast to another type, or because a
                device is not there.
        """
        values = self.leaves([variable.value for variable in self.variables])
        constants = [constant.value.clone() for constant in self.constants]
        with torch.enable_grad():
            try:
                outputs = self._called(values, constants)
            except (RuntimeError, AssertionError) as error:
                if self._cast is not None and "dtype" in str(error):
                    raise UsageError(
                        f"{self.title} does not run in {short_name(self._cast)}: {error}. It "
                        "probably holds tensors of its own, which only dtype='native' leaves as "
                        "they are"
                    ) from error
                if any(words in str(error) for words in _NO_DEVICE):
                    raise UsageError(
                        f"{self.title} needs CUDA, which there is not here ({error}); check it on "
                        "a machine that has it, or move it and its inputs to the CPU"
                    ) from error
                if _IN_PLACE in str(error):
                    raise UsageError(
                        f"{self.title} writes in place into an input or parameter that requires "
                        f"grad ({error}); give it a copy (`x.clone()`) or write to a new tensor"
                    ) from error
                raise
        self._note_overwritten(constants)
        nodes = reachable(*(output.tensor.grad_fn for output in outputs))
        self._note_other_leaves(nodes, [*values, *constants])
        self.reached = frozenset(_reached(outputs, values))
        self.types_on_the_way = frozenset(
            kind[1] for node in nodes for kind in node_output_types(node) if kind is not None
        )
        return [replace(known, tensor=known.tensor.detach().clone()) for known in outputs]

    def _note_other_leaves(self, nodes: Sequence[Node], known: Sequence[torch.Tensor]) -> None:
        """Say which tensors get a gradient that the function was not given."""
        handed = set(map(id, known))
        others = [
            variable
            for node in nodes
            if node.name() == _LEAF
            and isinstance(variable := getattr(node, "variable", None), torch.Tensor)
            and id(variable) not in handed
        ]
        if others:
            shapes = sorted(str(tuple(one.shape)) for one in others)
            shown = ", ".join(shapes[:_FEW])
            more = f" and {len(shapes) - _FEW} more" if len(shapes) > _FEW else ""
            line = (
                f"{self.title} reads tensors that require grad and are not handed to it (of shape "
                f"{shown}{more}); they were held constant: make them arguments to check theirs"
            )
            self.not_covered = (*self.not_covered, line)

    def _note_overwritten(self, given: Sequence[torch.Tensor]) -> None:
        for constant, now in zip(self.constants, given, strict=True):
            if constant.kind == "input" and not _same(constant.value, now):
                line = (
                    f"{self.title} writes into its input `{constant.name}`; each evaluation was "
                    "given a fresh copy"
                )
                self.not_covered = (*self.not_covered, line)


def _reached(
    outputs: Sequence[Output], values: Sequence[torch.Tensor]
) -> Iterator[tuple[str, int]]:
    places = {id(value): index for index, value in enumerate(values)}
    for output in outputs[:_MOST_OUTPUTS]:
        for node in reachable(output.tensor.grad_fn):
            index = places.get(id(getattr(node, "variable", None)))
            if index is not None:
                yield output.name, index


def _nothing() -> None:
    """Leave everything as it is."""


def _same(one: torch.Tensor, two: torch.Tensor) -> bool:
    if one.layout != torch.strided or two.layout != torch.strided or one.is_nested:
        return True
    if one.shape != two.shape:
        return False
    equal = one == two
    if one.is_floating_point() or one.is_complex():
        equal |= one.isnan() & two.isnan()
    return bool(equal.all())


def _output(name: str, tensor: torch.Tensor) -> Output:
    seen = seen_as_real(tensor)
    return Output(name, tensor) if seen is None else Output(name, *seen)
