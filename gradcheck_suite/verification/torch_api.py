"""``gradcheck`` and ``gradgradcheck`` with torch's signatures, exception type and options.

torch's own function keeps its contract: which inputs it takes, undefined and batched gradients,
reentrancy, types and layouts, forward mode, masked sparse tensors. What is replaced is the
comparison: without ``eps``, ``atol`` and ``rtol`` the measured error decides, and a failure says
which entry is wrong, how many, and in which way.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.autograd.gradcheck import GradcheckError

from gradcheck_suite._runtime.watchers import unwatched
from gradcheck_suite.errors import UsageError
from gradcheck_suite.severity import Severity
from gradcheck_suite.verification.check import check_with
from gradcheck_suite.verification.options import CheckOptions
from gradcheck_suite.verification.progress import shown
from gradcheck_suite.verification.target.random_state import preserved_randomness

if TYPE_CHECKING:
    from gradcheck_suite.findings import Finding, Report

__all__ = ["gradcheck", "gradgradcheck"]

Tensors: TypeAlias = "torch.Tensor | Sequence[torch.Tensor]"
OptionalTensors: TypeAlias = "torch.Tensor | Sequence[torch.Tensor | None]"

_OURS = CheckOptions(order=1, variations=frozenset(), closures=False)
# Left to torch, which knows nondet_tol and check_undefined_grad.
_TORCHS_OWN = frozenset({"GCS603", "GCS607"})
_NOT_OF_FORWARD = {"check_batched_grad": False, "check_undefined_grad": False}
_SMALL = 2**16
"""Entries of a Jacobian up to which torch may be asked for its words. A bound on cost: torch
computes it a second time, row by row."""


def gradcheck(
    func: Callable[..., Any],
    inputs: Tensors,
    *,
    eps: float | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
    masked: bool | None = None,
) -> bool:
    """Check gradients against differences, as ``torch.autograd.gradcheck`` does.

    >>> import torch
    >>> gradcheck(torch.sin, torch.tensor([1.0], dtype=torch.float64, requires_grad=True))
    True

    Args:
        func: takes tensors and returns a tensor or a tuple of tensors.
        inputs: the tensors; those that require grad are checked.
        eps: step of the differences. If ``eps``, ``atol`` or ``rtol`` is given, all three are as
            in torch (1e-6, 1e-5 and 1e-3 where not given), and so is the comparison. If none is,
            the error of the differences is measured and decides, in float32 as well.
        atol: absolute tolerance.
        rtol: relative tolerance.
        raise_exception: whether a failure raises or returns False.
        nondet_tol: how far two identical backwards may be apart. If it is not 0, the comparison
            is torch's: noise that is allowed must not count as an error.
        check_undefined_grad: whether undefined incoming gradients are tried.
        check_grad_dtypes: whether gradients must have the type of their inputs.
        check_batched_grad: whether vmap over backward is tried.
        check_batched_forward_grad: whether vmap over forward mode is tried.
        check_forward_ad: whether forward mode is checked; with torch's tolerances.
        check_backward_ad: whether backward mode is checked.
        fast_mode: as in torch where its comparison is used; ours needs none.
        masked: whether gradients of unspecified entries of sparse tensors are ignored.

    Returns:
        True if everything is right; False if not and ``raise_exception`` is False.

    Raises:
        torch.autograd.gradcheck.GradcheckError: something is wrong; the message names the input,
            the worst entry, how many are wrong, and the kind of error.
        ValueError: no input requires grad, or inputs are of a kind that torch does not take.
        AssertionError: the switches contradict each other.
    """
    options: dict[str, Any] = {
        "nondet_tol": nondet_tol,
        "check_undefined_grad": check_undefined_grad,
        "check_grad_dtypes": check_grad_dtypes,
        "check_batched_grad": check_batched_grad,
        "check_batched_forward_grad": check_batched_forward_grad,
        "check_forward_ad": check_forward_ad,
        "check_backward_ad": check_backward_ad,
        "masked": masked,
    }
    given = _tupled(inputs)
    check = _Check(
        func=func,
        inputs=given,
        tolerances=_tolerances(eps, atol, rtol),
        fast_mode=fast_mode,
        compared=check_backward_ad and not (nondet_tol or _is_torchs(given, masked=masked)),
        contract=functools.partial(torch.autograd.gradcheck, func, inputs, **options),
        forward={"check_backward_ad": False} if check_forward_ad else None,
    )
    return _run(check, raise_exception=raise_exception)


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Tensors,
    grad_outputs: OptionalTensors | None = None,
    *,
    eps: float | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_fwd_over_rev: bool = False,
    check_rev_over_rev: bool = True,
    fast_mode: bool = False,
    masked: bool = False,
) -> bool:
    """Check gradients of gradients, as ``torch.autograd.gradgradcheck`` does.

    >>> import torch
    >>> gradgradcheck(torch.sin, torch.tensor([1.0], dtype=torch.float64, requires_grad=True))
    True

    Args:
        func: takes tensors and returns a tensor or a tuple of tensors.
        inputs: the tensors; those that require grad are checked.
        grad_outputs: the incoming gradients; random ones if None.
        eps: as for ``gradcheck``.
        atol: as for ``gradcheck``.
        rtol: as for ``gradcheck``.
        gen_non_contig_grad_outputs: whether random incoming gradients are not contiguous.
        raise_exception: whether a failure raises or returns False.
        nondet_tol: as for ``gradcheck``.
        check_undefined_grad: as for ``gradcheck``.
        check_grad_dtypes: as for ``gradcheck``.
        check_batched_grad: as for ``gradcheck``.
        check_fwd_over_rev: whether forward mode over backward is checked; with torch's tolerances.
        check_rev_over_rev: whether backward over backward is checked.
        fast_mode: as for ``gradcheck``.
        masked: as for ``gradcheck``.

    Returns:
        True if everything is right; False if not and ``raise_exception`` is False.

    Raises:
        torch.autograd.gradcheck.GradcheckError: something is wrong.
        ValueError: no input or no output requires grad, or inputs are of a kind that torch does
            not take.
        AssertionError: the switches contradict each other.
    """
    if not (check_fwd_over_rev or check_rev_over_rev):
        raise AssertionError(
            "Expected at least one of check_fwd_over_rev or check_rev_over_rev to be True"
        )
    given = _tupled(inputs)
    if grad_outputs is None:
        with unwatched():
            cotangents = _random_cotangents(func, given, noncontiguous=gen_non_contig_grad_outputs)
    else:
        cotangents = _tupled(grad_outputs)
    if not cotangents:
        raise ValueError(
            "gradgradcheck expects at least one output to require gradient, but none of them does; "
            "look for detach(), .data, no_grad or item() on the way to them"
        )
    options: dict[str, Any] = {
        "nondet_tol": nondet_tol,
        "check_undefined_grad": check_undefined_grad,
        "check_grad_dtypes": check_grad_dtypes,
        "check_batched_grad": check_batched_grad,
        "check_fwd_over_rev": check_fwd_over_rev,
        "check_rev_over_rev": check_rev_over_rev,
        "masked": masked,
    }
    check = _Check(
        func=_Gradient(func, given, cotangents),
        inputs=(*given, *cotangents),
        tolerances=_tolerances(eps, atol, rtol),
        fast_mode=fast_mode,
        compared=check_rev_over_rev
        and not (nondet_tol or _is_torchs((*given, *cotangents), masked=masked)),
        contract=functools.partial(
            torch.autograd.gradgradcheck, func, inputs, cotangents, **options
        ),
        forward=(
            {"check_rev_over_rev": False, "check_grad_dtypes": False}
            if check_fwd_over_rev
            else None
        ),
    )
    return _run(check, raise_exception=raise_exception)


@dataclass(frozen=True, slots=True)
class _Check:
    """What is to be checked, and by whom.

    Attributes:
        func: the function whose first-order gradients are compared.
        inputs: its arguments.
        tolerances: torch's, if any was given.
        fast_mode: for torch's comparison.
        compared: whether our comparison can stand in for torch's.
        contract: torch's check, with tolerances to be filled in.
        forward: what leaves forward mode alone of it, if that is asked for.
    """

    func: Callable[..., Any]
    inputs: tuple[Any, ...]
    tolerances: dict[str, float] | None
    fast_mode: bool
    compared: bool
    contract: Callable[..., bool]
    forward: dict[str, bool] | None


def _run(check: _Check, *, raise_exception: bool) -> bool:
    try:
        with unwatched():
            if check.tolerances is not None:
                _by_torch(check, check.tolerances)
            elif check.compared:
                _by_measured_error(check)
            else:
                _by_torch(check, {})
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def _by_torch(check: _Check, tolerances: dict[str, float]) -> None:
    """Let torch compare, and add to its message what we can tell."""
    try:
        check.contract(fast_mode=check.fast_mode, **tolerances)
    except GradcheckError as error:
        report = _report_of(check) if check.compared else None
        wrong = [] if report is None else _wrong(report)
        if not wrong:
            raise
        raise GradcheckError(f"{error}\n\n{_in_words(wrong)}") from error


def _by_measured_error(check: _Check) -> None:
    try:
        # Infinite tolerances leave only the contract to torch, and fast mode makes that cheap.
        check.contract(fast_mode=True, atol=math.inf, rtol=0.0)
    except (GradcheckError, RuntimeError, TypeError) as error:
        # What is wrong in its values may fail later tests as well; torch tells the first.
        if isinstance(error, GradcheckError) or check.forward is not None:
            _again_by_torch(check)
        raise
    if check.forward is not None:
        check.contract(**_NOT_OF_FORWARD, **check.forward)
    report = _report_of(check)
    if report is None:
        _by_torch(check, {})
        return
    wrong = _wrong(report)
    if wrong:
        raise GradcheckError(f"{_torchs_words(check)}{_in_words(wrong)}")
    if any(verdict.status in {"inconclusive", "fail"} for verdict in report.verdicts):
        # A kink, or noise: what torch says at the very point counts.
        _by_torch(check, {})


def _again_by_torch(check: _Check) -> None:
    """Fail as torch would with its own tolerances, if it would, and in a moment."""
    try:
        small = _is_small(check)
    except Exception:  # noqa: BLE001 - told by the failure that led here
        return
    if small:
        _by_torch(check, {})


def _is_small(check: _Check) -> bool:
    """Return whether torch can compute both Jacobians in a moment."""
    inputs = sum(value.numel() for value in check.inputs if isinstance(value, torch.Tensor))
    with preserved_randomness(), torch.enable_grad():
        result = check.func(*check.inputs)
    outputs = sum(part.numel() for part in _tupled(result) if isinstance(part, torch.Tensor))
    return inputs * outputs <= _SMALL


def _torchs_words(check: _Check) -> str:
    """Return what torch says of the failure, less its matrices, which some look for."""
    if not _is_small(check):
        return ""
    try:
        check.contract(fast_mode=check.fast_mode)
    except GradcheckError as error:
        return f"{str(error).split('numerical:')[0].strip()}\n\n"
    except Exception:  # noqa: BLE001 - what we found stands without its words
        return ""
    return ""


def _report_of(check: _Check) -> Report | None:
    """Check by ourselves; None where that can't be done."""
    try:
        with preserved_randomness(), shown("Checking gradients"):
            return check_with(check.func, check.inputs, None, _OURS)
    except Exception:  # noqa: BLE001 - torch has run it, and decides where we can't
        return None


