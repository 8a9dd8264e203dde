"""Lint one source: bytes in, findings and fixes out."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from gradcheck_lint.failures import WHOLE_FILE, Failures
from gradcheck_lint.suppressions import UNUSED_CODE, UNUSED_SLUG, mentions_us
from gradcheck_suite.findings import Finding, Location, Related
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import libcst as cst

    from gradcheck_lint.edits import Fix
    from gradcheck_lint.inspection import Inspected, Inspection
    from gradcheck_lint.model.module import FunctionModel, ModuleModel
    from gradcheck_lint.model.scopes import FunctionScope
    from gradcheck_lint.positions import Positions
    from gradcheck_lint.project.linking import Unit
    from gradcheck_lint.rules._rule import Rule, Violation
    from gradcheck_lint.suppressions import Unused
    from gradcheck_lint.units import Linked

MARK = b"torch"
"""Source without this word is none of our business."""
_MARK_IN_UTF_16 = b"t\0o\0r\0c\0h"
"""The same in UTF-16 of either byte order, which Python does not read."""


def concerns(source: bytes) -> bool:
    """Tell by its words whether source can have a finding at all."""
    return _names_torch(source) or mentions_us(source)


def _names_torch(source: bytes) -> bool:
    return MARK in source or _MARK_IN_UTF_16 in source


@dataclass(frozen=True, slots=True)
class Linted:
    """What is wrong in one file, in the order of its lines.

    ``sources`` are the other files of the project that were read for it, with their digests.
    """

    findings: tuple[Finding, ...]
    sources: Mapping[str, str] = field(default_factory=dict)


def lint_source(
    source: bytes, path: str, *, codes: Collection[str] | None = None, root: str | None = None
) -> tuple[Finding, ...]:
    """Return what is wrong in one file; as ``lint``."""
    return lint(source, path, codes=codes, root=root).findings


def lint(
    source: bytes, path: str, *, codes: Collection[str] | None = None, root: str | None = None
) -> Linted:
    """Return what is wrong in one file.

    ``codes`` are the rules to apply, all by default. What the file imports from the project at
    ``root`` is read with it; without a root, nothing is. Source without the word "torch" is not
    parsed. Source that can't be parsed is a finding, and so is an error of our own.
    """
    failures = Failures()
    with _collector_off(), failures.costing(WHOLE_FILE):
        plan = _plan(source, path, codes, root)
        if not isinstance(plan, _Plan):
            return Linted(plan)
        inspection = _inspect(source, path, plan)
        return Linted(inspection.findings, inspection.sources)
    return Linted(failures.findings(path))


_Found: TypeAlias = "tuple[Rule, FunctionModel, Violation]"


def _violations(
    model: ModuleModel,
    rules: Sequence[Rule],
    failures: Failures,
) -> Iterator[_Found]:
    """Yield what rules find; what one of them raises costs that rule on that function."""
    for function in model.own_functions():
        for rule in rules:
            yield from _found_by(rule, function, failures)


def _found_by(rule: Rule, function: FunctionModel, failures: Failures) -> Iterator[_Found]:
    try:
        for violation in rule.check(function):
            yield rule, function, violation
    except Exception as error:  # noqa: BLE001 - a bug of ours may raise anything
        _note(failures, error, rule)


def _note(failures: Failures, error: Exception, *rules: Rule) -> None:
    failures.codes.update(rule.entry.code for rule in rules)
    failures.note(error, *(f"the rule {rule.entry.slug}" for rule in rules))


def inspect_source(
    source: bytes, path: str, *, codes: Collection[str] | None = None, root: str | None = None
) -> Inspection:
    """Return what is wrong in one file and how to fix it; as ``lint``."""
    from gradcheck_lint.inspection import Inspected, Inspection  # noqa: PLC0415 - needs libcst

    failures = Failures()
    with _collector_off(), failures.costing(WHOLE_FILE):
        plan = _plan(source, path, codes, root)
        if not isinstance(plan, _Plan):
            return Inspection(tuple(map(Inspected, plan)))
        return _inspect(source, path, plan)
    return Inspection(tuple(map(Inspected, failures.findings(path))))


class _Plan:
    """Which rules to apply to source that has to be parsed, and what is read with it.

    ``answerable`` are those whose suppressions can be told to be unused; None to tell none.
    """

    __slots__ = ("answerable", "codes", "root", "unit")

    def __init__(
        self,
        codes: tuple[str, ...],
        answerable: tuple[str, ...] | None,
        unit: Unit,
        root: str | None,
    ) -> None:
        self.codes = codes
        self.answerable = answerable
        self.unit = unit
        self.root = root


def _plan(
    source: bytes, path: str, codes: Collection[str] | None, root: str | None
) -> _Plan | tuple[Finding, ...]:
    """Return what to look for, or the findings of source that libcst isn't needed for."""
    if not concerns(source):
        return ()
    from gradcheck_lint.parsing import check_source  # noqa: PLC0415 - only for torch files
    from gradcheck_lint.project.linking import NO_UNIT, link  # noqa: PLC0415 - as above
    from gradcheck_lint.rules import RULES  # noqa: PLC0415 - as above
    from gradcheck_lint.rules import concerns as has_words  # noqa: PLC0415 - as above

    wanted = tuple(rule.code for rule in RULES if codes is None or rule.code in codes)
    unit = link(root, path, source) if root is not None and MARK in source else NO_UNIT
    texts = (source, *(known.text.encode() for known in unit.slices))
    applied = wanted if any(map(has_words, texts)) else ()
    tells_unused = (codes is None or UNUSED_CODE in codes) and mentions_us(source)
    problem = check_source(source, path, parsed_next=bool(applied or tells_unused))
    if problem is not None:
        return (problem,) if _names_torch(source) else ()
    if not applied and not tells_unused:
        return ()
    return _Plan(applied if MARK in source else (), wanted if tells_unused else None, unit, root)


