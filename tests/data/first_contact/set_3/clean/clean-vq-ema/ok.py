"""Vector-quantized autoencoder with an EMA codebook."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    dim: int = 12
    code_dim: int = 4
    codes: int = 16
    decay: float = 0.95
    commitment: float = 0.25
    restart_every: int = 40
    steps: int = 240
    batch: int = 64
    lr: float = 3e-3
    seed: int = 14


class EMAQuantizer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.decay = cfg.decay
        self.register_buffer("codebook", torch.randn(cfg.codes, cfg.code_dim))
        self.register_buffer("cluster_size", torch.ones(cfg.codes))
        self.register_buffer("cluster_sum", self.codebook.clone())

    def forward(self, z):
        with torch.no_grad():
            index = torch.cdist(z, self.codebook).argmin(dim=1)
            quantized = F.embedding(index, self.codebook)
            if self.training:
                self.update(z, index)
        commitment = F.mse_loss(z, quantized)
        quantized = z + (quantized - z).detach()
        return quantized, commitment, index

    def update(self, z, index):
        one_hot = F.one_hot(index, len(self.codebook)).type_as(z)
        self.cluster_size.mul_(self.decay).add_(one_hot.sum(0), alpha=1 - self.decay)
        self.cluster_sum.mul_(self.decay).add_(one_hot.T @ z, alpha=1 - self.decay)
        n = self.cluster_size.sum()
        smoothed = (self.cluster_size + 1e-5) / (n + len(self.codebook) * 1e-5) * n
        self.codebook.copy_(self.cluster_sum / smoothed[:, None])

    @torch.no_grad()
    def restart_dead_codes(self, z):
        dead = self.cluster_size < 0.05
        if dead.any():
            pick = z[torch.randint(0, len(z), (int(dead.sum()),))]
            self.codebook[dead] = pick
            self.cluster_sum[dead] = pick
            self.cluster_size[dead] = 1.0
        return int(dead.sum())


class VQAutoencoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(cfg.dim, 32), nn.ReLU(), nn.Linear(32, cfg.code_dim))
        self.quantizer = EMAQuantizer(cfg)
        self.decoder = nn.Sequential(nn.Linear(cfg.code_dim, 32), nn.ReLU(), nn.Linear(32, cfg.dim))

    def forward(self, x):
        z = self.encoder(x)
        q, commitment, index = self.quantizer(z)
        return self.decoder(q), commitment, index, z


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    centres = 2 * torch.randn(10, cfg.dim)
    model = VQAutoencoder(cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    history = []
    for step in range(cfg.steps):
        model.train()
        x = centres[torch.randint(0, 10, (cfg.batch,))] + 0.3 * torch.randn(cfg.batch, cfg.dim)
        recon, commitment, _, z = model(x)
        loss = F.mse_loss(recon, x) + cfg.commitment * commitment
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % cfg.restart_every == cfg.restart_every - 1:
            model.quantizer.restart_dead_codes(z.detach())
        history.append(loss.detach())
        if step % 80 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    model.eval()
    with torch.no_grad():
        x = centres[torch.randint(0, 10, (256,))]
        recon, _, index, _ = model(x)
        error = F.mse_loss(recon, x).item()
    return {"error": error, "codes_used": len(index.unique()), "first": history[0].item()}


if __name__ == "__main__":
    main()
