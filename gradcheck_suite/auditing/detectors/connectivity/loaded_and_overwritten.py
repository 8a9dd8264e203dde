"""States that were loaded and overwritten before any step: by a late initialization, mostly.

The weights are initialized after they were loaded; or a layer that initializes itself from its
first batch does not remember, over a checkpoint, that it has. A new head, weights that are scaled
or pruned, and another state that is loaded over the first are what others do on purpose.

An optimizer may keep copies of the weights, in float32, and write them back after each step: those
that were made before the load are others than what was loaded, which the first step then replaces.
Such a weight has gradients and no owner, and its copy has an owner and is reached by no backward.
"""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import nn

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.detectors.gradients import sample_of
from gradcheck_suite.auditing.events import Attention, SessionEnded, StateLoaded, StepStarted
from gradcheck_suite.auditing.object_names.optimizers import parameters_of
from gradcheck_suite.auditing.object_names.tensor_names import listed, variable_of, written
from gradcheck_suite.auditing.saved_tensors.checksums import read_answers
from gradcheck_suite.auditing.user_modes import ops_are_recorded, without_user_modes
from gradcheck_suite.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor  # noqa: TC004 - nobody asks for the types of the fields

    from gradcheck_suite.auditing.detectors.leaf_records import LeafRecords
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder
    from gradcheck_suite.auditing.saved_tensors.write_log import Write  # noqa: TC004 - as above

__all__ = ["LoadedAndOverwrittenDetector"]

_FILLS = frozenset(
    {"bernoulli_", "exponential_", "fill_", "log_normal_", "normal_", "random_"}
    | {"trunc_normal_", "uniform_", "zero_"}
)
"""In-place functions whose result has nothing to do with what was there before."""

_SETS = _FILLS | {"copy_"}

_MOST = 16
"""Loads that are followed at a time. A bound on cost and memory."""

_OF_A_LINE = 2
"""Loads on one line that are followed. A bound on cost: a target network is loaded again and
again."""

_MOST_TENSORS = 4_000
"""Tensors of a state that are followed. A bound on cost: the writes into each are asked for."""

_STEPS = 3
"""Steps after which a layer that overwrites its own state each time is told from one that
initializes itself. Chosen: the second has no more of such writes, the third confirms it."""

_COPIES = 4
"""Weights that are compared with an optimizer's copy, the largest. A bound on cost: what writes
copies back writes all of them."""

_SAMPLED = 256
"""Elements of each that are compared. A bound on cost."""

_OPTIMIZERS = 4
"""Optimizers whose parameters are looked through for copies. A bound on cost."""

_FAR = 0.1
"""Part of its norm by which what was loaded differs from the copy at least. Chosen, far above the
1/256 by which a copy in bfloat16 differs, and below what differs between two initializations."""

_NEAR = 0.01
"""Part of its norm by which a weight differs from the copy that was written to it at most. Chosen:
twice the rounding of bfloat16 is less."""


@dataclass(slots=True)
class _Loaded:
    """A tensor that a state was loaded into."""

    name: str
    tensor: weakref.ref[Tensor]
    owner: type[nn.Module]
    is_weight: bool
    lost: Write | None = None


@dataclass(frozen=True, slots=True)
class _Copy:
    """A loaded weight, and what may be an optimizer's copy of it, which has other values."""

    loaded: _Loaded
    copy: weakref.ref[Tensor]
    optimizer: str


@dataclass(slots=True)
class _Load:
    """A state that was loaded.

    Attributes:
        site: where.
        name: what the program calls the module.
        sequence: when; later, the time of the last look.
        tensors: what it went into.
        steps: how many have begun since.
        copies: what may be copies of an optimizer, made before.
    """

    site: CallSite | None
    name: str
    sequence: int
    tensors: list[_Loaded] = field(default_factory=list)
    steps: int = 0
    copies: list[_Copy] = field(default_factory=list)


