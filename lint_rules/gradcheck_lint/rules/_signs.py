"""Look for signs of a rule's subject in the bytes of a source, each once for all rules.

A word is looked for as it is. A ``Pattern`` has regular expressions, for what words alone say too
often: most files that say "backward" never call it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

_Confirms: TypeAlias = "Callable[[re.Match[bytes]], bool]"


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """Regular expressions over bytes, any of which may match.

    Those that begin with a word take a twentieth of the time of those that don't.
    """

    expressions: tuple[bytes, ...]
    words: tuple[bytes, ...] = ()
    """Words of which each match has one: they are looked for first, a hundred times as fast."""
    enough: tuple[bytes, ...] = ()
    """Words that are matches themselves."""
    confirms: _Confirms | None = None
    """Leaves out matches that only look like what is meant; whatever it can't tell stays."""


BACKWARD_CALL: Final = Pattern((rb"backward\s*\((?<!def backward\()",), words=(b"backward",))
"""``loss.backward(``, ``torch.autograd.backward(``, ``self.manual_backward(``; no definition."""

TRAINING_STEP: Final = Pattern(
    (rb"def (?:training_step|compute_loss)\b",),
    words=(b"def training_step", b"def compute_loss"),
)
"""The methods whose result Lightning and transformers differentiate."""
STEP_CALL: Final = Pattern((rb"\.\s*step\s*\(",), words=(b"step",), enough=(b".step(",))
UNSCALE_CALL: Final = Pattern((rb"unscale_\s*\(",), words=(b"unscale_",))
OPTIMIZER_NAME: Final = Pattern(
    (
        rb"opt(?![a-zA-Z])(?<![a-zA-Z]opt)",
        rb"ptim\b(?<=\b[oO]ptim)",
        rb"Opt(?![a-zA-Z])(?<![a-zA-Z]Opt)",
        rb"PT(?![a-zA-Z])(?<=[oO]PT)(?<![a-zA-Z][oO]PT)",
        rb"ptim\w{,60}[\s\\)]{,20}\.[\s\\]{,20}step[\s\\]{,20}\(",
        rb"PTIM\w{,60}[\s\\)]{,20}\.[\s\\]{,20}step[\s\\]{,20}\(",
        rb"step[\s\\]{,20}\([\s\\(]{,20}[\w.\s\\]{,99}[oO](?:ptim|PTIM)",
    ),
    words=(b"opt", b"Opt", b"OPT", b"oPT"),
    enough=(b"torch.optim", b"optim."),
)
"""A word by which the model takes something for an optimizer, or finds torch's own.

``torch.optim`` by that word, anything else by its name where it steps; prose is full of "optimize".
"""

FUNCTION_CLASS: Final = Pattern(
    (rb"class\s+\w+\s*\([^)]*Function", rb"Function\s+as\b"), words=(b"Function",)
)
"""A class whose base is called ``...Function``, or an alias by which it may be."""

WRITE_IN_PLACE: Final = Pattern(
    (
        rb"_\((?<=[^\W_]_\()",
        rb"_[\s\\]+\(",
        rb"out\s*=[^=](?<=[(,]out=.)",
        rb"[(,]\s*(?:#.{,999}\n\s*)*out\s*=[^=]",
    ),
    enough=(
        *(b"+=", b"-=", b"*=", b"/=", b"|=", b"&=", b"@=", b"%=", b"^=", b"<<=", b">>="),
        *(b"inplace=", b"inplace ", b"inplace\n"),
    ),
)
"""``inplace=True``, ``x.add_(``, ``x +=``, ``out=``."""

LEAF_WORD: Final = Pattern(
    (
        rb"requires_grad\w*\s*[=(]\s*(?!False\b)",
        rb"Parameter\b",
        rb"parameters\s*\(",
        rb"Variable\b",
        rb"\.[\s\\]*(?:weight|bias)\b",
    ),
    words=(b"requires_grad", b"Parameter", b"parameters", b"Variable", b"weight", b"bias"),
)
"""What makes a leaf that requires grad, or reaches one."""

FACTORY_CALL: Final = Pattern(
    (
        rb"(?:zeros|ones|empty|full|rand|arange|eye|linspace|logspace|normal)\w*\s*\(",
        rb"(?:[Tt]ensor|from_numpy|clone|new_)\w*\s*\(",
    ),
    enough=(b"zeros(", b"ones(", b"clone(", b"tensor(", b"arange(", b"randn(", b"full("),
)
"""A call by the name of a function that makes a tensor."""

