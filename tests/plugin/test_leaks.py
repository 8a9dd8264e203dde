from __future__ import annotations

import gc
import json

import pytest

SOURCE = """
    import ctypes

    kept = []

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)

        def forward(self, x):
            self.last = self.linear(x)
            return self.last

    net = Net()

    def loss():
        return torch.nn.Linear(3, 1)(torch.ones(2, 3)).sum()

    def make_counter():
        total = torch.zeros(())

        def count():
            nonlocal total
            total = total + loss()

        return count

    count = make_counter()
    leaf = torch.ones(2, requires_grad=True)

    @pytest.mark.no_graph_leak
    def test_list():
        kept.append(loss())

    @pytest.mark.no_graph_leak(steps=3)
    def test_attribute():
        net(torch.ones(1, 3)).sum().backward()

    @pytest.mark.no_graph_leak(steps=4)
    def test_closure():
        count()

    @pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
    @pytest.mark.no_graph_leak
    def test_gradient_with_a_graph():
        (leaf ** 3).sum().backward(create_graph=True)

    @pytest.mark.no_graph_leak(steps=7)
    def test_many():
        kept.append(loss())

    several = {}

    @pytest.mark.no_graph_leak
    def test_tensors_of_one_graph_are_one():
        one, two = loss(), loss()
        several.update(one=one, two=two, both=one + two)

    def lose(tensor):
        # As an extension does that forgets to let go: no object of Python's refers to it.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(tensor))
        return tensor

    @pytest.mark.no_graph_leak
    def test_nameless():
        lose(loss())

    @pytest.mark.no_graph_leak
    def test_nameless_in_part():
        hidden = lose(torch.nn.Linear(3, 5)(torch.ones(2, 3)))
        several["last"] = hidden.sum()
"""

CLEAN = """
    import unittest

    kept = []
    module = torch.nn.Linear(3, 1)
    before = module(torch.ones(1, 3)).sum()

    def loss():
        return module(torch.ones(2, 3)).sum()

    @pytest.mark.no_graph_leak(steps=3)
    def test_numbers_and_detached_tensors():
        value = loss()
        value.backward()
        kept.extend([value.item(), value.detach(), module.weight.grad.clone()])

    @pytest.mark.no_graph_leak(steps=3)
    def test_a_cycle_that_the_collector_frees():
        class Node:
            pass
        node = Node()
        node.self = node
        node.loss = loss()

    @pytest.mark.no_graph_leak(steps=3, limit=3)
    def test_within_the_limit():
        kept.append(loss())

    @pytest.mark.no_graph_leak
    def test_what_was_there_before():
        before.detach().add_(1)

    class TestOld(unittest.TestCase):
        @pytest.mark.no_graph_leak(steps=2)
        def test_unittest(self):
            loss().backward()
"""


@pytest.mark.slow
def test_graphs_that_outlive_the_body_are_counted_and_their_holder_is_named(
    run_tests_apart, pytester
):
    result = run_tests_apart(SOURCE)

    result.assert_outcomes(failed=8)
    text = " ".join(result.stdout.str().split())
    lines = (pytester.path / "test_training.py").read_text().splitlines()
    for runs, held, kept_at in [
        (
            "1 autograd graph outlived its body",
            "`kept[0]` of module test_training holds a scalar",
            None,  # two statements append to it
        ),
        (
            "1 autograd graph outlived 3 runs",
            "`net.last` of module test_training holds a 1x3",
            "self.last = self.linear(x)",
        ),
        (
            "1 autograd graph outlived 4 runs",
            "`total` in the closure of make_counter.<locals>.count()",
            "total = total + loss()",
        ),
        (
            "1 autograd graph outlived its body",
            "`leaf` of module test_training holds a 2 gradient with 4 operations",
            None,
        ),
        ("7 autograd graphs outlived 7 runs", "and 2 more", None),
        ("1 autograd graph outlived its body", "something without a name holds a scalar", None),
        ("1 autograd graph outlived its body", '`several["last"]` of module test_training', None),
    ]:
        assert runs in text
        assert held in text
        if kept_at is not None:
            line = next(n for n, line in enumerate(lines, 1) if line.strip() == kept_at)
            assert f"test_training.py:{line}:9 in " in text, kept_at
    assert "leaks.py" not in text


