"""NaN and infinity that a step writes into parameters, and the op in which they were born.

A step's gradients are looked at in the first steps, in each 64th after, and where the loss of each
sixteenth is not finite: NaN stays, so that it is seen there even if it came in between. In the
first backwards each node of the graph also says whether finite gradients went in and others came
out, unless the process has made no optimizer yet. What a GradScaler skips never gets here.

Where gradients are cleared that no step has used, the next backwards are watched as closely: a
guard of the program's that leaves steps out hides NaN that comes of a mistake. So does what writes
numbers over NaN that has reached a parameter, a hook of the parameter's or ``nan_to_num_``: the
step that follows finds finite gradients.
"""

from __future__ import annotations

import cmath
import math
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gradcheck_suite import catalogue
from gradcheck_suite._runtime.memory import is_readable
from gradcheck_suite._runtime.version_error import operation_of
from gradcheck_suite._torch_compat import (
    backward_is_compiled,
    current_node,
    function_mode_is_active,
    node_sequence_number,
    optimizer_was_made,
)
from gradcheck_suite.auditing.call_sites import CallSite, location_of
from gradcheck_suite.auditing.detectors.base import Occurrences, related
from gradcheck_suite.auditing.detectors.reachable_parameters import nodes_of, nodes_under
from gradcheck_suite.auditing.events import (
    Attention,
    BackwardStarted,
    GradientsDiscarded,
    LossScaled,
    SessionEnded,
    StepStarted,
)
from gradcheck_suite.auditing.object_names.optimizers import parameters_of
from gradcheck_suite.auditing.saved_tensors.saved_tensor import line_near, packed_tensors_of
from gradcheck_suite.auditing.user_modes import ops_are_recorded
from gradcheck_suite.findings import Finding, Location, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor
    from torch.autograd.graph import Node
    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

    from gradcheck_suite.auditing.events import Subscriptions
    from gradcheck_suite.auditing.object_names.tensor_names import ParameterNames
    from gradcheck_suite.auditing.recorder import Recorder

__all__ = ["NonFiniteGradientDetector"]

_CLOSELY = 2
"""In so many first steps every node is watched. A bound on cost, a hook of Python's for each node;
an op at its kink or pole mostly gives NaN from the first step on."""

_FIRST_STEPS = 6
"""In so many first steps every loss and every gradient is looked at. A bound on cost, as each look
waits for a GPU. Chosen; nothing depends on it closely."""

_LOSSES_EVERY = 16
"""After those, steps between two looks at the loss. A bound on cost, as reading it waits for a GPU;
NaN in parameters stays, so that a later look sees it."""

_GRADIENTS_EVERY = 64
"""After those, steps between two looks at all gradients, where the loss is finite: four of the
looks at the loss. A bound on cost, as each sums up every gradient."""

_AFTER_A_LOSS = 4
"""Backwards that are watched node by node after gradients were lost unused. Chosen: bad batches
come now and then."""

_MOST_WATCHED = 16
"""Such backwards in all. A bound on cost: in most programs the gradients that are lost are of
another loss, as where a generator's reach the discriminator."""

_ENOUGH_LEFT_OUT = 2
"""Of those, so many with NaN that no step has used make a finding. Chosen: one batch may be bad."""

_ENOUGH_REPLACED = 2
"""So many backwards with NaN that the program has replaced make a warning; fewer are a note.
Chosen: one batch may be bad."""

_NAMES_SHOWN = 5
"""Names of parameters among a finding's evidence. Chosen, for length."""

_DEPTH = 64
"""Nodes that are passed on the way from an op to the nearest parameter, whose module is then named.
A bound on cost; from further away the name would say little."""


@dataclass(frozen=True, slots=True)
class _Birth:
    operation: str
    value: str
    site: CallSite | None
    zeros: int
    elements: int
    above: str | None
    in_forward: bool


