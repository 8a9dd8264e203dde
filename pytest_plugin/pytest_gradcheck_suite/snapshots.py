"""Compare the gradients of a module with those stored beside the test, and say what changed.

What is stored of each tensor is a fingerprint: its projections on random directions of signs, drawn
in float64 from the seed and the number of its elements alone, so that the same gradient has the
same projections in every floating-point type and under every name. The norm of a projection is
that of the tensor, on average (Johnson and Lindenstrauss 1984).

The rounding noise is measured, not assumed: the same gradients are computed again at parameters
and inputs that are moved by one rounding error of their type, and the projections' greatest change
is the noise. It contains what the conditioning of the function makes of rounding.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import torch

from gradcheck_suite.errors import UsageError
from gradcheck_suite.reporting.paths import display_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "PROJECTIONS",
    "Change",
    "Fingerprint",
    "Snapshot",
    "compare_or_store",
    "differences",
    "read_snapshot",
    "snapshot_path",
    "take_snapshot",
    "write_snapshot",
]

_FOLDER = "__gradients__"
_LONGEST_NAME = 100
_MOST_LISTED = 10
_UPDATE = "--gradcheck-suite-update-snapshots"
_STORED_DIGITS: Final = 1e-11

HEADROOM: Final = 16.0
"""How many times the measured noise a projection may have moved. The noise is the greatest of a
few draws; another order of summation or another library rounds differently once more."""
_ROUNDINGS: Final = 8.0
"""How many roundings of the whole tensor are always allowed, in units of eps times its norm."""

PROJECTIONS = 8
_FORMAT = 1
_DIGITS = 12
_TABLES = ("values", "outputs", "gradients")
_MOVES = 4


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Random projections of one tensor.

    Attributes:
        shape: the shape of the tensor.
        projections: its projections on random directions of signs.
        noise: by how much rounding alone moves a projection.
        norm: the Euclidean norm of the tensor.
    """

    shape: tuple[int, ...]
    projections: tuple[float, ...]
    noise: float
    norm: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Fingerprints of gradients, of the outputs, and of the values they were taken at.

    Attributes:
        seed: what cotangents, directions and the function's draws were seeded with.
        eps: the machine epsilon of the coarsest type involved.
        draws: whether the function draws random numbers.
        values: parameters and inputs, by name.
        outputs: the outputs, by name.
        gradients: the gradients, by name of the parameter or input.
    """

    seed: int
    eps: float
    draws: bool
    values: Mapping[str, Fingerprint] = field(default_factory=dict)
    outputs: Mapping[str, Fingerprint] = field(default_factory=dict)
    gradients: Mapping[str, Fingerprint] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """How the gradient of one parameter or input differs from the stored one, in words.

    ``of_value`` says that both have it, and that it is another one.
    """

    name: str
    what: str
    of_value: bool = False


def compare_or_store(
    path: Path,
    function: Any,
    inputs: Any,
    *,
    kwargs: Mapping[str, Any] | None,
    seed: int,
    update: bool,
) -> None:
    """Fail the test if gradients are not those at ``path``; with ``update``, store them instead.

    Raises:
        UsageError: the snapshot can't be read or written, or nothing has a gradient.
    """
    __tracebackhide__ = True
    now = take_snapshot(function, inputs, kwargs=kwargs, seed=seed)
    if update:
        write_snapshot(path, now)
        return
    stored = read_snapshot(path)
    where = display_path(str(path))
    if stored is None:
        pytest.fail(
            f"there is no snapshot of gradients at {where}; write it with: pytest {_UPDATE}"
        )
    problem = _incomparable(stored, now)
    changes = () if problem else differences(stored, now)
    if problem or changes:
        pytest.fail(_message(stored, now, changes, problem, where=where))


def snapshot_path(item: pytest.Item, name: str | None) -> Path:
    """Return where a snapshot of this test is kept: a file of its own, beside the test's module."""
    test = item.nodeid.partition("::")[2].replace("::", ".")
    stem = re.sub(r"[^\w.\[\]=,-]", "_", test if name is None else f"{test}-{name}")
    if len(stem) > _LONGEST_NAME or stem != (test if name is None else f"{test}-{name}"):
        exact = f"{test}-{name}".encode("utf-8", "backslashreplace")
        stem = f"{stem[:_LONGEST_NAME]}-{hashlib.blake2b(exact, digest_size=4).hexdigest()}"
    return item.path.parent / _FOLDER / item.path.stem / f"{stem}.json"


