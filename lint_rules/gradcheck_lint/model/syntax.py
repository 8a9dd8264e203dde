"""Read libcst nodes: names, literals, arguments and children, without its visitors."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import libcst as cst

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SKIPPED = frozenset(
    [
        "leading_lines",
        "lpar",
        "rpar",
        "comma",
        "header",
        "footer",
        "lines_after_decorators",
        "semicolon",
        "dot",
        "colon",
        "lbracket",
        "rbracket",
        "lbrace",
        "rbrace",
        "equal",
        "trailing_whitespace",
        "indent",
    ]
)
_FIELDS: dict[type[cst.CSTNode], tuple[str, ...]] = {}


def semantic_fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    """Return the fields of a node type that mean something, leaving white space out."""
    known = _FIELDS.get(kind)
    if known is None:
        known = tuple(
            field.name
            for field in dataclasses.fields(kind)
            if "whitespace" not in field.name and field.name not in _SKIPPED
        )
        _FIELDS[kind] = known
    return known


# libcst's node types are abstract base classes, for which a negative isinstance() costs ten times
# what a look at the type does; a walk over a file asks hundreds of thousands of times.
_NODE, _SEQUENCE, _OTHER = 1, 2, 3
_SORTS: dict[type, int] = {}


def _sort_of(kind: type) -> int:
    if issubclass(kind, cst.CSTNode):
        sort = _NODE
    elif issubclass(kind, (list, tuple)):
        sort = _SEQUENCE
    else:
        sort = _OTHER
    _SORTS[kind] = sort
    return sort


ATOMS = frozenset({cst.Name, cst.Integer, cst.Float, cst.Imaginary, cst.SimpleString})
"""The types of nodes that have none below them, which half of all nodes are."""


def small_statements(body: cst.BaseSuite | cst.Module) -> Iterator[cst.BaseSmallStatement]:
    """Yield the simple statements of a block itself, those of ``if x: y = 1; z = 2`` as well."""
    for statement in body.body:
        if type(statement) is cst.SimpleStatementLine:
            yield from statement.body
        elif isinstance(statement, cst.BaseSmallStatement):
            yield statement


def child_list(node: cst.CSTNode) -> list[cst.CSTNode]:
    """Return the nodes directly below ``node`` that mean something, in source order."""
    known = _BELOW.get(type(node))
    if known is not None:
        return known(node)
    found: list[cst.CSTNode] = []
    fields = semantic_fields(type(node))
    if not fields:
        _BELOW[type(node)] = _nothing_below
    for name in fields:
        value = getattr(node, name)
        kind = type(value)
        sort = _SORTS.get(kind) or _sort_of(kind)
        if sort == _NODE:
            found.append(value)
        elif sort == _SEQUENCE:
            found.extend(
                item for item in value if (_SORTS.get(type(item)) or _sort_of(type(item))) == _NODE
            )
    return found


def _nothing_below(_: cst.CSTNode) -> list[cst.CSTNode]:
    return []


def _present(*nodes: cst.CSTNode | None) -> list[cst.CSTNode]:
    return [node for node in nodes if node is not None]


_BELOW: Final[dict[type[cst.CSTNode], Callable[[Any], list[cst.CSTNode]]]] = {
    **dict.fromkeys(ATOMS, _nothing_below),
    cst.Attribute: lambda node: [node.value, node.attr],
    cst.Call: lambda node: [node.func, *node.args],
    cst.Arg: lambda node: [node.value] if node.keyword is None else [node.value, node.keyword],
    cst.Subscript: lambda node: [node.value, *node.slice],
    cst.SubscriptElement: lambda node: [node.slice],
    cst.Index: lambda node: [node.value],
    cst.BinaryOperation: lambda node: [node.left, node.operator, node.right],
    cst.Tuple: lambda node: [*node.elements],
    cst.List: lambda node: [*node.elements],
    cst.Element: lambda node: [node.value],
    cst.SimpleStatementLine: lambda node: [*node.body],
    cst.IndentedBlock: lambda node: [*node.body],
    cst.Expr: lambda node: [node.value],
    cst.Comparison: lambda node: [node.left, *node.comparisons],
    cst.ComparisonTarget: lambda node: [node.operator, node.comparator],
    cst.UnaryOperation: lambda node: [node.operator, node.expression],
    cst.BooleanOperation: lambda node: [node.left, node.operator, node.right],
    cst.Return: lambda node: [] if node.value is None else [node.value],
    cst.Assign: lambda node: [*node.targets, node.value],
    cst.AssignTarget: lambda node: [node.target],
    cst.AugAssign: lambda node: [node.target, node.operator, node.value],
    cst.If: lambda node: _present(node.test, node.body, node.orelse),
    cst.Else: lambda node: [node.body],
    cst.FormattedString: lambda node: [*node.parts],
    cst.FormattedStringText: _nothing_below,
    cst.FormattedStringExpression: lambda node: [node.expression, *(node.format_spec or ())],
}
"""What lies below the commonest nodes, in a third of the time that a look at all fields takes."""


def children(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield the nodes directly below ``node`` that mean something, in source order."""
    return iter(child_list(node))


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield ``node`` and everything below it that means something, parents first."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        kind = type(current)
        if kind not in ATOMS:
            below = (_BELOW.get(kind) or child_list)(current)
            below.reverse()
            stack += below


