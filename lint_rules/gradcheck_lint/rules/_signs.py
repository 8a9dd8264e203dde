"""Look for signs of a rule's subject in the bytes of a source, each once for all rules.

A word is looked for as it is. A ``Pattern`` has regular expressions, for what words alone say too
often: most files that say "backward" never call it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, lru_cache, wraps
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_Confirms: TypeAlias = "Callable[[re.Match[bytes]], bool]"
_Question: TypeAlias = "Callable[[bytes, bytes], bool]"


def asked_once(*, otherwise: bool) -> Callable[[_Question], _Question]:
    """Answer a question about a name in a source once, and no more than so many of them.

    A file that gives ever more names would take the square of its size; what is then not asked is
    answered by ``otherwise``.
    """

    def wrap(ask: _Question) -> _Question:
        @wraps(ask)
        def answer(source: bytes, name: bytes) -> bool:
            known = _answers(source)
            key = (ask, name)
            if key not in known:
                if len(known) >= _MOST_NAMES:
                    return otherwise
                known[key] = ask(source, name)
            return known[key]

        return answer

    return wrap


@lru_cache(maxsize=1)
def _answers(source: bytes) -> dict[tuple[_Question, bytes], bool]:
    del source
    return {}


_MOST_NAMES: Final = 200


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

OPTIMIZER_PACKAGE: Final = Pattern(
    (rb"\boptim\b",), words=(b"optim",), enough=(b"torch.optim", b"optim.")
)
"""The package of torch's optimizers, as an import or an attribute names it."""

FUNCTION_CLASS: Final = Pattern(
    (rb"class\s+\w+\s*\([^)]*Function", rb"Function\s+as\b"), words=(b"Function",)
)
"""A class whose base is called ``...Function``, or an alias by which it may be."""


def _may_write(match: re.Match[bytes]) -> bool:
    """Tell whether ``out =`` may be an argument of a call, or a call writes to what it's given."""
    source, start = match.string, match.start()
    before = source[max(0, start - _NEAR) : start]
    if source[start : start + 3] != b"out":
        # What sets the first values of parameters does it unrecorded.
        return compiled(rb"\b(?:init\.|def[ \t]+)\w*\Z").search(before) is None
    before = before.rstrip()
    while (comment := before.find(b"#", before.rfind(b"\n") + 1)) >= 0:
        before = before[:comment].rstrip()
    return before.endswith((b"(", b",")) or (not before and start > _NEAR)


_NEAR: Final = 200

CALL_IN_PLACE: Final = Pattern(
    (rb"_\((?<=[^\W_]_\()", rb"_[\s\\]+\(", rb"out(?<!\wout)\s*=[^=]"),
    enough=(b"inplace=", b"inplace ", b"inplace\n"),
    confirms=_may_write,
)
"""``inplace=True``, ``x.add_(``, ``out=``."""

LAYER_IN_PLACE: Final = Pattern(
    (
        rb"(?:LU|[Ss]wish|igmoid|Mish|ReLU6)[\s\\]*\([\s\\]*True\b",
        rb"(?:LU|Dropout\w*|anh|Threshold)[\s\\]*\([^()\n]{1,99},[\s\\]*True\b",
    ),
    words=(b"(True", b", True", b",True"),
)
"""``nn.ReLU(True)``, ``nn.Dropout(0.5, True)``: ``inplace`` is the last parameter of both."""

DROPOUT_IN_PLACE: Final = Pattern(
    (rb"Dropout\w*[\s\\]*\([^()]{,200}\bTrue\b",), words=(b"Dropout",)
)
"""``nn.Dropout(0.5, inplace=True)``, which may come after ReLU."""

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
        rb"relu_?\s*\((?<!\wrelu\()(?<!\wrelu_\()(?<!self\.relu\()(?<!self\.relu_\()",
        *(rb"exp2\s*\(", rb"cumprod\s*\(", rb"logsumexp\s*\(", rb"\.tan\s*\("),
    ),
    enough=(b"igmoid(", b"anh(", b"oftmax(", b"sqrt(", b".exp("),
)
"""A call of an operation or module that saves its output for backward."""


