"""Functional dropout in a module that is in evaluation mode."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as programs have it


class Net(nn.Module):
    def __init__(self, drop):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.drop = drop

    def forward(self, x):
        return self.drop(self, self.layer(x))


def always(_module, x):
    return F.dropout(x, 0.5)  # <- here


def through_a_helper(module, x):
    return always(module, x)


def of_channels(_module, x):
    return F.dropout2d(x[None, :, :, None], 0.5)[0, :, :, 0]  # <- here


def told_of_the_mode(module, x):
    return F.dropout(x, 0.5, module.training)


def at_a_rate_of_zero(module, x):
    return F.dropout(F.dropout(x, 0.5 if module.training else 0.0), p=0.0)


def told_by_name(module, x):
    return F.dropout(x, 0.5, training=module.training)


def on_purpose(_module, x):
    return F.dropout(x, 0.5, training=True)


def evaluated(net):
    def run():
        net.eval()
        with torch.no_grad():
            for _ in range(3):
                net(torch.ones(2, 4))

    return run


@pytest.mark.parametrize(("drop", "name"), [(always, "dropout"), (of_channels, "dropout2d")])
def test_dropout_that_no_mode_switches_off(audited, only, line_of, drop, name):
    finding = only(audited(evaluated(Net(drop))), "GCS703")
    assert finding.severity.value == "warning"
    assert finding.location.line == line_of(drop)
    assert f"{name}() dropped values in Net in evaluation mode, 3 times" in finding.message


def test_the_module_is_found_behind_a_helper(audited, only, line_of):
    finding = only(audited(evaluated(Net(through_a_helper))), "GCS703")
    assert finding.location.line == line_of(always)


@pytest.mark.parametrize("drop", [at_a_rate_of_zero, told_of_the_mode, told_by_name])
def test_dropout_that_is_told_of_the_mode(audited, drop):
    assert not audited(evaluated(Net(drop))).findings


def test_dropout_in_training_mode(audited):
    net = Net(always)
    assert not audited(lambda: net(torch.ones(2, 4))).findings


def test_the_layer_itself(audited):
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    assert not audited(evaluated(net)).findings


def test_what_is_asked_for_is_a_note(audited, only):
    finding = only(audited(evaluated(Net(on_purpose))), "GCS703")
    assert finding.severity.value == "note"
    assert finding.evidence["lowered"] == ("it is asked for, by training=...",)
