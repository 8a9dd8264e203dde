"""The layout keeps its promises for any graph."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcheck_suite.graph.layout.sugiyama import Arc, layered


@st.composite
def graphs(draw, *, acyclic=True):
    count = draw(st.integers(1, 24))
    sizes = draw(
        st.lists(
            st.tuples(st.integers(10, 120).map(float), st.integers(10, 60).map(float)),
            min_size=count,
            max_size=count,
        )
    )
    pairs = draw(
        st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=40)
    )
    arcs = []
    for first, second in pairs:
        if first == second:
            continue
        source, target = sorted((first, second)) if acyclic else (first, second)
        arcs.append(Arc(source, target, target))
    return sizes, list(dict.fromkeys(arcs))


def boxes(placed, sizes):
    return [
        (x - w / 2, y, x + w / 2, y + h)
        for x, y, (w, h) in zip(placed.x, placed.y, sizes, strict=True)
    ]


def overlap(first, second):
    return (
        first[0] < second[2] - 1e-6
        and second[0] < first[2] - 1e-6
        and first[1] < second[3] - 1e-6
        and second[1] < first[3] - 1e-6
    )


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_no_two_boxes_overlap_and_all_lie_in_the_picture(graph):
    sizes, arcs = graph
    placed = layered(sizes, arcs)
    found = boxes(placed, sizes)

    assert not any(overlap(a, b) for i, a in enumerate(found) for b in found[:i])
    assert all(x1 >= -1e-6 and y1 >= -1e-6 for x1, y1, _, _ in found)
    assert all(x2 <= placed.width + 1e-6 and y2 <= placed.height + 1e-6 for _, _, x2, y2 in found)


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_edges_follow_ranks_from_box_to_box(graph):
    sizes, arcs = graph
    placed = layered(sizes, arcs)

    for arc in arcs:
        assert placed.ranks[arc.source] < placed.ranks[arc.target]
        pieces = placed.segments[arc.net]
        assert all(y1 <= y2 + 1e-6 for _, y1, _, y2 in pieces)
        # The pieces of a net lead from below its source to the top of its target.
        start = (placed.x[arc.source], placed.y[arc.source] + sizes[arc.source][1])
        end = (placed.x[arc.target], placed.y[arc.target])
        reached, pending = {start}, [start]
        while pending:
            at = pending.pop()
            for x1, y1, x2, y2 in pieces:
                if (x1, y1) == at and (x2, y2) not in reached:
                    reached.add((x2, y2))
                    pending.append((x2, y2))
        assert end in reached


@settings(max_examples=30, deadline=None)
@given(graphs(acyclic=False))
def test_cycles_are_laid_out_too(graph):
    sizes, arcs = graph
    placed = layered(sizes, arcs)
    found = boxes(placed, sizes)

    assert not any(overlap(a, b) for i, a in enumerate(found) for b in found[:i])
    assert set(placed.segments) == {arc.net for arc in arcs}


@settings(max_examples=20, deadline=None)
@given(graphs())
def test_the_same_graph_gives_the_same_picture(graph):
    assert layered(*graph) == layered(*graph)


def test_places_for_arcs_from_and_to_outside_lie_at_the_border():
    sizes = [(40.0, 20.0), (40.0, 20.0), (6.0, 0.0), (6.0, 0.0)]
    placed = layered(sizes, [Arc(2, 0, 0), Arc(0, 1, 1), Arc(1, 3, 3)], top=[2], bottom=[3])

    assert placed.y[2] == 0
    assert placed.y[3] == placed.height
    assert len(set(placed.x)) == 1, "a chain is straight"


def test_what_ends_beside_a_far_taller_box_is_on_top():
    # Below the first: a module and its own leaf, a box that goes on, and a slightly lower leaf.
    sizes = [(40.0, 20.0), (80.0, 400.0), (40.0, 20.0), (40.0, 20.0), (40.0, 20.0), (40.0, 390.0)]
    arcs = [Arc(0, n, n) for n in (1, 2, 3, 5)] + [Arc(3, 4, 4)]
    placed = layered(sizes, arcs)

    assert placed.y[2] == placed.y[1]
    assert placed.y[3] == placed.y[1] + 190
    assert placed.y[5] == placed.y[1] + 5


def test_a_long_arc_goes_round_what_lies_between():
    sizes = [(60.0, 20.0)] * 4
    placed = layered(sizes, [Arc(0, 1, 1), Arc(1, 2, 2), Arc(2, 3, 3), Arc(0, 3, 3)])
    found = boxes(placed, sizes)

    for x1, y1, x2, y2 in placed.segments[3]:
        if x1 == x2:
            assert not any(a < x1 < c and b < (y1 + y2) / 2 < d for a, b, c, d in found[1:3])


def test_a_shared_target_of_many_costs_no_more_than_one():
    count = 1_500
    arcs = [Arc(i, i + 1, i + 1) for i in range(count)]
    arcs += [Arc(i, count + 1, count + 1) for i in range(count + 1)]
    placed = layered([(40.0, 20.0)] * (count + 2), arcs)

    assert len(placed.segments[count + 1]) < 4 * count


@pytest.mark.slow
def test_too_many_bends_are_left_out():
    count = 700
    arcs = [Arc(i, i + 1, i + 1) for i in range(count)]
    arcs += [Arc(i, j, j) for i in range(0, count, 2) for j in range(i + 300, count, 97)]
    arcs += [Arc(0, j, j) for j in range(2, count)]
    placed = layered([(40.0, 20.0)] * (count + 1), list(dict.fromkeys(arcs)))

    assert len(placed.segments) == count
