"""Look for signs of a rule's subject in the bytes of a source, each once for all rules.

A word is looked for as it is. A ``Pattern`` is a regular expression, for what words alone say too
often: most files that say "backward" never call it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Final


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regular expression over bytes, compiled when it is first looked for."""

    expression: bytes


BACKWARD_CALL: Final = Pattern(rb"(?<!def )\b\w*backward\s*\(")
"""``loss.backward(``, ``torch.autograd.backward(``, ``self.manual_backward(``; no definition."""

STEP_CALL: Final = Pattern(rb"\.\s*step\s*\(")
OPTIMIZER_NAME: Final = Pattern(rb"optim|(?<![a-zA-Z])opt(?![a-zA-Z])")
"""A word by which the model takes something for an optimizer, or finds torch's own."""

FUNCTION_CLASS: Final = Pattern(rb"\bclass\s+\w+\s*\([^)]*Function|\bFunction\s+as\b")
"""A class whose base is called ``...Function``, or an alias by which it may be."""

WRITE_IN_PLACE: Final = Pattern(
    rb"inplace\s*=|[^\W_]_\s*\(|[-+*/@%&|^<>]=[^=]|\]\s*=[^=]|\bout\s*=|\bdel\b"
)
"""``inplace=True``, ``x.add_(``, ``x +=``, ``x[i] =``, ``out=``."""

SUBSCRIPT_WRITE: Final = Pattern(rb"\]\s*(?:[-+*/@%&|^]|//|\*\*)?=[^=]")
"""``x[i] =``, ``x[i] +=``."""

FACTORY_CALL: Final = Pattern(
    rb"(?:zeros|ones|empty|full|rand|arange|eye|linspace|logspace|normal|[Tt]ensor|from_numpy"
    rb"|clone|new_)\w*\s*\("
)
"""A call by the name of a function that makes a tensor."""

OUTPUT_SAVING_CALL: Final = Pattern(
    rb"(?:igmoid\w*|anh\w*|oftmax\w*|sqrt_?|reciprocal_?|\bexp_?)\s*\("
)
"""A call of an operation or module that saves its output for backward."""


class Signs:
    """The signs in one source, each looked for once."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._known: dict[bytes | Pattern, bool] = {}

    def has(self, sign: bytes | Pattern) -> bool:
        """Tell whether the source has a word, or something that a pattern describes."""
        known = self._known.get(sign)
        if known is None:
            if isinstance(sign, Pattern):
                known = _compiled(sign.expression).search(self._source) is not None
            else:
                known = sign in self._source
            self._known[sign] = known
        return known


@cache
def _compiled(expression: bytes) -> re.Pattern[bytes]:
    return re.compile(expression)
