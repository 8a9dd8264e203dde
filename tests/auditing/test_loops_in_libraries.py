"""Training loops that a library runs: the user's code is one line of calls, or a few methods."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

import gradcheck_suite as gs
from gradcheck_suite.auditing.call_sites import exact_call_site, location_of

LIBRARY = str(Path(torch.__file__).parent.parent / "some_library" / "loops.py")


def library(source):
    """Return what a module defines that lies where packages are installed."""
    namespace: dict = {"torch": torch, "nn": nn}
    exec(compile(textwrap.dedent(source), LIBRARY, "exec"), namespace)
    return namespace


ACTOR_CRITIC = """
    def learn(actor, critic, of_actor, of_critic, steps):
        for _ in range(steps):
            state = torch.randn(8, 4)
            loss = (critic(torch.cat([state, actor(state).detach()], 1)) - 1).pow(2).mean()
            of_critic.zero_grad()
            loss.backward()
            of_critic.step()
            loss = -critic(torch.cat([state, actor(state)], 1)).mean()
            of_actor.zero_grad()
            loss.backward()
            of_actor.step()
"""
MICRO_BATCHES = """
    def learn(model, optimizer, steps):
        for _ in range(steps):
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.randn(8, 4)).pow(2).mean().backward()
            optimizer.step()
"""


def test_two_backwards_of_a_library_are_told_apart():
    learn = library(ACTOR_CRITIC)["learn"]
    actor, critic = nn.Linear(4, 2), nn.Linear(6, 1)
    with gs.audit() as session:
        learn(actor, critic, *(torch.optim.Adam(each.parameters()) for each in (actor, critic)), 12)
    assert session.findings == ()


def test_one_backward_of_a_library_is_known_again():
    learn = library(MICRO_BATCHES)["learn"]
    model = nn.Linear(4, 1)
    with gs.audit() as session:
        learn(model, torch.optim.SGD(model.parameters(), lr=0.01), 6)
    (finding,) = session.findings
    assert finding.code == "GCS302"
    assert finding.location.path == __file__


def test_an_exact_call_site_goes_on_into_the_library():
    call = library("def first(f):\n    return f()\n\ndef second(f):\n    return f()\n")
    places = [call[name](exact_call_site) for name in ("first", "first", "second")]
    assert {location_of(place).path for place in places} == {__file__}
    assert places[0] == places[1] != places[2]


TRAINER = """
    class Trainer:
        def fit(self, module, steps):
            optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
            for _ in range(steps):
                model = module
                loss = model.training_step(torch.randn(8, 4))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
"""


class Module(nn.Module):
    def __init__(this):  # noqa: N805 - a method may call its object what it likes
        super().__init__()
        this.net = nn.Linear(4, 1)
        this.losses = []

    def training_step(this, x):  # noqa: N805 - as above
        loss = this.net(x).pow(2).mean()
        this.losses.append(loss)  # it grows here
        return loss


@pytest.fixture
def trained():
    trainer = library(TRAINER)["Trainer"]()
    with gs.audit() as session:
        trainer.fit(Module(), 10)
    return session


def test_what_a_users_object_keeps_is_told_by_its_class_and_not_by_a_librarys_variable(trained):
    (finding,) = trained.findings
    assert finding.code == "GCS201"
    assert "list `losses` of Module keeps" in finding.message
    source = Path(__file__).read_text(encoding="utf-8").splitlines()
    assert "# it grows here" in source[finding.location.line - 1]
    assert not any("some_library" in related.location.path for related in finding.related)


def test_graphs_that_went_with_their_holder_are_not_said_to_have_none(trained):
    assert not any("who keeps" in line for line in trained.report.not_covered)
