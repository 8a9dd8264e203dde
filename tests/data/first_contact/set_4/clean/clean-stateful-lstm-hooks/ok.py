"""Stateful LSTM forecaster: truncated BPTT over a long series, activation statistics and gradient hooks."""
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    streams: int = 8
    length: int = 400
    window: int = 20
    hidden: int = 24
    epochs: int = 6
    lr: float = 1e-2
    grad_limit: float = 0.5
    seed: int = 0


@dataclass
class ActivationStats:
    values: list = field(default_factory=list)

    def __call__(self, module, inputs, output):
        self.values.append(output[0].detach().abs().mean().item())


class Forecaster(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.lstm = nn.LSTM(1, cfg.hidden, batch_first=True)
        self.out = nn.Linear(cfg.hidden, 1)
        self.h0 = nn.Parameter(torch.zeros(2, 1, 1, cfg.hidden))

    def initial_state(self, batch):
        h, c = self.h0.expand(2, 1, batch, self.cfg.hidden)
        return h.contiguous(), c.contiguous()

    def forward(self, x, state):
        y, state = self.lstm(x, state)
        if y.requires_grad:
            y.register_hook(lambda g: g.clamp(-self.cfg.grad_limit, self.cfg.grad_limit))
        return self.out(y), state


def series(cfg, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(cfg.length + 1)
    phase = torch.rand(cfg.streams, 1, generator=g) * 6.28
    period = 15 + 20 * torch.rand(cfg.streams, 1, generator=g)
    x = torch.sin(6.28 * t / period + phase) + 0.05 * torch.randn(cfg.streams, len(t), generator=g)
    return x.unsqueeze(-1)


def run(model, x, cfg, optimizer=None):
    state, total, n = model.initial_state(len(x)), 0.0, 0
    for start in range(0, cfg.length, cfg.window):
        inputs = x[:, start: start + cfg.window]
        targets = x[:, start + 1: start + cfg.window + 1]
        pred, state = model(inputs, state)
        loss = F.smooth_l1_loss(pred, targets)
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        state = tuple(s.detach() for s in state)
        total += loss.item()
        n += 1
    return total / n


def main(cfg=None):
    cfg = cfg or Config()
    torch.manual_seed(cfg.seed)
    model, stats = Forecaster(cfg), ActivationStats()
    train, val = series(cfg, 1), series(cfg, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="min", factor=0.5, patience=1)
    for epoch in range(cfg.epochs):
        model.train()
        handle = model.lstm.register_forward_hook(stats)
        loss = run(model, train, cfg, optimizer)
        handle.remove()
        model.eval()
        with torch.no_grad():
            score = run(model, val, cfg)
        scheduler.step(score)
        if epoch % 2:
            print(f"epoch {epoch} loss {loss:.4f} val {score:.4f} activation {stats.values[-1]:.3f}")
    return {"val": score, "records": len(stats.values), "h0": model.h0.abs().max().item()}


if __name__ == "__main__":
    main()
