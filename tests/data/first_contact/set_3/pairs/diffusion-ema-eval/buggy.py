"""DDPM on a two-dimensional ring; the validation loss is taken with the averaged weights."""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    timesteps: int = 50
    hidden: int = 48
    lr: float = 2e-3
    batch_size: int = 128
    epochs: int = 6
    steps_per_epoch: int = 40
    ema_decay: float = 0.995
    seed: int = 0


class Denoiser(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.time = nn.Embedding(cfg.timesteps, cfg.hidden)
        self.inp = nn.Linear(2, cfg.hidden)
        self.body = nn.Sequential(nn.SiLU(), nn.Linear(cfg.hidden, cfg.hidden), nn.SiLU(), nn.Linear(cfg.hidden, 2))

    def forward(self, x, t):
        return self.body(self.inp(x) + self.time(t))


class GaussianDiffusion:
    def __init__(self, cfg):
        betas = torch.linspace(1e-3, 0.12, cfg.timesteps)
        self.alpha_bar = torch.cumprod(1 - betas, dim=0)
        self.cfg = cfg

    def loss(self, model, x0, generator=None):
        t = torch.randint(0, self.cfg.timesteps, (x0.shape[0],), generator=generator)
        noise = torch.randn(x0.shape, generator=generator)
        a = self.alpha_bar[t][:, None]
        return F.mse_loss(model(a.sqrt() * x0 + (1 - a).sqrt() * noise, t), noise)


class ExponentialMovingAverage:
    def __init__(self, model, decay):
        self.decay = decay
        self.params = {k: v.detach().clone() for k, v in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model):
        for k, v in model.state_dict().items():
            self.params[k].mul_(self.decay).add_(v, alpha=1 - self.decay)

    def state_dict(self):
        return {"params": self.params, "decay": self.decay}


class DiffusionWrapper:
    """The part that other projects leave to Lightning."""

    def __init__(self, cfg):
        torch.manual_seed(cfg.seed)
        self.cfg = cfg
        self.model = Denoiser(cfg)
        self.diffusion = GaussianDiffusion(cfg)
        self.ema = ExponentialMovingAverage(self.model, cfg.ema_decay)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda s: min(1.0, (s + 1) / 20))
        self.cached_weights = None
        self.train_log, self.val_log = [], []

    def batch(self, n, generator=None):
        angle = 2 * math.pi * torch.rand(n, generator=generator)
        return torch.stack([angle.cos(), angle.sin()], dim=-1) + 0.05 * torch.randn(n, 2, generator=generator)

    def training_step(self):
        loss = self.diffusion.loss(self.model, self.batch(self.cfg.batch_size))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        self.ema.update(self.model)
        return loss.item()

    @torch.no_grad()
    def validation_step(self, generator):
        if self.cached_weights is None:
            self.cached_weights = self.model.state_dict()
            self.model.load_state_dict(self.ema.state_dict()["params"])
        return self.diffusion.loss(self.model, self.batch(512, generator), generator).item()

    def validation_epoch_end(self):
        self.model.load_state_dict(self.cached_weights)
        self.cached_weights = None

    def fit(self):
        for epoch in range(self.cfg.epochs):
            self.model.train()
            losses = [self.training_step() for _ in range(self.cfg.steps_per_epoch)]
            self.train_log.append(sum(losses[-10:]) / 10)
            self.model.eval()
            generator = torch.Generator().manual_seed(99)
            val = [self.validation_step(generator) for _ in range(3)]
            self.val_log.append(sum(val) / len(val))
            self.validation_epoch_end()
            print(f"epoch {epoch} train {self.train_log[-1]:.4f} val(ema) {self.val_log[-1]:.4f}")
        return self


def main():
    return DiffusionWrapper(Config()).fit()


if __name__ == "__main__":
    main()
