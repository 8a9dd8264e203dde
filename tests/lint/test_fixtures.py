from __future__ import annotations

import ast

import pytest

from gradcheck_lint.engine import lint_source
from gradcheck_lint.fixes import fix_source
from gradcheck_lint.rules import RULES, concerns, load_rules
from gradcheck_suite import catalogue
from gradcheck_suite.severity import Severity
from tests.lint.fixtures_of_rules import FOLDER, Expected, fixture_of, fixtures_of

_RULES = load_rules()
_INVALID = [
    pytest.param(rule, fixture, id=f"{rule.entry.slug}-{fixture.name}")
    for rule in _RULES
    for fixture in fixtures_of(rule.entry.slug).invalid
]
_VALID = [
    pytest.param(fixture, id=f"{rule.entry.slug}-{fixture.name}")
    for rule in _RULES
    for fixture in fixtures_of(rule.entry.slug).valid
]


@pytest.mark.parametrize(("rule", "fixture"), _INVALID)
def test_invalid_fixture_has_the_findings_that_its_comments_say(rule, fixture):
    found = lint_source(fixture.source.encode(), "fixture.py")
    assert tuple(Expected(f.code, f.location.line, f.severity) for f in found) == fixture.expected
    assert rule.entry.code in {expected.code for expected in fixture.expected}


@pytest.mark.parametrize("fixture", _VALID)
def test_valid_fixture_is_silent(fixture):
    assert fixture.expected == ()
    found = lint_source(fixture.source.encode(), "fixture.py")
    assert [finding for finding in found if finding.severity > Severity.NOTE] == []


_FIXED = [
    pytest.param(rule, fixture, id=f"{rule.entry.slug}-{fixture.name}")
    for rule in _RULES
    for fixture in fixtures_of(rule.entry.slug).invalid
    if fixture.has_fix
]


@pytest.mark.parametrize(("rule", "fixture"), _FIXED)
def test_fixed_fixture_is_as_written_and_has_nothing_left_to_fix(rule, fixture):
    codes = [rule.entry.code]
    source = fixture.source.encode()
    whole = fix_source(source, "fixture.py", codes=codes, unsafe=True)
    safe = fix_source(source, "fixture.py", codes=codes)
    after_all = fixture.fixed if fixture.fixed is not None else fixture.safely_fixed
    after_safe = fixture.safely_fixed if fixture.safely_fixed is not None else fixture.fixed
    assert whole.source.decode() == after_all
    assert safe.source.decode() == after_safe
    found = lint_source(source, "fixture.py", codes=codes)
    assert len(whole.left) == sum("fix" not in finding.evidence for finding in found)
    assert fix_source(whole.source, "fixture.py", unsafe=True).source == whole.source
    ast.parse(whole.source)


@pytest.mark.parametrize(("rule", "fixture"), _INVALID)
def test_fixture_with_a_fix_says_what_it_becomes(rule, fixture):
    source = fixture.source.encode()
    whole = fix_source(source, "fixture.py", codes=[rule.entry.code], unsafe=True)
    assert whole.source == source or fixture.has_fix


@pytest.mark.parametrize("rule", _RULES, ids=lambda rule: rule.entry.slug)
def test_rule_has_fixtures_of_both_sorts_and_a_description(rule):
    fixtures = fixtures_of(rule.entry.slug)
    assert fixtures.invalid
    assert fixtures.valid
    assert type(rule).__doc__


def test_every_fixture_belongs_to_a_rule_and_every_fixed_text_to_a_fixture():
    assert {folder.name for folder in FOLDER.iterdir()} == {rule.slug for rule in RULES}
    for text in FOLDER.rglob("*.*.py"):
        name, _, sort = text.stem.partition(".")
        assert sort in {"fixed", "safely-fixed"}
        assert text.with_name(f"{name}.py").exists()
    assert {path.parent.name for path in FOLDER.rglob("*.py")} == {"invalid", "valid"}


def test_comments_say_which_findings_a_fixture_has():
    text = "a = 1  # GCS301\nb = 2  # GCS902, GCS903 warning\nc = 3  # GCS301 is no finding\n"
    fixture = fixture_of("name", text)
    assert fixture.source == "a = 1\nb = 2\nc = 3  # GCS301 is no finding\n"
    assert [(e.code, e.line, e.severity.value) for e in fixture.expected] == [
        ("GCS301", 1, "error"),
        ("GCS902", 2, "error"),
        ("GCS903", 2, "warning"),
    ]


def test_table_of_rules_agrees_with_the_rules_and_the_catalogue():
    for reference in RULES:
        rule = reference.load()
        assert (rule.entry.code, rule.entry.slug) == (reference.code, reference.slug)
        assert catalogue.find(reference.code) is rule.entry
        assert rule.entry.in_source


@pytest.mark.parametrize(("rule", "fixture"), _INVALID)
def test_invalid_fixture_has_a_word_without_which_nothing_is_looked_for(rule, fixture):
    assert concerns(fixture.source.encode())


def test_findings_name_the_function_that_their_line_is_in(lint):
    """Which is not the one that shows what is wrong with it."""
    found = lint(
        """
        import torch

        class Trainer:
            def validate(self, model):
                model.eval()

            def fit(self, model, optimizer, loader):
                model.train()
                for epoch in range(3):
                    for x in loader:
                        optimizer.zero_grad()
                        model(x).mean().backward()
                        optimizer.step()
                    self.validate(model)
        """
    )
    (finding,) = (each for each in found if each.code == "GCS702")
    assert finding.location.line == 5
    assert finding.location.function == "Trainer.validate"


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