OUTPUT_SAVING_CALL: Final = Pattern(
    (
        rb"igmoid\w*\s*\(",
        rb"anh\w*\s*\(",
        rb"oftmax\w*\s*\(",
        rb"sqrt_?\s*\(",
        rb"reciprocal_?\s*\(",
        rb"exp_?\s*\((?<!\wexp\()",
        rb"\b(?<!self\.)relu_?\s*\(",
        rb"(?:exp2|cumprod|logsumexp|\.tan)\s*\(",
    ),
    enough=(b"igmoid(", b"anh(", b"oftmax(", b"sqrt(", b".exp("),
)
"""A call of an operation or module that saves its output for backward."""


def _may_assign(match: re.Match[bytes]) -> bool:
    """Tell whether ``...] =`` may end the target of an assignment.

    It can't inside of parentheses, as in ``def f(sizes: list[int] = ()):``, nor where the line
    is an annotated name. Whatever looks otherwise may.
    """
    source, bracket = match.string, match.start()
    inside = source[max(0, bracket - 99) : bracket].rstrip()
    if inside.endswith((b"'", b'"')):
        return False
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

SUBSCRIPT_WRITE: Final = Pattern(
    (rb"\]\s*(?:[-+*/@%&|^]|//|\*\*|<<|>>)?=[^=]",), confirms=_may_assign
)
"""``x[i] =``, ``x[i] +=``; a tensor has no items under the names of strings."""


def _may_be_operand(match: re.Match[bytes]) -> bool:
    """Tell whether a call may be an operand, or what a method is called of."""
    source = match.string
    if _IN_ARITHMETIC.search(source[max(0, match.start() - _NEAR) : match.start()]):
        return True
    depth = 0
    # What stands in quotes or comments may have brackets of its own.
    first = match.end() - 1
    for found in _compiled(rb"[()\"'#]").finditer(source, first, first + _FAR):
        if found.group() not in b"()":
            return True
        depth += 1 if found.group() == b"(" else -1
        if depth == 0:
            return _compiled(rb"[\s\\)]*[-.*+/@%]").match(source, found.end()) is not None
    return True


_NEAR: Final = 200
_FAR: Final = 1000
_IN_ARITHMETIC = re.compile(rb"[-*+/@%][\s\\(]*[\w.\s\\]*\Z")

CONVERTED_PARAMETER: Final = Pattern(
    (rb"Parameter\s*\(",),
    words=(b"Parameter",),
    confirms=_may_be_operand,
)
"""``nn.Parameter(...).cuda()``, ``0.1 * nn.Parameter(...)``."""

PARAMETER_ALIAS: Final = Pattern((rb"Parameter\s+as\b",), words=(b"Parameter",))
"""``from torch.nn import Parameter as P``."""


def _may_be_iterated(match: re.Match[bytes]) -> bool:
    """Tell whether a loop may begin shortly before."""
    before = match.string[max(0, match.start() - _FAR) : match.start()]
    return b"for" in before and _compiled(rb"\bfor\b").search(before) is not None


LOOP_OVER_PARAMETERS: Final = Pattern(
    (rb"parameters\s*\(",), words=(b"parameters",), confirms=_may_be_iterated
)
"""``for p in model.parameters():``, and whatever else has a ``for`` not far before."""

GRADIENT: Final = Pattern((rb"\.[\s\\]*grad\b",), words=(b"grad",))
"""``x.grad``."""


class Signs:
    """The signs in one source, each looked for once."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._known: dict[bytes | Pattern, bool] = {}
        self._known_groups: dict[tuple[bytes | Pattern, ...], bool] = {}

    def has(self, sign: bytes | Pattern) -> bool:
        """Tell whether the source has a word, or something that a pattern describes."""
        known = self._known.get(sign)
        if known is None:
            source = self._source
            known = self._matches(sign) if isinstance(sign, Pattern) else sign in source
            self._known[sign] = known
        return known

    def has_any(self, group: tuple[bytes | Pattern, ...]) -> bool:
        """Tell whether the source has one of several signs."""
        known = self._known_groups.get(group)
        if known is None:
            known = self._known_groups[group] = any(map(self.has, group))
        return known

    def _matches(self, sign: Pattern) -> bool:
        source = self._source
        if any(word in source for word in sign.enough):
            return True
        if sign.words and not any(word in source for word in sign.words):
            return False
        if sign.confirms is not None:
            return any(
                any(map(sign.confirms, _compiled(expression).finditer(source)))
                for expression in sign.expressions
            )
        return any(_compiled(expression).search(source) for expression in sign.expressions)


@cache
def _compiled(expression: bytes) -> re.Pattern[bytes]:
    return re.compile(expression)
