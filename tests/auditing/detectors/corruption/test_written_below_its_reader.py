"""Calls that write in place into what their caller still reads (GCS112), and those that may."""

from __future__ import annotations

import sys

import torch

from gradcheck_suite.auditing.source_analysis.later_reads import reads_after
from tests.auditing.loops import below


def read_after(function):
    """Return what is read after the call of ``mark`` in a function."""
    found = []

    def mark(x):
        frame = sys._getframe(1)
        found.append(reads_after(frame.f_code, frame.f_lasti))
        return x

    function(mark)
    return found[0]


def test_names_that_are_read_before_they_are_bound_anew():
    def loop(mark):
        a, b, c, d = torch.ones(4, 1)
        y = mark(a)
        b = y + 1
        for c in (1, 2):
            b = b + c
        return a + b, len(d), d.shape

    reads = read_after(loop)
    assert "a" in reads.names
    assert not {"b", "c", "d", "y"} & set(reads.names)
    assert reads.results == ("y",)
    assert reads.function == "mark"


def test_what_is_beside_the_call_is_read_after_it():
    def loop(mark):
        x, z = torch.ones(2)
        return torch.neg(z) + x + mark(x)

    reads = read_after(loop)
    assert "x" in reads.names
    assert "z" not in reads.names


def test_a_result_that_is_thrown_away_says_nothing():
    def loop(mark):
        x = torch.ones(2)
        mark(x)
        return x

    assert read_after(loop) is None


def test_a_name_that_is_bound_by_the_call_is_none_of_them():
    def loop(mark):
        x = torch.ones(2)
        x = mark(x)
        return x * 2

    reads = read_after(loop)
    assert "x" not in reads.names


def test_a_block_is_told_of_at_the_call(audited, only, line_of):
    session = audited(below.block_that_rectifies_what_it_adds)
    finding = only(session, "GCS112")
    assert finding.location.line == line_of(below.Residual, "skip")
    assert finding.evidence["variable"] == "x"
    assert finding.evidence["count"] >= 2


def test_features_are_told_of_where_the_layers_are_called(audited, only, line_of):
    finding = only(audited(below.features_that_the_next_layer_rectifies), "GCS112")
    assert finding.location.line == line_of(below.Features, "layers")
    assert finding.evidence["variable"] == "found"


def test_an_environment_is_told_of_with_the_line_that_writes(audited, only, line_of):
    finding = only(audited(below.observations_of_one_buffer), "GCS112")
    assert finding.location.line == line_of(below._roll, "rollout")
    assert [each.message for each in finding.related] == ["written here"]


def test_after_the_first_steps_nothing_is_looked_at(audited):
    class Late(below.Residual):
        turns = 0

        def forward(self, x):
            self.turns += 1
            self.block[0].inplace = self.turns > 12
            return super().forward(x)

    model = Late(inplace=False)
    assert not audited(lambda: below._train(model, below._fitted, 20)).findings
