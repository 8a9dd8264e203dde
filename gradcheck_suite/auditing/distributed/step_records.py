"""What one rank tells the others of a step: sums over its parameters and gradients, and settings.

A record takes the same number of bytes whatever the size of the model: parameters are told by at
most 64 groups of neighbours, each by 32 bits.
"""

from __future__ import annotations

import itertools
import json
import weakref
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parallel import DistributedDataParallel

from gradcheck_suite._runtime.memory import is_readable
from gradcheck_suite._torch_compat import (
    has_state_in_parts,
    is_saved,
    is_sharded,
    reduces_by_hook,
)
from gradcheck_suite.auditing.call_sites import location_of
from gradcheck_suite.auditing.events import (
    Attention,
    BackwardStarted,
    ForwardFinished,
    OptimizerConstructed,
    SchedulerStepped,
    StepFinished,
    StepStarted,
)
from gradcheck_suite.auditing.instrumentation.modules import FIRST_STEPS
from gradcheck_suite.auditing.object_names.optimizers import parameters_of
from gradcheck_suite.auditing.object_names.tensor_names import variable_of, written
from gradcheck_suite.auditing.saved_tensors.checksums import fingerprint
from gradcheck_suite.auditing.user_modes import ops_are_recorded, without_user_modes
from gradcheck_suite.findings import Location
from gradcheck_suite.reporting.paths import display_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import Tensor
    from torch.optim import Optimizer

    from gradcheck_suite.auditing.call_sites import CallSite
    from gradcheck_suite.auditing.detectors.accumulation_windows import AccumulationWindows
    from gradcheck_suite.auditing.detectors.leaf_records import LeafRecords
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.object_names.tensor_names import ParameterNames
    from gradcheck_suite.auditing.recorder import Recorder
    from gradcheck_suite.findings import Finding

__all__ = ["ABSENT", "UNKNOWN", "StepRecord", "StepRecords", "is_recorded"]

_GROUPS = 64
"""Groups that parameters are told by. A bound on bytes: up to so many, each is told by itself."""

_BUFFERS, _STATISTICS = 12, 4
"""Groups that buffers are told by, and of them running statistics. A bound on bytes."""

_MOST_SETTINGS = 4
"""Groups of an optimizer whose settings are told. A bound on bytes."""

_MOST_OPTIMIZERS = 8
"""Optimizers whose steps are told. A bound on bytes: programs that step each parameter by itself
make thousands."""

_RECORDED_FIRST = 16
"""Steps of an optimizer that are all told; after those, eight of each octave. Chosen: mistakes show
in the first steps, and one that comes later is named within an eighth of the steps until then."""

ABSENT, UNKNOWN = 0, -1
"""In place of a sum: there is no gradient, or all zeros; there is one that can't be read."""

Place: TypeAlias = "Mapping[str, Any] | None"