def _inspect(source: bytes, path: str, plan: _Plan) -> Inspection:
    from gradcheck_lint.inspection import Inspected, Inspection  # noqa: PLC0415 - needs libcst
    from gradcheck_lint.parsing import parse  # noqa: PLC0415 - only for torch files

    tree = parse(source, path)
    if isinstance(tree, Finding):
        return Inspection((Inspected(tree),))
    return _check(tree, source, path, plan)


def _check(tree: cst.Module, source: bytes, path: str, plan: _Plan) -> Inspection:
    # These need libcst, which takes a third of a second to import.
    from gradcheck_lint.inspection import Inspected, Inspection  # noqa: PLC0415
    from gradcheck_lint.positions import Positions  # noqa: PLC0415
    from gradcheck_lint.project.linking import link  # noqa: PLC0415
    from gradcheck_lint.units import Linked  # noqa: PLC0415

    failures = Failures()
    linked = Linked()
    if plan.codes:
        with failures.costing("what other files of the project give"):
            linked = Linked(plan.unit)
    found = _found(tree, source, linked, plan, failures)
    if plan.root is not None and any(_is_told(violation) for _, _, violation in found):
        # Who calls what was found may speak against it, as `with torch.no_grad():` around it does.
        with failures.costing("what other files of the project call"):
            linked = Linked(link(plan.root, path, source, callers=True))
            found = _found(tree, source, linked, plan, failures)
    items: list[Inspected] = []
    positions: Positions | None = None
    if found or plan.answerable is not None:
        positions = Positions(tree, _nodes(found))
        places = _Places(positions, linked.locations(list(_nodes(found))))
        items = _items(found, places, tree, path, plan, failures)
        items.sort(key=lambda item: _place(item.finding))
    items[:0] = map(Inspected, failures.findings(path))
    return Inspection(tuple(items), tree, positions, linked.unit.sources)


def _is_told(violation: Violation) -> bool:
    return violation.severity > Severity.NOTE


class _Places:
    """Where nodes are: those of the file itself, and by their ``id`` those of other files."""

    __slots__ = ("elsewhere", "own")

    def __init__(self, own: Positions, elsewhere: Mapping[int, Location]) -> None:
        self.own = own
        self.elsewhere = elsewhere

    def related(self, violation: Violation, path: str) -> list[Related]:
        """Return the other places that a violation tells of."""
        return [
            Related(self.elsewhere.get(id(node)) or self.own.location(node, path, None), message)
            for node, message in violation.related
        ]


