"""Write what was planned, keep a record of it in git's own folder, and take it back."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final

from gradcheck_lint.files import read_source, replace_source
from gradcheck_suite.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from gradcheck_suite.setup.plan import Change
    from gradcheck_suite.setup.repository import Repository

__all__ = ["take_back", "write_changes"]

_FILE: Final = "gradcheck-suite-init.json"
_SCHEMA: Final = 1


@dataclass(frozen=True, slots=True)
class _Written:
    """What was inserted into a file, and the folders that were made for it, outermost first."""

    path: str
    offset: int
    text: str
    is_new: bool
    folders: tuple[str, ...]


def write_changes(repository: Repository, changes: Sequence[Change]) -> Iterator[str]:
    """Write each change, note it, and yield its path.

    Raises:
        UsageError: a file can't be written; it is as it was, and what came before it is written.
    """
    written = _read(repository)
    for change in changes:
        folders = _missing_folders(repository.root, repository.root / change.path)
        try:
            _write(repository.root / change.path, change)
        except OSError as error:
            raise UsageError(
                f"{change.path} can't be written: {error.strerror or error}; `--undo` takes back "
                "what was written before it"
            ) from error
        text = change.insertion.text.decode()
        offset = change.insertion.offset
        written.append(_Written(change.path, offset, text, change.before is None, folders))
        _save(repository, written)
        yield change.path


def _write(path: Path, change: Change) -> None:
    if change.before is not None:
        replace_source(str(path), old=change.before, new=change.after)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as stream:
        stream.write(change.after)


def _missing_folders(root: Path, path: Path) -> tuple[str, ...]:
    missing = [folder for folder in path.parents if not folder.exists()]
    return tuple(folder.relative_to(root).as_posix() for folder in reversed(missing))


def take_back(repository: Repository) -> Iterator[tuple[str, str | None]]:
    """Take back all that was written, last first; yield each path, and why it is left, or None.

    What can't be taken back stays in the record.

    Raises:
        UsageError: there is no record, or it can't be used.
    """
    written = _read(repository)
    if not written:
        raise UsageError(
            f"init has written nothing in this clone of {repository.root}; what another clone "
            "has committed is taken back with git"
        )
    left: list[_Written] = []
    for each in reversed(written):
        reason = _take_back(repository.root, each)
        if reason is not None:
            left.insert(0, each)
        yield each.path, reason
    _save(repository, left)


def _take_back(root: Path, written: _Written) -> str | None:
    path = root / written.path
    try:
        contents = read_source(str(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"can't be read: {error.strerror or error}"
    text = written.text.encode()
    offset = written.offset if contents[written.offset :].startswith(text) else contents.find(text)
    if offset < 0:
        return "was changed since where init wrote; take that out by hand"
    rest = contents[:offset] + contents[offset + len(text) :]
    try:
        if rest or not written.is_new:
            replace_source(str(path), old=contents, new=rest)
            return None
        path.unlink()
        for folder in reversed(written.folders):
            if not any((root / folder).iterdir()):
                (root / folder).rmdir()
    except OSError as error:
        return f"can't be written: {error.strerror or error}"
    return None


def _read(repository: Repository) -> list[_Written]:
    file = repository.private / _FILE
    try:
        document = json.loads(file.read_bytes())
        if document["schema"] != _SCHEMA:
            raise ValueError(f"schema {document['schema']!r}, expected {_SCHEMA}")  # noqa: TRY301
        items = [_Written(**item) for item in document["written"]]
        return [replace(item, folders=tuple(item.folders)) for item in items]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"the record {file} can't be used ({error}); remove it") from error


def _save(repository: Repository, written: list[_Written]) -> None:
    file = repository.private / _FILE
    if not written:
        file.unlink(missing_ok=True)
        return
    document = {"schema": _SCHEMA, "written": [asdict(each) for each in written]}
    try:
        file.write_text(json.dumps(document, indent=2) + "\n", encoding="ascii")
    except OSError as error:
        raise UsageError(
            f"cannot write the record {file}, by which --undo goes: {error.strerror or error}"
        ) from error
