"""Look for signs of a rule's subject in the bytes of a source, each once for all rules.

A word is looked for as it is. A ``Pattern`` is a regular expression, for what words alone say too
often: most files that say "backward" never call it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """A regular expression over bytes, compiled when it is first looked for.

    ``is_assignment`` leaves out what looks like an assignment to an item and is none.
    """

    expression: bytes
    is_assignment: bool = False
    words: tuple[bytes, ...] = ()
    """Words of which each match has one: they are looked for first, a hundred times as fast."""
    enough: tuple[bytes, ...] = ()
    """Words that are matches themselves."""


BACKWARD_CALL: Final = Pattern(rb"backward\s*\((?<!def backward\()", words=(b"backward",))
"""``loss.backward(``, ``torch.autograd.backward(``, ``self.manual_backward(``; no definition."""

STEP_CALL: Final = Pattern(rb"\.\s*step\s*\(")
UNSCALE_CALL: Final = Pattern(rb"\bunscale_\s*\(", words=(b"unscale_",))
OPTIMIZER_NAME: Final = Pattern(
    rb"\b[oO]ptim\b|(?<![a-zA-Z])[oO](?:pt|PT)(?![a-zA-Z])"
    rb"|[oO](?:ptim|PTIM)\w{,60}[\s\\)]{,20}\.[\s\\]{,20}step[\s\\]{,20}\("
    rb"|step[\s\\]{,20}\([\s\\(]{,20}[\w.\s\\]{,99}[oO](?:ptim|PTIM)",
    words=(b"opt", b"Opt", b"OPT"),
    enough=(b"torch.optim", b"optim."),
)
"""A word by which the model takes something for an optimizer, or finds torch's own.

``torch.optim`` by that word, anything else by its name where it steps; prose is full of "optimize".
"""

FUNCTION_CLASS: Final = Pattern(
    rb"\bclass\s+\w+\s*\([^)]*Function|\bFunction\s+as\b", words=(b"Function",)
)
"""A class whose base is called ``...Function``, or an alias by which it may be."""

WRITE_IN_PLACE: Final = Pattern(
    rb"inplace\s*=|[^\W_]_\s*\(|(?:[-+*/@%&|^]|<<|>>)=|[(,]\s*(?:#.{,999}\n\s*)*out\s*=[^=]",
    enough=(b"+=", b"-=", b"*=", b"/=", b"|=", b"&="),
)
"""``inplace=True``, ``x.add_(``, ``x +=``, ``out=``."""

SUBSCRIPT_WRITE: Final = Pattern(
    rb"[^\"'\s]\s*\]\s*(?:[-+*/@%&|^]|//|\*\*|<<|>>)?=[^=]", is_assignment=True
)
"""``x[i] =``, ``x[i] +=``; a tensor has no items under the names of strings."""

LEAF_WORD: Final = Pattern(
    rb"requires_grad\w*\s*[=(]\s*(?!False\b)|Parameter\b|parameters\s*\(|Variable\b"
    rb"|\.[\s\\]*(?:weight|bias)\b"
)
"""What makes a leaf that requires grad, or reaches one."""

FACTORY_CALL: Final = Pattern(
    rb"(?:zeros|ones|empty|full|rand|arange|eye|linspace|logspace|normal|[Tt]ensor|from_numpy"
    rb"|clone|new_)\w*\s*\("
)
"""A call by the name of a function that makes a tensor."""

OUTPUT_SAVING_CALL: Final = Pattern(
    rb"(?:igmoid\w*|anh\w*|oftmax\w*|sqrt_?|reciprocal_?|\bexp_?)\s*\(",
    words=(b"igmoid", b"anh", b"oftmax", b"sqrt", b"reciprocal", b"exp"),
    enough=(b"igmoid(", b"anh(", b"oftmax(", b"sqrt(", b".exp("),
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
            source = self._source
            known = self._matches(sign) if isinstance(sign, Pattern) else sign in source
            self._known[sign] = known
        return known

    def _matches(self, sign: Pattern) -> bool:
        source = self._source
        if any(word in source for word in sign.enough):
            return True
        if sign.words and not any(word in source for word in sign.words):
            return False
        expression = _compiled(sign.expression)
        if sign.is_assignment:
            return _any_assigns(expression.finditer(source), source)
        return expression.search(source) is not None


def _any_assigns(matches: Iterator[re.Match[bytes]], source: bytes) -> bool:
    return any(_may_assign(source, match) for match in matches)


def _may_assign(source: bytes, match: re.Match[bytes]) -> bool:
    """Tell whether ``...] =`` may end the target of an assignment.

    It can't inside of parentheses, as in ``def f(sizes: list[int] = ()):``, nor where the line
    is an annotated name. Whatever looks otherwise may.
    """
    bracket = source.rindex(b"]", *match.span())
    before = source[source.rfind(b"\n", 0, bracket) + 1 : bracket + 1]
    if b"#" in before or b"'" in before or b'"' in before:
        return True
    if before.count(b"(") > before.count(b")"):
        return False
    name, colon, annotation = before.partition(b":")
    return (
        not colon
        or _compiled(rb"\s*\w+\s*").fullmatch(name) is None
        or name.strip() in _ONE_LINE_BLOCKS
        or annotation.count(b"[") != annotation.count(b"]")
    )


_ONE_LINE_BLOCKS: Final = frozenset({b"else", b"try", b"finally"})


@cache
def _compiled(expression: bytes) -> re.Pattern[bytes]:
    return re.compile(expression)
