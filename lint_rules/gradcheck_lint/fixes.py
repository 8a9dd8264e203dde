"""Fix one source: make changes, look again, until nothing that can be fixed is left."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gradcheck_lint.engine import inspect_source
from gradcheck_lint.failures import Failures
from gradcheck_suite.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    import libcst as cst

    from gradcheck_lint.edits import Edit
    from gradcheck_lint.inspection import Inspected, Inspection

_MOST_PASSES: Final = 20
"""Fixes that overlap take turns; no honest source needs so many."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """A source after its fixes: what was fixed, and what is left to find in it."""

    source: bytes
    fixed: tuple[Finding, ...] = ()
    left: tuple[Finding, ...] = ()


def fix_source(
    source: bytes,
    path: str,
    *,
    codes: Collection[str] | None = None,
    unsafe: bool = False,
    root: str | None = None,
) -> Fixed:
    """Apply the safe fixes to one source; with ``unsafe``, all.

    Of fixes that overlap, the first is made and the others are tried again on what comes of it.
    A fix that leaves something unparsable is not made. What comes out has nothing left that the
    same call would change. A fix that fails is not made, and told among what is left.
    """
    failures = Failures()
    fixed: list[Finding] = []
    refused: set[tuple[str, int, int | None]] = set()
    seen = {source}

    def inspect(text: bytes) -> Inspection:
        return inspect_source(text, path, codes=codes, root=root)

    inspection = inspect(source)
    for _ in range(_MOST_PASSES):
        wanted = [
            item
            for item in inspection.items
            if item.fix is not None and (item.safe or unsafe) and _key(item.finding) not in refused
        ]
        if not wanted or inspection.tree is None:
            break
        chosen, attempt = wanted, None
        with failures.costing("the fixes at once"):
            chosen = _without_overlaps(wanted, inspection)
            attempt = _attempt(source, path, inspection, chosen, inspect)
        if attempt is None:
            # One of them doesn't fit: find out which, one at a time.
            for item in chosen:
                with failures.costing(f"the fix of {item.finding.rule}"):
                    attempt = _attempt(source, path, inspection, [item], inspect)
                if attempt is not None:
                    chosen = [item]
                    break
                refused.add(_key(item.finding))
        if attempt is None:
            continue
        if attempt[0] in seen:
            break
        source, inspection = attempt
        seen.add(source)
        refused.clear()
        fixed.extend(item.finding for item in chosen)
    return Fixed(source, tuple(fixed), failures.findings(path) + inspection.findings)


def edited(inspection: Inspection, item: Inspected) -> str | None:
    """Return the text of the module after one fix alone; None where it can't be made."""
    from gradcheck_lint.rewriting import ImpossibleEditError, apply_edits  # noqa: PLC0415 - libcst

    if inspection.tree is None or item.fix is None:
        return None
    try:
        return apply_edits(inspection.tree, item.fix.edits).code
    except ImpossibleEditError:
        return None


def unified_diff(before: bytes, after: bytes, path: str) -> str:
    """Return the change of one file as ``diff -u`` writes it, empty if there is none."""
    if before == after:
        return ""
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(_lines(before), _lines(after), f"a/{path}", f"b/{path}")
    )


def _lines(source: bytes) -> list[str]:
    from gradcheck_lint.parsing import decode  # noqa: PLC0415 - only for diffs

    return decode(source).splitlines(keepends=True)


def _key(finding: Finding) -> tuple[str, int, int | None]:
    place = finding.location
    return (finding.code, place.line if place else 0, place.column if place else None)


def _attempt(
    source: bytes,
    path: str,
    inspection: Inspection,
    items: Sequence[Inspected],
    inspect: Callable[[bytes], Inspection],
) -> tuple[bytes, Inspection] | None:
    """Make some fixes together; None if they can't be made or what comes out can't be read."""
    from gradcheck_lint.parsing import check_source  # noqa: PLC0415 - needs the parser
    from gradcheck_lint.rewriting import ImpossibleEditError, apply_edits  # noqa: PLC0415 - libcst

    assert inspection.tree is not None
    try:
        new = _encoded(apply_edits(inspection.tree, _edits(items)), source)
    except (ImpossibleEditError, UnicodeEncodeError):
        return None
    if new == source or check_source(new, path) is not None:
        return None
    again = inspect(new)
    if again.tree is None and again.items:
        return None
    return new, again


def _encoded(tree: cst.Module, source: bytes) -> bytes:
    """Return the module's bytes, with a byte order mark where there was one."""
    mark = b"\xef\xbb\xbf"
    new = tree.bytes
    return mark + new if source.startswith(mark) and not new.startswith(mark) else new


def _edits(items: Iterable[Inspected]) -> Iterator[Edit]:
    for item in items:
        if item.fix is not None:
            yield from item.fix.edits


def _without_overlaps(items: Sequence[Inspected], inspection: Inspection) -> list[Inspected]:
    """Return those of the fixes, in the order of the file, that don't touch the same source."""
    from gradcheck_lint.edits import Insertion  # noqa: PLC0415 - needs libcst
    from gradcheck_lint.rewriting import anchor_of, parents_of  # noqa: PLC0415 - needs libcst

    assert inspection.tree is not None
    parents = parents_of(
        inspection.tree,
        [node for edit in _edits(items) if (node := anchor_of(edit)) is not None],
    )
    changed: set[int] = set()
    around: set[int] = set()
    chosen: list[Inspected] = []
    taken: set[Edit] = set()
    anchored: dict[int, Edit] = {}
    for item in items:
        assert item.fix is not None
        new = [edit for edit in item.fix.edits if edit not in taken]
        nodes = [node for edit in new if (node := anchor_of(edit)) is not None]
        ancestors = {id(outer) for node in nodes for outer in _outwards(node, parents)}
        touched = {id(node) for node in nodes}
        anchors = {id(edit.anchor): edit for edit in new if isinstance(edit, Insertion)}
        if touched & (changed | around) - anchors.keys() or ancestors & changed:
            continue
        if anchors.keys() & (changed | anchored.keys()):
            continue
        changed |= touched - anchors.keys()
        around |= ancestors
        anchored.update(anchors)
        taken.update(new)
        chosen.append(item)
    return chosen


def _outwards(node: cst.CSTNode, parents: dict[int, cst.CSTNode]) -> Iterator[cst.CSTNode]:
    current = parents.get(id(node))
    while current is not None:
        yield current
        current = parents.get(id(current))
