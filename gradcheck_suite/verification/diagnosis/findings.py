"""Turn what was concluded on each gradient into findings, one for each mistake."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from gradcheck_suite.findings import Finding, Related
from gradcheck_suite.verification.diagnosis import contract_messages, messages
from gradcheck_suite.verification.diagnosis.classify import Diagnosis, diagnose, first_look
from gradcheck_suite.verification.diagnosis.function_isolation import wrong_functions
from gradcheck_suite.verification.diagnosis.function_source import (
    Place,
    gradient_place,
    kept_place,
)
from gradcheck_suite.verification.diagnosis.unrecorded import follow
from gradcheck_suite.verification.diagnosis.wrong_entry import find_wrong_entry
from gradcheck_suite.verification.first_order.piecewise_constant import has_any_effect
from gradcheck_suite.verification.numerics.recorded_call import RecordedCall
from gradcheck_suite.verification.target.cost import ends_early
from gradcheck_suite.verification.target.graph_walk import method_location, only

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gradcheck_suite.verification.diagnosis.function_source import Suspicion
    from gradcheck_suite.verification.diagnosis.unrecorded import Unrecorded
    from gradcheck_suite.verification.diagnosis.wrong_entry import WrongEntry
    from gradcheck_suite.verification.numerics.decision import Pair
    from gradcheck_suite.verification.numerics.derivative import Measurement
    from gradcheck_suite.verification.stage import CheckState
    from gradcheck_suite.verification.target.graph_walk import GraphPath

__all__ = ["find_mistakes"]

_MOST_SEARCHES = 8
"""How many failures are narrowed down to an entry. A bound on cost: each takes some hundred
evaluations."""
_FEW = 3
"""Up to so many wrong gradients each is a finding of its own; of more, those that one cause can
explain are one: whatever lies upstream of a wrong backward is wrong as well. Chosen."""
_LITTLE, _LITTLE_OF_AN_ENTRY = 0.01, 0.1
"""Shares of the gradient: by this much at most an iteration that ends early leaves it off, all in
all and in the entry that is off by most. Chosen: only a hint depends on it."""
_UNEXPLAINED = ("other", "region", "missing term")
_NOT_ZERO = "is not zero, although the function is made of steps and stays the same between them"
_NO_EFFECT = "is not zero, although the output stays the same however far it is moved"


def find_mistakes(state: CheckState) -> Iterator[Finding]:
    """Yield a finding for each breach of contract and each wrong gradient."""
    wrong = [pair for pair, conclusion in state.conclusions.items() if conclusion.status == "fail"]
    breaches = state.context.breaches
    if not (
        wrong or breaches.written or breaches.unequal or breaches.nonlinear or breaches.undefined
    ):
        return
    yield from _Mistakes(state).findings(wrong)


class _Mistakes:
    def __init__(self, state: CheckState) -> None:
        self._state = state
        self._context = state.context
        self._conclusions = state.conclusions
        self._call = RecordedCall.of(state.subject, state.context.point)
        self._searches = _MOST_SEARCHES if state.options.examined else 0
        self._iterates: bool | None = None
        self._unrecorded: Unrecorded | None = None
        self._wrong: dict[tuple[type, ...], Mapping[type, Finding] | None] = {}

    def findings(self, wrong: Sequence[Pair]) -> Iterator[Finding]:
        yield from self._breaches()
        attached = self._context.gradients.attached
        explains = self._context.breaches.explains
        groups: dict[object, list[Pair]] = {}
        for pair in wrong:
            if attached[pair[0]] and not explains(pair):
                groups.setdefault(self._cause(pair), []).append(pair)
        for pairs in groups.values():
            if len(pairs) > _FEW:
                yield self._wrong_gradient(pairs)
            else:
                for pair in pairs:
                    yield self._wrong_gradient([pair])
        for output in range(len(attached)):
            variables = [variable for out, variable in wrong if out == output]
            if variables and not attached[output]:
                yield self._detached(output, variables)

    def _breaches(self) -> Iterator[Finding]:
        breaches = self._context.breaches
        for output in sorted(breaches.written):
            path = self._call.whole_graph(output)
            yield contract_messages.grad_output_modified(output=self._output(output), path=path)
        for output, difference in list(breaches.undefined.items())[:1]:
            yield contract_messages.finding_of_breach(
                contract_messages.Breach("undefined", "left out", output, difference),
                subject=f"backward of `{self._output(output)}`",
                output="another output",
                functions=self._call.whole_graph(output).functions,
            )
        for pair, difference in breaches.unequal.items():
            yield contract_messages.nondeterministic_gradient(
                output=self._output(pair[0]),
                variable=self._variable(pair[1]),
                difference=difference,
                by_rounding=pair in breaches.unequal_by_rounding,
                path=self._path(pair),
            )
        for pair, difference in breaches.nonlinear.items():
            yield contract_messages.nonlinear_backward(
                output=self._output(pair[0]),
                variable=self._variable(pair[1]),
                difference=difference,
                path=self._path(pair),
            )

    def _cause(self, pair: Pair) -> object:
        """Return the same for pairs that one mistake can explain."""
        look = self._first_look(pair)
        if self._conclusions[pair].shown.non_finite:
            return pair[0], "non-finite", self._call.path(*pair).functions
        rounded = None if look.ratio is None else f"{look.ratio:.3g}"
        return pair[0], look.kind, rounded, self._call.path(*pair).functions

    def _wrong_gradient(self, pairs: Sequence[Pair]) -> Finding:
        pair = max(pairs, key=lambda pair: self._conclusions[pair].shown.relative_deviation)
        output, variable = pair
        conclusion = self._conclusions[pair]
        shown = conclusion.shown
        diagnosis = self._first_look(pair)
        entry = None
        if shown.unchanged and shown.contribution:
            diagnosis = Diagnosis("not zero", words=_NOT_ZERO)
            if not has_any_effect(self._context, output, variable):
                diagnosis = Diagnosis("no effect", words=_NO_EFFECT)
        elif self._searches < _MOST_SEARCHES and not (shown.non_finite or conclusion.moved):
            self._searches += 1
            entry = find_wrong_entry(self._context, output, variable, shown.estimate.step)
            diagnosis = diagnose(
                self._context, self._conclusions, pair, first=diagnosis, entry=entry
            )
        draws = diagnosis.kind in _UNEXPLAINED and self._backward_draws(output)
        path = self._path(pair)
        shape = self._context.point.values[variable].shape
        suspicion = messages.suspicion_of(diagnosis, draws=draws, varied=self._state.varied)
        return messages.wrong_gradient(
            place=self._place(pair, path, suspicion),
            unseen="" if only(path.functions) else self._unseen_of(variable, path).words,
            ends_early=self._is_little(shown, diagnosis, entry) and self._ends_early(),
            draws=draws,
            output=self._output(output),
            variable=self._variable(variable),
            also=[self._variable(other) for _, other in pairs if other != variable],
            shape=shape,
            shown=shown,
            diagnosis=diagnosis,
            entry=entry,
            path=path,
            at_kink=conclusion.at_kink,
            broken=self._broken(pair) if shown.non_finite and not conclusion.moved else None,
            is_complex=(
                self._context.point.outputs[output].representation.is_complex,
                self._context.subject.variables[variable].representation.is_complex,
            ),
        )

    @staticmethod
    def _is_little(shown: Measurement, diagnosis: Diagnosis, entry: WrongEntry | None) -> bool:
        """Return whether a gradient is off by as little as that of an iteration may be."""
        if shown.non_finite or diagnosis.kind not in _UNEXPLAINED:
            return False
        worst = 0.0
        if entry is not None and entry.numeric != 0.0:
            worst = abs(entry.analytic / entry.numeric - 1.0)
        return shown.relative_deviation < _LITTLE and worst < _LITTLE_OF_AN_ENTRY

    def _ends_early(self) -> bool:
        if self._iterates is None:
            self._iterates = ends_early(self._context.subject)
        return self._iterates

    def _backward_draws(self, output: int) -> bool:
        try:
            return self._call.backward_draws(output)
        except Exception:  # noqa: BLE001 - a backward that runs once only, or needs its module
            return False

    def _broken(self, pair: Pair) -> messages.Broken | None:
        """Return the first entry of a gradient that is NaN or Inf, and how many are."""
        gradient = self._context.gradients.rows[pair[0]][pair[1]]
        if gradient is None or bool(torch.isfinite(gradient).all()):
            return None
        places = (~torch.isfinite(gradient)).nonzero()
        return messages.Broken(tuple(map(int, places[0])), len(places), gradient.numel())

    def _detached(self, output: int, variables: Sequence[int]) -> Finding:
        path = self._path((output, variables[0]))
        return messages.detached_output(
            place=self._place((output, variables[0]), path, None),
            unseen="" if only(path.functions) else self._unseen().words,
            output=self._output(output),
            variables=[self._variable(variable) for variable in variables],
            shown=self._conclusions[output, variables[0]].shown,
            path=path,
            others_attached=any(self._context.gradients.attached),
        )

    def _unseen(self) -> Unrecorded:
        """Return what the function does that autograd does not see."""
        if self._unrecorded is None:
            self._unrecorded = follow(self._context.subject, self._context.point)
        return self._unrecorded

    def _is_cut_off(self, variable: int, path: GraphPath) -> bool:
        """Return whether the function's own lines take what depends on a variable off the graph."""
        return not path.connected and bool(self._unseen_of(variable, path).cuts)

    def _unseen_of(self, variable: int, path: GraphPath) -> Unrecorded:
        return self._unseen() if path.connected else self._unseen().of(variable)

    def _first_look(self, pair: Pair) -> Diagnosis:
        failed = [
            outcome.measurement
            for outcome in self._state.measurement.outcomes(pair)
            if outcome.ruling == "fail"
        ]
        return first_look(failed)

    def _path(self, pair: Pair) -> GraphPath:
        """Return the path to a wrong gradient; of the Functions on it only the wrong ones."""
        path = self._call.path(*pair)
        if self._is_cut_off(pair[1], path):
            return replace(path, functions=())  # cut off outside of them all
        if not path.functions or path.alone:
            return path
        if path.functions not in self._wrong:
            self._wrong[path.functions] = wrong_functions(self._state, path.functions)
        wrong = self._wrong[path.functions]
        return path if wrong is None else replace(path, functions=tuple(wrong))

    def _place(self, pair: Pair, path: GraphPath, suspicion: Suspicion | None) -> Place:
        """Return the line of the Function in question that makes the gradient.

        Where several of its arguments lead to the variable, it is the one that is wrong when the
        Function is checked by itself.
        """
        function = only(path.functions)
        if self._is_cut_off(pair[1], path):
            return self._unseen_of(pair[1], path).place
        alone = self._wrong.get(self._call.path(*pair).functions) or {}
        if path.argument is None and alone:
            first, *others = [alone[one] for one in path.functions]
            also = [Related(one.location, "wrong as well") for one in others if one.location]
            return Place(first.location, (*first.related, *also))
        if function is None:
            # Right by themselves, and wrong where nothing else is seen: together, then.
            kept = kept_place(() if self._unseen().words else self._call.path(*pair).functions)
            return self._unseen().place if kept.location is None else kept
        if not path.connected and not self._unseen().cuts:
            # It comes into the Function as something else than an argument.
            return Place(method_location(function, "forward"))
        return gradient_place(
            function, path.argument, suspicion=suspicion, incoming=path.arrives_at
        )

    def _output(self, index: int) -> str:
        return self._context.point.outputs[index].name

    def _variable(self, index: int) -> str:
        return self._context.subject.variables[index].name
