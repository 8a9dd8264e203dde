"""Apply edits to a parsed module, keeping everything else as it was written."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.edits import Edit, Fix, Insertion, NewImport, Removal, Replacement

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class ImpossibleEditError(ValueError):
    """An edit doesn't fit the module; nothing was changed."""


_WEAK: Final = (
    cst.BinaryOperation,
    cst.BooleanOperation,
    cst.UnaryOperation,
    cst.Comparison,
    cst.IfExp,
    cst.Lambda,
    cst.NamedExpr,
    cst.Await,
    cst.Yield,
    cst.Tuple,
    cst.StarredElement,
)
"""Expressions that may bind less tightly than what stands round them."""

_TIGHT: Final = (
    cst.BinaryOperation,
    cst.BooleanOperation,
    cst.UnaryOperation,
    cst.Comparison,
    cst.ComparisonTarget,
    cst.IfExp,
    cst.Await,
    cst.Attribute,
    cst.Call,
    cst.Subscript,
    cst.Decorator,
    cst.StarredElement,
    cst.StarredDictElement,
)
"""Parents inside which a weak expression needs parentheses."""

Parents = dict[int, cst.CSTNode]


def apply_edits(tree: cst.Module, edits: Iterable[Edit]) -> cst.Module:
    """Return the module with these edits made.

    Edits must not touch the same node or lie inside one another; equal ones count once.

    Raises:
        ImpossibleEditError: a node is not in the module, or new code is not what the place takes.
    """
    chosen = tuple(dict.fromkeys(edits))
    anchors = [anchor for edit in chosen if (anchor := anchor_of(edit)) is not None]
    parents = parents_of(tree, anchors)
    if any(id(anchor) not in parents for anchor in anchors):
        raise ImpossibleEditError("a node to change is not part of the module")
    writer = _Writer(tree, chosen, parents)
    try:
        changed = tree.visit(writer)
    except (cst.CSTValidationError, cst.ParserSyntaxError, TypeError, ValueError) as error:
        raise ImpossibleEditError(str(error)) from error
    imports = [edit for edit in chosen if isinstance(edit, NewImport)]
    return _add_imports(changed, imports)


def anchor_of(edit: Edit) -> cst.CSTNode | None:
    """Return the node that an edit touches; an import touches none."""
    if isinstance(edit, NewImport):
        return None
    return edit.anchor if isinstance(edit, Insertion) else edit.node


def parents_of(tree: cst.Module, nodes: Iterable[cst.CSTNode]) -> Parents:
    """Return the parents of these nodes and of all that is round them, by identity.

    A node that is not in the module has none.
    """
    missing = {id(node) for node in nodes}
    parents: Parents = {}
    if not missing:
        return parents
    path: list[tuple[cst.CSTNode, Iterator[cst.CSTNode]]] = [(tree, iter(tree.children))]
    while path and missing:
        _, below = path[-1]
        child = next(below, None)
        if child is None:
            path.pop()
            continue
        if id(child) in missing:
            missing.discard(id(child))
            line = [step for step, _ in path] + [child]
            parents.update((id(inner), outer) for outer, inner in pairwise(line))
        path.append((child, iter(child.children)))
    return parents


