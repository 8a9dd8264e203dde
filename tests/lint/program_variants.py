"""Write a program in other words: renamed, wrapped, nested, with more between its statements."""

from __future__ import annotations

import ast
import copy

NAMES = {
    "model": "net",
    "loader": "batches",
    "optimizer": "opt",
    "loss": "objective",
    "scaler": "grad_scaler",
    "total": "summed",
    "losses": "kept",
    "state": "memory",
    "h": "hidden",
}


def variants(source):
    """Yield a name for each variant of a program, and its source."""
    yield "as it stands", source
    for name, change in _CHANGES.items():
        tree = change(copy.deepcopy(ast.parse(source)))
        text = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
        if text != ast.unparse(ast.parse(source)) + "\n":
            yield name, text


class _Renamed(ast.NodeTransformer):
    def visit_Name(self, node):
        node.id = NAMES.get(node.id, node.id)
        return node

    def visit_arg(self, node):
        node.arg = NAMES.get(node.arg, node.arg)
        return node


class _Loops(ast.NodeTransformer):
    """Put the body of each loop, or each loop itself, into something."""

    def __init__(self, head, *, whole=False):
        self._head, self._whole = head, whole

    def visit_For(self, node):
        self.generic_visit(node)
        (outer,) = ast.parse(f"{self._head}:\n    pass").body
        if self._whole:
            outer.body = [node]
            return outer
        outer.body, node.body = node.body, [outer]
        return node


class _Spread(ast.NodeTransformer):
    """Put a statement that does nothing before each statement of a loop or function."""

    def _spread(self, node):
        self.generic_visit(node)
        between = ast.parse("note = len('between')").body
        node.body = [one for statement in node.body for one in (*between, statement)]
        return node

    def visit(self, node):
        is_block = isinstance(node, (ast.For, ast.With, ast.If, ast.FunctionDef))
        return self._spread(node) if is_block else self.generic_visit(node)


def _functions(tree):
    return [node for node in tree.body if isinstance(node, ast.FunctionDef)]


def _in_methods(tree):
    for node in _functions(tree):
        (holder,) = ast.parse(f"class Of_{node.name}:\n    pass").body
        tree.body[tree.body.index(node)] = holder
        node.args.args.insert(0, ast.arg("self"))
        holder.body = [node]
    return tree


def _nested(tree):
    for node in _functions(tree):
        inner = ast.parse("def inner():\n    pass\nreturn inner()\n").body
        inner[0].body, node.body = node.body, inner
    return tree


def _in_try(tree):
    class Tried(ast.NodeTransformer):
        def visit_For(self, node):
            self.generic_visit(node)
            (tried,) = ast.parse("try:\n    pass\nfinally:\n    note = 1").body
            tried.body, node.body = node.body, [tried]
            return node

    return Tried().visit(tree)


_CHANGES = {
    "renamed": lambda tree: _Renamed().visit(tree),
    "in a method": _in_methods,
    "in an inner function": _nested,
    "body in an if": lambda tree: _Loops("if torch is not None").visit(tree),
    "body in a with": lambda tree: _Loops("with torch.enable_grad()").visit(tree),
    "body in a loop": lambda tree: _Loops("for again in range(2)").visit(tree),
    "loop in a loop": lambda tree: _Loops("for epoch in range(2)", whole=True).visit(tree),
    "loop in an if": lambda tree: _Loops("if torch is not None", whole=True).visit(tree),
    "body in a try": _in_try,
    "more between": lambda tree: _Spread().visit(tree),
    "all of it": lambda tree: _Spread().visit(
        _Loops("with torch.enable_grad()").visit(
            _Loops("for epoch in range(2)", whole=True).visit(_in_methods(_Renamed().visit(tree)))
        )
    ),
}