def is_recorded(step: int) -> bool:
    """Return whether this step of an optimizer is told of, counted from 0.

    >>> [step for step in range(16, 40) if is_recorded(step)]
    [16, 18, 20, 22, 24, 26, 28, 30, 32, 36]
    """
    return step < _RECORDED_FIRST or step % (1 << (step.bit_length() - 4)) == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step of an optimizer on one rank.

    Attributes:
        layout: shapes and types of the parameters, as a sum: only alike ones are compared.
        before: a sum over each group of parameters before the step.
        gradients: the same of what the step uses.
        after: the same of the parameters after it.
        names: of the groups, in the first record alone.
        settings: the numbers of each group of the optimizer.
        backwards: how many backwards have begun by then.
        exchanged: how many exchanges with other ranks there were since the step before.
        sharded: whether parameters are parts of such as lie on several ranks.
        metrics: how many exchanges of a few numbers there were in all.
        sampled: whether a DistributedSampler was gone through.
        reduced: the groups that a DistributedDataParallel is to reduce.
        hooked: whether it does so by a hook of the program's.
        synchronizes: whether it reduced in the last backward, as far as its switch tells.
        called: whether it was called since the step before; None where nobody has looked.
        initialized: whether there was a process group.
        site: where the step is called.
        made: where the optimizer was made.
        suspended: where ``no_sync()`` was called since the step before.
        bypassed: where gradients were computed by ``autograd.grad``, or a part of the module called
            in its place.
        bypass: which of these.
        cleared: where gradients were cleared unused since the step before.
        scheduled: where a scheduler of learning rates was stepped since the step before.
        writes: groups of parameters that were written since the step before, and where.
        changed: groups of gradients that were written since the last backward began, and where.
        buffers: a sum over each group of buffers that a checkpoint has, before the step.
        buffer_layout: names and shapes of those, as a sum.
        buffer_names: of the groups, in the first record alone; so are the next three.
        statistics: the groups that are running statistics of normalizations.
        overwritten: the groups that DistributedDataParallel overwrites with those of rank 0.
        weights: the groups of several real numbers each.
        buffer_writes: groups of buffers that were written since the step before, and where.
        state: a sum over the optimizer's state for each group of parameters, where that is asked
            for.
    """

    layout: int
    before: Sequence[int]
    gradients: Sequence[int]
    after: Sequence[int] = ()
    names: Sequence[str] = ()
    settings: Sequence[Mapping[str, Any]] = ()
    backwards: int = 0
    exchanged: int = 0
    sharded: bool = False
    sampled: bool = False
    metrics: int = 0
    reduced: Sequence[int] = ()
    hooked: bool = False
    synchronizes: bool = True
    called: bool | None = None
    initialized: bool = True
    site: Place = None
    made: Place = None
    suspended: Place = None
    bypassed: Place = None
    bypass: str = ""
    cleared: Place = None
    scheduled: Place = None
    writes: Mapping[str, Place] = field(default_factory=dict)
    changed: Mapping[str, Place] = field(default_factory=dict)
    buffers: Sequence[int] = field(default_factory=list)
    buffer_layout: int = 0
    buffer_names: Sequence[str] = field(default_factory=list)
    statistics: Sequence[int] = field(default_factory=list)
    overwritten: Sequence[int] = field(default_factory=list)
    weights: Sequence[int] = field(default_factory=list)
    buffer_writes: Mapping[str, Place] = field(default_factory=dict)
    state: Sequence[int] = field(default_factory=list)

    def packed(self) -> bytes:
        """Return the record as JSON."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def unpacked(cls, message: bytes) -> StepRecord:
        """Return the record that was packed."""
        return cls(**json.loads(message))


@dataclass(frozen=True, slots=True)
class _Buffer:
    """Where a buffer is registered: the tensor may be another in each step."""

    module: weakref.ref[nn.Module]
    key: str
    name: str
    overwritten: bool

    @property
    def tensor(self) -> Tensor | None:
        module = self.module()
        return None if module is None else module._buffers.get(self.key)  # noqa: SLF001 - its own alone


@dataclass(slots=True)
class _Followed:
    """An optimizer whose steps are told of."""

    number: int
    steps: int = 0
    ended_at: int = 0
    pending: StepRecord | None = None
    buffers: Sequence[Sequence[_Buffer]] = ()
    described: Mapping[str, Any] = field(default_factory=dict)


