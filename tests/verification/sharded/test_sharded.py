"""Gradients of what is sharded over ranks, checked by all of them together."""

from __future__ import annotations

import json

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parametrize

import gradcheck_suite as gs
from tests.auditing.distributed.bank import SHARDS
from tests.auditing.distributed.jobs import run_job
from tests.verification.sharded import programs

FACTOR = "is 2 times the numeric one"
HINT = "check the module before it is sharded: if it is right there, look at how it is sharded"
RIGHT = {
    "shards": "",
    "shards_with_statistics_and_dropout": "",
    "shards_in_float32": "",
    "shards_that_are_kept_whole": "",
    "shards_read_by_a_function": "",
    "sums_in_place_of_means": "gradients are sums over ranks, not means",
    "columns_and_rows": "",
    "norm_of_a_part_of_the_sequence": "",
    "copies_whose_gradients_are_added": "gradients are sums over ranks, not means",
    "more_than_can_be_asked_for": "",
}
WRONG = {
    "copies_whose_gradients_are_not_added": ("differs from the numeric one by 67%", {"weight"}),
    "wrong_in_one_function": (FACTOR, {"0.weight", "0.bias"}),
    "wrong_in_one_function_between_columns_and_rows": (FACTOR, {"0.weight", "0.bias"}),
    "wrong_on_one_rank": ("differs from the numeric one by", {"0.weight", "0.bias"}),
    "detached_on_the_way": ("is missing: no path in the graph leads", {"0.weight", "0.bias"}),
}
REFUSED = {
    "half_precision": "computes in half precision, which can't be checked where tensors are",
    "cast_to_float64": "make it float64 before it is sharded, and give dtype='native'",
    "other_shapes_on_each_rank": "call check_gradients on every rank, with inputs of the same",
    "other_inputs_on_each_rank": "the parameters and inputs of FSDPSequential differ between",
    "gradients_kept_back": "keeps its gradients back (set_requires_gradient_sync(False))",
    "flattened": "check the module before it is wrapped, or as fully_shard shards it",
}
ON_FOUR = {"shards_of_columns_and_rows", "shards_and_copies"}
WITH_SHARDS = pytest.mark.skipif(not SHARDS, reason="torch 2.6 shards on accelerators alone")


def reports_of(ranks, folder):
    runs = run_job([programs.__file__, folder], cwd=folder, ranks=ranks, timeout=300)
    assert [run.returncode for run in runs] == [0] * ranks, runs
    named = {}
    for each in folder.glob("*.json"):
        named.setdefault(each.stem.rpartition("-")[0], []).append(json.loads(each.read_text()))
    return named


