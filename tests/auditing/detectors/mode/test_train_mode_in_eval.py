"""GCS701, and GCS204 in training mode: passes between steps whose results no backward uses."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from torch import nn

from gradcheck_suite.findings import Severity


def network():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))


def plain_network(width=4):
    return nn.Sequential(nn.Linear(width, 8), nn.Tanh(), nn.Linear(8, 1))


def trained(model):
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def steps(model, optimizer, count=3):
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.randn(6, 4)).square().mean().backward()
        optimizer.step()


def tested_after_each_step():
    model, optimizer = trained(network())
    for _ in range(6):
        model.train()
        steps(model, optimizer, 1)
        model(torch.randn(6, 4)).argmax(1)  # <- here


def tested_after_each_step_without_recording():
    model, optimizer = trained(network())
    for _ in range(6):
        steps(model, optimizer, 1)
        with torch.no_grad():
            model(torch.randn(6, 4))  # <- here


def validation_loss_with_its_graph():
    model, optimizer = trained(network())
    for _ in range(3):
        steps(model, optimizer, 5)
        for _ in range(2):
            model(torch.randn(6, 4)).sum().item()  # <- here


def one_helper_for_both():
    model, optimizer = trained(network())

    def loss_of(x):
        return model(x).square().mean()

    for _ in range(3):
        for _ in range(4):
            optimizer.zero_grad()
            loss_of(torch.randn(6, 4)).backward()
            optimizer.step()
        for _ in range(3):
            loss_of(torch.randn(6, 4)).item()  # <- here


def another_model_is_set_in_between():
    model, optimizer = trained(network())
    teacher = network()
    for _ in range(3):
        model.train()
        steps(model, optimizer)
        teacher.eval()
        teacher.train()
        with torch.no_grad():
            model(torch.randn(6, 4))  # <- here


def samples_of_a_generator():
    generator, of_generator = trained(network())
    critic, of_critic = trained(plain_network(1))
    for turn in range(9):
        of_critic.zero_grad()
        critic(generator(torch.randn(6, 4)).detach()).mean().backward()
        of_critic.step()
        of_generator.zero_grad()
        critic(generator(torch.randn(6, 4))).mean().neg().backward()
        of_generator.step()
        if turn % 3 == 2:
            with torch.no_grad():
                generator(torch.randn(6, 4))  # <- here


BUGS = [
    tested_after_each_step,
    tested_after_each_step_without_recording,
    validation_loss_with_its_graph,
    one_helper_for_both,
    another_model_is_set_in_between,
    samples_of_a_generator,
]


@pytest.mark.parametrize("loop", BUGS)
def test_a_pass_in_training_mode_is_told_at_its_line(audited, line_of, loop):
    session = audited(loop)
    (finding,) = session.report.at_least(Severity.WARNING)
    assert (finding.code, finding.severity) == ("GCS701", Severity.WARNING)
    assert finding.location.line == line_of(loop)
    assert "lowered" not in finding.evidence


def test_the_words_name_the_model_and_what_acted(audited, only):
    finding = only(audited(tested_after_each_step), "GCS701")
    assert finding.message == (
        "`model` ran between steps of training, and no backward used the graphs that it recorded, "
        "with BatchNorm1d and Dropout in training mode, 6 times; expected model.eval() before "
        "such a pass and train() after it (first after step 1)"
    )
    assert finding.evidence["count"] == 6


def recorded_validation_of_a_plain_model():
    model, optimizer = trained(plain_network())
    for _ in range(3):
        steps(model, optimizer, 12)
        for _ in range(3):
            model(torch.randn(6, 4)).sum().item()  # <- here


def test_graphs_of_a_validation_in_training_mode_are_told(audited, only, line_of):
    finding = only(audited(recorded_validation_of_a_plain_model), "GCS204")
    assert finding.severity is Severity.WARNING
    assert finding.location.line == line_of(recorded_validation_of_a_plain_model)
    assert finding.message == (
        "`model` recorded a graph in 9 calls here, and no backward used any of them: what such a "
        "pass computes needs none"
    )


def self_conditioning():
    random.seed(1)
    model, optimizer = trained(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 4)))
    for _ in range(20):
        x, condition = torch.randn(6, 4), torch.zeros(6, 4)
        if random.random() < 0.5:
            with torch.no_grad():
                condition = model(torch.cat([x, condition], 1))
        optimizer.zero_grad()
        model(torch.cat([x, condition], 1)).square().mean().backward()
        optimizer.step()


def targets_of_another_view():
    model, optimizer = trained(network())
    average = copy.deepcopy(model)
    for _ in range(8):
        with torch.no_grad():
            target = average(torch.randn(6, 4)) + model(torch.randn(6, 4))
        optimizer.zero_grad()
        (model(torch.randn(6, 4)) - target).square().mean().backward()
        optimizer.step()


def two_views_in_one_loss():
    model, optimizer = trained(network())
    for _ in range(8):
        optimizer.zero_grad()
        (model(torch.randn(6, 4)) - model(torch.randn(6, 4))).square().mean().backward()
        optimizer.step()


def fake_used_by_both():
    generator, of_generator = trained(network())
    critic, of_critic = trained(plain_network(1))
    for _ in range(8):
        fake = generator(torch.randn(6, 4))
        of_critic.zero_grad()
        critic(fake.detach()).mean().backward()
        of_critic.step()
        of_generator.zero_grad()
        critic(fake).mean().neg().backward()
        of_generator.step()


def validated_in_evaluation_mode():
    model, optimizer = trained(network())
    for _ in range(3):
        model.train()
        steps(model, optimizer)
        model.eval()
        with torch.no_grad():
            model(torch.randn(6, 4))


def one_picture_of_the_graph():
    model, optimizer = trained(network())
    model(torch.randn(6, 4))
    steps(model, optimizer, 8)


@pytest.mark.parametrize(
    "loop",
    [
        self_conditioning,
        targets_of_another_view,
        two_views_in_one_loss,
        fake_used_by_both,
        validated_in_evaluation_mode,
        one_picture_of_the_graph,
    ],
)
def test_passes_that_belong_to_the_step_are_not_told(audited, loop):
    assert audited(loop).findings == ()


def sampled_dropout():
    model, optimizer = trained(network())
    steps(model, optimizer, 6)
    x = torch.randn(6, 4)
    with torch.no_grad():
        torch.stack([model(x) for _ in range(10)]).std(0)


def set_on_purpose():
    model, optimizer = trained(network())
    for _ in range(3):
        steps(model, optimizer)
        model.train()
        with torch.no_grad():
            model(torch.randn(6, 4))


def a_part_evaluated():
    model, optimizer = trained(network())
    for _ in range(3):
        model.train()
        steps(model, optimizer)
        model[2].eval()
        with torch.no_grad():
            model(torch.randn(6, 4))


def generator_stepped_three_times():
    generator, of_generator = trained(network())
    critic, of_critic = trained(plain_network(1))
    for _ in range(6):
        of_critic.zero_grad()
        critic(generator(torch.randn(6, 4)).detach()).mean().backward()
        of_critic.step()
        for _ in range(3):
            of_generator.zero_grad()
            critic(generator(torch.randn(6, 4))).mean().neg().backward()
            of_generator.step()


@pytest.mark.parametrize(
    ("loop", "doubt"),
    [
        (sampled_dropout, "it ran on the same input again and again, as to sample dropout"),
        (set_on_purpose, "train() was called before it, after the last step"),
        (a_part_evaluated, "others of its layers were in evaluation mode"),
        (
            generator_stepped_three_times,
            "what it returned may have gone into the loss of another model",
        ),
    ],
)
def test_what_speaks_against_it_lowers_it(audited, only, loop, doubt):
    finding = only(audited(loop), "GCS701")
    assert finding.severity is Severity.NOTE
    assert finding.evidence["lowered"] == (doubt,)


def test_a_fake_made_for_the_critic_alone_is_a_note(audited, only):
    def loop():
        generator, of_generator = trained(plain_network())
        critic, of_critic = trained(plain_network(1))
        for _ in range(6):
            of_critic.zero_grad()
            critic(generator(torch.randn(6, 4)).detach()).mean().backward()
            of_critic.step()
            of_generator.zero_grad()
            critic(generator(torch.randn(6, 4))).mean().neg().backward()
            of_generator.step()

    assert only(audited(loop), "GCS204").severity is Severity.NOTE
