"""Loops whose scheduler comes first, or seems to."""

from __future__ import annotations

import copy

import torch
from torch.optim import lr_scheduler

from tests.auditing.loops.bank import buggy, clean, cpu_scaler, data, mse, net, setup


@buggy("GCS306")
def scheduler_first():
    model, optimizer = setup()
    scheduler = lr_scheduler.StepLR(optimizer, 2)
    for x, y in data():
        optimizer.zero_grad()
        mse(model, x, y).backward()
        scheduler.step()  # <- here
        optimizer.step()


@buggy("GCS306")
def scheduler_at_the_top_of_each_epoch():
    model, optimizer = setup()
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
    for _ in range(3):
        scheduler.step()  # <- here
        for x, y in data(3):
            optimizer.zero_grad()
            mse(model, x, y).backward()
            optimizer.step()


@buggy("GCS306")
def one_cycle_first():
    model, optimizer = setup()
    scheduler = lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=8)
    for x, y in data(8):
        scheduler.step()  # <- here
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()


@buggy("GCS306")
def warm_up_chain_first():
    model, optimizer = setup()
    warm = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
    scheduler = lr_scheduler.ChainedScheduler([warm, lr_scheduler.ExponentialLR(optimizer, 0.9)])
    for x, y in data():
        scheduler.step()  # <- here
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()


@buggy("GCS306")
def cosine_before_scaler_step():
    model, optimizer = setup()
    scaler = cpu_scaler()
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 8)
    for x, y in data():
        optimizer.zero_grad()
        scaler.scale(mse(model, x, y)).backward()
        scheduler.step()  # <- here
        scaler.step(optimizer)
        scaler.update()


@clean
def schedulers_after():
    model, optimizer = setup()
    batches = lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=12)
    for _ in range(2):
        for x, y in data(4):
            optimizer.zero_grad()
            mse(model, x, y).backward()
            optimizer.step()
            batches.step()


@clean
def plateau_with_a_first_validation():
    model, optimizer = setup()
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer)
    for _ in range(3):
        with torch.no_grad():
            loss = mse(model, *next(data()))
        scheduler.step(loss)
        for x, y in data(3):
            optimizer.zero_grad()
            mse(model, x, y).backward()
            optimizer.step()


@clean
def scheduler_not_in_the_first_epoch():
    model, optimizer = setup()
    scheduler = lr_scheduler.StepLR(optimizer, 1)
    for epoch in range(3):
        if epoch:
            scheduler.step()
        for x, y in data(2):
            optimizer.zero_grad()
            mse(model, x, y).backward()
            optimizer.step()


@clean
def scheduler_given_the_epoch():
    model, optimizer = setup()
    scheduler = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 4)
    for epoch in range(3):
        for index, (x, y) in enumerate(data(2)):
            scheduler.step(epoch + index / 2)
            optimizer.zero_grad()
            mse(model, x, y).backward()
            optimizer.step()


@clean
def schedule_looked_at():
    _, optimizer = setup(lr=1.0)
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 12)
    rates = []
    for _ in range(12):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates == sorted(rates, reverse=True)


def _begin(kind="warm-up"):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    if kind == "decay":
        return model, optimizer, lr_scheduler.ExponentialLR(optimizer, 0.8)
    schedule = lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, 2 / (n + 1)))
    return model, optimizer, schedule


def _epochs(model, optimizer, schedule, count=6):
    for _ in range(count):
        for x, y in data(2):
            optimizer.zero_grad()
            mse(model, x, y).backward()
            optimizer.step()
        schedule.step()


def _interrupted(kind="warm-up"):
    model, optimizer, schedule = _begin(kind)
    _epochs(model, optimizer, schedule)
    return model.state_dict(), optimizer.state_dict(), schedule.state_dict()


@buggy("GCS317")
def resumed_without_the_schedule():
    of_model, of_optimizer, _ = _interrupted()
    model, optimizer, schedule = _begin()
    model.load_state_dict(of_model)
    optimizer.load_state_dict(of_optimizer)  # <- here
    _epochs(model, optimizer, schedule)


@clean
def resumed_with_the_schedule():
    of_model, of_optimizer, of_schedule = _interrupted()
    model, optimizer, schedule = _begin()
    model.load_state_dict(of_model)
    optimizer.load_state_dict(of_optimizer)
    schedule.load_state_dict(of_schedule)
    _epochs(model, optimizer, schedule)


