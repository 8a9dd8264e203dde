"""Record what each iteration puts under a key of its own: ``d[i] = x``, ``d.update({i: x})``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from gradcheck_lint.model.flow import Store, StoreKind
from gradcheck_lint.model.syntax import dotted_name, positional
from gradcheck_lint.model.values import Kind, Value, Values, all_are, join_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gradcheck_lint.model.reading import Reading

__all__ = ["note_entry", "note_update"]


def note_entry(
    reading: Reading,
    node: cst.CSTNode,
    path: str,
    *,
    keys: Iterable[cst.BaseExpression],
    values: Values,
    source: cst.BaseExpression,
) -> None:
    """Record that a container of this name gets one more value, if the key is a new one."""
    loops = reading.recorder.loops
    if not loops:
        return
    made_in = {loop for value in values for loop in value.loops}
    if next((loop for loop in reversed(loops) if loop in made_in), loops[-1]) != loops[-1]:
        return  # the keys of a loop over what is there already are the same ones each time
    names = [name for key in keys for name in _names_in(key)]
    if not any(_counts(reading, value, loops) for name in names for value in reading.look_up(name)):
        return
    held = reading.look_up(path)
    if all_are(held, Kind.CONTAINER):
        reading.recorder.event(
            Store,
            node,
            reading.state.mode,
            how=StoreKind.APPEND,
            target=path,
            target_values=held,
            stored=values,
            stored_node=source,
        )


def _counts(reading: Reading, value: Value, loops: tuple[int, ...]) -> bool:
    """Tell whether this numbers the iterations, and is no key of what a loop goes through.

    ``for name, net in nets.items()`` comes to the same few names again and again, and a loop inside
    of another one counts from the start each time: that is many only where it counts batches.
    """
    if value.kind is not Kind.NUMBER or value.loops[-1:] != loops[-1:]:
        return False
    if isinstance(value.node, (cst.AugAssign, cst.BinaryOperation)):
        return True
    is_whole = len(loops) == 1 or loops[-1] in reading.recorder.over_data
    return is_whole and type(value.node) is not cst.Call


def note_update(
    reading: Reading,
    node: cst.CSTNode,
    container: cst.BaseExpression,
    *,
    written: cst.BaseExpression,
    given: Values,
) -> None:
    """Record what ``d.update({key: x})`` and ``d |= {key: x}`` add, where that stands there."""
    path = dotted_name(container)
    if path is None or type(written) is not cst.Dict:
        return
    for element in written.elements:
        if type(element) is not cst.DictElement:
            continue
        name = dotted_name(element.value)
        if name is not None:
            values = reading.look_up(name)
        elif len(written.elements) == 1:
            values = join_all(part for value in given for part in value.parts)
        else:
            continue
        keys = [element.key]
        note_entry(reading, node, path, keys=keys, values=values, source=element.value)


def _names_in(key: cst.BaseExpression) -> Iterator[str]:
    """Yield the names that a key is made of in such a way that another one makes another key.

    What comes of a remainder, as ``i % 10``, repeats, and so may what a function returns.
    """
    name = dotted_name(key)
    if name is not None:
        yield name
        return
    parts: list[cst.BaseExpression] = []
    if type(key) is cst.FormattedString:
        parts = [
            part.expression for part in key.parts if type(part) is cst.FormattedStringExpression
        ]
    elif type(key) is cst.Tuple:
        parts = [element.value for element in key.elements]
    elif type(key) is cst.BinaryOperation and type(key.operator) in _KEEPS_APART:
        parts = [key.left, key.right]
    elif type(key) is cst.Call and dotted_name(key.func) == "str":
        parts = positional(key)
    for part in parts:
        yield from _names_in(part)


_KEEPS_APART = frozenset({cst.Add, cst.Subtract, cst.Multiply})
