"""Auditing changes nothing: the same parameters, losses and random numbers, bit for bit."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

import gradcheck_suite as gs

DIGITS = Path(__file__).parents[2] / "examples" / "digits"


def train(script, *, audited):
    torch.manual_seed(3)
    images, labels = script["load_digits"]()
    model = script["DigitsNet"](width=8)
    arguments = (model, images[:640], labels[:640], 2)
    if audited:
        with gs.audit():
            losses = script["train"](*arguments)
    else:
        losses = script["train"](*arguments)
    bits = [torch.as_tensor(loss).detach().clone() for loss in losses]
    return bits, model.state_dict(), torch.get_rng_state()


@pytest.mark.parametrize("name", ["train.py", "train_fixed.py"])
def test_training_the_digits_network_gives_the_same_bits_with_and_without_audit(name):
    script = runpy.run_path(str(DIGITS / name))
    losses, state, rng = train(script, audited=False)
    audited_losses, audited_state, audited_rng = train(script, audited=True)
    assert len(losses) == 20
    assert all(map(torch.equal, losses, audited_losses))
    assert state.keys() == audited_state.keys()
    assert all(torch.equal(state[name], audited_state[name]) for name in state)
    assert torch.equal(rng, audited_rng)
