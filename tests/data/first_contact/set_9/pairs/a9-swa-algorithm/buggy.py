import copy
from dataclasses import dataclass
from enum import Enum, auto

import torch
import torch.nn.functional as F
from torch import nn


class Event(Enum):
    FIT_START = auto()
    EPOCH_START = auto()
    BATCH_END = auto()
    EPOCH_END = auto()
    FIT_END = auto()


@dataclass
class State:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    train_data: tuple
    max_epochs: int
    batches_per_epoch: int
    epoch: int = 0
    batch: int = 0

    @property
    def elapsed(self):
        return self.batch / (self.max_epochs * self.batches_per_epoch)


class Algorithm:
    def match(self, event, state):
        raise NotImplementedError

    def apply(self, event, state):
        raise NotImplementedError


class GradientNoise(Algorithm):
    def __init__(self, std):
        self.std = std

    def match(self, event, state):
        return event is Event.FIT_START

    def apply(self, event, state):
        for p in state.model.parameters():
            p.register_hook(lambda g: g + self.std * torch.randn_like(g))


class SWA(Algorithm):
    def __init__(self, swa_start=0.6, swa_end=0.95, update_interval=2):
        self.swa_start = swa_start
        self.swa_end = swa_end
        self.update_interval = update_interval
        self.swa_model = None
        self.n_averaged = 0
        self.step_counter = 0
        self.refresh_norm = False

    def match(self, event, state):
        if event is Event.FIT_START:
            return True
        if event is Event.EPOCH_START:
            return self.refresh_norm
        return event is Event.BATCH_END and self.swa_start <= state.elapsed <= self.swa_end

    def apply(self, event, state):
        if event is Event.FIT_START:
            self.swa_model = copy.deepcopy(state.model).requires_grad_(False)
        elif event is Event.BATCH_END:
            self.step_counter += 1
            if self.step_counter % self.update_interval == 0:
                self.average(state.model)
        else:
            self.update_norm_statistics(state)

    @torch.no_grad()
    def average(self, model):
        self.n_averaged += 1
        for avg, p in zip(self.swa_model.parameters(), model.parameters()):
            avg.lerp_(p, 1.0 / self.n_averaged)
        self.refresh_norm = True

    @torch.no_grad()
    def update_norm_statistics(self, state):
        norms = [m for m in self.swa_model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        for m in norms:
            m.reset_running_stats()
            m.momentum = None
        self.swa_model.train()
        for xb in state.train_data[0].split(32):
            self.swa_model(xb)
        self.swa_model.eval()
        self.refresh_norm = False


class Engine:
    def __init__(self, algorithms):
        self.algorithms = algorithms

    def run_event(self, event, state):
        for algorithm in self.algorithms:
            if algorithm.match(event, state):
                algorithm.apply(event, state)


class ConvClassifier(nn.Module):
    def __init__(self, width=12, classes=4):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(2, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        )
        self.fc = nn.Linear(width, classes)

    def forward(self, x):
        return self.fc(self.body(x).mean(dim=(2, 3)))


class Trainer:
    def __init__(self, model, train_data, max_epochs, algorithms, batch_size=32, lr=0.1):
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        batches = -(-len(train_data[0]) // batch_size)
        self.state = State(model, optimizer, train_data, max_epochs, batches)
        self.engine = Engine(algorithms)
        self.batch_size = batch_size

    def fit(self):
        state = self.state
        images, labels = state.train_data
        self.engine.run_event(Event.FIT_START, state)
        for state.epoch in range(state.max_epochs):
            self.engine.run_event(Event.EPOCH_START, state)
            state.model.train()
            for idx in torch.randperm(len(images)).split(self.batch_size):
                loss = F.cross_entropy(state.model(images[idx]), labels[idx])
                state.optimizer.zero_grad()
                loss.backward()
                state.optimizer.step()
                state.batch += 1
                self.engine.run_event(Event.BATCH_END, state)
            self.engine.run_event(Event.EPOCH_END, state)
            print("epoch", state.epoch, round(loss.item(), 4))
        self.engine.run_event(Event.FIT_END, state)


@torch.no_grad()
def evaluate(model, images, labels):
    model.eval()
    logits = model(images)
    return F.cross_entropy(logits, labels).item(), (logits.argmax(1) == labels).float().mean().item()


def gratings(n, generator):
    y = torch.randint(0, 4, (n,), generator=generator)
    grid = torch.arange(10).float()
    angle = y.float() * 0.785
    proj = angle.cos()[:, None, None] * grid[None, None, :] + angle.sin()[:, None, None] * grid[None, :, None]
    x = torch.stack([torch.sin(proj), torch.cos(proj)], dim=1)
    return 3.0 * x + 2.0 + 1.5 * torch.randn(n, 2, 10, 10, generator=generator), y


def main():
    torch.manual_seed(8)
    gen = torch.Generator().manual_seed(8)
    train_data, val_data = gratings(256, gen), gratings(128, gen)
    swa = SWA(swa_start=0.7, swa_end=0.97, update_interval=2)
    trainer = Trainer(ConvClassifier(), train_data, 3, [GradientNoise(1e-3), swa])
    trainer.fit()
    for name, model in [("sgd", trainer.state.model), ("swa", swa.swa_model)]:
        print(name, [round(v, 4) for v in evaluate(model, *val_data)])


if __name__ == "__main__":
    main()
