"""Anomaly detector on feature vectors with a sparse mixture of experts and a balancing term."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    dim: int = 16
    experts: int = 4
    layers: int = 2
    batch_size: int = 64
    steps: int = 100
    lr: float = 3e-3
    balance_coef: float = 0.5
    log_every: int = 25
    seed: int = 9


class Expert(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))

    def forward(self, x):
        return self.net(x)


class MoELayer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.num_experts = cfg.experts
        self.norm = nn.LayerNorm(cfg.dim)
        self.router = nn.Linear(cfg.dim, cfg.experts)
        self.experts = nn.ModuleList(Expert(cfg.dim) for _ in range(cfg.experts))
        with torch.no_grad():
            self.router.bias.copy_(torch.linspace(1.5, 0.0, cfg.experts))

    def balance_loss(self, probs):
        load = probs.mean(dim=0)
        return self.num_experts * (load - 1 / self.num_experts).pow(2).sum()

    def forward(self, x):
        h = self.norm(x)
        probs = torch.softmax(self.router(h), dim=-1)
        gate, index = probs.max(dim=-1)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            rows = (index == e).nonzero().squeeze(1)
            if len(rows):
                out = out.index_add(0, rows, gate[rows, None] * expert(h[rows]))
        return x + out, self.balance_loss(probs), index


class AnomalyNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.layers = nn.ModuleList(MoELayer(cfg) for _ in range(cfg.layers))
        self.recon = nn.Linear(cfg.dim, cfg.dim)

    def forward(self, x):
        balance, routes = 0.0, []
        h = x
        for layer in self.layers:
            h, aux, index = layer(h)
            balance = balance + aux
            routes.append(index)
        return self.recon(h), balance / len(self.layers), routes


class Synthetic:
    def __init__(self, cfg):
        self.gen = torch.Generator().manual_seed(cfg.seed)
        self.centres = torch.randn(6, cfg.dim, generator=self.gen)

    def sample(self, n):
        which = torch.randint(0, len(self.centres), (n,), generator=self.gen)
        clean = self.centres[which]
        return clean + 0.5 * torch.randn(clean.shape, generator=self.gen), clean


@torch.no_grad()
def expert_usage(model, data, cfg):
    model.eval()
    _, _, routes = model(data.sample(256)[0])
    model.train()
    return [torch.bincount(r, minlength=cfg.experts).float().div(len(r)) for r in routes]


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    data, model = Synthetic(cfg), AnomalyNet(cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, cfg.steps)
    for step in range(cfg.steps):
        noisy, clean = data.sample(cfg.batch_size)
        recon, balance, _ = model(noisy)
        task = F.mse_loss(recon, clean)
        loss = task + cfg.balance_coef * balance
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if step % cfg.log_every == 0 or step == cfg.steps - 1:
            print(f"step {step} task {task.item():.4f} balance {balance.item():.4f}")
    usage = expert_usage(model, data, cfg)
    print("busiest expert", [round(u.max().item(), 3) for u in usage])
    return {"max_usage": max(u.max().item() for u in usage), "balance": balance.item()}


if __name__ == "__main__":
    main()
