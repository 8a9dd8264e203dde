"""GCS307: new layers that are trained through, and that no optimizer of the function is given."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.analyses.layers import kind_of
from gradcheck_lint.analyses.object_uses import uses_of
from gradcheck_lint.model.flow import Backward, Call, Forward, GradMode, Proof, Return, Step
from gradcheck_lint.model.function_class import names_in
from gradcheck_lint.model.knowledge import SAME_MODULE_METHODS
from gradcheck_lint.model.nearness import BACKWARD, STEPS
from gradcheck_lint.model.syntax import (
    bound_names,
    dotted_name,
    first_word,
    walk,
)
from gradcheck_lint.model.values import Kind, all_are, mentioned_by, sites, through_all
from gradcheck_lint.rules._rule import Violation
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from gradcheck_lint.model.module import FunctionModel
    from gradcheck_lint.model.scopes import ClassScope, FunctionScope

_HARMLESS: Final = frozenset(
    {"train", "eval", "to", "cuda", "cpu", "float", "double", "state_dict"}
)
"""Methods of a module that give its parameters to nobody."""
_FREEZING: Final = frozenset({"requires_grad", "requires_grad_"})


def left_out(function: FunctionModel) -> Iterator[Violation]:
    """Yield every optimizer of a function whose layers are differentiated and given to none."""
    yield from _names_left_out(function)
    yield from _attributes_left_out(function)


def _names_left_out(function: FunctionModel) -> Iterator[Violation]:
    """Yield the optimizers beside a new module that the file only runs, and differentiates.

    The module is followed into the functions and objects that it is handed to.
    """
    if not function.module.mentions(b"backward"):
        return
    optimizers = _optimizers_made(function)
    handed = [] if optimizers else _optimizers_handed_in(function)
    if not optimizers and not handed:
        return
    for path, made in _new_modules(function):
        # A later optimizer may be given the parameters of what holds the module.
        backward = _backward_through(function, path, in_holders=bool(handed))
        if backward is not None and handed:
            yield Violation(
                made,
                f"`{path}` is made after the optimizer, which has none of its parameters; "
                "backward() goes through them: they get gradients and are never trained",
                Severity.WARNING,
                f'`optimizer.add_param_group({{"params": {path}.parameters()}})`',
                ((handed[0], "the optimizer"), (backward.node, "gradients are computed here")),
            )
        elif backward is not None:
            yield _violation(path, made, optimizers[-1], backward)


def _optimizers_made(function: FunctionModel) -> list[cst.Call]:
    """Return the optimizers that a function makes, none where one may own anything."""
    scope = function.scope
    if "parameters" not in scope.words:
        return []
    made = [
        node
        for node in scope.nodes_with_lambdas
        if type(node) is cst.Call and function.module.makes_optimizer(node)
    ]
    return made if all(_is_of_known_parameters(node, function) for node in made) else []


def _optimizers_handed_in(function: FunctionModel) -> list[cst.Call]:
    """Return the one optimizer of a file, if it is made before a constructor that is handed it.

    What the constructor makes then comes too late for it, unless something is added to it.
    """
    scope, module = function.scope, function.module
    if scope.name.rpartition(".")[2] != "__init__":
        return []
    if module.mentions(b"add_param_group") or module.mentions(b"param_groups.append"):
        return []
    given = [function.bindings.get(name, frozenset()) for name in scope.parameters]
    if not any(all_are(values, Kind.OPTIMIZER) for values in given):
        return []
    every = [
        (node, each)
        for each in module.functions()
        for node in each.scope.nodes_with_lambdas
        if type(node) is cst.Call and module.makes_optimizer(node)
    ]
    return [
        node for node, maker in every if len(every) == 1 and _is_of_known_parameters(node, maker)
    ]


def _new_modules(function: FunctionModel) -> Iterator[tuple[str, cst.BaseExpression]]:
    """Yield the names, and attributes of self, that are given a module with weights made anew."""
    found: dict[str, list[cst.BaseExpression]] = {}
    for target, value in function.scope.assignments:
        path = dotted_name(target)
        if path is not None and not _is_moved(value, path):
            found.setdefault(path, []).append(value)
    for path, values in found.items():
        made = _unmoved(values[0])
        if (
            len(values) == 1
            and kind_of(made, function) == "module"
            and _is_followed(path, function)
        ):
            yield path, values[0]


def _unmoved(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return what makes the module of ``Net().to(device)``."""
    while (
        type(node) is cst.Call
        and type(node.func) is cst.Attribute
        and node.func.attr.value in _MOVING
    ):
        node = node.func.value
    return node


_MOVING: Final = SAME_MODULE_METHODS - {"requires_grad_"} | {"train"}


