"""GCS414: a copy of a network that is trained, or a part of it, is never brought up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.analyses.copies import Copy, Follow, copies_in, follows, mentions_of, unmoved
from gradcheck_lint.analyses.object_uses import parents_of
from gradcheck_lint.model.syntax import boolean, dotted_name, keyword, last_word, walk
from gradcheck_lint.model.values import Kind
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_lint.analyses.copies import Mention
    from gradcheck_lint.model.module import FunctionModel, ModuleModel
    from gradcheck_lint.model.scopes import ClassScope


class CopyLeftBehind(Rule):
    """One of several copies is not brought up to date, or not the statistics of its batch norm."""

    entry = catalogue.COPY_LEFT_BEHIND

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield what brings up to date less than was copied."""
        words = function.scope.words
        if "deepcopy" not in words and "load_state_dict" not in words and "zip" not in words:
            return
        copies = copies_in(function)
        if not copies:
            return
        repeated = {copy.name: _repeated(copy, function) for copy in copies}
        for copy in copies:
            known = repeated[copy.name]
            if known:
                yield from _without_statistics(copy, known, function)
            else:
                followed = [(other, repeated[other.name]) for other in copies if other is not copy]
                yield from _left_out(copy, followed, function)


def _repeated(copy: Copy, function: FunctionModel) -> list[tuple[Follow, FunctionModel]]:
    """Return what brings a copy up to date after it was made."""
    is_own = "." in copy.name
    word = last_word(copy.name)
    found = []
    for other in list(function.module.functions()) if is_own else [function]:
        if word not in other.scope.words or (is_own and other is function):
            continue
        for follow in follows(other):
            is_it = last_word(follow.copy) == word and ("." in follow.copy) == is_own
            if is_it and (is_own or _is_in_loop(follow.node, function)):
                found.append((follow, other))
    return found


def _is_in_loop(node: cst.CSTNode, function: FunctionModel) -> bool:
    parents = parents_of(function)
    above = parents.get(id(node))
    while above is not None and not isinstance(above, (cst.For, cst.While)):
        above = parents.get(id(above))
    return above is not None


def _left_out(
    copy: Copy,
    others: Sequence[tuple[Copy, list[tuple[Follow, FunctionModel]]]],
    function: FunctionModel,
) -> Iterator[Violation]:
    """Yield what brings a copy up to date that is of one kind with this one."""
    kin = [(other, known) for other, known in others if known and _are_kin(copy, other)]
    if not kin:
        return
    mentions = mentions_of(copy, function)
    if mentions is None or not any(each.how == "run" for each in mentions):
        return
    if any(each.how == "used" for each in mentions):
        return
    if sum(each.how == "made" for each in mentions) > 1 or _is_kept_still(copy, function):
        return
    other, known = kin[0]
    yield Violation(
        _place(known, other, copy),
        f"`{copy.name}` is a copy of `{copy.original}`, as `{other.name}` is of "
        f"`{other.original}`, and this one alone is brought up to date: the other keeps the "
        "values of the beginning",
        Severity.WARNING,
        f"do the same with `{copy.name}` and `{copy.original}`",
        ((copy.node, "copied here, and never again"),),
    )


def _place(known: list[tuple[Follow, FunctionModel]], followed: Copy, copy: Copy) -> cst.CSTNode:
    """Return the statement that names what is brought up to date, if it is in this file."""
    word = last_word(followed.name)
    named = [
        follow.node
        for follow, place in known
        if not place.scope.linked
        and any(type(each) is cst.Name and each.value == word for each in walk(follow.node))
    ]
    return named[0] if named else copy.node


def _are_kin(one: Copy, other: Copy) -> bool:
    """Return whether two copies have their names from their originals in the same way."""
    return bool(_mark(one)) and _mark(one) == _mark(other) and one.original != other.original


def _mark(copy: Copy) -> tuple[str, ...]:
    """Return what the name of a copy has beside that of its original: "target" or "k"."""
    rest = last_word(copy.original).lower().split("_")
    return tuple(each for each in last_word(copy.name).lower().split("_") if each not in rest)


def _is_kept_still(copy: Copy, function: FunctionModel) -> bool:
    """Return whether the original is not trained either: nothing is to be followed."""
    mentions = mentions_of(Copy(copy.original, "", copy.node), function) or ()
    hows = {each.how for each in mentions}
    return "frozen" in hows or "run" not in hows


def _without_statistics(
    copy: Copy, known: list[tuple[Follow, FunctionModel]], function: FunctionModel
) -> Iterator[Violation]:
    """Yield what brings the parameters of a network with batch norm up to date, and no buffers."""
    # Of a loop over the parameters of both, GCS704 tells; here they are handed to a function.
    if not all(
        type(follow.node) is cst.Call
        and follow.what in {"parameters", "named_parameters"}
        and _names_parameters(follow.node)
        for follow, _ in known
    ):
        return
    owner = _class_of(copy, function)
    if owner is None or not _has_statistics(owner, function.module, 0):
        return
    mentions = mentions_of(copy, function)
    if mentions is None or not _is_evaluated(mentions):
        return
    seen = {id(each) for follow, _ in known for each in walk(follow.node)}
    seen.update(map(id, function.scope.nodes))
    if any(each.how == "used" and id(each.node) not in seen for each in mentions):
        return
    yield Violation(
        _place(known, copy, copy),
        f"`{copy.name}` is brought up to date by its parameters alone: the running statistics of "
        "its batch norm, which it uses in evaluation mode, stay those of the beginning",
        Severity.WARNING,
        "copy the buffers as well: `for ours, theirs in zip(copy.buffers(), model.buffers()): "
        "ours.copy_(theirs)`",
        ((copy.node, "made here"),),
    )


def _names_parameters(call: cst.Call) -> bool:
    return any(
        type(node) is cst.Attribute and node.attr.value in {"parameters", "named_parameters"}
        for node in walk(call)
    )


def _is_evaluated(mentions: list[Mention]) -> bool:
    hows = {each.how for each in mentions}
    return "eval" in hows and "train" not in hows


def _class_of(copy: Copy, function: FunctionModel) -> ClassScope | None:
    """Return the class of the file that a copy is an object of."""
    classes = function.module.scopes.classes
    sources = [copy.node]
    sources += [v for t, v in function.scope.assignments if dotted_name(t) == copy.original]
    for source in sources:
        made = unmoved(source) if isinstance(source, cst.BaseExpression) else None
        name = dotted_name(made.func) if type(made) is cst.Call else None
        if name is not None and name in classes:
            return classes[name]
    kinds = {
        value.name
        for value in function.bindings.get(copy.original, frozenset())
        if value.kind is Kind.INSTANCE
    }
    return classes.get(kinds.pop()) if len(kinds) == 1 else None


_MOST_CLASSES: Final = 3


def _has_statistics(owner: ClassScope, module: ModuleModel, depth: int) -> bool:
    """Return whether the layers of a class, or those that they are made of, have batch norm."""
    scopes = module.scopes
    makers = [known.methods.get("__init__") for known in scopes.lineage(owner)]
    for node in (
        each for maker in makers if maker is not None for each in maker.nodes_of(cst.Call)
    ):
        name = dotted_name(node.func) or ""
        resolved = scopes.resolve_import(name) or ""
        is_norm = resolved.startswith("torch.nn.") and "BatchNorm" in resolved
        if is_norm and boolean(keyword(node, "track_running_stats")) is not False:
            return True
        inner = scopes.classes.get(name)
        is_other = inner is not None and depth < _MOST_CLASSES and inner is not owner
        if inner is not None and is_other and _has_statistics(inner, module, depth + 1):
            return True
    return False
