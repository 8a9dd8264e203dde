"""Find the call in a deep model whose backward is wrong: what is looked at, and in which order."""

from __future__ import annotations

import functools
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import torch
from torch import nn
from torch.func import functional_call

from gradcheck_suite import _torch_compat
from gradcheck_suite._runtime.watchers import unwatched
from gradcheck_suite.errors import UsageError
from gradcheck_suite.findings import JSON, Finding, Related, Report, Verdict, VerdictStatus
from gradcheck_suite.verification.check import check_with
from gradcheck_suite.verification.localization.quick_check import QuickResult, quick_check
from gradcheck_suite.verification.options import CheckOptions
from gradcheck_suite.verification.progress import Deadline, report_progress, shown, watched_by
from gradcheck_suite.verification.sharded.check import is_sharded_anywhere
from gradcheck_suite.verification.target.arguments import split_arguments
from gradcheck_suite.verification.target.call_recorder import Call, CallRecorder, Kind
from gradcheck_suite.verification.target.call_replay import (
    ReplayableCall,
    copied_module,
    replayable,
)
from gradcheck_suite.verification.target.graph_walk import reachable
from gradcheck_suite.verification.target.random_state import RandomState, preserved_randomness
from gradcheck_suite.verification.target.tree import replace_leaves
from gradcheck_suite.verification.text import describe

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Level", "localize"]

Level: TypeAlias = Literal["auto", "functions", "modules", "calls", "tree"]

_KINDS: dict[str, frozenset[Kind]] = {
    "functions": frozenset({"function"}),
    "modules": frozenset({"function", "module"}),
    "calls": frozenset({"function", "operation"}),
    "tree": frozenset({"module", "container"}),
}
_WHAT = {
    "function": "custom Functions",
    "module": "leaf modules",
    "operation": "ops",
    "container": "modules with children",
}
_GOALS = {
    "functions": "custom Functions",
    "modules": "leaf modules",
    "calls": "single ops",
    "tree": "modules with children",
}
_FORWARDS = {"functions": 6.0, "modules": 12.0, "calls": 30.0, "tree": 30.0}
"""What a pass costs, in forwards of the model; a forward and backward is about three of them. An
estimate: it decides what is begun within the time limit."""
_BUDGET = 60.0
"""Seconds within which passes are begun where no time limit is given. A bound on cost."""
_CLEARLY = 4.0
"""How many tolerances a call has to deviate by to be called wrong without a thorough check, where
another call of the same target is: as ``decision.CLEARLY``."""
_TOO_DEEP = "rounding hides its derivative as a whole; what it calls was looked at instead"


def localize(
    model: Any,
    args: Any,
    kwargs: Mapping[str, Any] | None = None,
    loss: Callable[[Any], Any] | None = None,
    *,
    level: Level = "auto",
    seed: int = 0,
    time_limit: float | None = None,
) -> Report:
    """Name the custom Function, module or op of a deep model whose gradient is wrong.

    The model runs once for each kind of call that is looked at. Each call is probed, with its real
    inputs, just before it is made: one random direction, a few steps. What does not clearly agree
    is checked thoroughly, as ``check_gradients`` does. The innermost call that is wrong is
    reported; those around it are told to contain it. Nothing of the model is modified.

    >>> import torch
    >>> report = localize(torch.nn.Linear(3, 2), torch.randn(4, 3))
    >>> report.ok, [verdict.output for verdict in report.verdicts]
    (True, ['Linear', 'linear'])

    Args:
        model: a module, or any callable.
        args: a tensor; a tuple or list of positional arguments; or a dict of keyword arguments.
        kwargs: further keyword arguments.
        loss: applied to what the model returns; its calls are looked at as well.
        level: "functions" looks at custom Functions only, "modules" at leaf modules as well,
            "calls" at custom Functions and every op, "tree" at all modules from the root down, into
            those that are wrong. "auto" does one after the other, as long as nothing is found and
            a minute, or the time limit, is likely to suffice.
        seed: seeds probes and the random draws of the model.
        time_limit: seconds after which no other call is looked at; the report counts those left.

    Returns:
        A report with a verdict for each call that was looked at, and a finding for each that is
        wrong: its module path, which of several calls, the line of the call and, for a custom
        Function, of its backward.

    Raises:
        UsageError: the model can't be called, or an option makes no sense. What the model raises
            arrives unchanged.
    """
    _validate(model, level, seed, time_limit, loss)
    if is_sharded_anywhere(model, args, kwargs):
        raise UsageError(
            f"{type(model).__name__} is sharded over ranks, where calls inside of it can't be run "
            "by themselves; localize before it is sharded"
        )
    positional, keyword = split_arguments(args, kwargs)
    run = _Run(model, positional, keyword, loss, seed, Deadline.after(time_limit))
    with (
        unwatched(),
        torch.inference_mode(mode=False),
        torch.enable_grad(),
        preserved_randomness(),
        _eagerly(),
        shown("Localizing"),
    ):
        return run.report(level, math.inf if level != "auto" else time_limit or _BUDGET)


