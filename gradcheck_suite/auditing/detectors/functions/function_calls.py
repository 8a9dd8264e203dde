"""What the forward of a custom autograd.Function does with its inputs, and what it saves.

The first calls of each Function of the user's are looked at from both sides; after those, its
``forward`` is put back.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradcheck_suite import catalogue
from gradcheck_suite._runtime.memory import is_readable
from gradcheck_suite._runtime.patches import Patches
from gradcheck_suite._torch_compat import (
    custom_function_class,
    version_of,
    without_dispatch_modes,
    without_torch_function,
)
from gradcheck_suite.auditing.call_sites import CallSite, line_that_drops, location_of
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.detectors.functions.function_contract import (
    is_the_users,
    line_in,
    users_functions,
)
from gradcheck_suite.auditing.detectors.reachable_parameters import reachable_graph
from gradcheck_suite.auditing.events import (
    Attention,
    BackwardFinished,
    BackwardStarted,
    ForwardFinished,
)
from gradcheck_suite.auditing.instrumentation.base import is_compiling
from gradcheck_suite.auditing.saved_tensors.checksums import Fingerprint, fingerprint, same_content
from gradcheck_suite.auditing.user_modes import without_user_modes
from gradcheck_suite.findings import Finding, Location, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gradcheck_suite.auditing.detectors.functions.function_contract import (
        FunctionContractDetector,
    )
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["FunctionCallDetector"]

_CALLS = 4
"""Calls of each Function that are looked at. A bound on cost: whether forward writes or what it
saves is the same in each call, but for branches."""

_CALLS_IN_VAIN = 64
"""Calls that are looked at while what the first ones returned was thrown away. A bound on cost: as
many layers may call it in one step."""

_ENOUGH = 3
"""Steps in which what a Function returned was thrown away, before it is told. Chosen: a call before
training, to load a kernel, comes in none but the first."""

_SEARCHED = 8
"""Backwards whose graphs are searched for Functions; four times as many while one that has saved an
intermediate waits for a second derivative. A bound on cost."""

_LOOKS = 4
"""Calls of a model after which the program's Functions are looked up; modules with more of them may
be imported between the first. A bound on cost: each takes 1.6 ms, as torch has hundreds itself."""

_FEW_VALUES = 2
"""Different values that a saved mask has at most: true and false, or zero and the factor of a
dropout. What has more was computed."""

_LOOKED_AT = 4_096
"""Elements of a saved tensor that are looked at for that. A bound on cost, as each becomes a number
of Python's; a computed tensor has a third value among the first few."""


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The inputs of a call.

    Attributes:
        tensors: those that gradients flow to, by the names that forward gives them.
        given: all tensors in the arguments.
        versions: of the first.
        since: the time when it began.
        random: the state of torch's generator then.
    """

    tensors: tuple[tuple[str, Tensor], ...]
    given: tuple[Tensor, ...]
    versions: tuple[int, ...]
    since: int
    random: Tensor


@dataclass(slots=True)
class _Saved:
    """A saved tensor that is neither input nor output, and what later calls say of it.

    Attributes:
        what: it, for the message.
        place: its number among what is saved.
        content: what it held in the first call.
        given: what the inputs held that gradients flow to.
        stays: whether it held the same in a later call, whose inputs held something else.
        moves: whether it held something else in a later call.
        drawn: whether forward drew random numbers, which depend on no input.
        without_gradient: the inputs that require grad and were given none by backward.
    """

    what: str
    place: int
    content: Fingerprint | None
    given: tuple[Fingerprint | None, ...]
    drawn: bool
    stays: bool = False
    moves: bool = False
    without_gradient: set[str] = field(default_factory=set)

    def compare(self, saved: Tensor, given: tuple[tuple[str, Tensor], ...]) -> None:
        """Note what another call has saved in the same place."""
        if self.content is None:
            return
        if _is_same(self.content, saved):
            known = zip(self.given, (tensor for _, tensor in given), strict=False)
            self.stays |= any(not _is_same(before, now) for before, now in known)
        else:
            self.moves = True

    def doubts(self) -> Iterator[str]:
        """Yield what speaks against a mistake."""
        if self.drawn:
            yield "forward draws random numbers, which are constants to every derivative"
        if self.without_gradient:
            names = " and ".join(f"`{name}`" for name in sorted(self.without_gradient))
            yield f"{names} gets no gradient, and may be all that it was computed from"


@dataclass(slots=True)
class _Dropped:
    """Calls of a Function whose result was thrown away.

    Attributes:
        site: the line that does it first.
        last: how many backwards had begun by the last of them.
        turns: how many of them came after another backward than the one before.
        count: how many there were.
        used: whether what another call returned was not.
    """

    site: CallSite | None
    last: int
    turns: int = 1
    count: int = 1
    used: bool = False


class FunctionCallDetector:
    """Reports missing-mark-dirty (GCS503), saved-intermediate (GCS507) and no-effect (GCS318).

    The last for a Function whose result the program throws away, where it does not work in place.

    That an output is wrongly differentiable (GCS505) shows only when backward is run again with
    another gradient for it, which no audit does; a gradient check tells.

    Args:
        recorder: whose events these are.
        contract: looks at what forward has kept as attributes of ctx.
    """

    def __init__(self, recorder: Recorder, contract: FunctionContractDetector) -> None:
        self._recorder = recorder
        self._contract = contract
        self._looks = 0
        self._patches = Patches()
        self._calls: dict[type, int] = {}
        self._searched = 0
        self._dirty: dict[type, Finding] = {}
        self._dropped: dict[type, _Dropped] = {}
        self._saved: dict[type, _Saved] = {}
        self._names: dict[type, list[str]] = {}
        self._twice: set[type] = set()
        self._reached: set[type] = set()

    def subscriptions(self) -> Subscriptions:
        """Find the Functions, those in the first graphs too, and which are differentiated twice."""
        return {
            ForwardFinished: self._after_forward,
            BackwardStarted: self._before_backward,
            BackwardFinished: self._after_backward,
        }

    def findings(self) -> list[Finding]:
        """Return one finding for each Function and mistake."""
        twice = [
            _saved_intermediate(function, saved)
            for function, saved in self._saved.items()
            if function in self._twice and (saved.moves or not saved.stays)
        ]
        dropped = [
            _thrown_away(function, each)
            for function, each in self._dropped.items()
            if each.turns >= _ENOUGH and not each.used
        ]
        return [*self._dirty.values(), *twice, *dropped]

    def _after_forward(self, _event: ForwardFinished) -> Attention | None:
        """Watch all Functions that there are: a program that only evaluates has no backward."""
        if self._looks >= _LOOKS:
            return Attention.ASLEEP
        self._looks += 1
        for function in users_functions():
            if function not in self._calls:
                self._watch(function)
        return None

    def _before_backward(self, event: BackwardStarted) -> Attention | None:
        self._reached = set()
        if self._searched >= _SEARCHED and (
            self._searched >= 4 * _SEARCHED
            or all(function in self._twice for function in self._saved)
        ):
            # Where no Function is watched, none can come to be looked for again.
            return None if self._calls else Attention.ASLEEP
        self._searched += 1
        for node in reachable_graph(event).custom:
            function = custom_function_class(node)
            if function is not None and is_the_users(function):
                self._reached.add(function)
                if function not in self._calls:
                    self._watch(function)
                if function in self._saved:
                    node.register_hook(self._gradients_noted(function))
        return None

    def _gradients_noted(self, function: type) -> Callable[..., None]:
        """Return a hook that notes which inputs of a Function its backward gives no gradient."""
        saved, names = self._saved[function], self._names[function]

        def note(made: Sequence[Tensor | None], _given: Sequence[Tensor | None]) -> None:
            for name, gradient in zip(names, made, strict=False):
                if name and gradient is None:
                    saved.without_gradient.add(name)

        return note

    def _after_backward(self, event: BackwardFinished) -> Attention | None:
        if event.creates_graph and not event.failed:
            self._twice |= self._reached
        return None if self._calls or self._searched < _SEARCHED else Attention.ASLEEP

    def put_back(self) -> None:
        """Let all Functions have their own forward again."""
        self._patches.restore()

    def _watch(self, function: type) -> None:
        self._calls[function] = 0
        forward: Callable[..., Any] = function.forward  # type: ignore[attr-defined]  # a Function
        plain: Any = torch.autograd.Function
        separate = function.setup_context is not plain.setup_context  # type: ignore[attr-defined]  # as above
        waiting: list[_Inputs] = []

        def looked_at(*args: Any, **kwargs: Any) -> Any:
            if not self._recorder.state.running or self._is_done(function):
                return forward(*args, **kwargs)
            inputs = self._inputs_of(forward, args, skip=0 if separate else 1)
            result = forward(*args, **kwargs)
            self._calls[function] += 1
            if separate:
                waiting[:] = [inputs]
            else:
                self._look(function, args[0], inputs, result)
            return result

        self._patches.replace(function, "forward", staticmethod(_watched(forward, looked_at)))
        if separate:
            self._watch_setup(function, waiting)

    def _is_done(self, function: type) -> bool:
        calls, dropped = self._calls[function], self._dropped.get(function)
        is_open = dropped is not None and not dropped.used and dropped.turns < _ENOUGH
        return calls >= (_CALLS_IN_VAIN if is_open else _CALLS)

    def _watch_setup(self, function: type, waiting: list[_Inputs]) -> None:
        setup: Callable[..., Any] = function.setup_context  # type: ignore[attr-defined]  # as above

        def looked_at(ctx: Any, inputs: Any, output: Any) -> Any:
            result = setup(ctx, inputs, output)
            if waiting:
                self._look(function, ctx, waiting.pop(), output)
            return result

        self._patches.replace(function, "setup_context", staticmethod(_watched(setup, looked_at)))

    def _inputs_of(self, forward: Callable[..., Any], args: Any, *, skip: int) -> _Inputs:
        # An audit around this one may watch it too.
        code = getattr(inspect.unwrap(forward), "__code__", None)
        names = () if code is None else code.co_varnames[: code.co_argcount]
        found = tuple(
            (names[place] if place < len(names) else f"input {place - skip}", value)
            for place, value in enumerate(args)
            if place >= skip and isinstance(value, torch.Tensor) and value.requires_grad
        )
        now = self._recorder.state.clock.tick()
        given = tuple(_tensors(args[skip:]))
        versions = tuple(version_of(tensor) for _, tensor in found)
        return _Inputs(found, given, versions, now, torch.get_rng_state())

    def _look(self, function: type, ctx: Any, inputs: _Inputs, result: Any) -> None:
        try:
            if any(getattr(ctx, "needs_input_grad", ())):
                self._contract.look_at_context(ctx, function, tuple(_tensors(result)))
            self._look_for_writes(function, ctx, inputs)
            self._look_at_use(function, ctx, inputs)
            self._look_at_saved(function, ctx, inputs, result)
        except Exception as error:  # noqa: BLE001 - the user's program goes on
            self._recorder.bus.note_failure("FunctionCallDetector", error)
            self._calls[function] = _CALLS

    def _look_for_writes(self, function: type, ctx: Any, inputs: _Inputs) -> None:
        marked = {id(tensor) for tensor in _tensors(getattr(ctx, "dirty_tensors", None))}
        for (name, tensor), version in zip(inputs.tensors, inputs.versions, strict=True):
            if version_of(tensor) == version or id(tensor) in marked or function in self._dirty:
                continue
            writes = [*self._recorder.write_log.since(inputs.since, tensor)]
            defined = line_in(function, "forward", None)
            where = location_of(writes[0].site) if writes else defined
            self._dirty[function] = _missing_mark(function, name, where, defined)

    def _look_at_use(self, function: type, ctx: Any, inputs: _Inputs) -> None:
        """Note whether the program throws away what this call will return."""
        if not inputs.tensors or getattr(ctx, "dirty_tensors", None):
            return
        site, known = line_that_drops(), self._dropped.get(function)
        backwards = self._recorder.state.backwards
        if known is None:
            self._dropped[function] = _Dropped(site, backwards, used=site is None)
        elif site is None:
            known.used = True
        else:
            known.count += 1
            known.turns += backwards != known.last
            known.last = backwards

    def _look_at_saved(self, function: type, ctx: Any, inputs: _Inputs, result: Any) -> None:
        tensors = list(_tensors(getattr(ctx, "to_save", None)))
        if function in self._saved:
            known_before = self._saved[function]
            if known_before.place < len(tensors):
                known_before.compare(tensors[known_before.place], inputs.tensors)
            return
        if _is_once_differentiable(function):
            return
        # One that needs no gradient is a constant to the second derivative as well.
        known = {id(tensor) for tensor in inputs.given}
        memory = {_memory_of(tensor) for tensor in inputs.given}
        memory |= {_memory_of(tensor) for tensor in _tensors(result)}
        known |= {id(tensor) for tensor in _tensors(result)}
        if not inputs.tensors:
            return
        for place, tensor in enumerate(tensors):
            if id(tensor) in known or _memory_of(tensor) in memory or tensor.requires_grad:
                continue
            if tensor.is_floating_point() and _varies(tensor):
                shape = "x".join(map(str, tensor.shape)) or "scalar"
                self._saved[function] = _Saved(
                    f"saved tensor {place} ({shape})",
                    place,
                    _content_of(tensor),
                    tuple(_content_of(given) for _, given in inputs.tensors),
                    drawn=not torch.equal(inputs.random, torch.get_rng_state()),
                )
                wanted = {id(given): name for name, given in inputs.tensors}
                self._names[function] = [wanted.get(id(given), "") for given in inputs.given]
                return


def _content_of(tensor: Tensor) -> Fingerprint | None:
    with torch.no_grad():
        return without_user_modes(fingerprint, tensor)


def _is_same(before: Fingerprint | None, tensor: Tensor) -> bool:
    """Return whether a tensor holds what was noted; True where that can't be told."""
    if before is None:
        return True
    with torch.no_grad():
        same: bool = without_user_modes(same_content, before, tensor)
    return same


