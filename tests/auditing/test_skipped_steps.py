"""Steps of a long, quiet loop that are passed over: how many, and that nothing false is said."""

from __future__ import annotations

import math
import random
import threading
import time

import pytest
import torch
from torch import nn

import gradcheck_suite as gs
from gradcheck_suite.auditing import recorder as recorder_module
from gradcheck_suite.auditing.options import AuditOptions
from gradcheck_suite.auditing.recorder import StepSampler
from gradcheck_suite.findings import Severity
from gradcheck_suite.reporting.ledger import ledger_title
from tests.auditing.loops.bank import CLEAN
from tests.auditing.test_loop_bank import run_quietly


class Planned:
    """StepSampler as it is told, whatever steps take."""

    def __init__(self, first, lengths):
        self.next = first
        self._lengths = lengths

    def take_time(self, step, now, *, watched):
        pass

    def begin(self):
        pass

    def end(self):
        pass

    def length(self, step):
        length, watched = self._lengths()
        self.next = step + length + watched
        return length

    def postpone(self, step):
        self.next = step + 1


@pytest.fixture
def resting(monkeypatch):
    """Let audits rest from the 20th step on: 15 steps of each 20."""
    monkeypatch.setattr(
        recorder_module, "StepSampler", lambda _options: Planned(20, lambda: (15, 5))
    )


@pytest.fixture
def resting_at_random(monkeypatch):
    """Let audits rest after whichever step chance has it, as soon as they may."""

    def seed(number):
        chance = random.Random(number)
        lengths = lambda: (chance.randint(1, 3), chance.randint(1, 3))  # noqa: E731 - as above
        monkeypatch.setattr(recorder_module, "StepSampler", lambda _options: Planned(1, lengths))

    return seed


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("name", CLEAN)
@pytest.mark.slow
def test_nothing_is_said_of_a_correct_loop_that_is_watched_in_parts(
    audited, resting_at_random, name, seed
):
    resting_at_random(seed)
    session = audited(lambda: run_quietly(CLEAN[name]), checksum_first_steps=0)
    assert session.report.at_least(Severity.WARNING) == ()


@pytest.mark.slow
def test_many_of_these_loops_are_watched_in_parts(audited, resting_at_random):
    resting_at_random(0)
    rested = 0
    some = list(CLEAN.values())[::6]
    for loop in some:
        session = audited(lambda loop=loop: run_quietly(loop), checksum_first_steps=0)
        rested += passed_over(session) > 0
    assert rested >= len(some) // 3


def passed_over(session):
    lines = [line for line in session.report.not_covered if "passed over" in line]
    return int(lines[0].split()[0].replace(",", "")) if lines else 0


class Loop:
    """A correct loop, one step at a time."""

    def __init__(self, kind=torch.optim.SGD):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.1), nn.Linear(4, 1))
        self.optimizer = kind(self.model.parameters(), lr=0.01)
        self.batch = torch.randn(5, 3)
        self.last = None

    def loss(self):
        return self.model(self.batch).square().mean()

    def step(self):
        self.optimizer.zero_grad()
        self.last = self.loss()
        self.last.backward()
        self.optimizer.step()

    def steps(self, number):
        for _ in range(number):
            self.step()


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_three_quarters_of_a_quiet_loop_are_passed_over_and_counted(resting, kind):
    loop = Loop(kind)
    with gs.audit() as session:
        loop.steps(400)
    assert session.findings == ()
    assert passed_over(session) == 285
    assert session.report.summary["steps"] == 400
    assert session.report.summary["steps_passed_over"] == 285
    assert session.report.summary["backwards"] == 115
    (line,) = [line for line in session.report.not_covered if "passed over" in line]
    assert line.startswith("285 of 400 steps, passed over while all was well")
    assert "5 % longer (overhead)" in line

    ledger = session.ledger
    (optimizer,) = ledger.optimizers
    assert (ledger.steps, ledger.watched) == (400, 115)
    (cleared,), (backward,) = optimizer.cleared, ledger.backwards
    assert optimizer.steps == cleared.count == backward.place.count == 115
    assert ledger_title(ledger.to_dict()) == "what happened in 115 of 400 steps"


