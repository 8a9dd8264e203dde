"""What a statement tells by its form alone, whatever its names stand for."""

from __future__ import annotations

import re

import libcst as cst

from gradcheck_lint.model.syntax import boolean, bound_names, dotted_name, integer

__all__ = [
    "OPERATORS",
    "counter_of",
    "is_loader",
    "pattern_names",
    "runs_once",
    "static_truth",
    "targets",
    "terms",
]

OPERATORS: dict[type[cst.BaseAugOp], str] = {
    cst.AddAssign: "+=",
    cst.SubtractAssign: "-=",
    cst.MultiplyAssign: "*=",
    cst.DivideAssign: "/=",
    cst.FloorDivideAssign: "//=",
    cst.PowerAssign: "**=",
    cst.ModuloAssign: "%=",
}


_ELEMENTWISE = frozenset({cst.Add, cst.Subtract, cst.Multiply, cst.Divide})


def terms(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return the operands of a tree of ``+``, ``-``, ``*`` and ``/``."""
    # Types are compared, since isinstance() is slow for abstract classes.
    if type(node) is cst.BinaryOperation and type(node.operator) in _ELEMENTWISE:
        return [*terms(node.left), *terms(node.right)]
    return [node]


def static_truth(test: cst.BaseExpression) -> bool | None:
    """Return the truth of tests that are the same in every run that matters."""
    literal = boolean(test)
    if literal is not None:
        return literal
    if type(test) is cst.Integer:
        return bool(integer(test))
    if (dotted_name(test) or "").rpartition(".")[2] == "TYPE_CHECKING":
        return False
    if type(test) is cst.Comparison and dotted_name(test.left) == "__name__":
        return True
    return None


def counter_of(node: cst.For | cst.While) -> str | None:
    """Return the name that counts the iterations: by ``range()``, or first of ``enumerate()``."""
    if type(node) is not cst.For or type(node.iter) is not cst.Call:
        return None
    counts = dotted_name(node.iter.func)
    target: cst.BaseExpression = node.target
    if counts == "enumerate" and type(target) is cst.Tuple and target.elements:
        target = target.elements[0].value
    elif counts != "range":
        return None
    return target.value if type(target) is cst.Name else None


def is_loader(node: cst.BaseExpression) -> bool:
    """Tell whether this is a data loader by its name, or tqdm() or enumerate() of one."""
    while type(node) is cst.Call and node.args:
        if (dotted_name(node.func) or "").rpartition(".")[2] not in {"tqdm", "enumerate", "iter"}:
            return False
        node = node.args[0].value
    last = (dotted_name(node) or "").rpartition(".")[2].lower()
    return _LOADER_NAME.search(last) is not None


_LOADER_NAME = re.compile(
    r"loader|dataset|(?:^|_)(?:data|batches|dl|trainset|testset)$|^data_?iter"
)


def pattern_names(pattern: cst.MatchPattern) -> list[str]:
    """Return the names that a pattern binds as a whole."""
    if type(pattern) is cst.MatchAs and pattern.name is not None:
        return [pattern.name.value]
    return []


def targets(node: cst.For | cst.While) -> frozenset[str]:
    """Return the names that each iteration of a loop binds."""
    return frozenset(bound_names(node.target)) if type(node) is cst.For else frozenset()


def runs_once(node: cst.For | cst.While | cst.CompFor) -> bool:
    """Tell whether a loop is written so that it has at most one iteration."""
    if type(node) is cst.While:
        return boolean(node.test) is False
    iterated = node.iter  # type: ignore[union-attr]
    if type(iterated) is cst.List or type(iterated) is cst.Tuple:
        return len(iterated.elements) < 2  # noqa: PLR2004 - zero or one
    if type(iterated) is cst.Call and dotted_name(iterated.func) == "range":
        bounds = [integer(argument.value) for argument in iterated.args]
        if all(bound is not None for bound in bounds):
            return len(range(*[bound for bound in bounds if bound is not None])) < 2  # noqa: PLR2004
    return False
