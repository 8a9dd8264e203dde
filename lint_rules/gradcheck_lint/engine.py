"""Lint one source: bytes in, findings out."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gradcheck_suite.findings import Finding, Location, Related

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import libcst as cst

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.positions import Positions
    from gradcheck_lint.rules._rule import Rule, Violation

MARK = b"torch"
"""Source without this word is none of our business."""


def lint_source(
    source: bytes, path: str, *, codes: Collection[str] | None = None
) -> tuple[Finding, ...]:
    """Return what is wrong in one file, in the order of its lines.

    ``codes`` are the rules to apply, all by default. Source without the word "torch" is not
    parsed. Source that can't be parsed is a finding.
    """
    if MARK not in source:
        return ()
    with _collector_off():
        return tuple(_lint(source, path, codes))


def _lint(source: bytes, path: str, codes: Collection[str] | None) -> Sequence[Finding]:
    from gradcheck_lint.parsing import check_source, parse  # noqa: PLC0415 - only for torch files
    from gradcheck_lint.rules import RULES  # noqa: PLC0415 - as above

    unreadable_source = check_source(source, path)
    if unreadable_source is not None:
        return [unreadable_source]
    wanted = [rule.code for rule in RULES if rule.concerns(source)]
    wanted = [code for code in wanted if codes is None or code in codes]
    if not wanted:
        return []
    tree = parse(source, path)
    if isinstance(tree, Finding):
        return [tree]
    try:
        return _check(tree, source, path, wanted)
    except RecursionError:
        from gradcheck_lint.unreadable import unreadable  # noqa: PLC0415 - rare path

        return [unreadable(path, "its expressions or blocks are nested too deeply to read")]


def _check(tree: cst.Module, source: bytes, path: str, codes: Collection[str]) -> list[Finding]:
    # These need libcst, which takes a third of a second to import.
    from gradcheck_lint.model.module import ModuleModel  # noqa: PLC0415
    from gradcheck_lint.positions import Positions  # noqa: PLC0415
    from gradcheck_lint.rules import load_rules  # noqa: PLC0415
    from gradcheck_lint.suppressions import Suppressions  # noqa: PLC0415

    model = ModuleModel(tree, source)
    rules = load_rules(codes)
    found = [
        (rule, function, violation)
        for function in model.functions()
        for rule in rules
        for violation in rule.check(function)
    ]
    if not found:
        return []
    positions = Positions(tree, _nodes(found))
    suppressions = Suppressions.of(positions.comments)
    findings = []
    for rule, function, violation in found:
        finding = _finding(rule, function, violation, positions, path)
        if not suppressions.silence(finding, positions.statement_lines(violation.node)):
            findings.append(finding)
    findings.sort(key=_place)
    return findings


def _nodes(found: Sequence[tuple[Rule, FunctionModel, Violation]]) -> Iterator[cst.CSTNode]:
    for _, _, violation in found:
        yield violation.node
        for node, _ in violation.related:
            yield node


def _finding(
    rule: Rule, function: FunctionModel, violation: Violation, positions: Positions, path: str
) -> Finding:
    return Finding.of(
        rule.entry,
        violation.message,
        detector="lint",
        severity=violation.severity,
        location=positions.location(violation.node, path, function.qualified_name),
        related=[
            Related(positions.location(node, path, None), message)
            for node, message in violation.related
        ],
        hint=violation.hint,
        evidence=violation.evidence,
    )


def _place(finding: Finding) -> tuple[int, int, str]:
    location = finding.location or Location("", 0)
    return location.line, location.column or 0, finding.code


@contextmanager
def _collector_off() -> Iterator[None]:
    """Put the cyclic garbage collector off while one tree lives.

    A tree is hundreds of thousands of live objects, and every collection while it grows would
    look at all of them again. What the file leaves behind goes with the next collection.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
