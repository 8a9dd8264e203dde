"""Denoising diffusion on 2D points, validated with averaged weights."""
import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    timesteps: int = 50
    hidden: int = 64
    batch_size: int = 128
    epochs: int = 6
    steps_per_epoch: int = 40
    lr: float = 3e-3
    ema_decay: float = 0.995
    seed: int = 3


class Denoiser(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.time = nn.Embedding(cfg.timesteps, cfg.hidden)
        self.inp = nn.Linear(2, cfg.hidden)
        self.body = nn.Sequential(
            nn.SiLU(), nn.Linear(cfg.hidden, cfg.hidden), nn.SiLU(), nn.Linear(cfg.hidden, 2)
        )

    def forward(self, x, t):
        return self.body(self.inp(x) + self.time(t))


class ExponentialMovingAverage:
    def __init__(self, model, decay):
        self.decay = decay
        self.params = {k: v.detach().clone() for k, v in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model):
        for key, value in model.state_dict().items():
            self.params[key].lerp_(value, 1.0 - self.decay)

    def state_dict(self):
        return self.params


class Diffusion:
    def __init__(self, timesteps):
        betas = torch.linspace(1e-3, 0.2, timesteps)
        self.alpha_bar = torch.cumprod(1.0 - betas, dim=0)

    def q_sample(self, x0, t, noise):
        a = self.alpha_bar[t].unsqueeze(-1)
        return a.sqrt() * x0 + (1.0 - a).sqrt() * noise


def two_moons(n):
    angle = torch.rand(n) * math.pi
    upper = torch.rand(n) < 0.5
    x = torch.where(upper, angle.cos(), 1.0 - angle.cos())
    y = torch.where(upper, angle.sin(), 0.5 - angle.sin())
    return torch.stack([x, y], dim=1) + 0.05 * torch.randn(n, 2)


class DiffusionModule:
    def __init__(self, cfg):
        self.cfg = cfg
        self.model = Denoiser(cfg)
        self.diffusion = Diffusion(cfg.timesteps)
        self.ema = ExponentialMovingAverage(self.model, cfg.ema_decay)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)
        self.cached_weights = None

    def loss(self, x0):
        t = torch.randint(self.cfg.timesteps, (len(x0),))
        noise = torch.randn_like(x0)
        return F.mse_loss(self.model(self.diffusion.q_sample(x0, t, noise), t), noise)

    def training_step(self, batch):
        self.model.train()
        loss = self.loss(batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.ema.update(self.model)
        return loss.item()

    def on_validation_start(self):
        self.model.eval()
        if self.cached_weights is None:
            self.cached_weights = self.model.state_dict()
            self.model.load_state_dict(self.ema.state_dict())

    @torch.no_grad()
    def validation_step(self, batch):
        return self.loss(batch).item()

    def on_validation_end(self):
        self.model.load_state_dict(self.cached_weights)
        self.cached_weights = None


def fit(module, cfg):
    for epoch in range(cfg.epochs):
        for _ in range(cfg.steps_per_epoch):
            train_loss = module.training_step(two_moons(cfg.batch_size))
        module.on_validation_start()
        val_loss = sum(module.validation_step(two_moons(cfg.batch_size)) for _ in range(4)) / 4
        module.on_validation_end()
        print(f"epoch {epoch} train {train_loss:.4f} val(ema) {val_loss:.4f}")
    return val_loss


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    module = DiffusionModule(cfg)
    val = fit(module, cfg)
    return {"val": val}


if __name__ == "__main__":
    main()
