"""Tell a user whose functions have another shape than the one they are called with."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

from gradcheck_suite.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["mistaken_argument", "refuse_maker", "refuse_signature"]

_TRAIN = "train(state, batches, accumulation_steps)"
_WRAP = "write it so, or wrap it, as in lambda state, batches, steps: train(*state, batches, steps)"
_PARTS = ("what make() returned", "the list of batches", "the number of steps to accumulate")
# What Python calls the object that could not do what was asked of it.
_TYPE_NAMED = re.compile(r"'(\w+)' object|non-iterable (\w+) object")


def refuse_signature(train: Callable[..., object]) -> None:
    """Refuse a loop that can't be called with its three arguments.

    Raises:
        UsageError: with the shape that is expected, and the one that was seen.
    """
    refusal, seen = _refusal(train, (None, [], 1))
    if refusal is not None:
        raise UsageError(
            f"check_accumulation: the loop is called as {_TRAIN}, which {seen} can't be: "
            f"{refusal}; {_WRAP}"
        )


def refuse_maker(make: Callable[..., object]) -> None:
    """Refuse a function that can't be called without arguments.

    Raises:
        UsageError: as above.
    """
    refusal, seen = _refusal(make, ())
    if refusal is not None:
        raise UsageError(
            f"check_accumulation: what the loop trains is made by make(), which {seen} can't be "
            f"called as: {refusal}; give a function without arguments that returns the model and "
            "its optimizer, as in lambda: (model, optimizer)"
        )


def mistaken_argument(
    error: BaseException, train: Callable[..., object], arguments: Sequence[Any]
) -> UsageError | None:
    """Return what to say where a loop took one of its arguments for something else.

    That is known where an attribute was asked of the very argument, or where a type can't do what
    was tried of which the failing function holds nothing but the argument.
    """
    position = _of_attribute(error, arguments)
    if position is None:
        position = _of_type(error, arguments)
    if position is None:
        return None
    _, seen = _refusal(train, arguments)
    return UsageError(
        f"check_accumulation: the loop is called as {_TRAIN}, and {seen} took {_PARTS[position]} "
        f"for something else: {type(error).__name__}: {error}; {_WRAP}"
    )


def _of_attribute(error: BaseException, arguments: Sequence[Any]) -> int | None:
    if not isinstance(error, AttributeError):
        return None
    return next((i for i, given in enumerate(arguments) if given is error.obj), None)


def _of_type(error: BaseException, arguments: Sequence[Any]) -> int | None:
    named = _TYPE_NAMED.search(str(error)) if isinstance(error, TypeError) else None
    traceback = error.__traceback__
    if named is None or traceback is None:
        return None
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    named_so = [
        v for v in traceback.tb_frame.f_locals.values() if type(v).__name__ in named.groups()
    ]
    return next(
        (
            i
            for i, given in enumerate(arguments)
            if named_so and all(value is given for value in named_so)
        ),
        None,
    )


def _refusal(
    function: Callable[..., object], arguments: Sequence[object]
) -> tuple[TypeError | None, str]:
    """Return why a call fails before it begins, and how the function is written."""
    name = getattr(function, "__name__", type(function).__name__)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions of C have none
        return None, name
    shown = ", ".join(signature.parameters)
    try:
        signature.bind(*arguments)
    except TypeError as error:
        return error, f"{name}({shown})"
    return None, f"{name}({shown})"