def _wrong(report: Report) -> list[Finding]:
    return [
        finding for finding in report.at_least(Severity.ERROR) if finding.code not in _TORCHS_OWN
    ]


def _in_words(wrong: Sequence[Finding]) -> str:
    lines = []
    for finding in wrong:
        place = finding.location
        at = f" ({place.path}:{place.line})" if place is not None else ""
        hint = f"\n  hint: {finding.hint}" if finding.hint else ""
        lines.append(f"{finding.message}{at} [{finding.code}]{hint}")
    return "\n".join(lines)


def _tolerances(
    eps: float | None, atol: float | None, rtol: float | None
) -> dict[str, float] | None:
    """Return torch's tolerances if one was given; those that were not are left to torch.

    Raises:
        UsageError: one is no number, or negative.
    """
    given = {"eps": eps, "atol": atol, "rtol": rtol}
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for name, value in chosen.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0.0:
            raise UsageError(f"{name} must be a number that is not negative, got {value!r}")
    return chosen or None


def _tupled(inputs: Any) -> tuple[Any, ...]:
    if isinstance(inputs, tuple):
        return inputs
    return tuple(inputs) if isinstance(inputs, list) else (inputs,)


def _is_torchs(inputs: Sequence[Any], *, masked: bool | None) -> bool:
    """Return whether only torch's comparison does what is asked for.

    Sparse and mkldnn inputs have semantics of their own there: what is not specified counts as
    zero and has a gradient, unless ``masked``.
    """
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    if masked:
        return True
    return any(tensor.layout is not torch.strided for tensor in tensors)


