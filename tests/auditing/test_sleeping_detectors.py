"""Handlers that have nothing to wait for are not called, and are when it happens after all."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gradcheck_suite as gs
from gradcheck_suite.auditing.events import (
    Attention,
    BackwardStarted,
    GradientsClipped,
    StepFinished,
)

CLEAN_STEPS = 10


class Sleeper:
    """Sleeps at once, and is woken by a clipping."""

    def __init__(self):
        self.backwards = self.steps = 0

    def subscriptions(self):
        return {
            BackwardStarted: self._backward,
            StepFinished: self._step,
            GradientsClipped: self._clip,
        }

    def _backward(self, _event):
        self.backwards += 1
        return Attention.ASLEEP

    def _step(self, _event):
        self.steps += 1

    def _clip(self, _event):
        return Attention.AWAKE

    def findings(self):
        return []


class Loop:
    """A correct loop, one step at a time."""

    def __init__(self, rate=0.1):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate)
        self.batch = torch.randn(5, 3)

    def backward(self):
        self.optimizer.zero_grad()
        self.model(self.batch).square().mean().backward()

    def step(self):
        self.backward()
        self.optimizer.step()


@pytest.fixture
def loop():
    return Loop()


def test_a_handler_sleeps_until_its_detector_is_woken(loop):
    sleeper = Sleeper()
    session = gs.audit()
    session._recorder.bus.subscribe([sleeper])
    with session:
        for _ in range(3):
            loop.step()
        assert (sleeper.backwards, sleeper.steps) == (1, 3)
        loop.backward()
        nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)
        loop.optimizer.step()
        loop.step()
        loop.step()
        assert (sleeper.backwards, sleeper.steps) == (2, 6)
    session._recorder.bus.subscribe([sleeper])
    with session:
        loop.step()
    assert sleeper.backwards == 3


def test_a_clipping_that_begins_late_is_judged(loop, line_of):
    with gs.audit() as session:
        for _ in range(CLEAN_STEPS):
            loop.step()
        for _ in range(5):
            loop.step()
            nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)  # <- clipped
    assert [f.code for f in session.report.findings] == ["GCS304"]
    assert session.report.findings[0].location.line == line_of(
        test_a_clipping_that_begins_late_is_judged, "clipped"
    )


def test_a_scaler_that_begins_late_is_judged(loop):
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with gs.audit() as session:
        for _ in range(CLEAN_STEPS):
            loop.step()
        for _ in range(3):
            loop.optimizer.zero_grad()
            scaler.scale(loop.model(loop.batch).square().mean()).backward()
            loop.optimizer.step()  # the scaled gradients
            scaler.update(8.0)
    assert "GCS310" in {f.code for f in session.report.findings}


def test_a_second_optimizer_that_begins_late_is_followed(loop):
    """The generator's loss fills the discriminator's gradients, which its own loss adds to."""
    torch.manual_seed(1)
    discriminator = nn.Linear(1, 1)
    with gs.audit() as session:
        for _ in range(CLEAN_STEPS):
            loop.step()
        other = torch.optim.SGD(discriminator.parameters(), lr=0.1)
        for _ in range(4):
            loop.optimizer.zero_grad()
            discriminator(loop.model(loop.batch)).mean().backward()
            loop.optimizer.step()
            discriminator(torch.randn(5, 1)).square().mean().backward()
            other.step()
            other.zero_grad()
    assert "GCS309" in {f.code for f in session.report.findings}


@pytest.mark.usefixtures("untraced")
def test_a_writer_that_begins_late_is_watched(loop, line_of):
    """Through numpy: no version moves, and the line is found on the steps after the first."""
    with gs.audit(checksum_every=1) as session:
        for _ in range(CLEAN_STEPS):
            loop.step()
        for _ in range(4):
            loop.optimizer.zero_grad()
            hidden = loop.model[1](loop.model[0](loop.batch))
            loss = loop.model[2](hidden).square().mean()
            hidden.detach().numpy()[0] += 1.0  # <- written
            loss.backward()
            loop.optimizer.step()
    (finding,) = session.report.findings
    assert finding.code == "GCS104"
    assert finding.location.line == line_of(test_a_writer_that_begins_late_is_watched, "written")


class Napper(Sleeper):
    """Listens to the backward of every fifth turn."""

    def __init__(self, recorder):
        super().__init__()
        self.recorder = recorder
        self.turns = []

    def _backward(self, _event):
        iteration = self.recorder.state.iteration
        if iteration % 5:
            return iteration - iteration % 5 + 5
        self.turns.append(iteration)
        return None


def test_a_handler_naps_until_the_turn_that_it_names(loop):
    session = gs.audit()
    napper = Napper(session._recorder)
    session._recorder.bus.subscribe([napper])
    with session:
        for _ in range(23):
            loop.step()
    assert napper.turns == [0, 5, 10, 15, 20]
    assert napper.steps == 23


def test_a_new_optimizer_wakes_everybody(loop):
    sleeper = Sleeper()
    session = gs.audit()
    session._recorder.bus.subscribe([sleeper])
    with session:
        for _ in range(3):
            loop.step()
        assert sleeper.backwards == 1
        loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.1)
        loop.step()
        assert sleeper.backwards == 2


def late(change):
    """Run a correct loop and, after some steps, one with a mistake; return what is found."""
    loop = Loop()
    with gs.audit() as session:
        for _ in range(40):
            loop.step()
        for index in range(32):
            change(loop, index)
    return [finding.code for finding in session.report.findings]


def steps_without_backward(loop, _index):
    loop.optimizer.step()


def clears_before_the_step(loop, _index):
    loop.backward()
    loop.optimizer.zero_grad()
    loop.optimizer.step()


def clears_each_micro_batch(loop, _index):
    loop.backward()
    loop.backward()
    loop.optimizer.step()


def never_clears(loop, _index):
    loop.model(loop.batch).square().mean().backward()
    loop.optimizer.step()


def starts_from_a_leaf(loop, _index):
    loop.optimizer.zero_grad()
    loss = loop.model(loop.batch).square().mean().detach().requires_grad_(True)
    loss.backward()
    loop.optimizer.step()


def carries_its_state(loop, index):
    loop.optimizer.zero_grad()
    out = loop.model(loop.batch).square().mean()
    drift = loop.model[0].bias.sum()  # saves nothing that the step writes to
    loop.state = drift if index == 0 else 0.5 * loop.state + drift
    (out + loop.state).backward(retain_graph=True)
    loop.optimizer.step()


def stays_in_evaluation_mode(loop, index):
    if index == 0:
        loop.model.append(nn.Dropout(0.5)).eval()
    loop.step()


def assigns_slice_by_slice(loop, _index):
    loop.optimizer.zero_grad()
    out = loop.model(loop.batch)
    rows = torch.zeros(64)
    for row in range(64):
        rows[row] = out[row % 5, 0]
    rows.square().mean().backward()
    loop.optimizer.step()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (steps_without_backward, "GCS303"),
        (clears_before_the_step, "GCS302"),
        (clears_each_micro_batch, "GCS302"),
        (never_clears, "GCS301"),
        (starts_from_a_leaf, "GCS405"),
        (carries_its_state, "GCS202"),
        (stays_in_evaluation_mode, "GCS702"),
        (assigns_slice_by_slice, "GCS106"),
    ],
)
def test_what_goes_wrong_after_many_quiet_steps_is_found(change, code):
    assert code in late(change)
