"""Each input alone requiring grad, as when the others are frozen or data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_suite.verification.diagnosis.contract_messages import blamed
from gradcheck_suite.verification.numerics.comparison import difference, noise_floors
from gradcheck_suite.verification.numerics.recorded_call import RecordedCall
from gradcheck_suite.verification.stages.input_variations.memory_layouts import rows_of
from gradcheck_suite.verification.stages.input_variations.messages import raises_alone, wrong_alone
from gradcheck_suite.verification.stages.input_variations.rerun import VariationResult
from gradcheck_suite.verification.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from gradcheck_suite.findings import Finding
    from gradcheck_suite.verification.stage import CheckState
    from gradcheck_suite.verification.target.pure_function import Arrangement

__all__ = ["try_single_inputs"]

_FEW = 4
"""Up to so many variables each is tried by itself; of more, halves, such that every two are apart
in one of them: two for each digit of their number in base two. A bound on cost."""


def try_single_inputs(state: CheckState) -> VariationResult:
    """Compare the gradients of some variables, where only they require grad, with those of all.

    The gradient of each was verified where all require grad, so one that differs, is None or
    raises is wrong.
    """
    findings: list[Finding] = []
    lines: list[str] = []
    seen: set[tuple[str, object]] = set()
    for members in _subsets(state):
        outcome = _tried(state, members)
        if isinstance(outcome, str):
            lines.append(outcome)
        elif outcome is not None:
            key = (outcome.code, blamed(outcome) or outcome.message)
            if key not in seen:
                findings.append(outcome)
            seen.add(key)
    return VariationResult(not lines and not findings, tuple(findings), tuple(lines[:3]))


def _subsets(state: CheckState) -> Iterator[frozenset[int]]:
    count = len(state.subject.variables)
    if count <= 1:
        return
    everything = range(count)
    if count <= _FEW:
        yield from (frozenset({index}) for index in everything)
        return
    for bit in range((count - 1).bit_length()):
        chosen = frozenset(index for index in everything if index >> bit & 1)
        yield chosen
        yield frozenset(everything) - chosen


def _tried(state: CheckState, members: frozenset[int]) -> Finding | str | None:
    point = state.context.point
    cotangents = state.context.cotangents(point, 0)
    subject = state.subject.elsewhere(arrangement=_only(members))
    words = _words(state, members)
    try:
        recording = RecordedCall.of(subject, point)
    except Exception as error:  # noqa: BLE001 - whatever the user's function raises here
        return f"{words}: raises {one_line(error)}"
    try:
        rows = rows_of(recording, cotangents)
    except Exception as error:  # noqa: BLE001 - as above
        return raises_alone(error, recording, words)
    allowed = state.context.precision.linearity
    floors = noise_floors(point, cotangents, state.context.precision)
    for (output, variable), conclusion in state.conclusions.items():
        if variable not in members or conclusion.status == "fail":
            continue
        expected = state.context.gradients.rows[output][variable]
        found = rows[output][variable]
        noise = state.context.breaches.unequal.get((output, variable), 0.0)
        scale = floors[output][variable]
        if difference(expected, found, scale=scale) > allowed + 4.0 * noise:
            assert expected is not None or found is not None
            return wrong_alone(state, recording, (output, variable), (expected, found), words)
    return None


def _only(members: frozenset[int]) -> Arrangement:
    def arrange(
        values: Sequence[torch.Tensor], constants: Sequence[torch.Tensor]
    ) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]:
        chosen = [v if index in members else v.detach() for index, v in enumerate(values)]
        return chosen, constants

    return arrange


def _words(state: CheckState, members: frozenset[int]) -> str:
    names = [f"`{state.subject.variables[index].name}`" for index in sorted(members)]
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")  # noqa: PLR2004
    return f"only {shown} require{'s' if len(names) == 1 else ''} grad"