class LoadedAndOverwrittenDetector:
    """Reports loaded-and-overwritten (GCS415)."""

    def __init__(self, recorder: Recorder, leaves: LeafRecords) -> None:
        self._recorder = recorder
        self._leaves = leaves
        self._loads: list[_Load] = []
        self._lines: Counter[CallSite | None] = Counter()
        self._found: dict[CallSite | None, tuple[_Load, list[_Loaded]]] = {}
        self._copied: dict[CallSite | None, Finding] = {}

    def subscriptions(self) -> Subscriptions:
        """Ask for writes at the first steps after a load."""
        return {StateLoaded: self._load, StepStarted: self._begin_step, SessionEnded: self._end}

    def findings(self) -> list[Finding]:
        """Return one finding for each line that overwrites, or loads too late for copies."""
        overwritten = [_finding(load, lost) for load, lost in self._found.values()]
        return [*overwritten, *self._copied.values()]

    def _load(self, event: StateLoaded) -> Attention | None:
        self._lines[event.site] += 1
        is_followed = self._lines[event.site] <= _OF_A_LINE and len(self._loads) < _MOST
        if not (is_followed or self._loads):
            return None
        missing = set(event.missing)
        tensors = [
            each for each in _tensors_of(event.module) if each.name not in missing and event.given
        ]
        mine = {id(each.tensor()) for each in tensors}
        for load in self._loads:  # what is loaded over it is no loss
            load.tensors = [each for each in load.tensors if id(each.tensor()) not in mine]
        if is_followed and len(tensors) <= _MOST_TENSORS:
            name = variable_of(event.module) or type(event.module).__name__
            sequence = self._recorder.state.clock.tick()
            self._loads.append(_Load(event.site, name, sequence, tensors))
            return Attention.AWAKE
        return None

    def _begin_step(self, _event: StepStarted) -> Attention | None:
        for load in self._loads:
            load.steps += 1
            if load.copies:
                self._look_at_copies(load)
            self._look(load)
            if load.steps == 1:
                load.copies = without_user_modes(self._copies_of, load)
        self._loads = [each for each in self._loads if each.steps < _STEPS and each.tensors]
        return None if self._loads else Attention.ASLEEP

    def _end(self, _event: SessionEnded) -> None:
        for load in self._loads:
            if load.copies:
                self._look_at_copies(load)
            if not load.steps:
                load.steps = 1
                self._look(load)
            self._tell(load)
        self._loads = []

    def _copies_of(self, load: _Load) -> list[_Copy]:
        """Return what may be copies of loaded weights, that differ, in the optimizers' order."""
        by_shape: dict[torch.Size, list[tuple[_Loaded, Tensor]]] = {}
        for each in load.tensors:
            tensor = each.tensor()
            if isinstance(tensor, nn.Parameter) and tensor.requires_grad:
                record = self._leaves.of(tensor)
                if record is None or record.owners:
                    return []  # no backward has reached it, or the optimizer has it itself
                by_shape.setdefault(tensor.shape, []).append((each, tensor))
        if not by_shape or ops_are_recorded():
            return []
        pairs: list[tuple[_Loaded, Tensor, Tensor, str]] = []
        for optimizer in self._recorder.optimizers.known()[-_OPTIMIZERS:]:
            alike: dict[torch.Size, list[Tensor]] = {}
            for parameter in parameters_of(optimizer):
                alike.setdefault(parameter.shape, []).append(parameter)
            kind = type(optimizer).__name__
            own = [
                (loaded, tensor, copy, kind)
                for shape, tensors in by_shape.items()
                if len(alike.get(shape, ())) == len(tensors)
                for (loaded, tensor), copy in zip(tensors, alike[shape], strict=True)
            ]
            pairs += sorted(own, key=lambda pair: pair[1].numel(), reverse=True)[:_COPIES]
        distances = _distances([(tensor, copy) for _, tensor, copy, _ in pairs], _FAR)
        return [
            _Copy(loaded, weakref.ref(copy), kind)
            for (loaded, _, copy, kind), is_near in zip(pairs, distances, strict=True)
            if is_near is False
        ]

    def _look_at_copies(self, load: _Load) -> None:
        """Tell of loaded weights that have the values of an optimizer's copies by now."""
        pairs: list[tuple[_Copy, Tensor, Tensor]] = []
        for each in load.copies:
            tensor, copy = each.loaded.tensor(), each.copy()
            if tensor is None or copy is None:
                continue
            own, others = self._leaves.of(tensor), self._leaves.of(copy)
            is_trained = own is not None and own.reached and not own.owners
            if is_trained and others is not None and others.owners and not others.reached:
                pairs.append((each, tensor, copy))
        if not pairs or ops_are_recorded():
            return
        are_near = without_user_modes(
            _distances, [(tensor, copy) for _, tensor, copy in pairs], _NEAR
        )
        lost = [each for each, is_near in zip(pairs, are_near, strict=True) if is_near]
        if len(lost) * 2 > len(pairs):
            load.copies = []
            log = self._recorder.write_log
            writes = (
                write
                for _, tensor, _ in lost
                for write in log.since(load.sequence, tensor)
                if _is_whole(write, tensor)
            )
            write = next(writes, None)
            if load.site not in self._copied:
                self._copied[load.site] = _of_copies(load, [each for each, _, _ in lost], write)

    def _look(self, load: _Load) -> None:
        since, load.sequence = load.sequence, self._recorder.state.clock.tick()
        for each in load.tensors:
            tensor = each.tensor()
            writes = [] if tensor is None else self._recorder.write_log.since(since, tensor)
            whole = [write for write in writes if _is_whole(write, tensor)]
            if load.steps == 1:
                each.lost = next((write for write in reversed(whole)), None)
            elif whole:
                each.lost = None  # it is what the layer does in each step
        if load.steps == _STEPS:
            self._tell(load)

    def _tell(self, load: _Load) -> None:
        lost = [each for each in load.tensors if each.lost is not None]
        # Of a run that ends before, nobody knows what the next steps would have written.
        is_known = load.steps >= _STEPS
        by_itself = [each for each in lost if is_known and _is_by_its_own_layer(each)]
        weights = [each for each in load.tensors if each.is_weight]
        filled = [
            each for each in weights if each.lost is not None and each.lost.operation in _FILLS
        ]
        told = filled if len(filled) * 2 > len(weights) > 0 else by_itself
        if told and told[0].lost is not None:
            self._found.setdefault(told[0].lost.site, (load, told))


