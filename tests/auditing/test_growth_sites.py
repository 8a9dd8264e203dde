"""The one statement that adds to a name, or nothing."""

from __future__ import annotations

import pytest

from gradcheck_suite.auditing.growth_sites import growth_site

SOURCE = """\
class Log:
    def put(self, x):
        self.items.append(x)


def once(xs):
    kept = []
    total = 0
    table = {}
    for x in xs:
        kept.append(x)
        total = total + x
        table["a"][x] = x


def twice(xs):
    kept = []
    kept.append(1)
    kept.extend(xs)


def never(kept):
    kept = list(kept)
    return kept.count(1)
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "log.py"
    path.write_text(SOURCE)
    return str(path)


@pytest.mark.parametrize(
    ("name", "function", "line"),
    [
        ("never_added_to", None, None),
        ("kept", "once", 11),
        ("total", "once", 12),
        ("table", "once", 13),
        ("kept", "twice", None),
        ("kept", "never", None),
        ("kept", None, None),
        ("absent", None, None),
    ],
)
def test_a_statement_is_named_only_if_it_is_the_only_one(file, name, function, line):
    site = growth_site(file, name, function=function)
    assert (site and site.line) == line


def test_no_source_is_no_answer(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("def (")
    assert growth_site(str(broken), "x") is None
    assert growth_site(str(tmp_path / "missing.py"), "x") is None


def test_an_attribute_is_not_a_variable_of_the_same_name(tmp_path):
    path = tmp_path / "meter.py"
    path.write_text("total = 0\ntotal += 1\n\ndef add(self, x):\n    self.total += x\n")
    variable = growth_site(str(path), "total")
    attribute = growth_site(str(path), "total", attribute=True)
    assert variable is not None
    assert attribute is not None
    assert (variable.line, attribute.line, attribute.function) == (2, 5, "add")
