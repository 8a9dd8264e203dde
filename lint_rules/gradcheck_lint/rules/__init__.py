"""All rules of the linter, known by their places.

The rule about the entry ``missing-zero-grad`` of the catalogue is the class ``MissingZeroGrad`` in
``missing_zero_grad``, and there is a rule for each entry that has such a module. To know the rules
imports none of them: they need libcst.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from gradcheck_lint.rules._rule import Rule

WORDS: Final = (
    *(b"backward(", b"requires_grad", b"Parameter", b"parameters(", b"nn.", b"torch.nn"),
    *(b"def forward", b"def training_step", b"def compute_loss", b"register_forward_hook"),
    *(b".eval()", b"step(", b"Variable", b".data[0]", b"where("),
    b"load_state_dict",
    *(b"loss", b"Loss"),
)
"""A source that has none of these words has no mistake that a rule could find."""


@dataclass(frozen=True, slots=True)
class RuleReference:
    """Where a rule is."""

    code: str
    slug: str
    module: str

    def load(self) -> Rule:
        """Import the rule, and make the one that serves all files."""
        return _loaded(self.module, self.slug.title().replace("-", ""))


@cache
def _loaded(module: str, name: str) -> Rule:
    rule: type[Rule] = getattr(importlib.import_module(module), name)
    return rule()


def _discovered() -> Iterator[RuleReference]:
    """Yield every rule: a module or package below this folder that is named as an entry is."""
    catalogue = importlib.util.find_spec("gradcheck_suite.catalogue")
    assert catalogue is not None
    assert catalogue.origin is not None
    codes: dict[str, str] = {}
    # To import the catalogue would read every entry.
    for entry in Path(catalogue.origin).with_name("entries").glob("*.md"):
        code, _, slug = entry.stem.partition("-")
        codes[slug.replace("-", "_")] = code
    own = Path(__file__).parent
    for path in own.rglob("*"):
        if path.stem in codes and (path.suffix == ".py" or path.is_dir()):
            module = ".".join((__name__, *path.relative_to(own).with_suffix("").parts))
            yield RuleReference(codes[path.stem], path.stem.replace("_", "-"), module)


RULES: Final = tuple(sorted(_discovered(), key=lambda rule: rule.code))

SLUGS: Final = {rule.slug: rule.code for rule in RULES}
"""The code of each rule by its name."""


def concerns(source: bytes) -> bool:
    """Return whether a rule could find anything in this source, by its words."""
    return any(word in source for word in WORDS)


def load_rules(codes: Collection[str] | None = None) -> list[Rule]:
    """Return the rules with these codes, in the order of their codes."""
    return [rule.load() for rule in RULES if codes is None or rule.code in codes]