def differences(stored: Snapshot, now: Snapshot) -> tuple[Change, ...]:
    """Return how the gradients of ``now`` differ from the stored ones, beyond rounding."""
    eps = max(stored.eps, now.eps)
    gone = {n: f for n, f in stored.gradients.items() if n not in now.gradients}
    new = {n: f for n, f in now.gradients.items() if n not in stored.gradients}
    changes = []
    for name, old in gone.items():
        same = next((other for other, f in new.items() if not _differs(old, f, eps)), None)
        if same is not None:
            del new[same]
            changes.append(Change(name, f"is now called {same}, with the same gradient"))
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


def _message(
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
        lines.extend(f"  {change.name} {change.what}" for change in changes[:_MOST_LISTED])
        if len(changes) > _MOST_LISTED:
            lines.append(f"  and {len(changes) - _MOST_LISTED} more")
    if outputs:
        lines.append(f"  {_listed(outputs)} changed as well: the forward is another")
    elif any(change.of_value for change in changes):
        lines.append("  the outputs are the same: backward alone changed")
    else:
        lines.append("  the outputs are the same, and so are the gradients that both have")
    lines.append(f"if the new gradients are right: pytest {_UPDATE}")
    return "\n".join(lines)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_MOST_LISTED]) + (" and more" if len(names) > _MOST_LISTED else "")


def take_snapshot(
    function: Any, inputs: Any, *, kwargs: Mapping[str, Any] | None, seed: int
) -> Snapshot:
    """Return the fingerprints of outputs and gradients, and of where they were taken.

    Nothing of the user's changes: parameters and buffers are copied, ``.grad`` stays, and random
    number generators are afterwards as they were.

    Raises:
        UsageError: the function isn't callable, or nothing has a gradient.
    """
    if not callable(function):
        raise UsageError(
            f"gradient_check.snapshot: expected a module or a function, got {function!r}"
        )
    if type(seed) is not int:  # True is none either
        raise UsageError(f"gradient_check.snapshot: seed must be a whole number, got {seed!r}")
    target = _Differentiated(function, inputs, dict(kwargs or {}), seed)
    if not target.variables:
        raise UsageError(
            "gradient_check.snapshot: nothing has a gradient: no parameter and no floating-point "
            "input requires grad; give torch.randn(4, 3, requires_grad=True)"
        )
    for name, variable in target.variables.items():
        if variable.is_meta:
            raise UsageError(
                f"gradient_check.snapshot: {name} is on the meta device, where tensors have no "
                "values; make it on the CPU"
            )
    outputs, gradients = target.run(moved_by=None)
    noise: dict[str, float] = {}
    output_noise: dict[str, float] = {}
    for move in range(_MOVES):
        moved_outputs, moved = target.run(moved_by=move)
        for name, values in gradients.items():
            noise[name] = max(noise.get(name, 0.0), _distance(values, moved[name]))
        for name, values in outputs.items():
            change = _distance(values, moved_outputs.get(name))
            output_noise[name] = max(output_noise.get(name, 0.0), change)
    return Snapshot(
        seed=seed,
        eps=target.eps,
        draws=target.draws,
        values={name: target.fingerprint(t) for name, t in target.variables.items()},
        outputs={
            name: target.fingerprint(t, noise=output_noise[name]) for name, t in target.outputs
        },
        gradients={
            name: Fingerprint(target.shapes[name], values, noise[name], target.norms[name])
            for name, values in gradients.items()
        },
    )


def _distance(left: tuple[float, ...], right: tuple[float, ...] | None) -> float:
    if right is None:  # a function that returned something else this time
        return 0.0
    return max((abs(a - b) for a, b in zip(left, right, strict=True)), default=0.0)


