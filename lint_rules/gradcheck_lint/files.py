"""Read source files, and write them back whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

_LARGEST_READ: Final = 64 << 20


class TooLargeError(OSError):
    """A file has more bytes than are worth reading."""


def read_source(path: str) -> bytes:
    """Return the bytes of a regular file.

    Raises:
        TooLargeError: it has more than 64 MiB.
        OSError: it can't be read, or is no regular file.
    """
    with open(path, "rb", opener=_open_without_waiting) as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "it is not a regular file")
        if status.st_size > _LARGEST_READ:
            raise TooLargeError(0, f"it has {status.st_size:,} bytes")
        return stream.read()


def _open_without_waiting(path: str, flags: int) -> int:
    # A named pipe without a writer would be waited for.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def replace_source(path: str, *, old: bytes, new: bytes) -> None:
    """Put ``new`` in the place of ``old`` in a file, at once and with the same permissions.

    A symbolic link is followed if it leads to a file below the working directory or below the
    link's own directory, and stays a link.

    Raises:
        OSError: the file can't be written, may not be (it's read-only), lies outside, or no
            longer holds ``old``. It is then as it was.
    """
    import shutil  # noqa: PLC0415 - only where something is written
    import tempfile  # noqa: PLC0415 - as above

    target = _target(path)
    status = target.stat()
    if not status.st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH):
        raise OSError(0, "it is read-only")
    if not os.access(target, os.W_OK):
        raise OSError(0, "it may not be written")
    if target.read_bytes() != old:
        raise OSError(0, "it has been changed in the meantime")
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(new)
            stream.flush()
            os.fsync(stream.fileno())
        shutil.copymode(target, name)
        _keep_owner(status, name)
        os.replace(name, target)  # noqa: PTH105 - str in
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)  # noqa: PTH108 - str in
        raise


def _target(path: str) -> Path:
    real = Path(os.path.realpath(path))
    if not os.path.islink(path):  # noqa: PTH114 - str in
        return real
    roots = (Path(os.path.realpath(os.curdir)), Path(os.path.realpath(Path(path).parent)))
    if not any(real.is_relative_to(root) for root in roots):
        raise OSError(0, f"it is a symbolic link to {real}, which is outside; name that file")
    return real


def _keep_owner(status: os.stat_result, name: str) -> None:
    made = Path(name).stat()
    if (made.st_uid, made.st_gid) != (status.st_uid, status.st_gid) and hasattr(os, "chown"):
        with contextlib.suppress(OSError):  # only root may give files away
            os.chown(name, status.st_uid, status.st_gid)
