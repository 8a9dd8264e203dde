"""Keep a list of known findings, so that an old project fails on new ones alone.

A finding is known by its file, its rule and the text of its line, and by how many there are of
the same: lines and cells of notebooks may move. A file that was renamed is recognised by what it
held.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gradcheck_suite.errors import UsageError
from gradcheck_suite.reporting.source import SourceLines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gradcheck_suite.findings import Finding

SCHEMA: Final = 1
_Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Baseline:
    """The findings that are known, counted by path, code and text of the line.

    Paths are relative to ``root``, the directory of the file that lists them.
    """

    root: Path
    known: Mapping[_Key, int]

    def without_known(self, findings: Iterable[Finding]) -> tuple[Finding, ...]:
        """Return the findings that are not listed, in their order."""
        left = Counter(dict(self.known))
        sources = SourceLines()
        keyed = [(finding, _key(finding, self.root, sources)) for finding in findings]
        new: list[tuple[Finding, _Key]] = []
        for finding, key in keyed:
            if left[key] > 0:
                left[key] -= 1
            else:
                new.append((finding, key))
        gone = self._of_gone_files(left)
        kept: list[Finding] = []
        for finding, key in new:
            moved = key[1:]
            if gone[moved] > 0 and not any(path == key[0] for path, _, _ in self.known):
                gone[moved] -= 1
            else:
                kept.append(finding)
        return tuple(kept)

    def _of_gone_files(self, left: Counter[_Key]) -> Counter[tuple[str, str]]:
        counts: Counter[tuple[str, str]] = Counter()
        for (path, code, text), count in left.items():
            if count > 0 and not (self.root / path).exists():
                counts[code, text] += count
        return counts


def read(path: Path) -> Baseline:
    """Read a baseline.

    Raises:
        UsageError: the file can't be read, or is no baseline.
    """
    try:
        document = json.loads(path.read_bytes())
        if document["schema"] != SCHEMA:
            raise UsageError(
                f"the baseline {path} has schema {document['schema']!r}, expected {SCHEMA}: "
                "write it anew with --write-baseline"
            )
        known = {
            (str(item["path"]), str(item["code"]), str(item["text"])): int(item["count"])
            for item in document["findings"]
        }
    except OSError as error:
        raise UsageError(
            f"cannot read the baseline {path}: {error.strerror or error}; "
            "--write-baseline makes one"
        ) from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UsageError(
            f"{path} is no baseline of gradcheck-lint ({type(error).__name__}: {error}): "
            "write it anew with --write-baseline"
        ) from error
    return Baseline(path.absolute().parent, known)


def write(path: Path, findings: Iterable[Finding]) -> int:
    """List findings in a baseline file, and return how many there are.

    Raises:
        UsageError: the file can't be written.
    """
    root = path.absolute().parent
    sources = SourceLines()
    counts = Counter(_key(finding, root, sources) for finding in findings)
    document = {
        "schema": SCHEMA,
        "tool": "gradcheck-lint",
        "findings": [
            {"path": file, "code": code, "text": text, "count": count}
            for (file, code, text), count in sorted(counts.items())
        ],
    }
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(json.dumps(document, indent=2) + "\n", encoding="ascii")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UsageError(f"cannot write the baseline {path}: {error.strerror or error}") from error
    return counts.total()


def _key(finding: Finding, root: Path, sources: SourceLines) -> _Key:
    place = finding.location
    if place is None:
        return ("", finding.code, finding.message)
    absolute = os.path.abspath(place.path)  # noqa: PTH100 - symbolic links stay
    try:
        relative = os.path.relpath(absolute, root)
    except ValueError:  # another drive
        relative = absolute
    text = sources.line_at(place)
    line = " ".join(text.split()) if text is not None else finding.message
    return (relative.replace(os.sep, "/"), finding.code, line)
