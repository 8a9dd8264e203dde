"""Read ``[tool.gradcheck-suite.lint]`` from the nearest pyproject.toml."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from gradcheck_lint import rules
from gradcheck_lint.suppressions import UNUSED_CODE, UNUSED_SLUG
from gradcheck_lint.unreadable import UNREADABLE_CODE, UNREADABLE_SLUG
from gradcheck_suite.errors import UsageError

_TABLE = "tool.gradcheck-suite.lint"
_TABLES: Final = ("lint", "pytest")
_MARK = re.compile(rb"grad[-_ ]?check|tool[\s.\[\]\"']+grad|\x00", re.IGNORECASE)
"""What a file has that may hold settings of ours: our name, one like it, or another encoding."""

_SLUGS: Final = rules.SLUGS | {UNREADABLE_SLUG: UNREADABLE_CODE, UNUSED_SLUG: UNUSED_CODE}
ALL_CODES: Final = frozenset(_SLUGS.values())


@dataclass(frozen=True, slots=True)
class Settings:
    """What to look for, and where not to look.

    ``root`` is the directory that patterns are relative to. ``select`` is None where nothing was
    chosen, which means every rule. ``baseline`` is a path relative to ``root``.
    """

    root: Path
    select: frozenset[str] | None = None
    ignore: frozenset[str] = frozenset()
    extend_select: frozenset[str] = frozenset()
    exclude: tuple[str, ...] = ()
    per_file_ignores: tuple[tuple[str, frozenset[str]], ...] = ()
    respect_gitignore: bool = True
    fail_on: str = "error"
    baseline: str | None = None

    def codes_for(self, path: str) -> frozenset[str]:
        """Return the rules that apply to one file."""
        chosen = (ALL_CODES if self.select is None else self.select) | self.extend_select
        chosen -= self.ignore
        for pattern, codes in self.per_file_ignores:
            if self._matches(path, pattern):
                chosen -= codes
        return chosen

    def ignores_unreadable(self, path: str) -> bool:
        """Tell whether a file that can't be parsed is passed over, as nothing but ignoring does."""
        ignored = self.ignore.union(
            *(codes for pattern, codes in self.per_file_ignores if self._matches(path, pattern))
        )
        return UNREADABLE_CODE in ignored - self.extend_select

    def excludes(self, path: str) -> bool:
        """Tell whether a path, or a directory that it lies in, is left out."""
        return any(self._matches(path, pattern) for pattern in self.exclude)

    def _matches(self, path: str, pattern: str) -> bool:
        relative = self._relative(path)
        parts = relative.split("/")
        if "/" not in pattern.strip("/"):
            return any(fnmatchcase(part, pattern.strip("/")) for part in parts)
        pattern = pattern.removeprefix("./").rstrip("/").removesuffix("/**")
        return any(
            fnmatchcase("/".join(parts[:length]), pattern) for length in range(1, len(parts) + 1)
        )

    def _relative(self, path: str) -> str:
        absolute = os.path.abspath(path)  # noqa: PTH100 - `..` goes, symbolic links stay
        try:
            relative = os.path.relpath(absolute, self.root)
        except ValueError:  # another drive
            relative = absolute
        return relative.replace(os.sep, "/")

    def with_options(
        self,
        *,
        select: Iterable[str] | None = None,
        ignore: Iterable[str] = (),
        extend_select: Iterable[str] = (),
    ) -> Settings:
        """Return these settings as the command line changes them: its choices come on top.

        Raises:
            UsageError: a name is no rule.
        """
        chosen = self
        if select is not None:
            wanted = expand(select, "--select")
            chosen = replace(chosen, select=wanted, ignore=self.ignore - wanted)
        added = expand(extend_select, "--extend-select")
        return replace(
            chosen,
            extend_select=chosen.extend_select | added,
            ignore=(chosen.ignore - added) | expand(ignore, "--ignore"),
        )


