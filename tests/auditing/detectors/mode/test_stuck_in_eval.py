"""GCS702: steps in evaluation mode, and what came between ``eval()`` and them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradcheck_suite.findings import Severity

CODE = "GCS702"


def network():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))


def trained():
    model = network()
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def steps(model, optimizer, count=3):
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.randn(6, 4)).square().mean().backward()
        optimizer.step()


def validate(model, width=4):
    model.eval()  # <- here
    with torch.no_grad():
        model(torch.randn(6, width))


def stuck_after_the_first_validation():
    model, optimizer = trained()
    model.train()
    for _ in range(3):
        steps(model, optimizer)
        validate(model)


def stuck_in_an_attribute():
    class Trainer:
        def __init__(self):
            self.model, self.optimizer = trained()

        def fit(self):
            for _ in range(3):
                steps(self.model, self.optimizer)
                validate(self.model)

    Trainer().fit()


def a_part_alone_is_trained_again():
    model, optimizer = trained()
    for _ in range(3):
        steps(model, optimizer)
        validate(model)
        model[3].train()


def another_module_is_trained_again():
    model, optimizer = trained()
    other = network()
    for _ in range(3):
        steps(model, optimizer)
        validate(model)
        other.train()


def baseline_before_training():
    model, optimizer = trained()
    validate(model)
    for _ in range(3):
        steps(model, optimizer, 2)


def validated_before_each_step():
    model, optimizer = trained()
    for _ in range(6):
        validate(model)
        steps(model, optimizer, 1)


def two_modules():
    body, head = network()[:3], nn.Linear(8, 1)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.01)
    validate(body)
    validate(head, 8)
    steps(nn.Sequential(body, head), optimizer, 6)


BUGS = [
    stuck_after_the_first_validation,
    stuck_in_an_attribute,
    a_part_alone_is_trained_again,
    another_module_is_trained_again,
    baseline_before_training,
    validated_before_each_step,
    two_modules,
]


@pytest.mark.parametrize("loop", BUGS)
def test_a_validation_that_steps_follow_is_told_where_it_evaluates(audited, only, line_of, loop):
    finding = only(audited(loop), CODE)
    assert finding.severity is Severity.WARNING
    assert finding.location.line == line_of(validate)
    assert finding.evidence["count"] == 6


def test_the_words_say_what_came_before(audited, only):
    assert only(audited(stuck_after_the_first_validation), CODE).message == (
        "`model` was put into evaluation mode after steps in training mode, and 6 steps followed "
        "without train(): its BatchNorm1d and Dropout acted as in evaluation; expected train() "
        "before training goes on"
    )
    assert only(audited(baseline_before_training), CODE).message == (
        "`model` was put into evaluation mode for a pass before its first step, and 6 steps "
        "followed without train(): its BatchNorm1d and Dropout acted as in evaluation; expected "
        "train() before training begins"
    )


def validated_with_its_graph():
    model, optimizer = trained()
    for _ in range(3):
        steps(model, optimizer)
        model.eval()
        for _ in range(2):
            model(torch.randn(6, 4)).sum().item()


def test_a_pass_that_records_is_a_pass(audited):
    found = {each.code: each for each in audited(validated_with_its_graph).findings}
    assert found[CODE].severity is Severity.WARNING


def evaluated_in_each_epoch():
    model, optimizer = trained()
    for _ in range(3):
        model.eval()
        steps(model, optimizer)


def trained_then_evaluated_in_each_epoch():
    model, optimizer = trained()
    for _ in range(3):
        model.train()
        model.eval()
        steps(model, optimizer)


def frozen_statistics_and_validations():
    model, optimizer = trained()
    validate(model)
    for _ in range(3):
        model.eval()
        steps(model, optimizer)
        validate(model)


@pytest.mark.parametrize(
    "loop",
    [
        evaluated_in_each_epoch,
        trained_then_evaluated_in_each_epoch,
        frozen_statistics_and_validations,
    ],
)
def test_evaluation_mode_from_the_start_is_a_fact(audited, only, loop):
    finding = only(audited(loop), CODE)
    assert finding.severity is Severity.NOTE
    assert finding.message == (
        "SGD.step() trained `model` in evaluation mode from the start, in 9 steps: its BatchNorm1d "
        "and Dropout acted as in evaluation; if that is not meant, model.train() is missing"
    )


def test_a_model_evaluated_before_the_audit_is_told_of(audited, only):
    model, optimizer = trained()
    model.eval()
    finding = only(audited(lambda: steps(model, optimizer)), CODE)
    assert (finding.severity, finding.evidence["count"]) == (Severity.NOTE, 3)


def frozen_late_without_a_pass():
    model, optimizer = trained()
    steps(model, optimizer)
    model.eval()
    steps(model, optimizer)


def frozen_late_but_for_the_head():
    model, optimizer = trained()
    steps(model, optimizer)
    for _ in range(2):
        model.eval()
        model[3].train()
        steps(model, optimizer)


@pytest.mark.parametrize(
    ("loop", "doubts"),
    [
        (frozen_late_without_a_pass, ("nothing but the next step came after eval()",)),
        (
            frozen_late_but_for_the_head,
            ("a part of it was in training mode", "nothing but the next step came after eval()"),
        ),
    ],
)
def test_without_a_pass_in_between_it_is_a_note(audited, only, loop, doubts):
    finding = only(audited(loop), CODE)
    assert finding.severity is Severity.NOTE
    assert finding.evidence["lowered"] == doubts


def proper():
    model, optimizer = trained()
    validate(model)
    for _ in range(3):
        model.train()
        steps(model, optimizer)
        validate(model)


def fine_tuned_but_for_the_head():
    model, optimizer = trained()
    for _ in range(3):
        model.eval()
        model[3].train()
        steps(model, optimizer)


def batch_norm_alone():
    model, optimizer = trained()
    for _ in range(3):
        model.train()
        for layer in model.modules():
            if isinstance(layer, nn.BatchNorm1d):
                layer.eval()
        steps(model, optimizer)


def without_such_layers():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        steps(model, optimizer)
        validate(model)


def attacked_in_evaluation_mode():
    model, optimizer = trained()
    for _ in range(6):
        model.eval()
        x = torch.randn(6, 4, requires_grad=True)
        torch.autograd.grad(model(x).sum(), x)
        model.train()
        steps(model, optimizer, 1)


@pytest.mark.parametrize(
    "loop",
    [
        proper,
        fine_tuned_but_for_the_head,
        batch_norm_alone,
        without_such_layers,
        attacked_in_evaluation_mode,
    ],
)
def test_correct_programs_pass_in_silence(audited, loop):
    assert audited(loop).findings == ()


def test_nothing_listens_to_a_layer_once_it_is_known(audited):
    original = nn.Module.__call__

    def loop():
        model, optimizer = trained()
        for _ in range(3):
            steps(model, optimizer)
            validate(model)

    audited(loop)
    assert nn.Module.__call__ is original


def pretrained():
    teacher = network()
    teacher.train()
    steps(teacher, torch.optim.SGD(teacher.parameters(), lr=0.01))
    return teacher


def distil(owned, *, under_no_grad=False, epochs=3, whole=None):
    teacher, student = pretrained(), network()
    both = nn.ModuleList([teacher, student]) if whole else None
    models = {"student": [student], "both": [student, teacher]}[owned]
    optimizer = torch.optim.SGD([each for one in models for each in one.parameters()], lr=0.01)
    for _ in range(epochs):
        student.train()
        teacher.eval()  # <- here
        for _ in range(3):
            x = torch.randn(6, 4)
            with torch.set_grad_enabled(not under_no_grad):
                wanted = teacher(x)
            optimizer.zero_grad()
            (student(x) - wanted).square().mean().backward()
            optimizer.step()
    return both


def test_a_teacher_that_the_optimizer_of_the_student_owns(audited, line_of):
    found = [each for each in audited(lambda: distil("both")).findings if each.code == CODE]
    (finding,) = found
    assert finding.severity is Severity.NOTE
    assert finding.location.line == line_of(distil)
    assert "together with a network that is in training mode" in finding.message


@pytest.mark.parametrize(
    "options",
    [
        {"owned": "student"},
        {"owned": "student", "under_no_grad": True},
        {"owned": "both", "under_no_grad": True},
    ],
)
def test_a_teacher_that_stays_as_it_is(audited, options):
    found = audited(lambda: distil(**options)).findings
    assert not [each for each in found if each.code == CODE]


def test_a_part_in_evaluation_mode_of_what_is_trained_as_a_whole(audited):
    found = audited(lambda: distil("both", whole=True)).findings
    loud = [each for each in found if each.code == CODE and each.severity is not Severity.NOTE]
    assert not loud