class NonFiniteGradientDetector:
    """Reports non-finite-gradient (GCS604).

    Args:
        recorder: whose events these are.
        names: how parameters are called.
    """

    def __init__(self, recorder: Recorder, names: ParameterNames) -> None:
        self._recorder = recorder
        self._names = names
        self._birth: _Birth | None = None
        self._loss: float | None = None
        self._backward: CallSite | None = None
        self._findings: dict[int, Finding] = {}
        self._round = 0
        self._unread = 0
        self._handles: list[RemovableHandle] = []
        # Of gradients that a guard of the program's keeps from a step.
        self._is_scaled = False
        self._to_watch = self._watched = 0
        self._watched_at: int | None = None
        self._left_out: Occurrences[CallSite | None, tuple[_Birth, CallSite | None]] = Occurrences()
        # Of gradients that the program has made finite again before a step.
        self._reached: weakref.ref[Tensor] | None = None
        self._replaced: Occurrences[CallSite | None, tuple[_Birth, CallSite | None]] = Occurrences()

    def subscriptions(self) -> Subscriptions:
        """Look at what backward starts from, and at what a step is about to use."""
        return {
            BackwardStarted: self._before_backward,
            StepStarted: self._before_step,
            GradientsDiscarded: self._lose,
            LossScaled: self._scale,
            SessionEnded: self._settle,
        }

    def _scale(self, event: LossScaled) -> None:
        # A scale that is too large overflows, and the scaler leaves the step out.
        self._is_scaled = self._is_scaled or event.scaler.is_enabled()

    def _lose(self, _event: GradientsDiscarded) -> Attention | None:
        """Look at the next backward where gradients were cleared that no step has used."""
        self._settle()
        if self._watched >= _MOST_WATCHED or self._is_scaled or self._findings:
            return Attention.ASLEEP
        self._to_watch = _AFTER_A_LOSS
        return Attention.AWAKE

    def _is_to_be_watched(self) -> bool:
        """Return whether this backward comes soon after gradients were lost, and count it."""
        if not self._to_watch:
            return False
        self._to_watch -= 1
        self._watched += 1
        return True

    def _settle(self, _event: object = None) -> None:
        """Take note of NaN in the last backward that was watched, if no step has followed it."""
        watched, self._watched_at = self._watched_at, None
        birth = self._birth
        if birth is not None and watched == self._recorder.state.optimizer_steps:
            self._left_out.note(birth.site, lambda: (birth, self._backward))

    def not_covered(self) -> list[str]:
        """Return what to say of gradients that could not be read when it was their turn."""
        if not self._unread:
            return []
        steps = "1 step" if self._unread == 1 else f"{self._unread:,} steps"
        why = (
            "reading them under a dispatch or torch-function mode, or in a CUDA capture, would show"
        )
        return [f"whether the gradients of {steps} were finite: {why}"]

    def findings(self) -> list[Finding]:
        """Return one finding for each optimizer that used such gradients."""
        if self._findings or self._is_scaled:
            return list(self._findings.values())
        return [
            *self._left_out.findings(_left_out_finding, least=_ENOUGH_LEFT_OUT),
            *self._replaced.findings(_replaced_finding),
        ]

    def _before_backward(self, event: BackwardStarted) -> Attention | int | None:
        if self._findings:
            return Attention.ASLEEP
        self._settle()
        closely = self._is_to_be_watched()
        iteration = self._recorder.state.iteration
        if iteration >= _FIRST_STEPS and iteration % _LOSSES_EVERY and not closely:
            if self._loss is not None:  # that of an earlier turn, whose step was left out
                self._loss = self._birth = None
            return _next(iteration, _LOSSES_EVERY)
        # Compiled autograd would make the hooks a part of what it compiles.
        if not _may_look() or backward_is_compiled():
            return None
        self._round += 1
        # On a graph that is gone through again, those of each time would add up.
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._birth = None
        self._reached = None
        self._backward = event.site
        self._loss = None
        self._watched_at = self._recorder.state.optimizer_steps if closely else None
        for root in event.roots:
            if not _is_finite(root):
                self._loss = root.detach().reshape(-1)[0].item() if root.numel() == 1 else math.nan
        if self._loss is not None:
            self._birth = self._born_in_forward(event.roots)
            return Attention.AWAKE
        # Nothing is said but of what an optimizer's step uses.
        steps = self._recorder.optimizers.any_known or optimizer_was_made()
        if (iteration < _CLOSELY or closely) and steps:
            for node in nodes_of(event):
                if node.next_functions:
                    self._handles.append(node.register_hook(self._hook(node, self._round)))
        return None

    def _hook(self, node: Node, number: int) -> Callable[..., None]:
        # A node keeps its hooks, and may not be kept by them: the cycle would go through C++.
        name = node.name()
        kind = type(node)

        def look(produced: Sequence[Tensor | None], given: Sequence[Tensor | None]) -> None:
            if number != self._round or not self._recorder.state.running:
                return
            running = current_node()
            if running is None:
                return
            if self._birth is None:
                bad = next((each for each in produced if not _is_finite(each)), None)
                if bad is not None and all(map(_is_finite, given)):
                    self._birth = self._describe(running, kind, name, bad)
            if self._birth is not None and self._reached is None:
                self._reached = _reached_by(running, produced)

        return look

    def _describe(self, node: Node, kind: type, name: str, bad: Tensor) -> _Birth:
        holders = packed_tensors_of(node, kind)
        zeros = elements = 0
        for holder in holders:
            tensor = holder.tensor.detach()
            if not is_readable(tensor):
                continue
            elements = max(elements, tensor.numel())
            zeros = max(zeros, int((tensor == 0).sum()))
        site = holders[0].site if holders else line_near(node)
        value = "NaN" if bool(bad.detach().isnan().any()) else "infinity"
        return _Birth(
            operation_of(name), value, site, zeros, elements, self._parameter_under(node), False
        )

    def _parameter_under(self, node: Node) -> str | None:
        current: Node | None = node
        for _ in range(_DEPTH):
            if current is None:
                return None
            leaf = getattr(current, "variable", None)
            if leaf is not None:
                name = self._names.of(leaf)
                return None if name is None else name.rpartition(".")[0] or name
            edges = [edge for edge, _ in current.next_functions if edge is not None]
            # The input comes first in most ops, and leads on; weights are next to it.
            direct = [edge for edge in edges if getattr(edge, "variable", None) is not None]
            if not edges:
                return None
            current = direct[-1] if direct else edges[0]
        return None

    def _born_in_forward(self, roots: Iterable[Tensor]) -> _Birth | None:
        nodes = sorted(nodes_under(roots), key=lambda node: node_sequence_number(node) or 0)
        for node in nodes:
            if not node.next_functions:
                leaf = getattr(node, "variable", None)
                if leaf is not None and not _is_finite(leaf):
                    return None  # The parameters had it before this forward.
        for node in nodes:
            for holder in packed_tensors_of(node, type(node)):
                tensor = holder.tensor.detach()
                if not _is_finite(tensor):
                    value = "NaN" if bool(tensor.isnan().any()) else "infinity"
                    name = operation_of(node.name())
                    above = self._parameter_under(node)
                    return _Birth(name, value, holder.site, 0, tensor.numel(), above, True)
        return None

    def _before_step(self, event: StepStarted) -> int | None:
        step = self._recorder.state.step
        # Each optimizer's step counts: so many in a row, for every one of them to have its turn.
        several = len(self._recorder.optimizers.known()) if step >= _FIRST_STEPS else 1
        if step >= _FIRST_STEPS and step % _GRADIENTS_EVERY >= several and self._loss is None:
            return _next(step, _GRADIENTS_EVERY)
        if id(event.optimizer) in self._findings:
            return None
        if not _may_look():
            self._unread += 1
            return None
        bad = _non_finite(event.optimizer)
        if bad and not _skips_itself(event.optimizer):
            self._findings[id(event.optimizer)] = self._finding(event, bad)
        if not bad:
            self._look_for_replaced(event.optimizer)
        return None

    def _look_for_replaced(self, optimizer: Optimizer) -> None:
        """Note NaN that reached a parameter of an optimizer whose gradients are finite now."""
        birth, leaf = self._birth, None if self._reached is None else self._reached()
        if birth is None or leaf is None or leaf.grad is None:
            return
        if any(each is leaf for each in parameters_of(optimizer)):
            self._reached = None
            self._replaced.note(birth.site, lambda: (birth, self._backward))

    def _finding(self, event: StepStarted, bad: list[Tensor]) -> Finding:
        names = [self._names.of(parameter) for parameter in bad[:_NAMES_SHOWN]]
        birth = self._birth
        of = sum(1 for _ in parameters_of(event.optimizer))
        step = location_of(event.site)
        message = (
            f"{type(event.optimizer).__name__}.step() used gradients of {len(bad)} of {of} "
            f"parameters that are NaN or infinite (seen in step {event.number}): "
        )
        where: Location | None = None if birth is None else location_of(birth.site)
        if birth is None and self._loss is not None:
            message += f"the loss was {self._loss} already when backward() began"
        elif birth is None:
            message += "the loss was finite, so that they were born in backward"
        elif birth.in_forward:
            message += (
                f"the loss was {self._loss} already when backward() began; {birth.value} first "
                f"shows in what {birth.operation} has in the forward"
            )
        else:
            message += (
                f"the forward was finite, and backward of {birth.operation} made {birth.value} "
                "out of finite gradients"
            )
            if birth.zeros:
                message += f", where {birth.zeros} of {birth.elements} saved values are 0"
        if birth is not None and birth.above is not None:
            message += f" (next to `{birth.above}`)"
        backward = location_of(self._backward)
        places = related((backward, "in this backward"), apart_from=where)
        if where is not None:
            places += related((step, "used by this step"))
        return Finding.of(
            catalogue.NON_FINITE_GRADIENT,
            message,
            detector="audit",
            location=where or backward or step,
            related=places,
            hint="make the argument safe before the op: (x + eps).sqrt(), x.clamp(min=eps)",
            evidence={
                "operation": None if birth is None else birth.operation,
                "in_forward": self._loss is not None,
                "first_step": event.number,
                "parameters": len(bad),
                "names": tuple(names),
                "module": None if birth is None else birth.above,
            },
        )


