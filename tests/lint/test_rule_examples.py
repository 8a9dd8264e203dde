from __future__ import annotations

import ast

import pytest

from gradcheck_lint.engine import lint_source
from gradcheck_lint.fixes import fix_source
from gradcheck_lint.rules import RULES, load_rules
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity

_RULES = load_rules()
_INVALID = [
    pytest.param(rule, example, id=f"{rule.entry.slug}-{number}")
    for rule in _RULES
    for number, example in enumerate(rule.invalid)
]
_VALID = [
    pytest.param(example, id=f"{rule.entry.slug}-{example.why}")
    for rule in _RULES
    for example in rule.valid
]


@pytest.mark.parametrize(("rule", "example"), _INVALID)
def test_invalid_example_is_reported_on_its_lines_and_by_no_other_rule(rule, example):
    findings = lint_source(example.source.encode(), "example.py")
    assert [(f.code, f.location.line, f.severity) for f in findings] == [
        (rule.entry.code, line, example.severity) for line in example.lines
    ]


@pytest.mark.parametrize("example", _VALID)
def test_valid_example_is_silent(example):
    findings = lint_source(example.source.encode(), "example.py")
    assert [finding for finding in findings if finding.severity > Severity.NOTE] == []


_FIXED = [
    pytest.param(rule, example, id=f"{rule.entry.slug}-{number}")
    for rule in _RULES
    for number, example in enumerate(rule.invalid)
    if example.fixed is not None or example.safely_fixed is not None
]


@pytest.mark.skipif(not _FIXED, reason="no rule has a fix yet")
@pytest.mark.parametrize(("rule", "example"), _FIXED)
def test_fixed_example_is_as_written_and_has_nothing_left_to_fix(rule, example):
    codes = [rule.entry.code]
    whole = fix_source(example.source.encode(), "example.py", codes=codes, unsafe=True)
    safe = fix_source(example.source.encode(), "example.py", codes=codes)
    after_all = example.fixed if example.fixed is not None else example.safely_fixed
    after_safe = example.safely_fixed if example.safely_fixed is not None else example.fixed
    assert whole.source.decode() == after_all
    assert safe.source.decode() == after_safe
    found = lint_source(example.source.encode(), "example.py", codes=codes)
    assert len(whole.left) == sum("fix" not in finding.evidence for finding in found)
    assert fix_source(whole.source, "example.py", unsafe=True).source == whole.source
    ast.parse(whole.source)


@pytest.mark.parametrize(("rule", "example"), _INVALID)
def test_example_with_a_fix_says_what_it_becomes(rule, example):
    whole = fix_source(example.source.encode(), "example.py", codes=[rule.entry.code], unsafe=True)
    assert whole.source == example.source.encode() or example.fixed or example.safely_fixed


@pytest.mark.parametrize("rule", _RULES, ids=lambda rule: rule.entry.slug)
def test_rule_has_examples_of_both_sorts_and_a_description(rule):
    assert rule.invalid
    assert rule.valid
    assert type(rule).__doc__
    assert all(example.why for example in rule.valid)


def test_table_of_rules_agrees_with_the_rules_and_the_catalogue():
    for reference in RULES:
        rule = reference.load()
        assert (rule.entry.code, rule.entry.slug) == (reference.code, reference.slug)
        assert catalogue.find(reference.code) is rule.entry
        assert rule.entry.in_source


@pytest.mark.parametrize("reference", RULES, ids=lambda reference: reference.slug)
def test_word_filter_lets_every_invalid_example_through(reference):
    for example in reference.load().invalid:
        assert reference.concerns(example.source.encode())


def test_findings_name_where_why_and_what_next(lint):
    (finding,) = lint(
        """
        import torch

        def train(model, loader, optimizer):
            optimizer.zero_grad()
            for x in loader:
                model(x).mean().backward()
                optimizer.step()
        """
    )
    assert finding.message == (
        "`optimizer.step()` repeats in this loop on gradients that no path of the loop zeroes, "
        "so every step uses the sum of all backwards before it; the zero_grad() outside the loop "
        "doesn't run between two steps"
    )
    assert finding.detector == "lint"
    assert finding.location.function == "train"
    assert finding.hint == (
        "call `optimizer.zero_grad()` in the loop, before backward() or after step()"
    )
    assert [related.location.line for related in finding.related] == [6, 5, 4]
