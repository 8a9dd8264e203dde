"""Read calls of torch's own functions and classes."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gradcheck_lint.model.arguments import record_call
from gradcheck_lint.model.arithmetic import same_graph
from gradcheck_lint.model.flow import Backward, GradMode, InPlace, ZeroGrad
from gradcheck_lint.model.forward import loss_of
from gradcheck_lint.model.knowledge import (
    FACTORIES,
    GRAD_MODE_CONTEXTS,
    INPLACE_METHODS,
    MAY_KEEP_THE_GRAPH,
    PARAMETER_CLASSES,
    SAME_GRAPH_METHODS,
    VARIABLE_CLASSES,
    words,
)
from gradcheck_lint.model.saving import note_function
from gradcheck_lint.model.syntax import boolean, dotted_name, has_star, is_none, keyword, positional
from gradcheck_lint.model.training_calls import is_computed, note_clip, retains_graph
from gradcheck_lint.model.values import (
    NOTHING,
    Kind,
    Values,
    all_are,
    carrying,
    cut_of,
    held_by,
    join_all,
    mentioned_by,
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
        details: dict[str, Any] = {}
        if made in _OWNERS:
            if made is Kind.OPTIMIZER:
                owned = first or arguments.keywords.get("params", NOTHING)
                holds = frozenset({id(node)}) | held_by(owned)
            details = {"name": qualified, "holds": holds, "parts": _layers(qualified, arguments)}
        elif qualified in _COPIES or (made is Kind.LEAF and qualified in _LEAF_CLASSES):
            # A tensor made of a number or tensor that was computed: its graph ends here.
            is_cut = has_graph_or_cut(first) or has_graph_or_cut(_data_of(reading, node))
            details = {"cut": node if is_cut else None}
        return frozenset({reading.recorder.value(made, node, **details)})
    if reading.notes_saves:
        note_function(reading, node, last, arguments)
    if last in _CLIPPERS and ".nn.utils." in qualified:
        note_clip(reading, node, arguments)
    if "zero" in last and "_foreach" in last:
        reading.recorder.event(ZeroGrad, node, reading.state.mode)
    if qualified.startswith("torch.autograd."):
        return _read_autograd(reading, node, last, arguments)
    if qualified in _INDICES and first:
        cut = node if has_graph_or_cut(first) else None
        return reading.recorder.number(node, cut)
    if qualified == f"torch.{last}" and last in SAME_GRAPH_METHODS and first:
        return same_graph(reading, node, first)
    if qualified.startswith("torch.nn.functional.") and first:
        record_call(reading, node, arguments, harmless=True)
        is_of_integers = last == "one_hot"
        return (
            _of_integers(reading, node, first)
            if is_of_integers
            else loss_of(reading, node, arguments)
        )
    made_of = record_call(reading, node, arguments, harmless=True)
    joins = last in _JOINING and qualified == f"torch.{last}"
    return carrying(made_of, *arguments.positional) if joins else made_of


def _read_autograd(reading: Reading, node: cst.Call, last: str, arguments: Arguments) -> Values:
    """Read ``autograd.backward(loss)``, ``autograd.grad(loss, x)`` and the like."""
    if last == "backward":
        given = positional(node)
        cotangent = given[1] if len(given) > 1 else keyword(node, "grad_tensors")
        reading.recorder.event(
            Backward,
            node,
            reading.state.mode,
            values=arguments.positional[0] if arguments.positional else NOTHING,
            retains_graph=retains_graph(node),
            creates_graph=boolean(keyword(node, "create_graph")) is True,
            partial=keyword(node, "inputs") is not None,
            seeded=is_computed(reading, cotangent),
        )
    made = record_call(reading, node, arguments, harmless=True)
    if last == "grad" and _gives_constants(reading, node):
        return frozenset({reading.recorder.value(Kind.PLAIN, node, cut=node)})
    return made


def _gives_constants(reading: Reading, node: cst.Call) -> bool:
    """Tell whether the gradients that ``autograd.grad`` returns have no graph for sure."""
    given = positional(node)
    cotangent = given[2] if len(given) > 2 else keyword(node, "grad_outputs")  # noqa: PLR2004
    created = given[4] if len(given) > 4 else keyword(node, "create_graph")  # noqa: PLR2004
    if has_star(node) or (created is not None and boolean(created) is not False):
        return False
    return not is_computed(reading, cotangent)


def _of_integers(reading: Reading, node: cst.Call, first: Values) -> Values:
    """Return what a function makes of integers, which have no graph."""
    made = reading.recorder.value(Kind.PLAIN, node, mentions=mentioned_by(first), cut=cut_of(first))
    return frozenset({made})


def _data_of(reading: Reading, node: cst.Call) -> Values:
    """Return what ``loss`` holds where the first argument is ``loss.data``."""
    first = node.args[0].value if node.args else None
    path = dotted_name(first)
    is_data = path is not None and path.endswith(".data")
    return reading.look_up(path.removesuffix(".data")) if path is not None and is_data else NOTHING


_INDICES = frozenset({"torch.argmax", "torch.argmin"})
_JOINING = words(
    "cat concat concatenate stack hstack vstack dstack add sub mul div matmul mm bmm einsum"
)
"""Functions whose result has the graphs of all their arguments."""


_COPIES = frozenset(
    {"torch.tensor", "torch.Tensor", "torch.FloatTensor", "torch.from_numpy", "torch.as_tensor"}
)
_LEAF_CLASSES = VARIABLE_CLASSES | PARAMETER_CLASSES


def has_graph_or_cut(values: Values) -> bool:
    """Tell whether this, or an element of a list, may have a graph, or had one that was cut."""
    return any(
        value.kind is Kind.HISTORY
        or value.through
        or value.cut is not None
        or any(map(has_graph_or_cut, value.parts if value.kind is Kind.CONTAINER else ()))
        for value in values
    )


def _layers(qualified: str, arguments: Arguments) -> tuple[Values, ...]:
    """Return the layers of a sequence, or what all of a list may be."""
    if qualified == "torch.nn.Sequential":
        return arguments.positional
    if qualified == "torch.nn.ModuleList" and arguments.positional:
        return tuple(join_all(value.parts) for value in arguments.positional[0] if value.parts)[:1]
    return ()


_OWNERS = {Kind.OPTIMIZER, Kind.MODULE, Kind.SCALER, Kind.SCHEDULER}
_CLIPPERS = frozenset(
    {"clip_grad_norm_", "clip_grad_value_", "clip_grad_norm", "clip_grads_with_norm_"}
)


def makes_optimizer(qualified: str) -> bool:
    """Tell whether this is the full name of an optimizer class of torch."""
    return (
        qualified.startswith("torch.optim.")
        and qualified.rpartition(".")[2][:1].isupper()
        and "lr_scheduler" not in qualified
        and "swa_utils" not in qualified
    )


def makes_scheduler(qualified: str) -> bool:
    """Tell whether this is the full name of a learning rate scheduler class of torch."""
    return (
        qualified.startswith(("torch.optim.lr_scheduler.", "torch.optim.swa_utils.SWALR"))
        and qualified.rpartition(".")[2][:1].isupper()
    )


def _made_by_class(node: cst.Call, qualified: str, arguments: Arguments) -> Kind | None:
    """Return what sort of thing a factory or class makes; None for other functions."""
    if qualified in FACTORIES:
        return _made_by_factory(node, qualified, arguments)
    if qualified in PARAMETER_CLASSES:
        return _made_by_wrapper(node, default=True)
    if qualified in VARIABLE_CLASSES:
        kind = _made_by_wrapper(node, default=False)
        # A Variable made without asking for a gradient may still have its argument's graph.
        return Kind.UNKNOWN if kind is Kind.PLAIN else kind
    return _instance_of(qualified)


@lru_cache(maxsize=4096)
def _instance_of(qualified: str) -> Kind | None:
    """Return what sort of thing an optimizer, a layer or the like is; None for functions."""
    kind: Kind | None = None
    if makes_optimizer(qualified):
        kind = Kind.OPTIMIZER
    elif makes_scheduler(qualified):
        kind = Kind.SCHEDULER
    elif qualified.startswith("torch.") and qualified.endswith(".GradScaler"):
        kind = Kind.SCALER
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
    last = qualified.rpartition(".")[2]
    writes = last in INPLACE_METHODS
    if not writes and not arguments.keywords:
        return
    target = keyword(node, "out")
    operation = f"{last}(..., out=...)"
    values = arguments.keywords.get("out", NOTHING)
    writes = writes or boolean(keyword(node, "inplace")) is True
    if target is None and node.args and writes and ".init." not in qualified:
        target = node.args[0].value
        values = arguments.positional[0] if arguments.positional else NOTHING
        operation = f"{last}()"
    if target is not None and not is_none(target):
        reading.recorder.event(
            InPlace, node, reading.state.mode, values=values, target=target, operation=operation
        )
