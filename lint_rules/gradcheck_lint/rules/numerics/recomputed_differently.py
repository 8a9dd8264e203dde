"""GCS613: what backward computes again with other random numbers."""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.analyses.callers import expressions_given
from gradcheck_lint.model.function_class import function_with
from gradcheck_lint.model.name_sources import sources_of
from gradcheck_lint.model.syntax import (
    boolean,
    dotted_name,
    last_word,
    plain_string,
    walk,
)
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class RecomputedDifferently(Rule):
    """Backward runs a function again without the random numbers of its first run."""

    entry = catalogue.RECOMPUTED_DIFFERENTLY

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield what leaves the state of the random generators as it is."""
        module = function.module
        yield from _second_statistics(function)
        draws = module.matches(_DRAWS)
        severity = Severity.WARNING if draws else Severity.NOTE
        if module.mentions(b"preserve_rng_state"):
            for node in _unpreserved(function):
                yield Violation(
                    node,
                    "backward runs what is checkpointed again with other random numbers"
                    + (": its dropout has another mask in the gradient than in the loss" * draws),
                    severity,
                    "leave `preserve_rng_state` True",
                )
        for node, name in _run_again(function):
            yield Violation(
                node,
                f"backward runs `{name}`, which forward has run, again with other random numbers"
                + (": a dropout in it has another mask in the gradient than in the loss" * draws),
                severity,
                "keep `torch.get_rng_state()` in forward, and set it in `torch.random.fork_rng()`",
            )


def _second_statistics(function: FunctionModel) -> Iterator[Violation]:
    """Yield the checkpoints of layers with batch norm, whose statistics follow each batch twice."""
    module = function.module
    if not module.mentions(b"checkpoint") or not module.mentions(b"BatchNorm"):
        return
    for node in function.scope.nodes:
        name = dotted_name(node.func) if type(node) is cst.Call else None
        made = module.scopes.resolve_import(name or "") or ""
        if type(node) is not cst.Call or not made.startswith("torch.utils.checkpoint."):
            continue
        norm = _norm_in(node.args[0].value, function) if node.args else None
        if norm is not None:
            yield Violation(
                node,
                "backward runs this a second time, and batch norm in it follows the statistics of "
                "each batch twice: its momentum is not the one that was given",
                Severity.NOTE,
                "leave batch norm out of what is checkpointed, or take the root of its "
                "`1 - momentum`",
                ((norm, "batch norm"),),
            )


def _norm_in(run: cst.BaseExpression, function: FunctionModel) -> cst.CSTNode | None:
    """Return the batch norm of the layers that an attribute holds or a loop goes through."""
    words = _words_behind(run, function)
    scopes, owner = function.module.scopes, function.scope.owner
    for method in owner.methods.values() if owner is not None else ():
        for target, value in method.assignments:
            if last_word(dotted_name(target)) not in words:
                continue
            classes = (scopes.classes[each] for each in _names(value) & scopes.classes.keys())
            made = (known.nodes for scope in classes for known in scope.methods.values())
            norm = next(filter(_is_norm, chain(walk(value), *made)), None)
            if norm is not None:
                return norm
    return None


def _words_behind(run: cst.BaseExpression, function: FunctionModel) -> set[str]:
    """Return the names in what is run, in what a loop takes it from, and what callers hand in."""
    path = dotted_name(run)
    words = {last_word(path)}
    for node in function.scope.nodes_of(cst.For):
        if path in _names(node.target):
            words |= _names(node.iter)
    if path is not None and path in function.scope.parameters:
        for caller, value in expressions_given(function, path):
            if caller.scope is not function.scope:
                words |= _words_behind(value, caller)
    return words


def _names(node: cst.CSTNode) -> set[str]:
    return {each.value for each in walk(node) if type(each) is cst.Name}


def _is_norm(node: cst.CSTNode) -> bool:
    return type(node) is cst.Call and last_word(dotted_name(node.func)).startswith("BatchNorm")


_DRAWS: Final = re.compile(rb"[Dd]ropout|DropPath|bernoulli|multinomial")
_RESTORES: Final = re.compile(r"(?i)rng|seed|generator")


def _unpreserved(function: FunctionModel) -> Iterator[cst.CSTNode]:
    """Yield where ``preserve_rng_state`` is given False, also in a dictionary."""
    for node in function.scope.nodes:
        if type(node) is cst.Arg and node.keyword is not None:
            is_it = node.keyword.value == "preserve_rng_state"
        elif type(node) is cst.DictElement and type(node.key) is cst.SimpleString:
            is_it = plain_string(node.key) == "preserve_rng_state"
        else:
            continue
        given = node.value
        if type(given) is cst.Name:
            sources = sources_of(function.scope).get(given.value) or []
            given = sources[0] if len(sources) == 1 else given
        if is_it and boolean(given) is False:
            yield node


def _run_again(function: FunctionModel) -> Iterator[tuple[cst.Call, str]]:
    """Yield the first call in a backward of what forward has called, under ``enable_grad``."""
    known = function_with(function, "backward", "vjp")
    if known is None or known.forward is None or "enable_grad" not in function.scope.words:
        return
    words = function.scope.words | known.forward.words | known.scope.words
    if any(map(_RESTORES.search, words)):
        return
    called = {
        last_word(dotted_name(node.func)) for node in known.forward.nodes if type(node) is cst.Call
    }
    for region in function.scope.nodes_of(cst.With):
        if not any(_enables(item) for item in region.items):
            continue
        for node in walk(region.body):
            name = dotted_name(node.func) if type(node) is cst.Call else None
            context = function.scope.first_parameter or "ctx"
            if name is not None and name.startswith(f"{context}.") and last_word(name) in called:
                yield node, name  # type: ignore[misc]
                return


def _enables(item: cst.WithItem) -> bool:
    called = item.item.func if type(item.item) is cst.Call else item.item
    return last_word(dotted_name(called)) == "enable_grad"
