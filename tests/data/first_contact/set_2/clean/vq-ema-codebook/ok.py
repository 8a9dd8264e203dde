"""VQ-VAE whose codebook follows the encoder by moving averages, with restarts of dead codes."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    dim: int = 18
    latent: int = 6
    codes: int = 20
    batch: int = 64
    epochs: int = 4
    steps: int = 25
    decay: float = 0.9
    beta: float = 0.25
    restart_below: float = 0.1
    lr: float = 3e-3
    seed: int = 35


class EMAQuantizer(nn.Module):
    """No optimizer owns the codebook: it is a buffer that is written in forward."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.register_buffer("codebook", torch.randn(cfg.codes, cfg.latent))
        self.register_buffer("cluster_size", torch.ones(cfg.codes))
        self.register_buffer("cluster_sum", self.codebook.clone())

    @torch.no_grad()
    def follow(self, flat, onehot):
        decay = self.cfg.decay
        self.cluster_size.mul_(decay).add_(onehot.sum(0), alpha=1 - decay)
        self.cluster_sum.mul_(decay).add_(onehot.t() @ flat, alpha=1 - decay)
        self.codebook.copy_(self.cluster_sum / self.cluster_size.clamp(min=1e-5).unsqueeze(1))
        dead = self.cluster_size < self.cfg.restart_below
        if dead.any():
            fresh = flat[torch.randint(len(flat), (int(dead.sum()),))]
            self.codebook[dead] = fresh
            self.cluster_sum[dead] = fresh
            self.cluster_size[dead] = 1.0

    def forward(self, z):
        flat = z.detach()
        index = torch.cdist(flat, self.codebook).argmin(1)
        quantized = self.codebook[index]
        commitment = F.mse_loss(z, quantized)
        if self.training:
            self.follow(flat, F.one_hot(index, self.cfg.codes).float())
        return z + (quantized - z).detach(), commitment, index


class VQVAE(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(cfg.dim, 40), nn.SiLU(), nn.Linear(40, cfg.latent))
        self.quantizer = EMAQuantizer(cfg)
        self.decoder = nn.Sequential(nn.Linear(cfg.latent, 40), nn.SiLU(), nn.Linear(40, cfg.dim))

    def forward(self, x):
        z, commitment, index = self.quantizer(self.encoder(x))
        return self.decoder(z), commitment, index


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    centres = torch.randn(10, cfg.dim)

    def sample(n):
        return centres[torch.randint(10, (n,))] + 0.1 * torch.randn(n, cfg.dim)

    model = VQVAE(cfg)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    for epoch in range(cfg.epochs):
        model.train()
        for _ in range(cfg.steps):
            x = sample(cfg.batch)
            recon, commitment, _ = model(x)
            loss = F.mse_loss(recon, x) + cfg.beta * commitment
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            x = sample(200)
            recon, _, index = model(x)
            val = F.mse_loss(recon, x).item()
        print(f"epoch {epoch} loss {loss.item():.4f} val {val:.4f} codes {index.unique().numel()}")
    return val


if __name__ == "__main__":
    main()