class _Gradient:
    """A function's gradient, as a function of its inputs and of the incoming gradients."""

    def __init__(
        self, func: Callable[..., Any], inputs: Sequence[Any], cotangents: Sequence[Any]
    ) -> None:
        self._func = func
        self._inputs = [_requires_grad(value) for value in inputs]
        self._cotangents = [_requires_grad(value) for value in cotangents]
        self.__name__ = self.__qualname__ = f"gradient of {getattr(func, '__name__', 'func')}"

    def __call__(self, *arguments: Any) -> tuple[torch.Tensor, ...]:
        count = len(self._inputs)
        with torch.enable_grad():
            inputs = [
                _attached(value) if wanted else value
                for value, wanted in zip(arguments[:count], self._inputs, strict=True)
            ]
            cotangents = [
                _attached(value) if wanted else value
                for value, wanted in zip(arguments[count:], self._cotangents, strict=True)
            ]
            outputs = _differentiable(self._func(*inputs))
            found: Sequence[torch.Tensor | None] = torch.autograd.grad(
                outputs,
                [value for value, wanted in zip(inputs, self._inputs, strict=True) if wanted],
                cotangents,
                create_graph=True,
                allow_unused=True,
            )
        return tuple(part for part in found if part is not None)


def _attached(value: torch.Tensor) -> torch.Tensor:
    # Values to measure with come without; the graph of their gradient needs it.
    return value if bool(value.requires_grad) else value.detach().requires_grad_()


def _requires_grad(value: object) -> bool:
    return isinstance(value, torch.Tensor) and bool(value.requires_grad)


def _differentiable(result: object) -> tuple[torch.Tensor, ...]:
    return tuple(value for value in _tupled(result) if _requires_grad(value))


def _random_cotangents(
    func: Callable[..., Any], inputs: Sequence[Any], *, noncontiguous: bool
) -> tuple[torch.Tensor, ...]:
    return tuple(
        torch.testing.make_tensor(
            output.shape,
            dtype=output.dtype,
            device=output.device,
            low=-1,
            high=1,
            requires_grad=True,
            noncontiguous=noncontiguous,
        )
        for output in _differentiable(func(*inputs))
    )