HOLDERS = """
    import functools
    from collections import deque

    class Meter:
        def __init__(self):
            self.values = []

        def update(self, value):
            self.values.append(value)

    class Plain:
        shared = None

    meter, plain, window = Meter(), Plain(), deque()

    def loss():
        return torch.nn.Linear(3, 1)(torch.ones(2, 3)).sum()

    @pytest.mark.no_graph_leak
    def test_meter():
        meter.update(loss())

    @pytest.mark.no_graph_leak
    def test_set_from_outside():
        plain.last = loss()

    @pytest.mark.no_graph_leak
    def test_begun_empty():
        plain.table = {}
        plain.table = {"loss": loss()}

    @pytest.mark.no_graph_leak
    def test_annotated():
        plain.typed: object = loss()

    @pytest.mark.no_graph_leak
    def test_class():
        Plain.shared = loss()

    @pytest.mark.no_graph_leak
    def test_deque():
        window.append({"loss": loss()})

    @functools.cache
    def cached():
        return loss()

    @pytest.mark.no_graph_leak
    def test_cache():
        cached()

    @pytest.mark.no_graph_leak
    def test_global():
        global newest
        newest, _ = loss(), 3

    @pytest.mark.no_graph_leak
    def test_two():
        meter.first = loss()
        plain.second = loss()
"""


@pytest.mark.slow
def test_the_line_that_keeps_a_graph_is_the_line_of_the_finding(run_tests_apart, pytester):
    result = run_tests_apart(HOLDERS, "--gradcheck-suite-report=r.json")

    result.assert_outcomes(failed=9)
    lines = (pytester.path / "test_training.py").read_text().splitlines()
    findings = json.loads((pytester.path / "r.json").read_text())["findings"]
    places = {
        finding["evidence"]["tests"][0].partition("::")[2]: (
            lines[finding["line"] - 1].strip(),
            [lines[related["line"] - 1].strip() for related in finding["related"]],
        )
        for finding in findings
    }
    mark = "@pytest.mark.no_graph_leak"
    assert places == {
        "test_meter": ("self.values.append(value)", [mark]),
        "test_set_from_outside": ("plain.last = loss()", [mark]),
        "test_begun_empty": ('plain.table = {"loss": loss()}', [mark]),
        "test_annotated": ("plain.typed: object = loss()", [mark]),
        "test_class": ("Plain.shared = loss()", [mark]),
        "test_deque": ('window.append({"loss": loss()})', [mark]),
        "test_cache": (mark, []),
        "test_global": ("newest, _ = loss(), 3", [mark]),
        "test_two": ("meter.first = loss()", ["plain.second = loss()", mark]),
    }
    assert "the cache of cached()" in result.stdout.str()


@pytest.mark.slow
def test_a_source_that_is_broken_meanwhile_shows_no_line(run_tests, pytester):
    result = run_tests("""
        import pathlib

        @pytest.mark.no_graph_leak
        def test_global():
            global newest
            newest = torch.nn.Linear(3, 1)(torch.ones(2, 3)).sum()
            pathlib.Path(__file__).write_text("def half_a_line(")
    """)

    result.assert_outcomes(failed=1)
    text = " ".join(result.stdout.str().split())
    assert "in test_global() 1 autograd graph outlived its body" in text
    assert "`newest` of module test_training holds a scalar" in text
    assert "kept by this test" not in text  # its place is all that there is


@pytest.mark.slow
def test_graphs_that_are_meant_to_live_and_those_that_end_are_no_leaks(run_tests_apart):
    run_tests_apart(CLEAN).assert_outcomes(passed=5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("steps=0", "steps of *must be a whole number of at least 1; got 0"),
        ("limit=True", "limit of *must be a whole number of at least 0; got True"),
        ("stepz=2", "*has no argument 'stepz'; did you mean 'steps'?"),
    ],
)
def test_wrong_arguments(run_tests, arguments, message):
    result = run_tests(f"""
        @pytest.mark.no_graph_leak({arguments})
        def test_it():
            pass
    """)

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([message])
    gc.collect()


@pytest.mark.slow
def test_what_the_test_itself_keeps_is_named_by_its_class(run_tests_apart):
    """Not by what pytest calls the object that holds it."""
    result = run_tests_apart("""
        import unittest

        @pytest.mark.no_graph_leak
        class TestOne:
            def test_keeps(self):
                self.loss = torch.ones(2, requires_grad=True).sum()

        @pytest.mark.no_graph_leak
        class TestTwo(unittest.TestCase):
            def test_keeps(self):
                self.log = [torch.ones(2, requires_grad=True).sum()]
    """)

    result.assert_outcomes(failed=2)
    text = " ".join(result.stdout.str().split())
    assert "`loss` of a TestOne holds a scalar tensor" in text
    assert "`log[0]` of a TestTwo holds a scalar tensor" in text
    assert "_instance" not in text