@contextmanager
def _eagerly() -> Iterator[None]:
    """Let compiled code run as it was written, as its parts can be looked at only so."""
    # Nobody has compiled anything before the compiler was imported, which takes seconds.
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def _validate(model: object, level: object, seed: object, time_limit: object, loss: object) -> None:
    if not callable(model) or (isinstance(model, type) and issubclass(model, nn.Module)):
        raise UsageError(f"expected a module or another callable, got {describe(model)}")
    if isinstance(model, type) and issubclass(model, torch.autograd.Function):
        raise UsageError(
            f"{model.__name__} is an autograd.Function, and nothing inside of it has a gradient of "
            "its own; check it as a whole: gs.check_gradients or gradcheck-suite verify"
        )
    if isinstance(model, nn.DataParallel):
        raise UsageError(
            "localize can't look into nn.DataParallel, which copies the model on every call; give "
            "it the model that it holds: model.module"
        )
    if level not in get_args(Level):
        raise UsageError(f"level must be one of {', '.join(get_args(Level))}, got {level!r}")
    CheckOptions.validated(seed=seed, time_limit=time_limit)
    if loss is not None and not callable(loss):
        raise UsageError(f"loss must be a function of what the model returns, got {loss!r}")


@dataclass(slots=True)
class _Run:
    """One search: the passes over the model, and what they have shown."""

    model: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    loss: Callable[[Any], Any] | None
    seed: int
    deadline: Deadline
    examined: list[Examined] = field(default_factory=list)
    left: Counter[str] = field(default_factory=Counter)
    without_gradient: Counter[str] = field(default_factory=Counter)
    not_covered: list[str] = field(default_factory=list)
    passes: list[str] = field(default_factory=list)
    order: tuple[Kind, ...] = get_args(Kind)

    def report(self, level: str, budget: float) -> Report:
        """Make the passes of a level and tell what they have shown."""
        began = time.monotonic()
        forward = 0.0
        for name in _KINDS if level == "auto" else (level,):
            if self.passes and any(known.status == "fail" for known in self.examined):
                self.not_covered.append(f"{_GOALS[name]} were not probed, as something was found")
                continue
            cost = time.monotonic() - began + _FORWARDS[name] * forward
            if self.passes and (cost > budget or self.deadline.passed):
                self.not_covered.append(
                    f"{_GOALS[name]} were not probed: that takes about "
                    f"{_FORWARDS[name] * forward:.0f} s (level={name!r})"
                )
                continue
            report_progress(_GOALS[name], functools.partial(self._so_far, interrupted=name))
            seconds = _Pass(self, name).run()
            forward = forward or seconds
            self.passes.append(name)
        return self._so_far()

    def _so_far(self, interrupted: str | None = None) -> Report:
        """Tell what was found; ``interrupted`` is the pass that is not at its end."""
        not_covered = list(self.not_covered)
        if interrupted is not None:
            not_covered.append(
                f"interrupted: {_GOALS[interrupted]} were not all probed, nor what comes after them"
            )
        self.examined.sort(key=lambda known: (self.order.index(known.call.kind), known.call.number))
        findings = []
        told: set[tuple[str, str, Kind]] = set()
        for known in self.examined:
            same = (known.call.path, known.call.name, known.call.kind)
            if known.status == "fail" and same not in told:
                told.add(same)
                repeats = [
                    other.call.turn
                    for other in self.examined
                    if other.status in {"fail", "repeats"}
                    and other is not known
                    and (other.call.path, other.call.name, other.call.kind) == same
                ]
                findings.append(finding_of(known, repeats))
        for kind, count in self.left.items():
            not_covered.append(f"{count} calls of {kind} were left when the time was up")
        for kind, count in self.without_gradient.items():
            not_covered.append(
                f"{count} calls of {kind} have no input or output that requires grad"
            )
        kinds = Counter(_WHAT[known.call.kind] for known in self.examined)
        summary: dict[str, JSON] = {
            "target": getattr(self.model, "__qualname__", type(self.model).__name__),
            "seed": self.seed,
            "passes": tuple(self.passes),
            "probed": dict(kinds),
            "verdicts": dict(Counter(known.status for known in self.examined)),
        }
        if isinstance(self.model, nn.Module) and any(
            map(_torch_compat.is_compiled, self.model.modules())
        ):
            not_covered.append(
                "compiled modules ran as they were written; whether the compiled code has the same "
                "gradients, check_gradients(..., compiled=True) says"
            )
        if not self.examined and interrupted is None:
            not_covered.append("nothing in this model carries a gradient")
        return Report(
            tool="gradcheck-suite localize",
            findings=tuple(findings),
            verdicts=tuple(map(verdict_of, self.examined)),
            summary=summary,
            not_covered=tuple(not_covered),
            reproduction=next(
                (
                    known.report.reproduction
                    for known in self.examined
                    if known.status == "fail" and known.report is not None
                ),
                None,
            ),
        )