class _Differentiated:
    """A function with its variables: parameters and inputs that require grad."""

    def __init__(self, function: Any, inputs: Any, kwargs: dict[str, Any], seed: int) -> None:
        self.function = function
        self.seed = seed
        self.draws: bool = False
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.norms: dict[str, float] = {}
        self.outputs: list[tuple[str, torch.Tensor]] = []
        self._directions: dict[int, torch.Tensor] = {}
        if isinstance(inputs, dict):
            self.arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((), {**inputs, **kwargs})
        elif isinstance(inputs, (tuple, list)):
            self.arguments = (tuple(inputs), kwargs)
        else:
            self.arguments = ((inputs,), kwargs)
        self.module = function if isinstance(function, torch.nn.Module) else None
        self.variables: dict[str, torch.Tensor] = {}
        if self.module is not None:
            self.variables.update(
                (name, p) for name, p in self.module.named_parameters() if p.requires_grad
            )
        for name, tensor in _tensors(self.arguments[0], "inputs"):
            self._add(name, tensor)
        for name, tensor in _tensors(self.arguments[1], "inputs"):
            self._add(name, tensor)
        floats = [t.dtype for t in self.variables.values()]
        self.eps = max((torch.finfo(dtype).eps for dtype in floats), default=0.0)

    def _add(self, name: str, tensor: torch.Tensor) -> None:
        if tensor.requires_grad:
            self.variables[name] = tensor

    def run(
        self, *, moved_by: int | None
    ) -> tuple[dict[str, tuple[float, ...]], dict[str, tuple[float, ...]]]:
        """Return the projections of outputs and of gradients, ``moved_by`` rounding errors."""
        variables = {
            name: _moved(tensor.detach(), moved_by, index).requires_grad_()
            for index, (name, tensor) in enumerate(self.variables.items())
        }
        with torch.random.fork_rng(), torch.enable_grad():
            torch.manual_seed(self.seed)
            before = torch.get_rng_state()
            result = self._call(variables)
            self.draws |= not torch.equal(before, torch.get_rng_state())
        outputs = [
            (name, t)
            for name, t in _tensors(result, "output")
            if t.is_floating_point() or t.is_complex()
        ]
        if moved_by is None:
            self.outputs = outputs
        roots = [(t, self._cotangent(t, index)) for index, (_, t) in enumerate(outputs)]
        roots = [(t, cotangent) for t, cotangent in roots if t.requires_grad]
        if not roots:
            inference = torch.is_inference_mode_enabled()
            raise UsageError(
                "gradient_check.snapshot: no output requires grad, so there is no gradient to keep"
                + ("; call it outside of inference_mode" if inference else "")
            )
        taken: tuple[torch.Tensor | None, ...] = torch.autograd.grad(
            [t for t, _ in roots],
            list(variables.values()),
            [cotangent for _, cotangent in roots],
            allow_unused=True,
        )
        gradients = {}
        for (name, variable), gradient in zip(variables.items(), taken, strict=True):
            whole = torch.zeros_like(variable) if gradient is None else gradient
            if moved_by is None:
                self.shapes[name] = tuple(whole.shape)
                self.norms[name] = _flat(whole).norm().item()
            gradients[name] = self._projections(whole)
        return {name: self._projections(t) for name, t in outputs}, gradients

    def fingerprint(self, tensor: torch.Tensor, noise: float = 0.0) -> Fingerprint:
        """Return the fingerprint of a tensor."""
        flat = _flat(tensor)
        return Fingerprint(
            tuple(tensor.shape), self._projections(tensor), noise, flat.norm().item()
        )

    def _call(self, variables: dict[str, torch.Tensor]) -> Any:
        arguments = _replaced(self.arguments[0], "inputs", variables)
        kwargs = _replaced(self.arguments[1], "inputs", variables)
        if self.module is None:
            return self.function(*arguments, **kwargs)
        state = {name: b.detach().clone() for name, b in self.module.named_buffers()}
        names = dict(self.module.named_parameters())
        state.update((name, tensor) for name, tensor in variables.items() if name in names)
        return torch.func.functional_call(self.module, state, arguments, kwargs)

    def _cotangent(self, output: torch.Tensor, index: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed * 1009 + index + 1)
        real = torch.randn(output.shape, generator=generator, dtype=torch.float64)
        return real.to(device=output.device, dtype=output.dtype)

    def _projections(self, tensor: torch.Tensor) -> tuple[float, ...]:
        flat = _flat(tensor)
        number = flat.numel()
        if number not in self._directions:
            generator = torch.Generator().manual_seed(self.seed * 7919 + number)
            signs = torch.randint(0, 2, (PROJECTIONS, number), generator=generator)
            self._directions[number] = signs.to(torch.float64).mul_(2).sub_(1)
        return tuple((self._directions[number] @ flat).tolist())


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    whole = tensor.detach()
    if whole.is_complex():
        whole = torch.view_as_real(whole.resolve_conj())
    if whole.layout != torch.strided:
        whole = whole.to_dense()
    return whole.to(device="cpu", dtype=torch.float64).reshape(-1)