def _left_out_finding(first: tuple[_Birth, CallSite | None], count: int) -> Finding:
    birth, site = first
    what = f"{birth.value} first shows in what {birth.operation} has in the forward"
    return _hidden_finding(
        birth,
        site,
        count,
        f"no step used the gradients of {count} backward() calls: "
        f"{what if birth.in_forward else _born_in_backward(birth)}; a guard that leaves such steps "
        "out hides which batches train nothing",
        Severity.NOTE if birth.in_forward else Severity.WARNING,
    )


def _replaced_finding(first: tuple[_Birth, CallSite | None], count: int) -> Finding:
    birth, site = first
    number = "1 backward() call" if count == 1 else f"{count} backward() calls"
    return _hidden_finding(
        birth,
        site,
        count,
        f"{birth.value} reached parameters in {number}, and numbers were written over it before "
        f"the step: {_born_in_backward(birth)}; what is replaced trains nothing",
        Severity.WARNING if count >= _ENOUGH_REPLACED else Severity.NOTE,
    )


def _born_in_backward(birth: _Birth) -> str:
    above = "" if birth.above is None else f" (next to `{birth.above}`)"
    return (
        f"the forward was finite, and backward of {birth.operation} made {birth.value} out of "
        f"finite gradients{above}"
    )


def _hidden_finding(
    birth: _Birth, site: CallSite | None, count: int, message: str, severity: Severity
) -> Finding:
    where, backward = location_of(birth.site), location_of(site)
    return Finding.of(
        catalogue.NON_FINITE_GRADIENT,
        message,
        detector="audit",
        severity=severity,
        location=where or backward,
        related=related((backward, "in this backward"), apart_from=where),
        hint="make the argument safe before the op: (x + eps).sqrt(), x.clamp(min=eps)",
        evidence={
            "operation": birth.operation,
            "in_forward": birth.in_forward,
            "backwards": count,
            "module": birth.above,
        },
    )


