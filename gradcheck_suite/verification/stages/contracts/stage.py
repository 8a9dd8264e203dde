"""Probe what backward owes: of every output, and of every custom Function by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity
from gradcheck_suite.verification.diagnosis.contract_messages import (
    Breach,
    blamed,
    finding_of_breach,
)
from gradcheck_suite.verification.numerics.comparison import noise_floors
from gradcheck_suite.verification.numerics.recorded_call import RecordedCall
from gradcheck_suite.verification.options import chosen_variations
from gradcheck_suite.verification.stage import CheckState, StageResult
from gradcheck_suite.verification.stages.contracts.forward_declarations import (
    constant_outputs,
    unmarked_writes,
)
from gradcheck_suite.verification.stages.contracts.function_nodes import (
    BareNode,
    CaughtNode,
    catch_nodes,
)
from gradcheck_suite.verification.stages.contracts.vjp_checks import (
    Probed,
    probe_aliasing,
    probe_all_undefined,
    probe_layouts,
    probe_linearity,
    probe_undefined,
    probe_writing,
    pulled_twice,
)
from gradcheck_suite.verification.target.graph_walk import graph_path
from gradcheck_suite.verification.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_suite.findings import Finding

__all__ = ["probe_contracts"]


def probe_contracts(state: CheckState) -> StageResult:
    """Probe linearity, layouts, aliasing and undefined gradients, and who writes where.

    A mistake that was told already, of the same Function, is not told again.
    """
    if not state.context.deterministic:
        return StageResult(
            not_covered=("the contract of backward was not probed, as the outputs are random",)
        )
    try:
        recording = RecordedCall.of(state.subject, state.context.point)
    except Exception as error:  # noqa: BLE001 - the user's function, which ran before
        line = f"the contract of backward was not probed: {one_line(error)}"
        return StageResult(not_covered=(line,))
    if not recording.attached:
        return StageResult()
    probe = _Probe(state, recording)
    return StageResult(
        findings=tuple(probe.findings()),
        covered=(f"backward: {', '.join(probe.covered)}",) if probe.covered else (),
        not_covered=tuple(probe.not_covered),
    )


class _Probe:
    def __init__(self, state: CheckState, recording: RecordedCall) -> None:
        self._state = state
        self._recording = recording
        self._layouts = "cotangents" in chosen_variations(state.options.variations)
        self._allowed = state.context.precision.linearity + 4.0 * max(
            state.context.breaches.unequal.values(), default=0.0
        )
        self._cotangents = state.context.cotangents(state.context.point, 0)
        self._floors = noise_floors(state.context.point, self._cotangents, state.context.precision)
        self._reported = {
            _owner(finding) for finding in state.findings if finding.severity is Severity.ERROR
        }
        self.covered: list[str] = []
        self.not_covered: list[str] = []

    def findings(self) -> Iterator[Finding]:
        """Yield what was found, the custom Functions' own before that of whole outputs."""
        failed = {pair for pair, found in self._state.conclusions.items() if found.status == "fail"}
        breached = self._state.context.breaches.nonlinear
        for finding in self._of_functions():
            owner = _owner(finding)
            if owner is None or owner not in self._reported:
                self._reported.add(owner)
                yield finding
        if not (failed or breached or self._reported - {None}):
            yield from self._of_outputs()

    def _of_functions(self) -> Iterator[Finding]:
        yield from unmarked_writes(self._state, self._recording)
        yield from constant_outputs(self._state, self._recording, self._cotangents)
        self._recording.make_ready()
        try:
            nodes = catch_nodes(
                self._recording,
                lambda: RecordedCall.of(self._state.subject, self._state.context.point),
                self._cotangents,
            )
        except Exception:  # noqa: BLE001 - a backward that runs once only, which whole outputs tell
            nodes = []
        for caught in nodes:
            name = caught.function.__qualname__
            probed = (
                pulled_twice(caught, caught.given, allowed=self._allowed) if caught.given else None
            )
            if probed is None:
                self.not_covered.append(f"{name}.backward can't be run by itself twice")
                continue
            breaches = [probed] if isinstance(probed, Breach) else self._breaches(probed)
            for breach in breaches:
                if breach.kind == "nonlinear" and self._is_linear(caught):
                    continue
                number = "its output" if breach.output is None else f"output {breach.output}"
                yield finding_of_breach(
                    breach,
                    subject=f"{name}.backward",
                    output=number,
                    functions=(caught.function,),
                )

    def _is_linear(self, caught: CaughtNode) -> bool:
        """Return whether a Function's backward is linear, and a hook beside it is not."""
        bare = BareNode(caught.node, caught.function)
        probed = pulled_twice(bare, caught.given, allowed=self._allowed)
        return isinstance(probed, Probed) and not list(probe_linearity(probed))

    def _of_outputs(self) -> Iterator[Finding]:
        recording = self._recording
        names = [f"`{output.name}`" for output in self._state.context.point.outputs]
        given = {index: self._cotangents[index] for index in recording.attached}
        floors = [sum(column) for column in zip(*self._floors, strict=True)]
        whole = pulled_twice(recording, given, allowed=self._allowed, floors=floors)
        if whole is None:
            self.not_covered.append("the contract of backward: it can't be run twice on one graph")
            return
        found = (
            [whole]
            if isinstance(whole, Breach)
            else [*self._breaches(whole), *probe_all_undefined(recording, self._cotangents)]
        )
        probed = ["linear", "undefined gradients"]
        for breach in found:
            index = recording.attached[0] if breach.output is None else breach.output
            path = graph_path(recording.tensors[index], None)
            if breach.kind == "undefined" and breach.error is not None and not path.functions:
                # Torch's own ops take them, so that it is a hook, which need not expect them.
                self.not_covered.append(f"undefined gradients: a hook raises ({breach.error})")
                probed = ["linear"]
                continue
            yield finding_of_breach(
                breach,
                subject=f"backward of {names[index]}",
                output=names[index],
                functions=path.functions,
            )
            return
        self.covered += probed
        if self._layouts:
            self.covered += ["strided, transposed, expanded and aliased gradients"]

    def _breaches(self, probed: Probed) -> Iterator[Breach]:
        written = list(probe_writing(probed))
        if written:
            # What it writes would spoil every other comparison.
            yield from written
            return
        yield from probe_linearity(probed)
        if self._layouts:
            yield from probe_layouts(probed)
            yield from probe_aliasing(probed)
        yield from probe_undefined(probed)


_OF_FORWARD = frozenset(
    {catalogue.MISSING_MARK_DIRTY.code, catalogue.OUTPUT_WRONGLY_DIFFERENTIABLE.code}
)


def _owner(finding: Finding) -> object:
    """Return whose method a finding is about; None where that is no one Function's."""
    function = blamed(finding)
    return None if function is None else (function, finding.code in _OF_FORWARD)
