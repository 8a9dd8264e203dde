"""The one statement that adds to a name, or nothing."""

from __future__ import annotations

import pytest

from gradcheck_suite.auditing.source_analysis.container_growth import growth_of

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


def joined(xs):
    rows = xs[:0]
    mean = None
    for x in xs:
        rows = cat([rows, x])
        mean = x if mean is None else 0.9 * mean + 0.1 * x
    rows = sorted(rows)


def looked_up(xs):
    by_name = {}
    for name, x in xs:
        by_name.setdefault(name, []).append(x)


def looked_up_to_empty(xs):
    by_name = {}
    for name, x in xs:
        by_name.setdefault(name, []).append(x)
        by_name.get(name).clear()


def twice(xs):
    kept = []
    kept.append(xs)
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
        ("rows", "joined", 20),
        ("by_name", "looked_up", 28),
        ("mean", "joined", 21),
        ("kept", "twice", None),
        ("kept", "never", None),
        ("kept", None, None),
        ("absent", None, None),
    ],
)
def test_a_statement_is_named_only_if_it_is_the_only_one(file, name, function, line):
    site = growth_of(file, name, function=function).site
    assert (site and site.line) == line


def test_what_a_lookup_returns_is_a_part_of_the_thing(file):
    assert growth_of(file, "by_name", function="looked_up").is_endless
    assert growth_of(file, "by_name", function="looked_up_to_empty").shrinks


def test_no_source_is_no_answer(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("def (")
    assert growth_of(str(broken), "x").site is None
    assert growth_of(str(tmp_path / "missing.py"), "x").site is None


def test_an_attribute_is_not_a_variable_of_the_same_name(tmp_path):
    path = tmp_path / "meter.py"
    path.write_text("total = 0\ntotal += 1\n\ndef add(self, x):\n    self.total += x\n")
    variable = growth_of(str(path), "total").site
    attribute = growth_of(str(path), "total", attribute=True).site
    assert variable is not None
    assert attribute is not None
    assert (variable.line, attribute.line, attribute.function) == (2, 5, "add")


ENDLESS = """\
def losses(xs):
    kept = []
    for x in xs:
        kept.append(x)


def history(xs):
    kept = {}
    for i, x in enumerate(xs):
        kept[i] = x


def best(xs):
    kept = {}
    for x in xs:
        kept.setdefault("first", x)
        kept["last"] = x


def window(xs):
    kept = []
    for x in xs:
        kept.append(x)
        if len(kept) > 3:
            kept.pop(0)


def last_few(xs):
    kept = []
    for x in xs:
        kept.append(x)
        kept = kept[-3:]


def epochs(xs):
    for _ in range(3):
        kept = []
        for x in xs:
            kept.append(x)


def emptied_before(xs, kept):
    kept.clear()
    for x in xs:
        kept += [x]


def deleted(xs):
    kept = []
    for x in xs:
        kept.append(x)
        del kept[0]


def replaced(xs):
    kept = []
    for x in xs:
        kept.append(x)
        kept[:] = kept[-2:]


def unpacked(xs):
    for x in xs:
        kept, other = [], x
        kept.append(x)


def spread(xs):
    kept = ()
    for x in xs:
        kept = (*kept, x)


def joined(xs):
    kept = []
    for x in xs:
        kept = kept + [x]


def passed_on(xs, queue):
    kept = queue
    for x in xs:
        kept.put(x)
        kept.get()


def looked_up(xs):
    kept = []
    for x in xs:
        kept.append(x)
        kept.get(x)


def hook(layer, kept):
    layer.register(lambda module, x, y: kept.append(y))
"""


@pytest.mark.parametrize(
    ("function", "endless", "shrinks"),
    [
        ("losses", True, False),
        ("history", False, False),  # a key may come again
        ("best", False, True),  # one key for each
        ("window", False, True),
        ("last_few", False, True),
        ("epochs", False, True),
        ("emptied_before", True, False),
        ("deleted", False, True),
        ("replaced", False, True),
        ("unpacked", False, True),
        ("spread", True, False),
        ("joined", True, False),
        ("passed_on", False, True),
        ("looked_up", True, False),
        ("hook", True, False),
    ],
)
def test_what_only_grows_is_told_from_what_is_emptied(tmp_path, function, endless, shrinks):
    path = tmp_path / "loops.py"
    path.write_text(ENDLESS)
    growth = growth_of(str(path), "kept", function=function)
    assert (growth.is_endless, growth.shrinks) == (endless, shrinks)


def test_an_attribute_begins_in_its_constructor_and_anew_elsewhere(tmp_path):
    path = tmp_path / "meter.py"
    source = "class M:\n    def __init__(self):\n        self.v = []\n"
    source += "    def put(self, x):\n        self.v.append(x)\n"
    path.write_text(source)
    assert growth_of(str(path), "v", attribute=True).is_endless
    path = tmp_path / "other.py"
    path.write_text(source + "    def reset(self):\n        self.v = []\n")
    assert growth_of(str(path), "v", attribute=True).shrinks


HISTORIES = """\
class Trainer:
    def __init__(self):
        self.metrics = {}


class Module:
    def log(self, name, value):
        self.trainer.metrics.setdefault(name, []).append(value)


class Other:
    def keep(self, value):
        self.metrics.append(value)


def fit(steps):
    history = {"d": [], "g": []}
    pair = ([], [])
    mixed = []
    for loss, other in steps:
        history["d"].append(loss)
        history["g"].append(other)
        pair[0].append(loss)
        pair[1].append(other)
        mixed.append({"loss": float(loss), "at": 2 * other.detach().cpu()})
        mixed.append(other)
        mixed += [loss.item(), len(steps)]
"""


@pytest.mark.parametrize(
    ("name", "key", "lines"),
    [
        ("history", "d", [21]),
        ("history", "g", [22]),
        ("history", None, [21, 22]),
        ("pair", 1, [24]),
        ("mixed", None, [26]),
    ],
)
def test_what_may_have_added_a_graph_under_a_key_is_named(tmp_path, name, key, lines):
    path = tmp_path / "histories.py"
    path.write_text(HISTORIES)
    growth = growth_of(str(path), name, function="fit", key=key)
    assert [site.line for site in growth.sites] == lines
    assert (growth.site is not None) == (len(lines) == 1)


def test_an_attribute_is_found_wherever_it_is_not_another_class_own(tmp_path):
    path = tmp_path / "histories.py"
    path.write_text(HISTORIES)
    classes = frozenset({"Trainer"})
    strict = growth_of(str(path), "metrics", attribute=True, classes=classes, base="self")
    assert not strict.sites
    loose = growth_of(str(path), "metrics", attribute=True, classes=classes, anybody=True)
    assert [site.line for site in loose.sites] == [8]
