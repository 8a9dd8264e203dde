"""Put what was found out about a call into verdicts and findings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from torch import nn

from gradcheck_suite import _torch_compat
from gradcheck_suite.findings import JSON, Finding, Related, Report, Verdict, VerdictStatus
from gradcheck_suite.verification.target.call_recorder import Call

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Examined", "Status", "finding_of", "title_of", "verdict_of"]

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
