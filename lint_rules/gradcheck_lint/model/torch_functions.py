"""Read calls of torch's own functions and classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_lint.model.arguments import record_call
from gradcheck_lint.model.expressions import same_graph
from gradcheck_lint.model.flow import Backward, GradMode, InPlace, ZeroGrad
from gradcheck_lint.model.knowledge import (
    FACTORIES,
    GRAD_MODE_CONTEXTS,
    INPLACE_METHODS,
    MAY_KEEP_THE_GRAPH,
    PARAMETER_CLASSES,
    SAME_GRAPH_METHODS,
    VARIABLE_CLASSES,
)
from gradcheck_lint.model.syntax import boolean, has_star, is_none, keyword, positional
from gradcheck_lint.model.training_calls import retains_graph
from gradcheck_lint.model.values import (
    NOTHING,
    Kind,
    Values,
    all_are,
    held_by,
)

if TYPE_CHECKING:
    import libcst as cst

    from gradcheck_lint.model.arguments import Arguments
    from gradcheck_lint.model.reading import Reading


def read_torch_call(
    reading: Reading, node: cst.Call, qualified: str, arguments: Arguments
) -> Values:
    """Return what a call of torch's own function or class makes, and record what it does."""
    last = qualified.rpartition(".")[2]
    first = arguments.positional[0] if arguments.positional else NOTHING
    _note_functional_write(reading, node, qualified, arguments)
    _note_grad_mode(reading, node, qualified)
    made = _made_by_class(node, qualified, arguments)
    if made is not None:
        holds = frozenset({id(node)}) | held_by(arguments.everything)
        details = {"name": qualified, "holds": holds} if made in _OWNERS else {}
        return frozenset({reading.recorder.value(made, node, **details)})
    if "zero" in last and "_foreach" in last:
        reading.recorder.event(ZeroGrad, node, reading.state.mode)
    if qualified == "torch.autograd.backward":
        reading.recorder.event(
            Backward, node, reading.state.mode, values=first, retains_graph=retains_graph(node)
        )
    if qualified == f"torch.{last}" and last in SAME_GRAPH_METHODS and first:
        return same_graph(reading, node, first)
    return record_call(reading, node, arguments, harmless=True)


_OWNERS = {Kind.OPTIMIZER, Kind.MODULE}


def makes_optimizer(qualified: str) -> bool:
    """Tell whether this is the full name of an optimizer class of torch."""
    return (
        qualified.startswith("torch.optim.")
        and qualified.rpartition(".")[2][:1].isupper()
        and "lr_scheduler" not in qualified
        and "swa_utils" not in qualified
    )


def _made_by_class(node: cst.Call, qualified: str, arguments: Arguments) -> Kind | None:
    """Return what sort of thing a factory or class makes; None for other functions."""
    kind: Kind | None = None
    if qualified in FACTORIES:
        kind = _made_by_factory(node, qualified, arguments)
    elif qualified in PARAMETER_CLASSES:
        kind = _made_by_wrapper(node, default=True)
    elif qualified in VARIABLE_CLASSES:
        kind = _made_by_wrapper(node, default=False)
        # A Variable made without asking for a gradient may still have its argument's graph.
        kind = Kind.UNKNOWN if kind is Kind.PLAIN else kind
    elif makes_optimizer(qualified):
        kind = Kind.OPTIMIZER
    elif qualified.startswith("torch.nn.") and ".utils." not in qualified:
        kind = Kind.MODULE if qualified.rpartition(".")[2][:1].isupper() else None
    return kind


def _note_grad_mode(reading: Reading, node: cst.Call, qualified: str) -> None:
    if reading.reads_context:
        return
    if qualified == "torch.set_grad_enabled":
        reading.state.mode = _MODES[boolean(node.args[0].value) if node.args else None]
    elif qualified.removeprefix("torch.") in GRAD_MODE_CONTEXTS:
        # Somebody keeps the context or enters it by hand: from here on the mode is not known.
        reading.state.mode = GradMode.UNKNOWN


_MODES = {True: GradMode.ENABLED, False: GradMode.DISABLED, None: GradMode.UNKNOWN}


def _made_by_factory(node: cst.Call, qualified: str, arguments: Arguments) -> Kind:
    wanted = keyword(node, "requires_grad")
    if has_star(node) or keyword(node, "out") is not None:
        return Kind.UNKNOWN
    if qualified in MAY_KEEP_THE_GRAPH and not all_are(arguments.everything, Kind.NUMBER):
        return Kind.UNKNOWN
    if wanted is None:
        return Kind.PLAIN
    return {True: Kind.LEAF, False: Kind.PLAIN, None: Kind.UNKNOWN}[boolean(wanted)]


def _made_by_wrapper(node: cst.Call, *, default: bool) -> Kind:
    ordered = positional(node)
    wanted = keyword(node, "requires_grad") or (ordered[1] if len(ordered) > 1 else None)
    if has_star(node):
        return Kind.UNKNOWN
    choice = default if wanted is None else boolean(wanted)
    return {True: Kind.LEAF, False: Kind.PLAIN, None: Kind.UNKNOWN}[choice]


def _note_functional_write(
    reading: Reading, node: cst.Call, qualified: str, arguments: Arguments
) -> None:
    """Record ``out=w``, ``torch.relu_(w)`` and ``F.relu(w, inplace=True)``."""
    target = keyword(node, "out")
    last = qualified.rpartition(".")[2]
    operation = f"{last}(..., out=...)"
    values = arguments.keywords.get("out", NOTHING)
    writes = last in INPLACE_METHODS or boolean(keyword(node, "inplace"))
    if target is None and node.args and writes and ".init." not in qualified:
        target = node.args[0].value
        values = arguments.positional[0] if arguments.positional else NOTHING
        operation = f"{last}()"
    if target is not None and not is_none(target):
        reading.recorder.event(
            InPlace, node, reading.state.mode, values=values, target=target, operation=operation
        )