def test_the_same_bits_come_out(resting):
    bare = Loop()
    bare.steps(100)
    watched = Loop()
    with gs.audit() as session:
        watched.steps(100)
    assert passed_over(session) > 50
    for one, other in zip(bare.model.parameters(), watched.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_nothing_of_ours_is_left_while_it_rests_or_after(resting):
    loop = Loop()
    with gs.audit() as session:
        loop.steps(22)
        assert session._recorder.state.paused_for
        assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
            loop.steps(30)  # ours would not lie beneath these: it rests on
        before = passed_over(session)
        assert before > 30
        loop.steps(30)
        assert passed_over(session) - before < 30
    assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None


@pytest.mark.parametrize("steps_schedule", [True, False])
def test_a_schedule_that_is_stepped_while_it_rests_was_stepped(resting, steps_schedule):
    with gs.audit(report=False) as session:
        loop = Loop()
        schedule = torch.optim.lr_scheduler.StepLR(loop.optimizer, 1)
        loop.steps(25)
        assert session._recorder.state.paused_for
        if steps_schedule:
            schedule.step()
        loop.steps(25)
    assert [each.code for each in session.findings] == ([] if steps_schedule else ["GCS320"])


def test_an_audit_that_is_left_at_rest_hears_of_its_end(resting):
    loop = Loop()
    session = gs.audit()
    with session:
        loop.steps(25)
        assert session._recorder.state.paused_for
    with session:
        loop.steps(25)
    assert session.findings == ()
    assert session.report.summary["steps"] == 50
    assert not [line for line in session.report.not_covered if "bug in" in line]


class LateMistakes:
    """Mistakes that begin in step 60."""

    @staticmethod
    def missing_zero_grad():
        loop = Loop()
        loop.steps(60)
        for _ in range(60):
            loop.loss().backward()
            loop.optimizer.step()

    @staticmethod
    def graph_kept():
        loop, losses = Loop(), []
        loop.steps(60)
        for _ in range(60):
            loop.step()
            losses.append(loop.last)

    @staticmethod
    def step_without_backward():
        loop = Loop()
        loop.steps(60)
        for _ in range(60):
            loop.optimizer.zero_grad()
            loop.optimizer.step()

    @staticmethod
    def zero_grad_misplaced():
        loop = Loop()
        loop.steps(60)
        for _ in range(60):
            loop.loss().backward()
            loop.optimizer.zero_grad()
            loop.optimizer.step()

    @staticmethod
    def clip_misplaced():
        loop = Loop()
        loop.steps(60)
        for _ in range(60):
            loop.step()
            nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)

    @staticmethod
    def stuck_in_eval():
        loop = Loop()
        loop.steps(60)
        loop.model.eval()
        loop.steps(60)

    @staticmethod
    def saved_tensor_corrupted():
        loop = Loop()
        loop.steps(60)
        for _ in range(100):
            loop.optimizer.zero_grad()
            loss = loop.loss()
            loop.model[0].weight.data[0, 0] += 0.001
            loop.model[2].weight.data[0, 0] += 0.001
            loss.backward()
            loop.optimizer.step()


@pytest.mark.parametrize("rule", [name for name in vars(LateMistakes) if name[0] != "_"])
def test_a_mistake_that_begins_late_is_found(audited, resting, rule):
    # However long the machine lets a checksum of the first steps take.
    session = audited(getattr(LateMistakes, rule), overhead=math.inf)
    assert rule.replace("_", "-") in [finding.rule for finding in session.findings]
    assert passed_over(session) > 0


def test_a_list_of_losses_is_counted_whole_from_the_first_that_is_seen(audited, resting):
    session = audited(LateMistakes.graph_kept)
    (finding,) = session.findings
    # Up to 15 steps were passed over when it began, and the newest graph has a name.
    assert 60 - 15 - 1 <= finding.evidence["graphs"] <= 60


def test_each_validation_is_seen_though_it_is_short(audited, resting):
    def epochs():
        loop = Loop()
        for _ in range(8):
            loop.model.train()
            loop.steps(25)
            loop.model.eval()
            loop.loss()

    session = audited(epochs)
    (finding,) = session.findings
    assert (finding.rule, finding.evidence["count"]) == ("eval-with-graph", 8)
    assert passed_over(session) > 50


def test_the_error_of_a_step_that_was_passed_over_is_explained(resting):
    loop = Loop()
    session = gs.audit()

    @session
    def train():
        loop.steps(22)
        assert session._recorder.state.paused_for
        loop.optimizer.zero_grad()
        loop.loss().detach().backward()

    with pytest.raises(RuntimeError, match="does not require grad"):
        train()
    (finding,) = session.findings
    assert finding.rule == "graph-broken"


def test_what_was_saved_before_a_rest_is_checked_in_it(resting):
    loop = Loop()
    weight = torch.ones(3, requires_grad=True)
    session = gs.audit()

    @session
    def train():
        loop.steps(19)
        kept = weight.exp()
        later = kept.sum()
        loop.steps(2)
        assert session._recorder.state.paused_for
        with torch.no_grad():
            kept.add_(1)
        later.backward()

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        train()
    (finding,) = session.findings
    assert finding.code in {"GCS103", "GCS108"}