def _moved(tensor: torch.Tensor, move: int | None, index: int) -> torch.Tensor:
    if move is None:
        return tensor.clone()
    generator = torch.Generator().manual_seed(move * 65_537 + index)
    by = torch.rand(tensor.shape, generator=generator, dtype=torch.float64).mul_(2).sub_(1)
    by = by.to(tensor.device).mul_(torch.finfo(tensor.dtype).eps).add_(1)
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    return (tensor.to(wide) * by).to(tensor.dtype)


def _tensors(value: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors(item, f"{name}[{key!r}]")
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield from _tensors(item, f"{name}[{index}]")


def _replaced(value: Any, name: str, variables: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return variables.get(name, value)
    if isinstance(value, dict):
        return {key: _replaced(item, f"{name}[{key!r}]", variables) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        items = [_replaced(v, f"{name}[{i}]", variables) for i, v in enumerate(value)]
        make: Callable[[Any], Any] = type(value)
        return make(*items) if hasattr(value, "_fields") else make(items)
    return value


def write_snapshot(path: Path, snapshot: Snapshot) -> None:
    """Write a snapshot, one line for each tensor, so that a diff shows which have changed.

    Raises:
        UsageError: the file can't be written.
    """
    lines = [
        "{",
        f' "format": {_FORMAT},',
        ' "about": "Gradients; to renew: pytest --gradcheck-suite-update-snapshots",',
        f' "seed": {snapshot.seed},',
        f' "eps": {snapshot.eps!r},',
        f' "draws": {json.dumps(snapshot.draws)},',
    ]
    for table in _TABLES:
        entries = [
            f"  {json.dumps(name)}: {json.dumps(_entry(fingerprint))}"
            for name, fingerprint in getattr(snapshot, table).items()
        ]
        end = "" if table == _TABLES[-1] else ","
        lines += [f' "{table}": {{', ",\n".join(entries), f" }}{end}"]
    text = "\n".join(line for line in lines if line) + "\n}\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, text)
    except OSError as error:
        raise UsageError(f"cannot write the snapshot {path}: {error.strerror}") from error


def _replace(path: Path, text: str) -> None:
    """Put a file with this text in the place of another, at once, and leave nothing else behind."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".snapshot-")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
        # Others read it as they read the test; a temporary file is for its owner alone.
        temporary.chmod((path if path.exists() else path.parent).stat().st_mode & 0o666)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_snapshot(path: Path) -> Snapshot | None:
    """Read a snapshot, or return None if there is none.

    Raises:
        UsageError: the file is not a snapshot that this version can read.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["format"] != _FORMAT:
            raise UsageError(
                f"the snapshot {path} has format {document['format']!r}, expected {_FORMAT}; "
                "renew it with --gradcheck-suite-update-snapshots"
            )
        tables = {t: {n: _fingerprint(e) for n, e in document[t].items()} for t in _TABLES}
        lengths = {len(f.projections) for table in tables.values() for f in table.values()}
        if lengths - {PROJECTIONS}:
            raise ValueError(f"expected {PROJECTIONS} projections of each tensor")  # noqa: TRY301 - one wording for all
        return Snapshot(
            seed=int(document["seed"]),
            eps=float(document["eps"]),
            draws=bool(document["draws"]),
            **tables,
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} is not a snapshot of gradients ({type(error).__name__}: {error}); restore it, "
            "or renew it with --gradcheck-suite-update-snapshots"
        ) from error


def _entry(fingerprint: Fingerprint) -> dict[str, Any]:
    return {
        "shape": list(fingerprint.shape),
        "norm": _short(fingerprint.norm),
        "noise": float(f"{fingerprint.noise:.2g}"),
        "projections": [_short(number) for number in fingerprint.projections],
    }


def _short(number: float) -> float:
    return float(f"{number:.{_DIGITS}g}")


def _fingerprint(entry: dict[str, Any]) -> Fingerprint:
    return Fingerprint(
        tuple(map(int, entry["shape"])),
        tuple(map(float, entry["projections"])),
        float(entry["noise"]),
        float(entry["norm"]),
    )
