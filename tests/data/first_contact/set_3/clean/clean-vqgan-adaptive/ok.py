"""VQ autoencoder with a discriminator that joins late and a weight from two gradients of the last layer."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    data: int = 12
    code: int = 6
    codes: int = 16
    hidden: int = 32
    disc_start: int = 60
    disc_weight: float = 0.5
    decay: float = 0.95
    beta: float = 0.25
    batch: int = 48
    steps: int = 140
    seed: int = 5


class EMAQuantizer(nn.Module):
    """The codebook moves by averages under no_grad; it has no gradient and belongs to no optimizer."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.register_buffer("embed", torch.randn(cfg.codes, cfg.code))
        self.register_buffer("cluster_size", torch.ones(cfg.codes))
        self.register_buffer("embed_avg", self.embed.clone())

    def forward(self, z):
        idx = torch.cdist(z.detach(), self.embed).argmin(-1)
        q = self.embed[idx]
        if self.training:
            with torch.no_grad():
                onehot = F.one_hot(idx, self.cfg.codes).float()
                self.cluster_size.mul_(self.cfg.decay).add_(onehot.sum(0), alpha=1 - self.cfg.decay)
                self.embed_avg.mul_(self.cfg.decay).add_(onehot.T @ z, alpha=1 - self.cfg.decay)
                self.embed.copy_(self.embed_avg / (self.cluster_size[:, None] + 1e-3))
        commit = F.mse_loss(z, q)
        return z + (q - z).detach(), commit


class Autoencoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(cfg.data, cfg.hidden), nn.ReLU(), nn.Linear(cfg.hidden, cfg.code))
        self.quantize = EMAQuantizer(cfg)
        self.decoder = nn.Sequential(nn.Linear(cfg.code, cfg.hidden), nn.ReLU(), nn.Linear(cfg.hidden, cfg.data))

    def forward(self, x):
        q, commit = self.quantize(self.encoder(x))
        return self.decoder(q), commit

    @property
    def last_layer(self):
        return self.decoder[-1].weight


class Trainer:
    def __init__(self, cfg):
        torch.manual_seed(cfg.seed)
        self.cfg = cfg
        self.ae = Autoencoder(cfg)
        self.disc = nn.Sequential(nn.Linear(cfg.data, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
        self.opt_ae = torch.optim.Adam(self.ae.parameters(), lr=2e-3, betas=(0.5, 0.9))
        self.opt_disc = torch.optim.Adam(self.disc.parameters(), lr=1e-3, betas=(0.5, 0.9))
        self.basis = torch.randn(4, cfg.data)

    def batch(self):
        return torch.tanh(torch.randn(self.cfg.batch, 4) @ self.basis)

    def adaptive_weight(self, nll, g_loss):
        (a,) = torch.autograd.grad(nll, self.ae.last_layer, retain_graph=True)
        (b,) = torch.autograd.grad(g_loss, self.ae.last_layer, retain_graph=True)
        return (a.norm() / (b.norm() + 1e-4)).clamp(0, 1e3).detach() * self.cfg.disc_weight

    def step(self, i):
        x = self.batch()
        recon, commit = self.ae(x)
        nll = (recon - x).abs().mean()
        loss = nll + self.cfg.beta * commit
        if i >= self.cfg.disc_start:
            g_loss = -self.disc(recon).mean()
            loss = loss + self.adaptive_weight(nll, g_loss) * g_loss
        self.opt_ae.zero_grad(set_to_none=True)
        loss.backward()
        self.opt_ae.step()
        if i >= self.cfg.disc_start:
            real, fake = self.disc(x), self.disc(recon.detach())
            d_loss = 0.5 * (F.relu(1 - real).mean() + F.relu(1 + fake).mean())
            self.opt_disc.zero_grad(set_to_none=True)
            d_loss.backward()
            self.opt_disc.step()
        return nll.item()


def main():
    trainer = Trainer(Config())
    for i in range(trainer.cfg.steps):
        nll = trainer.step(i)
        if i % 35 == 34:
            print(f"step {i + 1} recon {nll:.4f}")
    trainer.ae.eval()
    with torch.no_grad():
        x = trainer.batch()
        return (trainer.ae(x)[0] - x).abs().mean().item()


if __name__ == "__main__":
    main()
