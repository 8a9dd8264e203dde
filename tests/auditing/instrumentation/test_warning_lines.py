"""Warnings that torch gives in the name of its caller name the line that they name alone."""

from __future__ import annotations

import sys
import types
import warnings

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import gradcheck_suite as gs


def make():
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)
    return optimizer, lr_scheduler.StepLR(optimizer, 2)


def scheduler_first():
    _, scheduler = make()
    scheduler.step()


def epoch_given():
    optimizer, scheduler = make()
    optimizer.step()
    for epoch in range(3):
        scheduler.step(epoch)


def epoch_given_to_another():
    optimizer, _ = make()
    lr_scheduler.ReduceLROnPlateau(optimizer).step(1.0, epoch=2)


def own_scheduler():
    class Own(lr_scheduler.StepLR):
        def step(self, epoch=None):
            super().step(epoch)

    optimizer, _ = make()
    Own(optimizer, 2).step()


def replica_zeroed():
    module = nn.Linear(2, 1)
    module._is_replica = True
    module.zero_grad()


def group_with_duplicates():
    weight = nn.Parameter(torch.ones(2))
    torch.optim.SGD([weight, weight], lr=0.1)


def seen_by(program, mode="always"):
    __warningregistry__.clear()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter(mode)
        program()
    return [(each.filename, each.lineno, each.category, str(each.message)) for each in seen]


__warningregistry__: dict[object, object] = {}

PROGRAMS = [
    scheduler_first,
    epoch_given,
    epoch_given_to_another,
    own_scheduler,
    replica_zeroed,
    group_with_duplicates,
]


@pytest.mark.parametrize("mode", ["always", "default", "once", "module", "ignore"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
def test_the_same_warnings_come_from_the_same_lines(program, mode):
    alone = seen_by(program, mode)
    with gs.audit():
        audited = seen_by(program, mode)
    assert audited == alone
    assert mode == "ignore" or alone


def test_a_filter_by_module_holds():
    # Before torch 2.9 the warning is in the name of the scheduler's own module.
    ((path, *_),) = seen_by(scheduler_first, "always")
    module = __name__ if path == __file__ else lr_scheduler.__name__
    with gs.audit(), warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", module=module.replace(".", r"\."))
        scheduler_first()


def test_a_warning_that_is_raised_is_raised():
    with gs.audit(), warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="before `optimizer"):
            scheduler_first()


def test_who_replaces_warn_is_called(monkeypatch):
    told = []
    monkeypatch.setattr(warnings, "warn", lambda *given, **_: told.append(given[0]))
    with gs.audit():
        scheduler_first()
    assert len(told) == 1


def test_a_name_that_the_program_has_replaced_stays_theirs(monkeypatch):
    theirs = types.ModuleType("warnings")
    theirs.warn = lambda *_, **__: None
    monkeypatch.setattr(lr_scheduler, "warnings", theirs)
    with gs.audit():
        assert lr_scheduler.warnings is theirs
        scheduler_first()


def test_the_stand_in_has_all_that_the_module_has():
    with gs.audit():
        stand_in = lr_scheduler.warnings
        assert stand_in is not warnings
        assert stand_in.catch_warnings is warnings.catch_warnings
        assert sys.modules["warnings"] is warnings
    assert lr_scheduler.warnings is warnings