def may_assign(match: re.Match[bytes]) -> bool:
    """Tell whether ``...] =`` may end the target of an assignment.

    It can't inside of parentheses, as in ``def f(sizes: list[int] = ()):``, nor where the line
    is an annotated name. Whatever looks otherwise may.
    """
    source, bracket = match.string, match.start()
    line = source.rfind(b"\n", 0, bracket) + 1
    if source[max(line, bracket - 99) : bracket].rstrip().endswith((b"'", b'"')):
        return False
    before = source[line : bracket + 1]
    if before.strip() == b"]":
        # `] = None,` ends a parameter whose annotation has lines of its own.
        return compiled(_DEFAULT).match(source, match.end() - 1) is None
    before = without_strings(before)
    if b"#" in before or b"'" in before or b'"' in before:
        return False
    if before.count(b"(") > before.count(b")"):
        return False
    name, colon, annotation = before.partition(b":")
    return (
        not colon
        or compiled(rb"\s*[\w.]+\s*").fullmatch(name) is None
        or name.strip() in _ONE_LINE_BLOCKS
        or annotation.count(b"[") != annotation.count(b"]")
    )


def without_strings(line: bytes) -> bytes:
    """Return the beginning of a line with zeros in place of the strings that end on it."""
    if b"'" not in line and b'"' not in line:
        return line
    return compiled(rb"\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'").sub(_zeros, line)


def _zeros(match: re.Match[bytes]) -> bytes:
    return b"0" * len(match[0])


_DEFAULT: Final = rb"[ \t]*(?:None|True|False|[\d.]+|\"[^\"\n]*\"|'[^'\n]*'),[ \t]*[#\r\n]"
_ONE_LINE_BLOCKS: Final = frozenset({b"else", b"try", b"finally"})

