"""Follow an object by its name through a file: what is done with it, also where it is handed in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from gradcheck_lint.analyses.layers import called_function
from gradcheck_lint.model.knowledge import SAME_MODULE_METHODS
from gradcheck_lint.model.syntax import ATOMS, bound_names, child_list, dotted_name, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import ClassScope, FunctionScope

__all__ = ["Use", "argument_for", "parents_of", "uses_of"]

_MOST_CALLS: Final = 4
_HARMLESS: Final = (SAME_MODULE_METHODS - {"requires_grad_"}) | {"state_dict", "zero_grad"}
"""Methods of a module that give its parameters to nobody."""
_LISTING: Final = frozenset({"parameters", "named_parameters", "buffers", "named_buffers"})
_MEASURING: Final = frozenset(
    {"sum", "any", "all", "len", "print", "isinstance", "type", "id", "max", "min"}
)
_READING: Final = frozenset(
    {"detach", "item", "norm", "shape", "size", "numel", "device", "dtype", "training", "grad"}
)


class Use(NamedTuple):
    """One thing that is done with an object, and the function that does it.

    ``how`` is "run" where it is called, "eval" and "train" for its modes, "harmless" for what gives
    its parameters to nobody, "bound", "returned", "followed" where a function of the file gets it,
    and "given" for all that might give its parameters to an optimizer. ``path`` is its name there.
    """

    how: str
    node: cst.CSTNode
    function: FunctionModel
    path: str


def uses_of(function: FunctionModel, path: str) -> Iterator[Use]:
    """Yield what a file does with the object that a name, or an attribute of self, stands for.

    Calls of functions of the file are followed, and so is another name for it.
    """
    yield from _uses(function, path, 0, set())


def _uses(function: FunctionModel, path: str, depth: int, seen: set[object]) -> Iterator[Use]:
    root, _, attribute = path.partition(".")
    scope = function.scope
    if attribute and scope.owner is not None and root == scope.first_parameter:
        for method in _methods(scope.owner):
            own = f"{method.first_parameter}.{attribute}"
            yield from _uses_in(function.module.function(method), own, depth, seen)
    else:
        yield from _uses_in(function, path, depth, seen)


def _methods(owner: ClassScope) -> list[FunctionScope]:
    return list(owner.methods.values())


def _uses_in(function: FunctionModel, path: str, depth: int, seen: set[object]) -> Iterator[Use]:
    key = (id(function.scope), path)
    if key in seen or depth > _MOST_CALLS:
        return
    seen.add(key)
    parents = parents_of(function)
    for node in _reads(function.scope.node, path):
        yield from _use(node, parents, function, depth, seen)


def parents_of(function: FunctionModel) -> dict[int, cst.CSTNode]:
    """Return the node above each node of a function, by ``id``."""
    memo = function.module.memo
    key = ("parents", id(function.scope))
    if key not in memo:
        nodes = walk(function.scope.node)
        memo[key] = {id(child): node for node in nodes for child in child_list(node)}
    found: dict[int, cst.CSTNode] = memo[key]
    return found


def _reads(around: cst.CSTNode, path: str) -> Iterator[cst.CSTNode]:
    """Yield where a dotted name stands, without functions that give it another meaning."""
    root = path.partition(".")[0]
    stack = [around]
    while stack:
        node = stack.pop()
        kind = type(node)
        if kind in _FUNCTIONS and node is not around and root in _bound_in(node):
            continue
        if (kind is cst.Name or kind is cst.Attribute) and dotted_name(node) == path:
            yield node
        elif type(node) is cst.Attribute or type(node) is cst.Arg:
            stack.append(node.value)  # the name after the dot, or of the keyword, is none
        elif kind not in ATOMS:
            stack += child_list(node)


_FUNCTIONS: Final = frozenset({cst.FunctionDef, cst.Lambda})


def _bound_in(node: cst.CSTNode) -> set[str]:
    """Return the names that a function inside another one binds."""
    bound: set[str] = set()
    for inner in walk(node):
        if type(inner) is cst.Param:
            bound.add(inner.name.value)
        elif isinstance(inner, (cst.AssignTarget, cst.For)):
            bound.update(bound_names(inner.target))
    return bound


def _use(
    node: cst.CSTNode,
    parents: dict[int, cst.CSTNode],
    function: FunctionModel,
    depth: int,
    seen: set[object],
) -> Iterator[Use]:
    path = dotted_name(node) or ""
    whole, parent, chain = node, parents.get(id(node)), []
    while type(parent) is cst.Attribute and parent.value is whole:
        chain.append(parent.attr.value)
        whole, parent = parent, parents.get(id(parent))
    if type(parent) is cst.Call and parent.func is whole:
        yield Use(_called(chain, parent, parents, function), parent, function, path)
        return
    alias = _alias(whole, parent)
    if not chain and type(parent) is cst.Arg:
        call = parents.get(id(parent))
        assert type(call) is cst.Call
        followed = _in_callee(parent, call, function)
        if followed is not None:
            yield Use("followed", call, function, path)
            yield from _uses(*followed, depth + 1, seen)
        else:
            how = "harmless" if _is_measuring(call, function) else "given"
            yield Use(how, call, function, path)
    elif not chain and alias is not None:
        yield Use("followed", node, function, path)
        yield from _uses(function, alias, depth, seen)
    else:
        yield Use(_read(chain, whole, parent, parents), node, function, path)


def _alias(whole: cst.CSTNode, parent: cst.CSTNode | None) -> str | None:
    """Return the other name that an assignment gives to an object."""
    if type(parent) is not cst.Assign or parent.value is not whole or len(parent.targets) > 1:
        return None
    return dotted_name(parent.targets[0].target)


def _read(
    chain: list[str],
    whole: cst.CSTNode,
    parent: cst.CSTNode | None,
    parents: dict[int, cst.CSTNode],
) -> str:
    """Tell what is done with an object that is neither called nor handed on by its name."""
    if type(parent) is cst.Expr:
        return "harmless"
    if chain:
        return "harmless" if chain[-1] in _READING else "given"
    if isinstance(parent, (cst.AssignTarget, cst.AnnAssign)) and parent.target is whole:
        return "bound"
    if isinstance(
        parent, (cst.Param, cst.FunctionDef, cst.Comparison, cst.ComparisonTarget, cst.If)
    ):
        return "harmless"
    return _put_into(whole, parents)


def _called(
    chain: list[str], call: cst.Call, parents: dict[int, cst.CSTNode], function: FunctionModel
) -> str:
    """Tell what calling an object, or a method of it or of a part of it, does."""
    if not chain:
        return "run"
    last = chain[-1]
    if last in {"train", "eval"}:
        return last
    if last in _HARMLESS or last in _READING:
        return "harmless"
    if last in _LISTING:
        return "harmless" if _only_measures(call, parents, function) else "given"
    return "given"


def _only_measures(
    call: cst.Call, parents: dict[int, cst.CSTNode], function: FunctionModel
) -> bool:
    """Tell whether parameters are counted, clipped or averaged there, and go nowhere else."""
    node: cst.CSTNode | None = call
    while node is not None and not isinstance(node, cst.BaseSmallStatement):
        node = parents.get(id(node))
        if type(node) is cst.Call:
            name = dotted_name(node.func) or ""
            resolved = function.module.scopes.resolve_import(name) or name
            if name in _MEASURING or "clip_grad" in resolved:
                return True
            if function.module.makes_optimizer(node):
                return False
            if name == "zip":
                loop = parents.get(id(node))
                return type(loop) is cst.For and not _touches_gradients(loop)
    return False


def _touches_gradients(loop: cst.For) -> bool:
    """Tell whether a loop does more than to copy or average weights: with gradients it may step."""
    return any(
        type(node) is cst.Attribute and node.attr.value in {"grad", "_grad", "requires_grad"}
        for node in walk(loop.body)
    )


def _is_measuring(call: cst.Call, function: FunctionModel) -> bool:
    name = dotted_name(call.func) or ""
    resolved = function.module.scopes.resolve_import(name) or name
    return name in _MEASURING or resolved == "copy.deepcopy"


def _in_callee(
    argument: cst.Arg, call: cst.Call, function: FunctionModel
) -> tuple[FunctionModel, str] | None:
    """Return the function of the file that is given an argument, and the argument's name there."""
    called = called_function(call, function)
    owner = function.module.scopes.classes.get(dotted_name(call.func) or "")
    if called is None and owner is not None:
        called = function.module.scopes.method(owner, "__init__")
    parameter = None if called is None else _parameter(argument, call, called)
    if called is None or parameter is None:
        return None
    return function.module.function(called), parameter