def _found(
    tree: cst.Module, source: bytes, linked: Linked, plan: _Plan, failures: Failures
) -> list[_Found]:
    from gradcheck_lint.model.module import ModuleModel  # noqa: PLC0415 - needs libcst
    from gradcheck_lint.rules import load_rules  # noqa: PLC0415 - as above

    found: list[_Found] = []
    if not plan.codes:
        return found
    rules = load_rules(plan.codes)
    try:
        model = ModuleModel(tree, source, linked.trees, linked.unit)
        # What was found before an error stays.
        for rule, function, violation in _violations(model, rules, failures):
            own = linked.anchored(violation, function)
            if own is not None:
                found.append((rule, function, own))
        found = [(rule, _home(each, own.node), own) for rule, each, own in _told_once(found)]
        model.release()
    except Exception as error:  # noqa: BLE001 - a bug of ours may raise anything
        _note(failures, error, *rules)
    return found


def _home(function: FunctionModel, node: cst.CSTNode) -> FunctionModel:
    """Return the function that a node stands in, which a rule may have reached from another."""
    own = function.scope
    if own.node is node or _is_in(node, own):
        return function
    others = (each for each in function.module.scopes.functions if not each.linked)
    home = next((each for each in others if each.node is node or _is_in(node, each)), None)
    return function if home is None else function.module.function(home)


def _is_in(node: cst.CSTNode, scope: FunctionScope) -> bool:
    return any(inner is node for inner in scope.nodes_with_lambdas)


def _told_once(found: Sequence[_Found]) -> list[_Found]:
    """Leave out what another function shows as well, at the same node and with more certainty."""
    best: dict[tuple[str, int], _Found] = {}
    for known in found:
        rule, _, violation = known
        key = rule.entry.code, id(violation.node)
        if violation.severity > best.setdefault(key, known)[2].severity:
            best[key] = known
    kept = {key: function for key, (_, function, _) in best.items()}
    return [known for known in found if known[1] is kept[known[0].entry.code, id(known[2].node)]]


def _items(  # noqa: PLR0917 - what was found, and what its tree tells of it
    found: Sequence[_Found],
    places: _Places,
    tree: cst.Module,
    path: str,
    plan: _Plan,
    failures: Failures,
) -> list[Inspected]:
    """Return what no comment silences, and the comments that silence nothing."""
    from gradcheck_lint.suppressions import Suppressions  # noqa: PLC0415 - needs libcst

    suppressions = Suppressions(())
    with failures.costing("the comments that silence findings"):
        suppressions = Suppressions(places.own.comments)
    items: list[Inspected] = []
    for rule, function, violation in found:
        try:
            item = _inspected(rule, function, violation, places, path)
            if not suppressions.silence(item.finding, places.own.statement_lines(violation.node)):
                items.append(item)
        except Exception as error:  # noqa: BLE001, PERF203 - a bug of ours may raise anything
            _note(failures, error, rule)
    if plan.answerable is not None:
        from gradcheck_lint.rules import SLUGS  # noqa: PLC0415 - as above

        applied = [code for code in plan.answerable if code not in failures.codes]
        with failures.costing("the search for comments that silence nothing"):
            items.extend(
                _unused(unused, path, tree) for unused in suppressions.unused(applied, SLUGS)
            )
    return items


def _nodes(found: Sequence[_Found]) -> Iterator[cst.CSTNode]:
    for _, _, violation in found:
        yield violation.node
        for node, _ in violation.related:
            yield node


def _inspected(
    rule: Rule,
    function: FunctionModel,
    violation: Violation,
    places: _Places,
    path: str,
) -> Inspected:
    finding = Finding.of(
        rule.entry,
        violation.message,
        detector="lint",
        severity=violation.severity,
        location=places.own.location(violation.node, path, function.qualified_name),
        related=places.related(violation, path),
        hint=violation.hint,
        evidence=violation.evidence,
    )
    return _with_fix(finding, violation.fix)


def _with_fix(finding: Finding, fix: Fix | None) -> Inspected:
    """Join a finding and its fix; ``fixable`` says that ``--fix`` is enough."""
    from gradcheck_lint.inspection import Inspected  # noqa: PLC0415 - needs libcst
    from gradcheck_lint.rewriting import loses_comment  # noqa: PLC0415 - as above

    if fix is None:
        return Inspected(finding)
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
