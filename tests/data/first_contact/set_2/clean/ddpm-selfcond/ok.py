"""Diffusion with self-conditioning, accumulation that minds the last window, and an EMA swap."""
import math
import random
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    timesteps: int = 40
    batch: int = 32
    samples: int = 320
    accumulate: int = 4
    epochs: int = 12
    lr: float = 3e-3
    ema: float = 0.97
    seed: int = 36


class Denoiser(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.time = nn.Embedding(cfg.timesteps, 64)
        self.inp = nn.Linear(4, 64)
        self.body = nn.Sequential(nn.SiLU(), nn.Linear(64, 64), nn.Dropout(0.1), nn.SiLU(), nn.Linear(64, 2))

    def forward(self, x, t, cond):
        return self.body(self.inp(torch.cat([x, cond], 1)) + self.time(t))


class EMA:
    def __init__(self, model, decay):
        self.model, self.decay = model, decay
        self.shadow = [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def update(self):
        torch._foreach_lerp_(self.shadow, [p.detach() for p in self.model.parameters()], 1 - self.decay)

    @contextmanager
    def swapped(self):
        backup = [p.detach().clone() for p in self.model.parameters()]
        with torch.no_grad():
            for p, s in zip(self.model.parameters(), self.shadow):
                p.copy_(s)
        try:
            yield self.model
        finally:
            with torch.no_grad():
                for p, b in zip(self.model.parameters(), backup):
                    p.copy_(b)


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        angle = torch.rand(cfg.samples, 1) * 2 * math.pi
        self.data = torch.cat([angle.cos(), angle.sin()], 1)
        self.alpha_bar = torch.cumprod(1 - torch.linspace(1e-3, 0.2, cfg.timesteps), 0)
        self.model = Denoiser(cfg)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)
        self.ema = EMA(self.model, cfg.ema)

    def loss(self, x0):
        t = torch.randint(self.cfg.timesteps, (len(x0),))
        a, noise = self.alpha_bar[t].unsqueeze(1), torch.randn_like(x0)
        x = a.sqrt() * x0 + (1 - a).sqrt() * noise
        cond = torch.zeros_like(x)
        if random.random() < 0.5:
            with torch.no_grad():
                cond = self.model(x, t, cond)
        return F.mse_loss(self.model(x, t, cond), noise)

    def train_epoch(self):
        self.model.train()
        chunks = self.data[torch.randperm(len(self.data))].split(self.cfg.batch)
        losses = []
        for start in range(0, len(chunks), self.cfg.accumulate):
            window = chunks[start:start + self.cfg.accumulate]
            count = sum(len(c) for c in window)
            for chunk in window:
                loss = self.loss(chunk)
                (loss * len(chunk) / count).backward()
                losses.append(loss.item())
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.ema.update()
        return sum(losses) / len(losses)

    def validate(self):
        with self.ema.swapped() as model, torch.no_grad():
            model.eval()
            return sum(self.loss(self.data[:128]).item() for _ in range(4)) / 4


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    random.seed(cfg.seed)
    trainer = Trainer(cfg)
    for epoch in range(cfg.epochs):
        train = trainer.train_epoch()
        val = trainer.validate()
        if epoch % 3 == 0:
            print(f"epoch {epoch} train {train:.4f} val(ema) {val:.4f}")
    return val


if __name__ == "__main__":
    main()
