"""Audits of loops that Accelerate has prepared, with the real library."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gradcheck_suite as gs
from tests.integrations.places import accusations, comment_at, the

accelerate = pytest.importorskip("accelerate", reason="Accelerate is not installed")

from gradcheck_suite.integrations.accelerate import audit  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


class Tracker(accelerate.tracking.GeneralTracker):
    name = "memory"
    requires_logging_directory = False

    def __init__(self):
        super().__init__()
        self.logged = []

    @property
    def tracker(self):
        return self.logged

    def store_init_configuration(self, values):
        pass

    def log(self, values, **_others):
        self.logged.append(values)


@pytest.fixture
def accelerator():
    tracker = Tracker()
    made = accelerate.Accelerator(cpu=True, log_with=[tracker], gradient_accumulation_steps=2)
    made.init_trackers("project")
    return made


def train(accelerator, *, clears=True, scheduled=True):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4)
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    for _ in range(8):
        with accelerator.accumulate(model):
            loss = model(torch.randn(8, 4)).pow(2).mean()
            accelerator.backward(loss)
            optimizer.step()  # applies them
            if scheduled:
                schedule.step()
            if clears:
                optimizer.zero_grad()


def test_correct_training_is_silent(accelerator):
    with audit(accelerator) as session:
        train(accelerator)
    assert accusations(session) == []
    assert session.report.summary["steps"] == 4
    assert [each.name for each in session.ledger.optimizers] == ["SGD"]


def test_a_mistake_is_found_at_its_line_and_told_to_the_trackers(accelerator):
    with audit(accelerator) as session:
        train(accelerator, clears=False)
    assert comment_at(the("GCS301", session).location) == "applies them"
    (told,) = accelerator.get_tracker("memory", unwrap=True)
    assert told["gradcheck/errors"] == told["gradcheck/GCS301"] == 1


def test_a_prepared_optimizer_can_be_the_one_that_is_looked_at(accelerator):
    model = nn.Linear(4, 1)
    optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.01))
    with gs.audit(optimizers=optimizer) as session:
        for _ in range(4):
            accelerator.backward(model(torch.randn(8, 4)).sum())
            optimizer.step()
    assert accusations(session) == ["GCS301"]


def test_an_exception_arrives_unchanged(accelerator):
    sessions = []

    def fail():
        with audit(accelerator) as session:
            sessions.append(session)
            train(accelerator, clears=False)
            raise ValueError("of the user's")

    with pytest.raises(ValueError, match=r"^of the user's$"):
        fail()
    assert accusations(sessions[0]) == ["GCS301"]


def test_it_decorates_a_function(accelerator):
    audit(accelerator)(train)(accelerator)
    (told,) = accelerator.get_tracker("memory", unwrap=True)
    assert told["gradcheck/errors"] == 0


def test_what_is_no_accelerator_is_refused():
    with pytest.raises(gs.UsageError, match=r"expected an accelerate\.Accelerator, got Linear"):
        audit(nn.Linear(1, 1))
