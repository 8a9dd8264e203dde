"""Where ranks that began alike have parted, and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from gradcheck_suite import catalogue
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.distributed.step_records import ABSENT, UNKNOWN, StepRecord
from gradcheck_suite.auditing.object_names.tensor_names import listed
from gradcheck_suite.findings import Finding, Location
from gradcheck_suite.reporting.text import plural, ranks_in_words
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gradcheck_suite.auditing.distributed.step_records import Place
    from gradcheck_suite.catalogue import Entry
    from gradcheck_suite.findings import JSON

__all__ = ["Steps", "compare_ranks", "not_compared"]

Steps: TypeAlias = "Mapping[int, Mapping[int, StepRecord]]"
"""The records of one optimizer: by rank, and then by step."""

_AVERAGED = "the parameters were equal again before step {}, as where they are averaged at times"
_HOOKED = "a communication hook of the program's reduces the gradients"
_EXCHANGED = "other tensors went from rank to rank in the next step, as in a pipeline"
_UNCONNECTED = "nothing at all goes from rank to rank, and no DistributedSampler shares the data"
_NO_GROUP = "there was no process group"


@dataclass(frozen=True, slots=True)
class _Step:
    """One step of ranks whose parameters were equal up to it."""

    number: int
    ranks: tuple[int, ...]
    records: Mapping[int, StepRecord]
    names: Sequence[str]
    following: Mapping[int, StepRecord] | None
    equal_again: int | None

    @property
    def first(self) -> StepRecord:
        return self.records[self.ranks[0]]

    def differing(self, part: Callable[[StepRecord], Sequence[int]]) -> list[int]:
        """Return the groups of which this part is known on all ranks, and not the same."""
        return _differing([part(self.records[rank]) for rank in self.ranks])

    def apart(self, value: Callable[[StepRecord], Any]) -> tuple[int, ...]:
        """Return the ranks whose value is not that of most, the later ones where there is none."""
        by_value: defaultdict[str, list[int]] = defaultdict(list)
        for rank in self.ranks:
            by_value[repr(value(self.records[rank]))].append(rank)
        most = max(by_value.values(), key=len)
        return tuple(rank for rank in self.ranks if rank not in most)

    def named(self, groups: Sequence[int]) -> str:
        """Return the names of groups of parameters."""
        return listed([self.name(group) for group in groups])

    def name(self, group: int) -> str:
        return self.names[group] if group < len(self.names) else f"parameter {group}"


def compare_ranks(steps: Steps, *, size: int) -> list[Finding]:
    """Return what the records of one optimizer's steps, by rank and step, prove.

    Ranks are compared that have begun with equal parameters, and those that have used equal
    gradients all the same.
    """
    alike = _alike(steps)
    if alike is None:
        return []
    found: list[Finding] = []
    clusters = _by_value(alike, lambda records: tuple(records[0].before))
    for ranks in clusters:
        if len(ranks) > 1:
            parted = _first_difference(ranks, alike, size)
            found += parted or _differing_buffers(ranks, alike, size)
    if len(clusters) > 1:
        found += _unequal_beginning(alike, clusters, size)
    return found


def not_compared(steps: Steps) -> str | None:
    """Return why the parameters of one optimizer were not compared, or None where they were."""
    if len(steps) <= 1:
        return None
    firsts = [records[0] for records in steps.values() if 0 in records]
    if any(each.sharded for each in firsts):
        return "parameters that are sharded over ranks: they are to differ, and are not compared"
    if len({each.layout for each in firsts}) > 1:
        return (
            "parameters of optimizers that have others on some ranks, as where each has a part of "
            "the model: they are not compared"
        )
    return None


def _alike(
    steps: Steps,
) -> Steps | None:
    """Return the records that can be compared, or None."""
    known = {rank: records for rank, records in steps.items() if 0 in records}
    if len(known) <= 1 or not_compared(known) is not None:
        return None
    return known


def _by_value(
    steps: Steps,
    value: Callable[[Mapping[int, StepRecord]], object],
) -> list[tuple[int, ...]]:
    by_value: defaultdict[object, list[int]] = defaultdict(list)
    for rank, records in steps.items():
        by_value[value(records)].append(rank)
    return [tuple(sorted(ranks)) for ranks in by_value.values()]


def _steps_of(ranks: tuple[int, ...], steps: Steps) -> Iterator[_Step]:
    """Yield the steps that all of these ranks have told of, in order."""
    common = sorted(set.intersection(*(set(steps[rank]) for rank in ranks)))
    names = next((names for rank in ranks if (names := steps[rank][0].names)), ())
    for index, number in enumerate(common):
        records = {rank: steps[rank][number] for rank in ranks}
        later = [
            step
            for step in common[index + 1 :]
            if not _differing([steps[rank][step].before for rank in ranks])
        ]
        following = common[index + 1] if index + 1 < len(common) else None
        yield _Step(
            number,
            ranks,
            records,
            names,
            None if following is None else {rank: steps[rank][following] for rank in ranks},
            later[0] if later else None,
        )


def _differing(sums: Sequence[Sequence[int]]) -> list[int]:
    return [
        group
        for group, values in enumerate(zip(*sums, strict=False))
        if UNKNOWN not in values and len(set(values)) > 1
    ]


def _first_difference(ranks: tuple[int, ...], steps: Steps, size: int) -> list[Finding]:
    before: _Step | None = None
    for step in _steps_of(ranks, steps):
        written = step.differing(lambda record: record.before)
        if written:
            return [_changed_between(step, before, written, size)]
        gradients = step.differing(lambda record: record.gradients)
        if gradients:
            found = _different_gradients(step, gradients, size)
            return [] if found is None else [found]
        changed = step.differing(lambda record: record.after)
        if changed:
            return [_different_updates(step, changed, size)]
        state = step.differing(lambda record: record.state)
        if state:
            return [_different_state(step, state, size)]
        before = step
    return []


def _finding(
    entry: Entry,
    message: str,
    step: _Step,
    ranks: Sequence[int],
    size: int,
    *,
    place: Place,
    hint: str,
    at_most: Severity = Severity.ERROR,
    doubts: Sequence[str | None] = (),
    beside: Sequence[tuple[Place, str]] = (),
    groups: Sequence[int] = (),
    of_parameters: bool = True,
) -> Finding:
    here = _location(place) or _location(step.first.site)
    evidence: dict[str, JSON] = {"step": step.number + 1, "ranks": list(ranks), "world_size": size}
    if groups:
        evidence["parameters"] = [step.name(group) for group in groups[:_MOST_NAMED]]
    places = [(_location(where), words) for where, words in beside]
    told = [each for each in doubts if each is not None]
    if of_parameters and step.equal_again is not None:
        at_most = min(at_most, Severity.WARNING)
        told.append(_AVERAGED.format(step.equal_again + 1))
    return Finding.of(
        entry,
        message,
        detector="audit",
        severity=at_most,
        doubts=told,
        location=here,
        related=related(*places, apart_from=here),
        hint=hint,
        evidence=evidence,
    )


_MOST_NAMED = 16
"""Parameters that are listed for programs. Chosen, for length."""


def _location(place: Place) -> Location | None:
    return None if place is None else Location(**place)


def _changed_between(
    step: _Step, before: _Step | None, groups: Sequence[int], size: int
) -> Finding:
    """Tell that parameters were equal after a step and are not before the next that was told of."""
    adjacent = before is not None and before.number + 1 == step.number
    writers = {
        rank: place
        for rank in step.ranks
        for group in groups
        if (place := step.records[rank].writes.get(str(group))) is not None
    }
    some = len(writers) < len(step.ranks)
    ranks = sorted(writers) if writers and some else list(step.apart(lambda each: each.before))
    place = writers[ranks[0]] if writers and some else next(iter(writers.values()), None)
    when = f"after step {step.number}" if adjacent else f"up to step {(before or step).number + 1}"
    wrote = (
        f"{ranks_in_words(sorted(writers))} wrote into it in between"
        if writers and adjacent
        else "something other than the optimizer changed it"
    )
    message = (
        f"{step.named(groups)} was equal on {ranks_in_words(step.ranks)} {when} and differs before "
        f"step {step.number + 1}: {wrote}; expected equal parameters on all ranks"
    )
    return _finding(
        catalogue.RANKS_DIVERGED,
        message,
        step,
        ranks,
        size,
        place=place,
        hint="make the same change on every rank, or broadcast the parameter from one",
        at_most=_together(step),
        beside=[(step.first.site, "this step found different parameters")],
        groups=groups,
    )


def _different_updates(step: _Step, groups: Sequence[int], size: int) -> Finding:
    """Tell that equal parameters and gradients were stepped to different ones."""
    apart = step.apart(lambda each: each.settings)
    setting = _first_setting(step) if apart else None
    if setting is not None:
        name, values = setting
        told = " and ".join(
            f"{value:g} on {ranks_in_words(ranks)}" for value, ranks in values.items()
        )
        why = f"`{name}` is {told}; expected the same settings on all ranks"
        hint = f"give every rank the same `{name}`"
        scheduled = {rank: step.records[rank].scheduled for rank in step.ranks}
        only = [rank for rank, where in scheduled.items() if where is not None]
        if only and len(only) < len(step.ranks):
            apart, place = tuple(only), scheduled[only[0]]
        else:
            place = step.records[apart[0]].made
    elif step.differing(lambda each: each.state):
        return _different_state(step, groups, size)
    else:
        apart = step.apart(lambda each: each.after)
        place = step.first.site
        why = (
            "their settings are equal, so that the optimizer's state, or what it computes, is not; "
            "expected the same update on all ranks"
        )
        hint = "load the optimizer's state on every rank"
    message = (
        f"step {step.number + 1} made {step.named(groups)} different on "
        f"{ranks_in_words(step.ranks)}, which had equal parameters and gradients: {why}"
    )
    return _finding(
        catalogue.RANKS_DIVERGED,
        message,
        step,
        apart,
        size,
        place=place,
        hint=hint,
        at_most=min(_together(step), Severity.ERROR if setting else Severity.WARNING),
        beside=[(step.first.site, "this step made them different")],
        groups=groups,
    )


def _different_state(step: _Step, groups: Sequence[int], size: int) -> Finding:
    """Tell that optimizers have kept different things of equal parameters."""
    message = (
        f"{ranks_in_words(step.ranks)} began step {step.number + 1} with equal parameters, and "
        f"with different states of the optimizer for {step.named(groups)}; expected equal states "
        "on all ranks"
    )
    return _finding(
        catalogue.RANKS_DIVERGED,
        message,
        step,
        step.apart(lambda each: each.state),
        size,
        place=None,
        hint="load the optimizer's state on every rank",
        at_most=_together(step),
        of_parameters=bool(step.differing(lambda each: each.after)),
        groups=groups,
    )


def _first_setting(step: _Step) -> tuple[str, Mapping[float, list[int]]] | None:
    """Return the first setting that differs, and the ranks by its value."""
    for group in zip(*(step.records[rank].settings for rank in step.ranks), strict=False):
        for name in group[0]:
            values: defaultdict[Any, list[int]] = defaultdict(list)
            for rank, settings in zip(step.ranks, group, strict=True):
                value = settings.get(name)
                values[value if isinstance(value, float) else _MANY].append(rank)
            if len(values) > 1 and _MANY not in values:
                return name, values
    return None


_MANY = "several numbers"


def _differing_buffers(ranks: tuple[int, ...], steps: Steps, size: int) -> list[Finding]:
    """Tell of buffers that differ on ranks whose parameters never do.

    A part of a model that ranks train together is to be the same on each of them; what each counts
    or averages of its own data may be meant, and is a note.
    """
    told = list(_steps_of(ranks, steps))
    first = told[0].first
    layouts = {each.buffer_layout for step in told for each in step.records.values()}
    if len(layouts) > 1 or not first.buffers or _together(told[0]) is not Severity.ERROR:
        return []
    differ = {step.number: set(step.differing(lambda record: record.buffers)) for step in told}
    kept = {
        group
        for group in differ[0]
        if all(
            steps[rank][step.number].buffers[group] == steps[rank][0].buffers[group]
            for rank in ranks
            for step in told
        )
    }
    found = [
        finding
        for step in told[1:]
        for group in sorted(differ[step.number] - differ[0])
        if group in first.weights
        and (finding := _written_buffer(step, group, first.buffer_names, size)) is not None
    ][:1]
    unequal = sorted(kept & set(first.weights) - set(first.statistics))
    if unequal:
        found.append(_unequal_buffers(told[0], unequal, size))
    # In two steps that were told of: what is made equal every now and then is equal in some.
    always = set.intersection(*differ.values()) if len(told) > 1 else set()
    drift = sorted(always - kept - (set(first.statistics) & set(first.overwritten)))
    if drift and not found:
        found.append(_drifting_buffers(told[0], drift, size))
    return found


def _buffers(step: _Step, groups: Sequence[int]) -> str:
    return listed([step.first.buffer_names[group] for group in groups])


def _written_buffer(step: _Step, group: int, names: Sequence[str], size: int) -> Finding | None:
    writers = {
        rank: place
        for rank in step.ranks
        if (place := step.records[rank].buffer_writes.get(str(group))) is not None
    }
    if not writers or len(writers) == len(step.ranks):
        return None
    wrote = ranks_in_words(sorted(writers))
    message = (
        f"the buffer {listed([names[group]])} was equal on {ranks_in_words(step.ranks)} and "
        f"differs before step {step.number + 1}: only {wrote} wrote into it; expected equal "
        "buffers on all ranks"
    )
    return _finding(
        catalogue.RANKS_DIVERGED,
        message,
        step,
        sorted(writers),
        size,
        place=writers[min(writers)],
        hint="make the same change on every rank, or broadcast the buffer from one",
        at_most=Severity.WARNING,
        of_parameters=False,
        beside=[(step.first.site, "this step found different buffers")],
    )


def _unequal_buffers(step: _Step, groups: Sequence[int], size: int) -> Finding:
    message = (
        f"{ranks_in_words(step.ranks)} have equal parameters, and different values of the "
        f"buffers {_buffers(step, groups)}, which nothing changes; expected equal buffers on all "
        "ranks"
    )
    return _finding(
        catalogue.RANKS_DIVERGED,
        message,
        step,
        step.apart(lambda each: [each.buffers[group] for group in groups]),
        size,
        place=step.first.made,
        hint="broadcast the buffers from rank 0 as well, or wrap the model in "
        "DistributedDataParallel, which does so",
        at_most=Severity.WARNING,
        of_parameters=False,
        beside=[(step.first.site, "the first step")],
    )


def _drifting_buffers(step: _Step, groups: Sequence[int], size: int) -> Finding:
    lost = set(groups) <= set(step.first.overwritten)
    then = (
        "DistributedDataParallel overwrites it with that of rank 0 before each forward, so that "
        "what the others add is lost"
        if lost
        else "nothing makes it equal, so that a checkpoint has that of one rank's data"
    )
    is_statistics = set(groups) <= set(step.first.statistics)
    message = (
        f"each of {ranks_in_words(step.ranks)} has its own value of {_buffers(step, groups)}, in "
        f"step {step.number + 1} and in those that follow, beside equal parameters: {then}"
    )
    return _finding(
        catalogue.RANKS_DIVERGED,
        message,
        step,
        step.ranks,
        size,
        place=None,
        hint="convert the model with nn.SyncBatchNorm.convert_sync_batchnorm"
        if is_statistics
        else "average what goes into the buffer with dist.all_reduce",
        at_most=Severity.NOTE,
        of_parameters=False,
    )


def _different_gradients(step: _Step, groups: Sequence[int], size: int) -> Finding | None:
    """Tell that ranks with equal parameters step with different gradients."""
    if len({record.backwards for record in step.records.values()}) > 1 and step.first.reduced:
        return _skipped_step(step, groups, size)
    written = _written_apart(step, groups, size)
    if written is not None:
        return written
    reduced = [
        group for group in groups if all(group in each.reduced for each in step.records.values())
    ]
    if reduced:
        return _past_the_reducer(step, reduced, size)
    equal = len(step.first.gradients) - len(groups)
    shared = equal and any(
        value not in (ABSENT, UNKNOWN)
        for group, value in enumerate(step.first.gradients)
        if group not in groups
    )
    return _reduced_in_part(step, groups, size) if shared else _never_reduced(step, groups, size)


def _written_apart(step: _Step, groups: Sequence[int], size: int) -> Finding | None:
    """Tell of gradients that only some ranks have changed after the backward."""
    writers = {
        rank: place
        for rank in step.ranks
        for group in groups
        if (place := step.records[rank].changed.get(str(group))) is not None
    }
    if not writers or len(writers) == len(step.ranks):
        return None
    ranks = sorted(writers)
    message = (
        f"step {step.number + 1} used a gradient of {step.named(groups)} that differs between "
        f"{ranks_in_words(step.ranks)}: only {ranks_in_words(ranks)} wrote into it after the "
        "backward; expected the same change on all ranks"
    )
    return _finding(
        catalogue.RANKS_DIVERGED,
        message,
        step,
        ranks,
        size,
        place=writers[ranks[0]],
        hint="make the same change on every rank",
        at_most=_together(step),
        beside=[(step.first.site, "this step used different gradients")],
        groups=groups,
    )


def _together(step: _Step) -> Severity:
    """Return how severe it is that ranks part: where nothing connects them, they may be to."""
    connected = any(
        each.reduced or each.exchanged
        for records in (step.records, step.following or {})
        for each in records.values()
    )
    return Severity.ERROR if connected else Severity.NOTE


def _skipped_step(step: _Step, groups: Sequence[int], size: int) -> Finding:
    most = max(record.backwards for record in step.records.values())
    ranks = [rank for rank in step.ranks if step.records[rank].backwards == most]
    if len(ranks) == len(step.ranks):
        ranks = list(step.ranks)
    own = step.records[ranks[0]]
    fewest = min(record.backwards for record in step.records.values())
    message = (
        f"{ranks_in_words(ranks)} had run {plural(most, 'backward')} by step {step.number + 1}, "
        f"the other ranks {fewest}: a step was skipped there, and the step that came in its place "
        f"used other gradients of {step.named(groups)}; expected every rank to step on the same "
        "backwards"
    )
    return _finding(
        catalogue.RANKS_DIVERGED,
        message,
        step,
        ranks,
        size,
        place=own.cleared,
        hint="decide on all ranks together whether to step, by an all_reduce of the condition",
        beside=[(own.site, "this step came one backward late")],
        groups=groups,
    )


def _past_the_reducer(step: _Step, groups: Sequence[int], size: int) -> Finding:
    """Tell why DistributedDataParallel has not reduced gradients that it was to reduce."""
    records = step.records.values()
    culprit = next(
        (each for each in records if not each.synchronizes or each.suspended or each.bypass),
        step.first,
    )
    place: Place
    if culprit.suspended is not None or not culprit.synchronizes:
        place = culprit.suspended
        why = "their backward ran under no_sync()"
        hint = "leave no_sync() before the forward of the last micro-batch of each step"
    elif culprit.bypass == "autograd.grad":
        place = culprit.bypassed
        why = "autograd.grad computed them, which goes past the hooks that reduce them"
        hint = "compute them with loss.backward(), or average them with dist.all_reduce"
    elif culprit.bypass == "module" or culprit.called is False:
        place = culprit.bypassed
        why = "the forward went through a part of the model and not through its wrapper"
        hint = "call the DistributedDataParallel itself"
    else:
        place = None
        why = "it has not reduced them"
        hint = "wrap the model after its last parameter is added, and call the wrapper"
    message = (
        f"step {step.number + 1} used a gradient of {step.named(groups)} that differs between "
        f"{ranks_in_words(step.ranks)}, though DistributedDataParallel is to average it: {why}"
    )
    is_hooked = any(each.hooked for each in records)
    return _finding(
        catalogue.GRADIENT_NOT_SYNCHRONIZED,
        message,
        step,
        step.ranks,
        size,
        place=place,
        hint=hint,
        at_most=Severity.WARNING if is_hooked else Severity.ERROR,
        doubts=[_HOOKED] if is_hooked else [],
        beside=[(step.first.site, "this step used the gradients of one rank")],
        groups=groups,
    )


def _reduced_in_part(step: _Step, groups: Sequence[int], size: int) -> Finding:
    """Tell of gradients that are equal on the ranks beside others that are not."""
    without = [
        rank
        for rank in step.ranks
        if any(step.records[rank].gradients[group] == ABSENT for group in groups)
    ]
    some = f", and {ranks_in_words(without)} had none for some of them" if without else ""
    message = (
        f"step {step.number + 1} used a gradient of {step.named(groups)} that differs between "
        f"{ranks_in_words(step.ranks)}, whose parameters and other gradients are equal"
        f"{some}; expected all gradients to be averaged"
    )
    return _finding(
        catalogue.GRADIENT_NOT_SYNCHRONIZED,
        message,
        step,
        step.ranks,
        size,
        place=None,
        hint="average zeros where a rank has no gradient, or wrap the model in "
        "DistributedDataParallel(find_unused_parameters=True)"
        if without
        else "wrap the model in DistributedDataParallel after its last parameter is added, or "
        "average this gradient too",
        # Beside DistributedDataParallel one model is shared; else this may be tensor parallelism,
        # where each rank has a gradient.
        at_most=Severity.WARNING if step.first.reduced or without else Severity.NOTE,
        groups=groups,
    )


def _never_reduced(step: _Step, groups: Sequence[int], size: int) -> Finding | None:
    """Tell that nothing averages gradients, if that goes on in the next step."""
    following = step.following
    if following is None:
        return None
    differ = _differing([following[rank].gradients for rank in step.ranks])
    if not differ:
        return None
    exchanged = any(each.exchanged for each in following.values())
    cooperate = all(each.sampled or each.metrics for each in following.values())
    alone = not all(each.initialized for each in step.records.values())
    message = (
        f"{ranks_in_words(step.ranks)} began with equal parameters, and each steps on gradients of "
        f"its own from step {step.number + 1} on, of {step.named(groups)}: none was seen to "
        "be reduced over ranks, so that each trains a model of its own; expected averaged gradients"
    )
    return _finding(
        catalogue.GRADIENT_NOT_SYNCHRONIZED,
        message,
        step,
        step.ranks,
        size,
        place=None,
        hint="wrap the model in DistributedDataParallel, or average each gradient with "
        "dist.all_reduce before the step",
        at_most=Severity.WARNING,
        doubts=[
            _EXCHANGED if exchanged else None,
            _NO_GROUP if alone else None,
            None if cooperate or exchanged else _UNCONNECTED,
        ],
        groups=groups,
    )


def _unequal_beginning(
    steps: Steps, clusters: Sequence[tuple[int, ...]], size: int
) -> list[Finding]:
    """Tell of ranks that have begun with different parameters and use the same gradients."""
    ranks = tuple(sorted(steps))
    step = next(_steps_of(ranks, steps))
    groups = step.differing(lambda record: record.before)
    gradients = step.differing(lambda record: record.gradients)
    has_gradients = any(value not in (ABSENT, UNKNOWN) for value in step.first.gradients)
    if gradients or not has_gradients:
        return _unequal_all_along(step, groups, size) if len(clusters) == len(ranks) else []
    message = (
        f"{ranks_in_words(ranks)} begin training with different values of {step.named(groups)}, "
        "and step on the same gradients; expected equal parameters on all ranks"
    )
    return [
        _finding(
            catalogue.RANKS_DIVERGED,
            message,
            step,
            step.apart(lambda each: each.before),
            size,
            place=step.first.made,
            hint="broadcast the parameters from rank 0 before the first step, or wrap the model in "
            "DistributedDataParallel, which does so",
            beside=[(step.first.site, "the first step")],
            groups=groups,
        )
    ]


def _unequal_all_along(step: _Step, groups: Sequence[int], size: int) -> list[Finding]:
    """Tell of ranks that share the data, and neither parameters nor gradients."""
    following = step.following
    records = step.records.values()
    if following is None or not all(each.sampled for each in following.values()):
        return []
    if any(each.exchanged for each in following.values()) or any(each.reduced for each in records):
        return []
    message = (
        f"{ranks_in_words(step.ranks)} share a data set by a DistributedSampler, and neither "
        f"parameters nor gradients ({step.named(groups)}): each trains a model of its own; "
        "expected equal parameters and averaged gradients"
    )
    return [
        _finding(
            catalogue.GRADIENT_NOT_SYNCHRONIZED,
            message,
            step,
            step.ranks,
            size,
            place=None,
            hint="wrap the model in DistributedDataParallel",
            at_most=Severity.WARNING,
            groups=groups,
        )
    ]