def _parameter(argument: cst.Arg, call: cst.Call, called: FunctionScope) -> str | None:
    """Return the name that an argument has in the function that is called."""
    if argument.star or type(called.node) is not cst.FunctionDef:
        return None
    given = called.node.params
    names = [param.name.value for param in (*given.posonly_params, *given.params)]
    if argument.keyword is not None:
        known = {*names, *(param.name.value for param in given.kwonly_params)}
        return argument.keyword.value if argument.keyword.value in known else None
    decorated = {dotted_name(each.decorator) for each in called.node.decorators}
    if called.owner is not None and "staticmethod" not in decorated:
        names = names[1:]
    place = next(index for index, each in enumerate(call.args) if each is argument)
    if any(each.star for each in call.args[:place]) or place >= len(names):
        return None
    return names[place]


def argument_for(
    parameter: str, call: cst.Call, called: FunctionScope
) -> cst.BaseExpression | None:
    """Return what a call gives a parameter of a function of the file."""
    for argument in call.args:
        if _parameter(argument, call, called) == parameter:
            return argument.value
    return None


def _put_into(node: cst.CSTNode, parents: dict[int, cst.CSTNode]) -> str:
    """Tell what is done with a list or a tuple that a name stands in, or with the name itself."""
    parent = parents.get(id(node))
    while isinstance(parent, (cst.Tuple, cst.List, cst.Dict, cst.Element, cst.DictElement)):
        parent = parents.get(id(parent))
    if type(parent) is cst.AssignTarget:
        return "bound"
    return "returned" if type(parent) is cst.Return else "given"
