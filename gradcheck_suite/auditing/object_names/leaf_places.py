"""Where the program keeps a leaf: registered in a module, or in some other way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from torch import Tensor, nn

from gradcheck_suite.auditing.object_names.module_tree import assignment_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gradcheck_suite.auditing.object_names.module_tree import ModuleTree
    from gradcheck_suite.findings import Location  # noqa: TC004 - nobody asks for the fields' types

__all__ = ["LeafPlace", "places_of"]

_Kind = Literal["registered", "container", "attribute", "computed"]

_LONGEST_WAY = 4
"""Operations, one after the other, between a leaf and the attribute that was computed from it: a
conversion, a move, a scale. A bound on cost."""

_MOST_ITEMS = 64
"""Tensors in a plain container of a module that are looked at. A bound on cost."""


@dataclass(frozen=True, slots=True)
class LeafPlace:
    """Where a leaf was found.

    Attributes:
        kind: "registered" in a module; in a module that a plain "container" of another's holds, or
            there itself; an "attribute" that is no parameter; or an attribute was "computed" from
            it.
        name: as the program would write it.
        module: the class of the module that has it.
        attribute: the attribute of that module.
        container: the kind of a plain container, with how much is in it; None where there is none.
        root: the identity of the outermost module.
        training: whether its module is in training mode.
        location: where the class assigns the attribute, for what is not registered.
    """

    kind: _Kind
    name: str
    module: str
    attribute: str
    container: tuple[str, int] | None
    root: int
    training: bool
    location: Location | None


def places_of(leaves: Iterable[Tensor], tree: ModuleTree) -> dict[int, LeafPlace]:
    """Return where leaves are kept, by identity; those that no module knows are not among them."""
    wanted = {id(leaf): leaf for leaf in leaves}
    found: dict[int, LeafPlace] = {}
    names: dict[int, str] = {}
    for holder, attribute, container, item in tree.in_plain_containers():
        inside = item.parameters() if isinstance(item, nn.Module) else [item]
        own = {id(each) for each in holder.parameters()}
        for leaf in inside:
            if id(leaf) in wanted and id(leaf) not in own:
                training = item.training if isinstance(item, nn.Module) else True
                place = _place(tree, names, (holder, attribute), "container", training=training)
                kind_of_it = type(container).__name__, len(container)  # type: ignore[arg-type]  # it is one
                found[id(leaf)] = replace(place, container=kind_of_it)
    for identity, leaf in wanted.items():
        for module, name in tree.owners(leaf)[:1]:
            if identity not in found:
                found[identity] = _place(tree, names, (module, name), "registered")
    if len(found) < len(wanted):
        for module in tree.modules:
            for name, tensor in _unregistered(module):
                under = _leaf_under(tensor)
                if under is not None and id(under) in wanted and id(under) not in found:
                    kind: _Kind = "attribute" if under is tensor else "computed"
                    found[id(under)] = _place(tree, names, (module, name), kind)
    return found


def _place(
    tree: ModuleTree,
    names: dict[int, str],
    at: tuple[nn.Module, str],
    kind: _Kind,
    *,
    training: bool | None = None,
) -> LeafPlace:
    module, attribute = at
    name = names.get(id(module))
    if name is None:
        name = names[id(module)] = tree.name(module)
    return LeafPlace(
        kind=kind,
        name=f"{name}.{attribute}",
        module=type(module).__name__,
        attribute=attribute,
        container=None,
        root=id(tree.outermost(module)),
        training=module.training if training is None else training,
        location=None if kind == "registered" else assignment_of(module, attribute),
    )


def _unregistered(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that a module has as plain attributes, or in a container there."""
    for name, value in list(module.__dict__.items()):
        if name.startswith("_") and isinstance(value, dict):
            continue  # Torch's own registers.
        items: Sequence[object] = [value]
        if type(value) in (list, tuple):
            items = value[:_MOST_ITEMS]
        elif type(value) is dict:
            items = list(value.values())[:_MOST_ITEMS]
        for item in items:
            if isinstance(item, Tensor):
                yield name, item


def _leaf_under(tensor: Tensor) -> Tensor | None:
    """Return the leaf that a tensor is, or that it was computed from and from nothing else."""
    if not tensor.requires_grad:
        return None
    node = tensor.grad_fn
    if node is None:
        return tensor
    for _ in range(_LONGEST_WAY):
        below = [each for each, _ in node.next_functions if each is not None]
        if len(below) != 1:
            return None
        node = below[0]
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            return leaf  # type: ignore[no-any-return]  # an AccumulateGrad's
    return None
