"""GCS406: a freeze pattern that takes more than meant."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

import libcst as cst

from gradcheck_lint.model.function_class import body_of
from gradcheck_lint.model.syntax import boolean, positional, walk
from gradcheck_lint.rules._rule import Invalid, Rule, Valid, Violation
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class FrozenParameter(Rule):
    """A pattern that freezes parameters ends inside a number, and matches more than meant."""

    entry = catalogue.FROZEN_PARAMETER

    def may_find(self, function: FunctionModel) -> bool:
        """Tell whether the function looks at how a name starts and at what requires a gradient."""
        words = function.scope.words
        return "startswith" in words and not words.isdisjoint({"requires_grad", "requires_grad_"})

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every `name.startswith("layers.1")` that decides what is frozen."""
        for node in body_of(function.scope):
            if type(node) is not cst.If:
                continue
            for inner in walk(node.test):
                pattern = _pattern(inner)
                if pattern is not None and _freezes(node.body):
                    yield Violation(
                        inner,
                        f"the pattern {pattern!r} ends in a number, so it also matches "
                        f"{pattern + '0'!r} and the like: more is frozen than it says",
                        Severity.WARNING,
                        f"end it with the dot: {pattern + '.'!r}",
                    )
                    break

    invalid: ClassVar[tuple[Invalid, ...]] = (
        Invalid(
            """\
import torch

def freeze_first_layers(model):
    for name, parameter in model.named_parameters():
        if name.startswith(("layers.0", "layers.1")):
            parameter.requires_grad_(False)
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
""",
            lines=(5,),
            severity=Severity.WARNING,
        ),
    )

    valid: ClassVar[tuple[Valid, ...]] = (
        Valid(
            """\
import torch

def freeze_first_layers(model):
    for name, parameter in model.named_parameters():
        if name.startswith(("layers.0.", "layers.1.", "layer4", "stem")):
            parameter.requires_grad = False
        if name.startswith("layers.2"):
            print(name)
""",
            why="whole names, or nothing frozen",
        ),
    )


_ENDS_IN_NUMBER = re.compile(r"\.\d+$")


def _freezes(body: cst.BaseSuite) -> bool:
    for node in walk(body):
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            handed = positional(node)
            if node.func.attr.value == "requires_grad_" and handed and boolean(handed[0]) is False:
                return True
        if isinstance(node, cst.Assign) and boolean(node.value) is False:
            target = node.targets[0].target
            if isinstance(target, cst.Attribute) and target.attr.value == "requires_grad":
                return True
    return False


def _pattern(node: cst.CSTNode) -> str | None:
    """Return the first pattern of ``startswith`` that ends in a number."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return None
    if node.func.attr.value != "startswith":
        return None
    for inner in walk(node):
        if isinstance(inner, cst.SimpleString):
            text = inner.evaluated_value
            if isinstance(text, str) and _ENDS_IN_NUMBER.search(text):
                return text
    return None
