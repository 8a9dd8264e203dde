"""Try every variation of the inputs that was asked for, several at once where they go together."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gradcheck_suite.findings import Finding
from gradcheck_suite.severity import Severity
from gradcheck_suite.verification.diagnosis.contract_messages import blamed
from gradcheck_suite.verification.diagnosis.messages import percent
from gradcheck_suite.verification.options import LAYOUTS, chosen_variations
from gradcheck_suite.verification.stage import CheckState, StageResult
from gradcheck_suite.verification.stages.contracts.function_nodes import has_custom_code
from gradcheck_suite.verification.stages.input_variations.memory_layouts import try_layout
from gradcheck_suite.verification.stages.input_variations.messages import under_variation
from gradcheck_suite.verification.stages.input_variations.repeated_indices import (
    is_overwritten,
    repeats_indices,
)
from gradcheck_suite.verification.stages.input_variations.rerun import (
    Trial,
    attempt,
    attempt_non_finite,
    extends,
    matching_outputs,
)
from gradcheck_suite.verification.stages.input_variations.settling import settling
from gradcheck_suite.verification.stages.input_variations.single_input import try_single_inputs
from gradcheck_suite.verification.stages.input_variations.sizes import Resized, resized_subjects
from gradcheck_suite.verification.stages.input_variations.values import (
    Change,
    changed,
    huge_values,
    magnitude_halves,
    tiny_values,
    value_changes,
)
from gradcheck_suite.verification.target.cost import ends_early

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gradcheck_suite.verification.target.pure_function import PureFunction

__all__ = ["vary_inputs"]

_FEW = 4
"""How many parts of a change that is refused are tried by themselves. A bound on cost."""


def vary_inputs(state: CheckState) -> StageResult:
    """Check the gradients for other layouts, values and sizes of the inputs.

    Nothing is tried where the gradients at the given point are wrong already.

    Raises:
        UsageError: a variation is asked for that there is none of.
    """
    names = chosen_variations(state.options.variations) - {"cotangents"}
    if not names:
        return StageResult()
    if any(finding.severity is Severity.ERROR for finding in state.findings):
        return StageResult()
    if not state.context.deterministic:
        return StageResult(
            not_covered=("variations of the inputs were not tried, as the outputs are random",)
        )
    run = _Run(state, names)
    with warnings.catch_warnings():
        # Of inputs that the user did not give, such as ones that need no gradient.
        warnings.simplefilter("ignore")
        run.every_part()
    return StageResult(
        findings=tuple(run.findings),
        covered=(f"inputs: {', '.join(dict.fromkeys(run.covered))}",) if run.covered else (),
        not_covered=tuple(run.not_covered),
    )


@dataclass(slots=True)
class _Run:
    """One pass through the variations, and what it has come to."""

    state: CheckState
    names: frozenset[str]
    covered: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    not_covered: list[str] = field(default_factory=list)

    def every_part(self) -> None:
        """Try one kind of variation after the other, while there is time."""
        parts = (
            self.layouts,
            self.alone,
            self.values,
            self.tiny_values,
            self.huge_values,
            self.sizes,
        )
        for part in parts:
            if self.state.deadline.passed:
                line = "not all variations of the inputs were tried within the time"
                self.not_covered.append(line)
                break
            part()

    def layouts(self) -> None:
        """Try other layouts; of several that fail, one is told."""
        for layout in LAYOUTS:
            if layout not in self.names:
                continue
            result = try_layout(self.state, layout)
            if result.covered:
                self.covered.append(layout)
            self._keep(result.findings)
            self.not_covered += result.not_covered

    def alone(self) -> None:
        """Try each input alone requiring grad."""
        if "alone" not in self.names or len(self.state.subject.variables) < 2:  # noqa: PLR2004
            return
        result = try_single_inputs(self.state)
        if result.covered:
            self.covered.append("alone")
        self._keep(result.findings)
        self.not_covered += result.not_covered

    def values(self) -> None:
        """Try other values, all changes at once if the function takes them so."""
        changes = value_changes(self.state.subject, self.state.options.seed, self.names)
        if not changes:
            return
        trial = self._attempt(changes)
        if trial.status == "held":
            self.covered += [change.kind for change in changes]
        elif len(changes) == 1:
            self._conclude(changes[0], trial)
        else:
            for kind in [change.kind for change in changes]:
                single = value_changes(
                    self.state.subject, self.state.options.seed, frozenset({kind})
                )
                self._conclude(single[0], self._attempt(single))

    def tiny_values(self) -> None:
        """Try tiny inputs of custom Functions, which may switch to a series there."""
        if "magnitudes" not in self.names or not has_custom_code(self.state):
            return
        change = tiny_values(self.state.subject, self.state.options.seed)
        trial = None if change is None else self._attempt([change])
        if change is None or trial is None or trial.status != "failed":
            return
        told = _under_variation(trial, change.kind, change.words, _VALUES)
        # Next to a tolerance, tiny values are nothing: an iteration ends early there.
        self._keep(told, trial, changed(self.state.subject, [change]), least=Severity.ERROR)

    def huge_values(self) -> None:
        """Try inputs whose exponentials overflow, for NaN and Inf alone."""
        change = huge_values(self.state.subject, self.state.options.seed)
        if "magnitudes" not in self.names or change is None or self.findings:
            return
        subject = changed(self.state.subject, [change])
        trial = attempt_non_finite(self.state, subject)
        # An iteration need not converge there.
        if trial.status == "failed" and not ends_early(self.state.subject):
            told = _under_variation(trial, change.kind, change.words, _OVERFLOW)
            # Nobody said that values so far off the given ones ever come.
            self._keep((replace(one, severity=Severity.WARNING) for one in told), trial, subject)

    def sizes(self) -> None:
        """Try other sizes of the first and the last dimension."""
        if "sizes" not in self.names:
            return
        held, refused = False, []
        state = replace(self.state, varied="sizes")
        large = has_custom_code(self.state)
        for resized in resized_subjects(self.state.subject, self.state.options.seed, large=large):
            subject = resized.subject
            trial = attempt(state, subject, resized=True)
            raised = trial.findings if trial.status == "refused" else ()
            for subject in resized.others if trial.status == "refused" else ():
                trial = attempt(state, subject, resized=True)
            if trial.status == "failed":
                told = _under_variation(trial, "sizes", resized.words, resized.hint)
                if self._holds(resized.multiple) and not extends(self.state, subject):
                    told = (_for_multiples(finding, resized) for finding in told)
                self._keep(told, trial, subject)
            elif trial.status == "held":
                held = True
            else:
                # What raises is no silent mistake, and the size may be none that is meant.
                told = under_variation(raised, kind="sizes", words=resized.words, hint=resized.hint)
                self._keep(replace(finding, severity=Severity.WARNING) for finding in told)
                refused.append(f"sizes, {resized.words}: {trial.reason}")
        if held:
            self.covered.append("sizes")
        elif refused:
            self.not_covered.append(refused[0])

    def _holds(self, subject: PureFunction | None) -> bool:
        return subject is not None and attempt(self.state, subject, resized=True).status == "held"

    def _attempt(self, changes: Sequence[Change]) -> Trial:
        return attempt(self.state, changed(self.state.subject, changes))

    def _conclude(self, change: Change, trial: Trial, *, whole: bool = True) -> None:
        """Note what came of one change; of one that is refused, what its parts come to."""
        if trial.status == "held":
            self.covered.append(change.kind)
        elif trial.status == "failed":
            halves = self._halves(change) if change.kind == "magnitudes" and whole else []
            for half in halves:
                sharper = self._attempt([half])
                if sharper.status == "failed":
                    change, trial = half, sharper
                    break
            subject = changed(self.state.subject, [change])
            self._keep(_under_variation(trial, change.kind, change.words, _VALUES), trial, subject)
        elif trial.status == "refused" and whole and (parts := self._parts(change)):
            for part in parts[:_FEW]:
                self._conclude(part, self._attempt([part]), whole=False)
        else:
            names = [self.state.subject.variables[index].name for index in change.variables]
            names += [self.state.subject.constants[index].name for index in change.constants]
            shown = ", ".join(f"`{name}`" for name in names[:3])
            self.not_covered.append(f"{change.kind} of {shown}: {trial.reason} {change.words}")

    def _parts(self, change: Change) -> list[Change]:
        if change.kind == "magnitudes":
            return self._halves(change)
        parts = change.parts()
        return parts if len(parts) > 1 else []

    def _halves(self, change: Change) -> list[Change]:
        assert change.kind == "magnitudes"
        return magnitude_halves(self.state.subject, self.state.options.seed)

    def _keep(
        self,
        findings: Iterable[Finding],
        trial: Trial | None = None,
        subject: PureFunction | None = None,
        *,
        least: Severity = Severity.NOTE,
    ) -> None:
        """Keep findings that name something new; one mistake often shows in several ways."""
        if trial is not None and subject is not None and repeats_indices(self.state, subject):
            lost = [pair for pair in trial.wrong if is_overwritten(self.state, subject, pair)]
            if lost:
                self.not_covered.append(
                    "repeated indices: one entry overwrites another there, and which one is not "
                    "the gradient's to know"
                )
                return
        if subject is not None:
            findings = self._held_to_iterations(findings, subject)
        told = {_place(finding) for finding in self.findings}
        for finding in findings:
            if finding.severity < least:
                self._leave(f"{_seen(finding)} the function iterates, and may end early")
            elif _place(finding) not in told:
                told.add(_place(finding))
                self.findings.append(finding)

    def _held_to_iterations(
        self, findings: Iterable[Finding], subject: PureFunction
    ) -> Iterator[Finding]:
        """Leave out gradients that differ where an iteration in the function has not settled."""
        outputs = matching_outputs(self.state, subject.first_call(), resized=True)
        assert not isinstance(outputs, str)
        seen = settling(self.state, subject, outputs)
        why = f"its last round still changes the output by {percent(seen.values)}"
        if math.isinf(seen.values):
            why = "it makes one round at most"
        for finding in findings:
            if seen.unsettled(finding):
                self._leave(
                    f"{_seen(finding)} an iteration in the function does not come to its end, "
                    f"which it does for the given ones ({why}), so that its gradient could not be "
                    "judged there"
                )
            else:
                yield seen.held_to(finding)

    def _leave(self, line: str) -> None:
        if line not in self.not_covered:
            self.not_covered.append(line)


def _seen(finding: Finding) -> str:
    return f"{finding.evidence['variation']}: {finding.evidence['seen']}"


def _under_variation(trial: Trial, kind: str, words: str, hint: str) -> Iterator[Finding]:
    return under_variation(trial.findings, kind=kind, words=words, hint=hint)


def _for_multiples(finding: Finding, resized: Resized) -> Finding:
    """Make a warning of what is right for multiples of the given size: others may not be meant.

    Forward does something else there, even with the entries that were given.
    """
    hint = f"it is right for {resized.rule}; if only these are meant, let forward refuse others"
    return replace(
        finding,
        severity=Severity.WARNING,
        hint=hint if finding.hint is None else f"{finding.hint}; {hint}",
    )


def _place(finding: Finding) -> object:
    """Return what two findings of one mistake have in common."""
    function = blamed(finding)
    if function is not None:
        return function
    return finding.evidence.get("output"), finding.evidence.get("input")


_OVERFLOW = (
    "where exp overflows, or a softmax is exactly zero, backward meets 0 * inf: use torch.sigmoid, "
    "softmax, logsumexp and softplus, and clamp what goes into a branch that where() does not take"
)
_VALUES = "check the function there: call check_gradients with inputs of that kind"
