"""What became of each leaf: who owns it, which backwards reach it, and whether it ever changes.

Parameters of optimizers and of modules that are called, and whatever else a backward reaches.
Several detectors and the ledger ask the same of them; it is taken down once, here. Each leaf is
looked at in the first steps and in those that are powers of two, all at once: what is read from a
device then costs one wait.
"""

from __future__ import annotations

import weakref
from operator import attrgetter
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gradcheck_suite._runtime.memory import is_readable
from gradcheck_suite._torch_compat import gathered_parameters, is_sharded, part_of_rank
from gradcheck_suite.auditing.detectors.reachable_parameters import reachable_graph
from gradcheck_suite.auditing.events import (
    BackwardStarted,
    ForwardFinished,
    GradientsCleared,
    OptimizerConstructed,
    ParameterGroupAdded,
    SessionEnded,
    StepFinished,
    StepStarted,
)
from gradcheck_suite.auditing.object_names.optimizers import parameters_of
from gradcheck_suite.auditing.object_names.tensor_names import variable_of
from gradcheck_suite.auditing.saved_tensors.checksums import read_answers
from gradcheck_suite.auditing.user_modes import ops_are_recorded, without_user_modes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradcheck_suite.auditing.call_sites import CallSite
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder
    from gradcheck_suite.findings import Finding

__all__ = ["FreshLeaves", "LeafRecord", "LeafRecords", "is_looked_at", "next_looked_at"]

_FIRST_STEPS = 4
"""In so many first steps each is looked at; after those, powers of two. A bound on cost: each look
reads all gradients once."""

_MOST_LEAVES = 50_000
"""Leaves that are remembered at most. A bound on memory: each takes half a kilobyte."""

_MOST_SITES = 8
"""Lines whose backwards have reached a leaf that are remembered. A bound on memory."""

_MOST_TURNS = 8
"""Optimizers whose steps are looked at one after the other. A bound on cost."""

_MOST_SHAPES = 64
"""Shapes of leaves that come anew in each step. A bound on memory."""

_MOST_FROZEN = 16
"""Frozen leaves that are asked in each step whether they were thawed. A bound on cost: what thaws
one of a module mostly thaws all of it."""

_CLOSELY = 4
"""Turns of all optimizers that are looked at after a leaf was thawed, or an optimizer made. Chosen:
those that it takes to see that it gets gradients and stays as it is."""

_MOST_OPTIMIZERS = 8
"""Optimizers made after the first steps whose own first steps are looked at. A bound on cost where
each task of many has one of its own."""


def is_looked_at(step: int, turns: int = 1) -> bool:
    """Return whether leaves are looked at in this step, counted from 0.

    Where several optimizers take turns, each of them is looked at.

    >>> [step for step in range(40) if is_looked_at(step)]
    [0, 1, 2, 3, 4, 8, 16, 32]
    >>> [step for step in range(40) if is_looked_at(step, turns=2)]
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 32, 33]
    """
    if step < _FIRST_STEPS * turns or not step & (step - 1):
        return True
    return turns > 1 and step - (1 << (step.bit_length() - 1)) < turns


class FreshLeaves:
    """Leaves of one shape that nobody owns, and that a backward reached in their first step.

    Attributes:
        steps: in how many of the steps looked at there was one.
        step: the last of them.
        last: the last such leaf.
        are_parameters: whether each was an ``nn.Parameter``.
        site: the line of its backward.
    """

    __slots__ = ("are_parameters", "last", "site", "step", "steps")

    def __init__(self) -> None:
        self.steps, self.step = 0, -1
        self.are_parameters = True
        self.last: weakref.ref[Tensor] | None = None
        self.site: CallSite | None = None

    def note(self, leaf: Tensor, step: int, site: CallSite | None) -> None:
        """Note one."""
        self.steps += step != self.step
        self.are_parameters = self.are_parameters and isinstance(leaf, nn.Parameter)
        self.step, self.last, self.site = step, weakref.ref(leaf), site


