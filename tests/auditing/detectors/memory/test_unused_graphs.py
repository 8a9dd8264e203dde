"""Graphs kept or recorded for nothing, and those that are needed."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

STEPS = 6


def trained(loss_of=None, after=None, steps=STEPS):
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = net(torch.randn(3, 4)).pow(2).mean()
        (loss.backward if loss_of is None else lambda loss=loss: loss_of(net, loss))()
        optimizer.step()
        if after is not None:
            after(net)


def retained_for_nothing():
    trained(lambda _, loss: loss.backward(retain_graph=True))  # <- here


def evaluated_with_graph():
    def validate(net):
        net.eval()
        for _ in range(2):
            net(torch.randn(3, 4)).sum().item()  # <- here
        net.train()

    trained(after=validate)


def evaluated_in_a_helper():
    def predict(net, x):
        return net(x).argmax(1)  # <- here

    def validate(net):
        net.eval()
        predict(net, torch.randn(3, 4))
        net.train()

    trained(after=validate)


def inference_only():
    net = nn.Linear(4, 2).eval()
    net.eval()
    for _ in range(5):
        net(torch.randn(3, 4)).tolist()  # <- here


def distilled(target_of, teacher=None, before=None, steps=STEPS):
    teacher = nn.Linear(4, 1).eval() if teacher is None else teacher
    student = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
    for _ in range(steps):
        x = torch.randn(3, 4)
        if before is not None:
            before(teacher)
        optimizer.zero_grad()
        (student(x) - target_of(teacher, x)).square().mean().backward()
        optimizer.step()


def teacher_detached():
    teacher = nn.Linear(4, 1)
    teacher.eval()
    distilled(lambda teacher, x: teacher(x).detach(), teacher)  # <- here


def teacher_detached_and_set_each_time():
    def target(teacher, x):
        teacher.eval()
        return teacher(x).softmax(1).detach()  # <- here

    distilled(target, nn.Linear(4, 1))


def graph_in_every_gradient():
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(STEPS):
        for parameter in net.parameters():
            if parameter.grad is not None:
                parameter.grad.data.zero_()
        loss = net(torch.randn(3, 4)).pow(2).mean()
        loss.backward(create_graph=True)  # <- here
        optimizer.step()


BUGS = [
    (retained_for_nothing, "GCS203"),
    (evaluated_with_graph, "GCS204"),
    (evaluated_in_a_helper, "GCS204"),
    (inference_only, "GCS204"),
    (teacher_detached, "GCS204"),
    (teacher_detached_and_set_each_time, "GCS204"),
    (graph_in_every_gradient, "GCS206"),
]


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("case", BUGS, ids=lambda case: case[0].__name__)
def test_what_nobody_uses_is_told_with_its_line(audited, line_of, case):
    loop, code = case
    found = [each for each in audited(loop).findings if each.code == code]
    assert len(found) == 1
    assert found[0].location.line == line_of(loop)


def two_losses_over_one_trunk():
    def losses(net, loss):
        loss.backward(retain_graph=True)
        (loss * 2).backward()

    trained(losses)


def three_losses_over_one_trunk():
    trunk, heads = nn.Linear(4, 4), [nn.Linear(4, 1) for _ in range(3)]
    parameters = [p for module in (trunk, *heads) for p in module.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        hidden = trunk(torch.randn(3, 4)).tanh()
        first, second, third = (head(hidden).mean() for head in heads)
        first.backward(retain_graph=True)
        second.backward(retain_graph=True)
        third.backward()
        optimizer.step()


def rows_of_a_jacobian():
    def rows(net, loss):
        out = net(torch.randn(3, 4))
        for index in range(3):
            torch.autograd.grad(out[index, 0], net[0].weight, retain_graph=True)
        loss.backward()

    trained(rows)


def penalty():
    def penalized(net, loss):
        parameters = list(net.parameters())
        gradients = torch.autograd.grad(loss, parameters, create_graph=True)
        (loss + sum(each.pow(2).sum() for each in gradients)).backward()

    trained(penalized)


def cleared_each_step():
    def curved(net, loss):
        net.zero_grad()
        loss.backward(create_graph=True)
        sum(each.grad.square().sum() for each in net.parameters()).backward()

    trained(curved)


def evaluated_without_graph():
    def validate(net):
        net.eval()
        with torch.no_grad():
            for _ in range(4):
                net(torch.randn(3, 4))
        net.train()

    trained(after=validate)


def trained_in_evaluation_mode():
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(STEPS):
        net.eval()
        optimizer.zero_grad()
        net(torch.randn(3, 4)).mean().backward()
        optimizer.step()


def saliency():
    def explain(net):
        net.eval()
        x = torch.randn(3, 4, requires_grad=True)
        torch.autograd.grad(net(x).sum(), x)
        net.train()

    trained(after=explain)


def frozen_in_evaluation_mode():
    teacher = nn.Linear(4, 1).requires_grad_(False)

    def validate(_net):
        teacher.eval()
        teacher(torch.randn(3, 4))

    trained(after=validate)


def teacher_without_recording():
    def target(teacher, x):
        with torch.no_grad():
            return teacher(x)

    teacher = nn.Linear(4, 1)
    teacher.eval()
    distilled(target, teacher)


def frozen_teacher():
    teacher = nn.Linear(4, 1).requires_grad_(False)
    teacher.eval()
    distilled(lambda teacher, x: teacher(x).detach(), teacher)


def judge_in_evaluation_mode():
    judge = nn.Linear(1, 1)
    judge.eval()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        judge(model(torch.randn(3, 4))).square().mean().backward()
        optimizer.step()


def teacher_used_late():
    """The graphs of four steps, of which a backward uses each in the end."""
    teacher, student = nn.Linear(4, 1), nn.Linear(4, 1)
    teacher.eval()
    optimizer = torch.optim.SGD([*student.parameters()], lr=0.01)
    slow = torch.optim.SGD([*teacher.parameters()], lr=0.01)
    for _ in range(2):
        kept = []
        for _ in range(4):
            x = torch.randn(3, 4)
            kept.append(teacher(x))
            optimizer.zero_grad()
            (student(x) - kept[-1].detach()).square().mean().backward()
            optimizer.step()
        slow.zero_grad()
        torch.cat(kept).square().mean().backward()
        slow.step()


CLEAN = [
    teacher_without_recording,
    frozen_teacher,
    judge_in_evaluation_mode,
    teacher_used_late,
    two_losses_over_one_trunk,
    three_losses_over_one_trunk,
    rows_of_a_jacobian,
    penalty,
    cleared_each_step,
    evaluated_without_graph,
    trained_in_evaluation_mode,
    saliency,
    frozen_in_evaluation_mode,
]


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("loop", CLEAN, ids=lambda loop: loop.__name__)
def test_nothing_is_said_of_graphs_that_are_needed(audited, loop):
    codes = {each.code for each in audited(loop).findings}
    assert codes.isdisjoint({"GCS203", "GCS204", "GCS206"})


def test_a_teacher_whose_graphs_are_dropped_is_a_note(audited):
    (finding,) = audited(teacher_detached).findings
    assert finding.severity.value == "note"
    assert finding.message == (
        "Linear in evaluation mode recorded a graph in 4 calls here, amid training, and 4 of them "
        "were dropped before any backward could use them: eval() does not stop recording, and "
        "detach() comes after it"
    )
    assert finding.hint == "with torch.no_grad(): around this call"


def test_an_evaluation_that_is_never_called_again_lets_the_audit_rest(audited):
    def loop():
        teacher = nn.Linear(4, 1)
        teacher.eval()
        trained(steps=3)
        teacher(torch.randn(3, 4)).detach()
        trained(steps=12)

    session = audited(loop)
    (detector,) = [
        each for each in session._detectors if type(each).__name__ == "UnusedGraphDetector"
    ]
    assert not detector.is_following()
    assert not session.findings


def test_no_hook_stays_on_a_module_in_evaluation_mode(audited):
    net = nn.Linear(4, 2)

    def loop():
        net.eval()
        copy.deepcopy(net)(torch.randn(3, 4))

    audited(loop)
    assert not net._forward_hooks
