"""States that were kept to be loaded again, and are the memory of the parameters themselves."""

from __future__ import annotations

import copy
import io
import re

import pytest
import torch
from torch import nn

from gradcheck_suite.severity import Severity


def training(model, steps=4):
    """Train a model, and hand out after each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(steps):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
        yield number


def best_state_is_an_alias():
    model = nn.Linear(4, 1)
    best = None
    for number in training(model):
        if number == 1:
            best = model.state_dict()  # <- here
    model.load_state_dict(best)


def best_state_moved_to_the_cpu():
    model = nn.Linear(4, 1)
    for number in training(model):
        if number == 1:
            state = model.state_dict()  # <- here
            best = {name: tensor.cpu() for name, tensor in state.items()}
    model.load_state_dict(best)


class EarlyStopping:
    def __init__(self):
        self.best = None

    def update(self, model):
        self.best = model.state_dict()  # <- here

    def restore(self, model):
        model.load_state_dict(self.best)


def early_stopping():
    model, stopping = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), EarlyStopping()
    for number in training(model):
        if number == 0:
            stopping.update(model)
    stopping.restore(model)


def test_a_best_state_that_follows_the_model_is_an_error_where_it_was_taken(audited, only, line_of):
    for loop, source in (
        (best_state_is_an_alias, best_state_is_an_alias),
        (best_state_moved_to_the_cpu, best_state_moved_to_the_cpu),
        (early_stopping, EarlyStopping.update),
    ):
        finding = only(audited(loop), "GCS110")
        assert finding.severity.value == "error"
        assert finding.location is not None
        assert finding.location.line == line_of(source)
        assert [each.message for each in finding.related] == ["copied onto itself here"]


def test_the_words(audited, only):
    finding = only(audited(best_state_is_an_alias), "GCS110")
    assert finding.message == (
        "the state_dict() of Linear that was kept here is no copy: it shares the memory of the "
        "parameters, and has followed the 2 steps since; to load it copied 2 tensors (`weight`, "
        "`bias`) onto themselves and changed nothing; expected the state as it was"
    )
    assert finding.evidence["steps_between"] == 2


def test_data_that_was_kept_and_put_back_is_a_warning_where_it_is_put_back(audited, only, line_of):
    def loop():
        model = nn.Linear(4, 1)
        backup = [each.data for each in model.parameters()]
        for _ in training(model):
            pass
        with torch.no_grad():
            for parameter, kept in zip(model.parameters(), backup, strict=True):
                parameter.copy_(kept)  # <- here

    finding = only(audited(loop), "GCS110")
    assert finding.severity.value == "warning"
    assert finding.location is not None
    assert finding.location.line == line_of(loop)


def test_a_target_network_that_is_the_online_one(audited, only, line_of):
    def loop():
        online = nn.Linear(4, 1)
        target = online
        for _ in training(online):
            target.load_state_dict(online.state_dict())  # <- here

    finding = only(audited(loop), "GCS110")
    assert finding.severity.value == "warning"
    assert finding.location is not None
    assert finding.location.line == line_of(loop)


def best_state_is_a_copy():
    model = nn.Linear(4, 1)
    for number in training(model):
        if number == 1:
            best = copy.deepcopy(model.state_dict())
    model.load_state_dict(best)


def best_state_is_cloned():
    model = nn.Linear(4, 1)
    for _ in training(model):
        best = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(best)


def pretrained_part():
    model, pretrained = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), nn.Linear(4, 4)
    for _ in training(model):
        pass
    state = model.state_dict()
    state.update({f"0.{name}": each for name, each in pretrained.state_dict().items()})
    model.load_state_dict(state)


def target_network():
    online = nn.Linear(4, 1)
    target = copy.deepcopy(online)
    for _ in training(online):
        target.load_state_dict(online.state_dict())


def averaged_weights_swapped_by_data():
    model = nn.Linear(4, 1)
    shadow = {name: each.data.clone() for name, each in model.named_parameters()}
    for _ in training(model):
        backup = {name: each.data for name, each in model.named_parameters()}
        for name, parameter in model.named_parameters():
            parameter.data = shadow[name]
        for name, parameter in model.named_parameters():
            parameter.data = backup[name]


def state_saved_and_loaded_at_once():
    model = nn.Linear(4, 1)
    for _ in training(model):
        pass
    model.load_state_dict(model.state_dict())


@pytest.mark.parametrize(
    "loop",
    [
        best_state_is_a_copy,
        best_state_is_cloned,
        pretrained_part,
        target_network,
        averaged_weights_swapped_by_data,
        state_saved_and_loaded_at_once,
    ],
)
def test_nothing_is_said_of_copies(audited, loop):
    assert audited(loop).findings == ()


def test_a_write_that_changes_nothing_is_a_note(audited, only):
    def loop():
        model = nn.Linear(4, 1)
        for _ in training(model):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.copy_(parameter.data.contiguous())

    assert only(audited(loop), "GCS110").severity.value == "note"


def best_state_is_saved_at_the_end():
    model = nn.Linear(4, 1)
    best = None
    for number in training(model):
        if number == 1:
            best = model.state_dict()  # <- here
    torch.save(best, io.BytesIO())


def best_checkpoint_is_saved_at_the_end():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    best = {}
    for number in training(model):
        if number in {0, 2}:
            best = {
                "step": number,
                "weights": [model.state_dict()],  # <- here
            }
    torch.serialization.save(best, io.BytesIO())


@pytest.mark.parametrize(
    "loop", [best_state_is_saved_at_the_end, best_checkpoint_is_saved_at_the_end]
)
def test_a_best_state_that_is_saved_later_is_a_warning_where_it_was_taken(
    audited, only, line_of, loop
):
    session = audited(loop)
    finding = only(session, "GCS110")
    assert finding.severity is Severity.WARNING
    assert finding.location.line == line_of(loop)
    assert re.search(r"had followed [12] more steps? when torch.save\(\) wrote it", finding.message)
    assert finding.related[0].message == "saved here"


def state_saved_at_once():
    model = nn.Linear(4, 1)
    for _ in training(model):
        torch.save({"weights": model.state_dict()}, io.BytesIO())


def copied_best_is_saved_at_the_end():
    model = nn.Linear(4, 1)
    best = None
    for number in training(model):
        if number == 1:
            best = copy.deepcopy(model.state_dict())
    torch.save(best, io.BytesIO())


def cloned_best_is_saved_at_the_end():
    model = nn.Linear(4, 1)
    best = {}
    for number in training(model):
        if number == 1:
            best = {name: each.clone() for name, each in model.state_dict().items()}
    torch.save(best, io.BytesIO())


def live_state_from_before_training():
    model = nn.Linear(4, 1)
    state = {"weights": model.state_dict()}
    for _ in training(model):
        torch.save(state, io.BytesIO())


def average_that_nobody_steps():
    model, average = nn.Linear(4, 1), nn.Linear(4, 1)
    state = None
    for number in training(model):
        if number == 1:
            state = average.state_dict()
    torch.save(state, io.BytesIO())


def best_was_the_last():
    model = nn.Linear(4, 1)
    best = None
    for _ in training(model):
        best = model.state_dict()
    torch.save(best, io.BytesIO())


@pytest.mark.parametrize(
    "loop",
    [
        state_saved_at_once,
        copied_best_is_saved_at_the_end,
        cloned_best_is_saved_at_the_end,
        live_state_from_before_training,
        average_that_nobody_steps,
        best_was_the_last,
    ],
)
def test_nothing_is_said_of_what_is_saved_as_it_is(audited, loop):
    assert audited(loop).findings == ()


def test_what_is_saved_and_loaded_is_told_once(audited, only):
    def loop():
        model = nn.Linear(4, 1)
        best = None
        for number in training(model):
            if number == 1:
                best = model.state_dict()
        torch.save(best, io.BytesIO())
        model.load_state_dict(best)

    assert only(audited(loop), "GCS110").severity is Severity.ERROR


def test_save_is_put_back(audited):
    before = torch.save
    audited(state_saved_at_once)
    assert torch.save is torch.serialization.save is before
