"""VQ-VAE whose codebook is a buffer, learned by moving averages with revival of dead codes."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    dim: int = 10
    code_dim: int = 4
    n_codes: int = 16
    decay: float = 0.95
    commitment: float = 0.25
    revive_below: float = 0.3
    steps: int = 250
    batch_size: int = 64
    lr: float = 2e-3
    seed: int = 10


class EMAQuantizer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        embed = torch.randn(cfg.n_codes, cfg.code_dim)
        self.register_buffer("embed", embed)
        self.register_buffer("embed_avg", embed.clone())
        self.register_buffer("cluster_size", torch.ones(cfg.n_codes))

    @torch.no_grad()
    def update(self, x, idx):
        onehot = F.one_hot(idx, self.cfg.n_codes).float()
        self.cluster_size.mul_(self.cfg.decay).add_(onehot.sum(0), alpha=1 - self.cfg.decay)
        self.embed_avg.mul_(self.cfg.decay).add_(onehot.T @ x, alpha=1 - self.cfg.decay)
        self.embed.copy_(self.embed_avg / self.cluster_size.clamp(min=1e-3)[:, None])
        dead = self.cluster_size < self.cfg.revive_below
        if dead.any():
            fresh = x[torch.randint(0, len(x), (int(dead.sum()),))]
            self.embed[dead] = fresh
            self.embed_avg[dead] = fresh
            self.cluster_size[dead] = 1.0

    def forward(self, x):
        idx = torch.cdist(x.detach(), self.embed).argmin(-1)
        q = F.embedding(idx, self.embed)
        commit = F.mse_loss(x, q)
        if self.training:
            self.update(x.detach(), idx)
        return x + (q - x).detach(), commit, idx


class VQVAE(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(cfg.dim, 32), nn.ReLU(), nn.Linear(32, cfg.code_dim))
        self.quantizer = EMAQuantizer(cfg)
        self.decoder = nn.Sequential(nn.Linear(cfg.code_dim, 32), nn.ReLU(), nn.Linear(32, cfg.dim))

    def forward(self, x):
        z, commit, idx = self.quantizer(self.encoder(x))
        return self.decoder(z), commit, idx


def batch(n, centers, gen):
    y = torch.randint(0, len(centers), (n,), generator=gen)
    return centers[y] + 0.1 * torch.randn(n, centers.size(1), generator=gen)


@torch.no_grad()
def perplexity(model, x):
    training = model.training
    model.eval()
    _, _, idx = model(x)
    model.train(training)
    p = torch.bincount(idx, minlength=model.quantizer.cfg.n_codes).float() / len(idx)
    return torch.exp(-(p * (p + 1e-9).log()).sum()).item()


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed)
    centers = torch.randn(12, cfg.dim, generator=gen)
    model = VQVAE(cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    for step in range(cfg.steps):
        x = batch(cfg.batch_size, centers, gen)
        recon, commit, _ = model(x)
        loss = F.mse_loss(recon, x) + cfg.commitment * commit
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f} perplexity {perplexity(model, batch(300, centers, gen)):.2f}")
    result = {"loss": round(loss.item(), 4), "perplexity": round(perplexity(model, batch(300, centers, gen)), 3)}
    print(result)
    return result


if __name__ == "__main__":
    main()
