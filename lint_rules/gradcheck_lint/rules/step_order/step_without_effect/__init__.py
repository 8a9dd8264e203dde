"""GCS313: steps that rounding loses, of weights in 16 bits or of a rate in whole numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from gradcheck_lint.analyses.settings import constant_of, number
from gradcheck_lint.model.syntax import dotted_name, keyword, last_word, positional
from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.step_order.step_without_effect.precision import Bits, bits_of
from gradcheck_lint.rules.step_order.step_without_effect.whole_numbers import whole_rates
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class StepWithoutEffect(Rule):
    """An optimizer's updates are smaller than what the weights can hold."""

    entry = catalogue.STEP_WITHOUT_EFFECT

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield optimizers over weights in 16 bits, and rates made by dividing whole numbers."""
        yield from whole_rates(function)
        module = function.module
        if not module.mentions(b"float16", b".half()") or module.mentions(*_KEEPS_MORE):
            return
        for node in function.scope.nodes_of(cst.Call):
            if module.makes_optimizer(node):
                bits = bits_of(_parameters(node), function)
                if bits is not None:
                    yield from _lost_updates(node, bits, function)


_KEEPS_MORE: Final = (b"deepspeed", b"apex", b"FP16_Optimizer", b"master", b"lora", b"LoRA")
"""Words of what keeps the weights in 32 bits beside those in 16, or trains other weights."""
_ADAM: Final = frozenset({"Adam", "AdamW", "NAdam", "RAdam", "Adamax"})
"""Optimizers whose update is about as large as the learning rate, whatever the gradient."""
_SAFE: Final = 1e-3
_LOST: Final = {Bits.BFLOAT16: 2e-4, Bits.FLOAT16: 2e-5}
"""Half the distance of two neighbours at a weight of 0.1: 2**-9 and 2**-12 of it."""


def _parameters(node: cst.Call) -> cst.BaseExpression | None:
    given = positional(node)
    return given[0] if given else keyword(node, "params")


def _lost_updates(node: cst.Call, bits: Bits, function: FunctionModel) -> Iterator[Violation]:
    kind = last_word(dotted_name(node.func))
    if function.module.scopes.classes.get(dotted_name(node.func) or "") is not None:
        return
    given = positional(node)
    asked = keyword(node, "lr") or (given[1] if len(given) > 1 else None)
    rate = number(constant_of(asked, function))
    if asked is None or (rate is not None and rate >= _SAFE):
        return
    is_lost = kind in _ADAM and rate is not None and rate <= _LOST[bits]
    may_freeze = function.module.mentions(b"requires_grad")
    at = f"a rate of {rate:g}" if rate is not None else "a small rate"
    yield Violation(
        node,
        f"`{kind}` steps on weights in {bits.value}: at {at} an update is smaller than half the "
        f"distance of two numbers in {bits.value} for most weights, and rounding loses it",
        Severity.WARNING if is_lost and not may_freeze else Severity.NOTE,
        "keep the weights in float32 and compute under `torch.autocast(..., dtype="
        f"torch.{bits.value})`",
    )
