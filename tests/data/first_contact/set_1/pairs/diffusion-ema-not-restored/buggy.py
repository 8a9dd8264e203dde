import copy
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class DiffusionConfig:
    timesteps: int = 50
    hidden: int = 64
    train_steps: int = 240
    batch_size: int = 64
    lr: float = 3e-3
    grad_clip: float = 1.0
    ema_decay: float = 0.99
    eval_every: int = 20
    seed: int = 21


def cosine_alphas_cumprod(timesteps):
    t = torch.linspace(0, 1, timesteps + 1)
    f = torch.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2
    return (f[1:] / f[0]).clamp(1e-4, 0.9999)


class Denoiser(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(8, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.inp = nn.Linear(2, hidden)
        self.mid = nn.Sequential(nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU())
        self.out = nn.Linear(hidden, 2)

    def forward(self, x, t):
        freq = 2.0 ** torch.arange(4) * math.pi
        emb = t[:, None] * freq
        return self.out(self.mid(self.inp(x) + self.time(torch.cat([emb.sin(), emb.cos()], dim=1))))


class ExponentialMovingAverage:
    def __init__(self, model, decay):
        self.decay = decay
        self.params = copy.deepcopy(model.state_dict())

    @torch.no_grad()
    def update(self, model):
        for name, value in model.state_dict().items():
            self.params[name].mul_(self.decay).add_(value, alpha=1 - self.decay)

    def state_dict(self):
        return self.params


class DiffusionWrapper:
    def __init__(self, cfg):
        self.cfg = cfg
        self.model = Denoiser(cfg.hidden)
        self.ema = ExponentialMovingAverage(self.model, cfg.ema_decay)
        self.alphas_cumprod = cosine_alphas_cumprod(cfg.timesteps)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, cfg.train_steps)
        self.cached_weights = None
        self.jumps = []

    def loss(self, x0):
        t = torch.randint(0, self.cfg.timesteps, (x0.shape[0],))
        a = self.alphas_cumprod[t][:, None]
        noise = torch.randn_like(x0)
        xt = a.sqrt() * x0 + (1 - a).sqrt() * noise
        return F.mse_loss(self.model(xt, t / self.cfg.timesteps), noise)

    def training_step(self, x0):
        self.model.train()
        loss = self.loss(x0)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.grad_clip)
        self.optimizer.step()
        self.scheduler.step()
        self.ema.update(self.model)
        return loss.item()

    @torch.no_grad()
    def validate(self, batches):
        self.on_validation_start()
        self.model.eval()
        total = sum(self.loss(x).item() for x in batches) / len(batches)
        self.on_validation_end()
        return total

    def on_validation_start(self):
        if self.cached_weights is None:
            self.cached_weights = self.model.state_dict()
            self.model.load_state_dict(self.ema.state_dict())

    def on_validation_end(self):
        self.model.load_state_dict(self.cached_weights)
        self.cached_weights = None


def sample_data(n):
    angle = torch.rand(n) * 2 * math.pi
    radius = 1.0 + 0.5 * (angle * 3).sin()
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def main():
    cfg = DiffusionConfig()
    torch.manual_seed(cfg.seed)
    wrapper = DiffusionWrapper(cfg)
    held_out = [sample_data(256) for _ in range(3)]
    for step in range(cfg.train_steps):
        loss = wrapper.training_step(sample_data(cfg.batch_size))
        if (step + 1) % cfg.eval_every == 0:
            before = flat(wrapper.model)
            val = wrapper.validate(held_out)
            wrapper.jumps.append((flat(wrapper.model) - before).norm().item())
        if (step + 1) % 80 == 0:
            print(f"step {step + 1}  loss {loss:.4f}  val {val:.4f}")
    return {"weight_jump_over_validation": sum(wrapper.jumps) / len(wrapper.jumps), "val": val}


if __name__ == "__main__":
    main()
