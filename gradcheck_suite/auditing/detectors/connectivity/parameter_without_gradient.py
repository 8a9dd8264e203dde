"""Parameters that ought to train and that no gradient ever reaches.

Two facts are free: which parameters of an optimizer had no gradient in its first step, and which
still have none. Only for those is anything else asked: who owns them, whether and how their
modules are called (hooks on those modules for one step), and, from the source of the lines that
ran, where the way to the loss ends.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from gradcheck_suite import catalogue
from gradcheck_suite._torch_compat import is_compiled
from gradcheck_suite.auditing.call_sites import (
    CallSite,
    is_user_code,
    location_of,
    user_frames,
    user_sites,
    variables_of,
)
from gradcheck_suite.auditing.detectors.base import related
from gradcheck_suite.auditing.detectors.connectivity.missing_gradients import (
    CERTAIN,
    LOOKED_AT,
    MODULE,
    Group,
    Part,
    Place,
    Verdict,
    Watched,
    broken,
    cut_before,
    cut_place,
    drawn_finding,
    finding_of,
    flat_finding,
    frozen_finding,
    is_conditional,
    look_again,
    none_gradient,
    under_no_grad,
)
from gradcheck_suite.auditing.detectors.connectivity.watched_modules import (
    Call,
    ModuleWatch,
)
from gradcheck_suite.auditing.detectors.reachable_parameters import (
    ALWAYS_WALKED,
    MOST_NODES,
    reachable_graph,
)
from gradcheck_suite.auditing.events import (
    Attention,
    BackwardFailed,
    BackwardFinished,
    BackwardStarted,
    LeafBackwardStarted,
    ScalerStepped,
    SessionEnded,
    StepFinished,
)
from gradcheck_suite.auditing.object_names.module_tree import (
    ModuleTree,
    forced_at,
    forward_of,
)
from gradcheck_suite.auditing.object_names.optimizers import parameters_of
from gradcheck_suite.auditing.object_names.tensor_names import local_name
from gradcheck_suite.auditing.source_analysis.assignments import cut_of
from gradcheck_suite.auditing.source_analysis.flow_cut import (
    Cut,
    Flow,
    Followed,
    Parts,
    flat_call,
    follow,
    follow_parts,
    left_switched_off,
    only_flat_call,
)
from gradcheck_suite.auditing.source_analysis.source import span_at
from gradcheck_suite.findings import Finding, Location, Related

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import CodeType

    from torch import nn
    from torch.optim import Optimizer

    from gradcheck_suite.auditing.detectors.accumulation_windows import AccumulationWindows
    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.object_names.tensor_names import ParameterNames
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["ParameterWithoutGradientDetector"]

_MOST_ASKED = 16
"""For so many optimizers the modules of parameters without gradients are looked up: each look goes
through all that Python keeps, which takes a tenth of a second."""
_NO_GRAPH = "does not require grad and does not have a grad_fn"


_STAND_IN = "nothing that its optimizer owns is a module's or reached: it may be a stand-in"
_SECOND_ORDER = "the loss is made of gradients (create_graph), in which a bias may have no part"


_DRAWN = frozenset({"normal", "poisson"})
"""Ops that draw from a distribution whose parameters may have a graph, and hand no gradient on. Of
those without slope, these alone are a mistake on one of several ways: `x - x.floor()` is none."""


def _outermost(tree: ModuleTree, module: nn.Module, missing: Collection[int]) -> Part | None:
    """Return the outermost module around this one all of whose parameters are among ``missing``."""
    found, seen = module, {id(module)}
    while (up := tree.parent(found)) is not None and id(up[0]) not in seen:
        owned = [each for each in up[0].parameters() if each.requires_grad]
        if any(id(each) not in missing for each in owned):
            break
        found = up[0]
        seen.add(id(found))
    if found is module:
        return None
    up = tree.parent(found)
    return Part(tree.name(found), type(found).__name__, forward_of(found if up is None else up[0]))


def _lines_to(event: BackwardStarted) -> tuple[CallSite, ...]:
    """Return the user's lines that have led to a backward, innermost first.

    Where a library has called it, of a loss that the user's code made, that is where.
    """
    stack = user_sites()[0]
    site = event.site
    if site is None or not is_user_code(site[0]) or (stack and site[:2] == stack[0][:2]):
        return stack
    return (site,)


def _cut_of_returned(site: CallSite) -> Flow:
    """Return what cuts the value, or one of those, that the function of this line returns."""
    place = location_of(site)
    if place is None:
        return "unknown"
    followed = follow_parts(place, from_calls=True)
    is_cut = isinstance(followed.flow, Cut)
    return followed.flow if is_cut or followed.beside is None else followed.beside


def _on_the_way(sites: tuple[CallSite, ...], callers: Collection[CodeType]) -> tuple[CallSite, ...]:
    """Return the lines that hand on what a module returns, up to where backward is called.

    Where none of those has called backward, a library has, and what is returned to it is the last
    that is known.
    """
    for number, site in enumerate(sites):
        if site[0] in callers:
            # Whoever called this has no part in it.
            return sites[: number + 1]
    through_library = [
        number for number, site in enumerate(sites) if number and len(site) > len(site[:2])
    ]
    return sites[: through_library[0]] if through_library else sites


def _outermost_of(place: Place) -> str | None:
    return place.module if place.outermost is None else place.outermost.name


class ParameterWithoutGradientDetector:
    """Reports GCS401 to GCS406 and GCS408.

    Args:
        recorder: whose events these are.
        windows: know where optimizers were made.
        names: how parameters are called.
    """

    def __init__(
        self, recorder: Recorder, windows: AccumulationWindows, names: ParameterNames
    ) -> None:
        self._recorder = recorder
        self._windows = windows
        self._names = names
        self._watched: dict[int, Watched] = {}
        self._reached: set[int] = set()
        self._stacks: dict[tuple[CallSite, ...], None] = {}
        self._past: list[Finding] = []
        self._facts: dict[object, Finding] = {}
        self._walked = 0
        self._looked_for_flat = False
        self._sloped: set[int] = set()
        self._level: set[int] = set()
        self._owned: set[int] = set()
        self._flat: set[str] = set()
        self._flat_at: Flow = "unknown"
        self._functions: dict[int, type] = {}
        self._forced: tuple[CallSite, ...] = ()
        self._is_forced = self._is_second_order = False
        self._any_missing = False
        self._cut_short = self._compiled = False
        self._asked = self._failures = 0
        self._cuts: dict[tuple[CallSite, ...], Flow] = {}
        self._followed: dict[object, Followed] = {}
        self._forwards: set[tuple[CallSite, ...]] = set()

    def subscriptions(self) -> Subscriptions:
        """Read which parameters backward reaches and which steps go without."""
        return {
            BackwardStarted: self._before_backward,
            LeafBackwardStarted: self._before_leaf,
            BackwardFailed: self._after_failure,
            BackwardFinished: self._after_backward,
            StepFinished: self._after_step,
            ScalerStepped: self._after_scaler,
            SessionEnded: self._at_the_end,
        }

    def findings(self) -> list[Finding]:
        """Return what is certain by now."""
        found = [*self._facts.values(), *self._past]
        for watched in self._watched.values():
            found.extend(self._of(watched))
        found.extend(self._without_slope() or self._drawn())
        return found

    def is_following(self) -> bool:
        """Return whether there are parameters for which a gradient may yet come."""
        return self._any_missing

    def not_covered(self) -> list[str]:
        """Return what to say of graphs that were too large, or closed to looks."""
        lines = []
        if self._cut_short:
            lines.append(f"what backward reaches beyond the first {MOST_NODES:,} nodes of a graph")
        if self._asked > _MOST_ASKED:
            lines.append(
                f"parameters without gradients of optimizers beyond the first {_MOST_ASKED} that "
                "have any"
            )
        if self._compiled:
            lines.append(
                "what runs inside compiled graphs (torch.compile): what goes into them and comes "
                "out is looked at, as for one operation"
            )
        return lines

    def _at_the_end(self, _event: SessionEnded) -> None:
        for watched in self._watched.values():
            if watched.watch is not None:
                watched.watch.close()
        # What is followed through the source asks objects that may be gone later.
        self.findings()

    def _of(self, watched: Watched) -> list[Finding]:
        return [*self._without_gradient(watched), *frozen_finding(watched)]

    # What backward starts from and reaches.

    def _before_backward(self, event: BackwardStarted) -> Attention | None:
        if self._walked >= ALWAYS_WALKED:
            return Attention.ASLEEP
        if event.roots and event.roots[0].grad_fn is not None:
            self._walked += 1
            self._walk_graph(event)
        return None

    def _before_leaf(self, event: LeafBackwardStarted) -> Attention | None:
        roots = event.started.roots
        if len(roots) != 1 or not roots[0].requires_grad or roots[0].numel() != 1:
            return None
        known = {id(parameter) for parameter in self._recorder.optimizers.parameters()}
        if not known or id(roots[0]) in known or type(roots[0]) is not torch.Tensor:
            return None
        self._forced = user_sites()[0]
        return Attention.AWAKE

    def _walk_graph(self, event: BackwardStarted) -> None:
        stack = _lines_to(event)
        self._stacks.setdefault(stack)
        forward = self._recorder.state.last_forward
        if forward is not None and stack == (event.site,) and stack[0][:2] == forward[0][0][:2]:
            # The line is not that of a loss, but of the model's call.
            self._forwards.add(stack)
        found = reachable_graph(event)
        self._sloped |= found.sloped
        self._flat |= found.flat
        self._cut_short = self._cut_short or not found.complete
        self._compiled = self._compiled or found.compiled
        self._functions.update(found.functions)
        for identity in found.leaves:
            if identity not in found.sloped and found.complete:
                self._level.add(identity)

    def _after_backward(self, event: BackwardFinished) -> Attention | None:
        forced, self._forced = self._forced, ()
        self._is_second_order = self._is_second_order or event.creates_graph
        if forced and not event.failed and not event.created and not event.accumulated:
            self._note_forced(forced)
        if self._any_missing:
            for watched in self._watched.values():
                for parameter in (*event.created, *event.accumulated):
                    watched.missing.pop(id(parameter), None)
        return None if self._any_missing else Attention.ASLEEP

    def _after_failure(self, event: BackwardFailed) -> None:
        self._failures += self._recorder.state.step <= LOOKED_AT
        if not isinstance(event.error, RuntimeError) or _NO_GRAPH not in str(event.error):
            return
        place = location_of(event.site)
        flow = self._cut_of_failed(event.site)
        off = not torch.is_grad_enabled() or (isinstance(flow, Cut) and flow.under)
        known = self._recorder.optimizers.parameters()
        if known and not any(parameter.requires_grad for parameter in known):
            self._facts["frozen", event.site] = Finding.of(
                catalogue.FROZEN_PARAMETER,
                f"backward() starts from a loss without a graph: none of the {len(known)} "
                "parameters of the optimizers requires grad, so that nothing was recorded",
                detector="audit",
                location=place,
                hint="unfreeze what is to be trained: parameter.requires_grad_(True)",
                evidence={"parameters": len(known), "refused": True},
            )
            return
        entry = catalogue.FORWARD_UNDER_NO_GRAD if off else catalogue.GRAPH_BROKEN
        where, related = cut_place(flow, place)
        if off:
            if not isinstance(flow, Cut) and not torch.is_grad_enabled():
                where, related = self._left_off(place)
            message = (
                "backward() starts from a loss without a graph: it was computed while recording "
                "was switched off"
            )
            hint = "compute what backward() goes through outside of no_grad and inference_mode"
        else:
            by = f" by {flow.what}" if isinstance(flow, Cut) else ""
            message = (
                f"backward() starts from a loss without a graph: it was cut off{by} from every "
                "parameter"
            ).replace(",,", ",")
            hint = "call backward() on the tensor itself; convert a detached copy for logging"
        self._facts[entry.code, where] = Finding.of(
            entry,
            message,
            detector="audit",
            location=where,
            related=related,
            hint=hint,
            evidence={"backward": event.number, "refused": True},
        )

    def _cut_of_failed(self, site: CallSite | None) -> Flow:
        """Return where the loss of a backward that fails was cut."""
        stack, forward = user_sites()[0], self._recorder.state.last_forward
        if forward is not None and site is not None and site[:2] == forward[0][0][:2]:
            # A library has called it, of what these functions have returned to it.
            for line in forward[0]:
                flow = _cut_of_returned(line)
                if isinstance(flow, Cut):
                    return flow
            return "unknown"
        frames = {frame.f_code: variables_of(frame) for frame in user_frames()}
        return cut_before(stack, frames)

    def _left_off(self, place: Location | None) -> tuple[Location | None, tuple[Related, ...]]:
        """Return the line that has left recording off, where one alone can have."""
        lines = [at for site in user_sites()[0] if (at := location_of(site)) is not None]
        found = left_switched_off(lines)
        if found is None:
            return place, ()
        return found, tuple(related((place, "backward() is called here")))

    def _note_forced(self, stack: tuple[CallSite, ...]) -> None:
        self._is_forced = True
        place = location_of(stack[0])
        lines = [at for site in stack if (at := location_of(site)) is not None]
        forced = next((found for at in lines if (found := forced_at(at)) is not None), None)
        where = place if forced is None else forced
        known = self._facts.get(("forced", where))
        count = 1
        if known is not None:
            seen = known.evidence["count"]
            count += seen if isinstance(seen, int) else 0
        self._facts["forced", where] = Finding.of(
            catalogue.FORCED_REQUIRES_GRAD,
            "the loss was made a leaf of its own with requires_grad: backward() sets its own .grad "
            "and reaches no parameter, so that nothing trains",
            detector="audit",
            location=where,
            related=related(
                (place, "this backward() reaches nothing but the loss itself"), apart_from=where
            ),
            hint="call backward() on the computed loss; find what cut it off from the model",
            evidence={"count": count},
        )

    # What steps go without.

    def _after_step(self, event: StepFinished) -> Attention | None:
        self._follow(event)
        if self._any_missing:
            return Attention.AWAKE
        return Attention.ASLEEP if self._is_settled() else None

    def _after_scaler(self, event: ScalerStepped) -> None:
        """Tell what cuts the loss off, where a scaler refuses a step that found no gradient."""
        window = self._windows.of(event.optimizer)
        untouched = not window.fills and all(each.grad is None for each in window.parameters())
        if not event.failed or event.stepped or not self._stacks or not untouched:
            return
        frames = {frame.f_code: variables_of(frame) for frame in user_frames()}
        flow = cut_before(next(reversed(self._stacks)), frames)
        if not isinstance(flow, Cut):
            return
        verdict = broken(flow, None)
        self._recorder.optimizers.cut_off.add(id(event.optimizer))
        name = type(event.optimizer).__name__
        self._facts[verdict.entry.code, verdict.location] = Finding.of(
            verdict.entry,
            f"scaler.step() found no gradient of {name}, and torch refuses: backward() has reached "
            f"none of its parameters; {verdict.reason}",
            detector="audit",
            location=verdict.location,
            related=(
                *verdict.related,
                *related((location_of(event.site), "scaler.step() is called here")),
            ),
            hint=verdict.hint,
            evidence={"optimizer": name, "refused": True},
        )

    def _is_settled(self) -> bool:
        """Return whether no step of any optimizer would be looked at any more."""
        for optimizer in self._recorder.optimizers.known():
            watched = self._watched.get(id(optimizer))
            if watched is None or watched.optimizer() is not optimizer:
                return False
            if watched.steps <= LOOKED_AT or watched.missing or watched.frozen:
                return False
        return True

    def _follow(self, event: StepFinished) -> None:
        key = id(event.optimizer)
        watched = self._watched.get(key)
        if watched is None or watched.optimizer() is not event.optimizer:
            if watched is not None:
                self._past.extend(self._of(watched))
            site = self._windows.of(event.optimizer).constructed_at or event.site
            watched = self._watched[key] = Watched(
                key, weakref.ref(event.optimizer), type(event.optimizer).__name__, site
            )
        watched.steps += 1
        if watched.steps > LOOKED_AT:
            if watched.missing or watched.frozen:
                look_again(watched)
            return
        self._look(watched, event.optimizer)
        if watched.watch is not None and watched.steps > 1:
            watched.watch.close()
        # Not after the first step: optimizers by the hundred make one and are gone.
        if not self._recorder.state.backwards or watched.steps != CERTAIN - 1:
            return
        if watched.missing and not watched.asked:
            watched.asked = True
            self._asked += 1
            if self._asked <= _MOST_ASKED:
                self._ask(watched)
        if watched.steps == 2 and not self._looked_for_flat:  # noqa: PLR2004 - once
            self._looked_for_flat = True
            self._look_for_flat_call()

    def _look(self, watched: Watched, optimizer: Optimizer) -> None:
        bit = 1 << watched.steps
        parameters = parameters_of(optimizer)
        watched.parameters = len(parameters)
        for parameter in parameters:
            identity = id(parameter)
            self._owned.add(identity)
            if parameter.grad is not None:
                watched.had[identity] = watched.had.get(identity, 0) | bit
                watched.missing.pop(identity, None)
                watched.frozen.pop(identity, None)
            elif watched.steps == 1 and self._may_have_gradient(parameter):
                kept = watched.missing if parameter.requires_grad else watched.frozen
                kept[identity] = weakref.ref(parameter)
        if watched.steps > 1:
            look_again(watched)
        if watched.missing:
            self._any_missing = True
        elif self._any_missing:
            self._any_missing = any(each.missing for each in self._watched.values())

    def _may_have_gradient(self, parameter: torch.Tensor) -> bool:
        """Return whether this rank has a part of it, whose gradient FSDP does not keep back."""
        waits = id(parameter) in self._recorder.exchanges.waiting
        return bool(parameter.numel()) and not waits

    def _ask(self, watched: Watched) -> None:
        """Find out whose the parameters without gradients are, and watch those modules."""
        tree = ModuleTree(self._recorder.heap)
        optimizer = watched.optimizer()
        asked = [] if optimizer is None else parameters_of(optimizer)
        modules: dict[int, nn.Module] = {}
        for identity, reference in watched.missing.items():
            parameter = reference()
            if parameter is None:
                continue
            owners = tree.owners(parameter)
            for module, _ in owners:
                modules[id(module)] = module
            if owners:
                module, own_name = owners[0]
                self._recorder.optimizers.parameter_modules.note(parameter, module)
                path = tree.name(module)
                up = tree.parent(module)
                name = f"{path}.{own_name}"
                siblings = frozenset(
                    id(each) for other in tree.siblings(module) for each in other.parameters()
                )
                place = Place(
                    name,
                    path,
                    type(module).__name__,
                    tuple(id(each) for each, _ in owners),
                    all(
                        id(each) in watched.missing
                        for each in module.parameters()
                        if each.requires_grad
                    ),
                    siblings,
                    forward_of(module if up is None else up[0]),
                    _outermost(tree, module, watched.missing),
                    any(map(is_compiled, tree.ancestry(module))),
                )
            else:
                name = self._names.of(parameter) or local_name(parameter) or "a tensor"
                alike = frozenset(id(each) for each in asked if each.shape == parameter.shape)
                place = Place(name, None, "", (), True, alike, None)
            watched.places[identity] = place
        watched.watch = ModuleWatch(modules.values(), self._recorder.module_calls)

    # What can be said by now.

    def _without_gradient(self, watched: Watched) -> list[Finding]:
        nothing_trains = len(watched.missing) == watched.parameters
        if watched.steps < CERTAIN or (nothing_trains and self._is_forced):
            return []
        told = self._recorder.optimizers
        if nothing_trains and watched.identity in told.without_backward:
            return []  # That its backward is missing is what there is to say.
        # A backward that fails reaches nothing, whatever the loss depends on.
        often_failed = 2 * self._failures >= min(watched.steps, LOOKED_AT)
        groups: dict[object, Group] = {}
        for identity in watched.missing:
            place = watched.places.get(identity)
            if place is None or identity in told.replaced or is_conditional(watched, place):
                continue
            verdict = self._verdict(watched, identity, place)
            is_unreached = verdict.entry is catalogue.PARAMETER_WITHOUT_GRADIENT
            if is_unreached and often_failed:
                continue
            if is_unreached and not place.modules and nothing_trains:
                verdict = replace(verdict, doubts=(_STAND_IN,))
            key = (verdict.entry.code, verdict.location, verdict.reason, verdict.outermost)
            groups.setdefault(key, Group(verdict)).places.append(place)
        if nothing_trains and any(each.verdict.is_cut for each in groups.values()):
            told.cut_off.add(watched.identity)
        return [finding_of(watched, group) for group in groups.values()]

    def _verdict(self, watched: Watched, identity: int, place: Place) -> Verdict:  # noqa: PLR0911 - one for each cause
        if identity in self._functions:
            return none_gradient(self._functions[identity])
        calls: list[Call] = []
        if watched.watch is not None:
            for module in place.modules:
                calls.extend(watched.watch.calls.get(module, ()))
        if not place.modules:
            return self._functional(watched, place)
        if not calls:
            caller = place.forward if place.outermost is None else place.outermost.forward
            if place.compiled or self._compiled:
                return self._in_compiled_code(watched, place, caller)
            return Verdict(
                catalogue.PARAMETER_WITHOUT_GRADIENT,
                caller or location_of(watched.site),
                f"{MODULE} is never called",
                "call the module in forward, or leave it out of the model",
                outermost=_outermost_of(place),
            )
        first = calls[0]
        site = location_of(first.sites[0]) if first.sites else None
        if not place.whole:
            cut = None if place.forward is None else cut_of(place.name, [place.forward])
            if cut is not None:
                return broken(cut, None)
            return Verdict(
                catalogue.PARAMETER_WITHOUT_GRADIENT,
                place.forward or site,
                "its module is called, and does not use it for the loss",
                "use the parameter in forward, or leave it out",
                doubts=(_SECOND_ORDER,) if self._is_second_order else (),
            )
        if all(call.in_checkpoint and not call.recording for call in calls):
            return Verdict(
                catalogue.CHECKPOINT_CUTS_GRAPH,
                location_of(first.checkpoint) or site,
                "the reentrant checkpoint that its module runs in was given no input that "
                "requires grad, and so records nothing",
                "checkpoint(..., use_reentrant=False)",
            )
        if not any(call.recording for call in calls):
            return under_no_grad(first)
        return self._cut_after_any(calls, place)

    def _in_compiled_code(self, watched: Watched, place: Place, caller: Location | None) -> Verdict:
        """Return what the source tells of a module whose calls, if there are any, are compiled."""
        flow: Flow = "unknown" if caller is None else follow(caller, from_calls=True)
        if isinstance(flow, Cut):
            return broken(flow, None)
        return Verdict(
            catalogue.PARAMETER_WITHOUT_GRADIENT,
            caller or location_of(watched.site),
            f"in the compiled code, {MODULE} is not called, or what it returns does not reach the "
            "loss",
            "run it without torch.compile under the audit, which then names the line",
            outermost=_outermost_of(place),
        )

    def _cut_after_any(self, calls: list[Call], place: Place) -> Verdict:
        """Follow the last call whose output was to have a gradient, or else one before it.

        The last comes right before the step: a generator's own loss follows that of its opponent.
        """
        ways = {call.sites: call for call in calls if call.recording}
        verdicts: list[Verdict] = []
        for call in reversed(ways.values()):
            site = location_of(call.sites[0]) if call.sites else None
            verdicts.append(self._cut_after(call, place, site))
            if verdicts[-1].entry is not catalogue.PARAMETER_WITHOUT_GRADIENT:
                return verdicts[-1]
        # Nothing was cut: these were for a log, and those of which nothing was recorded for a loss.
        off = next((call for call in calls if not call.recording), None)
        return verdicts[-1] if off is None else under_no_grad(off)

    def _cut_after(self, call: Call, place: Place, site: Location | None) -> Verdict:
        """Follow the module's output outwards, function by function, until its graph ends."""
        if call.recording and not call.has_graph:
            forward = place.forward
            flow: Flow = "unknown"
            if forward is not None:
                flow = follow(forward, from_calls=True)
            return broken(flow, site)
        sinks = frozenset(
            (at.path, at.line)
            for stack in self._stacks
            if stack not in self._forwards
            for backward in stack
            if (at := location_of(backward)) is not None
        )
        callers = {site[0] for stack in self._stacks for site in stack}
        parts: Parts | None = None
        beside: Cut | None = None
        for frame in _on_the_way(call.sites, callers):
            at = location_of(frame)
            if at is None:
                continue
            flow, parts, beside = self._follow_from(call, frame, at, sinks, parts)
            if isinstance(flow, Cut):
                return broken(flow, site)
            if flow == "unused":
                return Verdict(
                    catalogue.PARAMETER_WITHOUT_GRADIENT,
                    at,
                    f"what {MODULE} returns is not used for the loss",
                    "use its output for the loss, or leave the module out",
                    outermost=_outermost_of(place),
                )
        if beside is not None:
            return broken(beside, site)
        return Verdict(
            catalogue.PARAMETER_WITHOUT_GRADIENT,
            site,
            f"what {MODULE} returns does not reach the loss",
            "use its output for the loss, with its graph, or leave the module out",
            outermost=_outermost_of(place),
        )

    def _follow_from(
        self,
        call: Call,
        site: CallSite,
        at: Location,
        sinks: frozenset[tuple[str, int]],
        parts: Parts | None,
    ) -> Followed:
        # Asked for each parameter, and again when the objects may be gone whose methods these are.
        key = (site, sinks, parts)
        if key not in self._followed:
            variables = call.variables_at(site)
            self._followed[key] = follow_parts(
                at, sinks=sinks, span=span_at(site), parts=parts, variables=variables
            )
        return self._followed[key]

    def _functional(self, watched: Watched, place: Place) -> Verdict:
        running = [at for site in self._all_sites() if (at := location_of(site)) is not None]
        cut = cut_of(place.name, running)
        if cut is not None:
            return broken(cut, None)
        for stack in self._stacks:
            flow = self._cut_before(stack)
            if isinstance(flow, Cut):
                return broken(flow, location_of(stack[0]))
        return Verdict(
            catalogue.PARAMETER_WITHOUT_GRADIENT,
            location_of(watched.site),
            "no loss depends on it",
            "use it for the loss, or leave it out of the optimizer",
        )

    def _cut_before(self, stack: tuple[CallSite, ...]) -> Flow:
        # Asked for each parameter, and each time that somebody reads the findings.
        if stack not in self._cuts:
            is_of_loss = stack not in self._forwards
            self._cuts[stack] = cut_before(stack) if is_of_loss else _cut_of_returned(stack[0])
        return self._cuts[stack]

    def _without_slope(self) -> list[Finding]:
        level = (self._level & self._owned) - self._sloped
        stack = next(iter(self._stacks), ())
        if not level or not stack:
            return []
        place = location_of(stack[0])
        flow = self._cut_before(stack)
        if not isinstance(flow, Cut):
            flow = self._flat_at
        where, related = cut_place(flow, place)
        return [flat_finding(len(level), sorted(self._flat), where, related)]

    def _drawn(self) -> list[Finding]:
        """Tell of values drawn from what is computed, on one of several ways to the loss."""
        drawn = self._flat & _DRAWN
        if not drawn or not self._stacks:
            return []
        files = [at.path for site in self._all_sites() if (at := location_of(site)) is not None]
        flow = only_flat_call(files, drawn)
        where, related = cut_place(flow, location_of(next(iter(self._stacks))[0]))
        return [drawn_finding(sorted(drawn), where, related)]

    def _look_for_flat_call(self) -> None:
        """Look for the op without slope in the forward of modules that own such parameters."""
        level = (self._level & self._owned) - self._sloped
        if not level:
            return
        tree = ModuleTree(self._recorder.heap)
        for parameter in self._recorder.optimizers.parameters():
            owners = tree.owners(parameter) if id(parameter) in level else []
            forward = next((at for each, _ in owners if (at := forward_of(each))), None)
            if forward is not None and self._flat_at == "unknown":
                self._flat_at = flat_call(forward, self._flat)
        if self._flat_at == "unknown":
            files = [at.path for site in self._all_sites() if (at := location_of(site)) is not None]
            self._flat_at = only_flat_call(files, self._flat)

    def _all_sites(self) -> list[CallSite]:
        return [site for stack in self._stacks for site in stack]
