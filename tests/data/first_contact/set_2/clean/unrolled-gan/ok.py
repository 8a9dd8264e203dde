"""Unrolled GAN: the generator looks a few critic steps ahead, then the critic is put back."""
import copy
import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    unroll: int = 3
    iterations: int = 40
    batch: int = 48
    latent: int = 6
    lr: float = 2e-3
    seed: int = 31


def mixture(n, modes=6):
    angle = torch.randint(modes, (n,)) * (2 * math.pi / modes)
    return 2 * torch.stack([angle.cos(), angle.sin()], 1) + 0.1 * torch.randn(n, 2)


def mlp(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, outputs))


class UnrolledGAN:
    def __init__(self, cfg):
        self.cfg = cfg
        self.G, self.D = mlp(cfg.latent, 2), mlp(2, 1)
        self.g_opt = torch.optim.Adam(self.G.parameters(), lr=cfg.lr, betas=(0.5, 0.99))
        self.d_opt = torch.optim.Adam(self.D.parameters(), lr=cfg.lr, betas=(0.5, 0.99))

    def noise(self):
        return torch.randn(self.cfg.batch, self.cfg.latent)

    def d_step(self):
        with torch.no_grad():
            fake = self.G(self.noise())
        self.d_opt.zero_grad()
        loss = F.softplus(-self.D(mixture(self.cfg.batch))).mean() + F.softplus(self.D(fake)).mean()
        loss.backward()
        self.d_opt.step()
        return loss.item()

    def g_step(self):
        weights = copy.deepcopy(self.D.state_dict())
        moments = copy.deepcopy(self.d_opt.state_dict())
        for _ in range(self.cfg.unroll):
            self.d_step()
        self.g_opt.zero_grad()
        loss = F.softplus(-self.D(self.G(self.noise()))).mean()
        loss.backward()
        self.g_opt.step()
        # The look-ahead is over: the critic goes on from where it was.
        self.D.load_state_dict(weights)
        self.d_opt.load_state_dict(moments)
        return loss.item()

    def train(self):
        for i in range(self.cfg.iterations):
            d_loss = self.d_step()
            g_loss = self.g_step()
            if i % 10 == 0:
                print(f"{i} d {d_loss:.3f} g {g_loss:.3f}")
        return d_loss, g_loss


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    return UnrolledGAN(cfg).train()


if __name__ == "__main__":
    main()
