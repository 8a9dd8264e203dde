from __future__ import annotations

import dataclasses
import io
import json
from typing import TYPE_CHECKING

import pytest

from gradcheck_suite import catalogue
from gradcheck_suite.catalogue import Entry
from gradcheck_suite.reporting.explain import print_rules, rules_text
from tests import warm_python

if TYPE_CHECKING:
    import subprocess


def _command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return warm_python.run(["-m", "gradcheck_suite", "rules", *arguments])


@pytest.mark.parametrize("columns", ["", "0", "wide"])
def test_the_table_has_every_rule_and_fits_80_columns(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    done = _command()
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert all(line == line.rstrip() for line in lines)
    assert "\x1b" not in done.stdout
    shown = [line.split()[:3] for line in lines if line.startswith("  GCS")]
    assert shown == [[e.code, e.slug, e.severity.value] for e in catalogue.ENTRIES]


def test_a_row_says_where_a_rule_looks_and_whether_it_can_fix():
    text = rules_text([catalogue.CLIP_BEFORE_UNSCALE, catalogue.WRONG_GRADIENT])
    assert text == (
        "zero_grad, backward, clipping, step, and who owns what (step-protocol)\n"
        "  GCS305  clip-before-unscale  error    source, run time  fix\n"
        "          Scaled gradients are clipped: unscale_ is missing\n"
        "\n"
        "Gradients that are wrong (gradients)\n"
        "  GCS601  wrong-gradient       error    source, run time\n"
        "          The analytic gradient differs from the numerical one\n"
    )


def test_a_narrow_terminal_gets_the_facts_on_a_line_of_their_own():
    text = rules_text([catalogue.CLIP_BEFORE_UNSCALE], width=40)
    assert text == (
        "zero_grad, backward, clipping, step, and\n"
        "who owns what (step-protocol)\n"
        "  GCS305  clip-before-unscale\n"
        "          error    source, run time  fix\n"
        "          Scaled gradients are clipped:\n"
        "          unscale_ is missing\n"
    )


def test_every_row_fits_a_terminal_of_40_columns():
    lines = rules_text(catalogue.ENTRIES, width=40).splitlines()
    assert max(map(len, lines)) <= 40


def test_a_pipe_is_as_wide_as_columns_says(monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    assert max(map(len, _command().stdout.splitlines())) <= 50


def test_json_has_every_field_of_every_rule():
    done = _command("--output-format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    rows = json.loads(done.stdout)
    fields = [field.name for field in dataclasses.fields(Entry)]
    assert [row["code"] for row in rows] == [entry.code for entry in catalogue.ENTRIES]
    for row, entry in zip(rows, catalogue.ENTRIES, strict=True):
        assert list(row) == [*fields, "planned", "family"]
        assert row["severity"] == entry.severity.value
        assert row["example"] == entry.example
        assert row["fixable"] is entry.fixable
        assert row["planned"] is entry.planned
    assert {row["family"] for row in rows} == {family.name for family in catalogue.FAMILIES}


def test_families_select_and_keep_the_order_of_the_codes():
    done = _command("--output-format", "json", "--family", "legacy", "--family", "mode")
    codes = [row["code"] for row in json.loads(done.stdout)]
    modes, legacy = (
        [entry.code for entry in catalogue.ENTRIES if entry.code.startswith(prefix)]
        for prefix in ("GCS7", "GCS9")
    )
    assert codes == modes + legacy
    assert modes
    assert legacy


@pytest.mark.parametrize("arguments", [("--family", "nonsense"), ("--output-format", "yaml")])
def test_an_unknown_choice_is_a_usage_error_that_names_the_choices(arguments):
    done = _command(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "invalid choice" in done.stderr
    assert {"legacy", "json"} & set(done.stderr.replace("'", " ").replace(",", " ").split())


def test_no_entries_give_an_empty_list():
    for output_format, expected in (("table", ""), ("json", "[]\n")):
        stream = io.StringIO()
        print_rules([], output_format, stream)
        assert stream.getvalue() == expected
