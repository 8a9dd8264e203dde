"""What a custom Function says of its tensors: inputs that it writes, outputs without a gradient."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from gradcheck_suite import _torch_compat
from gradcheck_suite.verification.diagnosis.contract_messages import constant_output, unmarked_write
from gradcheck_suite.verification.numerics.directions import generator_for, random_signs, scales_of
from gradcheck_suite.verification.numerics.evaluation_point import evaluate
from gradcheck_suite.verification.stages.contracts.function_nodes import custom_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gradcheck_suite.findings import Finding
    from gradcheck_suite.verification.numerics.recorded_call import RecordedCall
    from gradcheck_suite.verification.stage import CheckState
    from gradcheck_suite.verification.target.pure_function import PureFunction

__all__ = ["constant_outputs", "find_unmarked_writes", "unmarked_writes"]

_STEP = 2.0**-10
"""How far variables move, in units of their scale, to see whether an output stays as it is. Chosen:
thousands of roundings of float32, and no other branch of most functions."""


def unmarked_writes(state: CheckState, recording: RecordedCall) -> Iterator[Finding]:
    """Report Functions of a recorded call that write into inputs without marking them dirty."""
    values = state.context.point.values
    yield from find_unmarked_writes(
        state.subject, values, recording.functions(), all_right=state.clean
    )


def find_unmarked_writes(
    subject: PureFunction,
    values: Sequence[torch.Tensor],
    functions: Sequence[type],
    *,
    all_right: bool = False,
) -> Iterator[Finding]:
    """Call a function once and watch what these Functions' forwards do with their inputs.

    Only inputs that need a gradient count: writing a buffer or running statistics is no breach.
    Code that hands a buffer on from write to write, and never looks back, has right gradients all
    the same: what is written and returned is then a warning.

    Args:
        subject: what is called.
        values: those of its variables.
        functions: the Functions to watch.
        all_right: whether every gradient has been found to be right.
    """
    written: dict[tuple[type, int], bool] = {}
    # Where it raises, what was seen until then still counts.
    with _watched(functions, written), torch.enable_grad(), contextlib.suppress(Exception):
        subject(subject.leaves(values))
    for (function, place), is_returned in written.items():
        yield unmarked_write(function, place, is_harmless=all_right and is_returned)


@contextlib.contextmanager
def _watched(functions: Sequence[type], written: dict[tuple[type, int], bool]) -> Iterator[None]:
    """Watch the forwards of these Functions while the context lasts.

    What they write is noted by Function and number of the input, with whether they return it.
    """
    own = {function: vars(function).get("forward") for function in functions}
    for function in functions:
        setattr(function, "forward", staticmethod(_watcher(function, written)))  # noqa: B010
    try:
        yield
    finally:
        for function, forward in own.items():
            if forward is None:
                delattr(function, "forward")
            else:
                setattr(function, "forward", forward)  # noqa: B010


def _watcher(function: type, written: dict[tuple[type, int], bool]) -> Callable[..., Any]:
    forward: Callable[..., Any] = getattr(function, "forward")  # noqa: B009
    setup: Any = getattr(function, "setup_context", None)
    takes_ctx = setup is torch.autograd.Function.setup_context

    def watch(*arguments: Any) -> Any:
        given = arguments[1:] if takes_ctx else arguments
        before = {
            place: (tensor, tensor.detach().clone())
            for place, tensor in enumerate(given)
            if isinstance(tensor, torch.Tensor)
            and tensor.layout == torch.strided
            and tensor.is_floating_point()
            and tensor.requires_grad
        }
        result = forward(*arguments)
        marked = {id(it) for it in getattr(arguments[0], "dirty_tensors", None) or ()}
        for place, (tensor, copy) in before.items():
            same = torch.equal(torch.nan_to_num(tensor.detach()), torch.nan_to_num(copy))
            if takes_ctx and not same and id(tensor) not in marked:
                returned = result if isinstance(result, tuple) else (result,)
                is_returned = any(each is tensor for each in returned)
                written[function, place] = is_returned and written.get((function, place), True)
        return result

    return watch


def constant_outputs(
    state: CheckState, recording: RecordedCall, cotangents: Sequence[torch.Tensor]
) -> Iterator[Finding]:
    """Report outputs of a Function that require grad, never change and have no gradient."""
    names = {output.name: output.tensor for output in state.context.point.outputs}
    for index in recording.attached:
        node = recording.tensors[index].grad_fn
        function = None if node is None else _torch_compat.custom_function_class(node)
        if function is None or node not in custom_nodes([recording.tensors[index]])[:1]:
            continue
        try:
            row = recording.pull({index: cotangents[index].clone()})
        except Exception:  # noqa: BLE001 - probed elsewhere
            continue
        if any(part is not None and bool((part != 0).any()) for part in row):
            continue
        name = state.context.point.outputs[index].name
        tensor = names[name]
        if tensor.numel() == 0 or not torch.equal(tensor, tensor.round()):
            continue
        if not _stays(state, name, tensor):
            continue
        yield constant_output(function, name, recording.tensors[index].output_nr)


def _stays(state: CheckState, name: str, tensor: torch.Tensor) -> bool:
    """Return whether an output stays as it is when all variables move a little."""
    values = state.context.point.values
    moved = [
        value
        + (_STEP * scale * random_signs(value, generator_for(index))).where(
            torch.isfinite(value), 0.0
        )
        for index, (value, scale) in enumerate(zip(values, scales_of(values), strict=True))
    ]
    try:
        now = {
            output.name: output.tensor
            for output in evaluate(state.subject, moved, recorded=state.context.point.recorded)
        }
    except Exception:  # noqa: BLE001 - the user's function may fail off the given point
        return False
    return name in now and torch.equal(now[name], tensor)
