"""Each program of the bank under audit on two ranks: what is to be found, where, on whom."""

from __future__ import annotations

import inspect
import json
import re

import pytest

from tests.auditing.distributed import bank
from tests.auditing.distributed.jobs import run_job

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("bank of ranks")]


MADE_IN = {
    "skips_a_step_by_its_own_loss": 3,
    "checkpoint_loaded_on_the_main_rank": 3,
    "moments_lost_on_one_rank": 2,
}
"""In which step a mistake is made, where that is not the first: it is named by the next one."""


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bank")
    runs = run_job([bank.__file__, folder], cwd=folder, timeout=300)
    assert [run.returncode for run in runs] == [0, 0], runs
    return {each.stem: json.loads(each.read_text()) for each in folder.glob("*.json")}


def expected(program):
    lines, start = inspect.getsourcelines(program)
    for number, line in enumerate(lines, start):
        marked = re.search(r"# (GCS\d{3})(?: (warning|note))?(?: on (\d))?$", line.rstrip())
        if marked:
            ranks = [int(marked[3])] if marked[3] else [0, 1]
            yield marked[1], marked[2] or "error", number, ranks


def told(report):
    for each in report["findings"]:
        yield each["code"], each["severity"], each["line"], each["evidence"]["ranks"]


def names(programs):
    return [program.__name__ for program in programs]


@pytest.mark.parametrize("program", bank.WRONG, ids=names(bank.WRONG))
def test_the_mistake_is_told_at_its_line_and_on_its_rank(program, reports):
    report = reports[program.__name__]
    assert sorted(told(report)) == sorted(expected(program))
    steps = [
        each["evidence"]["step"] for each in report["findings"] if each["code"].startswith("GCS8")
    ]
    assert not steps or steps[0] - MADE_IN.get(program.__name__, 1) <= 1


@pytest.mark.parametrize("program", bank.CORRECT, ids=names(bank.CORRECT))
def test_what_is_correct_has_no_error_and_no_warning(program, reports):
    report = reports[program.__name__]
    assert [each for each in report["findings"] if each["severity"] != "note"] == []


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("parameters_averaged_now_and_then", "the parameters were equal again before step 3"),
        ("stages_of_a_pipeline", "other tensors went from rank to rank"),
        ("folds_of_a_validation", "nothing at all goes from rank to rank"),
    ],
)
def test_what_speaks_against_a_mistake_lowers_it_and_is_told(program, why, reports):
    (finding,) = reports[program]["findings"]
    assert any(each.startswith(why) for each in finding["evidence"]["lowered"])


@pytest.mark.parametrize("program", ["fully_sharded"] * bank.SHARDS + ["flattened"])
def test_what_is_sharded_is_not_covered(program, reports):
    assert reports[program]["not_covered"] == [
        "parameters that are sharded over ranks: they are to differ, and are not compared"
    ]
