"""Compare the gradients of a module with those stored beside the test, and say what changed."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_gradcheck_suite.settings import settings_of
from pytest_gradcheck_suite.snapshot_file import Snapshot, read_snapshot, write_snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_gradcheck_suite.snapshot_file import Fingerprint

__all__ = ["Change", "compare_or_store", "differences", "forget_snapshots", "snapshot_path"]

_FOLDER = "__gradients__"
_RENEW = "--gradcheck-suite-update-snapshots"
_WRITTEN = pytest.StashKey["set[Path]"]()
_STORED_DIGITS: Final = 1e-11

HEADROOM: Final = 16.0
"""How many times the measured noise a projection may have moved. The noise is the greatest of a
few draws; another order of summation or another library rounds differently once more."""
_ROUNDINGS: Final = 8.0
"""How many roundings of the whole tensor are always allowed, in units of eps times its norm."""


@dataclass(frozen=True, slots=True)
class Change:
    """How the gradient of one parameter or input differs from the stored one, in words.

    ``of_value`` says that both have it, and that it is another one.
    """

    name: str
    what: str
    of_value: bool = False


def compare_or_store(
    item: pytest.Item,
    function: Any,
    inputs: Any,
    *,
    kwargs: Mapping[str, Any] | None,
    name: str | None,
    seed: int,
) -> None:
    """Fail the test if gradients changed; with the update flag, store them instead.

    Raises:
        UsageError: the snapshot can't be read or written, or nothing has a gradient.
    """
    __tracebackhide__ = True
    from pytest_gradcheck_suite.fingerprints import take_snapshot  # noqa: PLC0415 - needs torch

    path = snapshot_path(item, name)
    used = item.stash.setdefault(_WRITTEN, set())
    if path in used:
        pytest.fail(
            f"two snapshots of this test would share {path.name}: give each a name, as in "
            "gradient_check.snapshot(model, inputs, name='encoder')"
        )
    used.add(path)
    now = take_snapshot(function, inputs, kwargs=kwargs, seed=seed)
    if settings_of(item.config).update_snapshots:
        write_snapshot(path, now)
        return
    stored = read_snapshot(path)
    if stored is None:
        pytest.fail(
            f"there is no snapshot of gradients at {_shown(path)}; write it with: pytest {_RENEW}"
        )
    problem = _incomparable(stored, now)
    changes = () if problem else differences(stored, now)
    if problem or changes:
        pytest.fail(_told(stored, now, changes, problem, where=_shown(path)))


def forget_snapshots(item: pytest.Item) -> None:
    """Forget which snapshots this test has used: it runs anew."""
    if _WRITTEN in item.stash:
        del item.stash[_WRITTEN]


def snapshot_path(item: pytest.Item, name: str | None) -> Path:
    """Return where a snapshot of this test is kept: a file of its own, beside the test's module."""
    test = item.nodeid.partition("::")[2].replace("::", ".")
    stem = re.sub(r"[^\w.\[\]=,-]", "_", test if name is None else f"{test}-{name}")
    if len(stem) > _LONGEST or stem != (test if name is None else f"{test}-{name}"):
        import hashlib  # noqa: PLC0415 - for names that don't fit

        exact = f"{test}-{name}".encode("utf-8", "backslashreplace")
        stem = f"{stem[:_LONGEST]}-{hashlib.blake2b(exact, digest_size=4).hexdigest()}"
    return item.path.parent / _FOLDER / item.path.stem / f"{stem}.json"


_LONGEST = 100


def differences(stored: Snapshot, now: Snapshot) -> tuple[Change, ...]:
    """Return how the gradients of ``now`` differ from the stored ones, beyond rounding."""
    eps = max(stored.eps, now.eps)
    gone = {n: f for n, f in stored.gradients.items() if n not in now.gradients}
    new = {n: f for n, f in now.gradients.items() if n not in stored.gradients}
    changes = []
    for name, old in gone.items():
        twin = next((other for other, f in new.items() if not _differs(old, f, eps)), None)
        if twin is not None:
            del new[twin]
            changes.append(Change(name, f"is now called {twin}, with the same gradient"))
        else:
            changes.append(Change(name, "has no gradient any more: it is gone, or frozen"))
    changes.extend(Change(name, "is new: the snapshot has no such gradient") for name in new)
    for name, old in stored.gradients.items():
        fresh = now.gradients.get(name)
        if fresh is not None and _differs(old, fresh, eps):
            changes.append(Change(name, _what_changed(old, fresh, eps), of_value=True))
    return tuple(changes)


