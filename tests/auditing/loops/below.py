"""Calls that write in place into what their caller still reads, and calls that are meant to."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody writes it
from torch.utils.data import DataLoader, Dataset

from tests.auditing.loops.bank import buggy, clean, setup


def _train(model, loss_of, steps=5):
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()


def _fitted(model):
    x = torch.randn(6, 4)
    return (model(x) - x.sum(1, keepdim=True)).square().mean()


class Residual(nn.Module):
    """A network of one block, which is given what a layer, and perhaps another, has made."""

    def __init__(self, *, inplace, rectified=False):
        super().__init__()
        self.before, self.rectified = nn.Linear(4, 8), rectified
        self.block = nn.Sequential(nn.ReLU(inplace=inplace), nn.Linear(8, 8))
        self.after = nn.Linear(8, 1)

    def add(self, x):
        out = self.block(x)  # <- skip
        return out + x

    def forward(self, x):
        x = self.before(x)
        return self.after(self.add(x.abs() if self.rectified else x))


class Features(nn.Module):
    """A network that returns what some of its layers have made, as a perceptual loss wants."""

    def __init__(self, *, last=(0, 2)):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 8)])
        self.last = last

    def forward(self, x):
        found = []
        for number, layer in enumerate(self.layers):
            x = layer(x)  # <- layers
            if number in self.last:
                found.append(x)
        return torch.cat(found, 1).sum(1, keepdim=True)


class Block(nn.Module):
    """What works in place on what it has made itself."""

    def __init__(self):
        super().__init__()
        self.one, self.norm, self.two = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.act = nn.ReLU(inplace=True)
        self.last = nn.Linear(4, 1)

    def forward(self, x):
        identity = x
        out = self.act(self.norm(self.one(x)))
        out = self.two(out)
        out += identity
        out = self.act(out)
        return self.last(out)


class Noise:
    def __call__(self, x):
        x += 0.3 * torch.randn_like(x)
        return x


class Buffered:
    """An environment that writes each observation over the last."""

    def __init__(self, *, copies):
        self.seen, self.copies = torch.randn(6, 4), copies

    def advance(self, action):
        self.seen.mul_(0.5).add_(action)
        return self.seen.clone() if self.copies else self.seen


class Series(Dataset):
    """Windows of a series, each scaled by what it is."""

    def __init__(self, *, copies):
        self.values, self.copies = torch.randn(40).cumsum(0), copies
        self.asked = torch.zeros(32)
        self.ready = False

    def __len__(self):
        return 32

    def __getitem__(self, index):
        if not self.ready:
            whole = self.values
            whole -= whole.mean()
            self.ready = True
        self.asked[index] += 1.0
        window = self.values[index : index + 5]
        if self.copies:
            window = window.clone()
            window -= window.mean()
        else:
            window -= window.mean()  # <- here
        return window[:4], window[4:]


def _fit_series(series):
    model, optimizer = setup()
    for _ in range(2):
        for x, y in DataLoader(series, batch_size=8):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()


def _roll(environment, steps=4):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        seen = environment.advance(0.0)
        kept = []
        with torch.no_grad():
            for _ in range(steps):
                following = environment.advance(model(seen))  # <- rollout
                kept.append((seen - following).clone())
                seen = following
        optimizer.zero_grad()
        (model(torch.stack(kept)) - 1).square().mean().backward()
        optimizer.step()


@buggy("GCS112")
def block_that_rectifies_what_it_adds():
    _train(Residual(inplace=True), _fitted)


@clean
def block_that_works_on_a_copy():
    _train(Residual(inplace=False), _fitted)


@clean
def block_whose_input_is_rectified_already():
    _train(Residual(inplace=True, rectified=True), _fitted)


@buggy("GCS112")
def features_that_the_next_layer_rectifies():
    _train(Features(), _fitted)


@clean
def features_that_nothing_rectifies():
    _train(Features(last=(1, 2)), _fitted)


@clean
def block_that_rectifies_its_own():
    _train(Block(), _fitted)


@buggy("GCS112")
def noise_in_the_target():
    model = nn.Linear(4, 4)
    noise = Noise()

    def loss_of(model):
        wanted = torch.randn(6, 4)
        given = noise(wanted)  # <- here
        return F.mse_loss(model(given), wanted)

    _train(model, loss_of)


@clean
def noise_in_a_copy_of_the_target():
    noise = Noise()

    def loss_of(model):
        wanted = torch.randn(6, 4)
        given = noise(wanted.clone())
        return F.mse_loss(model(given), wanted)

    _train(nn.Linear(4, 4), loss_of)


@clean
def noise_under_the_same_name():
    noise = Noise()

    def loss_of(model):
        x = torch.randn(6, 4)
        y = x.sum(1, keepdim=True)
        x = noise(x)
        return (model(x).sum(1, keepdim=True) - y).square().mean()

    _train(nn.Linear(4, 4), loss_of)


def _rescale_(x):
    x.mul_(2.0)
    return x


@clean
def scaled_by_what_says_that_it_writes():
    def loss_of(model):
        wanted = torch.randn(6, 4)
        given = _rescale_(wanted)
        return F.mse_loss(model(given), wanted)

    _train(nn.Linear(4, 4), loss_of)


@clean
def noise_whose_result_nobody_wants():
    noise = Noise()

    def loss_of(model):
        x = torch.randn(6, 4)
        noise(x)
        return model(x).square().mean()

    _train(nn.Linear(4, 4), loss_of)


@clean
def noise_in_what_is_asked_for_its_shape_alone():
    noise = Noise()

    def loss_of(model):
        x = torch.randn(6, 4)
        given = noise(x)
        return model(given).square().sum() / len(x) / x.shape[1]

    _train(nn.Linear(4, 4), loss_of)


@buggy("GCS112")
def observations_of_one_buffer():
    _roll(Buffered(copies=False))


@clean
def observations_that_are_copies():
    _roll(Buffered(copies=True))


@buggy("GCS112")
def windows_scaled_in_the_series():
    _fit_series(Series(copies=False))


@clean
def windows_scaled_in_copies():
    _fit_series(Series(copies=True))
