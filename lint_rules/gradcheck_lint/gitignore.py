"""Tell what git leaves out, by the .gitignore files of a work tree."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec


class GitIgnored:
    """The .gitignore files of the work trees that paths lie in, each read once.

    A pattern of a deeper file wins over one further up, and an excluded directory excludes all
    that is in it, as in git. Outside a work tree nothing is ignored. Git's own exclude files and
    what is tracked all the same are not looked at.
    """

    def __init__(self) -> None:
        self._chains: dict[str, tuple[tuple[str, GitIgnoreSpec], ...] | None] = {}
        self._ignored: dict[str, bool] = {}

    def ignores(self, path: str, *, is_directory: bool) -> bool:
        """Tell whether git ignores a path, or a directory that it lies in."""
        absolute = os.path.abspath(path)  # noqa: PTH100 - symbolic links stay
        parent = os.path.dirname(absolute)  # noqa: PTH120 - str in
        if self._chain(parent) is None:
            return False
        return self._in_ignored(parent) or self._matches(absolute, parent, is_directory)

    def _in_ignored(self, directory: str) -> bool:
        known = self._ignored.get(directory)
        if known is None:
            parent = os.path.dirname(directory)  # noqa: PTH120 - str in
            known = (
                parent != directory
                and self._chain(parent) is not None
                and not _is_work_tree(directory)
                and (self._in_ignored(parent) or self._matches(directory, parent, True))
            )
            self._ignored[directory] = known
        return known

    def _matches(self, absolute: str, parent: str, is_directory: bool) -> bool:
        ignored = False
        for root, spec in self._chain(parent) or ():
            relative = absolute[len(root) :].lstrip(os.sep).replace(os.sep, "/")
            verdict = spec.check_file(relative + "/" if is_directory else relative).include
            if verdict is not None:
                ignored = verdict
        return ignored

    def _chain(self, directory: str) -> tuple[tuple[str, GitIgnoreSpec], ...] | None:
        """Return the .gitignore files that concern a directory, outermost first.

        None stands for a directory outside every work tree.
        """
        if directory in self._chains:
            return self._chains[directory]
        parent = os.path.dirname(directory)  # noqa: PTH120 - str in
        outer: tuple[tuple[str, GitIgnoreSpec], ...] | None = ()
        if not _is_work_tree(directory):
            outer = None if parent == directory else self._chain(parent)
        if outer is not None:
            spec = _read(directory)
            outer = (*outer, (directory, spec)) if spec is not None else outer
        self._chains[directory] = outer
        return outer


def _is_work_tree(directory: str) -> bool:
    return os.path.lexists(f"{directory}{os.sep}.git")


def _read(directory: str) -> GitIgnoreSpec | None:
    try:
        with open(f"{directory}{os.sep}.gitignore", "rb") as stream:  # noqa: PTH123 - str in
            text = stream.read().decode("utf-8", errors="surrogateescape")
    except OSError:
        return None
    from pathspec import GitIgnoreSpec  # noqa: PLC0415 - only where there is something to match

    lines = text.splitlines()
    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError:
        return GitIgnoreSpec.from_lines(filter(_is_pattern, lines))


def _is_pattern(line: str) -> bool:
    """Tell whether a line can be read; git passes over those that can't."""
    from pathspec import GitIgnoreSpec  # noqa: PLC0415 - as above

    try:
        GitIgnoreSpec.from_lines([line])
    except ValueError:
        return False
    return True