def dotted_name(node: cst.CSTNode | None) -> str | None:
    """Return ``a.b.c`` for names and attributes of names, None for anything else."""
    parts: list[str] = []
    if type(node) is cst.Name:  # most are
        return node.value
    if type(node) is cst.Attribute and type(node.value) is cst.Name:
        return f"{node.value.value}.{node.attr.value}"
    while type(node) is cst.Attribute:
        parts.append(node.attr.value)
        node = node.value
    if type(node) is not cst.Name:
        return None
    parts.append(node.value)
    return ".".join(reversed(parts))


def decorator_name(node: cst.Decorator) -> str:
    """Return the last word of a decorator, called or not, "" for one that has no name."""
    named = node.decorator.func if type(node.decorator) is cst.Call else node.decorator
    return (dotted_name(named) or "").rpartition(".")[2]


def place_name(node: cst.CSTNode | None) -> str | None:
    """Return ``a.b["key"].c[0]`` for names, their attributes and items under literal keys."""
    name = dotted_name(node)
    if name is not None or node is None:
        return name
    # Types are compared here and below, since isinstance() is slow for abstract classes.
    if type(node) is cst.Attribute:
        base = place_name(node.value)
        return None if base is None else f"{base}.{node.attr.value}"
    if type(node) is cst.Subscript:
        base, key = place_name(node.value), literal_key(node)
        if base is None or key is None:
            return None
        return f"{base}[{key}]" if isinstance(key, int) else f'{base}["{key}"]'
    return None


def last_word(name: str | None) -> str:
    """Return the last word of a name that ``place_name`` has made: an item's key is its name."""
    if not name:
        return ""
    last = name.rpartition(".")[2] if not name.endswith("]") else name
    while last.endswith("]"):
        base, _, key = last[:-1].rpartition("[")
        if key.startswith('"'):
            return key[1:-1]
        last = base.rpartition(".")[2] if not base.endswith("]") else base
    return last


def first_word(name: str | None) -> str:
    """Return the name that the name of a place begins with."""
    return (name or "").partition(".")[0].partition("[")[0]


def boolean(node: cst.CSTNode | None) -> bool | None:
    """Return the truth of a ``True`` or ``False`` literal, None for anything else."""
    if type(node) is cst.Name and node.value in {"True", "False"}:
        return node.value == "True"
    return None


def is_none(node: cst.CSTNode | None) -> bool:
    """Tell whether this is the literal ``None``."""
    return type(node) is cst.Name and node.value == "None"


def integer(node: cst.CSTNode | None) -> int | None:
    """Return the value of an integer literal, None for anything else."""
    if type(node) is cst.UnaryOperation and type(node.operator) is cst.Minus:
        inner = integer(node.expression)
        return None if inner is None else -inner
    return int(node.value, 0) if type(node) is cst.Integer else None


def is_literal(node: cst.CSTNode | None) -> bool:
    """Tell whether this is a number or string that stands in the source."""
    kind = type(node)
    if kind is cst.UnaryOperation:
        return is_literal(node.expression)  # type: ignore[union-attr]
    if kind is cst.Name:
        return node.value in {"True", "False", "None"}  # type: ignore[union-attr]
    return kind in _LITERALS


