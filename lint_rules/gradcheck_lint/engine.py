"""Lint one source: bytes in, findings and fixes out."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from gradcheck_lint.suppressions import UNUSED_CODE, UNUSED_SLUG, mentions_us
from gradcheck_suite.findings import Finding, Location, Related
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import libcst as cst

    from gradcheck_lint.edits import Fix
    from gradcheck_lint.inspection import Inspected, Inspection
    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.positions import Positions
    from gradcheck_lint.rules._rule import Rule, Violation
    from gradcheck_lint.suppressions import Unused

MARK = b"torch"
"""Source without this word is none of our business."""


def concerns(source: bytes) -> bool:
    """Tell by its words whether source can have a finding at all."""
    return MARK in source or mentions_us(source)


def lint_source(
    source: bytes, path: str, *, codes: Collection[str] | None = None
) -> tuple[Finding, ...]:
    """Return what is wrong in one file, in the order of its lines.

    ``codes`` are the rules to apply, all by default. Source without the word "torch" is not
    parsed. Source that can't be parsed is a finding.
    """
    return inspect_source(source, path, codes=codes).findings if concerns(source) else ()


def inspect_source(source: bytes, path: str, *, codes: Collection[str] | None = None) -> Inspection:
    """Return what is wrong in one file and how to fix it; as ``lint_source``."""
    from gradcheck_lint.inspection import Inspection  # noqa: PLC0415 - needs libcst

    if not concerns(source):
        return Inspection()
    with _collector_off():
        return _inspect(source, path, codes)


def _inspect(source: bytes, path: str, codes: Collection[str] | None) -> Inspection:
    from gradcheck_lint.inspection import Inspected, Inspection  # noqa: PLC0415 - needs libcst
    from gradcheck_lint.parsing import check_source, parse  # noqa: PLC0415 - only for torch files
    from gradcheck_lint.rules import RULES  # noqa: PLC0415 - as above

    wanted = [rule.code for rule in RULES if codes is None or rule.code in codes]
    applied = [rule.code for rule in RULES if rule.code in wanted and rule.concerns(source)]
    reports_unused = (codes is None or UNUSED_CODE in codes) and mentions_us(source)
    unreadable_source = check_source(source, path) if MARK in source else None
    if unreadable_source is not None:
        return Inspection((Inspected(unreadable_source),))
    if not applied and not reports_unused:
        return Inspection()
    tree = parse(source, path)
    if isinstance(tree, Finding):
        return Inspection((Inspected(tree),))
    try:
        return _check(tree, source, path, applied, wanted if reports_unused else None)
    except RecursionError:
        from gradcheck_lint.unreadable import unreadable  # noqa: PLC0415 - rare path

        reason = "its expressions or blocks are nested too deeply to read"
        return Inspection((Inspected(unreadable(path, reason)),))


def _check(
    tree: cst.Module,
    source: bytes,
    path: str,
    codes: Collection[str],
    codes_to_use: Collection[str] | None,
) -> Inspection:
    # These need libcst, which takes a third of a second to import.
    from gradcheck_lint.inspection import Inspection  # noqa: PLC0415
    from gradcheck_lint.model.module import ModuleModel  # noqa: PLC0415
    from gradcheck_lint.positions import Positions  # noqa: PLC0415
    from gradcheck_lint.rules import load_rules  # noqa: PLC0415
    from gradcheck_lint.suppressions import Suppressions  # noqa: PLC0415

    found: list[tuple[Rule, FunctionModel, Violation]] = []
    if codes:
        model = ModuleModel(tree, source)
        rules = load_rules(codes)
        found = [
            (rule, function, violation)
            for function in model.functions()
            for rule in rules
            for violation in rule.check(function)
        ]
    if not found and codes_to_use is None:
        return Inspection(tree=tree)
    positions = Positions(tree, _nodes(found))
    suppressions = Suppressions(positions.comments)
    items = []
    for rule, function, violation in found:
        item = _inspected(rule, function, violation, positions, path)
        if not suppressions.silence(item.finding, positions.statement_lines(violation.node)):
            items.append(item)
    if codes_to_use is not None:
        from gradcheck_lint.rules import SLUGS  # noqa: PLC0415 - as above

        items.extend(
            _unused(unused, path, tree) for unused in suppressions.unused(codes_to_use, SLUGS)
        )
    items.sort(key=lambda item: _place(item.finding))
    return Inspection(tuple(items), tree, positions)


def _nodes(found: Sequence[tuple[Rule, FunctionModel, Violation]]) -> Iterator[cst.CSTNode]:
    for _, _, violation in found:
        yield violation.node
        for node, _ in violation.related:
            yield node


def _inspected(
    rule: Rule, function: FunctionModel, violation: Violation, positions: Positions, path: str
) -> Inspected:
    finding = Finding.of(
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
    return _with_fix(finding, violation.fix)


def _with_fix(finding: Finding, fix: Fix | None) -> Inspected:
    """Join a finding and its fix; ``fixable`` says that ``--fix`` is enough."""
    from gradcheck_lint.inspection import Inspected  # noqa: PLC0415 - needs libcst

    if fix is None:
        return Inspected(finding)
    from gradcheck_lint.rewriting import loses_comment  # noqa: PLC0415 - needs libcst

    safe = fix.safe and not any(map(loses_comment, fix.edits))
    evidence = {**finding.evidence, "fix": fix.message, "fix_is_safe": safe}
    return Inspected(replace(finding, fixable=safe, evidence=evidence), fix, safe)


def _unused(unused: Unused, path: str, tree: cst.Module) -> Inspected:
    from gradcheck_lint.inspection import Inspected  # noqa: PLC0415 - needs libcst
    from gradcheck_lint.rewriting import comment_fix  # noqa: PLC0415 - as above

    own = unused.suppression
    end = own.column + len(own.comment.value)
    finding = Finding(
        code=UNUSED_CODE,
        rule=UNUSED_SLUG,
        severity=Severity.WARNING,
        message=unused.message,
        detector="lint",
        location=Location(path, own.line, own.column, own.line, end),
        hint="remove it, or correct the name",
    )
    fix = comment_fix(tree, own.comment, own.without(unused.idle | unused.unknown))
    return Inspected(replace(finding, fixable=True), fix, safe=True)


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
