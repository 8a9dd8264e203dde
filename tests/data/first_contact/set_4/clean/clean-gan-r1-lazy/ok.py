"""Non-saturating GAN with lazy R1, separate backwards for real and fake, and an averaged generator."""
import copy
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    z_dim: int = 6
    iterations: int = 200
    batch_size: int = 48
    lr: float = 1e-3
    r1_gamma: float = 0.5
    r1_every: int = 8
    ema: float = 0.98
    seed: int = 4


def net(i, o, h=48):
    return nn.Sequential(nn.Linear(i, h), nn.LeakyReLU(0.2), nn.Linear(h, h), nn.LeakyReLU(0.2), nn.Linear(h, o))


def requires_grad(model, flag):
    for p in model.parameters():
        p.requires_grad_(flag)


@torch.no_grad()
def accumulate(avg, model, decay):
    for a, p in zip(avg.parameters(), model.parameters()):
        a.mul_(decay).add_(p, alpha=1 - decay)


def real_batch(n, gen):
    angle = torch.rand(n, generator=gen) * 2 * math.pi
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(n, 2, generator=gen)


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.gen = torch.Generator().manual_seed(cfg.seed)
        self.G, self.D = net(cfg.z_dim, 2), net(2, 1)
        self.G_ema = copy.deepcopy(self.G).eval()
        requires_grad(self.G_ema, False)
        ratio = cfg.r1_every / (cfg.r1_every + 1)
        self.opt_g = torch.optim.Adam(self.G.parameters(), lr=cfg.lr, betas=(0.0, 0.99))
        self.opt_d = torch.optim.Adam(self.D.parameters(), lr=cfg.lr * ratio, betas=(0.0, 0.99 ** ratio))

    def noise(self):
        return torch.randn(self.cfg.batch_size, self.cfg.z_dim, generator=self.gen)

    def d_step(self, real):
        requires_grad(self.G, False)
        requires_grad(self.D, True)
        self.opt_d.zero_grad()
        fake_loss = F.softplus(self.D(self.G(self.noise()))).mean()
        fake_loss.backward()
        real_loss = F.softplus(-self.D(real)).mean()
        real_loss.backward()
        self.opt_d.step()
        return (fake_loss + real_loss).item()

    def r1_step(self, real):
        real = real.detach().requires_grad_(True)
        grad, = torch.autograd.grad(self.D(real).sum(), real, create_graph=True)
        penalty = grad.pow(2).sum(1).mean()
        self.opt_d.zero_grad()
        (self.cfg.r1_gamma / 2 * penalty * self.cfg.r1_every).backward()
        self.opt_d.step()
        return penalty.item()

    def g_step(self):
        requires_grad(self.G, True)
        requires_grad(self.D, False)
        loss = F.softplus(-self.D(self.G(self.noise()))).mean()
        self.opt_g.zero_grad()
        loss.backward()
        self.opt_g.step()
        accumulate(self.G_ema, self.G, self.cfg.ema)
        return loss.item()


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    t = Trainer(cfg)
    for it in range(cfg.iterations):
        real = real_batch(cfg.batch_size, t.gen)
        d = t.d_step(real)
        if it % cfg.r1_every == 0:
            r1 = t.r1_step(real)
        g = t.g_step()
        if it % 50 == 0:
            print(f"iter {it} d {d:.3f} g {g:.3f} r1 {r1:.4f}")
    with torch.no_grad():
        radius = t.G_ema(t.noise()).norm(dim=1).mean().item()
    result = {"d": round(d, 4), "g": round(g, 4), "radius": round(radius, 3)}
    print(result)
    return result


if __name__ == "__main__":
    main()
