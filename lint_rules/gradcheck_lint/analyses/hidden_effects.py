"""Tell whether a part of a training step may be done where no event of a function shows it.

A bound method that is handed on, a lambda in a list, a context manager, a generator or a hook runs
when somebody else decides. What they do is part of no path through a function, so that a rule which
says that something is *not* done has to ask here first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.syntax import decorator_name, plain_string, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gradcheck_lint.model.module import FunctionModel, ModuleModel
    from gradcheck_lint.model.scopes import FunctionScope


@dataclass(frozen=True, slots=True)
class Act:
    """Something that a training step does.

    ``word`` matches the names of the methods that do it, ``owner`` those of the objects whose
    method it has to be; ``writes_grad`` says that writing to a gradient does it as well, and
    ``assigns`` that assigning to an attribute of such a name does.
    """

    word: re.Pattern[str]
    owner: re.Pattern[str] | None = None
    writes_grad: bool = False
    assigns: bool = False

    def is_spelt(self, text: str) -> bool:
        """Tell whether the text of a string is such a name: ``getattr(opt, "zero_grad")``."""
        return self.owner is None and self.word.search(text) is not None

    def is_named(self, node: cst.CSTNode) -> bool:
        """Tell whether a name or an attribute is that of a function or method that does it."""
        word = _named(node)
        if word is None or self.word.search(word) is None:
            return False
        if self.owner is None:
            return True
        holder = _named(node.value) if type(node) is cst.Attribute else None
        return holder is not None and self.owner.search(holder.lower()) is not None


_TRAINED: Final = re.compile(r"opt|scaler|model|net|module")

ZEROING: Final = Act(re.compile("zero_grad"), writes_grad=True)
DIFFERENTIATING: Final = Act(re.compile(r"(?:^|_)backward$"), writes_grad=True)
UNSCALING: Final = Act(re.compile("unscale_"))
UPDATING: Final = Act(re.compile("^update$"), _TRAINED)
STEPPING: Final = Act(re.compile("^step$"), _TRAINED)
TRAINING: Final = Act(re.compile("^train$"), _TRAINED)
DETACHING: Final = Act(re.compile("^detach_$"))
FREEZING: Final = Act(re.compile("requires_grad"), assigns=True)
RECORDING: Final = Act(re.compile("grad_enabled"))


def may_act_unseen(function: FunctionModel, act: Act) -> bool:
    """Tell whether something of the file may do this while a function runs, out of sight."""
    return _is_in_reach(function, act, called=False)


def may_act_elsewhere(function: FunctionModel, act: Act) -> bool:
    """Tell whether another function that this one reaches does this, whoever calls it."""
    return _is_in_reach(function, act, called=True)


def may_act_inside(function: FunctionModel, act: Act) -> bool:
    """Tell whether a function that this one defines, or a lambda in it, does this."""
    scope = function.scope
    if _deeds_of(scope, act).handed_on:
        return True
    inner = (other for other in function.module.scopes.functions if scope.encloses(other))
    return any(
        deeds.directly or deeds.handed_on for deeds in (_deeds_of(one, act) for one in inner)
    )


def is_handed_on(function: FunctionModel) -> bool:
    """Tell whether something of the file names a function without calling it there."""
    return _file_of(function.module).hands_on(function.scope)


def _is_in_reach(function: FunctionModel, act: Act, *, called: bool) -> bool:
    memo = function.module.memo
    key = ("acts in reach", act, called, id(function.scope))
    if key not in memo:
        file = _file_of(function.module)
        memo[key] = any(
            file.may_reach(function.scope, other, deeds, called=called)
            for other, deeds in file.doers_of(act)
        )
    return bool(memo[key])


def _file_of(module: ModuleModel) -> _File:
    if "hidden acts" not in module.memo:
        module.memo["hidden acts"] = _File(module)
    known: _File = module.memo["hidden acts"]
    return known


@dataclass(frozen=True, slots=True)
class _Deeds:
    """How a function does something: ``directly`` in its own flow, or by what it hands on."""

    directly: bool
    handed_on: bool


class _File:
    """What the functions of one file hand on, and which of one another they name."""

    def __init__(self, module: ModuleModel) -> None:
        self._scopes = module.scopes
        self._words = {id(scope): _words_of(scope) for scope in module.scopes.functions}
        self._handed_on = frozenset[str]().union(*map(_handed_on_by, module.scopes.functions))
        self._functions = module.scopes.by_name
        self._named: dict[int, frozenset[int]] = {}
        self._doers: dict[Act, list[tuple[FunctionScope, _Deeds]]] = {}

    def doers_of(self, act: Act) -> list[tuple[FunctionScope, _Deeds]]:
        """Return the functions of the file that do something, and how."""
        known = self._doers.get(act)
        if known is None:
            every = ((scope, _deeds_of(scope, act)) for scope in self._scopes.functions)
            known = [(scope, deeds) for scope, deeds in every if deeds.directly or deeds.handed_on]
            self._doers[act] = known
        return known

    def may_reach(
        self, scope: FunctionScope, other: FunctionScope, deeds: _Deeds, *, called: bool
    ) -> bool:
        """Return whether what ``other`` does may happen in ``scope`` without an event of it.

        Where it is ``called`` counts as well.
        """
        if other is scope or other is self._scopes.top or other.encloses(scope):
            return deeds.handed_on
        is_run = deeds.directly and (called or self._runs_unseen(other))
        if not deeds.handed_on and not is_run:
            return False
        return (
            scope.encloses(other)
            or self._are_relatives(scope, other)
            or id(other) in self._named_by(scope)
            or (deeds.handed_on and id(scope) in self._named_by(other))
        )

    def hands_on(self, scope: FunctionScope) -> bool:
        """Tell whether a function is named where it is not called."""
        is_method = scope.owner is not None
        return (f".{_last(scope)}" if is_method else _last(scope)) in self._handed_on

    def _runs_unseen(self, scope: FunctionScope) -> bool:
        name = _last(scope)
        if self.hands_on(scope) or (name.startswith("__") and name != "__init__"):
            return True
        node = scope.node
        if isinstance(node, cst.Module):
            return False
        if any(decorator_name(known) not in _PLAIN for known in node.decorators):
            return True
        return bool(scope.nodes_of(cst.Yield))

    def _are_relatives(self, scope: FunctionScope, other: FunctionScope) -> bool:
        lineage, others = (
            {id(owner) for owner in self._scopes.lineage(known.owner)} for known in (scope, other)
        )
        return not lineage.isdisjoint(others)

    def _named_by(self, scope: FunctionScope) -> frozenset[int]:
        """Return the functions that a function names, and those that these name, and so on."""
        known = self._named.get(id(scope))
        if known is None:
            found: set[int] = set()
            waiting = [scope]
            while waiting:
                for word in self._words[id(waiting.pop())] & self._functions.keys():
                    for named in self._functions[word]:
                        if id(named) not in found:
                            found.add(id(named))
                            waiting.append(named)
            known = self._named[id(scope)] = frozenset(found)
        return known


_PLAIN: Final = frozenset(
    {"staticmethod", "classmethod", "no_grad", "enable_grad", "inference_mode", "override"}
)


def _last(scope: FunctionScope) -> str:
    return scope.name.rpartition(".")[2]


def _named(node: cst.CSTNode) -> str | None:
    """Return the word of a name or of an attribute."""
    if type(node) is cst.Name:
        return node.value
    return node.attr.value if type(node) is cst.Attribute else None


def _words_of(scope: FunctionScope) -> frozenset[str]:
    words = map(_named, scope.nodes_with_lambdas)
    return frozenset(word for word in words if word is not None)


def _handed_on_by(scope: FunctionScope) -> frozenset[str]:
    """Return what a function names without calling it, and what lambdas and decorators name."""
    nodes, lambdas = scope.nodes_and_lambdas
    quiet = _called_in(nodes) | _not_read_in(nodes)
    found = [spelt for node in nodes if id(node) not in quiet and (spelt := _spelt(node))]
    decorators = () if isinstance(scope.node, cst.Module) else scope.node.decorators
    for root in (*lambdas, *decorators):
        below = list(walk(root))
        quiet = _not_read_in(below)
        found += [spelt for node in below if id(node) not in quiet and (spelt := _spelt(node))]
    return frozenset(found)


def _spelt(node: cst.CSTNode) -> str | None:
    """Return a name, or an attribute with the dot before it: ``.step`` is no function ``step``."""
    word = _named(node)
    return f".{word}" if word is not None and type(node) is cst.Attribute else word


def _deeds_of(scope: FunctionScope, act: Act) -> _Deeds:
    nodes, lambdas = scope.nodes_and_lambdas
    called, quiet = _called_in(nodes), _not_read_in(nodes)
    directly = act.writes_grad and any(map(_writes_grad, nodes))
    handed_on = any(
        act.is_named(node) or (act.writes_grad and _writes_grad(node))
        for known in lambdas
        for node in walk(known)
    )
    for node in nodes:
        if type(node) is cst.AssignTarget:
            target = node.target
            directly |= act.assigns and type(target) is cst.Attribute and act.is_named(target)
        elif type(node) is cst.SimpleString:
            text = plain_string(node)
            handed_on |= text is not None and text.isidentifier() and act.is_spelt(text)
        elif act.is_named(node):
            directly |= id(node) in called
            handed_on |= id(node) not in called and id(node) not in quiet
    return _Deeds(directly, handed_on)


def _called_in(nodes: Iterable[cst.CSTNode]) -> set[int]:
    return {id(node.func) for node in nodes if type(node) is cst.Call}


def _not_read_in(nodes: Iterable[cst.CSTNode]) -> set[int]:
    """Return the names that are assigned to, that name an argument, or whose value nobody uses."""
    quiet: set[int] = set()
    for node in nodes:
        read = _QUIET.get(type(node))
        if read is not None:
            quiet.add(id(read(node)))
    return quiet


_QUIET: Final[dict[type[cst.CSTNode], Callable[..., cst.CSTNode | None]]] = {
    cst.Attribute: lambda node: node.attr,
    cst.Arg: lambda node: node.keyword,
    cst.Expr: lambda node: node.value,
    cst.AssignTarget: lambda node: node.target,
    cst.AugAssign: lambda node: node.target,
    cst.AnnAssign: lambda node: node.target,
    cst.NamedExpr: lambda node: node.target,
    cst.Del: lambda node: node.target,
    cst.For: lambda node: node.target,
}


def _writes_grad(node: cst.CSTNode) -> bool:
    """Tell whether this is ``p.grad = g``, ``del p.grad``, ``p.grad.zero_()`` or the like."""
    if type(node) is cst.AssignTarget or type(node) is cst.Del:
        target = node.target
        return type(target) is cst.Attribute and target.attr.value == "grad"
    if type(node) is cst.Call:
        called = _named(node.func)
        if called == "setattr":
            return any(_is_grad(argument.value) for argument in node.args)
        return called is not None and called.endswith("zero_") and _names_grad(node)
    return False


def _is_grad(node: cst.BaseExpression) -> bool:
    return type(node) is cst.SimpleString and plain_string(node) == "grad"


def _names_grad(node: cst.CSTNode) -> bool:
    return any(type(inner) is cst.Name and inner.value == "grad" for inner in walk(node))
