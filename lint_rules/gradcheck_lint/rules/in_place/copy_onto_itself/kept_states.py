"""Find state dicts that are kept by reference, and loaded into the same model or saved later."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.analyses.layers import called_function
from gradcheck_lint.model.nearness import BACKWARD
from gradcheck_lint.model.scopes import FunctionScope
from gradcheck_lint.model.syntax import (
    assigned_pairs,
    boolean,
    dotted_name,
    keyword,
    last_word,
    place_name,
    plain_string,
    string_index,
    walk,
)
from gradcheck_lint.rules._rule import Violation
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel, ModuleModel
    from gradcheck_lint.model.scopes import ClassScope

__all__ = ["kept_states", "owner_of_state", "without_copy"]


@dataclass(frozen=True, slots=True)
class _Load:
    """``owner.load_state_dict(state)``, and where it is among the nodes of its function.

    ``owner`` is None of ``torch.save(state)``.
    """

    scope: FunctionScope
    index: int
    node: cst.Call | cst.For
    owner: str | None
    state: str


def kept_states(function: FunctionModel) -> Iterator[Violation]:
    """Yield every ``best = model.state_dict()`` that is loaded into its model, or saved, later."""
    module, scope = function.module, function.scope
    if _KEEPING.isdisjoint(scope.words):
        return
    nodes = function.scope.nodes
    for index, node in enumerate(nodes):
        for filled, owner, value in _filled(node):
            load = _loaded_later(function, index, filled, owner)
            if load is not None:
                yield _kept_by_reference(module, value, owner, load)
        for target, value in assigned_pairs(node):
            name = place_name(target)
            for owner, key in _states_in(value, module):
                kept = name if name is None or key is None else f'{name}["{key}"]'
                load = None if kept is None else _loaded_later(function, index, kept, owner)
                if load is not None and not _is_changed(module, function, name or ""):
                    yield _kept_by_reference(module, value, owner, load)


_KEEPING: Final = frozenset({"state_dict", "parameters", "named_parameters"})


def _filled(node: cst.CSTNode) -> Iterator[tuple[str, str, cst.BaseExpression]]:
    """Yield a dictionary that a loop fills with the tensors of a model, the model, and how."""
    owner = _owner_of_items(node.iter) if type(node) is cst.For else None
    if owner is None:
        return
    names = {each.value for each in walk(node.target) if type(each) is cst.Name}  # type: ignore[attr-defined]
    for inner in walk(node.body):  # type: ignore[attr-defined]
        for target, value in assigned_pairs(inner):
            kept = place_name(target.value) if type(target) is cst.Subscript else None
            is_own = any(type(each) is cst.Name and each.value in names for each in walk(value))
            if kept is not None and is_own and _has_same_memory(value):
                yield kept, owner, value


def _kept_by_reference(
    module: ModuleModel, value: cst.CSTNode, owner: str, load: _Load
) -> Violation:
    is_replaced = module.matches(_REPLACES_MEMORY)
    is_moved = _is_moved(value) and module.matches(_MOVES_MODELS)
    effect = "to load it copies each tensor onto itself"
    if load.owner is None:
        effect = "what is saved later are the last weights"
    message = (
        f"what is kept here of `{owner}` is the memory of its parameters: it changes with each "
        f"step, and {effect}"
    )
    if is_replaced:
        message += "; unless the parameters were given other memory in between, as by `.data =`"
    if _is_moved(value):
        message += (
            "; `cpu()` returns a tensor of the CPU as it is, and copies from other devices alone"
        )
    return Violation(
        value,
        message,
        Severity.NOTE if is_replaced or is_moved else Severity.WARNING,
        f"keep `copy.deepcopy({owner}.state_dict())`",
        ((load.node, "saved here" if load.owner is None else "loaded here"),),
    )


_REPLACES_MEMORY: Final = re.compile(
    rb"(?<!self)\.data\s*=(?!=)|vector_to_parameters|assign\s*=\s*True"
)


_MOVES_MODELS: Final = re.compile(rb"\.cuda\(|\.to\(|accelerat|fabric|device_map", re.IGNORECASE)


def _is_moved(value: cst.CSTNode) -> bool:
    """Return whether what is kept is moved to the CPU, which copies it where it was elsewhere."""
    return any(
        type(node) is cst.Attribute and node.attr.value in _MOVES_TO_CPU for node in walk(value)
    )


_MOVES_TO_CPU: Final = frozenset({"cpu", "to"})
_SAME_MEMORY: Final = _MOVES_TO_CPU | {"detach", "data", "numpy", "contiguous", "float", "view_as"}


def _states_in(value: cst.BaseExpression, module: ModuleModel) -> Iterator[tuple[str, str | None]]:
    """Yield the models whose state a value is, by reference, and the key it has in a dictionary."""
    owner = owner_of_state(value, module)
    if owner is not None:
        yield owner, None
    elif type(value) is cst.Dict:
        for element in value.elements:
            if type(element) is cst.DictElement and type(element.key) is cst.SimpleString:
                owner, key = owner_of_state(element.value, module), plain_string(element.key)
                if owner is not None and key is not None:
                    yield owner, key
    elif type(value) is cst.Call and dotted_name(value.func) == "dict":
        for argument in value.args:
            owner = owner_of_state(argument.value, module)
            if owner is not None and argument.keyword is not None:
                yield owner, argument.keyword.value


def owner_of_state(value: cst.BaseExpression, module: ModuleModel) -> str | None:
    """Return ``model`` of ``model.state_dict()``, also where the dictionary alone is copied."""
    while type(value) is cst.Call:
        if type(value.func) is cst.Attribute:
            method = value.func.attr.value
            if method in _LISTING:
                return place_name(value.func.value) if not value.args else None
            if method == "copy" and not value.args:
                value = value.func.value
                continue
        name = module.scopes.resolve_import(dotted_name(value.func) or "")
        is_shallow = name in _SHALLOW or dotted_name(value.func) in {"dict", "list", "tuple"}
        if not is_shallow or len(value.args) != 1 or value.args[0].keyword is not None:
            return None
        value = value.args[0].value
    is_rebuilt = isinstance(value, (cst.DictComp, cst.ListComp))
    return _owner_of_rebuilt(value) if is_rebuilt else None  # type: ignore[arg-type]


_LISTING: Final = frozenset({"state_dict", "named_parameters"})


_SHALLOW: Final = frozenset({"copy.copy", "collections.OrderedDict"})


def _owner_of_rebuilt(value: cst.DictComp | cst.ListComp) -> str | None:
    """Return ``model`` of ``{k: v for k, v in model.state_dict().items()}``, or of a list."""
    element = value.value if isinstance(value, cst.DictComp) else value.elt
    return _owner_of_items(value.for_in.iter) if _has_same_memory(element) else None


def _has_same_memory(element: cst.BaseExpression) -> bool:
    """Return whether this is a name, detached or moved to where it may be: no copy."""
    while isinstance(element, (cst.Call, cst.Attribute)):
        called = element.func if type(element) is cst.Call else element
        if type(called) is not cst.Attribute or called.attr.value not in _SAME_MEMORY:
            return False
        if called.attr.value == "to" and not _is_to_cpu(element):
            return False
        element = called.value
    return type(element) is cst.Name


def _owner_of_items(items: cst.BaseExpression) -> str | None:
    """Return ``model`` of ``model.parameters()`` and of ``model.state_dict().items()``."""
    if type(items) is not cst.Call or type(items.func) is not cst.Attribute:
        return None
    if items.func.attr.value in {"parameters", "named_parameters"}:
        return dotted_name(items.func.value)
    if items.func.attr.value not in {"items", "values"}:
        return None
    state = items.func.value
    if type(state) is cst.Call and last_word(dotted_name(state.func)) == "state_dict":
        assert type(state.func) is cst.Attribute
        return dotted_name(state.func.value)
    return None


def _is_to_cpu(node: cst.BaseExpression) -> bool:
    given = node.args if type(node) is cst.Call else ()
    is_one = len(given) == 1 and type(given[0].value) is cst.SimpleString
    return is_one and plain_string(given[0].value) == "cpu"  # type: ignore[arg-type]


def _loads(module: ModuleModel) -> list[_Load]:
    """Return every load of a state in the file that goes by a name."""
    if "loads of states" not in module.memo:
        module.memo["loads of states"] = [
            _Load(function.scope, index, node, owner, state)
            for function in module.functions()
            for index, node in enumerate(function.scope.nodes)
            if type(node) is cst.Call
            and type(node.func) is cst.Attribute
            and node.func.attr.value == "load_state_dict"
            and node.args
            and boolean(keyword(node, "assign")) is not True
            and (owner := dotted_name(node.func.value)) is not None
            and (state := place_name(without_copy(node.args[0].value))) is not None
        ]
        module.memo["loads of states"] += [
            _Load(function.scope, index, node, owner, state)
            for function in module.functions()
            for index, node in enumerate(function.scope.nodes)
            if type(node) is cst.For
            for owner, state in _copied_back(node)
        ]
        module.memo["loads of states"] += [
            _Load(function.scope, index, node, None, state)
            for function in module.functions()
            for index, node in enumerate(function.scope.nodes)
            if type(node) is cst.Call
            and node.args
            and module.scopes.resolve_import(dotted_name(node.func) or "") == "torch.save"
            for state in _saved(node.args[0].value)
        ]
    found: list[_Load] = module.memo["loads of states"]
    return found


def _saved(value: cst.BaseExpression) -> Iterator[str]:
    """Yield the names of what is written, alone or in a dictionary."""
    values = [value]
    if type(value) is cst.Dict:
        values = [element.value for element in value.elements]
    for each in values:
        name = place_name(without_copy(each))
        if name is not None:
            yield name


def _copied_back(loop: cst.For) -> Iterator[tuple[str, str]]:
    """Yield a model and what a loop copies into its parameters, one by one."""
    over = loop.iter
    if type(over) is not cst.Call or dotted_name(over.func) != "zip" or len(over.args) != _PAIR:
        return
    owners = [_owner_of_items(argument.value) for argument in over.args]
    places = [place_name(argument.value) for argument in over.args]
    copies = any(
        type(node) is cst.Attribute and node.attr.value == "copy_" for node in walk(loop.body)
    )
    for owner, state in ((owners[0], places[1]), (owners[1], places[0])):
        if copies and owner is not None and state is not None:
            yield owner, state


_PAIR: Final = 2


def without_copy(state: cst.BaseExpression) -> cst.BaseExpression:
    """Return what is copied when it is loaded, which is too late."""
    is_copied = type(state) is cst.Call and len(state.args) == 1
    if is_copied and last_word(dotted_name(state.func)) in {"deepcopy", "copy"}:  # type: ignore[attr-defined]
        return state.args[0].value  # type: ignore[attr-defined,no-any-return]
    return state


def _loaded_later(function: FunctionModel, index: int, kept: str, owner: str) -> _Load | None:
    """Return the load of a state into the model that it is of, after that was trained."""
    for load in _loads(function.module):
        if load.owner is None:
            if load.state == kept and _saves_another(function, index, load, owner):
                return load
        elif load.scope is function.scope:
            if (load.state, load.owner) == (kept, owner) and _trains_between(function, index, load):
                return load
        elif (
            "." in kept
            and _is_of_same(function.scope, load, kept, owner)
            and _is_made_once(function, owner)
        ):
            return load
    return None


def _saves_another(function: FunctionModel, index: int, save: _Load, owner: str) -> bool:
    """Return whether a state that is kept where it is the best is saved after other steps.

    One that is kept in each turn, or by the number of the turn, may be that of the last.
    """
    nodes = function.scope.nodes
    kept = nodes[index]
    loops = [node for node in nodes if isinstance(node, (cst.For, cst.While)) and _has(node, kept)]
    counted = {
        name.value
        for loop in loops
        if type(loop) is cst.For
        for name in walk(loop.target)
        if type(name) is cst.Name
    }
    if not any(
        type(node) is cst.If and _has(node.body, kept) and _compares(node.test, counted)
        for node in nodes
    ):
        return False
    if save.scope is not function.scope:
        is_own = function.scope.owner is not None and save.scope.owner is function.scope.owner
        return is_own and "." in save.state and _is_made_once(function, owner)
    is_after = any(not _has(loop, save.node) for loop in loops) and index < save.index
    return is_after and _trains_between(function, index, replace(save, owner=owner))


def _has(node: cst.CSTNode, inner: cst.CSTNode) -> bool:
    return any(each is inner for each in walk(node))


def _compares(test: cst.BaseExpression, counted: set[str]) -> bool:
    """Return whether a test asks which of two is greater, of what no loop counts."""
    orders = (cst.LessThan, cst.GreaterThan, cst.LessThanEqual, cst.GreaterThanEqual)
    names = {node.value for node in walk(test) if type(node) is cst.Name}
    return names.isdisjoint(counted) and any(isinstance(node, orders) for node in walk(test))


def _trains_between(function: FunctionModel, index: int, load: _Load) -> bool:
    """Return whether the model that is kept at ``index`` is trained on, and not made anew."""
    nodes, kept = function.scope.nodes, function.scope.nodes[index]
    loops = [known for known in nodes if isinstance(known, (cst.For, cst.While))]
    around = [{id(inner) for inner in walk(loop)} for loop in loops]
    carried = [inside for inside in around if id(kept) in inside]
    leads = next((inside for inside in carried if id(load.node) not in inside), None)
    common = next((inside for inside in reversed(carried) if id(load.node) in inside), None)
    if index < load.index:
        between = [*nodes[index : load.index]]
        if leads is not None:
            between = [*between, *(known for known in nodes if id(known) in leads)]
    elif common is not None:
        between = [known for known in nodes if id(known) in common]
    else:
        return False
    before = nodes[min(index, load.index) : load.index]
    if any(_makes_anew(known, load.owner) for known in before):
        return False
    if index > load.index and any(_makes_anew(known, load.owner) for known in between):
        return False
    return any(_may_train(known, load, function) for known in between)


def _makes_anew(node: cst.CSTNode, owner: str | None) -> bool:
    return any(dotted_name(target) == owner for target, _ in assigned_pairs(node))


def _may_train(node: cst.CSTNode, load: _Load, function: FunctionModel) -> bool:
    """Return whether a call steps an optimizer, or changes the model in another way."""
    if type(node) is not cst.Call or node is load.node:
        return False
    name = dotted_name(node.func) or ""
    method = last_word(name)
    if method == "step" or (method == "load_state_dict" and name.startswith(f"{load.owner}.")):
        return True
    called = called_function(node, function)
    if called is not None and function.module.near.has(called, BACKWARD):
        return True
    return called is None and _TRAINS.search(method.lower()) is not None and method != "train"


_TRAINS: Final = re.compile(r"train|fit|finetune|adapt")


def _is_of_same(scope: FunctionScope, load: _Load, kept: str, owner: str) -> bool:
    """Return whether another function loads what an attribute keeps, into the same model."""
    if scope.owner is not None and load.scope.owner is scope.owner:
        return (load.state, load.owner) == (kept, owner)
    return (
        scope.owner is not None
        and owner in scope.parameters
        and last_word(load.state) == last_word(kept)
        and last_word(load.owner or "") == owner
        and _KEEPS_BEST.search(last_word(kept)) is not None
    )


_KEEPS_BEST: Final = re.compile(r"best|backup|orig|cache|snapshot|early|old|prev|state|weight")


def _is_made_once(function: FunctionModel, owner: str) -> bool:
    """Return whether a model that an object holds is not made anew by a method of its class."""
    if "." not in owner:
        return True
    module, kept_by = function.module, function.scope.owner
    family = {id(known) for known in module.scopes.lineage(kept_by)}
    made = sum(
        _makes_anew(node, owner)
        for other in module.functions()
        if kept_by is None or _is_of_family(other, kept_by, family)
        for node in other.scope.nodes
    )
    return made <= 1


def _is_of_family(function: FunctionModel, kept_by: ClassScope, family: set[int]) -> bool:
    """Return whether this is a method of a class, of its bases or of what derives from it."""
    owner = function.scope.owner
    lineage = function.module.scopes.lineage(owner)
    return owner is not None and (id(owner) in family or any(one is kept_by for one in lineage))


def _is_changed(module: ModuleModel, function: FunctionModel, kept: str) -> bool:
    """Return whether entries of what is kept are set, or it is given a copy of itself."""
    is_own = "." in kept
    for other in module.functions() if is_own else [function]:
        for node in other.scope.nodes:
            if type(node) is cst.Call and type(node.func) is cst.Attribute:
                is_change = node.func.attr.value in {"update", "pop", "setdefault"}
                if is_change and place_name(node.func.value) == kept:
                    return True
            for target, value in assigned_pairs(node):
                if type(target) is cst.Subscript and place_name(target.value) == kept:
                    if string_index(target) is None:
                        return True
                elif place_name(target) == kept and any(
                    place_name(each) == kept for each in walk(value)
                ):
                    return True
    return False
