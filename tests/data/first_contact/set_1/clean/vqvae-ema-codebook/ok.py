from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Hyper:
    dim: int = 8
    codes: int = 24
    data: int = 16
    decay: float = 0.95
    beta: float = 0.25
    eps: float = 1e-5
    steps: int = 250
    dead_below: float = 0.05


class VectorQuantizerEMA(nn.Module):
    def __init__(self, hp):
        super().__init__()
        self.hp = hp
        embed = torch.randn(hp.codes, hp.dim)
        self.register_buffer("embedding", embed)
        self.register_buffer("cluster_size", torch.ones(hp.codes))
        self.register_buffer("ema_w", embed.clone())

    def forward(self, z):
        with torch.no_grad():
            indices = torch.cdist(z, self.embedding).argmin(1)
            one_hot = F.one_hot(indices, self.hp.codes).to(z.dtype)
        quantized = self.embedding[indices]
        if self.training:
            self.update_codes(z.detach(), one_hot)
        commit = F.mse_loss(z, quantized)
        return z + (quantized - z).detach(), commit, indices

    @torch.no_grad()
    def update_codes(self, z, one_hot):
        hp = self.hp
        self.cluster_size.mul_(hp.decay).add_(one_hot.sum(0), alpha=1 - hp.decay)
        self.ema_w.mul_(hp.decay).add_(one_hot.T @ z, alpha=1 - hp.decay)
        n = self.cluster_size.sum()
        smoothed = (self.cluster_size + hp.eps) / (n + hp.codes * hp.eps) * n
        self.embedding = self.ema_w / smoothed.unsqueeze(1)
        dead = self.cluster_size < hp.dead_below
        if dead.any():
            pick = torch.randint(0, len(z), (int(dead.sum()),))
            self.embedding[dead] = z[pick]
            self.ema_w[dead] = z[pick]
            self.cluster_size[dead] = 1.0


class VQVAE(nn.Module):
    def __init__(self, hp):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(hp.data, 48), nn.GELU(), nn.Linear(48, hp.dim))
        self.vq = VectorQuantizerEMA(hp)
        self.decoder = nn.Sequential(nn.Linear(hp.dim, 48), nn.GELU(), nn.Linear(48, hp.data))
        self.beta = hp.beta

    def forward(self, x):
        z_q, commit, indices = self.vq(self.encoder(x))
        recon = self.decoder(z_q)
        return F.mse_loss(recon, x) + self.beta * commit, recon, indices


def clusters(hp):
    return 2 * torch.randn(10, hp.data, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def perplexity(model, x):
    model.eval()
    _, recon, indices = model(x)
    model.train()
    p = torch.bincount(indices, minlength=model.vq.hp.codes).float() / len(x)
    return torch.exp(-(p * (p + 1e-10).log()).sum()).item(), F.mse_loss(recon, x).item()


def main():
    torch.manual_seed(5)
    hp = Hyper()
    model, centers = VQVAE(hp), clusters(hp)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=hp.steps)
    for step in range(hp.steps):
        x = centers[torch.randint(0, 10, (64,))] + 0.1 * torch.randn(64, hp.data)
        loss, _, _ = model(x)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if (step + 1) % 50 == 0:
            ppl, recon = perplexity(model, x)
            print(f"step {step + 1}  loss {loss.item():.4f}  recon {recon:.4f}  perplexity {ppl:.2f}")
    return {"recon": recon, "perplexity": ppl}


if __name__ == "__main__":
    main()