class SettingsFinder:
    """Find the settings of files, reading each pyproject.toml once."""

    def __init__(self, fixed: Settings | None = None) -> None:
        self._fixed = fixed
        self._by_directory: dict[Path, Settings] = {}
        self._by_name: dict[str, Settings] = {}

    def settings_for(self, path: str) -> Settings:
        """Return the settings of the nearest pyproject.toml that has our table.

        Raises:
            UsageError: that file can't be used; the message says where and why.
        """
        if self._fixed is not None:
            return self._fixed
        name = os.path.dirname(path)  # noqa: PTH120 - str in
        known = self._by_name.get(name)
        if known is None or os.path.isdir(path):  # noqa: PTH112 - str in
            absolute = Path(os.path.abspath(path))  # noqa: PTH100 - symbolic links stay
            if absolute.is_dir():
                return self._in(absolute)
            known = self._by_name[name] = self._in(absolute.parent)
        return known

    def _in(self, directory: Path) -> Settings:
        known = self._by_directory.get(directory)
        if known is None:
            found = read_settings(directory / "pyproject.toml", required=False)
            if found is None and directory.parent != directory:
                found = self._in(directory.parent)
            known = found or Settings(Path.cwd())
            self._by_directory[directory] = known
        return known


def read_settings(path: Path, *, required: bool) -> Settings | None:
    """Return the settings in one file; None if it has none and none are ``required``.

    Raises:
        UsageError: the file can't be read, is not valid TOML, or has a key, a type or a rule in
            our table that does not exist.
    """
    try:
        source = path.read_bytes()
    except OSError as error:
        if required:
            raise UsageError(f"cannot read the configuration {path}: {error.strerror}") from error
        return None
    table = _our_table(_parse(path, source), path) if _MARK.search(source) else None
    if table is not None:
        return _settings(table, path)
    if required:
        raise UsageError(f"{path} has no table [{_TABLE}], which settings of the linter are in")
    return None


def _parse(path: Path, source: bytes) -> Mapping[str, object]:
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        if b"\0" in source:
            raise UsageError(f"{path} is not UTF-8 but seems to be UTF-16; save it as UTF-8")
        document: Mapping[str, object] = toml.loads(source.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is not UTF-8: {error.reason} at byte {error.start}; save it as UTF-8"
        ) from error
    except ValueError as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from error
    return document


def _our_table(document: Mapping[str, object], path: Path) -> Mapping[str, object] | None:
    tools = document.get("tool", {})
    for tables, prefix in ((document, ""), (tools, "tool.")):
        if isinstance(tables, Mapping):
            _refuse_near_misses(tables, prefix, path)
    current: object = document
    seen: list[str] = []
    for key in _TABLE.split("."):
        if not isinstance(current, Mapping):
            raise UsageError(
                f"{path}: [{'.'.join(seen)}] must be a table, got {_type_name(current)}"
            )
        if seen == ["tool", "gradcheck-suite"]:
            _refuse_unknown_tables(current, path)
        if key not in current:
            return None
        current = current[key]
        seen.append(key)
    if not isinstance(current, Mapping):
        raise UsageError(f"{path}: [{_TABLE}] must be a table, got {_type_name(current)}")
    return current


_KEYS = (
    "select",
    "ignore",
    "extend-select",
    "exclude",
    "per-file-ignores",
    "respect-gitignore",
    "fail-on",
    "baseline",
)
_FAIL_ON = ("error", "warning", "note", "never")


def _refuse_near_misses(tables: Mapping[str, object], prefix: str, path: Path) -> None:
    """Refuse a table whose name is nearly that of ours: what is in it would count for nothing."""
    import difflib  # noqa: PLC0415 - only for a file that names us

    for name in tables:
        if f"{prefix}{name}" == "tool.gradcheck-suite":
            continue
        if difflib.get_close_matches(name.lower().replace("_", "-"), _NEAR_MISSES, cutoff=0.85):
            raise UsageError(
                f"{path}: [{prefix}{name}] is read by nobody; did you mean [{_TABLE}]? "
                "Settings of the linter are there"
            )


_NEAR_MISSES: Final = ("gradcheck-suite", "gradcheck-lint", "gradcheck", "gradcheck-suite-lint")


def _refuse_unknown_tables(tables: Mapping[str, object], path: Path) -> None:
    """Refuse what none of our tools reads: a table with a misspelt name would count for nothing."""
    for name in tables:
        if name not in _TABLES:
            raise UsageError(
                f"{path}: [tool.gradcheck-suite] has no table `{name}`{_closest(name, _TABLES)} "
                f"Its tables are {', '.join(_TABLES)}"
            )


