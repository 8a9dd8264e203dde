"""GCS308: models that another one takes the place of after their optimizer was made."""

from __future__ import annotations

import pytest

from gradcheck_lint.engine import lint_source

_TRAIN = """\
import copy
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

class Net(nn.Module):
    def __init__(self, width=8, inner=None):
        super().__init__()
        self.layer = nn.Linear(width, 1)

    def forward(self, x):
        return self.layer(x)

def train(loader, path, other, device, resume):
    model = Net()
    BEFORE
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    AFTER
    for x, y in loader:
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
    LAST
    return model
"""


@pytest.mark.parametrize(
    "after",
    [
        "model = Net(16)",
        "model = Net(16).to(device).train()",
        "model = copy.deepcopy(other)",
        "model = copy.deepcopy(model)",
        "model = torch.load(path)",
        "model = nn.Linear(8, 1)",
        "model = Net.from_pretrained(path)",
        "if resume: model = torch.load(path)",
    ],
)
def test_a_new_model_for_an_old_optimizer(after):
    assert _found(after=after) == [("GCS308", 18)]


@pytest.mark.parametrize(
    "after",
    [
        "model = model.to(device)",
        "model = nn.DataParallel(model)",
        "model = DistributedDataParallel(model.to(device))",
        "model = Net(inner=model)",
        "model = torch.compile(model)",
        "model = other.wrap(model)",
        "model = Net(); optimizer = torch.optim.Adam(model.parameters())",
        "model = Net(); optimizer.add_param_group({'params': model.parameters()})",
        "model = Net(); optimizer.param_groups[0]['params'] = list(model.parameters())",
        "model = Net(); optimizer = make_optimizer(model)",
        "best = copy.deepcopy(model)",
        "model.load_state_dict(torch.load(path))",
    ],
)
def test_the_same_model_or_another_optimizer(after):
    assert _found(after=after) == []


def test_a_model_that_is_loaded_before_its_optimizer_or_after_the_training():
    assert _found(before="model = torch.load(path)") == []
    assert _found(last="model = torch.load(path)") == []
    assert _found(last="model = torch.load(path); print(model(loader))") == []


def _found(*, before="pass", after="pass", last="pass"):
    source = _TRAIN.replace("BEFORE", before).replace("AFTER", after).replace("LAST", last)
    findings = lint_source(source.encode(), "train.py")
    return [(found.code, found.location.line) for found in findings]
