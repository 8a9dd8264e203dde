"""Name files as the reader knows them: relative to where the command was started."""

from __future__ import annotations

import ntpath
import os
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["display_path", "is_pseudo_path"]


def display_path(path: str) -> str:
    """Return ``path`` relative to the working directory where it lies below it.

    Separators are slashes on every system. A path elsewhere stays as it was given, and so does
    the name of something that is no file, such as ``<stdin>``. A cell that was run in a notebook
    has the name that stands beside it there, ``In[3]``.

    >>> display_path("<stdin>")
    '<stdin>'
    """
    cell = _cell_of(path)
    if cell is not None:
        return cell
    try:
        directory = os.getcwd()  # noqa: PTH109 - a str is wanted, and this is called very often
    except OSError:
        return path
    return _display_path(path, directory)


def _cell_of(path: str) -> str | None:
    """Return what IPython calls a cell, whose source it compiles as a file of no use to anybody."""
    if "IPython" not in sys.modules:
        return None
    shell: Any = getattr(sys.modules["IPython"], "get_ipython", lambda: None)()
    try:
        label, name = shell.compile.format_code_name(path)
    except (AttributeError, TypeError, ValueError):  # none runs, an older one, or it is no cell
        return None
    return str(name) if label == "Cell" else None


def is_pseudo_path(path: str) -> bool:
    """Return whether ``path`` names source that is no file: ``<stdin>``, ``<string>``, a cell."""
    return path.startswith("<") and path.endswith(">")


@lru_cache(maxsize=1024)
def _display_path(path: str, directory: str) -> str:
    if not path or is_pseudo_path(path):
        return path
    lexical = relative_below(path, directory)
    if lexical is not None:
        return lexical
    try:
        real = relative_below(
            os.path.realpath(os.path.join(directory, path)),  # noqa: PTH118 - str in, str out
            os.path.realpath(directory),
        )
    except (OSError, ValueError):
        real = None
    return path.replace("\\", "/") if real is None and os.sep == "\\" else real or path


def relative_below(path: str, directory: str, *, flavour: ModuleType = os.path) -> str | None:
    r"""Return ``path`` relative to ``directory`` with slashes, or None if it is not below it.

    Only the text of the two is compared; ``flavour`` is ``posixpath`` or ``ntpath``. A path with
    ``..`` in it may pass through a symbolic link, so that its text proves nothing: None.

    >>> import ntpath, posixpath
    >>> relative_below(r"C:\Work\Train.py", r"c:\work", flavour=ntpath)
    'Train.py'
    >>> relative_below("/elsewhere/train.py", "/work", flavour=posixpath) is None
    True
    """
    joined: str = flavour.join(directory, path)
    parts = joined.replace("\\", "/").split("/") if flavour is ntpath else joined.split("/")
    if ".." in parts:
        return None
    whole: str = flavour.normpath(joined)
    root: str = flavour.normpath(directory)
    prefix = root if root.endswith(flavour.sep) else root + flavour.sep
    if not flavour.normcase(whole).startswith(flavour.normcase(prefix)):
        return None
    below = whole[len(prefix) :] or None
    return below.replace("\\", "/") if below and flavour is ntpath else below