def _settings(table: Mapping[str, object], path: Path) -> Settings:
    for key in table:
        if key not in _KEYS:
            raise UsageError(
                f"{path}: [{_TABLE}] has no key `{key}`{_closest(key, _KEYS)} "
                f"Its keys are {', '.join(_KEYS)}"
            )
    codes = {
        key: expand(_strings(table[key], key, path), f"{path}: `{key}`")
        for key in ("select", "ignore", "extend-select")
        if key in table
    }
    return Settings(
        root=path.parent.absolute(),
        select=codes.get("select"),
        ignore=codes.get("ignore", frozenset()),
        extend_select=codes.get("extend-select", frozenset()),
        exclude=tuple(_strings(table.get("exclude", []), "exclude", path)),
        per_file_ignores=tuple(_per_file(table.get("per-file-ignores", {}), path)),
        respect_gitignore=_boolean(table.get("respect-gitignore", True), "respect-gitignore", path),
        fail_on=_severity(table.get("fail-on", "error"), path),
        baseline=_string(table["baseline"], "baseline", path) if "baseline" in table else None,
    )


def _boolean(value: object, key: str, path: Path) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{path}: `{key}` must be true or false, got {_type_name(value)}")
    return value


def _string(value: object, key: str, path: Path) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{path}: `{key}` must be a string, got {_type_name(value)}")
    return value


def _severity(value: object, path: Path) -> str:
    text = _string(value, "fail-on", path)
    if text not in _FAIL_ON:
        raise UsageError(
            f"{path}: `fail-on` must be one of {', '.join(_FAIL_ON)}, got {text!r}"
            f"{_closest(text, _FAIL_ON)}"
        )
    return text


def _per_file(value: object, path: Path) -> Iterable[tuple[str, frozenset[str]]]:
    if not isinstance(value, Mapping):
        raise UsageError(
            f"{path}: `per-file-ignores` must be a table of patterns and lists of rules, "
            f"got {_type_name(value)}"
        )
    for pattern, names in value.items():
        key = f"per-file-ignores.{pattern}"
        yield str(pattern), expand(_strings(names, key, path), f"{path}: `{key}`")


def _strings(value: object, key: str, path: Path) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        wrong = value
        if isinstance(value, list):
            wrong = next(item for item in value if not isinstance(item, str))
        got = _type_name(wrong) + (" in it" if isinstance(value, list) else "")
        raise UsageError(f"{path}: `{key}` must be a list of strings, got {got}")
    return value


_TYPE_NAMES = {bool: "a boolean", int: "an integer", float: "a float", str: "a string"}


def _type_name(value: object) -> str:
    if isinstance(value, Mapping):
        return "a table"
    return _TYPE_NAMES.get(type(value), "a list" if isinstance(value, list) else "something else")


def expand(names: Iterable[str], where: str) -> frozenset[str]:
    """Return the codes that are meant by codes, slugs, beginnings of codes, or ``ALL``.

    >>> sorted(expand(["GCS90", "leaf-inplace"], "--select"))
    ['GCS101', 'GCS901', 'GCS902', 'GCS903']

    Raises:
        UsageError: a name means no rule.
    """
    found: set[str] = set()
    for name in names:
        codes = _codes_named(name.strip())
        if not codes:
            known = [*sorted(ALL_CODES), *_SLUGS]
            raise UsageError(
                f"{where}: the linter has no rule `{name}`{_closest(name, known)} "
                "`gradcheck-lint rules` lists them"
            )
        found |= codes
    return frozenset(found)


def _codes_named(name: str) -> frozenset[str]:
    if name.upper() == "ALL":
        return ALL_CODES
    if name.lower() in _SLUGS:
        return frozenset({_SLUGS[name.lower()]})
    if not name.upper().startswith("GCS"):
        return frozenset()
    return frozenset(code for code in ALL_CODES if code.startswith(name.upper()))


def _closest(name: str, known: Iterable[str]) -> str:
    import difflib  # noqa: PLC0415 - only for a message

    options = list(known)
    folded = {option.lower(): option for option in options}
    match = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
    return f"; did you mean `{folded[match[0]]}`?" if match else "."
