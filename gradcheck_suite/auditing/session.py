"""The public way in: ``gs.audit`` and the session that it opens."""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from torch import nn
from torch.optim import Optimizer

from gradcheck_suite._runtime.exit_codes import internal_error
from gradcheck_suite._runtime.watchers import register_watcher
from gradcheck_suite.auditing.detectors.connectivity.frozen_but_changed import (
    DeclaredFrozenDetector,
)
from gradcheck_suite.auditing.detectors.registry import all_detectors, kinds_of_events
from gradcheck_suite.auditing.distributed.children import Children
from gradcheck_suite.auditing.distributed.merging import RANK, WORLD_SIZE
from gradcheck_suite.auditing.distributed.rank_reports import RankReports
from gradcheck_suite.auditing.events import SessionEnded
from gradcheck_suite.auditing.instrumentation.install import (
    Installation,
    installation,
    kept_in_place,
)
from gradcheck_suite.auditing.ledger.observer import LedgerObserver
from gradcheck_suite.auditing.object_names.tensor_names import ParameterNames
from gradcheck_suite.auditing.options import AuditOptions, options_from
from gradcheck_suite.auditing.output.finding_stream import FindingStream, subject_of
from gradcheck_suite.auditing.output.report_delivery import deliver, in_a_test, of_rank, say
from gradcheck_suite.auditing.output.status_line import status_line
from gradcheck_suite.auditing.output.tracebacks import hide_own_frames
from gradcheck_suite.auditing.recorder import Recorder
from gradcheck_suite.errors import UsageError
from gradcheck_suite.findings import Finding, Location, Report, moved_locations
from gradcheck_suite.reporting.silencing import CommentsOfSources
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import TracebackType

    from gradcheck_suite.auditing.call_sites import CallSite
    from gradcheck_suite.auditing.events import Detector
    from gradcheck_suite.auditing.ledger.facts import Ledger
    from gradcheck_suite.auditing.output.status_line import StatusLine
    from gradcheck_suite.auditing.run_state import RunState
    from gradcheck_suite.findings import JSON

__all__ = ["Session", "audit", "kept_ready", "open_sessions"]

TOOL = "gradcheck-suite audit"

_P = ParamSpec("_P")
_T = TypeVar("_T")

_NUMBERS = itertools.count(1)
_LAST = -1000
"""When a report for all ranks is made at the end of a process: after what programs have registered
there, which mostly has a priority of 0 or none."""

_OPEN: list[Session] = []
# A signal's handler may end an audit while the program begins or ends one.
_LOCK = threading.RLock()


def open_sessions() -> tuple[Session, ...]:
    """Return the audits that were begun and not ended yet, the outermost first."""
    return tuple(_OPEN)


@contextmanager
def _aside() -> Iterator[None]:
    """Let the innermost audit look away."""
    with _OPEN[-1].looking_away() if _OPEN else nullcontext():
        yield


register_watcher(_aside)


def kept_ready() -> AbstractContextManager[None]:
    """Leave what audits replace in torch in place between those inside, which begin sooner."""
    return kept_in_place(Recorder(AuditOptions()))


def audit(
    model: nn.Module | None = None,
    optimizers: Optimizer | Iterable[Optimizer] | None = None,
    **options: Any,
) -> Session:
    """Watch the training code that runs inside a ``with`` block or a decorated function.

    Args:
        model: names parameters in findings; without it, the modules that the running functions
            know are asked.
        optimizers: look at the steps of these only; by default, of every optimizer that steps.
        **options: ``report``, ``ignore``, ``overhead``, ``max_steps``, ``stream``,
            ``wait_for_ranks``, ``graph_limit``, ``name_writers``, ``watch_writers``,
            ``checksum_first_steps`` and ``checksum_every``, as
            ``gradcheck_suite.auditing.AuditOptions`` describes them.

    Returns:
        The session, of which ``findings``, ``report`` and ``ledger`` may be read at any time.

    Raises:
        UsageError: there is no such option, or a value is of the wrong kind.

    >>> import torch, gradcheck_suite as gs
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with gs.audit(model, optimizer) as session:
    ...     for _ in range(3):
    ...         model(torch.ones(1, 2)).sum().backward()
    ...         optimizer.step()
    >>> [finding.rule for finding in session.findings]
    ['missing-zero-grad']
    """
    if model is not None and not isinstance(model, nn.Module):
        raise UsageError(
            f"audit: model must be a torch.nn.Module or None, got {type(model).__name__}"
        )
    return Session(model, _checked_optimizers(optimizers), options_from(options))