def _watched(original: Callable[..., Any], looked_at: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that torch.compile traces as the original and that is looked at otherwise.

    It holds functions alone: the tracer of torch 2.6 refuses one that holds an object of ours.
    """

    @functools.wraps(original)
    def watched(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) if is_compiling() else looked_at(*args, **kwargs)

    return watched


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


def _memory_of(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0


def _varies(tensor: Tensor) -> bool:
    """Return whether a tensor is more than a mask: it has more than a few values."""
    if tensor.layout is not torch.strided or not tensor.numel() or not is_readable(tensor):
        return False
    with torch.no_grad(), without_torch_function(), without_dispatch_modes():
        values: set[float] = set(tensor.detach().flatten()[:_LOOKED_AT].tolist())
        return len(values) > _FEW_VALUES


def _is_once_differentiable(function: type) -> bool:
    backward = getattr(function, "backward", None)
    wrapped = getattr(backward, "__code__", None)
    inner = getattr(getattr(backward, "__wrapped__", None), "__code__", None)
    return inner is not None and wrapped is not inner


def _missing_mark(
    function: type, name: str, where: Location | None, defined: Location | None
) -> Finding:
    return Finding.of(
        catalogue.MISSING_MARK_DIRTY,
        f"forward of {function.__name__} wrote into its input `{name}`, which requires grad, and "
        "did not say so: whatever uses that tensor next is differentiated as if it had not changed",
        detector="audit",
        location=where,
        related=related((defined, "in this forward"), apart_from=where),
        hint=f"compute a new tensor, or call ctx.mark_dirty({name}) and return it",
        evidence={"function": function.__name__, "input": name},
    )


def _thrown_away(function: type, dropped: _Dropped) -> Finding:
    return Finding.of(
        catalogue.NO_EFFECT,
        f"what {function.__name__} returns is thrown away here, {dropped.count} times or more: no "
        "backward can reach it, and what it was to do to the gradients is not done; expected its "
        "result in place of what it was given",
        detector="audit",
        severity=Severity.WARNING,
        location=location_of(dropped.site),
        hint=f"x = {function.__name__}.apply(x, ...), and go on with x",
        evidence={"function": function.__name__, "count": dropped.count},
    )


def _saved_intermediate(function: type, saved: _Saved) -> Finding:
    return Finding.of(
        catalogue.SAVED_INTERMEDIATE,
        f"{function.__name__} was differentiated with create_graph=True, and its {saved.what} is "
        "neither an input nor an output of forward: to the second derivative it is a constant",
        detector="audit",
        doubts=saved.doubts(),
        location=line_in(function, "forward", r"save_for_backward\s*\("),
        hint=(
            "save inputs and outputs only, and compute the rest again in backward; or mark "
            "backward with torch.autograd.function.once_differentiable"
        ),
        evidence={"function": function.__name__},
    )