def _is_moved(value: cst.BaseExpression, path: str) -> bool:
    """Tell whether this is the object itself, moved: ``model.to(device)``."""
    return dotted_name(_unmoved(value)) == path


def _is_followed(path: str, function: FunctionModel) -> bool:
    """Tell whether all that can be done with a name, or an attribute of self, is in sight."""
    root, _, attribute = path.partition(".")
    if not attribute:
        return True
    owner = function.scope.owner
    if owner is None or root != function.scope.first_parameter or "." in attribute:
        return False
    scopes = function.module.scopes
    if any(base not in {"object", "ABC", "abc.ABC"} for base in owner.bases):
        return False
    if any(owner.name in other.bases for other in scopes.classes.values()):
        return False
    named = [
        node for node in function.module.nodes_of(cst.Attribute) if node.attr.value == attribute
    ]
    if any(first_word(dotted_name(node)) != root for node in named):
        return False
    own = {id(node) for method in owner.methods.values() for node in walk(method.node)}
    return all(id(node) in own for node in named)


def _backward_through(function: FunctionModel, path: str, *, in_holders: bool) -> Backward | None:
    """Return the backward() that goes through a module which the file only runs."""
    uses = list(uses_of(function, path))
    kinds = {use.how for use in uses}
    if "given" in kinds or ("eval" in kinds and "train" not in kinds):
        return None
    graph = _Graph({id(use.node) for use in uses if use.how == "run"}, in_holders=in_holders)
    for use in uses:
        graph.sites[id(use.function)] |= sites(use.function.bindings.get(use.path, frozenset()))
    for known in {id(use.function): use.function for use in uses}.values():
        graph.look_into(known)
    if not graph.recorded:
        return None
    return next(
        (
            event
            for known in list(function.module.functions())
            if function.module.near.has_itself(known.scope, BACKWARD)
            for event in known.events()
            if isinstance(event, Backward) and not event.partial and graph.is_in(event, known)
        ),
        None,
    )


class _Graph:
    """Where the graph of a module that is run goes: by function, and by what functions return."""

    def __init__(self, runs: set[int], *, in_holders: bool) -> None:
        self._runs, self._in_holders = runs, in_holders
        self._returned_by: set[int] = set()
        self.recorded: set[int] = set()
        self.sites: dict[int, frozenset[int]] = defaultdict(frozenset)

    def look_into(self, function: FunctionModel) -> None:
        """Note which calls of the module have a graph, and whether the function returns it."""
        for event in function.events():
            if isinstance(event, Forward) and event.mode is not GradMode.DISABLED:
                self.recorded |= self._runs & {id(event.node)}
            elif isinstance(event, Return) and through_all(event.values) & self.recorded:
                self._returned_by.add(id(function.scope))

    def is_in(self, backward: Backward, function: FunctionModel) -> bool:
        """Tell whether a backward() goes through the module."""
        through = through_all(backward.values)
        if through & (self.recorded | self.sites[id(function)]):
            return True
        flowed = mentioned_by(backward.values)
        return any(
            (
                self._in_holders
                and isinstance(event, Forward)
                and id(event.node) in through
                and event.mode is not GradMode.DISABLED
                and self._returned_by.issuperset(_forwards(event, function))
            )
            or (
                isinstance(event, Call)
                and id(event.function) in self._returned_by
                and not flowed.isdisjoint(sites(event.result))
            )
            for event in function.events()
        )


def _forwards(event: Forward, function: FunctionModel) -> set[int | None]:
    """Return the functions that run where an object of a class of the file is called."""
    scopes = function.module.scopes
    runs = (scopes.method(scopes.classes.get(value.name), "forward") for value in event.values)
    return {id(scope) if scope is not None else None for scope in runs} or {None}


def _violation(
    path: str, layer: cst.CSTNode, optimizer: cst.CSTNode, backward: Backward
) -> Violation:
    return Violation(
        optimizer,
        f"no optimizer is given the parameters of `{path}`, which backward() goes through: "
        "they get gradients and are never trained",
        Severity.WARNING,
        f"give them to the optimizer as well, or freeze them: `{path}.requires_grad_(False)`",
        ((layer, "it is made here"), (backward.node, "gradients are computed here")),
    )


