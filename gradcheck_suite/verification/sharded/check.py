"""Check the gradients of what is sharded over ranks, by derivatives along random directions.

FSDP2 (``fully_shard``) and tensor parallelism (``parallelize_module``) keep parameters as DTensors.
Every rank calls the check, and all of them come to the same report.
"""

from __future__ import annotations

from dataclasses import replace
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import nn

from gradcheck_suite._torch_compat import is_sharded, reshard
from gradcheck_suite.errors import UsageError
from gradcheck_suite.verification.diagnosis import messages
from gradcheck_suite.verification.diagnosis.classify import Diagnosis, first_look
from gradcheck_suite.verification.diagnosis.function_source import Place
from gradcheck_suite.verification.first_order.measure import GradientMeasurement
from gradcheck_suite.verification.first_order.probe_context import ProbeContext
from gradcheck_suite.verification.numerics.precision import precision_of
from gradcheck_suite.verification.report import ReportBuilder
from gradcheck_suite.verification.sharded.displacements import Displaced
from gradcheck_suite.verification.sharded.ranks import Part, Ranks, is_distributed
from gradcheck_suite.verification.target.arguments import name_arguments, split_arguments
from gradcheck_suite.verification.target.closures import read_names
from gradcheck_suite.verification.target.graph_walk import GraphPath
from gradcheck_suite.verification.target.tree import leaves_with_paths, replace_leaves
from gradcheck_suite.verification.text import short_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gradcheck_suite.findings import Finding, Report
    from gradcheck_suite.verification.numerics.decision import Conclusion, Pair
    from gradcheck_suite.verification.options import CheckOptions
    from gradcheck_suite.verification.target.pure_function import Output, PureFunction

__all__ = ["check_sharded", "is_sharded_anywhere"]

_SAME = 1e-3
"""By what share a ratio may miss the number of ranks for gradients to be sums over them. Chosen: a
factor is measured far finer in float64, and other whole numbers are further away."""
_COVERED = "derivatives along random directions over {}, each moving what it has of the tensors"
_SUMMED = "gradients are sums over ranks, not means: they were compared as such"
_ALONG = (
    "single entries, variations of the inputs and order 2: where tensors are sharded, gradients "
    "are compared along random directions alone"
)
_ON_REQUEST = {
    "full": "the whole Jacobian (full=True)",
    "forward_mode": "forward mode",
    "batched": "batched gradients",
    "compiled": "compiled code",
    "time_limit": "the time limit, as all ranks have to end alike",
}
_FAINT = (
    "numeric and analytic derivative differ by no more than rounding of the output may explain; "
    "float64 sees more"
)
_HINT = (
    "check the module before it is sharded: if it is right there, look at how it is sharded and at "
    "what is done with its local parts"
)

Select: TypeAlias = """Callable[
    [PureFunction, list[Output], CheckOptions], tuple[list[Output], list[tuple[Output, str]]]
]"""
_Named: TypeAlias = "tuple[str, Literal['input', 'parameter'], torch.Tensor]"


def is_sharded_anywhere(
    target: object, inputs: object, kwargs: Mapping[str, object] | None
) -> bool:
    """Return whether a tensor that is read or given is a part of one that lies on many ranks."""
    found = [tensor for _, module in _modules_of(target) for tensor in module.parameters()]
    try:
        given = [leaf for _, leaf in leaves_with_paths((inputs, kwargs), "")]
    except UsageError:
        given = []
    return any(isinstance(one, torch.Tensor) and is_sharded(one) for one in (*found, *given))


