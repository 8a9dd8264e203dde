"""Containers keep their shape and types."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from gradcheck_suite.verification.target.tree import leaves_with_paths, replace_leaves

TREES = st.recursive(
    st.integers(),
    lambda children: (
        st.lists(children, max_size=3)
        | st.tuples(children, children)
        | st.dictionaries(st.text(max_size=2), children, max_size=3)
    ),
    max_leaves=12,
)


@given(tree=TREES)
def test_paths_reach_their_leaves(tree):
    for path, leaf in leaves_with_paths(tree, "tree"):
        assert eval(path, {"tree": tree}) == leaf


@given(tree=TREES)
def test_leaves_are_replaced_in_the_order_of_their_paths(tree):
    leaves = [leaf for _, leaf in leaves_with_paths(tree, "tree")]
    remaining = iter(range(len(leaves)))
    numbered = replace_leaves(tree, lambda _: next(remaining))
    assert [leaf for _, leaf in leaves_with_paths(numbered, "tree")] == list(range(len(leaves)))
    assert replace_leaves(tree, lambda leaf: leaf) == tree


def test_dataclasses_are_rebuilt_without_running_their_constructor():
    @dataclass(frozen=True)
    class Batch:
        x: int
        calls: list = field(default_factory=list)

        def __post_init__(self):
            self.calls.append("made")

    batch = Batch(1)
    twin = replace_leaves((batch,), lambda leaf: 2 if leaf == 1 else leaf)[0]
    assert (twin.x, twin.calls, batch.x) == (2, ["made"], 1)
