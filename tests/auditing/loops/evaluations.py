"""Evaluations that change what training goes on with, and those that only look like it."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody writes it
from torch import nn

from tests.auditing.loops.bank import buggy, clean


def fit(model, *, before=lambda _epoch: None, around=lambda evaluate: evaluate(), epochs=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def evaluate():
        model.eval()
        with torch.no_grad():
            for _ in range(2):
                model(3.0 * torch.randn(8, 4))

    for epoch in range(epochs):
        model.train()
        before(epoch)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(8, 4)), torch.randint(2, (8,))).backward()
            optimizer.step()
        around(evaluate)


class Network(nn.Module):
    def __init__(self, middle):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, 6), middle, nn.Linear(6, 2)

    def forward(self, x):
        return self.last(self.middle(self.first(x)).tanh())


class OverwritesItsRate(nn.Module):
    def __init__(self):
        super().__init__()
        self.rate = 0.3

    def forward(self, x):
        self.rate = self.rate if self.training else 0.0  # <- here
        return F.dropout(x, self.rate)


@buggy("GCS706")
def rate_that_forward_overwrites():
    fit(Network(OverwritesItsRate()))


@buggy("GCS706")
def dropout_off_for_the_evaluation_and_never_on():
    model = Network(nn.Dropout(0.5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        for _ in range(3):
            model.train()
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(8, 4)), torch.randint(2, (8,))).backward()
            optimizer.step()
        model.eval()
        _switch_off(model)
        with torch.no_grad():
            model(torch.randn(8, 4))


def _switch_off(model):
    for each in model.modules():
        if isinstance(each, nn.Dropout):
            each.p = 0.0


class Drops(nn.Module):
    def __init__(self):
        super().__init__()
        self.share_that_is_dropped = 0.5

    def forward(self, x):
        return F.dropout(x, self.share_that_is_dropped)


@buggy("GCS706")
def own_dropout_off_for_the_evaluation_and_never_on():
    model = Network(Drops())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        for _ in range(3):
            model.train()
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(8, 4)), torch.randint(2, (8,))).backward()
            optimizer.step()
        model.eval()
        _drop_nothing(model)
        with torch.no_grad():
            model(torch.randn(8, 4))


def _drop_nothing(model):
    for each in model.modules():
        if isinstance(each, Drops):
            each.share_that_is_dropped = 0.0  # <- here


class SetsItsRate(OverwritesItsRate):
    def forward(self, x):
        self.now = self.rate if self.training else 0.0
        return F.dropout(x, self.now)


@clean
def rate_that_each_call_sets():
    fit(Network(SetsItsRate()))


class RateOfTheMode(OverwritesItsRate):
    def train(self, mode=True):
        super().train(mode)
        self.rate = 0.3 if mode else 0.0
        return self

    def forward(self, x):
        return F.dropout(x, self.rate)


@clean
def rate_that_goes_with_the_mode():
    fit(Network(RateOfTheMode()))


@clean
def schedule_that_ends_at_no_dropout():
    model = Network(nn.Dropout(0.5))

    def before(epoch):
        vars(model.middle).update(p=0.5 if epoch == 0 else 0.0)

    fit(model, before=before)


@clean
def schedule_that_is_set_after_the_evaluation():
    model = Network(nn.Dropout(0.5))

    def around(evaluate):
        evaluate()
        vars(model.middle).update(p=0.0)

    fit(model, around=around)


class Rescaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.temperature = 1.0
        self.largest = 0.0
        self.seen = 0

    def forward(self, x):
        self.seen += 1
        self.largest = max(self.largest, float(x.detach().abs().max()))
        if self.training:
            return x
        self.temperature = 0.5
        return x / self.temperature


@clean
def figures_and_settings_that_only_evaluation_reads():
    fit(Network(Rescaled()))


class Range(nn.Module):
    def __init__(self):
        super().__init__()
        self.observes = True
        self.register_buffer("largest", torch.ones(()))

    @torch.no_grad()
    def observe(self, x):
        self.largest.lerp_(x.abs().max(), 0.1)  # <- here

    def forward(self, x):
        if self.observes:
            self.observe(x.detach())
        return x / self.largest


@buggy("GCS706")
def range_that_evaluation_moves():
    fit(Network(Range()))


class Centered(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("center", torch.zeros(6))

    def forward(self, x):
        self.center = 0.9 * self.center + 0.1 * x.detach().mean(0)  # <- here
        return x - self.center


@buggy("GCS706")
def center_that_is_bound_anew_in_each_call():
    fit(Network(Centered()))


class Largest(Range):
    @torch.no_grad()
    def observe(self, x):
        largest = torch.maximum(0.9 * self.largest, x.abs().max())
        self.largest.copy_(largest)  # <- here


@buggy("GCS706")
def range_that_is_copied_from_what_it_was():
    fit(Network(Largest()))


@clean
def range_that_is_not_observed_in_evaluation():
    model = Network(Range())

    def around(evaluate):
        model.middle.observes = False
        evaluate()
        model.middle.observes = True

    fit(model, around=around)


@clean
def range_that_is_put_back():
    model = Network(Range())

    def around(evaluate):
        kept = model.middle.largest.clone()
        evaluate()
        model.middle.largest.copy_(kept)

    fit(model, around=around)


@clean
def state_that_is_loaded_after_the_evaluation():
    model = Network(Centered())

    def around(evaluate):
        kept = {name: each.clone() for name, each in model.state_dict().items()}
        evaluate()
        model.load_state_dict(kept)

    fit(model, around=around)


@clean
def range_that_is_calibrated_and_then_fixed():
    model = Network(Range())

    def before(_epoch):
        model.middle.observes = False

    def around(evaluate):
        model.middle.observes = True
        evaluate()

    fit(model, before=before, around=around)


class OwnNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x):
        if self.training:
            mean = x.mean(0)
            self.mean.lerp_(mean.detach(), 0.1)
            return x - mean
        return x - self.mean


@clean
def norm_that_keeps_to_its_mode():
    fit(Network(OwnNorm()))


class Usage(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("usage", torch.zeros(6))
        self.register_buffer("cache", torch.zeros(8, 6))

    def forward(self, x):
        self.usage.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        self.cache[:] = x.detach()
        return x + 0.1 * self.cache

    def report(self):
        return (self.usage / self.usage.sum()).tolist()


@clean
def usage_that_nothing_reads_and_a_cache_that_each_call_fills():
    model = Network(Usage())
    fit(model)
    model.middle.report()


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(8, 6))

    def reset(self):
        self.state.zero_()

    def forward(self, x):
        out = (x + self.state).tanh()
        self.state.copy_(out.detach())
        return out


@clean
def state_that_each_epoch_resets():
    model = Network(Recurrent())
    fit(model, before=lambda _epoch: model.middle.reset())