@pytest.fixture(scope="module")
def on_two(tmp_path_factory):
    return reports_of(2, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def on_four(tmp_path_factory):
    return reports_of(4, tmp_path_factory.mktemp("four"))


def same_on_all(reports):
    assert all(each == reports[0] for each in reports), reports
    return reports[0]


@WITH_SHARDS
@pytest.mark.slow
@pytest.mark.xdist_group("sharded on two ranks")
class TestTwoRanks:
    def test_every_program_is_judged(self, on_two):
        assert {*RIGHT, *WRONG, *REFUSED} == on_two.keys()

    @pytest.mark.parametrize("program", RIGHT)
    def test_what_is_right_passes_and_is_left_as_it_was(self, program, on_two):
        report = same_on_all(on_two[program])
        assert report["findings"] == []
        assert set(report["verdicts"].values()) == {"pass"}
        assert report["as before"]
        text = "; ".join(report["covered"])
        assert "derivatives along random directions over 2 ranks" in text
        assert ("sums over ranks" in text) is bool(RIGHT[program])

    @pytest.mark.parametrize("program", WRONG)
    def test_what_is_wrong_is_told_on_every_rank(self, program, on_two):
        report = same_on_all(on_two[program])
        ((code, message, hint),) = report["findings"]
        words, names = WRONG[program]
        assert code == "GCS601"
        assert words in message
        assert HINT in hint
        failed = {name for name, status in report["verdicts"].items() if status == "fail"}
        assert failed == names
        assert report["as before"]

    @pytest.mark.parametrize("program", REFUSED)
    def test_what_can_not_be_checked_is_refused_in_one_line(self, program, on_two):
        message = same_on_all(on_two[program])["refused"]
        assert REFUSED[program] in message
        assert "\n" not in message

    def test_what_was_asked_for_and_left_out_is_told(self, on_two):
        (line,) = [
            each
            for each in same_on_all(on_two["more_than_can_be_asked_for"])["not_covered"]
            if "left out" in each
        ]
        assert line == (
            "the whole Jacobian (full=True), forward mode, the time limit, as all ranks have to "
            "end alike: left out where tensors are sharded"
        )


@WITH_SHARDS
@pytest.mark.slow
@pytest.mark.xdist_group("sharded on four ranks")
class TestFourRanks:
    @pytest.mark.parametrize("program", sorted(ON_FOUR))
    def test_meshes_of_two_dimensions(self, program, on_four):
        report = same_on_all(on_four[program])
        assert report["findings"] == []
        assert set(report["verdicts"].values()) == {"pass"}
        assert report["as before"]

    def test_a_wrong_function_within_them(self, on_four):
        assert on_four.keys() == {*ON_FOUR, "wrong_shards_of_columns_and_rows"}
        report = same_on_all(on_four["wrong_shards_of_columns_and_rows"])
        assert FACTOR in report["findings"][0][1]
        assert report["evidence"][0]["shape"] == [8]


@pytest.fixture
def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
class TestOneRank:
    """The same in this process."""

    def columns(self, *inner):
        model = programs.network(*inner)
        last = str(len(model) - 1)
        plan = {"0": programs.COLUMNS_AND_ROWS["0"], last: programs.COLUMNS_AND_ROWS["2"]}
        return programs.split(model, plan)

    def test_right(self):
        report = gs.check_gradients(self.columns(), programs.data(requires_grad=True))
        assert [one.status for one in report.verdicts] == ["pass"] * 5
        assert report.ok

    def test_a_bound_method_and_parameters_held_constant(self):
        model = self.columns()
        model[0].requires_grad_(requires_grad=False)
        report = gs.check_gradients(model.forward, programs.data())
        assert {one.input for one in report.verdicts} == {"2.weight", "2.bias"}
        assert "parameter `0.weight` does not require grad and was held constant" in (
            report.not_covered
        )
        inputs = programs.data(requires_grad=True)
        (verdict,) = gs.check_gradients(model, inputs, parameters=False).verdicts
        assert (verdict.input, verdict.status) == ("input", "pass")

    def test_wrong(self):
        model = self.columns(programs.Applied(programs.TwiceAsMuch.apply))
        report = gs.check_gradients(model, programs.data())
        (finding,) = report.findings
        assert FACTOR in finding.message
        assert "one more gradient is wrong with it" in finding.message

    def test_an_output_without_a_gradient(self):
        model = self.columns()
        report = gs.check_gradients(lambda x: (model(x), model(x).detach()), programs.data())
        (finding,) = report.findings
        assert finding.code == "GCS608"
        assert finding.severity.value == "warning"

    def test_an_output_that_is_left_out(self):
        model = self.columns()
        target = lambda x: (model(x), model(x).detach())  # noqa: E731 - as users write it
        report = gs.check_gradients(target, programs.data(), skip_outputs=["output[1]"])
        assert report.ok
        assert report.findings == ()

    def test_rounding_is_no_failure(self):
        """The bias before a batch norm has a gradient of zero, but for rounding."""
        model = self.columns(nn.BatchNorm1d(8))
        report = gs.check_gradients(model, programs.data())
        assert report.findings == ()
        assert {one.status for one in report.verdicts} <= {"pass", "inconclusive"}

    def test_nothing_to_check(self):
        model = self.columns()
        with pytest.raises(gs.UsageError, match="real floating-point ones"):
            gs.check_gradients(lambda x: model(x).argmax(), programs.data())
        with pytest.raises(gs.UsageError, match="no parameter and no input"):
            gs.check_gradients(model.requires_grad_(requires_grad=False), programs.data())

    def test_localize_is_refused(self):
        with pytest.raises(gs.UsageError, match="localize before it is sharded"):
            gs.localize(self.columns(), programs.data())

    def test_an_input_that_is_sharded(self):
        inputs = programs.Gathered().weight
        report = gs.check_gradients(lambda x: x.tanh().sum(), inputs)
        assert [(one.input, one.status) for one in report.verdicts] == [("x", "pass")]

    def test_what_is_not_sharded_is_checked_as_ever(self):
        report = gs.check_gradients(programs.network(), programs.data())
        assert "random directions" not in str(report.summary["covered"])


def test_parametrized_modules_need_no_process_group():
    model = nn.Linear(2, 2)
    parametrize.register_parametrization(model, "weight", nn.Identity())
    assert gs.check_gradients(model, torch.ones(1, 2)).ok