def test_another_optimizer_ends_the_rests(resting):
    loop = Loop()
    with gs.audit() as session:
        loop.steps(22)
        assert session._recorder.state.paused_for
        other = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
        assert not session._recorder.state.paused_for
        loop.steps(60)
        assert not session._recorder.state.paused_for
    assert session.findings == ()
    assert passed_over(session) == 2
    assert other


def test_a_step_of_an_optimizer_that_was_made_before_ends_a_rest(resting):
    other = Loop()
    loop = Loop()
    with gs.audit() as session:
        loop.steps(22)
        assert session._recorder.state.paused_for
        other.steps(60)
        assert not session._recorder.state.paused_for
    assert session.findings == ()


def test_steps_on_another_thread_are_not_passed_over(resting):
    loop = Loop()
    with gs.audit() as session:
        thread = threading.Thread(target=loop.steps, args=(60,))
        thread.start()
        thread.join()
    assert passed_over(session) == 0


@pytest.mark.parametrize("options", [{"checksum_every": 1}, {"checksum_every": 4}])
def test_steps_that_are_to_be_checksummed_are_not_passed_over(resting, options):
    loop, every = Loop(), options["checksum_every"]
    with gs.audit(**options) as session:
        loop.steps(20)
        before = session.report.summary["saved_tensors_checksummed"]
        loop.steps(80)
    of_one_step = 5
    assert session.report.summary["saved_tensors_checksummed"] - before >= 80 // every * of_one_step
    assert (passed_over(session) > 0) is (every > 1)


def test_steps_that_the_program_tells_of_are_all_watched(resting):
    loop = Loop()
    with gs.audit() as session:
        loop.steps(22)
        assert session._recorder.state.paused_for
        for _ in range(60):
            loop.step()
            session.step()
    assert session.findings == ()
    assert passed_over(session) == 3


def test_a_loop_with_a_scaler_is_watched_whole(resting):
    loop = Loop()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with gs.audit() as session:
        for _ in range(60):
            loop.optimizer.zero_grad()
            scaler.scale(loop.loss()).backward()
            scaler.step(loop.optimizer)
            scaler.update()
    assert session.findings == ()
    assert passed_over(session) == 0


def ran(plan, steps, *, with_audit, without, step=0):
    """Let ``plan`` decide of steps that take so long, and return which are watched."""
    watched, now, rest = [], 0.0, 0
    while len(watched) < steps:
        now += without if rest else with_audit
        step += 1
        watched.append(not rest)
        plan.take_time(step, now, watched=not rest)
        if rest:
            rest -= 1
            if not rest:
                plan.end()
        elif step >= plan.next:
            rest = plan.length(step)
            if rest:
                plan.begin()
    return watched


@pytest.mark.parametrize("added", [0.08, 0.12, 0.2])
def test_so_many_steps_are_passed_over_as_what_the_audit_adds_asks_for(added):
    watched = ran(
        StepSampler(AuditOptions(overhead=5.0)), 20_000, with_audit=1 + added, without=1.0
    )
    assert all(watched[:200])
    share = sum(watched[2_000:]) / len(watched[2_000:])
    assert share * added == pytest.approx(0.05, abs=0.004)


def test_a_part_is_watched_whatever_that_adds():
    watched = ran(StepSampler(AuditOptions(overhead=0)), 20_000, with_audit=3.0, without=1.0)
    assert 0.15 < sum(watched[2_000:]) / len(watched[2_000:]) < 0.25


def test_where_little_is_added_nothing_is_passed_over_but_to_learn_that():
    watched = ran(StepSampler(AuditOptions(overhead=5.0)), 20_000, with_audit=1.04, without=1.0)
    assert sum(watched) / len(watched) > 0.98


def test_a_loop_that_becomes_faster_is_found_out():
    plan = StepSampler(AuditOptions(overhead=5.0))
    ran(plan, 5_000, with_audit=1.01, without=1.0)
    watched = ran(plan, 5_000, with_audit=0.12, without=0.1, step=5_000)
    assert sum(watched[2_500:]) / len(watched[2_500:]) < 0.4


@pytest.mark.parametrize("options", [{"overhead": math.inf}, {"max_steps": 100_000}])
def test_each_step_is_watched_where_that_is_asked_for(options):
    assert all(ran(StepSampler(AuditOptions(**options)), 5_000, with_audit=2.0, without=1.0))


@pytest.mark.slow
def test_a_step_of_milliseconds_is_timed_in_a_real_loop():
    loop = Loop()

    def slow_pack(original):
        def pack(tensor):
            time.sleep(0.0005)
            return original(tensor)

        return pack

    session = gs.audit()
    hooks = session._recorder.hooks
    session._recorder.hooks = (slow_pack(hooks[0]), hooks[1])
    with session:
        loop.steps(600)
    assert session.findings == ()
    assert passed_over(session) > 150
