"""Findings about a custom Function stand at the line that one would change."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path

import pytest
import torch
from torch.autograd import Function

from gradcheck_suite.verification.check import check_gradients
from gradcheck_suite.verification.diagnosis.function_source import (
    backward_place,
    gradient_place,
    lost_place,
    returned_place,
    written_input_place,
)

PATH = Path(__file__).with_name("located_functions.py")


def load():
    spec = importlib.util.spec_from_file_location("located_functions", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


BANK = load()
LINES = PATH.read_text(encoding="utf-8").splitlines()
EXPECTED = {
    text.partition("# here: ")[2]: number
    for number, text in enumerate(LINES, 1)
    if "# here: " in text
}


def inputs():
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(*shape, generator=generator).double() for shape in ((8, 3), (1, 3)))
    return x.requires_grad_(), weight.requires_grad_()


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.sampled(every=4)
def test_the_finding_stands_at_the_line_to_change(name):
    function = getattr(BANK, name)
    report = check_gradients(function, inputs())

    found = [finding.location for finding in report.findings]
    assert Path(found[0].path) == PATH
    assert EXPECTED[name] in {location.line for location in found}, report


@pytest.mark.parametrize("name", ["SecondElement", "MeanAtHand", "NoneForWeight", "FilledBuffer"])
def test_in_the_middle_of_a_graph_the_line_is_the_same(name):
    def target(x, weight):
        wide = BANK.Product if name == "Product" else getattr(BANK, name)
        return wide.apply(x.tanh(), weight.exp()).sigmoid() * weight

    report = check_gradients(target, inputs())
    assert EXPECTED[name] in {finding.location.line for finding in report.findings}, report


def test_of_one_tensor_in_two_places_the_wrong_one_is_found():
    def target(x):
        return BANK.SecondElement.apply(x * 2.0, x[:1] * 3.0)

    (finding,) = check_gradients(target, inputs()[0]).findings
    assert finding.location.line == EXPECTED["SecondElement"]


def test_what_narrows_it_down_is_told_beside_it():
    (finding,) = check_gradients(BANK.MeanInHelper, inputs()).findings
    (made,) = finding.related
    assert made.message == "this gradient is made here"
    assert "unbroadcast(g * x" in LINES[made.location.line - 1]
    assert made.location.function == "MeanInHelper.backward"
    assert finding.location.function == "unbroadcast"


def test_a_helper_that_does_all_is_told_with_its_call():
    place = gradient_place(BANK.InHelper, 0)
    assert place.location.line == EXPECTED["InHelper"]
    assert [one.message for one in place.related] == ["called here"]


def test_two_suspects_leave_it_at_the_gradient():
    class Means(Function):
        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            middle = x.mean()
            return g * middle * x.mean()

    place = gradient_place(Means, 0, suspicion="mean")
    _, start = inspect.getsourcelines(Means.backward)
    assert place.location.line == start + 4
    assert {one.message for one in place.related} == {"or here"}


def test_without_a_source_there_is_no_line():
    namespace = {"Function": Function}
    exec(
        "class Made(Function):\n"
        "    @staticmethod\n"
        "    def backward(ctx, g):\n"
        "        return g * 2\n",
        namespace,
    )
    made = namespace["Made"]
    for place in (
        gradient_place(made, 0),
        backward_place(made),
        lost_place(made),
        returned_place(made, "backward"),
        gradient_place(None, None),
    ):
        assert place.location is None
        assert place.related == ()


def test_what_the_source_does_not_tell_stands_at_the_def():
    class Stars(Function):
        @staticmethod
        def forward(ctx, x, y):  # noqa: ARG004
            return x * y

        @staticmethod
        def backward(ctx, *grads):  # noqa: ARG004
            return (*reversed(grads), *grads)

    _, start = inspect.getsourcelines(Stars.backward)
    assert gradient_place(Stars, 1).location.line == start + 1
    assert gradient_place(Stars, None).location.line == start + 1
    _, start = inspect.getsourcelines(Stars.forward)
    assert written_input_place(Stars, 0).location.line == start + 1


def test_a_decorated_backward_is_read():
    class Once(Function):
        @staticmethod
        def forward(ctx, x):  # noqa: ARG004
            return x * 2

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, g):  # noqa: ARG004
            return g * 3

    (finding,) = check_gradients(Once, torch.randn(3, requires_grad=True)).findings
    assert "return g * 3" in Path(__file__).read_text().splitlines()[finding.location.line - 1]
