"""Training states that are dataclasses: their optimizers, and what they keep."""

from __future__ import annotations

import pytest

from gradcheck_lint.engine import lint_source

_STATE = """\
import torch
from dataclasses import dataclass, field

@dataclass
class State:
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    losses: list = field(default_factory=list)
    total: float = 0.0
    last: float = field(default=0.0)

    def update(self, loss):
        UPDATE

    def apply(self, loss):
        self.update(loss)

def step(state, x):
    STEP

def train(model, loader):
    state = State(model, torch.optim.Adam(model.parameters()))
    for x in loader:
        loss = state.model(x).mean()
        BODY
"""
_WHOLE = "state.optimizer.zero_grad(); loss.backward(); state.optimizer.step()"
_OWN = _WHOLE.replace("state.", "self.")
_MADE = "loss = state.model(x).mean(); "


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (_WHOLE, []),
        ("loss.backward(); state.optimizer.step()", ["GCS301"]),
        ("loss.backward(); state.optimizer.zero_grad(); state.optimizer.step()", ["GCS302"]),
        ("state.optimizer.zero_grad(); state.optimizer.step(); loss.backward()", ["GCS303"]),
        (f"{_WHOLE}; state.losses.append(loss)", ["GCS201"]),
        (f"{_WHOLE}; state.total += loss", ["GCS201"]),
        (f"{_WHOLE}; state.total += loss.item()", []),
        (f"{_WHOLE}; state.last = loss", []),
        (f"{_WHOLE}; state.losses.append(loss); state.losses.clear()", []),
    ],
)
def test_in_one_loop(body, expected):
    assert _found(body=body) == expected


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (_MADE + _WHOLE, []),
        (_MADE + "loss.backward(); state.optimizer.step()", ["GCS301"]),
        (_MADE + _WHOLE + "; state.losses.append(loss)", ["GCS201"]),
        (_MADE + _WHOLE + "; state.total = state.total + loss", ["GCS201"]),
        (_MADE + _WHOLE + "; state.losses.append(loss.detach())", []),
        (_MADE + _WHOLE + "; state.last = loss", []),
    ],
)
def test_in_a_function_that_is_handed_the_state(step, expected):
    assert _found(step=step, body="step(state, x)") == expected


@pytest.mark.parametrize("call", ["state.update(loss)", "state.apply(loss)"])
@pytest.mark.parametrize(
    ("update", "expected"),
    [
        (_OWN, []),
        ("loss.backward(); self.optimizer.step()", ["GCS301"]),
        (_OWN + "; self.losses.append(loss)", ["GCS201"]),
        (_OWN + "; self.losses.append(loss.item())", []),
    ],
)
def test_in_a_method_of_the_state(call, update, expected):
    assert _found(update=update, body=call) == expected


def test_what_is_emptied_elsewhere():
    step = _MADE + _WHOLE + "; state.losses.append(loss)"
    assert _found(step=step, body="step(state, x); state.losses.clear()") == []


def _found(*, update="pass", step="pass", body="pass"):
    source = _STATE.replace("UPDATE", update).replace("STEP", step).replace("BODY", body)
    return [found.code for found in lint_source(source.encode(), "state.py")]
