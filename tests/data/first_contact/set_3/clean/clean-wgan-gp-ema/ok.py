"""WGAN-GP with several critic steps, lazy penalty, an averaged generator and sampling during training."""
import copy
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class Options:
    z: int = 4
    n_critic: int = 3
    gp_every: int = 2
    gp_weight: float = 5.0
    lr: float = 1e-3
    ema: float = 0.98
    batch: int = 64
    iters: int = 120
    seed: int = 0


class G(nn.Module):
    def __init__(self, z):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(z, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, z):
        return self.net(z)


class D(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


class WGAN:
    def __init__(self, opt):
        torch.manual_seed(opt.seed)
        self.opt = opt
        self.g, self.d = G(opt.z), D()
        self.g_ema = copy.deepcopy(self.g).eval().requires_grad_(False)
        self.opt_g = torch.optim.Adam(self.g.parameters(), lr=opt.lr, betas=(0.5, 0.9))
        self.opt_d = torch.optim.Adam(self.d.parameters(), lr=opt.lr, betas=(0.5, 0.9))
        self.calls = 0

    def real(self):
        angle = 2 * torch.pi * torch.rand(self.opt.batch)
        return torch.stack([angle.cos(), angle.sin()], dim=1) * 2

    def penalty(self, real, fake):
        mix = torch.rand(real.shape[0], 1)
        x = (mix * real + (1 - mix) * fake).requires_grad_(True)
        (grad,) = torch.autograd.grad(self.d(x).sum(), x, create_graph=True)
        return (grad.norm(dim=1) - 1).pow(2).mean()

    def critic_step(self):
        real = self.real()
        with torch.no_grad():
            fake = self.g(torch.randn(self.opt.batch, self.opt.z))
        self.opt_d.zero_grad()
        wasserstein = self.d(fake).mean() - self.d(real).mean()
        wasserstein.backward()
        if self.calls % self.opt.gp_every == 0:
            (self.opt.gp_weight * self.opt.gp_every * self.penalty(real, fake)).backward()
        self.calls += 1
        self.opt_d.step()
        return -wasserstein.item()

    def generator_step(self):
        self.d.requires_grad_(False)
        loss = -self.d(self.g(torch.randn(self.opt.batch, self.opt.z))).mean()
        self.opt_g.zero_grad()
        loss.backward()
        self.opt_g.step()
        self.d.requires_grad_(True)
        with torch.no_grad():
            for p, e in zip(self.g.parameters(), self.g_ema.parameters()):
                e.lerp_(p, 1 - self.opt.ema)
            for b, e in zip(self.g.buffers(), self.g_ema.buffers()):
                e.copy_(b)

    @torch.no_grad()
    def radius(self):
        return self.g_ema(torch.randn(256, self.opt.z)).norm(dim=1).mean().item()


def main():
    gan = WGAN(Options())
    for it in range(gan.opt.iters):
        w = sum(gan.critic_step() for _ in range(gan.opt.n_critic)) / gan.opt.n_critic
        gan.generator_step()
        if it % 40 == 39:
            print(f"iter {it + 1} wasserstein {w:.3f} radius {gan.radius():.3f}")
    return gan.radius()


if __name__ == "__main__":
    main()