def _incomparable(stored: Snapshot, now: Snapshot) -> str | None:
    if stored.seed != now.seed:
        return f"it was taken with seed={stored.seed}, now it is seed={now.seed}"
    if stored.eps != now.eps and (stored.draws or now.draws):
        return (
            "the function draws random numbers, which differ between floating-point types; call "
            "model.eval(), or give each type a snapshot of its own by name="
        )
    eps = max(stored.eps, now.eps)
    moved = [
        name
        for name, old in stored.values.items()
        if name in now.values and _differs(old, now.values[name], eps)
    ]
    if moved:
        return (
            f"{_listed(moved)} had other values when it was taken; make parameters and inputs "
            "the same in each run, as by torch.manual_seed(0) at the start of the test"
        )
    return None


def _tolerance(old: Fingerprint, new: Fingerprint, eps: float) -> float:
    noise = HEADROOM * (old.noise + new.noise)
    return noise + (_ROUNDINGS * eps + _STORED_DIGITS) * max(old.norm, new.norm)


def _differs(old: Fingerprint, new: Fingerprint, eps: float) -> bool:
    if old.shape != new.shape:
        return True
    limit = _tolerance(old, new, eps)
    pairs = zip(old.projections, new.projections, strict=True)
    # Written so that a NaN on one side differs, and one on both does not.
    return not all(abs(a - b) <= limit or a == b or (a != a and b != b) for a, b in pairs)  # noqa: PLR0124 - NaN


def _what_changed(  # noqa: PLR0911 - one for each kind of change
    old: Fingerprint, new: Fingerprint, eps: float
) -> str:
    if old.shape != new.shape:
        return f"has a gradient of shape {new.shape}, it was {old.shape}"
    if not all(map(math.isfinite, new.projections)):
        return "has NaN or infinity in its gradient"
    if not all(map(math.isfinite, old.projections)):
        return "has a finite gradient, the stored one is not"
    limit = _tolerance(old, new, eps)
    if max(map(abs, new.projections)) <= limit:
        return f"has a gradient of zero, its norm was {old.norm:.4g}"
    square = sum(a * a for a in old.projections)
    if math.sqrt(square) <= limit:
        return f"has a gradient of norm {new.norm:.4g}, it was zero"
    factor = sum(a * b for a, b in zip(old.projections, new.projections, strict=True)) / square
    rest = max(abs(b - factor * a) for a, b in zip(old.projections, new.projections, strict=True))
    if rest <= limit * max(1.0, abs(factor)):
        if abs(factor + 1) * math.sqrt(square) <= 2 * limit:
            return "has its sign flipped"
        return f"has {factor:.6g} times the gradient that it had"
    norms = f"norm {old.norm:.6g} before, {new.norm:.6g} now"
    apart = math.dist(old.projections, new.projections) / math.sqrt(square)
    return f"has another gradient: off by about {apart:.2g} of its size ({norms})"


def _told(
    stored: Snapshot, now: Snapshot, changes: tuple[Change, ...], problem: str | None, *, where: str
) -> str:
    if problem is not None:
        return f"the gradients can't be compared with the snapshot {where}: {problem}"
    eps = max(stored.eps, now.eps)
    outputs = [
        name
        for name, old in stored.outputs.items()
        if name not in now.outputs or _differs(old, now.outputs[name], eps)
    ]
    same = {change.what for change in changes}
    checked = len(stored.gradients.keys() | {change.name for change in changes})
    lines = [f"gradients differ from the snapshot {where}: {len(changes)} of {checked}"]
    if len(changes) == checked > 1 and len(same) == 1:
        lines.append(f"  every parameter and input {changes[0].what}")
    else:
        lines.extend(f"  {change.name} {change.what}" for change in changes[:_MOST])
        if len(changes) > _MOST:
            lines.append(f"  and {len(changes) - _MOST} more")
    if outputs:
        lines.append(f"  {_listed(outputs)} changed as well: the forward is another")
    elif any(change.of_value for change in changes):
        lines.append("  the outputs are the same: backward alone changed")
    else:
        lines.append("  the outputs are the same, and so are the gradients that both have")
    lines.append(f"if the new gradients are right: pytest {_RENEW}")
    return "\n".join(lines)


_MOST = 10


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_MOST]) + (" and more" if len(names) > _MOST else "")


def _shown(path: Path) -> str:
    from gradcheck_suite.reporting.paths import display_path  # noqa: PLC0415 - for failures

    return display_path(str(path))