class StepRecords:
    """Writes down steps and leaves them with the other ranks; others compare them.

    Args:
        recorder: of the audit.
        windows: what became of the gradients of each optimizer.
        leaves: the names of parameters.
        names: the modules that the program has.
        publish: leaves a record, under a key, with the others.
    """

    def __init__(
        self,
        recorder: Recorder,
        windows: AccumulationWindows,
        leaves: LeafRecords,
        names: ParameterNames,
    ) -> None:
        self._recorder = recorder
        self._windows = windows
        self._leaves = leaves
        self._names = names
        self._followed: dict[int, _Followed] = {}
        self._depth = 0
        self._wrapped: dict[int, DistributedDataParallel] = {}
        self._called: set[int] = set()
        self._computed_at: CallSite | None = None
        self._forward: tuple[weakref.ref[nn.Module], CallSite | None] | None = None
        self._scheduled_at: CallSite | None = None
        self._last_backward = 0

    def subscriptions(self) -> Subscriptions:
        """Look before and after each step."""
        return {
            OptimizerConstructed: self._construct,
            StepStarted: self._begin,
            StepFinished: self._end,
            ForwardFinished: self._end_forward,
            BackwardStarted: self._begin_backward,
            SchedulerStepped: self._schedule,
        }

    def findings(self) -> list[Finding]:
        """Return nothing: one rank alone knows nothing of the others."""
        return []

    def _construct(self, _event: OptimizerConstructed) -> None:
        # Everybody is awake now, and asks no more than the size.
        self._recorder.job.look()

    def _begin_backward(self, event: BackwardStarted) -> Attention | None:
        if self._recorder.job.size == 1:
            return Attention.ASLEEP
        self._computed_at = None if event.accumulates else event.site
        self._last_backward = self._recorder.state.clock.tick()
        return None

    def _end_forward(self, event: ForwardFinished) -> Attention | None:
        if self._recorder.job.size == 1:
            return Attention.ASLEEP
        module = event.module
        if isinstance(module, DistributedDataParallel):
            self._wrapped[id(module)] = module
        if event.grad_enabled:
            self._called.add(id(module))
            self._forward = weakref.ref(module), event.site
        return None

    def _schedule(self, event: SchedulerStepped) -> Attention | None:
        if self._recorder.job.size == 1:
            return Attention.ASLEEP
        self._scheduled_at = event.site
        return None

    def _begin(self, event: StepStarted) -> Attention | None:
        if not self._recorder.job.look():
            return Attention.ASLEEP
        self._depth += 1
        # Before, there may have been no process group yet.
        attention = None if self._followed else Attention.AWAKE
        # An optimizer that steps another, such as ZeRO, is the one that is compared.
        if self._depth > 1:
            return attention
        known = self._followed.get(id(event.optimizer))
        if known is None:
            if len(self._followed) >= _MOST_OPTIMIZERS:
                return attention
            known = self._followed[id(event.optimizer)] = _Followed(len(self._followed))
            self._look_for_wrapped()
            self._look_for_buffers(event.optimizer, known)
        if is_recorded(known.steps) and not ops_are_recorded():
            known.pending = without_user_modes(self._record, event, known)
        return attention

    def _end(self, event: StepFinished) -> Attention | None:
        if self._recorder.job.size == 1:
            return Attention.ASLEEP
        self._depth = max(self._depth - 1, 0)
        known = self._followed.get(id(event.optimizer))
        if self._depth or known is None:
            return None
        if known.pending is not None:
            after = without_user_modes(_sums, _grouped(parameters_of(event.optimizer)))
            record = StepRecord(**{**_fields(known.pending), "after": after})
            job = self._recorder.job
            channel = job.channel()
            if channel is not None:
                key = f"step/{known.number}/{known.steps}"
                channel.put(f"{job.rank}/{key}", record.packed())
                job.told.setdefault(known.number, {})[known.steps] = key
            known.pending = None
        known.steps += 1
        known.ended_at = self._recorder.state.clock.tick()
        self._recorder.exchanges.end_step()
        self._called.clear()
        self._computed_at = self._scheduled_at = self._forward = None
        return None

    def _look_for_wrapped(self) -> None:
        """Know the DistributedDataParallel that the running functions have."""
        for module in self._names.modules():
            for part in module.modules():
                if isinstance(part, DistributedDataParallel):
                    self._wrapped[id(part)] = part

    def _look_for_buffers(self, optimizer: Optimizer, known: _Followed) -> None:
        """Know the buffers of modules that have parameters of the optimizer's."""
        owned = set(map(id, parameters_of(optimizer)))
        roots = [
            root
            for root in (*self._wrapped.values(), *self._names.modules())
            if any(id(each) in owned for each in root.parameters())
        ]
        found: dict[tuple[int, str], _Buffer] = {}
        for root in roots:
            for buffer in _buffers_of(root):
                found.setdefault((id(buffer.module()), buffer.key), buffer)
        statistics = [each for each in found.values() if isinstance(each.module(), _NormBase)]
        others = [each for each in found.values() if each not in statistics]
        groups = _grouped(others, _BUFFERS)
        first = len(groups)
        groups += _grouped(statistics, _STATISTICS)
        known.buffers = groups
        known.described = {
            "buffer_names": [_named_from(group[0].name, group[-1].name) for group in groups],
            "statistics": list(range(first, len(groups))),
            "overwritten": _numbers(groups, lambda each: each.overwritten),
            "weights": _numbers(groups, lambda each: _is_weight(each.tensor)),
        }

    def _record(self, event: StepStarted, known: _Followed) -> StepRecord:
        recorder, optimizer = self._recorder, event.optimizer
        parameters = parameters_of(optimizer)
        groups = _grouped(parameters)
        gradients = [[each.grad for each in group] for group in groups]
        exchanges = recorder.exchanges
        window = self._windows.of(optimizer)
        owned = set(map(id, parameters))
        wrapped = [
            each
            for each in self._wrapped.values()
            if any(id(parameter) in owned for parameter in each.parameters())
        ]
        reduced = {
            id(parameter)
            for each in wrapped
            for name, parameter in each.module.named_parameters()
            if name not in each.parameters_to_ignore
        }
        cleared = window.discarded[-1].site if window.discarded else None
        counts_calls = recorder.state.step < FIRST_STEPS and bool(wrapped)
        bypass, bypassed_at = self._bypass(wrapped)
        buffers = [[each.tensor for each in group] for group in known.buffers]
        is_compared = recorder.options.compare_optimizer_state and not has_state_in_parts(optimizer)
        return StepRecord(
            buffers=_sums(buffers),
            buffer_layout=_layout(each for group in buffers for each in group if each is not None),
            buffer_writes=self._writes(buffers, known.ended_at) if known.steps else {},
            state=_states(optimizer, groups) if is_compared else (),
            **({} if known.steps else known.described),
            layout=_layout(parameters),
            before=_sums(groups),
            gradients=_sums(gradients),
            names=[] if known.steps else self._names_of(groups, wrapped),
            settings=_settings(optimizer),
            backwards=recorder.state.backwards,
            exchanged=exchanges.since_step,
            sharded=any(map(is_sharded, parameters)),
            sampled=exchanges.samples_by_rank,
            metrics=exchanges.metrics,
            reduced=[n for n, group in enumerate(groups) if all(id(p) in reduced for p in group)],
            hooked=any(map(reduces_by_hook, wrapped)),
            synchronizes=all(_synchronizes(each) for each in wrapped),
            called=any(id(each) in self._called for each in wrapped) if counts_calls else None,
            initialized=recorder.job.initialized,
            site=_place(event.site),
            made=_place(window.constructed_at),
            suspended=_place(exchanges.suspended_at),
            bypassed=_place(bypassed_at),
            bypass=bypass,
            scheduled=_place(self._scheduled_at),
            cleared=_place(cleared),
            writes=self._writes(groups, known.ended_at) if known.steps else {},
            changed=self._writes(gradients, self._last_backward),
        )

    def _bypass(self, wrapped: Sequence[DistributedDataParallel]) -> tuple[str, CallSite | None]:
        """Return what has gone past the wrappers since the last step, and where."""
        if self._computed_at is not None:
            return "autograd.grad", self._computed_at
        module = None if self._forward is None else self._forward[0]()
        if any(module is part for each in wrapped for part in each.module.modules()):
            return "module", None if self._forward is None else self._forward[1]
        return "", None

    def _writes(self, groups: Iterable[Sequence[Tensor | None]], since: int) -> dict[str, Place]:
        """Return where groups of tensors were written last, by their number."""
        found: dict[str, Place] = {}
        for number, group in enumerate(groups):
            written_by = [
                write
                for each in group
                if each is not None
                for write in self._recorder.write_log.since(since, each)
            ]
            if written_by:
                found[str(number)] = _place(written_by[-1].site)
        return found

    def _names_of(
        self, groups: Sequence[Sequence[Tensor]], wrapped: Sequence[DistributedDataParallel]
    ) -> list[str]:
        known: dict[int, str] = {}
        for module in (*self._names.modules(), *wrapped):
            _note_names(module, known)
        return [_named(group, known, self._leaves) for group in groups]


