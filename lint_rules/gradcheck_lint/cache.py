"""Remember the findings of sources that have not changed since.

A finding is kept under a digest of the source, the rules that were applied, and everything that
decides what they say: the version, the sources of the linter and of the catalogue, Python and
libcst. One JSON file holds the sources of one directory. It is replaced as a whole, so two runs
at once can only cost one another's news; what can't be read is ignored and written anew.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from gradcheck_suite._version import __version__
from gradcheck_suite.findings import JSON, Finding, Location, Related
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ENVIRONMENT_VARIABLE: Final = "GRADCHECK_LINT_CACHE_DIR"
_FORGOTTEN_AFTER: Final = 30 * 24 * 3600
_READ_ERRORS = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)
_NO_HOME = (RuntimeError,)
"""What pathlib raises for a user who has no directory of his own."""

_Entry = tuple[str, Any, Any]
"""The digest of a source, its findings, and the digests of the other files they rest on."""


def default_directory() -> Path:
    """Return the directory of the cache: the environment's, or the platform's for this user."""
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    if named:
        return Path(named)
    from platformdirs import user_cache_path  # noqa: PLC0415 - only where there is work to save

    return user_cache_path("gradcheck-lint", appauthor=False)


class Cache:
    """What earlier runs found, by the place and the contents of files.

    ``directory`` is the user's by default. Nothing that goes wrong with it is an error: a cache
    that can't be read or written is none.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._root = directory
        self._folder: Path | None = None
        self._shards: dict[str, dict[str, _Entry]] = {}
        self._changed: set[str] = set()
        self._prefixes: dict[tuple[frozenset[str] | None, str | None], bytes] = {}
        self._contents: dict[str, str] = {}

    @property
    def _directory(self) -> Path:
        """Where this version of the linter writes; found out when it is first asked for."""
        if self._folder is None:
            if self._root is None:
                self._root = default_directory()
            self._folder = self._root / _fingerprint()
        return self._folder

    def digest(self, source: bytes, codes: frozenset[str] | None, root: str | None = None) -> str:
        """Return what stands for a source, its project and the rules that are applied to it."""
        from hashlib import blake2b  # noqa: PLC0415 - only where there is something to remember

        prefix = self._prefixes.get((codes, root))
        if prefix is None:
            text = "*" if codes is None else ",".join(sorted(codes))
            whole = f"{text} {root}".encode("utf-8", "surrogateescape")
            prefix = self._prefixes[codes, root] = blake2b(whole, digest_size=16).digest()
        return blake2b(source, key=prefix, digest_size=16).hexdigest()

    def get(self, path: str, digest: str) -> tuple[Finding, ...] | None:
        """Return the findings of a source that is known, None for any other."""
        directory, name = os.path.split(path)
        entry = self._shard(directory).get(name)
        if entry is None or entry[0] != digest:
            return None
        try:
            if any(self._content_of(other) != known for other, known in entry[2].items()):
                return None
            return tuple(_decoded(item, path) for item in entry[1])
        except _READ_ERRORS:
            return None

    def put(
        self,
        path: str,
        digest: str,
        findings: Iterable[Finding],
        sources: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Remember the findings of a source, which hold while other files have these digests."""
        directory, name = os.path.split(path)
        encoded = [_encoded(finding) for finding in findings]
        self._shard(directory)[name] = (digest, encoded, dict(sources))
        self._changed.add(directory)

    def _content_of(self, path: str) -> str:
        """Return the digest of a file as it is now, which is looked up once."""
        from gradcheck_lint.project.sources import current_digest  # noqa: PLC0415 - as above

        if path not in self._contents:
            self._contents[path] = current_digest(path)
        return self._contents[path]

    def save(self) -> None:
        """Write what is new."""
        if not self._changed:
            return
        with contextlib.suppress(OSError, *_NO_HOME):
            if not self._directory.is_dir():
                self._directory.mkdir(parents=True, exist_ok=True)
                _forget_old(self._directory.parent)
        for directory in sorted(self._changed):
            # Another run may have written since.
            entries = {**self._read(directory), **self._shards[directory]}
            present = {
                name: entry
                for name, entry in entries.items()
                if os.path.lexists(os.path.join(directory, name))  # noqa: PTH118 - str in
            }
            self._write(directory, present)
        self._changed.clear()

    def _shard(self, directory: str) -> dict[str, _Entry]:
        known = self._shards.get(directory)
        if known is None:
            known = self._shards[directory] = self._read(directory)
        return known

    def _file(self, directory: str) -> str:
        from hashlib import blake2b  # noqa: PLC0415 - as above

        whole = os.path.abspath(directory)  # noqa: PTH100 - symbolic links stay
        name = blake2b(whole.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
        return f"{self._directory}{os.sep}{name}.json"

    def _read(self, directory: str) -> dict[str, _Entry]:
        import json  # noqa: PLC0415 - as above

        try:
            with open(self._file(directory), "rb") as stream:  # noqa: PTH123 - str in
                document = json.loads(stream.read())
            return {name: (entry[0], entry[1], entry[2]) for name, entry in document.items()}
        except (OSError, *_READ_ERRORS, *_NO_HOME):
            return {}

    def _write(self, directory: str, entries: Mapping[str, _Entry]) -> None:
        import json  # noqa: PLC0415 - as above

        try:
            target = self._file(directory)
        except _NO_HOME:
            return
        temporary = f"{target}.{os.getpid()}.{time.monotonic_ns()}"
        try:
            with open(temporary, "w", encoding="ascii") as stream:  # noqa: PTH123 - str in
                json.dump(entries, stream, separators=(",", ":"))
            os.replace(temporary, target)  # noqa: PTH105 - str in
        except (OSError, *_READ_ERRORS):
            with contextlib.suppress(OSError):
                os.unlink(temporary)  # noqa: PTH108 - str in


def _fingerprint() -> str:
    """Return what stands for all that decides what is found, but the sources and the settings."""
    from hashlib import blake2b  # noqa: PLC0415 - as above
    from importlib.util import find_spec  # noqa: PLC0415 - as above

    digest = blake2b(digest_size=12)
    digest.update(f"{__version__} {sys.version_info} 2".encode())
    packages = [(Path(__file__).parent, "**/*.py")]
    for name, pattern in (
        ("gradcheck_suite.catalogue", "*.py"),
        ("gradcheck_suite.catalogue", "entries/*.md"),
        ("libcst", "_version.py"),
    ):
        spec = find_spec(name)
        if spec is not None and spec.origin:
            packages.append((Path(spec.origin).parent, pattern))
    for folder, pattern in packages:
        for file in sorted(folder.glob(pattern), key=str):
            with contextlib.suppress(OSError):
                digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _forget_old(root: Path) -> None:
    """Remove what other versions wrote, unless they did so lately."""
    import shutil  # noqa: PLC0415 - once for each version

    limit = time.time() - _FORGOTTEN_AFTER
    for folder in root.iterdir():
        if len(folder.name) == 24 and folder.is_dir() and folder.stat().st_mtime < limit:  # noqa: PLR2004 - the length of a fingerprint
            shutil.rmtree(folder, ignore_errors=True)


def _encoded(finding: Finding) -> list[Any]:
    return [
        finding.code,
        finding.rule,
        finding.severity.value,
        finding.message,
        _encoded_place(finding.location),
        [[_encoded_place(related.location), related.message] for related in finding.related],
        finding.hint,
        finding.evidence,
        finding.fixable,
    ]


def _encoded_place(place: Location | None) -> list[Any] | None:
    if place is None:
        return None
    ends = place.end_line, place.end_column
    return [place.line, place.column, *ends, place.function, place.cell]


def _decoded(item: Sequence[Any], path: str) -> Finding:
    code, rule, severity, message, place, related, hint, evidence, fixable = item
    if not (isinstance(code, str) and isinstance(message, str) and isinstance(evidence, dict)):
        raise TypeError("a finding was expected")
    return Finding(
        code=code,
        rule=rule,
        severity=Severity(severity),
        message=message,
        detector="lint",
        location=_decoded_place(place, path),
        related=tuple(_decoded_related(one, path) for one in related),
        hint=hint,
        evidence={key: _frozen(value) for key, value in evidence.items()},
        fixable=bool(fixable),
    )


def _decoded_place(place: Sequence[Any] | None, path: str) -> Location | None:
    if place is None:
        return None
    line, column, end_line, end_column, function, cell = place
    return Location(path, int(line), column, end_line, end_column, function, cell)


def _decoded_related(item: Sequence[Any], path: str) -> Related:
    place, message = item
    location = _decoded_place(place, path)
    if location is None:
        raise TypeError("a place was expected")
    return Related(location, message)


def _frozen(value: Any) -> JSON:
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items()}
    frozen: JSON = value
    return frozen


def open_cache(directory: Path | None, *, enabled: bool) -> Cache | None:
    """Return the cache to use; None if there is to be none."""
    return Cache(directory) if enabled else None


__all__ = ["ENVIRONMENT_VARIABLE", "Cache", "default_directory", "open_cache"]
