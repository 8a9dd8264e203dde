"""Truncated backpropagation through time for a stateful LSTM over long series."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    series: int = 8
    length: int = 400
    chunk: int = 20
    hidden: int = 24
    epochs: int = 4
    lr: float = 5e-3
    seed: int = 3


def repackage_hidden(state):
    if isinstance(state, torch.Tensor):
        return state.detach()
    return tuple(repackage_hidden(s) for s in state)


class StatefulLSTM(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.lstm = nn.LSTM(1, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 1)
        self.state = None

    def reset(self):
        self.state = None

    def forward(self, x):
        y, state = self.lstm(x, self.state)
        self.state = repackage_hidden(state)
        return self.out(y)


def make_series(cfg, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(cfg.length, dtype=torch.float32)
    phase = 6.28 * torch.rand(cfg.series, 1, generator=g)
    return torch.sin(0.2 * t + phase) * torch.cos(0.031 * t + phase) + 0.05 * torch.randn(cfg.series, cfg.length, generator=g)


def chunks(series, size):
    for start in range(0, series.size(1) - size - 1, size):
        yield series[:, start:start + size, None], series[:, start + 1:start + size + 1, None]


class RunningLoss:
    def __init__(self, beta=0.95):
        self.beta, self.value = beta, None

    def update(self, loss):
        loss = loss.detach()
        self.value = loss if self.value is None else self.beta * self.value + (1 - self.beta) * loss
        return self.value


def train_epoch(model, series, optimizer, cfg, meter):
    model.train()
    model.reset()
    for x, y in chunks(series, cfg.chunk):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        meter.update(loss)


@torch.no_grad()
def evaluate(model, series, cfg):
    model.eval()
    saved, model.state = model.state, None
    losses = torch.stack([F.mse_loss(model(x), y) for x, y in chunks(series, cfg.chunk)])
    model.state = saved
    return losses.mean().item()


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    model = StatefulLSTM(cfg.hidden)
    train, valid = make_series(cfg, 1), make_series(cfg, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    meter = RunningLoss()
    for epoch in range(cfg.epochs):
        train_epoch(model, train, optimizer, cfg, meter)
        loss = evaluate(model, valid, cfg)
        scheduler.step(loss)
        print(f"epoch {epoch} train {meter.value.item():.4f} val {loss:.4f}")
    return {"val": loss}


if __name__ == "__main__":
    main()
