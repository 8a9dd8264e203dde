"""Functions that are right at one kind point only are found, and correct ones are not accused."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from gradcheck_suite import Severity
from gradcheck_suite.verification import check_gradients
from gradcheck_suite.verification.variations import VARIATIONS


def load():
    path = Path(__file__).with_name("varied_functions.py")
    spec = importlib.util.spec_from_file_location("varied_functions", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BANK = load()
ROWS = {row[0]: row[1:] for row in BANK.WRONG}


def draw(inputs, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [make(generator) for make in inputs]


@pytest.mark.parametrize("name", ROWS)
def test_each_is_one_finding_under_its_variation(name):
    wrong, _, inputs, code, words = ROWS[name]
    report = check_gradients(wrong, draw(inputs))

    assert [finding.code for finding in report.findings] == [code]
    (finding,) = report.findings
    assert words in finding.message
    assert finding.severity is Severity.ERROR
    assert finding.location.path == BANK.__file__
    assert finding.evidence["variation"] in VARIATIONS


@pytest.mark.parametrize("name", ROWS)
def test_none_is_found_without_variations(name):
    wrong, _, inputs, _, _ = ROWS[name]
    assert check_gradients(wrong, draw(inputs), variations=()).findings == ()


@pytest.mark.parametrize("name", ROWS)
def test_the_correct_twins_are_silent(name):
    _, right, inputs, _, _ = ROWS[name]
    report = check_gradients(right, draw(inputs))
    assert report.findings == ()
    assert {verdict.status for verdict in report.verdicts} == {"pass"}


def test_the_bank_is_large_enough():
    assert len(ROWS) >= 35