class _Writer(cst.CSTTransformer):
    """Change the nodes that edits name, visiting only what lies round them."""

    def __init__(self, tree: cst.Module, edits: Sequence[Edit], parents: Parents) -> None:
        super().__init__()
        self._tree = tree
        self._parents = parents
        self._ancestors = {id(parent) for parent in parents.values()}
        self._replaced: dict[int, Replacement | Removal] = {}
        self._inserted: dict[int, list[Insertion]] = {}
        for edit in edits:
            if isinstance(edit, Insertion):
                self._inserted.setdefault(id(self._statement(edit.anchor)), []).append(edit)
            elif not isinstance(edit, NewImport):
                chosen = self._on_its_line(edit)
                if id(chosen.node) in self._replaced:
                    raise ImpossibleEditError("two edits change the same node")
                self._replaced[id(chosen.node)] = chosen

    def on_visit(self, node: cst.CSTNode) -> bool:
        return id(node) in self._ancestors and id(node) not in self._replaced

    def on_leave(  # type: ignore[override]  # wider than libcst's overloads
        self, original_node: cst.CSTNode, updated_node: cst.CSTNode
    ) -> cst.CSTNode | cst.RemovalSentinel | cst.FlattenSentinel[cst.CSTNode]:
        edit = self._replaced.get(id(original_node))
        if isinstance(edit, Removal):
            return cst.RemovalSentinel.REMOVE
        nodes: list[cst.CSTNode] = [updated_node]
        if edit is not None:
            nodes = self._replacement(edit, original_node)
        for insertion in self._inserted.get(id(original_node), ()):
            added = self._statements(insertion.code, original_node)
            nodes = [*nodes, *added] if insertion.where == "after" else _put_before(added, nodes)
        if isinstance(updated_node, cst.IndentedBlock) and not updated_node.body:
            return updated_node.with_changes(body=[cst.SimpleStatementLine([cst.Pass()])])
        return nodes[0] if len(nodes) == 1 else cst.FlattenSentinel(nodes)

    def _statement(self, node: cst.CSTNode) -> cst.CSTNode:
        """Return the statement to insert beside: a line of its own, or a part of a shared one."""
        current = node
        while not isinstance(current, (cst.BaseCompoundStatement, cst.BaseSmallStatement)):
            parent = self._parents.get(id(current))
            if isinstance(current, cst.SimpleStatementLine):
                return current
            if parent is None:
                raise ImpossibleEditError("there is no statement to insert beside")
            current = parent
        holder = self._parents.get(id(current))
        if isinstance(holder, cst.SimpleStatementLine) and len(holder.body) == 1:
            return holder
        return current

    def _on_its_line(self, edit: Replacement | Removal) -> Replacement | Removal:
        """Let new statements have lines of their own where the old one had."""
        if not isinstance(edit, Replacement) or not isinstance(edit.new, str):
            return edit
        line = self._parents.get(id(edit.node))
        if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1:
            return Replacement(line, edit.new)
        return edit

    def _replacement(self, edit: Replacement, old: cst.CSTNode) -> list[cst.CSTNode]:
        if isinstance(edit.new, str):
            if isinstance(old, cst.BaseExpression):
                new: cst.CSTNode = cst.parse_expression(
                    edit.new, config=self._tree.config_for_parsing
                )
            elif isinstance(old, (cst.BaseStatement, cst.BaseSmallStatement)):
                return self._like(old, self._statements(edit.new, old))
            else:
                raise ImpossibleEditError(
                    f"{type(old).__name__} can't be replaced by source; give a node"
                )
        else:
            new = edit.new
        if isinstance(old, cst.BaseExpression) and isinstance(new, cst.BaseExpression):
            return [self._in_parentheses(new, old)]
        return self._like(old, [new])

    def _in_parentheses(self, new: cst.BaseExpression, old: cst.BaseExpression) -> cst.CSTNode:
        if getattr(new, "lpar", ()):
            return new
        if old.lpar and not (isinstance(old, cst.Tuple) and isinstance(new, cst.Call)):
            return new.with_changes(lpar=old.lpar, rpar=old.rpar)
        parent = self._parents.get(id(old))
        if isinstance(new, _WEAK) and isinstance(parent, _TIGHT):
            return new.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        return new

    def _statements(self, code: str, beside: cst.CSTNode) -> list[cst.CSTNode]:
        """Parse statements in the shape that ``beside`` has."""
        text = code.strip("\n").replace("\n", self._tree.default_newline)
        lines = cst.parse_module(text, config=self._tree.config_for_parsing).body
        if not isinstance(beside, cst.BaseSmallStatement):
            return list(lines)
        small: list[cst.CSTNode] = []
        for line in lines:
            if not isinstance(line, cst.SimpleStatementLine):
                raise ImpossibleEditError("a compound statement doesn't fit on a shared line")
            small.extend(line.body)
        return small

    def _like(self, old: cst.CSTNode, new: list[cst.CSTNode]) -> list[cst.CSTNode]:
        """Give the first statement the lines above the old one, and the last its comment."""
        if new and hasattr(old, "leading_lines") and hasattr(new[0], "leading_lines"):
            above: object = getattr(old, "leading_lines")  # noqa: B009 - not every node has it
            new[0] = new[0].with_changes(leading_lines=above)
        last = new[-1] if new else None
        if isinstance(old, cst.SimpleStatementLine) and isinstance(last, cst.SimpleStatementLine):
            new[-1] = last.with_changes(trailing_whitespace=old.trailing_whitespace)
        if isinstance(old, cst.BaseSmallStatement) and isinstance(last, cst.BaseSmallStatement):
            new[-1] = last.with_changes(semicolon=getattr(old, "semicolon", None))
        return new


