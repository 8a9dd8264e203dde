"""Audits of an Ignite engine's ``run()``, by the handler, with the real library."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from tests.integrations.places import accusations, comment_at, the

engines = pytest.importorskip("ignite.engine", reason="Ignite is not installed")

from gradcheck_suite.integrations.ignite import GradcheckHandler  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def trainer(*, clears=True, fails_at=None):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def update(engine, batch):
        if engine.state.iteration == fails_at:
            raise ValueError("of the user's")
        if clears:
            optimizer.zero_grad()
        loss = model(batch).pow(2).mean()
        loss.backward()
        optimizer.step()  # applies them
        return loss.item()

    return engines.Engine(update), model


def batches():
    rng = torch.Generator().manual_seed(0)
    return [torch.randn(8, 4, generator=rng) for _ in range(6)]


def run(engine, **options):
    handler = GradcheckHandler(**options)
    handler.attach(engine)
    state = engine.run(batches(), max_epochs=2)
    return handler, state


def test_correct_training_is_silent_and_has_the_same_bits():
    engine, audited = trainer()
    handler, state = run(engine)
    bare, model = trainer()
    assert bare.run(batches(), max_epochs=2).output == state.output
    assert all(map(torch.equal, audited.parameters(), model.parameters()))
    assert accusations(handler.session) == []
    assert handler.session.report.summary["steps"] == 12


def test_a_mistake_is_found_at_its_line_and_told_in_the_metrics():
    engine, _ = trainer(clears=False)
    handler, state = run(engine)
    assert comment_at(the("GCS301", handler.session).location) == "applies them"
    assert state.metrics["gradcheck/errors"] == state.metrics["gradcheck/GCS301"] == 1


def test_a_library_that_makes_the_update_is_audited_too():
    torch.manual_seed(0)
    body, head = nn.Linear(4, 4), nn.Linear(4, 1)
    model = nn.Sequential(body, head)
    optimizer = torch.optim.SGD(body.parameters(), lr=0.01)  # makes the optimizer
    engine = engines.create_supervised_trainer(model, optimizer, nn.functional.mse_loss)
    handler = GradcheckHandler(model)
    handler.attach(engine)
    engine.run([(batch, torch.zeros(8, 1)) for batch in batches()])
    assert accusations(handler.session) == ["GCS307"]


@pytest.mark.parametrize("others", [False, True])
def test_an_exception_goes_where_it_goes_without_an_audit(others):
    engine, _ = trainer(clears=False, fails_at=5)
    told, before = [], Optimizer.zero_grad
    if others:
        engine.add_event_handler(
            engines.Events.EXCEPTION_RAISED, lambda _, error: told.append(error)
        )
        handler, _ = run(engine)
        assert [str(error) for error in told] == ["of the user's"]
    else:
        handler = GradcheckHandler()
        handler.attach(engine)
        with pytest.raises(ValueError, match=r"^of the user's$"):
            engine.run(batches())
    assert accusations(handler.session) == ["GCS301"]
    assert Optimizer.zero_grad is before


def test_each_run_is_an_audit():
    engine, _ = trainer()
    handler, _ = run(engine)
    first = handler.session
    engine.run(batches(), max_epochs=4)
    assert handler.session is not first
    assert handler.session.report.summary["steps"] == 12