def _attributes_left_out(function: FunctionModel) -> Iterator[Violation]:
    """Yield the optimizers that are given some attributes of a new module, and others not."""
    scope = function.scope
    if STEPS.isdisjoint(scope.words) or not function.module.near.has_itself(scope, BACKWARD):
        return
    events = list(function.events())
    steps = [event for event in events if isinstance(event, Step)]
    backwards = [event for event in events if isinstance(event, Backward)]
    if not steps or not backwards or any(step.proof is not Proof.PROVEN for step in steps):
        return
    made = [value.node for step in steps for value in step.values]
    if not all(all_are(step.values, Kind.OPTIMIZER) for step in steps):
        return
    if not all(_is_of_known_parameters(node, function) for node in made):
        return
    through = frozenset[int]().union(*(through_all(event.values) for event in backwards))
    seen: set[str] = set()
    for event in events:
        if not isinstance(event, Forward) or event.mode is GradMode.DISABLED:
            continue
        path = event.receiver
        if "." not in path or path in seen or id(event.node) not in through:
            continue
        seen.add(path)
        layer = _new_layer(function, path)
        if layer is None or not _is_only_run(function, path):
            continue
        optimizer = made[-1]
        assert optimizer is not None
        yield _violation(path, layer, optimizer, backwards[-1])


def _is_of_known_parameters(node: cst.CSTNode | None, function: FunctionModel) -> bool:
    """Tell whether an optimizer is made here of nothing that comes from outside of the file."""
    if type(node) is not cst.Call or not node.args:
        return False
    if not function.module.makes_optimizer(node):
        return False
    scope: FunctionScope | None = function.scope
    names = set[str]()
    while scope is not None:
        names.update(name.partition(".")[0] for name in function.module.function(scope).bindings)
        scope = scope.parent
    roots = _roots(node.args[0].value)
    return all(
        name in names or name in _BUILTINS or function.module.scopes.resolve_import(name)
        for name in roots
    )


_BUILTINS: Final = frozenset({"list", "filter", "map", "sorted", "reversed", "dict", "tuple"})


def _roots(node: cst.CSTNode) -> frozenset[str]:
    """Return the names that an expression reads, without those that it binds itself."""
    bound: set[str] = set()
    for inner in walk(node):
        if type(inner) is cst.CompFor:
            bound.update(bound_names(inner.target))
        elif type(inner) is cst.Param:
            bound.add(inner.name.value)
    return names_in(node) - bound


def _new_layer(function: FunctionModel, path: str) -> cst.BaseExpression | None:
    """Return the call that makes a layer with weights, of a name or of an attribute of one."""
    root, _, attribute = path.partition(".")
    values = function.bindings.get(root, frozenset())
    if len({value.site for value in values}) != 1 or "." in attribute:
        return None
    node = next(iter(values)).node
    if type(node) is not cst.Call:
        return None
    if not attribute:
        return node if kind_of(node, function) == "module" else None
    owner = function.module.scopes.classes.get(dotted_name(node.func) or "")
    return None if owner is None else _attribute_of(function, owner, attribute)


def _attribute_of(
    function: FunctionModel, owner: ClassScope, attribute: str
) -> cst.BaseExpression | None:
    """Return what a constructor of the file gives an attribute once, if that has weights."""
    maker = function.module.scopes.method(owner, "__init__")
    if maker is None or not function.module.scopes.derives_from(owner, "torch.nn."):
        return None
    if not _FREEZING.isdisjoint(maker.words):
        return None
    path = f"{maker.first_parameter}.{attribute}"
    found = [
        node.value
        for node in maker.nodes_of(cst.Assign)
        if dotted_name(node.targets[0].target) == path
    ]
    inside = function.module.function(maker)
    if len(found) != 1 or kind_of(found[0], inside) != "module":
        return None
    return found[0]


def _is_only_run(function: FunctionModel, path: str) -> bool:
    """Tell whether a name is called, moved and put into a mode, in the whole file, and no more."""
    root, _, attribute = path.partition(".")
    scopes, methods = function.module.scopes, set[str]()
    for value in function.bindings[root]:
        name = dotted_name(value.node.func) if type(value.node) is cst.Call else None
        for known in scopes.lineage(scopes.classes.get(name or "")):
            methods.update(known.methods)
    others = 0
    for node in walk(function.module.tree):
        if type(node) is cst.Name and node.value == root:
            others += 1
        elif type(node) is cst.Call:
            others -= _is_run(node, root, attribute, methods)
        elif type(node) is cst.AssignTarget:
            others -= type(node.target) is cst.Name and node.target.value == root
    return others == 0


def _is_run(node: cst.Call, root: str, attribute: str, methods: Collection[str]) -> bool:
    """Tell whether this calls the layer, another layer, or a harmless method of one of them."""
    name = dotted_name(node.func)
    if name is None or name.partition(".")[0] != root:
        return False
    rest = name.partition(".")[2]
    if not attribute:
        return rest == "" or rest in _HARMLESS
    first, _, method = rest.partition(".")
    if first == attribute:
        return method == "" or method in _HARMLESS
    return rest in _HARMLESS or bool(method) or (first not in methods and first not in _GIVING)


_GIVING: Final = frozenset({"", "parameters", "named_parameters", "children", "modules", "apply"})
