"""Find what trains in a repository: scripts with a loop, the framework, the tests."""

from __future__ import annotations

import ast
import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gradcheck_lint.discovery import find_files
from gradcheck_lint.files import read_source
from gradcheck_lint.gitignore import GitIgnored

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["FRAMEWORKS", "Training", "TrainingScript", "find_training"]

FRAMEWORKS: Final = {
    "lightning": "Lightning",
    "pytorch_lightning": "Lightning",
    "transformers": "transformers",
    "accelerate": "Accelerate",
}
"""Packages that own a part of the loop, and what to call them."""

_MOST_READ: Final = 100
"""How many files with words of training are read: 100 take 10 s, and name scripts enough."""
_WORDS: Final = re.compile(rb"\.(?:manual_)?backward\(|\.step\(|\.fit\(|\bTrainer\b|\.train\(")
_HAS_TESTS: Final = re.compile(rb"^\s*(?:async )?def test|^class Test", re.MULTILINE)
_ENGINE_CALLS: Final = {"fit": "Lightning", "train": "transformers"}


@dataclass(frozen=True, slots=True)
class TrainingScript:
    """A file that trains.

    ``line`` is that of the first backward, or of the call that lets a trainer do it, ``framework``
    who owns the loop, or None, ``is_script`` whether running the file begins it, and ``levels`` how
    many folders its relative imports go up, which only a module can, and no script.
    """

    path: str
    line: int
    framework: str | None
    is_script: bool
    levels: int = 0


@dataclass(frozen=True, slots=True)
class Training:
    """What trains in a repository.

    ``scripts`` come with those that can be run first; ``tests`` is the folder of the tests, or
    None, and ``tests_use_torch`` whether one of them imports torch. ``unread`` counts files that
    were not looked at.
    """

    scripts: tuple[TrainingScript, ...]
    tests: str | None
    tests_use_torch: bool
    unread: int

    @property
    def framework(self) -> str | None:
        """Who owns the loop of most scripts."""
        owners = [script.framework for script in self.scripts if script.framework]
        return max(owners, key=owners.count) if owners else None


def find_training(root: Path) -> Training:
    """Read the Python files below ``root`` that git does not ignore."""
    ignored = GitIgnored()
    paths = [
        os.path.relpath(found.path, root)
        for found in find_files([str(root)], is_excluded=ignored.ignores)
        if found.error is None and found.path.endswith(".py")
    ]
    tests = [path for path in paths if _is_test(path)]
    likely = sorted((path for path in paths if path not in set(tests)), key=_likelihood)
    tested = [(path, text) for path, text in _sources(root, tests) if _HAS_TESTS.search(text)]
    sources = _sources(root, likely)
    read = [(path, source) for path, source in sources if _WORDS.search(source)]
    scripts = [script for path, source in read[:_MOST_READ] if (script := _script(path, source))]
    return Training(
        scripts=tuple(sorted(scripts, key=lambda script: not script.is_script)),
        tests=_folder_of([path for path, _ in tested]),
        tests_use_torch=any(b"torch" in text for _, text in tested),
        unread=max(len(read) - _MOST_READ, 0),
    )


def _sources(root: Path, paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    for path in paths:
        with contextlib.suppress(OSError):
            yield path, read_source(str(root / path))


def _is_test(path: str) -> bool:
    """Return whether a file is a test, or lies with the tests, by the names that pytest goes by."""
    *folders, name = Path(path).parts
    is_collected = name.startswith("test_") or name.endswith("_test.py") or name == "conftest.py"
    return is_collected or not {"tests", "test"}.isdisjoint(folders)


def _folder_of(tests: list[str]) -> str | None:
    tops = [path.replace(os.sep, "/").rpartition("/")[0] or "." for path in tests]
    return min(set(tops), key=lambda top: (top.count("/"), -tops.count(top), top)) if tops else None


def _likelihood(path: str) -> tuple[bool, int, str]:
    """Sort what is called after training, and what lies near the top, to the front."""
    return "train" not in Path(path).stem, path.count(os.sep), path


def _script(path: str, source: bytes) -> TrainingScript | None:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    frameworks = {FRAMEWORKS[name] for name in _imported(tree) if name in FRAMEWORKS}
    line = _loop_by_hand(source, path)
    owner = "Accelerate" if "Accelerate" in frameworks else None
    if line is None:
        line, owner = _handed_over(tree, frameworks)
    if line is None:
        return None
    imports = (node.level for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return TrainingScript(
        path.replace(os.sep, "/"),
        line,
        owner,
        is_script=_runs(tree, line),
        levels=max(imports, default=0),
    )


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _loop_by_hand(source: bytes, path: str) -> int | None:
    """Return the line of the first backward, as the linter reads it, if an optimizer steps too."""
    from libcst.metadata import MetadataWrapper, PositionProvider  # noqa: PLC0415 - on demand

    from gradcheck_lint.model.flow import Backward, Step  # noqa: PLC0415 - needs libcst
    from gradcheck_lint.model.module import ModuleModel  # noqa: PLC0415 - as above
    from gradcheck_lint.parsing import check_source, parse  # noqa: PLC0415 - as above
    from gradcheck_suite.findings import Finding  # noqa: PLC0415 - as above

    if b"torch" not in source or check_source(source, path) is not None:
        return None
    tree = parse(source, path)
    if isinstance(tree, Finding):
        return None
    wrapper = MetadataWrapper(tree, unsafe_skip_copy=True)
    try:
        model = ModuleModel(wrapper.module, source)
        events = [event for function in model.functions() for event in function.block.events()]
    except Exception:  # noqa: BLE001 - a bug of the linter's costs one file
        return None
    backwards = [event.node for event in events if isinstance(event, Backward)]
    if not backwards or not any(isinstance(event, Step) for event in events):
        return None
    positions = wrapper.resolve(PositionProvider)
    line: int = min(positions[node].start.line for node in backwards)
    return line


def _handed_over(tree: ast.Module, frameworks: set[str]) -> tuple[int | None, str | None]:
    """Return where a trainer of a framework is started, and which it is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = _ENGINE_CALLS.get(node.func.attr)
            receiver = ast.unparse(node.func.value).lower()
            if owner in frameworks and "trainer" in receiver:
                return node.lineno, owner
    return None, None


def _runs(tree: ast.Module, line: int) -> bool:
    """Return whether running the file comes to ``line``: there, or in what it calls."""
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    own = {node.name for node in tree.body if isinstance(node, definitions)}
    for node in tree.body:
        if isinstance(node, definitions):
            continue
        if node.lineno <= line <= (node.end_lineno or node.lineno):
            return True
        calls = (each.func for each in ast.walk(node) if isinstance(each, ast.Call))
        if any(isinstance(called, ast.Name) and called.id in own for called in calls):
            return True
    return False