def _reached_by(node: Node, produced: Sequence[Tensor | None]) -> weakref.ref[Tensor] | None:
    """Return a leaf that a node has made a gradient for that is not finite."""
    for gradient, (edge, _) in zip(produced, node.next_functions, strict=False):
        leaf = getattr(edge, "variable", None)
        if leaf is not None and not _is_finite(gradient):
            return weakref.ref(leaf)
    return None


def _next(iteration: int, every: int) -> int:
    return iteration - iteration % every + every


def _skips_itself(optimizer: Optimizer) -> bool:
    """Return whether a GradScaler has told a fused optimizer to leave its parameters as they are.

    It hands such optimizers ``found_inf`` in place of skipping their step.
    """
    found = getattr(optimizer, "found_inf", None)
    return isinstance(found, torch.Tensor) and is_readable(found) and bool(found)


def _may_look() -> bool:
    """Return whether reading values goes unnoticed by modes of the user's and what records."""
    return not (ops_are_recorded() or function_mode_is_active())


_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


def _is_finite(tensor: Tensor | None) -> bool:
    if tensor is None:
        return True
    # What has no memory of its own, or belongs to somebody's subclass, can't be asked.
    if type(tensor) not in _PLAIN or not is_readable(tensor):
        return True
    if not (tensor.is_floating_point() or tensor.is_complex()) or not tensor.numel():
        return True
    if tensor.layout is not torch.strided:
        tensor = tensor.detach().coalesce().values()
    values = tensor.detach() if tensor.requires_grad else tensor
    # A sum takes a twentieth of the time. It may overflow; one that is finite proves that
    # everything is.
    return cmath.isfinite(values.sum().item()) or bool(values.isfinite().all())


def _non_finite(optimizer: Optimizer) -> list[Tensor]:
    """Return the parameters whose gradients are not finite, asking for one number first."""
    owned = [
        (parameter, gradient)
        for parameter in parameters_of(optimizer)
        if (gradient := parameter.grad) is not None
    ]
    plain = [
        gradient
        for _, gradient in owned
        if type(gradient) in _PLAIN and gradient.layout is torch.strided and is_readable(gradient)
    ]
    kinds = {(gradient.dtype, gradient.device) for gradient in plain}
    if len(plain) == len(owned) and len(kinds) == 1:
        # A sum of finite numbers may overflow; one that is finite proves that they all are.
        with torch.no_grad():
            if cmath.isfinite(torch.stack([gradient.sum() for gradient in plain]).sum().item()):
                return []
    return [parameter for parameter, gradient in owned if not _is_finite(gradient)]
