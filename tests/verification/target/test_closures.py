"""Parameters that a function reads without being given them are checked as a module's are."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gradcheck_suite as gs
from gradcheck_suite import check_gradients


class Scaled(torch.autograd.Function):
    """Averages the gradient of the scale over the rows, where it should sum."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx, grad):
        x, scale = ctx.saved_tensors
        return grad * scale, (grad * x).mean(0)


def draw(*shape):
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randn(shape, dtype=torch.float64, generator=generator, requires_grad=True)


SCALE = draw(6)
BUFFER = torch.ones(6, dtype=torch.float64)
COUNT = 0


def reads_a_global(x):
    return Scaled.apply(x, SCALE) * BUFFER


def counts(x):
    global COUNT  # noqa: PLW0603 - what is tried
    COUNT += 1
    return Scaled.apply(x, SCALE)


def names_of(report):
    return sorted({verdict.input for verdict in report.verdicts})


def test_a_captured_tensor():
    scale = draw(6)
    before = scale.detach().clone()
    report = check_gradients(lambda x: Scaled.apply(x, scale), draw(4, 6))
    (finding,) = report.findings
    assert finding.code == "GCS601"
    assert finding.message.startswith("gradient of `output` with respect to `scale` is 0.25 times")
    assert torch.equal(scale, before)
    assert scale.grad is None


def test_a_global_tensor():
    report = check_gradients(reads_a_global, draw(4, 6))
    assert [finding.evidence["input"] for finding in report.findings] == ["SCALE"]


def test_a_captured_module_and_its_name():
    net = nn.Linear(6, 6).double()
    held = {name: value.detach().clone() for name, value in net.named_parameters()}
    report = check_gradients(lambda x: Scaled.apply(net(x), net.bias), draw(4, 6))
    assert [finding.evidence["input"] for finding in report.findings] == ["net.bias"]
    assert {"x", "net.weight", "net.bias"} <= set(names_of(report))
    for name, value in net.named_parameters():
        assert torch.equal(value, held[name])
        assert value.grad is None


def test_a_dictionary_of_parameters():
    parts = {"scale": draw(6), "shift": torch.zeros(6, dtype=torch.float64)}
    report = check_gradients(lambda x: Scaled.apply(x, parts["scale"]) + parts["shift"], draw(4, 6))
    assert [finding.evidence["input"] for finding in report.findings] == ["parts['scale']"]


def test_what_is_right_passes():
    scale, net = draw(6), nn.Linear(6, 3).double()
    report = check_gradients(lambda x: net(x * scale).tanh(), draw(4, 6))
    assert report.findings == ()
    assert report.not_covered == ()
    assert names_of(report) == ["net.bias", "net.weight", "scale", "x"]


def test_nested_functions_read_the_other_values_too():
    scale = draw(6)

    def loss(x):
        def inner(rows):
            return Scaled.apply(rows, scale)

        return inner(x).sum()

    assert [f.evidence["input"] for f in check_gradients(loss, draw(4, 6)).findings] == ["scale"]


def test_they_can_be_held_constant():
    scale = draw(6)
    report = check_gradients(lambda x: Scaled.apply(x, scale), draw(4, 6), parameters=False)
    assert report.findings == ()
    assert names_of(report)[-1] == "x"


def test_a_function_that_writes_globals_runs_on_the_real_ones():
    before = COUNT
    report = check_gradients(counts, draw(4, 6), variations=())
    assert before < COUNT
    assert "counts reads tensors that require grad" in report.not_covered[-1]


def test_what_is_out_of_reach_is_said():
    held = [draw(6)]

    class Holder:
        def __call__(self, x):
            return Scaled.apply(x, held[0])

    report = check_gradients(Holder(), draw(4, 6))
    assert report.findings == ()
    (line,) = report.not_covered
    assert line == (
        "Holder reads tensors that require grad and are not handed to it (of shape (6,)); they "
        "were held constant: make them arguments to check theirs"
    )


def test_the_dropin_checks_its_inputs_alone():
    scale = draw(6)
    assert gs.gradcheck(lambda x: Scaled.apply(x, scale), (draw(4, 6),))


@pytest.mark.parametrize("training", [True, False])
def test_buffers_of_captured_modules_stay_as_they_are(training):
    net = nn.BatchNorm1d(6).double().train(training)
    before = net.running_mean.clone()
    assert check_gradients(lambda x: net(x), draw(5, 6)).findings == ()  # noqa: PLW0108
    assert torch.equal(net.running_mean, before)