def _without_path(model: nn.Module, result: Any) -> list[str]:
    """Tell of parameters that backward from the result can't reach; of calls, none is to blame."""
    tensors: list[torch.Tensor] = []

    def collect(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
            tensors.append(leaf)
        return leaf

    replace_leaves(result, collect)
    nodes = reachable(*(each.grad_fn for each in tensors))
    # The graph of what reentrant checkpoints compute is made in backward.
    if not tensors or any(node.name() == _REENTRANT for node in nodes):
        return []
    leaves: list[object] = [getattr(node, "variable", None) for node in nodes]
    reached = {id(each) for each in (*leaves, *tensors)}
    asked = {name: each for name, each in model.named_parameters() if each.requires_grad}
    lost = [f"`{name}`" for name, each in asked.items() if id(each) not in reached]
    if not lost:
        return []
    more = f" and {len(lost) - _LISTED} more" if len(lost) > _LISTED else ""
    told = (
        f"no gradient reaches {len(lost)} of {len(asked)} parameters "
        f"({', '.join(lost[:_LISTED])}{more}): nothing in the graph leads there, whichever call "
        "cut it; gs.check_gradients(model, inputs) says whether the output depends on them"
    )
    return [told]


_REENTRANT = "CheckpointFunctionBackward"
_LISTED = 4
"""Parameters that one line names. Chosen, for length."""


class _Pass:
    """One forward of the model, every wanted call of which is probed just before it is made."""

    def __init__(self, run: _Run, name: str) -> None:
        self._run = run
        self._name = name
        self._doubtful: list[tuple[Call, ReplayableCall, QuickResult]] = []
        self._parents: dict[int, int | None] = {}
        self._passed_containers: set[int] = set()
        self._spent = 0.0

    def run(self) -> float:
        """Make the pass; return the seconds that the model itself took."""
        run = self._run
        model = copied_module(run.model) if isinstance(run.model, nn.Module) else run.model
        args, kwargs = replace_leaves((run.args, run.kwargs), _fresh)
        recorder = CallRecorder(model, _KINDS[self._name], self._visit)
        RandomState.from_seed(run.seed).restore()
        began = time.monotonic()
        with recorder.recording():
            if isinstance(model, nn.Module):
                buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
                result = functional_call(model, buffers, args, kwargs)
            else:
                result = model(*args, **kwargs)
            if run.loss is not None:
                result = run.loss(result)
        forward = time.monotonic() - began - self._spent
        if isinstance(model, nn.Module) and not run.passes:
            run.not_covered += _without_path(model, result)
        self._settle()
        return forward

    def _visit(self, call: Call) -> None:
        began = time.monotonic()
        try:
            self._parents[call.number] = call.parent
            self._probe(call)
        finally:
            self._spent += time.monotonic() - began

    def _probe(self, call: Call) -> None:
        run = self._run
        if self._already_seen(call):
            return
        if run.deadline.passed:
            run.left[_WHAT[call.kind]] += 1
            return
        if self._name == "tree" and self._is_cleared(call):
            self._passed_containers.add(call.number)
            return
        if not torch.is_grad_enabled():
            run.without_gradient[_WHAT[call.kind]] += 1
            return
        state = RandomState.capture()
        again = replayable(call, state)
        if not again.values:
            run.without_gradient[_WHAT[call.kind]] += 1
            return
        try:
            result = quick_check(
                again.evaluate,
                again.values,
                run.seed + call.number,
                contracts=call.kind == "function",
                jointly=call.kind == "container",
            )
        except Exception:  # noqa: BLE001 - the thorough check tells what is the matter
            result = QuickResult("doubtful")
        finally:
            if not state.is_current():
                state.restore()
        if result.status == "nothing":
            run.without_gradient[_WHAT[call.kind]] += 1
        elif result.status == "pass":
            self._passed_containers.add(call.number)
            run.examined.append(Examined(call, "pass", None, result.tolerance, None))
        else:
            self._doubtful.append((call, again, result))

    def _already_seen(self, call: Call) -> bool:
        """Return whether an earlier pass has probed this very call."""
        key = (call.kind, call.path, call.name, call.turn)
        return any(
            (known.call.kind, known.call.path, known.call.name, known.call.turn) == key
            for known in self._run.examined
        )

    def _is_cleared(self, call: Call) -> bool:
        return call.parent in self._passed_containers

    def _settle(self) -> None:
        """Check thoroughly what is doubtful, innermost first; what contains a wrong call waits.

        Of several calls of one thing at one place the first that is wrong is checked; others that
        deviate as clearly are the same mistake.
        """
        guilty: set[int] = set()
        told: dict[tuple[str, str, int], Examined] = {}
        for call, again, quick in sorted(self._doubtful, key=self._depth, reverse=True):
            known = told.get((call.path, call.name, id(call.target)))
            if call.number in guilty:
                done = Examined(call, "contains", None, quick.tolerance, None)
            elif known is not None and known.status == "fail" and quick.error >= _CLEARLY:
                done = Examined(call, "repeats", None, quick.tolerance, None)
            elif call.kind == "container" and quick.error <= 1.0:
                done = Examined(call, "inconclusive", _TOO_DEEP, quick.tolerance, None)
            elif self._run.deadline.passed and quick.error <= 1.0:
                self._run.left[_WHAT[call.kind]] += 1
                continue
            else:
                done = self._thorough(call, again)
                if done.status == "fail" and self._look_inside(call, again):
                    done = replace(done, status="contains")
                told.setdefault((call.path, call.name, id(call.target)), done)
            if done.status not in {"pass", "inconclusive"}:
                self._blame(call, guilty)
            self._run.examined.append(done)

    def _look_inside(self, outer: Call, again: ReplayableCall) -> bool:
        """Check thoroughly every custom Function in a wrong module; say whether one is to blame.

        A quick look at them has seen nothing, which may be chance.
        """
        if not isinstance(again.target, nn.Module):
            return False
        known = [
            index
            for index, examined in enumerate(self._run.examined)
            if examined.call.kind == "function" and self._is_inside(examined.call, outer)
        ]
        known.sort(key=lambda index: self._run.examined[index].call.number)
        seen: list[ReplayableCall] = []
        recorder = CallRecorder(
            again.target,
            frozenset({"function"}),
            lambda call: seen.append(replayable(call, RandomState.capture())),
        )
        with recorder.recording():
            again.evaluate([value.detach().requires_grad_() for value in again.values])
        guilty = False
        for index, inner in zip(known, seen, strict=False):
            done = self._thorough(self._run.examined[index].call, inner)
            if done.status == "fail":
                self._run.examined[index] = done
                guilty = True
        return guilty

    def _is_inside(self, call: Call, outer: Call) -> bool:
        parent = call.parent
        while parent is not None and parent != outer.number:
            parent = self._parents.get(parent)
        return parent is not None

    def _depth(self, doubtful: tuple[Call, ReplayableCall, QuickResult]) -> tuple[int, int]:
        """Order calls by nesting; the earlier one comes first from behind."""
        call = doubtful[0]
        depth, parent = 0, call.parent
        while parent is not None:
            depth, parent = depth + 1, self._parents.get(parent)
        return depth, -call.number

    def _blame(self, call: Call, guilty: set[int]) -> None:
        parent = call.parent
        while parent is not None:
            guilty.add(parent)
            parent = self._parents.get(parent)

    def _thorough(self, call: Call, again: ReplayableCall) -> Examined:
        target: Any = again.target
        try:
            options = CheckOptions(
                seed=self._run.seed, variations=frozenset(), order=1, closures=False
            )
            with watched_by(None):  # whoever watches is told of the whole search
                report = check_with(target, again.args, again.kwargs, options)
        except Exception as error:  # noqa: BLE001 - told as the reason
            reason = f"it can't be checked by itself: {type(error).__name__}: {error}"
            return Examined(call, "inconclusive", reason, None, None)
        errors = [finding for finding in report.findings if finding.severity.value == "error"]
        if errors:
            return Examined(call, "fail", errors[0].message, None, report)
        open_questions = [v for v in report.verdicts if v.status == "inconclusive"]
        if open_questions:
            first = open_questions[0]
            reason = f"`{first.output}` with respect to `{first.input}`: {first.reason}"
            return Examined(call, "inconclusive", reason, None, report)
        return Examined(call, "pass", None, None, report)


def _fresh(leaf: Any) -> Any:
    """Copy a tensor, so that the model may write into it; it goes on requiring grad."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    copied = leaf.detach().clone()
    # A leaf that requires grad may not be written into; what the model got may be no leaf.
    return copied.requires_grad_() if leaf.requires_grad and leaf.is_leaf else copied


_HOOK = (
    "a backward hook sits on `{}`: a hook that returns something else than it is given changes the "
    "gradient, which is then no longer that of forward; if that is meant, as in clipping, nothing "
    "else need be wrong"
)

Status: TypeAlias = Literal["pass", "fail", "inconclusive", "contains", "repeats"]


@dataclass(frozen=True, slots=True)
class Examined:
    """A call that was looked at.

    ``status`` is "contains" where the derivative is wrong and a call inside is to blame, and
    "repeats" where an earlier call of the same thing has been checked and is as wrong.
    ``tolerance`` is the relative one of the quick look, ``report`` that of the thorough check,
    each where there was one.
    """

    call: Call
    status: Status
    reason: str | None
    tolerance: float | None
    report: Report | None


def title_of(call: Call) -> str:
    """Name a call as a reader would look for it: path, what, and which of several.

    A first call of a thing that is called once has no number: whether it was the only one is
    known at the end only, so the first of several has none either.
    """
    name = call.name if not call.path else f"{call.path}: {call.name}"
    return name if call.turn == 1 else f"{name} (call {call.turn})"


_VERDICTS: dict[Status, tuple[VerdictStatus, str | None]] = {
    "pass": ("pass", None),
    "inconclusive": ("inconclusive", None),
    "fail": ("fail", "its gradient is wrong"),
    "contains": ("fail", "a call inside it is wrong"),
    "repeats": ("fail", "its gradient is wrong, as in an earlier call"),
}


def verdict_of(known: Examined) -> Verdict:
    """Make the verdict on a call."""
    evidence: dict[str, JSON] = {"kind": known.call.kind, "call": known.call.turn}
    if known.tolerance is not None and known.tolerance < float("inf"):
        evidence["relative_tolerance"] = known.tolerance
    status, reason = _VERDICTS[known.status]
    return Verdict(
        title_of(known.call), "its inputs and parameters", status, reason or known.reason, evidence
    )


def finding_of(known: Examined, repeats: Sequence[int] = ()) -> Finding:
    """Make the finding on a wrong call: what the thorough check says, and where in the model.

    ``repeats`` holds the turns of other calls of the same thing that are as wrong.
    """
    assert known.report is not None
    call = known.call
    first = next(f for f in known.report.findings if f.severity.value == "error")
    others = sum(f.severity.value == "error" for f in known.report.findings) - 1
    where = f"`{call.path}`" if call.path else "the model"
    kinds = {
        "function": f"{call.name}, applied in {where}",
        "operation": f"{call.name} in {where}",
        "module": f"{call.name} {where}",
        "container": f"{call.name} {where} (its own forward, not what it calls)",
    }
    turn = f", call {call.turn}" if call.turn > 1 else ""
    if repeats:
        turn = f", calls {', '.join(map(str, sorted([call.turn, *repeats])))}"
    more = f" ({others} more of its gradients are wrong)" if others else ""
    related = list(first.related)
    location = first.location
    if call.location is not None:
        if location is None:
            location = call.location
        else:
            related.append(Related(call.location, "called here"))
    hook = _hooked(call)
    evidence: dict[str, JSON] = {
        **first.evidence,
        "module": call.path,
        "called": call.name,
        "call": call.turn,
        "call_kind": call.kind,
        "count": 1 + len(repeats),
    }
    return replace(
        first,
        message=f"{kinds[call.kind]}{turn}: {first.message}{more}",
        location=location,
        related=tuple(related),
        hint=first.hint if hook is None else _HOOK.format(hook),
        evidence=evidence,
    )


def _hooked(call: Call) -> str | None:
    """Return where in the module that was called a backward hook sits that may have done it."""
    if not isinstance(call.target, nn.Module):
        return None
    for name, module in call.target.named_modules(prefix=call.path):
        if _torch_compat.has_backward_hooks(module):
            return name or "the model"
    return None