def _note_names(module: nn.Module, known: dict[int, str]) -> None:
    called = variable_of(module) or type(module).__name__
    for name, parameter in module.named_parameters():
        known.setdefault(id(parameter), written(f"{called}.{name}"))


def _named(group: Sequence[Tensor], known: Mapping[int, str], leaves: LeafRecords) -> str:
    def name(tensor: Tensor) -> str:
        record = leaves.of(tensor)
        told = None if record is None or record.name is None else written(record.name)
        return known.get(id(tensor)) or told or f"a parameter of shape {tuple(tensor.shape)}"

    return _named_from(name(group[0]), name(group[-1]))


def _named_from(first: str, last: str) -> str:
    return first if first == last else f"{first} to {last}"


def _buffers_of(root: nn.Module) -> Iterator[_Buffer]:
    """Yield the buffers of a module that a checkpoint has."""
    called = variable_of(root) or type(root).__name__
    for place, module in root.named_modules():
        for key, tensor in module._buffers.items():  # noqa: SLF001 - its own alone
            if tensor is not None and is_saved(module, key):
                name = ".".join(filter(None, (place, key)))
                overwritten = _is_overwritten(root, name)
                yield _Buffer(weakref.ref(module), key, written(f"{called}.{name}"), overwritten)


def _numbers(groups: Sequence[Sequence[_Buffer]], is_so: Callable[[_Buffer], bool]) -> list[int]:
    """Return the numbers of the groups of which it is so of all buffers."""
    return [number for number, group in enumerate(groups) if all(map(is_so, group))]