def _checked_optimizers(
    optimizers: Optimizer | Iterable[Optimizer] | None,
) -> tuple[Optimizer, ...] | None:
    if optimizers is None:
        return None
    if isinstance(optimizers, Optimizer):
        return (optimizers,)
    if isinstance(optimizers, Iterable):
        listed = tuple(optimizers)
        wrong = {type(item).__name__ for item in listed if not issubclass(type(item), Optimizer)}
        if not wrong:
            return listed
        raise UsageError(
            "audit: optimizers must be torch.optim.Optimizer objects, got "
            f"{' and '.join(sorted(wrong))}"
        )
    raise UsageError(
        "audit: optimizers must be a torch.optim.Optimizer or several, got "
        f"{type(optimizers).__name__}"
    )


class Session:
    """An audit: a context manager, a decorator, and the report of what it has seen.

    It may be entered several times, one after another, and then adds up. While a second audit
    runs inside this one, this one pauses, and says so in its report.

    When it ends, it hands over its report as the option ``report`` says. The audit of a whole
    script tells of what those inside find, and they keep quiet.

    Attributes:
        place: moves the places of a finding to where its reader looks for them, or None.
        ranks: tells with the other processes, where many train together.
    """

    def __init__(
        self,
        model: nn.Module | None,
        optimizers: tuple[Optimizer, ...] | None,
        options: AuditOptions,
        make: Callable[[Recorder, ParameterNames], tuple[Detector, ...]] = all_detectors,
        *,
        of_script: bool = False,
    ) -> None:
        self._recorder = Recorder(options, model, optimizers)
        self._make = make
        self._names = ParameterNames(model)
        self._detectors: tuple[Detector, ...] = ()
        self._installation: Installation | None = None
        self._stream: FindingStream | None = None
        if options.stream is not None:
            self._stream = FindingStream(
                of_rank(os.fspath(options.stream), self._recorder.job.rank),
                self._recorder,
                findings=lambda: self.findings,
                report=lambda: self.report,
            )
        self.ranks = RankReports(
            self._recorder.job,
            self._report,
            seconds=options.wait_for_ranks,
        )
        if of_script:
            self._recorder.children = Children(options, audit)
        self._is_named = self._is_to_conclude = False
        self._depth = 0
        self._audits_inside = 0
        self._of_script = of_script
        self.place: Callable[[Finding], Finding] | None = None
        self._script: Session | None = None
        self._inside: dict[object, Report] = {}
        self._key = object()
        target = options.report
        # The program may change its working directory.
        self._target = os.path.abspath(target) if isinstance(target, (str, os.PathLike)) else target  # noqa: PTH100 - links stay as they are
        self._process = 0
        self._in_a_test = False
        self._told: frozenset[object] = frozenset()
        self._comments = CommentsOfSources()

    def __enter__(self) -> Session:
        with _LOCK:
            self._depth += 1
            if self._depth > 1:
                return self
            self._process, self._in_a_test = os.getpid(), in_a_test()
            self._script = self._script_around()
            self._name()
            if _OPEN:
                _OPEN[-1]._step_aside()  # noqa: SLF001 - another session
            _OPEN.append(self)
            bus = self._recorder.bus
            if self._detectors or self._stream is not None:
                bus.subscribe(self._detectors or self._make_detectors())
            else:
                bus.defer(self._make_detectors, kinds_of_events())
            if self._stream is not None:
                bus.subscribe([self._stream])
                self._stream.begin()
            if self._tells_other_ranks():
                self.ranks.begin()
            self._start()
        return self

    def _name(self) -> None:
        """Give this audit the name that it has on the other ranks too: its number."""
        if not self._is_named:
            self._is_named = True
            self._recorder.job.name("script" if self._of_script else str(next(_NUMBERS)))

    def _tells_other_ranks(self) -> bool:
        """Return whether what this audit finds is told with what the other ranks find."""
        told = self._target is True or isinstance(self._target, str)
        return self._of_script or (told and self._script is None and not self._in_a_test)

    def _make_detectors(self) -> tuple[Detector, ...]:
        self._detectors = self._make(self._recorder, self._names)
        if self._tells_other_ranks():
            self._detectors += (self.ranks,)
        return self._detectors

    def __call__(self, func: Callable[_P, _T]) -> Callable[_P, _T]:
        """Audit each call of ``func``; of a generator or a coroutine, from its start to its end.

        What runs while a generator waits for its next turn is audited too. What is returned has
        this session as ``audit_session``.
        """
        run = self._around(func)
        vars(run)["audit_session"] = self
        return run

    def _around(self, func: Callable[_P, _T]) -> Callable[_P, _T]:
        if inspect.isasyncgenfunction(func):
            return cast("Callable[_P, _T]", self._around_items_to_come(func))
        if inspect.iscoroutinefunction(func):
            return cast("Callable[_P, _T]", self._around_coroutine(func))
        if inspect.isgeneratorfunction(func):
            return cast("Callable[_P, _T]", self._around_items(func))

        @functools.wraps(func)
        def run(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            with self:
                return func(*args, **kwargs)

        return run

    def _around_coroutine(self, func: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(func)
        async def run(*args: Any, **kwargs: Any) -> Any:
            with self:
                return await func(*args, **kwargs)

        return run

    def _around_items(self, func: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(func)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self:
                return (yield from func(*args, **kwargs))

        return run

    def _around_items_to_come(self, func: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(func)
        async def run(*args: Any, **kwargs: Any) -> Any:
            with self:
                async for item in func(*args, **kwargs):
                    yield item

        return run

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        hide_own_frames(traceback)
        with _LOCK:
            self._depth -= 1
            if self._depth > 0:
                return
            try:
                self._recorder.resume()
                if error is not None:
                    # What ends the program may be the first thing to tell of.
                    self._recorder.bus.make_deferred()
                self._recorder.bus.emit(SessionEnded(error))
            finally:
                self._close()
        self._hand_over(failing=error is not None)

    def _close(self) -> None:
        last = _OPEN[-1] is self if _OPEN else False
        if self in _OPEN:
            _OPEN.remove(self)
        self._stop()
        for detector in self._detectors:
            # Also where it could not be told of the end, as in a pause or on another thread.
            getattr(detector, "put_back", _nothing)()
        self._recorder.bus.clear()
        if last and _OPEN:
            _OPEN[-1]._start()  # noqa: SLF001 - another session

    def end_with_those_inside(self) -> None:
        """End this audit and all that were opened since, where the process ends abruptly."""
        for session in reversed(_OPEN[_OPEN.index(self) :] if self in _OPEN else ()):
            while session in _OPEN:
                session.__exit__(None, None, None)

    def _script_around(self) -> Session | None:
        """Return the audit of the script that this one runs in, which tells of it."""
        if self._target is False:
            return None
        around = (each for each in _OPEN if each._of_script and each._process == self._process)  # noqa: SLF001 - other sessions
        return next(around, None)

    def _hand_over(self, *, failing: bool) -> None:
        """Hand the report to whom the options name."""
        target = self._target
        # A forked child that leaves the block has nothing to say of its parent's audit.
        if target is False or os.getpid() != self._process:
            return
        keeps_quiet = target is True and (self._script is not None or self._in_a_test)
        if keeps_quiet and self._script is None:
            return
        try:
            report = self.report
            news = self._to_tell(report)
        except Exception as error:  # noqa: BLE001 - the user's program goes on
            say(internal_error(f"an audit has lost its report: {type(error).__name__}: {error}"))
            return
        if self._script is not None:
            self._script._inside[self._key] = report  # noqa: SLF001 - another session
        if not keeps_quiet and self._recorder.job.look() and self._tells_other_ranks():
            self._hand_over_with_others(failing=failing)
            return
        if keeps_quiet or (target is True and news <= self._told):
            return
        self._told |= news
        deliver(report, of_rank(target, self._recorder.job.rank), failing=failing)

    def _hand_over_with_others(self, *, failing: bool) -> None:
        """Tell at the end of the process: a rank that waited here might wait for one that waits."""
        if failing and self._recorder.job.rank:
            self._conclude(failing=True)
        elif not self._is_to_conclude:
            self._is_to_conclude = True
            # Also where multiprocessing ends a child, which leaves out what atexit knows.
            Finalize(None, self._conclude, kwargs={"failing": failing}, exitpriority=_LAST)

    def _conclude(self, *, failing: bool) -> None:
        rank = self._recorder.job.rank
        target = of_rank(self._target, rank)
        report = self.report
        whole = self.ranks.conclude(report, failed=failing)
        if whole is not None:
            others_say = whole.not_covered != report.not_covered
            if target is not True or others_say or self._to_tell(whole):
                deliver(whole, target, failing=failing)
            self.ranks.told()
        elif target != self._target:
            deliver(report, target, failing=failing)

    def _to_tell(self, report: Report) -> frozenset[object]:
        """Return what there is to say: a session that ends again repeats nothing."""
        recorder = self._recorder
        told: set[object] = {(*subject_of(each), each.severity) for each in report.findings}
        told.update(recorder.bus.failures)
        told.add(recorder.state.left_hooks)
        if not report.summary["training_seen"]:
            told.add("no training")
        return frozenset(told - {None})

    def _start(self) -> None:
        """Begin to watch: the hooks first, then what is replaced in torch, then lines."""
        recorder = self._recorder
        recorder.start()
        if recorder.state.installed:
            self._installation = installation()
            self._installation.begin(recorder)
            recorder.write_tracer.begin()

    def _stop(self) -> None:
        """Take everything away again."""
        try:
            self._recorder.stop()
        finally:
            if self._installation is not None:
                self._installation.end()
                self._installation = None

    def _step_aside(self) -> None:
        self._audits_inside += 1
        self._stop()

    def looking_away(self) -> AbstractContextManager[None]:
        """Watch nothing of what runs inside, which is no part of the program."""
        return self._recorder.looking_away()

    @property
    def configured_at(self) -> CallSite | None:
        """The user's line that has set up a library that trains; None if none is known.

        What the library makes by it, such as an optimizer, is said to be made there.
        """
        return self._recorder.configured_at

    @configured_at.setter
    def configured_at(self, site: CallSite | None) -> None:
        self._recorder.configured_at = site

    def _show_status(self) -> StatusLine | None:
        """Say on the terminal, if there is one, how far this audit has come."""
        return status_line(self._recorder, lambda: self.findings)

    def step(self) -> None:
        """Say that a training step is done, where no optimizer of torch.optim does.

        From the first call on, these are the steps that the audit counts. Does nothing outside
        the audit.
        """
        if self._recorder.resume():
            self._recorder.mark_step()

    def frozen(self, *what: Any, model: nn.Module | None = None) -> None:
        """Say what is to get no gradient and to stay as it is, from here to the end of the audit.

        Args:
            *what: modules, with their buffers; parameters and other tensors; and patterns of names
                such as ``"encoder.*"``.
            model: whose names the patterns are for; by default, the model that is audited.

        Raises:
            UsageError: there is nothing of that kind, or no such name.

        >>> import torch, gradcheck_suite as gs
        >>> model = torch.nn.Linear(2, 1)
        >>> with gs.audit(model) as session:
        ...     session.frozen("bias")
        ...     model(torch.ones(1, 2)).sum().backward()
        >>> [finding.rule for finding in session.findings]
        ['frozen-but-changed']
        """
        recorder = self._recorder
        recorder.resume()
        named = self._names.model if model is None else model
        recorder.frozen.add(what, named, self._names, recorder.state.clock.tick())
        recorder.bus.make_deferred()
        recorder.bus.wake_all()
        if recorder.state.installed:
            self._listen_to([each for each in (*what, named) if isinstance(each, nn.Module)])

    def _listen_to(self, modules: Iterable[nn.Module]) -> None:
        """Let buffers be looked at after calls of these modules."""
        for detector in self._detectors:
            if isinstance(detector, DeclaredFrozenDetector):
                for module in modules:
                    detector.listen_to(module)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is certain by now, in the order of the detectors."""
        return tuple(each for each in self._all_findings() if not self._is_silenced(each))

    def _is_silenced(self, finding: Finding) -> bool:
        return self._recorder.options.ignores(finding) or self._comments.silence(finding)

    def _all_findings(self) -> list[Finding]:
        """Return what is certain by now, silenced or not, where the reader looks for it."""
        found = self._found()
        for report in self._reports_inside():
            known = {subject_of(each) for each in found}
            found += [each for each in report.findings if subject_of(each) not in known]
        return found if self.place is None else list(map(self.place, found))

    def _found(self) -> list[Finding]:
        found: list[Finding] = []
        for detector in self._detectors:
            try:
                beside = getattr(detector, "findings_beside", None)
                found += detector.findings() if beside is None else beside(found)
            except Exception as error:  # noqa: BLE001, PERF203 - what the others found stands
                self._recorder.bus.note_failure(type(detector).__name__, error)
        return found

    def _reports_inside(self) -> list[Report]:
        """Return the reports of the audits inside a script, those that still run included."""
        if not self._of_script:
            return []
        running = {each._key: each.report for each in _OPEN if each._script is self}  # noqa: SLF001 - other sessions
        children = self._recorder.children
        of_children = [] if children is None else children.reports()
        return [*{**self._inside, **running}.values(), *of_children]

    @property
    def report(self) -> Report:
        """The findings, what was looked at, and what could not be."""
        return self._report(self._ledger_of_all())

    def _report(self, ledger: Mapping[str, JSON] | None = None) -> Report:
        found = self._all_findings()
        told = tuple(each for each in found if not self._is_silenced(each))
        return Report(
            tool=TOOL,
            findings=told,
            summary=self._summary(silenced=len(found) - len(told)),
            not_covered=tuple(dict.fromkeys(self._not_covered())),
            ledger=ledger,
        )

    def _repr_mimebundle_(self, **_chosen: object) -> dict[str, str]:
        """Draw what is known by now for a notebook."""
        from gradcheck_suite.reporting import report_mimebundle  # noqa: PLC0415 - on demand

        return report_mimebundle(self.report)

    @property
    def ledger(self) -> Ledger | None:
        """What has happened, as facts; None where nothing that it tells of has."""
        for each in self._detectors:
            if isinstance(each, LedgerObserver):
                try:
                    return each.ledger()
                except Exception as error:  # noqa: BLE001 - the findings stand
                    self._recorder.bus.note_failure("the ledger", error)
        return None

    def _ledger_of_all(self) -> Mapping[str, JSON] | None:
        """Return this audit's ledger, or that of the first inside it that has seen steps."""
        own = self.ledger
        inside = (each.ledger for each in self._reports_inside() if each.ledger is not None)
        if own is None or not own.steps:
            other = next((each for each in inside if each["steps"]), None)
            if other is not None:
                return other
        if own is None or self.place is None:
            return None if own is None else own.to_dict()
        place = self.place

        def move(location: Location) -> Location | None:
            return place(Finding("", "", Severity.NOTE, "", "audit", location)).location

        return cast("Mapping[str, JSON]", moved_locations(own.to_dict(), move))

    def _summary(self, silenced: int) -> dict[str, JSON]:
        recorder = self._recorder
        saved = recorder.saved_tensors
        figures = Counter(
            steps=recorder.state.step,
            steps_passed_over=recorder.state.skipped_steps,
            backwards=recorder.state.backwards,
            saved_tensors=recorder.state.saved,
            saved_tensors_checked=saved.used,
            saved_tensors_checksummed=saved.fingerprinted,
            silenced=silenced,
        )
        for report in self._reports_inside():
            for figure in figures:
                figures[figure] += cast("int", report.summary.get(figure, 0))
        seen = bool(figures["steps"] or figures["backwards"])
        for figure in ("steps_passed_over", "silenced"):
            if not figures[figure]:
                del figures[figure]
        job = recorder.job
        ranks = {RANK: job.rank, WORLD_SIZE: job.size} if job.look() else {}
        return {**figures, "training_seen": seen, **ranks}

    def _not_covered(self) -> list[str]:
        recorder = self._recorder
        state, saved = recorder.state, recorder.saved_tensors
        lines = recorder.job.remarks()
        if state.left_hooks is not None:
            lines.append(f"saved tensors: {state.left_hooks}")
        if state.hook_regions:
            lines.append(
                f"saved tensors in {_count(state.hook_regions, 'region')} with saved-tensors "
                "hooks of their own (checkpoint, save_on_cpu): torch checks no versions there, "
                "and the audit can't"
            )
        if state.transform_regions:
            lines.append(
                f"saved tensors in {_count(state.transform_regions, 'call')} of torch.func "
                "transforms, which run under no hooks"
            )
        if state.backwards_elsewhere:
            lines.append(
                f"saved tensors of {_count(state.backwards_elsewhere, 'backward')} in other "
                "threads than the one that opened the audit"
            )
        if saved.unread:
            reasons = ", ".join(f"{number:,} {why}" for why, number in sorted(saved.unread.items()))
            lines.append(
                f"contents of {_count(saved.unread.total(), 'saved tensor')} that cannot be read: "
                f"{reasons}"
            )
        lines.extend(recorder.write_tracer.not_covered())
        inside = self._reports_inside()
        seen_inside = any(report.summary["training_seen"] for report in inside)
        if not seen_inside:
            lines.extend(_not_seen(state))
        seen = bool(seen_inside or state.step or state.backwards)
        lines.extend(_children(recorder, training_seen=seen))
        if state.finished:
            lines.append(f"what ran after the first {_count(state.step, 'step')}")
        lines.extend(_skipped_steps(state, recorder.options.overhead))
        if self._audits_inside:
            audits = _count(self._audits_inside, "audit")
            beyond = ", beyond what that saw itself" if inside else ""
            lines.append(f"what ran inside {audits} opened within this one{beyond}")
        if self._stream is not None and self._stream.trouble is not None:
            lines.append(self._stream.trouble)
        for detector in self._detectors:
            try:
                lines.extend(getattr(detector, "not_covered", list)())
            except Exception as error:  # noqa: BLE001, PERF203 - what the others say stands
                recorder.bus.note_failure(type(detector).__name__, error)
        for report in inside:
            lines.extend(line for line in report.not_covered if line not in _NOT_SEEN)
        lines.extend(self._comments.remarks)
        failures = recorder.bus.failures
        lines.extend(f"{failure} (a bug in gradcheck-suite)" for failure in failures)
        return lines


_NOT_SEEN = (
    "gradients: no backward() ran inside the audit",
    "steps: no optimizer of torch.optim stepped inside the audit",
)


def _not_seen(state: RunState) -> list[str]:
    """Say what of a training step did not happen at all."""
    if not state.backwards:
        return [_NOT_SEEN[0]]
    return [] if state.step else [_NOT_SEEN[1]]


def _children(recorder: Recorder, *, training_seen: bool) -> list[str]:
    """Say that child processes are not watched, and how they can be.

    Where training was seen here, a program that is run beside it, such as git, is no part of it.
    """
    counts = {
        starter: number
        for starter, number in sorted(recorder.state.children.items())
        if not (training_seen and starter == "subprocess")
    }
    silent = [] if recorder.children is None else recorder.children.not_covered()
    if not counts:
        return silent
    children = _plural(sum(counts.values()), "child process", "child processes")
    started = ", ".join(f"{number:,} by {starter}" for starter, number in counts.items())
    return [_UNWATCHED.format(f"{children} ({started})"), *silent]


_UNWATCHED = (
    "{}, which this audit does not watch: audit each rank (`torchrun --no-python gradcheck-suite "
    "audit train.py`), or write `with gs.audit():` in the function that each process runs"
)


def _skipped_steps(state: RunState, share: float) -> list[str]:
    """Say how many steps were passed over, if any were."""
    if not state.skipped_steps:
        return []
    steps = _count(state.step, "step")
    how_many = f"{state.skipped_steps:,} of {steps}, passed over while all was well"
    return [f"{how_many}, so that a step takes no more than about {share:g} % longer (overhead)"]


def _nothing() -> None:
    """Stand in for what most detectors need not do."""


def _count(number: int, noun: str) -> str:
    return _plural(number, noun, f"{noun}s")


def _plural(number: int, noun: str, nouns: str) -> str:
    return f"{number:,} {noun if number == 1 else nouns}"
