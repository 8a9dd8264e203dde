"""Tell which names an iteration of a loop may use before it binds them itself.

Only through those can one iteration see what another has left behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import libcst as cst

from gradcheck_lint.model.syntax import ATOMS, child_list

if TYPE_CHECKING:
    from collections.abc import Callable


def carried_names(loop: cst.For | cst.While) -> frozenset[str]:
    """Return the names that an iteration may use as the one before has left them."""
    mentions = _Mentions()
    if isinstance(loop, cst.While):
        mentions.use(loop.test)
    else:
        mentions.bind(loop.target)
    mentions.block(loop.body)
    return frozenset(mentions.carried)


class _Mentions:
    """The names that are used before they are bound, on the way through one iteration.

    ``bound`` are those that are bound on every way to here.
    """

    def __init__(self) -> None:
        self.carried: set[str] = set()
        self.bound: set[str] = set()

    def use(self, node: cst.CSTNode | None) -> None:
        """Note every name that is mentioned, those of comprehensions and lambdas among them."""
        waiting = [] if node is None else [node]
        while waiting:
            current: Any = waiting.pop()
            kind = type(current)
            if kind is cst.Name:
                if current.value not in self.bound:
                    self.carried.add(current.value)
            elif kind is cst.Attribute or kind is cst.Arg or kind is cst.Index:
                waiting.append(current.value)
            elif kind is cst.Call:
                waiting.append(current.func)
                waiting += [argument.value for argument in current.args]
            elif kind is cst.BinaryOperation:
                waiting += (current.left, current.right)
            elif kind is cst.Comparison:
                waiting.append(current.left)
                waiting += [target.comparator for target in current.comparisons]
            elif kind not in ATOMS:
                waiting += child_list(current)

    def bind(self, target: cst.CSTNode) -> None:
        """Note what an assignment to a target binds; of anything but a name it uses the owner."""
        kind = type(target)
        if kind is cst.Name:
            self.bound.add(target.value)  # type: ignore[attr-defined]
        elif kind is cst.Tuple or kind is cst.List:
            for element in target.elements:  # type: ignore[attr-defined]
                self.bind(element.value)
        else:
            self.use(target)

    def block(self, body: cst.CSTNode) -> None:
        """Go through the statements of a block."""
        for statement in body.body:  # type: ignore[attr-defined]
            if type(statement) is cst.SimpleStatementLine:
                self.block(statement)
            else:
                _STATEMENTS.get(type(statement), _Mentions.use)(self, statement)

    def assign(self, node: cst.Assign) -> None:
        self.use(node.value)
        for each in node.targets:
            self.bind(each.target)

    def assign_annotated(self, node: cst.AnnAssign) -> None:
        self.use(node.value)
        if node.value is not None:
            self.bind(node.target)

    def choose(self, node: cst.If) -> None:
        self.use(node.test)
        before = self.bound
        self.bound = set(before)
        self.block(node.body)
        first = self.bound
        self.bound = set(before)
        if type(node.orelse) is cst.If:
            self.choose(node.orelse)
        elif node.orelse is not None:
            self.block(node.orelse.body)
        self.bound &= first

    def repeat(self, node: cst.For | cst.While) -> None:
        before = self.bound
        if isinstance(node, cst.For):
            self.use(node.iter)
            self.bound = set(before)
            self.bind(node.target)
        else:
            self.use(node.test)
            self.bound = set(before)
        self.block(node.body)
        self.bound = set(before)
        if node.orelse is not None:
            self.block(node.orelse.body)
        self.bound = before

    def enter(self, node: cst.With) -> None:
        for item in node.items:
            self.use(item.item)
            if item.asname is not None:
                self.bind(item.asname.name)
        self.block(node.body)

    def attempt(self, node: cst.Try | cst.TryStar) -> None:
        before = set(self.bound)
        self.block(node.body)
        if node.orelse is not None:
            self.block(node.orelse.body)
        for handler in node.handlers:
            self.bound = set(before)
            self.use(handler.type)
            self.block(handler.body)
        self.bound = before
        if node.finalbody is not None:
            self.block(node.finalbody.body)


_STATEMENTS: Final[dict[type[cst.CSTNode], Callable[[Any, Any], None]]] = {
    cst.Assign: _Mentions.assign,
    cst.AnnAssign: _Mentions.assign_annotated,
    cst.If: _Mentions.choose,
    cst.For: _Mentions.repeat,
    cst.While: _Mentions.repeat,
    cst.With: _Mentions.enter,
    cst.Try: _Mentions.attempt,
    cst.TryStar: _Mentions.attempt,
}
"""How statements that bind names are gone through; the others use all that they mention."""
