"""GCS103: a saved tensor is overwritten; torch's error arrives, and the lines are named."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gradcheck_suite as gs

ERROR = "modified by an inplace operation"


def augmented_assignment():
    h = torch.randn(4, requires_grad=True).exp()
    loss = (h * h).sum()  # <- saved
    h += 1  # <- written
    loss.backward()  # <- used


def method():
    h = torch.randn(4, requires_grad=True).exp()
    loss = (h * h).sum()  # <- saved
    h.mul_(2)  # <- written
    loss.backward()  # <- used


def indexed_assignment():
    h = torch.randn(4, requires_grad=True).exp()
    loss = (h * h).sum()  # <- saved
    h[0] = 0  # <- written
    loss.backward()  # <- used


def write_to_a_view():
    h = torch.randn(2, 3, requires_grad=True).exp()
    loss = (h * h).sum()  # <- saved
    h[0].zero_()  # <- written
    loss.backward()  # <- used


def inplace_activation():
    h = torch.randn(4, requires_grad=True).sigmoid()  # <- saved
    loss = nn.functional.relu(h, inplace=True).sum()  # <- written
    loss.backward()  # <- used


def inplace_dropout():
    h = torch.randn(4, requires_grad=True).tanh()  # <- saved
    loss = nn.functional.dropout(h, inplace=True).sum()  # <- written
    loss.backward()  # <- used


def under_no_grad():
    h = torch.randn(4, requires_grad=True).exp()
    loss = (h * h).sum()  # <- saved
    with torch.no_grad():
        h.clamp_(0, 0.5)  # <- written
    loss.backward()  # <- used


def detached_alias():
    h = torch.randn(4, requires_grad=True).exp()
    loss = (h * h).sum()  # <- saved
    h.detach().add_(1)  # <- written
    loss.backward()  # <- used


def foreach():
    h = torch.randn(4, requires_grad=True).exp()
    loss = (h * h).sum()  # <- saved
    with torch.no_grad():
        torch._foreach_mul_([h], 2.0)  # <- written
    loss.backward()  # <- used


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors  # <- used
        return grad_output * x


def custom_function():
    h = torch.randn(4, requires_grad=True).exp()
    loss = Double.apply(h).sum()  # <- saved
    h.copy_(torch.ones(4))  # <- written
    loss.backward()


def two_player_training():
    critic = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
    fake = torch.randn(3, 4, requires_grad=True)
    generator_loss = critic(fake).mean()  # <- saved
    critic(fake.detach()).mean().backward()
    optimizer.step()  # <- written
    generator_loss.backward()  # <- used


def scan():
    gate = torch.rand(4, requires_grad=True)
    state = torch.zeros(4)
    for t in range(1, 4):
        state[t] = gate[t] * state[t - 1] + 1  # <- written
    state.sum().backward()  # <- used


def activation_then_method():
    h = (torch.randn(4, requires_grad=True) * 2).softmax(0)  # <- saved
    loss = h.add_(1).sum()  # <- written
    loss.backward()  # <- used


def after_an_activation_in_place():
    h = (torch.randn(4, requires_grad=True) * 2).tanh_()  # <- saved
    h += 1  # <- written
    h.sum().backward()  # <- used


def dropout_after_an_activation_in_place():
    h = nn.functional.celu(torch.randn(4, requires_grad=True) * 2, inplace=True)  # <- saved
    loss = nn.functional.dropout(h, inplace=True).sum()  # <- written
    loss.backward()  # <- used


def output_of_an_overload():
    h = torch.randn(3, 4, requires_grad=True).sum(0)
    loss = (h * h).sum()  # <- saved
    with torch.no_grad():
        h.add_(1)  # <- written
    loss.backward()  # <- used


CODES = {
    after_an_activation_in_place: "GCS108",
    dropout_after_an_activation_in_place: "GCS108",
    inplace_activation: "GCS108",
    inplace_dropout: "GCS108",
    activation_then_method: "GCS108",
    two_player_training: "GCS109",
}

CASES = [
    activation_then_method,
    after_an_activation_in_place,
    dropout_after_an_activation_in_place,
    output_of_an_overload,
    augmented_assignment,
    method,
    indexed_assignment,
    write_to_a_view,
    inplace_activation,
    inplace_dropout,
    under_no_grad,
    detached_alias,
    foreach,
    custom_function,
    two_player_training,
]


def error_of(case):
    torch.manual_seed(3)
    with pytest.raises(RuntimeError, match=ERROR) as info:
        case()
    return info.value


@pytest.mark.parametrize("case", CASES)
def test_the_writing_and_the_saving_line_are_named(only, line_of, case):
    session = gs.audit()
    with pytest.raises(RuntimeError, match=ERROR), session:
        case()
    finding = only(session, CODES.get(case, "GCS103"))
    assert finding.location.line == line_of(case, "written")
    places = {place.message: place.location.line for place in finding.related}
    assert places["saved for backward here"] == line_of(case, "saved")
    used = line_of(Double, "used") if case is custom_function else line_of(case, "used")
    assert places["used by this backward"] == used


def test_an_activation_in_place_of_a_slice_is_not_taken_for_who_overwrote_it(only, line_of):
    def program():
        h = torch.randn(3, 4, requires_grad=True) * 2
        left, right = h[:, :2], h[:, 2:]
        left.exp_()
        left += right  # <- written
        h.sum().backward()

    session = gs.audit()
    with pytest.raises(RuntimeError, match=ERROR), session:
        program()
    assert only(session, "GCS103").location.line == line_of(program, "written")


@pytest.mark.parametrize("anomaly", [False, True])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore")
def test_the_error_is_torchs_own_to_the_letter(case, anomaly):
    with torch.autograd.set_detect_anomaly(anomaly):
        expected = error_of(case)
        with gs.audit():
            seen = error_of(case)
    assert type(seen) is type(expected)
    assert str(seen) == str(expected)


def test_the_traceback_shows_no_frame_of_ours():
    with pytest.raises(RuntimeError, match=ERROR) as info, gs.audit():
        method()
    files = [entry.path.as_posix() for entry in info.traceback]
    assert any("torch" in file for file in files)
    assert not any("gradcheck_suite" in file for file in files)


def test_the_words(only):
    session = gs.audit()
    with pytest.raises(RuntimeError, match=ERROR), session:
        method()
    message = only(session, "GCS103").message
    assert message.startswith("`h` (4, made by Exp) was saved for backward by Mul at ")
    assert "and overwritten by mul_() at " in message
    assert message.endswith("its version is 1, expected 0, and backward cannot go on")


def test_a_parameter_goes_by_its_qualified_name(only):
    session = gs.audit()
    with pytest.raises(RuntimeError, match=ERROR), session:
        two_player_training()
    finding = only(session, "GCS109")
    assert "`weight` (4x1, made by T)" in finding.message
    assert "overwritten by SGD.step()" in finding.message
    assert "run every backward()" in finding.hint


def test_a_graph_that_outlives_the_audit_is_still_checked():
    with gs.audit() as session:
        h = torch.randn(4, requires_grad=True).exp()
        loss = (h * h).sum()
    h.add_(1)
    with pytest.raises(RuntimeError, match=ERROR):
        loss.backward()
    assert session.findings == ()


def fixed_out_of_place():
    h = torch.randn(4, requires_grad=True).exp()
    loss = (h * h).sum()
    h = h + 1
    loss.backward()


def fixed_clone():
    h = torch.randn(4, requires_grad=True).sigmoid()
    nn.functional.relu(h.clone(), inplace=True).sum().backward()


def writes_that_nothing_saved():
    x = torch.randn(4, requires_grad=True)
    h = (x * 2).add_(1).mul_(3)
    h[0] = 3
    h.exp().sum().backward()


def write_after_backward():
    h = torch.randn(4, requires_grad=True).exp()
    (h * h).sum().backward()
    with torch.no_grad():
        h.zero_()


def writes_to_the_other_half():
    whole = torch.zeros(8)
    w = torch.randn(4, requires_grad=True)
    loss = (w * whole[:4].clone()).sum()
    whole[4:].fill_(7)
    loss.backward()


def steps_in_the_right_order():
    critic = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
    fake = torch.randn(3, 4, requires_grad=True)
    critic(fake).mean().backward()
    optimizer.step()
    critic(fake).mean().backward()


@pytest.mark.parametrize(
    "case",
    [
        fixed_out_of_place,
        fixed_clone,
        writes_that_nothing_saved,
        write_after_backward,
        writes_to_the_other_half,
        steps_in_the_right_order,
    ],
)
def test_nothing_is_said_of_correct_code(audited, case):
    assert audited(case).findings == ()


def test_a_slice_whose_base_is_assigned_to_is_told_as_such(only, line_of):
    session = gs.audit()
    with pytest.raises(RuntimeError, match=ERROR), session:
        scan()
    finding = only(session, "GCS107")
    assert finding.location.line == line_of(scan, "written")
    assert "share one version" in finding.message


def write_to_a_parameter():
    net = nn.Linear(2, 2)
    net.weight *= 0.1  # <- written


def write_to_an_element():
    weight = torch.zeros(3, requires_grad=True)
    weight[0] = 1.0  # <- written


def write_by_method():
    weight = nn.Parameter(torch.zeros(3))
    weight.clamp_(0, 1)  # <- written


@pytest.mark.parametrize("case", [write_to_a_parameter, write_to_an_element, write_by_method])
def test_a_write_into_a_leaf_is_told_with_torchs_error_unchanged(only, line_of, case):
    session = gs.audit()
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"), session:
        case()
    finding = only(session, "GCS101")
    assert finding.location.line == line_of(case, "written")
    assert "`weight`" in finding.message


def test_a_transposed_view_goes_by_the_variable_and_nodes_by_their_short_names(audited, only):
    def loop():
        codes = torch.randn(4, 3, requires_grad=True)
        state = torch.zeros(2, 3)
        state.copy_(torch.randn(2, 3, requires_grad=True))
        product = (state * codes[:2]).sum() + (
            torch.randn(2, 3, requires_grad=True) @ codes.t()
        ).sum()
        with torch.no_grad():
            codes += 1
        with pytest.raises(RuntimeError, match="inplace operation"):
            product.backward()

    finding = only(audited(loop), "GCS103")
    assert finding.message.startswith("`codes` (3x4, made by T)")