_LITERALS = frozenset({cst.Integer, cst.Float, cst.SimpleString, cst.ConcatenatedString})


def keyword(call: cst.Call, name: str) -> cst.BaseExpression | None:
    """Return the expression passed as ``name=``, if there is one."""
    for argument in call.args:
        if argument.keyword is not None and argument.keyword.value == name:
            return argument.value
    return None


def positional(call: cst.Call) -> list[cst.BaseExpression]:
    """Return the positional arguments, without starred ones."""
    return [
        argument.value for argument in call.args if argument.keyword is None and not argument.star
    ]


def has_star(call: cst.Call) -> bool:
    """Tell whether arguments are passed as ``*args`` or ``**kwargs``."""
    return any(argument.star for argument in call.args)


def bound_names(target: cst.CSTNode) -> Iterator[str]:
    """Yield the dotted names that an assignment to ``target`` binds."""
    if type(target) is cst.Tuple or type(target) is cst.List:
        for element in target.elements:
            yield from bound_names(element.value)
    else:
        name = dotted_name(target)
        if name is not None:
            yield name


ASSIGNING: Final = frozenset({cst.Assign, cst.AnnAssign})
"""What ``assigned_once`` says something of."""


def assigned_once(
    node: cst.CSTNode,
) -> tuple[cst.BaseExpression, cst.BaseExpression] | tuple[None, None]:
    """Return the one target of an assignment and what it is given, annotated or not."""
    # Types are looked up, since isinstance() is slow for abstract classes.
    if type(node) is cst.Assign:
        return (node.targets[0].target, node.value) if len(node.targets) == 1 else (None, None)
    if type(node) is cst.AnnAssign and node.value is not None:
        return node.target, node.value
    return None, None


def assigned_pairs(
    node: cst.CSTNode,
) -> list[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Return the target of an assignment and its value, or those of ``a, b = c, d`` one by one."""
    target, value = assigned_once(node)
    return [] if target is None or value is None else pairs_of(target, value)


def pairs_of(
    target: cst.BaseExpression, value: cst.BaseExpression
) -> list[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Return a target and what it is given, or those of ``a, b`` and ``c, d`` one by one."""
    if (type(target) is not cst.Tuple and type(target) is not cst.List) or (
        type(value) is not cst.Tuple and type(value) is not cst.List
    ):
        return [(target, value)]
    elements = (*target.elements, *value.elements)
    if len(target.elements) != len(value.elements) or any(
        type(each) is cst.StarredElement for each in elements
    ):
        return [(target, value)]
    return [
        (one.value, other.value) for one, other in zip(target.elements, value.elements, strict=True)
    ]


def is_basic_index(node: cst.Subscript) -> bool:
    """Tell whether every index is an integer literal, a slice, ``...`` or None (so a view)."""
    for element in node.slice:
        index = element.slice
        if type(index) is cst.Slice:
            continue
        if type(index) is not cst.Index or index.star:
            return False
        value = index.value
        if integer(value) is None and not is_none(value) and type(value) is not cst.Ellipsis:
            return False
    return True


def literal_key(node: cst.Subscript) -> str | int | None:
    """Return the key of ``x["key"]`` and ``x[0]``, None for any other index."""
    if len(node.slice) != 1 or type(node.slice[0].slice) is not cst.Index:
        return None
    key = string_index(node)
    return key if key is not None else integer(node.slice[0].slice.value)


def string_index(node: cst.Subscript) -> str | None:
    """Return the key of ``x["key"]``, None for any other index."""
    if len(node.slice) == 1:
        index = node.slice[0].slice
        if type(index) is cst.Index and type(index.value) is cst.SimpleString:
            return plain_string(index.value)
    return None


def plain_string(node: cst.SimpleString) -> str | None:
    """Return the text of a string as keys are written, None for prefixes, escapes and so on.

    ``evaluated_value`` costs a hundred times as much, and leaves circles behind.
    """
    raw = node.value
    if raw[0] not in "'\"" or "\\" in raw or raw[:3] in {"'''", '"""'}:
        return None
    return raw[1:-1]
