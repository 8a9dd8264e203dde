"""Find backwards of what has no graph, and say which call took it away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_lint.analyses.repeated_calls import differentiated_later
from gradcheck_lint.model.flow import Backward, Forward
from gradcheck_lint.model.values import Kind, all_are, cut_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import libcst as cst

    from gradcheck_lint.model.module import FunctionModel


def cut_backwards(function: FunctionModel) -> Iterator[tuple[Backward, cst.CSTNode]]:
    """Yield every backward of a value that surely has no graph, and where it lost it."""
    for event in (*function.events(), *differentiated_later(function)):
        if not isinstance(event, Backward) or event.expects_error:
            continue
        cut = cut_of(event.values)
        if cut is not None and all_are(event.values, Kind.PLAIN, Kind.NUMBER):
            yield event, cut


def is_certain(backward: Backward) -> bool:
    """Tell whether the value has no graph for sure: a call not looked into may enable it."""
    return all(value.certain for value in backward.values)


def forwards_by_node(function: FunctionModel) -> dict[int, Forward]:
    """Return the calls of models in a function, by their nodes."""
    return {id(event.node): event for event in function.events() if isinstance(event, Forward)}