def _is_overwritten(root: nn.Module, name: str) -> bool:
    """Return whether DistributedDataParallel sends this buffer of rank 0's before each forward."""
    if not isinstance(root, DistributedDataParallel) or not root.broadcast_buffers:
        return False
    return name.removeprefix("module.") not in root.parameters_to_ignore


def _is_weight(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.numel() > 1 and tensor.is_floating_point()


def _states(optimizer: Optimizer, groups: Sequence[Sequence[Tensor]]) -> list[int]:
    """Return for each group of parameters a sum over what the optimizer keeps for them."""

    def kept(parameter: Tensor) -> list[Tensor | None]:
        state = optimizer.state.get(parameter, {})
        return [
            torch.as_tensor(value) if isinstance(value, (int, float, torch.Tensor)) else None
            for _, value in sorted(state.items(), key=lambda item: str(item[0]))
        ]

    return _sums([[each for parameter in group for each in kept(parameter)] for group in groups])


_Item = TypeVar("_Item")


def _grouped(items: Sequence[_Item], most: int = _GROUPS) -> list[list[_Item]]:
    """Return neighbours together, in at most as many groups as are told."""
    count = min(len(items), most)
    bounds = [len(items) * number // count for number in range(count + 1)] if count else []
    return [list(items[start:end]) for start, end in itertools.pairwise(bounds)]


def _layout(parameters: Iterable[Tensor]) -> int:
    shapes = [(tuple(each.shape), str(each.dtype)) for each in parameters]
    return zlib.crc32(repr(shapes).encode())


def _sums(groups: Sequence[Sequence[Tensor | None]]) -> list[int]:
    """Return for each group a sum over the bits of its tensors."""
    with torch.no_grad():
        return [_sum_of_group([_sum_of(each) for each in group]) for group in groups]


def _sum_of_group(sums: Sequence[int]) -> int:
    if UNKNOWN in sums:
        return UNKNOWN
    return _checksum(repr(sums).encode()) if any(sums) else ABSENT


def _sum_of(tensor: Tensor | None) -> int:
    if tensor is None or not tensor.numel():
        return ABSENT
    if is_sharded(tensor) or not is_readable(tensor):
        return UNKNOWN
    try:
        # On another rank, it may lie in memory in another order.
        taken = fingerprint(tensor.detach().contiguous())
    except (RuntimeError, NotImplementedError):
        return UNKNOWN
    if taken is None:
        return UNKNOWN
    parts = (taken,) if isinstance(taken, bytes) else taken
    bits = b"".join(map(_bytes_of, parts))
    return _checksum(bits) if bits.strip(b"\0") else ABSENT


def _bytes_of(part: bytes | Tensor | None) -> bytes:
    if isinstance(part, torch.Tensor):
        return part.cpu().numpy().tobytes()
    return part or b""


def _checksum(bits: bytes) -> int:
    return zlib.crc32(bits) or 1


def _settings(optimizer: Optimizer) -> list[dict[str, Any]]:
    return [
        {name: _plain(value) for name, value in group.items() if _is_setting(name, value)}
        for group in optimizer.param_groups[:_MOST_SETTINGS]
    ]


def _is_setting(name: str, value: object) -> bool:
    if name == "params":
        return False
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and value.device.type == "cpu"
    return isinstance(value, (Real, tuple)) and (
        not isinstance(value, tuple) or all(isinstance(each, Real) for each in value)
    )


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.item()
    return [float(each) for each in value] if isinstance(value, tuple) else float(value)


def _synchronizes(wrapped: DistributedDataParallel) -> bool:
    return bool(getattr(wrapped, "require_backward_grad_sync", True))


def _place(site: CallSite | None) -> Place:
    location = location_of(site)
    return None if location is None else asdict(_shown(location))


def _shown(location: Location) -> Location:
    return Location(display_path(location.path), location.line, function=location.function)


def _fields(record: StepRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}
