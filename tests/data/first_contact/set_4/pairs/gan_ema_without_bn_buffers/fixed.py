"""Hinge GAN on 2-D mixtures; samples and the score come from an averaged generator."""
import copy
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class GanConfig:
    z_dim: int = 8
    iterations: int = 300
    batch_size: int = 64
    lr_g: float = 1e-3
    lr_d: float = 2e-3
    ema_beta: float = 0.98
    n_modes: int = 8
    seed: int = 21


class Generator(nn.Module):
    def __init__(self, z_dim, hidden=48):
        super().__init__()
        self.fc1, self.bn1 = nn.Linear(z_dim, hidden), nn.BatchNorm1d(hidden)
        self.fc2, self.bn2 = nn.Linear(hidden, hidden), nn.BatchNorm1d(hidden)
        self.out = nn.Linear(hidden, 2)

    def forward(self, z):
        h = F.relu(self.bn1(self.fc1(z)))
        h = F.relu(self.bn2(self.fc2(h)))
        return self.out(h)


class Discriminator(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        sn = nn.utils.parametrizations.spectral_norm
        self.net = nn.Sequential(sn(nn.Linear(2, hidden)), nn.LeakyReLU(0.2), sn(nn.Linear(hidden, hidden)),
                                 nn.LeakyReLU(0.2), sn(nn.Linear(hidden, 1)))

    def forward(self, x):
        return self.net(2 * x).squeeze(-1)


def real_batch(cfg, gen):
    k = torch.randint(0, cfg.n_modes, (cfg.batch_size,), generator=gen).float()
    angle = 2 * math.pi * k / cfg.n_modes
    return torch.stack([angle.cos(), angle.sin()], 1) * 2 + 0.1 * torch.randn(cfg.batch_size, 2, generator=gen)


def copy_G_params(model):
    return [p.detach().clone() for p in model.parameters()]


def load_params(model, new_params):
    for p, new_p in zip(model.parameters(), new_params):
        p.data.copy_(new_p)


class GANTrainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.gen = torch.Generator().manual_seed(cfg.seed)
        self.netG, self.netD = Generator(cfg.z_dim), Discriminator()
        self.netG_ema = copy.deepcopy(self.netG).eval().requires_grad_(False)
        self.avg_param_G = copy_G_params(self.netG)
        self.optG = torch.optim.Adam(self.netG.parameters(), lr=cfg.lr_g, betas=(0.5, 0.99))
        self.optD = torch.optim.Adam(self.netD.parameters(), lr=cfg.lr_d, betas=(0.5, 0.99))

    def noise(self, n):
        return torch.randn(n, self.cfg.z_dim, generator=self.gen)

    def d_step(self, real):
        fake = self.netG(self.noise(len(real))).detach()
        loss = F.relu(1 - self.netD(real)).mean() + F.relu(1 + self.netD(fake)).mean()
        self.optD.zero_grad()
        loss.backward()
        self.optD.step()
        return loss.item()

    def g_step(self):
        loss = -self.netD(self.netG(self.noise(self.cfg.batch_size))).mean()
        self.optG.zero_grad()
        loss.backward()
        self.optG.step()
        return loss.item()

    @torch.no_grad()
    def update_average(self):
        for p, avg_p in zip(self.netG.parameters(), self.avg_param_G):
            avg_p.mul_(self.cfg.ema_beta).add_(p, alpha=1 - self.cfg.ema_beta)

    @torch.no_grad()
    def score(self):
        load_params(self.netG_ema, self.avg_param_G)
        for b, ema_b in zip(self.netG.buffers(), self.netG_ema.buffers()):
            ema_b.copy_(b)
        x = self.netG_ema(torch.randn(400, self.cfg.z_dim, generator=torch.Generator().manual_seed(1)))
        return (x.norm(dim=1) - 2).abs().mean().item(), x.std().item()

    def train(self):
        for it in range(self.cfg.iterations):
            d_loss = self.d_step(real_batch(self.cfg, self.gen))
            g_loss = self.g_step()
            self.update_average()
            if it % 100 == 99:
                err, spread = self.score()
                print(f"iter {it} d {d_loss:.3f} g {g_loss:.3f} radius error {err:.3f} spread {spread:.3f}")


def main():
    cfg = GanConfig()
    torch.manual_seed(cfg.seed)
    trainer = GANTrainer(cfg)
    trainer.train()
    err, spread = trainer.score()
    gap = (trainer.netG_ema.bn2.running_mean - trainer.netG.bn2.running_mean).norm().item()
    result = {"radius_error": round(err, 3), "spread": round(spread, 3), "bn_gap": round(gap, 4)}
    print(result)
    return result


if __name__ == "__main__":
    main()