def next_looked_at(step: int) -> int:
    """Return the step after this one in which leaves are looked at; until then, one may sleep.

    >>> [next_looked_at(step) for step in range(10)]
    [1, 2, 3, 4, 8, 8, 8, 8, 16, 16]
    """
    return step + 1 if step + 1 < _FIRST_STEPS else 1 << step.bit_length()


class LeafRecord:
    """A leaf that was seen.

    Attributes:
        reference: to the tensor; dead where the program has let go of it.
        name: as its module and the user's variables have it; None where no module that was called
            has it.
        shape: its sizes.
        is_parameter: whether it is an ``nn.Parameter``.
        owners: the numbers of the optimizers that have owned it, as ``Optimizers`` has them.
        owned_since: the step in which the first of them was seen to own it; None for none.
        asked: whether gradients were asked for when it was first seen.
        asked_last: and when it was last looked at.
        first_seen: the step in which it was first seen.
        turned: the step since which gradients are asked for, or no longer; None where that never
            changed.
        reached: in how many of the steps looked at a backward that fills ``.grad`` has reached it.
        reached_first: the first step looked at in which one has; None for none.
        reached_last: the last such step.
        sites: the lines of those backwards.
        returned: whether ``autograd.grad`` has gone through a graph with it.
        after_owned: whether, in such a graph, it meets what owned leaves have made; None where
            nobody has asked.
        missed: in how many looks at a step, one after the other up to the last, it had no gradient.
        steps: in how many steps it was looked at before an optimizer's step.
        with_gradient: in how many of them it had a gradient other than zeros.
        with_zeros: in how many one of zeros alone.
        changed: whether its contents have differed from what they were; None where nobody can say.
        storage: the address of its memory when it was first seen.
    """

    __slots__ = (
        "after_owned",
        "asked",
        "asked_last",
        "changed",
        "first_seen",
        "is_parameter",
        "missed",
        "name",
        "owned_since",
        "owners",
        "reached",
        "reached_first",
        "reached_last",
        "reference",
        "returned",
        "shape",
        "sites",
        "steps",
        "storage",
        "sums",
        "turned",
        "with_gradient",
        "with_zeros",
    )

    def __init__(self, leaf: Tensor, name: str | None, step: int) -> None:
        self.reference = weakref.ref(leaf)
        self.name = name
        self.shape = tuple(leaf.shape)
        self.is_parameter = isinstance(leaf, nn.Parameter)
        self.asked = self.asked_last = leaf.requires_grad
        self.owners: set[int] = set()
        self.owned_since: int | None = None
        self.first_seen = step
        self.reached = 0
        self.reached_first: int | None = None
        self.reached_last: int | None = None
        self.sites: list[CallSite | None] = []
        self.turned: int | None = None
        self.after_owned: bool | None = None
        self.returned = False
        self.missed = 0
        self.steps = self.with_gradient = self.with_zeros = 0
        self.changed: bool | None = None
        self.sums = _sums(part_of_rank(leaf)) if _may_read() else None
        self.storage = _storage(leaf)

    @property
    def has_other_parts(self) -> bool:
        """Return whether an optimizer owns it, and other ranks have other parts of it."""
        tensor = self.reference()
        return bool(self.owners) and tensor is not None and is_sharded(tensor)

    def reach(self, step: int, site: CallSite | None) -> None:
        """Note that a backward has reached it."""
        if self.reached_last != step:
            self.reached += 1
            self.reached_last = step
        if self.reached_first is None:
            self.reached_first = step
        if site not in self.sites and len(self.sites) < _MOST_SITES:
            self.sites.append(site)

    def ask(self, requires_grad: bool, step: int) -> None:
        """Note whether gradients are asked for now."""
        if requires_grad is not self.asked_last:
            self.asked_last, self.turned = requires_grad, step


