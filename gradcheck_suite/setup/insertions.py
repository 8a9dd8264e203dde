"""Insert text into TOML and YAML files, and prove that nothing else of them changes.

What is there keeps every byte: comments, order, quotes and line ends. The proof is that the file,
read again, is what it was before, and what was to be added, and no more.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from gradcheck_suite.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "Insertion",
    "append_toml_table",
    "append_yaml_item",
    "append_yaml_key",
    "read_toml",
    "read_yaml",
]


@dataclass(frozen=True, slots=True)
class Insertion:
    """Text that comes into a file at an offset, in bytes."""

    offset: int
    text: bytes

    def into(self, before: bytes) -> bytes:
        """Return the contents with the text in them."""
        return before[: self.offset] + self.text + before[self.offset :]


def read_toml(source: bytes, name: str) -> dict[str, Any]:
    """Parse TOML.

    Raises:
        UsageError: it is none, or not UTF-8.
    """
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        document: dict[str, Any] = toml.loads(source.decode("utf-8-sig"))
    except ValueError as error:
        raise UsageError(f"{name} can't be read as TOML in UTF-8: {error}") from error
    return document


def append_toml_table(before: bytes, table: tuple[str, ...], body: str, *, name: str) -> Insertion:
    """Return the insertion of a table, after all that is there.

    Raises:
        UsageError: the file is no TOML, or a table can't come after what is there.
    """
    document = read_toml(before, name)
    header = f"[{'.'.join(table)}]"
    text = f"{_separator(before)}{header}\n{body}"
    insertion = _at_end(before, text)
    wanted = _with_table(document, table, read_toml(body.encode(), name))
    try:
        changed = read_toml(insertion.into(before), name)
    except UsageError:
        changed = {}
    if changed != wanted:
        raise UsageError(
            f"{name} has no place for {header} after what is there, such as an inline table; add "
            "it by hand"
        )
    return insertion


def _with_table(
    document: Mapping[str, Any], path: tuple[str, ...], table: Mapping[str, Any]
) -> dict[str, Any]:
    inner = document.get(path[0], {})
    if not isinstance(inner, dict):
        return {}
    value = dict(table) if len(path) == 1 else _with_table(inner, path[1:], table)
    return {**document, path[0]: value}


def read_yaml(source: bytes, name: str) -> dict[str, Any]:
    """Parse YAML that holds a mapping, as nearly all configuration does.

    Raises:
        UsageError: it is none, or not UTF-8.
    """
    return _composed(_yaml(), source, name)[1]


def append_yaml_item(before: bytes, key: str, item: str, *, name: str) -> Insertion:
    """Return the insertion of an item, a mapping, at the end of the list that ``key`` holds.

    ``item`` is its text, indented as if the list had no indentation of its own.

    Raises:
        UsageError: the file is no such YAML.
    """
    yaml = _yaml()
    node, document = _composed(yaml, before, name)
    sequence = next((value for found, value in node.value if found.value == key), None)
    is_list = isinstance(sequence, yaml.SequenceNode) and isinstance(document[key], list)
    if sequence is None or not is_list:
        raise UsageError(f"{name} has no list `{key}`, which the hook belongs in; add it by hand")
    text = before.decode()
    if sequence.flow_style:
        raise UsageError(f"{name} has `{key}` in brackets; add the hook by hand")
    margin = " " * sequence.start_mark.column
    end = _end_of(text, sequence)
    lines = "".join(f"{margin}{line}\n" for line in item.splitlines())
    insertion = _at(before, text, end, lines)
    wanted = {**document, key: [*document[key], *yaml.safe_load(item)]}
    return _proved(yaml, insertion, before, wanted, name)


def append_yaml_key(before: bytes, key: str, body: str, *, name: str) -> Insertion:
    """Return the insertion of a key with its value, after all that is there.

    Raises:
        UsageError: the file is no mapping in YAML.
    """
    yaml = _yaml()
    _, document = _composed(yaml, before, name)
    insertion = _at_end(before, f"{_separator(before)}{body}")
    wanted = {**document, key: yaml.safe_load(body)[key]}
    return _proved(yaml, insertion, before, wanted, name)


def _proved(yaml: Any, insertion: Insertion, before: bytes, wanted: object, name: str) -> Insertion:
    try:
        changed = yaml.load(insertion.into(before).decode(), Loader=_lenient(yaml))
    except yaml.YAMLError:
        changed = None
    if changed != wanted:
        raise UsageError(f"{name} has no place for it that changes nothing else; add it by hand")
    return insertion


def _composed(yaml: Any, before: bytes, name: str) -> tuple[Any, dict[str, Any]]:
    try:
        text = before.decode()
        node = yaml.compose(text)
        document = yaml.load(text, Loader=_lenient(yaml))
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8; save it as UTF-8") from error
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{name} can't be read as YAML: {reason}") from error
    if not isinstance(node, yaml.MappingNode) or not isinstance(document, dict):
        raise UsageError(f"{name} holds no mapping; expected the keys of its format")
    return node, document


def _yaml() -> Any:
    """Return a reader of YAML: libcst brings one, whose name depends on Python's version."""
    for module in ("yaml", "yaml_ft"):
        if find_spec(module) is not None:
            return import_module(module)
    raise UsageError("a YAML file can't be changed without PyYAML: pip install pyyaml")


def _lenient(yaml: Any) -> Any:
    """Return a loader that keeps what it has no constructor for, as GitLab's ``!reference``."""

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # the module is of either name
        pass

    def keep(loader: Any, suffix: str, node: Any) -> tuple[str, Any]:
        build = {
            yaml.ScalarNode: loader.construct_scalar,
            yaml.SequenceNode: loader.construct_sequence,
            yaml.MappingNode: loader.construct_mapping,
        }[type(node)]
        return suffix, build(node)

    Loader.add_multi_constructor("!", keep)
    return Loader


def _end_of(text: str, sequence: Any) -> int:
    """Return the offset behind the last line of a block, without what follows it."""
    start: int = sequence.value[-1].start_mark.index
    inside = text[start : sequence.end_mark.index]
    kept = [number for number, line in enumerate(inside.split("\n")) if _has_content(line)]
    lines = inside.split("\n")[: kept[-1] + 1]
    return start + len("\n".join(lines))


def _has_content(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _at(before: bytes, text: str, end: int, lines: str) -> Insertion:
    """Return the insertion of lines behind the line that ends at ``end``."""
    rest = text[end:]
    if "\n" in rest:
        end += rest.index("\n") + 1
        return Insertion(len(text[:end].encode()), _with_ends_of(before, lines))
    return _at_end(before, f"\n{lines}")


def _at_end(before: bytes, text: str) -> Insertion:
    return Insertion(len(before), _with_ends_of(before, text))


def _separator(before: bytes) -> str:
    """Return the line ends that leave one empty line behind what is there."""
    if not before.strip():
        return ""
    ends = before.replace(b"\r\n", b"\n")
    return "" if ends.endswith(b"\n\n") else "\n" if ends.endswith(b"\n") else "\n\n"


def _with_ends_of(before: bytes, text: str) -> bytes:
    ends = "\r\n" if b"\r\n" in before else "\n"
    return text.replace("\n", ends).encode()