@clean
def resumed_and_wound_forward():
    of_model, of_optimizer, _ = _interrupted()
    model, optimizer, schedule = _begin()
    model.load_state_dict(of_model)
    optimizer.load_state_dict(of_optimizer)
    for _ in range(6):
        schedule.step()
    _epochs(model, optimizer, schedule)


@buggy("GCS317")
def schedule_made_after_its_optimizer_was_restored():
    of_model, of_optimizer, of_schedule = _interrupted()
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model.load_state_dict(of_model)
    optimizer.load_state_dict(of_optimizer)
    schedule = lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, 2 / (n + 1)))
    schedule.load_state_dict(of_schedule)  # <- here
    _epochs(model, optimizer, schedule)


@buggy("GCS317")
def resumed_without_the_optimizer_of_the_schedule():
    of_model, _, of_schedule = _interrupted()
    model, optimizer, schedule = _begin()
    model.load_state_dict(of_model)
    schedule.load_state_dict(of_schedule)  # <- here
    _epochs(model, optimizer, schedule)


@clean
def schedule_made_and_the_optimizer_restored_after_it():
    of_model, of_optimizer, of_schedule = _interrupted()
    model, optimizer, schedule = _begin()
    schedule.load_state_dict(of_schedule)
    model.load_state_dict(of_model)
    optimizer.load_state_dict(of_optimizer)
    _epochs(model, optimizer, schedule)


@clean
def restored_at_the_rate_that_the_program_sets():
    of_model, of_optimizer, of_schedule = _interrupted("decay")
    model, optimizer, schedule = _begin("decay")
    model.load_state_dict(of_model)
    optimizer.load_state_dict(of_optimizer)
    for group in optimizer.param_groups:
        group["lr"] = 0.001
    schedule.load_state_dict(of_schedule)
    _epochs(model, optimizer, schedule)


@clean
def schedule_that_is_stepped_before_the_first_step():
    of_model, _, of_schedule = _interrupted()
    model, optimizer, schedule = _begin()
    model.load_state_dict(of_model)
    schedule.load_state_dict(of_schedule)
    schedule.step()
    _epochs(model, optimizer, schedule)


def _warmed(steps):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    warm = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=steps)
    return model, optimizer, warm, lr_scheduler.ExponentialLR(optimizer, 0.7)


def _epochs_of_two(model, optimizer, *schedules):
    for _ in range(6):
        _steps(model, optimizer, 2)
        for schedule in schedules:
            schedule.step()


@clean
def two_schedules_of_one_optimizer_restored():
    parts = _warmed(3)
    _epochs_of_two(*parts)
    states = [each.state_dict() for each in parts]
    resumed = _warmed(3)
    for each, state in zip(reversed(resumed), reversed(states), strict=True):
        each.load_state_dict(state)
    _epochs_of_two(*resumed)


@clean
def plateau_under_a_warm_up_by_hand():
    def begin():
        model, optimizer = setup(lr=0.1)
        return model, optimizer, lr_scheduler.ReduceLROnPlateau(optimizer)

    def run(model, optimizer, plateau, epochs):
        for epoch in epochs:
            for group in optimizer.param_groups:
                group["lr"] = 0.01 * (epoch + 1)
            _steps(model, optimizer, 2)
        plateau.step(1.0)

    parts = begin()
    run(*parts, range(3))
    parts[1].param_groups[0]["lr"] = 0.04
    states = [each.state_dict() for each in parts]
    resumed = begin()
    for each, state in zip(resumed, states, strict=True):
        each.load_state_dict(state)
    _steps(*resumed[:2])
    run(*resumed, range(3, 6))


@clean
def decay_that_goes_on_from_the_rate_it_finds():
    of_model, of_optimizer, _ = _interrupted("decay")
    model, optimizer, schedule = _begin("decay")
    model.load_state_dict(of_model)
    optimizer.load_state_dict(of_optimizer)
    _epochs(model, optimizer, schedule)


@clean
def taken_back_to_the_state_before_training():
    model, optimizer, schedule = _begin()
    at_first = copy.deepcopy(optimizer.state_dict())
    _epochs(model, optimizer, schedule, count=1)
    optimizer.load_state_dict(at_first)
    _epochs(model, optimizer, schedule)


def _steps(model, optimizer, count=4):
    for x, y in data(count):
        optimizer.zero_grad()
        mse(model, x, y).backward()
        optimizer.step()


@buggy("GCS320")
def schedule_made_and_forgotten():
    model, optimizer = setup()
    warming = lr_scheduler.LinearLR(optimizer, 0.1)  # <- here
    _steps(model, optimizer)
    assert warming.get_last_lr() != [0.1]


