"""Each call of a trained model is heard by its class alone, which is as before afterwards."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import gradcheck_suite as gs


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x):
        return self.layer(x)


class CountsItself(Model):
    calls = 0

    def __call__(self, *args):
        type(self).calls += 1
        return super().__call__(*args)


def train(model, steps=12):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(6, 4)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("kind", [Model, CountsItself])
def test_the_class_is_as_before_when_the_audit_is_over(kind):
    own, linear = vars(kind).get("__call__"), nn.Linear.__call__
    with gs.audit():
        model = kind()
        train(model)
        assert vars(kind)["__call__"] is not own
        assert nn.Linear.__call__ is linear
        pickle.loads(pickle.dumps(copy.deepcopy(model)))(torch.randn(6, 4))
    assert vars(kind).get("__call__") is own


def test_a_call_of_the_users_own_runs_as_often_as_without():
    CountsItself.calls = 0
    with gs.audit():
        train(CountsItself(), steps=5)
    assert CountsItself.calls == 5


def test_what_the_model_raises_arrives_and_the_next_call_is_heard(audited):
    def loop():
        model = Model()
        train(model)
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            model(torch.randn(6, 5))
        for _ in range(4):
            model(torch.randn(6, 4)).sum().item()
        train(model, steps=4)

    assert [each.code for each in audited(loop).findings] == ["GCS204"]