def check_sharded(
    target: Any,
    inputs: object,
    kwargs: Mapping[str, object] | None,
    options: CheckOptions,
    select: Select,
) -> Report:
    """Check the gradients of a function of sharded tensors; every rank has to call it.

    Args:
        target: a function, a module or a bound method of one.
        inputs: as for ``check_gradients``.
        kwargs: further keyword arguments.
        options: how it is done; what can't be done is told.
        select: splits the outputs into those to check and those not, with why.

    Raises:
        UsageError: it can't be checked so, or ranks differ in what they check.
    """
    title = getattr(target, "__qualname__", type(target).__name__)
    if options.cast is not None:
        raise UsageError(
            f"dtype casts copies, and {title} is sharded over ranks, where it is not copied; make "
            "it float64 before it is sharded, and give dtype='native'"
        )
    call = _Call(target, inputs, kwargs, options, title)
    if not call.tensors:
        raise UsageError(
            f"{title} has no parameter and no input of floating-point type that requires grad, so "
            "there is no gradient to check; set requires_grad_() on what is to be checked"
        )
    ranks = Ranks(call.seen)
    parts = [Part.of(*each, ranks) for each in call.tensors]
    displaced = Displaced(call, call.modules, parts, ranks, title=title, seed=options.seed)
    try:
        report = _check(displaced, call.not_covered, options, select)
        if not displaced.alike and _are_all(report, float(ranks.count)):
            displaced.summed = True
            summed = _check(displaced, call.not_covered, options, select)
            report = summed if summed.ok else report
        return report
    finally:
        displaced.restore()


class _Call:
    """The target with its arguments, of which some are leaves of our own.

    Attributes:
        modules: what it reads the parameters of.
        tensors: what is moved, each with its name and what it is to the user.
        seen: those and what is held constant.
        not_covered: sentences on what is held constant.
    """

    def __init__(
        self,
        target: Any,
        inputs: object,
        kwargs: Mapping[str, object] | None,
        options: CheckOptions,
        title: str,
    ) -> None:
        self._target = target
        self._args, self._named = split_arguments(inputs, kwargs)
        named = _modules_of(target)
        self.modules = [module for _, module in named]
        self.tensors: list[_Named] = []
        self.seen: list[torch.Tensor] = []
        self.not_covered = [_ALONG]
        self._leaves: dict[int, torch.Tensor] = {}
        signature = target.forward if isinstance(target, nn.Module) else target
        names = (*name_arguments(signature, self._args, self._named, title), *self._named)
        values = (*self._args, *self._named.values())
        for name, value in zip(names, values, strict=True):
            for path, leaf in leaves_with_paths(value, name):
                if isinstance(leaf, torch.Tensor) and id(leaf) not in self._leaves:
                    self._add_input(path, leaf)
        if self.modules and not options.parameters:
            self.not_covered.append("the module's parameters were held constant (parameters=False)")
        for prefix, module in named:
            reshard(module)
            for name, parameter in module.named_parameters():
                self._add(f"{prefix}{name}", "parameter", parameter, options)

    def _add_input(self, name: str, leaf: torch.Tensor) -> None:
        self.seen.append(leaf)
        if leaf.requires_grad and leaf.is_floating_point():
            own = leaf.detach().clone().requires_grad_()
            self._leaves[id(leaf)] = own
            self.tensors.append((name, "input", own))
        elif leaf.is_floating_point() or leaf.is_complex():
            self._hold(f"input `{name}`", leaf)

    def _add(
        self, name: str, kind: Literal["parameter"], tensor: torch.Tensor, options: CheckOptions
    ) -> None:
        self.seen.append(tensor)
        if is_sharded(tensor) and not is_distributed(tensor):
            raise UsageError(
                f"`{name}` was flattened by FullyShardedDataParallel, whose shards can't be moved "
                "one tensor at a time; check the module before it is wrapped, or as fully_shard "
                "shards it"
            )
        if not options.parameters:
            return
        if tensor.requires_grad and tensor.is_floating_point():
            self.tensors.append((name, kind, tensor))
        else:
            self._hold(f"{kind} `{name}`", tensor)

    def _hold(self, what: str, tensor: torch.Tensor) -> None:
        why = f"is {short_name(tensor.dtype)}" if tensor.requires_grad else "does not require grad"
        self.not_covered.append(f"{what} {why} and was held constant")

    def __call__(self) -> object:
        """Call the target; what is not moved, it gets as copies that it may write into."""

        def own(leaf: Any) -> Any:
            known = self._leaves.get(id(leaf))
            if known is not None or not isinstance(leaf, torch.Tensor):
                return leaf if known is None else known
            return leaf.detach().clone()

        args, named = replace_leaves((self._args, self._named), own)
        return self._target(*args, **named)


