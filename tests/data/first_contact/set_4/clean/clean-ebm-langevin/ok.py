"""Energy-based model on 2-D points, with Langevin negatives from a persistent buffer."""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class Config:
    steps: int = 120
    batch_size: int = 64
    langevin_steps: int = 12
    step_size: float = 0.1
    noise: float = 0.02
    buffer_size: int = 512
    fresh: float = 0.1
    reg: float = 0.05
    lr: float = 1e-3
    seed: int = 2


class Energy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


class Sampler:
    def __init__(self, model, cfg):
        self.model, self.cfg = model, cfg
        self.buffer = torch.rand(cfg.buffer_size, 2) * 4 - 2

    def draw(self):
        cfg = self.cfg
        idx = torch.randint(0, cfg.buffer_size, (cfg.batch_size,))
        x = self.buffer[idx].clone()
        fresh = torch.rand(cfg.batch_size) < cfg.fresh
        x[fresh] = torch.rand(int(fresh.sum()), 2) * 4 - 2
        x = self.langevin(x)
        self.buffer[idx] = x
        return x

    def langevin(self, x):
        was_training = self.model.training
        self.model.eval()
        for p in self.model.parameters():
            p.requires_grad = False
        noise = torch.empty_like(x)
        x.requires_grad_(True)
        for _ in range(self.cfg.langevin_steps):
            noise.normal_(0, self.cfg.noise)
            x.data.add_(noise)
            self.model(x).sum().backward()
            x.data.add_(x.grad.clamp_(-1, 1), alpha=-self.cfg.step_size)
            x.grad.zero_()
            x.data.clamp_(-3, 3)
        for p in self.model.parameters():
            p.requires_grad = True
        self.model.train(was_training)
        return x.detach()


def ring(n, gen):
    angle = torch.rand(n, generator=gen) * 2 * math.pi
    return torch.stack([angle.cos(), angle.sin()], 1) * 1.5 + 0.05 * torch.randn(n, 2, generator=gen)


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed)
    model = Energy()
    sampler = Sampler(model, cfg)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr, betas=(0.0, 0.999))
    for step in range(cfg.steps):
        real = ring(cfg.batch_size, gen)
        fake = sampler.draw()
        e_real, e_fake = model(torch.cat([real, fake])).chunk(2)
        divergence = e_real.mean() - e_fake.mean()
        loss = divergence + cfg.reg * (e_real ** 2 + e_fake ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        if step % 40 == 0:
            print(f"step {step} divergence {divergence.item():.4f} loss {loss.item():.4f}")
    radius = sampler.buffer.norm(dim=1)
    result = {"loss": round(loss.item(), 4), "buffer_radius": round(radius.mean().item(), 3)}
    print(result)
    return result


if __name__ == "__main__":
    main()
