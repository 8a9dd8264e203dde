"""What is known after two paths: they differ in no names but those written on one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst
import pytest

from gradcheck_lint.model import statements
from gradcheck_lint.model.flow import GradMode
from gradcheck_lint.model.module import ModuleModel
from gradcheck_lint.model.state import State, join_states
from gradcheck_lint.model.values import Kind, Value
from gradcheck_lint.rules import RULES
from tests.lint.fixtures_of_rules import fixtures_of

if TYPE_CHECKING:
    from gradcheck_lint.model.state import Lookup

_EVERY_STATEMENT = """
import torch

class Trainer:
    def fit(self, loader, count=3):
        self.seen = seen = []
        for i, batch in enumerate(loader):
            self.model.hidden = None
            if i == 0:
                total = self.step(batch)
                del batch
            elif i > count:
                break
            else:
                total = total + self.step(batch)
                if total is None:
                    continue
            try:
                with torch.no_grad() as mode:
                    (first, *rest), self.last = total, [y := x for x in batch]
                    rest[0] = first.requires_grad_(True)
            except ValueError as error:
                self.failed = error
                raise
            else:
                seen.append(first.detach_())
            finally:
                self.model = self.model.eval()
            while count:
                count -= 1
                for known in seen:
                    known.grad = None
                    self.counts[known] = count
                else:
                    known = lambda z, total=total: z
            match total:
                case None:
                    self.best = total
                case other:
                    self.model.best = other
        total.backward()
        self.model.step.size = total
        return self.step

    def step(self, batch):
        loss = 0
        for part in batch:
            loss += self.model(part).sum()
        loss.backward()
        return loss
"""


def _join_all_the_same(left: State, right: State, lookup: Lookup, since: int) -> State:
    if not left.dead and not right.dead:
        known = (*left.names, *right.names)
        differing = {name for name in known if left.names.get(name) is not right.names.get(name)}
        assert differing <= set(left.written_since(since))
        assert left.written is right.written
    return join_states(left, right, lookup, since)


def _bind_and_look(state: State, path: str, values: frozenset[Value]) -> None:
    _bind(state, path, values)
    assert not [name for name in state.names if name.startswith(f"{path}.")]


_bind = State.bind


def _sources() -> list[str]:
    return [source for rule in RULES for source in fixtures_of(rule.slug).sources]


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("sources", [[_EVERY_STATEMENT], _sources()], ids=["every", "examples"])
def test_states_differ_in_what_was_written_alone(
    monkeypatch: pytest.MonkeyPatch, sources: list[str]
) -> None:
    monkeypatch.setattr(statements, "join_states", _join_all_the_same)
    monkeypatch.setattr(State, "bind", _bind_and_look)
    read = 0
    for source in sources:
        tree = cst.parse_module(source)
        for function in ModuleModel(tree, source.encode()).functions():
            read += len(list(function.events()))
    assert read > 0


def test_attributes_are_forgotten_with_their_owner() -> None:
    here = frozenset({Value(Kind.NUMBER, 1)})
    state = State({}, GradMode.ENABLED)
    for path in ("self", "self.model.layer", "self.model", "self.models"):
        state.bind(path, here)
    assert list(state.names) == ["self", "self.model", "self.models"]
    other = state.copy()
    other.bind("self", here)
    assert list(other.names) == ["self"]
    assert list(state.names) == ["self", "self.model", "self.models"]
    joined = join_states(state, other, lambda _state, _path: here, 0)
    assert joined.names == state.names


def test_names_of_one_path_alone_are_kept() -> None:
    one, two = frozenset({Value(Kind.NUMBER, 1)}), frozenset({Value(Kind.NUMBER, 2)})
    state = State({}, GradMode.ENABLED)
    state.bind("x", one)
    since, other = len(state.written), state.copy()
    state.bind("x", two)
    state.bind("here", one)
    other.bind("there", two)
    other.drop("missing")
    joined = join_states(state, other, lambda _state, _path: one, since)
    assert joined.names == {"x": one | two, "here": one, "there": two}
    assert list(state.written_since(since)) == ["x", "here", "there"]