SUBSCRIPT_WRITE: Final = Pattern(
    (rb"\]\s*(?:[-+*/@%&|^]|//|\*\*|<<|>>)?=[^=]",), confirms=may_assign
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
    for found in compiled(rb"[()\"'#]").finditer(source, first, first + _FAR):
        if found.group() not in b"()":
            return True
        depth += 1 if found.group() == b"(" else -1
        if depth == 0:
            return compiled(rb"[\s\\)]*[-.*+/@%]").match(source, found.end()) is not None
    return True


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


def _may_be_rebound(match: re.Match[bytes]) -> bool:
    """Tell whether what a loop over parameters names may be given another value."""
    before = match.string[max(0, match.start() - _FAR) : match.start()]
    if before[-1:] in _WORDS and not before.endswith(b"named_"):
        return False
    if b"for" not in before:
        return False
    targets = compiled(rb"for\b(?<!\wfor)(.*?)\bin\b").findall(before.replace(b"\n", b" "))
    names = {name for target in targets for name in compiled(rb"\w+").findall(target)}
    return any(_is_bound(match.string, name) for name in names)


@asked_once(otherwise=True)
def _is_bound(source: bytes, name: bytes) -> bool:
    """Tell whether a name, or an attribute of that name, is assigned to somewhere."""
    follows = compiled(rb"[\s\\]*=[^=]").match
    return any(follows(source, end) is not None for _, end in whole_words(source, name))


LOOP_OVER_PARAMETERS: Final = Pattern(
    (rb"parameters\s*\(",), words=(b"parameters",), confirms=_may_be_rebound
)
"""``for p in model.parameters():``, where something else is assigned to ``p`` in the file."""


def _may_be_updated(match: re.Match[bytes]) -> bool:
    """Tell whether what has a gradient is assigned to."""
    owner = compiled(rb"(\w+)[\s\\]*\Z").search(
        match.string[max(0, match.start() - 99) : match.start()]
    )
    if owner is not None and _is_bound(match.string, owner[1]):
        return True
    line = match.string[match.string.rfind(b"\n", 0, match.start()) + 1 : match.start()]
    if compiled(rb"(?:\A|[:;])\s*[\w.]+\[[^=]*\]\s*=[^=]").search(line) is not None:
        return True
    is_operand = compiled(rb"[-+*(]\s*\w+\Z").search(line) is not None
    return is_operand and _BEFORE_FOR.match(match.string, match.end()) is not None


_BEFORE_FOR: Final = re.compile(rb"\)*[^=;)\n]*(?:\n[^=;)\n]*)?\bfor\b")
UPDATE_BY_GRADIENT: Final = Pattern(
    (rb"\.[\s\\]*grad\b",), words=(b"grad",), confirms=_may_be_updated
)
"""``x.grad``, where something is assigned to ``x``, an item is made of it, or a comprehension."""


def blocks_around(
    source: bytes, start: int, indentation: int
) -> Iterator[tuple[bytes, int] | None]:
    """Yield the first words of the blocks around a line, inner ones first, and where they begin.

    ``start`` is the beginning of the line, ``indentation`` counts characters. None says that the
    rest can't be told.
    """
    first_word = compiled(rb"[ \t]*(\w+)")
    for _ in range(_MOST_LINES):
        if not start or not indentation:
            return
        end = start - 1
        start = source.rfind(b"\n", 0, end) + 1
        if source.find(b'"""', start, end) >= 0 or source.find(b"'''", start, end) >= 0:
            # The text of a string may stand anywhere.
            break
        first = first_word.match(source, start, end)
        if first is not None and first.start(1) - start < indentation:
            indentation = first.start(1) - start
            yield first[1], start
    yield None


_MOST_LINES: Final = 200
"""Looking on costs more than reading the source would."""


def _may_be_no_test(match: re.Match[bytes]) -> bool:
    """Tell whether this may stand outside of unit tests, which run a model once or twice."""
    source, start = match.string, match.string.rfind(b"\n", 0, match.start()) + 1
    line = source[start : match.start()]
    for block in blocks_around(source, start, len(line) - len(line.lstrip(b" \t"))):
        if block is None:
            return True
        if block[0] == b"def":
            defines = compiled(rb"([ \t]*)def\s+test_").match(source, block[1])
            return defines is None or not (defines[1] or b"pytest" in source)
    return True


EVALUATION: Final = Pattern((rb"\.eval\(\)",), words=(b".eval()",), confirms=_may_be_no_test)
"""``model.eval()``, save in unit tests."""


class Signs:
    """The signs in one source, each looked for once."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._known: dict[bytes | Pattern, bool] = {}
        self._known_groups: dict[tuple[bytes | Pattern, ...], bool] = {}
        self._item_writes: list[re.Match[bytes]] | None = None

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

    def is_missing(self, group: tuple[bytes | Pattern, ...]) -> bool:
        """Tell whether it is known already that the source has none of several signs."""
        return self._known_groups.get(group) is False

    def _matches(self, sign: Pattern) -> bool:
        source, has = self._source, self.has
        if any(map(has, sign.enough)):
            return True
        if sign.words and not any(map(has, sign.words)):
            return False
        # Most of what expressions begin with isn't in most files, which is told much faster.
        possible = (each for each in sign.expressions if has(beginning(each)))
        if sign.confirms is not None:
            return any(
                any(map(sign.confirms, self._matches_of(expression))) for expression in possible
            )
        return any(compiled(expression).search(source) for expression in possible)

    def _matches_of(self, expression: bytes) -> Iterable[re.Match[bytes]]:
        if expression not in SUBSCRIPT_WRITE.expressions:
            return compiled(expression).finditer(self._source)
        # Three patterns look at these.
        if self._item_writes is None:
            self._item_writes = list(compiled(expression).finditer(self._source))
        return self._item_writes


@cache
def beginning(expression: bytes) -> bytes:
    r"""Return what every match of an expression begins with, as far as it is spelt out.

    >>> beginning(rb"sqrt_?\s*\("), beginning(rb"\+=[ \t]*"), beginning(rb"(?:a|b)c")
    (b'sqrt', b'+=', b'')
    """
    found = re.match(rb"(?:[\w =/@%<>]|\\[^A-Za-z0-9])*", expression)
    if found is None or b"|" in re.sub(rb"\\.|\[[^\]]*\]|\([^)]*\)", b"", expression):
        return b""
    spelt = found[0]
    if expression[len(spelt) : len(spelt) + 1] in {b"?", b"*", b"{"}:
        spelt = re.sub(rb"\\?.\Z", b"", spelt)
    return re.sub(rb"\\(.)", rb"\1", spelt)


def whole_words(source: bytes, word: bytes) -> Iterator[tuple[int, int]]:
    """Yield where a word begins and ends, wherever it stands by itself.

    To compile an expression for each word would take longer than most sources take to look through.
    """
    size = len(word)
    start = source.find(word)
    while start >= 0:
        end = start + size
        if source[end : end + 1] not in _WORDS and (
            not start or source[start - 1 : start] not in _WORDS
        ):
            yield start, end
        start = source.find(word, end)


_WORDS: Final = frozenset(
    bytes((code,)) for code in range(128) if chr(code).isalnum() or chr(code) == "_"
)


@cache
def compiled(expression: bytes) -> re.Pattern[bytes]:
    """Return an expression that stands in this package, ready to use."""
    return re.compile(expression)


def _may_be_replaced(match: re.Match[bytes]) -> bool:
    """Tell whether another model is made under the name of one that has given its parameters."""
    before = compiled(rb"(\w+)\.(?:named_)?\Z").search(
        match.string[max(0, match.start() - 99) : match.start()]
    )
    return before is not None and _is_made_late(match.string, before[1])


@asked_once(otherwise=True)
def _is_made_late(source: bytes, name: bytes) -> bool:
    """Tell whether a model of a name is made after the first mention of its parameters."""
    gives = compiled(rb"\.(?:named_)?parameters\(").match
    makes = compiled(rb"[ \t]*=(?!=)[^\n]*(?:deepcopy|load|from_pretrained|\b[A-Z]\w*)\(").match
    has_given = False
    for _, end in whole_words(source, name):
        if has_given and makes(source, end) is not None:
            return True
        has_given = has_given or gives(source, end) is not None
    return False


REPLACED_MODEL: Final = Pattern(
    (rb"parameters\(",), words=(b"parameters",), confirms=_may_be_replaced
)
"""``model.parameters()``, where ``model = Net()`` comes later."""


def _may_be_difference(match: re.Match[bytes]) -> bool:
    """Tell whether what is given another dimension is subtracted, or something from it."""
    source = match.string
    start = source.rfind(b"\n", 0, match.start()) + 1
    line = source[start : source.find(b"\n", match.end()) + 1 or len(source)]
    return compiled(rb"[\])][\s\\]*-|-[\s\\]*[\w.]+[\[.]").search(line) is not None


ROOT_OF_DISTANCES: Final = Pattern(
    (rb"unsqueeze\(", rb"None\]", rb"None, ?[:.]"),
    words=(b"None]", b"unsqueeze(", b"None, :", b"None,:", b"None, .", b"None,."),
    confirms=_may_be_difference,
)
"""``x[:, None] - x[None]``, ``x.unsqueeze(1) - x.unsqueeze(0)``."""

ITERATOR_OF_PARAMETERS: Final = Pattern(
    (
        rb"=[ \t]*(?:\(\s*\w[^()\n]* for |filter\(|map\()",
        rb"parameters\(\)[ \t]*\r?\n",
    ),
    words=(b"parameters()",),
)
"""``params = filter(...)``, ``params = (p for p in ...)``, ``params = model.parameters()``."""
