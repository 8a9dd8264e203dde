"""What a ledger holds, as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gradcheck_suite.findings import Location  # noqa: TC004 - `asdict` asks for no types

__all__ = [
    "BackwardFacts",
    "FunctionFacts",
    "GroupFacts",
    "Ledger",
    "LossFacts",
    "MemoryFacts",
    "ModuleFacts",
    "OptimizerFacts",
    "ParameterFacts",
    "Place",
    "TermFacts",
]


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the user's that did something.

    Attributes:
        location: where; None where no line of Python's is known.
        count: how often it was seen.
        what: what it called, or in which way.
    """

    location: Location | None
    count: int
    what: str = ""


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A parameter group as it was at the end: how many parameters, and how many elements in all."""

    parameters: int
    elements: int
    learning_rate: float | None


@dataclass(frozen=True, slots=True)
class OptimizerFacts:
    """What an optimizer did.

    Attributes:
        name: its class, and its number where there are several of that class.
        made: where it was made.
        groups: its parameter groups.
        steps: the number of its finished steps.
        stepped: where it was stepped.
        backwards: how many of its steps used the gradients of how many backwards, by that number;
            -1 stands for steps of which it is not known.
        cleared: where its gradients were cleared.
        clipped: where gradients of its parameters were clipped, and by what.
        unscaled: where a GradScaler unscaled them.
        scheduled: where a scheduler of its learning rate stepped.
    """

    name: str
    made: Location | None
    groups: tuple[GroupFacts, ...]
    steps: int
    stepped: tuple[Place, ...] = ()
    backwards: tuple[tuple[int, int], ...] = ()
    cleared: tuple[Place, ...] = ()
    clipped: tuple[Place, ...] = ()
    unscaled: tuple[Place, ...] = ()
    scheduled: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class ParameterFacts:
    """What became of a parameter, or of another leaf that gradients were asked for.

    Attributes:
        name: as its module and the user's variables have it; None where nobody names it.
        shape: its sizes.
        is_parameter: whether it is an ``nn.Parameter``.
        owners: the names of the optimizers that own it.
        requires_grad: whether gradients were asked for when it was first seen.
        requires_grad_last: and when it was last seen.
        steps: in how many steps it was looked at.
        with_gradient: in how many of them it had a gradient other than zeros.
        with_zeros: in how many one of zeros alone.
        changed: whether its contents differ from what they were; None where nobody can say.
        shares_memory_with: the names of others in the same memory.
    """

    name: str | None
    shape: tuple[int, ...]
    is_parameter: bool
    owners: tuple[str, ...]
    requires_grad: bool
    requires_grad_last: bool
    steps: int
    with_gradient: int
    with_zeros: int
    changed: bool | None
    shares_memory_with: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModuleFacts:
    """How a module was called from outside of all modules, in the steps that were looked at.

    ``calls`` say in which mode (``what``) and where.
    """

    name: str
    kind: str
    calls: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class BackwardFacts:
    """A line that runs backwards.

    Attributes:
        place: where, and how often.
        accumulates: whether it fills ``.grad``, or returns gradients.
        reached: how many parameters and other leaves its graphs reached, at most.
        leaves: how many leaves there are in all.
    """

    place: Place
    accumulates: bool
    reached: int
    leaves: int


@dataclass(frozen=True, slots=True)
class FunctionFacts:
    """A hand-written backward that was differentiated through: its Function, and where it is.

    That it is right, no audit finds out.
    """

    name: str
    location: Location | None


@dataclass(frozen=True, slots=True)
class TermFacts:
    """A term of a loss.

    Attributes:
        text: how the program writes it.
        location: where it is added.
        state: ``live`` if it carries a gradient, ``cut`` if it depends on what is trained and was
            cut off from it, ``constant`` if it does not depend on it, ``unknown`` otherwise.
        cut: the line that cut it off; None for none.
        by: what cuts there.
    """

    text: str
    location: Location
    state: str
    cut: Location | None = None
    by: str = ""


@dataclass(frozen=True, slots=True)
class LossFacts:
    """The terms of the loss that a backward starts from, where its source could be followed."""

    location: Location | None
    terms: tuple[TermFacts, ...]


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """How many backwards' graphs were alive after a step: by step, in those looked at."""

    graphs_alive: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Ledger:
    """All of it.

    Attributes:
        steps: the number of steps of the run.
        watched: how many of them were not passed over; counts are of these.
        looked_at: in how many of them parameters were looked at.
        optimizers: in the order in which they were first seen.
        parameters: as above.
        modules: as above.
        every_call: whether all their calls were looked at; those of the first steps are.
        backwards: as above.
        functions: as above.
        losses: of those backwards whose loss is a sum.
        memory: of graphs.
    """

    steps: int
    watched: int
    looked_at: int
    optimizers: tuple[OptimizerFacts, ...]
    parameters: tuple[ParameterFacts, ...]
    modules: tuple[ModuleFacts, ...]
    every_call: bool
    backwards: tuple[BackwardFacts, ...]
    functions: tuple[FunctionFacts, ...]
    losses: tuple[LossFacts, ...]
    memory: MemoryFacts

    def to_dict(self) -> Mapping[str, Any]:
        """Return it as dicts, lists and scalars."""
        return {key: _plain(value) for key, value in asdict(self).items()}

    def _repr_html_(self) -> str:
        """Draw it for a notebook."""
        from gradcheck_suite.reporting import ledger_to_fragment  # noqa: PLC0415 - on demand

        return ledger_to_fragment(self.to_dict())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value
