"""The text file beside a test that holds the fingerprints of its gradients."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradcheck_suite.errors import UsageError

__all__ = ["PROJECTIONS", "Fingerprint", "Snapshot", "read_snapshot", "write_snapshot"]

PROJECTIONS = 8
_FORMAT = 1
_DIGITS = 12
_TABLES = ("values", "outputs", "gradients")


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