def _put_before(added: list[cst.CSTNode], nodes: list[cst.CSTNode]) -> list[cst.CSTNode]:
    """Join the two, the blank lines above the old statement now being above the new one.

    A comment above the old statement is about it, and stays there.
    """
    first, head = added[0], nodes[0]
    if not hasattr(first, "leading_lines") or not hasattr(head, "leading_lines"):
        return [*added, *nodes]
    lines: list[cst.EmptyLine] = list(getattr(head, "leading_lines"))  # noqa: B009 - as above
    blank = next((at for at, line in enumerate(lines) if line.comment is not None), len(lines))
    return [
        first.with_changes(leading_lines=lines[:blank]),
        *added[1:],
        head.with_changes(leading_lines=lines[blank:]),
        *nodes[1:],
    ]


def _add_imports(tree: cst.Module, imports: Sequence[NewImport]) -> cst.Module:
    for wanted in imports:
        if not _is_imported(tree, wanted):
            text = f"from {wanted.module} import {wanted.name}"
            line = cst.parse_statement(text, config=tree.config_for_parsing)
            at, takes_lines = _import_place(tree)
            body: list[cst.CSTNode] = list(tree.body)
            if takes_lines and at < len(body):
                body[at : at + 1] = _put_before([line], [body[at]])
            else:
                body.insert(at, line)
            tree = tree.with_changes(body=body)
    return tree


def _is_imported(tree: cst.Module, wanted: NewImport) -> bool:
    for statement in _small_statements(tree):
        if not isinstance(statement, cst.ImportFrom) or isinstance(statement.names, cst.ImportStar):
            continue
        if statement.relative or statement.module is None:
            continue
        if tree.code_for_node(statement.module) != wanted.module:
            continue
        if any(name.name.value == wanted.name and not name.asname for name in statement.names):
            return True
    return False


def _small_statements(tree: cst.Module) -> Iterator[cst.BaseSmallStatement]:
    for line in tree.body:
        if isinstance(line, cst.SimpleStatementLine):
            yield from line.body


def _import_place(tree: cst.Module) -> tuple[int, bool]:
    """Return where an import goes, and whether it takes the blank lines above what is there now.

    It goes behind the imports at the head of the file, or behind its docstring.
    """
    place = 0
    found = False
    for number, line in enumerate(tree.body):
        if not isinstance(line, cst.SimpleStatementLine):
            break
        statement = line.body[0]
        if isinstance(statement, (cst.Import, cst.ImportFrom)):
            place, found = number + 1, True
        elif not (number == 0 and tree.get_docstring() is not None):
            break
        else:
            place = 1
    return place, not found and place > 0


def loses_comment(edit: Edit) -> bool:
    """Tell whether an edit drops a comment that stood inside what it changes."""
    if not isinstance(edit, (Replacement, Removal)):
        return False
    node = edit.node
    lost = _comments_in(node)
    if isinstance(edit, Replacement):
        if isinstance(node, (cst.Comment, cst.TrailingWhitespace, cst.EmptyLine)):
            return False  # the comment itself is what is changed
        for kept in ("leading_lines", "trailing_whitespace"):
            value = getattr(node, kept, ())
            for part in value if isinstance(value, (list, tuple)) else [value]:
                lost = lost[len(_comments_in(part)) :] if part else lost
        if isinstance(edit.new, cst.CSTNode):
            lost = [comment for comment in lost if comment not in _comments_in(edit.new)]
    return bool(lost)


def _comments_in(node: cst.CSTNode) -> list[str]:
    found = [node.value] if isinstance(node, cst.Comment) else []
    waiting = list(node.children)
    while waiting:
        current = waiting.pop()
        if isinstance(current, cst.Comment):
            found.append(current.value)
        waiting.extend(current.children)
    return found


def comment_fix(tree: cst.Module, comment: cst.Comment, text: str) -> Fix:
    """Return the fix that puts ``text`` in a comment's place, or takes it away with its spaces."""
    if text:
        edits: tuple[Edit, ...] = (Replacement(comment, cst.Comment(text)),)
    else:
        holder = parents_of(tree, [comment])[id(comment)]
        blank: dict[str, object] = {"comment": None}
        if isinstance(holder, (cst.TrailingWhitespace, cst.EmptyLine)):
            blank["whitespace"] = cst.SimpleWhitespace("")
        new = holder.with_changes(**blank)
        edits = (
            Removal(holder) if isinstance(holder, cst.EmptyLine) else Replacement(holder, new),
        )
    return Fix(edits, "Remove what the comment says in vain", safe=True)
