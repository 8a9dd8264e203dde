from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from tests import warm_python

SCRIPT = Path(__file__).parents[1] / "docs" / "generate_numerics.py"


def _generator():
    spec = importlib.util.spec_from_file_location("generate_numerics", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generator():
    return _generator()


def _generate(*arguments: str):
    return warm_python.run([SCRIPT, *arguments])


@pytest.mark.slow
def test_the_page_is_up_to_date():
    done = _generate("--check")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_check_notices_a_missing_and_a_changed_page(generator, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(generator, "PAGE", tmp_path / "development" / "numerics.md")
    assert generator.main(["--check"]) == 1
    assert "is out of date; run: python docs/generate_numerics.py" in capsys.readouterr().err
    assert not generator.PAGE.exists()

    assert generator.main([]) == 0
    assert generator.main(["--check"]) == 0

    text = generator.PAGE.read_text("utf-8")
    generator.PAGE.write_text(text.replace("`_FAILS`", "`_FALLS`", 1), "utf-8")
    assert generator.main(["--check"]) == 1


def test_an_unknown_argument_is_refused():
    done = _generate("--chek")
    assert done.returncode == 2
    assert "usage: generate_numerics.py [--check]" in done.stderr


@pytest.mark.parametrize("room", ["verification", "accumulation", "auditing"])
@pytest.mark.slow
def test_every_number_says_what_it_is_and_why(generator, room):
    numbers = [it for it in generator.numbers() if it.module.startswith(f"{room}/")]
    assert numbers
    assert [f"{it.module}: {', '.join(it.names)}" for it in numbers if not it.reason] == []


def test_numbers_are_read_as_they_are_written(generator):
    source = '''
from dataclasses import replace

_STEP = 2.0**-4
"""How far to move,
in ``units`` of the input."""
_STEPS = (_STEP, 2.0 * _STEP)
_LOW, _HIGH = -1, 1_000
"""Bounds."""
LIMITS: Final = {
    "float32": math.sqrt(2.0),
    "float64": (1, 2),
}
_TABLE = replace(_BASE, rtol=_STEP)
"""A table."""
_NAMES = ("a", "b")
_STRICT = True
_DRAWN = draw(3)
_UNKNOWN = _BASE
_COUNT: int
'''
    found = [(it.line, it.names, it.value, it.reason) for it in generator.numbers_of(source, "m")]
    assert found == [
        (4, ("_STEP",), "2.0**-4", "How far to move, in ``units`` of the input."),
        (7, ("_STEPS",), "(_STEP, 2.0 * _STEP)", ""),
        (8, ("_LOW", "_HIGH"), "-1, 1_000", "Bounds."),
        (10, ("LIMITS",), '{"float32": math.sqrt(2.0), "float64": (1, 2)}', ""),
        (14, ("_TABLE",), "replace(_BASE, rtol=_STEP)", "A table."),
    ]


@pytest.mark.slow
def test_no_row_of_the_page_breaks_its_table(generator):
    rows = [line for line in generator.page().splitlines() if line.startswith("| `")]
    assert len(rows) == len(list(generator.numbers()))
    for row in rows:
        assert row.replace("\\|", "").count("|") == 4
        assert row.count("`") % 2 == 0