class LeafRecords:
    """Takes down what becomes of leaves; what reads it comes after it.

    Attributes:
        fresh: by shape, leaves that come anew.
        unowned: those in the graph of the backward that was looked at last which nobody owns.
        stepped: those that the optimizer owns whose step was looked at last.
        is_looking: whether they are looked at in the step that is under way.
        turns: the number of optimizers that take turns, as far as they are looked at.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._living: dict[int, LeafRecord] = {}
        # Those whose identity another tensor has by now.
        self._gone: list[LeafRecord] = []
        self._modules: dict[int, weakref.ref[nn.Module]] = {}
        self._looked_at: set[int] = set()
        self._met: set[int] = set()
        self._looking_for: weakref.ref[Optimizer] | None = None
        self._until = -1
        self._frozen: list[LeafRecord] = []
        self._later_optimizers = 0
        # Those of a step whose closure fills their gradients.
        self._filled_inside: list[LeafRecord] = []
        # By the identity of what FSDP2 has gathered: that, and its shard.
        self._gathered: dict[int, tuple[weakref.ref[Tensor], weakref.ref[Tensor]]] = {}
        self._has_shards = False
        self.fresh: dict[tuple[int, ...], FreshLeaves] = {}
        self.unowned: list[LeafRecord] = []
        self.stepped: list[LeafRecord] = []
        self.is_looking, self.turns = False, 1

    def subscriptions(self) -> Subscriptions:
        """Follow leaves from the backwards that reach them to the steps that change them."""
        return {
            OptimizerConstructed: self._construct,
            ParameterGroupAdded: self._own,
            GradientsCleared: self._meet,
            BackwardStarted: self._begin_backward,
            ForwardFinished: self._end_forward,
            StepStarted: self._begin_step,
            StepFinished: self._end_step,
            SessionEnded: self._end,
        }

    def findings(self) -> Sequence[Finding]:
        """Return nothing: these are facts."""
        return ()

    @property
    def steps_looked_at(self) -> int:
        """The number of steps in which leaves were looked at."""
        return len(self._looked_at)

    def look_closely(self, turns: int) -> None:
        """Look at each step, until so many of each optimizer are done."""
        self._until = max(self._until, self._recorder.state.step + turns * self.turns)

    def modules(self) -> list[nn.Module]:
        """Return the modules that were called from outside of all modules, and live."""
        return [each for known in self._modules.values() if (each := known()) is not None]

    def all(self) -> list[LeafRecord]:
        """Return the records, in the order in which the leaves were first seen."""
        return sorted((*self._gone, *self._living.values()), key=attrgetter("first_seen"))

    def of(self, tensor: Tensor) -> LeafRecord | None:
        """Return the record of a leaf, if it was seen."""
        known = self._living.get(id(tensor))
        return known if known is not None and known.reference() is tensor else None

    def standing_for(self, leaf: Tensor) -> Tensor:
        """Return what an optimizer has of a leaf: the shard, where a forward gathers the whole."""
        whole, shard = self._gathered.get(id(leaf), (None, None))
        known = shard() if whole is not None and shard is not None and whole() is leaf else None
        return leaf if known is None else known

    def _gather(self, root: nn.Module) -> None:
        """Take up which leaves of a graph stand for shards."""
        if self._has_shards:
            for module in root.modules():
                for whole, shard in gathered_parameters(module):
                    self._gathered[id(whole)] = weakref.ref(whole), weakref.ref(shard)

    def note(self, tensor: Tensor, name: str | None = None) -> LeafRecord | None:
        """Return the record of a leaf, a new one if need be; None where there are too many."""
        known = self._living.get(id(tensor))
        if known is None or known.reference() is not tensor:
            if len(self._living) + len(self._gone) >= _MOST_LEAVES:
                return None
            if known is not None and (known.owners or known.is_parameter):
                self._gone.append(known)
            known = without_user_modes(LeafRecord, tensor, name, self._recorder.state.step)
            # Not in the place of one that had this identity before: which one had is chance.
            self._living.pop(id(tensor), None)
            self._living[id(tensor)] = known
        elif known.name is None:
            known.name = name
        return known

    def owners_of(self, identities: set[int]) -> set[int]:
        """Return the numbers of the optimizers that own any of these leaves, by identity."""
        known = (self._living.get(each) for each in identities)
        return {owner for each in known if each is not None for owner in each.owners}

    def _meet(self, event: GradientsCleared) -> None:
        """Take up an optimizer that was made before the audit began."""
        if isinstance(event.owner, Optimizer):
            number = self._recorder.optimizers.number_of(event.owner)
            if number not in self._met:
                self._own_all(event.owner)

    def _construct(self, event: OptimizerConstructed) -> None:
        """Take up an optimizer, and look at its own first steps if others have stepped before."""
        self._own(event)
        if self._recorder.state.step and self._later_optimizers < _MOST_OPTIMIZERS:
            self._later_optimizers += 1
            self.look_closely(_CLOSELY)

    def _own(self, event: OptimizerConstructed | ParameterGroupAdded | StepStarted) -> None:
        self._own_all(event.optimizer)

    def _own_all(self, optimizer: Optimizer) -> None:
        number = self._recorder.optimizers.number_of(optimizer)
        self._met.add(number)
        self.turns = max(1, min(self._recorder.optimizers.count, _MOST_TURNS))
        for parameter in parameters_of(optimizer):
            record = self.note(parameter)
            self._has_shards = self._has_shards or is_sharded(parameter)
            if record is not None:
                record.owners.add(number)
                if record.owned_since is None:
                    record.owned_since = self._recorder.state.step

    def _begin_backward(self, event: BackwardStarted) -> None:
        state = self._recorder.state
        iteration = state.iteration
        self.is_looking = iteration <= self._until or is_looked_at(iteration, self.turns)
        if not self.is_looking:
            return
        self.unowned = []
        for module in self.modules() if self._has_shards else ():
            self._gather(module)
        for reached in reachable_graph(event).leaves.values():
            leaf = self.standing_for(reached)
            record = self.note(leaf)
            if record is None:
                continue
            is_new = not record.owners and record.first_seen == state.step and not record.reached
            if not record.owners:
                self.unowned.append(record)
            if not event.accumulates:
                record.returned = True
                continue
            record.reach(state.step, event.site)
            if is_new and (record.shape in self.fresh or len(self.fresh) < _MOST_SHAPES):
                fresh = self.fresh.setdefault(record.shape, FreshLeaves())
                fresh.note(leaf, state.step, event.site)

    def _end_forward(self, event: ForwardFinished) -> None:
        module = event.module
        known = self._modules.get(id(module))
        if known is None or known() is not module:
            self._modules[id(module)] = weakref.ref(module)
            called = variable_of(module) or type(module).__name__
            self._gather(module)
            for name, parameter in module.named_parameters():
                self.note(self.standing_for(parameter), f"{called}.{name}")

    def _begin_step(self, event: StepStarted) -> None:
        step = self._recorder.state.step
        self.is_looking = step <= self._until or is_looked_at(step, self.turns)
        if not self.is_looking:
            if self._frozen:
                self._look_for_thawed(step)
            return
        self._looked_at.add(step)
        self._own(event)
        without_user_modes(self._look_at_all, event, step)

    def _look_at_all(self, event: StepStarted, step: int) -> None:
        self.stepped = []
        looked_at: list[tuple[LeafRecord, Tensor]] = []
        owned = set(map(id, parameters_of(event.optimizer)))
        for key, record in self._living.items():
            # What no optimizer owns is looked at beside the parameters of the first.
            if key not in owned and (record.owners or not self._is_first(event.optimizer)):
                continue
            tensor = record.reference()
            if tensor is None:
                continue
            if key in owned:
                self.stepped.append(record)
            record.steps += 1
            record.ask(tensor.requires_grad, step)
            looked_at.append((record, tensor))
        self._filled_inside = [record for record, _ in looked_at] if event.has_closure else []
        if not event.has_closure:
            self._look_at_gradients(looked_at, step)
        frozen = [each for each in self._living.values() if not each.asked_last]
        # From all over: what is thawed is mostly a part.
        self._frozen = frozen[:: -(-len(frozen) // _MOST_FROZEN)] if frozen else []

    def _look_at_gradients(self, leaves: Sequence[tuple[LeafRecord, Tensor]], step: int) -> None:
        asked = [(record, tensor.grad) for record, tensor in leaves if tensor.grad is not None]
        for record, tensor in leaves:
            if tensor.grad is None:
                record.missed += 1
        are_zero = _are_zero([gradient for _, gradient in asked])
        for (record, _), is_zero in zip(asked, are_zero, strict=True):
            if is_zero:
                record.with_zeros += 1
            else:
                record.with_gradient += 1
            is_reached = record.reached_last is not None and record.reached_last > step - self.turns
            record.missed = record.missed + 1 if is_zero and not is_reached else 0

    def _look_for_thawed(self, step: int) -> None:
        """Look closely as soon as a frozen leaf asks for gradients, long after the first steps."""
        for record in self._frozen:
            tensor = record.reference()
            if tensor is not None and tensor.requires_grad:
                record.ask(True, step)
                self._frozen = []
                self.look_closely(_CLOSELY)
                return

    def _is_first(self, optimizer: Optimizer) -> bool:
        first = None if self._looking_for is None else self._looking_for()
        if first is None:
            self._looking_for = weakref.ref(optimizer)
            return True
        return first is optimizer

    def _end_step(self, _event: StepFinished) -> None:
        if self._filled_inside:
            living = [
                (each, tensor)
                for each in self._filled_inside
                if (tensor := each.reference()) is not None
            ]
            self._filled_inside = []
            without_user_modes(self._look_at_gradients, living, self._recorder.state.step)
        if self.is_looking:
            without_user_modes(self._look_for_changes)

    def _look_for_changes(self) -> None:
        if not _may_read():
            return
        asked = []
        for record in self._living.values():
            tensor = record.reference()
            if not record.changed and record.sums is not None and tensor is not None:
                now = _sums(part_of_rank(tensor))
                if now is not None:
                    asked.append((record, record.sums, now))
        answers = read_answers([_differ(before, now) for _, before, now in asked])
        for (record, _, _), changed in zip(asked, answers, strict=True):
            # A step may change an owned parameter on other ranks alone, as rows of an embedding.
            record.changed = changed if changed or not record.has_other_parts else None
            if changed:
                record.sums = None

    def _end(self, _event: SessionEnded) -> None:
        without_user_modes(self._look_for_changes)


def _storage(tensor: Tensor) -> int | None:
    try:
        return tensor.untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError):
        return None


def _may_read() -> bool:
    """Return whether nobody would be told of an operator of ours, nor write it down."""
    return not ops_are_recorded()


def _sums(tensor: Tensor) -> Tensor | None:
    """Return two sums over the contents, on the tensor's own device; None where it has none."""
    with torch.no_grad():
        try:
            if not tensor.numel() or tensor.layout is not torch.strided or not is_readable(tensor):
                return None
            flat = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
            exact = torch.float32 if flat.device.type == "mps" else torch.float64
            return torch.stack((flat.sum(dtype=exact), torch.linalg.vector_norm(flat).to(exact)))
        except (RuntimeError, NotImplementedError, TypeError):
            return None


def _differ(before: Tensor, now: Tensor) -> Tensor:
    return ~torch.isclose(before, now, rtol=0, atol=0, equal_nan=True).all()


def _are_zero(gradients: Sequence[Tensor]) -> list[bool]:
    """Return of each gradient whether it is known to be all zeros."""
    if not _may_read():
        return [False] * len(gradients)
    with torch.no_grad():
        asked = list(map(_is_all_zeros, gradients))
    read = iter(read_answers([each for each in asked if each is not None]))
    return [each is not None and next(read) for each in asked]


def _is_all_zeros(gradient: Tensor) -> Tensor | None:
    """Return the answer on the gradient's own device; None where it can't be read."""
    try:
        values = gradient.coalesce().values() if gradient.is_sparse else gradient
        return ~values.detach().any() if is_readable(values) else None
    except (RuntimeError, NotImplementedError):
        return None