@buggy("GCS320")
def plateau_that_nobody_tells_of_the_loss():
    model, optimizer = setup()
    flat = lr_scheduler.ReduceLROnPlateau(optimizer)  # <- here
    _steps(model, optimizer)
    assert flat.num_bad_epochs == 0


@clean
def plateau_that_is_told_of_the_loss():
    model, optimizer = setup()
    told = lr_scheduler.ReduceLROnPlateau(optimizer)
    _steps(model, optimizer)
    told.step(1.0)


@clean
def schedules_one_after_the_other():
    model, optimizer = setup()
    first = lr_scheduler.ConstantLR(optimizer, 0.5, 2)
    second = lr_scheduler.ExponentialLR(optimizer, 0.9)
    both = lr_scheduler.SequentialLR(optimizer, [first, second], [2])
    for _ in range(3):
        _steps(model, optimizer)
        both.step()


@clean
def schedules_at_once():
    model, optimizer = setup()
    parts = [lr_scheduler.ConstantLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    chained = lr_scheduler.ChainedScheduler(parts)
    for _ in range(3):
        _steps(model, optimizer)
        chained.step()


class _ByHand(lr_scheduler.LRScheduler):
    def get_lr(self):
        return list(self.base_lrs)

    def step(self):
        self.last_epoch += 1


@clean
def schedule_with_a_step_of_its_own():
    model, optimizer = setup()
    by_hand = _ByHand(optimizer)
    for _ in range(3):
        _steps(model, optimizer)
        by_hand.step()


@clean
def schedule_of_an_optimizer_that_is_not_used():
    model, optimizer = setup()
    unused = torch.optim.SGD(net().parameters(), lr=0.1)
    looked_at = lr_scheduler.ExponentialLR(unused, 0.9)
    _steps(model, optimizer)
    assert looked_at.get_last_lr() == [0.1]


@buggy("GCS318")
def rate_set_on_the_optimizer():
    model, optimizer = setup()
    _steps(model, optimizer, 2)
    optimizer.lr = 0.001  # <- here
    _steps(model, optimizer, 2)


@buggy("GCS318")
def flag_that_is_misspelt():
    model, optimizer = setup()
    for each in model[0].parameters():
        each.require_grad = False  # <- here
    _steps(model, optimizer)


@clean
def attributes_of_the_program():
    model, optimizer = setup()
    optimizer.name = "of the whole net"
    for each in model.parameters():
        each.is_norm = False
        each.requires_grad = True
    _steps(model, optimizer)


class _OwnRate(torch.optim.SGD):
    def __init__(self, parameters, lr):
        super().__init__(parameters, lr=lr)
        self.lr = lr


@clean
def optimizer_that_keeps_its_rate():
    model = net()
    _steps(model, _OwnRate(model.parameters(), lr=0.1))


class _Lookahead(torch.optim.Optimizer):
    def __init__(self, inner):
        self.inner, self.defaults, self.state = inner, inner.defaults, {}
        self.param_groups = inner.param_groups

    def step(self):
        self.inner.step()

    def zero_grad(self):
        self.inner.zero_grad()


def _resumed_lookahead():
    model, inner = setup()
    optimizer = _Lookahead(inner)
    schedule = lr_scheduler.ExponentialLR(optimizer, 0.5)
    inner.load_state_dict(inner.state_dict())
    return model, optimizer, schedule


@buggy("GCS306")
def schedule_of_the_groups_before_a_state_was_loaded():
    model, optimizer, schedule = _resumed_lookahead()
    for _ in range(5):
        _steps(model, optimizer)
        schedule.step()  # <- here


@clean
def schedule_of_the_groups_that_were_loaded():
    model, optimizer, schedule = _resumed_lookahead()
    optimizer.param_groups = optimizer.inner.param_groups
    for _ in range(5):
        _steps(model, optimizer)
        schedule.step()


@clean
def schedule_of_a_list_of_the_same_groups():
    model, inner = setup()
    optimizer = _Lookahead(inner)
    optimizer.param_groups = list(inner.param_groups)
    schedule = lr_scheduler.ExponentialLR(optimizer, 0.5)
    for _ in range(5):
        _steps(model, optimizer)
        schedule.step()


@clean
def two_optimizers_with_a_schedule_each():
    model = net()
    halves = [torch.optim.SGD(model[index].parameters(), lr=0.1) for index in (0, 2)]
    schedules = [lr_scheduler.ExponentialLR(each, 0.9) for each in halves]
    for _ in range(6):
        for half, schedule in zip(halves, schedules, strict=True):
            _steps(model, half)
            schedule.step()
