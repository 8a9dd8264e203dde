"""Know whether a project still is as it was when something was concluded from it."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from gradcheck_lint.files import read_source

if TYPE_CHECKING:
    from collections.abc import Iterable

_IMPORTERS: Final = "importers:"
"""What the name of a source begins with that is no file, but the list of those that import one."""


def digest_of(source: bytes) -> str:
    """Return what stands for the contents of a file."""
    return blake2b(source, digest_size=12).hexdigest()


def digest_of_list(paths: Iterable[str]) -> str:
    """Return what stands for some files, whatever is in them."""
    return digest_of("\n".join(paths).encode("utf-8", "surrogateescape"))


def importers_key(root: str, path: str) -> str:
    """Return the name of the source that is the list of the files that import one."""
    return f"{_IMPORTERS}{root}\n{path}"


def current_digest(source: str) -> str:
    """Return the digest of a source as it is now, "" for a file that can't be read."""
    if source.startswith(_IMPORTERS):
        from gradcheck_lint.project.importers import importers_of  # noqa: PLC0415 - rarely asked

        root, _, path = source.removeprefix(_IMPORTERS).partition("\n")
        return digest_of_list(importers_of(root, path))
    try:
        return digest_of(read_source(source))
    except OSError:
        return ""