def _tensors_of(module: nn.Module) -> Iterator[_Loaded]:
    for prefix, part in module.named_modules():
        own = [*part._parameters.items(), *part._buffers.items()]  # noqa: SLF001 - without those of its children
        for name, tensor in own:
            if tensor is not None and tensor.is_floating_point():
                path = f"{prefix}.{name}" if prefix else name
                yield _Loaded(path, weakref.ref(tensor), type(part), tensor.dim() > 1)


def _distances(pairs: list[tuple[Tensor, Tensor]], part: float) -> list[bool | None]:
    """Return of each pair whether the first is the second, as its type has it, but for this part.

    None where that can't be said.
    """
    answers: list[Tensor | None] = []
    with torch.no_grad():
        for one, other in pairs:
            first, second = sample_of(one, _SAMPLED), sample_of(other, _SAMPLED)
            if first is None or second is None or first.device != second.device:
                answers.append(None)
                continue
            first, second = first.float(), second.to(first.dtype).float()
            sizes = torch.linalg.vector_norm(first), torch.linalg.vector_norm(second)
            distance = torch.linalg.vector_norm(first - second)
            answers.append(distance <= part * torch.maximum(*sizes))
    read = iter(read_answers([each for each in answers if each is not None]))
    return [None if each is None else next(read) for each in answers]


def _is_whole(write: Write, tensor: Tensor | None) -> bool:
    """Return whether a write sets all elements of a tensor, whatever they were."""
    if tensor is None or write.operation not in _SETS:
        return False
    start = tensor.data_ptr()
    return write.start <= start and write.end >= start + tensor.nbytes


def _is_by_its_own_layer(loaded: _Loaded) -> bool:
    """Return whether a method of the layer itself has written to it."""
    write = loaded.lost
    if write is None or write.site is None:
        return False
    own = (vars(kind).get(write.site[0].co_name) for kind in loaded.owner.__mro__)
    return any(getattr(each, "__code__", None) is write.site[0] for each in own)


def _finding(load: _Load, lost: list[_Loaded]) -> Finding:
    write = lost[0].lost
    assert write is not None
    where = location_of(write.site)
    names = tuple(written(f"{load.name}.{each.name}") for each in lost)
    by_itself = _is_by_its_own_layer(lost[0])
    hint = "initialize first, and load afterwards"
    if by_itself:
        hint = "keep whether it is initialized in a buffer, which the state has as well"
    return Finding.of(
        catalogue.LOADED_AND_OVERWRITTEN,
        f"{listed(names)} {'were' if len(names) > 1 else 'was'} loaded, and overwritten by "
        f"{write.operation}() before the first step: what the state had there is lost; expected "
        + ("a layer that knows it was initialized" if by_itself else "it to be loaded last"),
        detector="audit",
        location=where,
        related=related((location_of(load.site), "the state was loaded here"), apart_from=where),
        hint=hint,
        evidence={"lost": names, "operation": write.operation},
    )


def _of_copies(load: _Load, lost: list[_Copy], write: Write | None) -> Finding:
    where = location_of(load.site)
    names = tuple(dict.fromkeys(written(f"{load.name}.{each.loaded.name}") for each in lost))
    optimizer = lost[0].optimizer
    place = None if write is None else location_of(write.site)
    return Finding.of(
        catalogue.LOADED_AND_OVERWRITTEN,
        f"{listed(names)} {'were' if len(names) > 1 else 'was'} loaded, and after the first step "
        f"what {optimizer} keeps for {'them' if len(names) > 1 else 'it'} stood there, which had "
        "other values before that step: what the state had is lost; expected the copies to be "
        "taken after the load",
        detector="audit",
        location=where,
        related=related((place, "the copies are written over it here"), apart_from=where),
        hint="load before the optimizer copies the weights, or copy them to it again afterwards",
        evidence={"lost": names, "optimizer": optimizer},
    )
