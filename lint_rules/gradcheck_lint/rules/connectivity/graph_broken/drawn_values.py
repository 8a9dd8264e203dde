"""Find latent values that are drawn in a way that has no gradient."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.model.flow import Forward, GradMode
from gradcheck_lint.model.grad_mode import unrecorded_by_with
from gradcheck_lint.model.syntax import (
    assigned_once,
    dotted_name,
    is_literal,
    keyword,
    last_word,
    positional,
    walk,
)
from gradcheck_lint.model.values import NOTHING, through_all

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel

__all__ = ["drawn_values"]


def drawn_values(function: FunctionModel) -> Iterator[cst.Call]:
    """Yield draws of a latent value from computed parameters that do not pass a gradient on.

    ``torch.normal(mean, std)`` and ``sample()`` of a distribution have no gradient for what they
    are given. A policy draws its actions so, and learns by their log-probability; in a model that
    is trained by a divergence from a prior, the latent value is to have one.
    """
    module, scope = function.module, function.scope
    if not module.mentions(b"torch.normal", b".sample(") or "log_prob" in scope.words:
        return
    owner = scope.owner
    if owner is None or not module.scopes.derives_from(owner, "torch.nn.Module"):
        return
    if function.mode is GradMode.DISABLED:
        return
    if not module.matches(_DIVERGENCE):
        yield from _only_ways(function)
        return
    unrecorded = unrecorded_by_with(scope.nodes, module.scopes)
    distributions = _distributions(function)
    is_latent_by_function = _returns_latent(function)
    named = {
        id(value)
        for target, value in map(assigned_once, scope.nodes)
        if target is not None and _LATENT.fullmatch(last_word(dotted_name(target)))
    }
    for node in scope.nodes_of(cst.Call):
        if id(node) in unrecorded:
            continue
        is_latent = is_latent_by_function or id(node) in named
        if is_latent and _draws(node, function, distributions):
            yield node


def _only_ways(function: FunctionModel) -> Iterator[cst.Call]:
    """Yield draws in a ``forward`` by which alone what layers computed goes on to a loss.

    The mean and the deviation are for nothing else, here and in who hands them over, and the file
    has no log-probability by which a layer learns without a gradient through the draw.
    """
    module, scope = function.module, function.scope
    if scope.name.rpartition(".")[2] != "forward" or "training" in scope.words:
        return
    if not module.mentions(b".backward(") or module.mentions(b"log_prob", b"logprob"):
        return
    unrecorded = unrecorded_by_with(scope.nodes, module.scopes)
    made = {
        name: value
        for target, value in map(assigned_once, scope.nodes)
        if value is not None and (name := dotted_name(target)) is not None
    }
    for node in scope.nodes_of(cst.Call):
        if id(node) in unrecorded or type(node.func) is not cst.Attribute:
            continue
        if node.func.attr.value != "sample":
            continue
        drawn = node.func.value
        name = dotted_name(drawn)
        if name is not None and name in made and _uses(name, function) == 1:
            drawn = made[name]
        if _is_distribution(drawn, function):
            assert type(drawn) is cst.Call
            given = [dotted_name(each.value) for each in drawn.args]
            if all(each is not None and _is_for_it_alone(each, function) for each in given):
                yield node


def _is_for_it_alone(name: str, function: FunctionModel) -> bool:
    """Return whether layers compute what has this name, and it is used once, here and before."""
    if _uses(name, function) != 1:
        return False
    place, owner = _place(name, function), function.scope.owner
    if place is None or owner is None:
        return bool(through_all(function.bindings.get(name, NOTHING)))
    calls = [
        (caller, event)
        for caller in list(function.module.functions())
        for event in caller.events()
        if isinstance(event, Forward) and any(owner.name == each.name for each in event.values)
    ]
    return bool(calls) and all(
        place < len(event.passed)
        and bool(through_all(event.passed[place]))
        and _uses(_given_name(event, place), caller) <= 1
        for caller, event in calls
    )


def _place(name: str, function: FunctionModel) -> int | None:
    """Return which argument of a ``forward`` has this name, without ``self``."""
    node = function.scope.node
    assert type(node) is cst.FunctionDef
    names = [each.name.value for each in node.params.params]
    return names.index(name) - 1 if name in names else None


def _given_name(event: Forward, place: int) -> str:
    given = positional(event.node) if type(event.node) is cst.Call else []
    return (dotted_name(given[place]) if place < len(given) else None) or ""


def _uses(name: str, function: FunctionModel) -> int:
    """Return how often a name is read, but for its shape and the like."""
    nodes = function.scope.nodes
    targets = (target for target, _ in map(assigned_once, nodes) if target is not None)
    quiet = {id(each) for target in targets for each in walk(target)}
    for node in nodes:
        if type(node) is cst.Attribute:
            quiet.add(id(node.attr))
            if node.attr.value in _OF_SHAPE:
                quiet.add(id(node.value))
        elif type(node) in {cst.Param, cst.Arg}:
            quiet.add(id(node.name if type(node) is cst.Param else node.keyword))  # type: ignore[attr-defined]
    return sum(
        type(node) is cst.Name and node.value == name and id(node) not in quiet for node in nodes
    )


_OF_SHAPE: Final = frozenset({"shape", "size", "device", "dtype", "dim", "ndim"})
_DIVERGENCE: Final = re.compile(rb"(?i)\bkl|_kl|kld|elbo")
_LATENT: Final = re.compile(r"z\w?|z_\w+|\w+_z|latents?|code|w?_?latent\w*|eps_z|state|stoch\w*")
_LATENT_FUNCTION: Final = re.compile(r"(?i)repar|latent|posterior|bottleneck|sample_?z|draw_?z")


def _returns_latent(function: FunctionModel) -> bool:
    """Return whether a method draws a latent value, by its name or by what it is called for."""
    own = last_word(function.scope.name)
    if _LATENT_FUNCTION.search(own) is not None:
        return True
    if function.scope.owner is None or not any(function.scope.nodes_of(cst.Return)):
        return False
    return any(
        type(value) is cst.Call
        and dotted_name(value.func) == f"{method.first_parameter}.{own}"
        and _LATENT.fullmatch(last_word(dotted_name(target))) is not None
        for method in function.scope.owner.methods.values()
        if own in method.words
        for target, value in method.assignments
    )


def _distributions(function: FunctionModel) -> set[str]:
    """Return the names of distributions with a density that the function makes."""
    return {
        name
        for target, value in map(assigned_once, function.scope.nodes)
        if target is not None
        and value is not None
        and _is_distribution(value, function)
        and (name := dotted_name(target)) is not None
    }


def _is_distribution(value: cst.BaseExpression, function: FunctionModel) -> bool:
    """Return whether this makes a reparameterizable distribution of computed parameters."""
    if type(value) is not cst.Call:
        return False
    name = function.module.scopes.resolve_import(dotted_name(value.func) or "") or ""
    last = name.rpartition(".")[2]
    if not name.startswith("torch.distributions."):
        return False
    if last == "Independent":
        return bool(value.args) and _is_distribution(value.args[0].value, function)
    return last in _REPARAMETERIZED and _are_computed([each.value for each in value.args], function)


_REPARAMETERIZED: Final = frozenset(
    {"Normal", "MultivariateNormal", "LowRankMultivariateNormal", "LogNormal", "Laplace", "Beta"}
    | {"Gamma", "Dirichlet", "Uniform", "StudentT", "RelaxedOneHotCategorical"}
)


def _draws(node: cst.Call, function: FunctionModel, distributions: set[str]) -> bool:
    """Return whether a call draws from computed parameters, without a gradient for them."""
    name = function.module.scopes.resolve_import(dotted_name(node.func) or "")
    if name == "torch.normal":
        given = positional(node)
        mean = keyword(node, "mean") or (given[0] if given else None)
        std = keyword(node, "std") or (given[1] if len(given) > 1 else None)
        return mean is not None and std is not None and _are_computed([mean, std], function)
    if type(node.func) is not cst.Attribute or node.func.attr.value != "sample":
        return False
    owner = node.func.value
    return dotted_name(owner) in distributions or _is_distribution(owner, function)


def _are_computed(given: list[cst.BaseExpression], function: FunctionModel) -> bool:
    """Return whether parameters of a draw may all have a graph: no numbers, zeros or settings."""
    return bool(given) and all(
        not is_literal(each)
        and any(type(node) is cst.Name for node in walk(each))
        and not (dotted_name(each) or "").startswith(f"{function.scope.first_parameter}.")
        and not any(
            type(node) is cst.Call and _CONSTANT.search(dotted_name(node.func) or "")
            for node in walk(each)
        )
        for each in given
    )


_CONSTANT: Final = re.compile(r"\b(?:zeros|ones|full|detach|tensor)\w*$")
