"""GCS307: new layers that are trained through, and that no optimizer of the function is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.analyses.layers import kind_of
from gradcheck_lint.model.flow import Backward, Forward, GradMode, Proof, Step
from gradcheck_lint.model.function_class import body_of, names_in
from gradcheck_lint.model.nearness import BACKWARD, STEPS
from gradcheck_lint.model.syntax import bound_names, dotted_name, walk
from gradcheck_lint.model.values import Kind, all_are, through_all
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
    """Yield every optimizer that steps where layers are new, differentiated and given to none."""
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
        if path in seen or id(event.node) not in through:
            continue
        seen.add(path)
        layer = _new_layer(function, path)
        if layer is None or not _is_only_run(function, path):
            continue
        optimizer = made[-1]
        assert optimizer is not None
        yield Violation(
            optimizer,
            f"no optimizer is given the parameters of `{path}`, which backward() goes through: "
            "they get gradients and are never trained",
            Severity.WARNING,
            f"give them to the optimizer as well, or freeze them: `{path}.requires_grad_(False)`",
            ((layer, "it is made here"), (backwards[-1].node, "gradients are computed here")),
        )


def _is_of_known_parameters(node: cst.CSTNode | None, function: FunctionModel) -> bool:
    """Tell whether an optimizer is made here of nothing that comes from outside of the file."""
    if not isinstance(node, cst.Call) or not node.args:
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
        if isinstance(inner, cst.CompFor):
            bound.update(bound_names(inner.target))
        elif isinstance(inner, cst.Param):
            bound.add(inner.name.value)
    return names_in(node) - bound


def _new_layer(function: FunctionModel, path: str) -> cst.BaseExpression | None:
    """Return the call that makes a layer with weights, of a name or of an attribute of one."""
    root, _, attribute = path.partition(".")
    values = function.bindings.get(root, frozenset())
    if len({value.site for value in values}) != 1 or "." in attribute:
        return None
    node = next(iter(values)).node
    if not isinstance(node, cst.Call):
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
        for node in body_of(maker)
        if isinstance(node, cst.Assign) and dotted_name(node.targets[0].target) == path
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
        name = dotted_name(value.node.func) if isinstance(value.node, cst.Call) else None
        for known in scopes.lineage(scopes.classes.get(name or "")):
            methods.update(known.methods)
    others = 0
    for node in walk(function.module.tree):
        if isinstance(node, cst.Name) and node.value == root:
            others += 1
        elif isinstance(node, cst.Call):
            others -= _is_run(node, root, attribute, methods)
        elif isinstance(node, cst.AssignTarget):
            others -= isinstance(node.target, cst.Name) and node.target.value == root
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
