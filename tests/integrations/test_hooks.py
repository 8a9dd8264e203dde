"""What each callback does when its hooks are called, with stand-ins for the frameworks.

The frameworks themselves are in the other modules, and may not be installed.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

import gradcheck_suite as gs
from tests.integrations.places import accusations


@pytest.fixture
def ours(monkeypatch):
    """Return what imports a module of ours beside a stand-in for its framework."""

    def imported(name, framework, **attributes):
        for part in (framework.partition(".")[0], framework):
            module = ModuleType(part)
            monkeypatch.setitem(sys.modules, part, module)
        vars(module).update(attributes)
        known = f"gradcheck_suite.integrations.{name}"
        monkeypatch.delitem(sys.modules, known, raising=False)
        made = importlib.import_module(known)
        monkeypatch.delitem(sys.modules, known)
        return made

    return imported


def train(steps=4):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()


def test_lightning(ours):
    callback = ours("lightning", "lightning.pytorch", Callback=object).GradcheckCallback()
    logged = []
    logger = SimpleNamespace(log_metrics=lambda counts, step: logged.append((counts, step)))
    trainer = SimpleNamespace(loggers=[logger], global_step=4)
    for stage in ("validate", "fit"):
        callback.setup(trainer, nn.Linear(3, 1), stage)
        train()
        callback.teardown(trainer, None, stage)
    ((counts, step),) = logged
    assert (counts["gradcheck/GCS301"], step) == (1, 4)
    callback.setup(trainer, None, "fit")
    callback.on_exception(trainer, None, ValueError("of the user's"))
    assert len(logged) == 2
    assert accusations(callback.session) == []


class FakeTrainer:
    """Calls its callbacks as Transformers does."""

    def __init__(self, callbacks):
        self.model = nn.Linear(3, 1)
        self.callback_handler = SimpleNamespace(callbacks=callbacks)
        self.tell("on_init_end")

    def tell(self, event):
        for each in list(self.callback_handler.callbacks):
            getattr(each, event)(None, None, None, model=self.model)

    def train(self, fails=False):
        train()
        self.tell("on_train_begin")
        if fails:
            raise ValueError("of the user's")
        self.tell("on_train_end")


class Reporter:
    def __init__(self):
        self.logged = []

    def __getattr__(self, name):
        return lambda *_, **__: None

    def on_log(self, args, state, control, logs, **_):  # noqa: ARG002
        self.logged.append(logs)


@pytest.fixture
def transformers(ours, monkeypatch):
    module = ours("transformers", "transformers", TrainerCallback=object, Trainer=FakeTrainer)
    # Frames of the tests are the user's: a library's are those that are not.
    monkeypatch.setattr(Reporter, "__module__", "transformers.integrations.some")
    return module


def test_transformers(transformers):
    callback, reporter = transformers.GradcheckCallback(), Reporter()
    trainer = FakeTrainer([reporter, callback])
    assert trainer.callback_handler.callbacks == [callback, reporter]
    trainer.train()
    assert accusations(callback.session) == ["GCS301"]
    assert [each["gradcheck/errors"] for each in reporter.logged] == [1]
    with pytest.raises(ValueError, match=r"^of the user's$"):
        trainer.train(fails=True)
    assert not callback._audit.runs


def test_transformers_with_a_callback_that_is_added_later(transformers):
    callback, before = transformers.GradcheckCallback(), Optimizer.zero_grad
    trainer = FakeTrainer([])
    trainer.callback_handler.callbacks.append(callback)
    trainer.train()
    assert Optimizer.zero_grad is before
    assert accusations(callback.session) == []  # it began too late
    trainer.train()
    assert accusations(callback.session) == ["GCS301"]
    trainer.callback_handler.callbacks.clear()
    trainer.train()


def test_ignite(ours):
    events = SimpleNamespace(COMPLETED="completed")
    module = ours("ignite", "ignite.engine", Events=events)

    class Engine:
        def __init__(self):
            self.handlers, self.state = [], SimpleNamespace(metrics={})

        def add_event_handler(self, event, handler):  # noqa: ARG002
            self.handlers.append(handler)

        def run(self):
            train()
            for each in self.handlers:
                each(self)

    engine, handler = Engine(), module.GradcheckHandler()
    handler.attach(engine)
    engine.run()
    assert accusations(handler.session) == ["GCS301"]
    assert engine.state.metrics["gradcheck/GCS301"] == 1


def test_accelerate(ours):
    class Accelerator:
        def __init__(self):
            self.logged = []

        def log(self, counts):
            self.logged.append(counts)

    module = ours("accelerate", "accelerate", Accelerator=Accelerator)
    accelerator = Accelerator()
    with module.audit(accelerator) as session:
        train()
    assert accusations(session) == ["GCS301"]
    assert accelerator.logged[0]["gradcheck/errors"] == 1
    with pytest.raises(gs.UsageError, match="expected an accelerate"):
        module.audit(None)
