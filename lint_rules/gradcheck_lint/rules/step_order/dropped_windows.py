"""Find windows of accumulation that go on over epochs, and gradients that each epoch clears."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import libcst as cst

from gradcheck_lint.model.flow import Backward, Branch, Call, Jump, JumpKind, Loop, Step, ZeroGrad
from gradcheck_lint.model.syntax import assigned_pairs, dotted_name, walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gradcheck_lint.model.flow import Block, Event
    from gradcheck_lint.model.module import FunctionModel

__all__ = ["DroppedWindow", "dropped_windows"]


class DroppedWindow(NamedTuple):
    """A reset at the beginning of an epoch, the counter that goes on, and the test of the step."""

    reset: ZeroGrad
    counter: str
    test: cst.BaseExpression


def dropped_windows(function: FunctionModel) -> Iterator[DroppedWindow]:
    """Yield what clears the gradients of a window that the epoch before has begun."""
    words = function.scope.words
    if "backward" not in words or "zero_grad" not in words:
        return
    for epoch in function.loops():
        items = epoch.body.items
        for place, batches in enumerate(items):
            if not isinstance(batches, Loop):
                continue
            resets = [item for item in items[:place] if isinstance(item, ZeroGrad)]
            is_flushed = any(_steps(item, function) for item in items[place + 1 :])
            window = _window(batches, function)
            if not resets or is_flushed or window is None:
                continue
            counter = _counter(window, batches, epoch)
            if counter is not None:
                yield DroppedWindow(resets[-1], counter, window)


def _window(batches: Loop, function: FunctionModel) -> cst.BaseExpression | None:
    """Return the test that the step of a loop waits for, while each iteration differentiates."""
    items = batches.body.items
    if not any(isinstance(item, Backward) for item in items):
        return None
    skipped = _skipped_by(items, function)
    if skipped is not None:
        return skipped
    if any(_steps(item, function) for item in items if not isinstance(item, Branch)):
        return None
    tests = [
        item.test
        for item in items
        if isinstance(item, Branch)
        and item.test is not None
        and any(_steps(event, function) for event in item.arms[0].events())
    ]
    if len(tests) != 1 or any(type(node) is cst.BooleanOperation for node in walk(tests[0])):
        return None
    return tests[0]


def _skipped_by(
    items: Sequence[Event | Branch | Loop], function: FunctionModel
) -> cst.BaseExpression | None:
    """Return the test of ``if count % every: continue`` that only a later step comes after."""
    for place, item in enumerate(items):
        if _steps(item, function):
            return None
        if isinstance(item, Branch) and item.test is not None:
            leaves = any(
                isinstance(event, Jump) and event.how is JumpKind.CONTINUE
                for event in item.arms[0].events()
            )
            if leaves and any(_steps(later, function) for later in items[place + 1 :]):
                return item.test
    return None


def _steps(item: Event | Branch | Loop, function: FunctionModel) -> bool:
    if isinstance(item, (Branch, Loop)):
        blocks: list[Block] = item.arms if isinstance(item, Branch) else [item.body]
        return any(_steps(event, function) for block in blocks for event in block.events())
    if isinstance(item, Call) and item.function is not None:
        return any(
            isinstance(event, Step) for event in function.module.function(item.function).events()
        )
    return isinstance(item, Step)


def _counter(test: cst.BaseExpression, batches: Loop, epoch: Loop) -> str | None:
    """Return what a test counts by, if that goes on from one epoch to the next."""
    names = {dotted_name(node) for node in walk(test)} - {None}
    for node in walk(batches.node):
        if type(node) is cst.AugAssign and dotted_name(node.target) in names:
            counter = dotted_name(node.target)
            if not _is_set_before(counter, batches, epoch):
                return counter
        for target, value in assigned_pairs(node):
            used = {dotted_name(each) for each in walk(value)}
            if dotted_name(target) in names and used & epoch.targets:
                return dotted_name(target)
    return None


def _is_set_before(name: str | None, batches: Loop, epoch: Loop) -> bool:
    """Return whether each epoch begins to count anew."""
    inside = {id(node) for node in walk(batches.node)}
    return any(
        dotted_name(target) == name
        for node in walk(epoch.node)
        if id(node) not in inside
        for target, _ in assigned_pairs(node)
    )
