"""Lint one source: bytes in, findings out."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gradcheck_lint.unreadable import unparsable, unreadable
from gradcheck_suite.findings import Finding, Location, Related

if TYPE_CHECKING:
    import libcst as cst

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.positions import Positions
    from gradcheck_lint.rules._rule import Rule, Violation


def lint_source(
    source: bytes, path: str, *, codes: Collection[str] | None = None
) -> tuple[Finding, ...]:
    """Return what is wrong in one file, in the order of its lines.

    ``codes`` are the rules to apply, all by default. Source without the word "torch" is not
    parsed. Source that can't be parsed is a finding.
    """
    if b"torch" not in source:
        return ()
    with _one_collection():
        try:
            return tuple(_lint(source, path, codes))
        except RecursionError:
            return (unreadable(path, "its expressions or blocks are nested too deeply to read"),)


def _lint(source: bytes, path: str, codes: Collection[str] | None) -> Sequence[Finding]:
    # libcst takes a third of a second to import: only for files that need it.
    import libcst as cst  # noqa: PLC0415

    from gradcheck_lint.model.module import ModuleModel  # noqa: PLC0415
    from gradcheck_lint.positions import Positions  # noqa: PLC0415
    from gradcheck_lint.rules import load_rules  # noqa: PLC0415
    from gradcheck_lint.suppressions import Suppressions  # noqa: PLC0415

    try:
        tree = cst.parse_module(source)
    except cst.ParserSyntaxError as error:
        return [unparsable(path, source, error.message)]
    except (SyntaxError, UnicodeDecodeError, LookupError, ValueError) as error:
        return [unreadable(path, f"its text can't be decoded: {error}")]
    model = ModuleModel(tree, source, path)
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
        lines = positions.statement_lines(violation.node)
        if not suppressions.silence(finding, lines):
            findings.append(finding)
    findings.sort(key=_place)
    return findings


def _nodes(
    found: Sequence[tuple[Rule, FunctionModel, Violation]],
) -> Iterator[cst.CSTNode]:
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
def _one_collection() -> Iterator[None]:
    """Put the cyclic collector off while one tree lives, and clear the tree away afterwards.

    A tree is hundreds of thousands of live objects; every collection while it grows looks at all
    of them again.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