class _AlongRandomDirections(GradientMeasurement):
    """Measures how far is moved, of which float64 and the Functions on the way say nothing."""

    def _refined(self, found: dict[Pair, Conclusion]) -> dict[Pair, Conclusion]:
        return found

    def _held_to_functions(self, pair: Pair, conclusion: Conclusion) -> Conclusion:  # noqa: ARG002 - all are alike
        return conclusion

    def _allow_for_rounding_in_backward(self) -> None:
        """Leave rulings as they are: faint ones are no failures, see ``_concluded``."""

    def _concluded(self, pair: Pair) -> Conclusion:
        conclusion = super()._concluded(pair)
        if conclusion.status == "fail" and self._is_faint(pair):
            return replace(conclusion, status="inconclusive", reason=_FAINT)
        return conclusion


def _check(
    displaced: Displaced, not_covered: Sequence[str], options: CheckOptions, select: Select
) -> Report:
    subject = displaced.as_function(not_covered)
    outputs, unchecked = select(subject, subject.first_call(), options)
    report = ReportBuilder(subject, options, unchecked)
    if not outputs:
        return report.report()
    asked = [words for name, words in _ON_REQUEST.items() if getattr(options, name)]
    if asked:
        report.not_covered.append(f"{', '.join(asked)}: left out where tensors are sharded")
    precision = precision_of(displaced.types)
    report.probes = options.probes or precision.probes
    context = ProbeContext(subject, outputs, precision=precision, seed=options.seed)
    measurement = _AlongRandomDirections(context, probes=report.probes)
    conclusions = measurement.run()
    report.conclude(context, conclusions)
    report.findings = list(_findings(displaced, measurement, conclusions))
    report.cover(measurement, conclusions)
    report.covered.append(_COVERED.format(displaced.ranks.words))
    if displaced.summed:
        report.covered.append(_SUMMED)
    return report.report()


def _findings(
    displaced: Displaced, measurement: GradientMeasurement, conclusions: Mapping[Pair, Conclusion]
) -> Iterator[Finding]:
    """Yield one finding for the gradients that are wrong in one way."""
    attached = measurement.context.gradients.attached
    groups: dict[tuple[int, str, str | None], list[Pair]] = {}
    looks: dict[Pair, Diagnosis] = {}
    for pair, conclusion in conclusions.items():
        if conclusion.status == "fail":
            outcomes = measurement.outcomes(pair)
            look = first_look([one.measurement for one in outcomes if one.ruling == "fail"])
            looks[pair] = look
            ratio = None if look.ratio is None else f"{look.ratio:.3g}"
            kind = look.kind if attached[pair[0]] else "detached"
            groups.setdefault((pair[0], kind, ratio), []).append(pair)
    for (_, kind, _), pairs in groups.items():
        pair = max(pairs, key=lambda one: conclusions[one].shown.relative_deviation)
        names = [measurement.context.names(one) for one in pairs]
        shown = conclusions[pair].shown
        if kind == "detached":
            yield messages.detached_output(
                output=names[0][0],
                variables=[name for _, name in names],
                shown=shown,
                path=GraphPath(connected=False, functions=()),
                place=Place(),
                unseen="",
                others_attached=any(attached),
            )
            continue
        finding = messages.wrong_gradient(
            output=names[0][0],
            variable=measurement.context.names(pair)[1],
            also=[name for (_, name), one in zip(names, pairs, strict=True) if one != pair],
            shape=displaced.shape(pair[1]),
            shown=shown,
            diagnosis=looks[pair],
            entry=None,
            path=GraphPath(connected=kind != "missing", functions=()),
            place=Place(),
        )
        yield replace(finding, hint="\n".join(filter(None, (finding.hint, _HINT))))


def _are_all(report: Report, ratio: float) -> bool:
    """Return whether all that is wrong are gradients that are so many times the numeric ones."""
    return bool(report.findings) and all(
        isinstance(seen := finding.evidence.get("ratio"), float)
        and abs(seen - ratio) <= _SAME * ratio
        for finding in report.findings
    )


def _modules_of(target: Any) -> list[tuple[str, nn.Module]]:
    """Return the modules whose parameters a target reads, each with what its names begin with."""
    owner = target if isinstance(target, nn.Module) else getattr(target, "__self__", None)
    if isinstance(owner, nn.Module):
        return [("", owner)]
    if not isinstance(target, FunctionType):
        return []
    read = read_names(target)
    return [(f"{name}.", value) for name, value in read if isinstance(value, nn.Module)]
