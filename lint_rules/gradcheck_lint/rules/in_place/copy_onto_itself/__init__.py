"""GCS110: a state that is loaded later is the memory of the parameters themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcheck_lint.rules._rule import Rule, Violation
from gradcheck_lint.rules.in_place.copy_onto_itself.best_models import best_models
from gradcheck_lint.rules.in_place.copy_onto_itself.kept_states import kept_states
from gradcheck_lint.rules.in_place.copy_onto_itself.own_copies import own_copies
from gradcheck_lint.rules.in_place.copy_onto_itself.references import own_references
from gradcheck_lint.rules.in_place.copy_onto_itself.second_names import (
    replaced_followers,
    second_names,
)
from gradcheck_suite import catalogue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradcheck_lint.model.module import FunctionModel


class CopyOntoItself(Rule):
    """A state dict is kept without a copy, a target network is no copy, or is given its own."""

    entry = catalogue.COPY_ONTO_ITSELF

    def check(self, function: FunctionModel) -> Iterator[Violation]:
        """Yield every state that is kept by reference, and every second name of one network."""
        module = function.module
        yield from best_models(function)
        if module.mentions(b"load_state_dict", b"zip(", b"copy_("):
            yield from own_copies(function)
        if module.mentions(b"load_state_dict", b"zip(", b"save("):
            yield from kept_states(function)
        if module.mentions(b"load_state_dict", b"zip("):
            yield from second_names(function)
            yield from replaced_followers(function)
        if module.mentions(b"no_grad", b"inference_mode"):
            yield from own_references(function)
