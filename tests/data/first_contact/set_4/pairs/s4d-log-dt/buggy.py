"""Diagonal state space model (S4D style) that regresses the mean of a slow signal hidden in noise."""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Config:
    length: int = 128
    d_model: int = 16
    d_state: int = 8
    n_layers: int = 2
    dt_min: float = 0.2
    dt_max: float = 0.8
    train_size: int = 256
    batch: int = 32
    epochs: int = 6
    lr: float = 1e-2
    seed: int = 0


class S4DKernel(nn.Module):
    def __init__(self, d_model, d_state, dt_min, dt_max):
        super().__init__()
        self.log_dt = nn.Parameter(torch.rand(d_model) * (math.log(dt_max) - math.log(dt_min))) + math.log(dt_min)
        self.log_A_real = nn.Parameter(torch.log(0.5 * torch.ones(d_model, d_state)))
        self.A_imag = nn.Parameter(math.pi * torch.arange(d_state).float().repeat(d_model, 1) / d_state)
        self.C = nn.Parameter(torch.randn(d_model, d_state, 2) * d_state ** -0.5)

    def forward(self, length):
        dt = torch.exp(self.log_dt)
        A = torch.complex(-torch.exp(self.log_A_real), self.A_imag)
        dtA = A * dt.unsqueeze(-1)
        C = torch.view_as_complex(self.C) * (torch.exp(dtA) - 1.0) / A
        steps = dtA.unsqueeze(-1) * torch.arange(length)
        return 2 * torch.einsum("hn,hnl->hl", C, torch.exp(steps)).real


class S4D(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.kernel = S4DKernel(cfg.d_model, cfg.d_state, cfg.dt_min, cfg.dt_max)
        self.D = nn.Parameter(torch.randn(cfg.d_model))
        self.out = nn.Conv1d(cfg.d_model, 2 * cfg.d_model, 1)

    def forward(self, u):
        n = u.size(-1)
        k = torch.fft.rfft(self.kernel(n), n=2 * n)
        y = torch.fft.irfft(torch.fft.rfft(u, n=2 * n) * k, n=2 * n)[..., :n]
        return F.glu(self.out(F.gelu(y + u * self.D.unsqueeze(-1))), dim=1)


class Regressor(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.encoder = nn.Linear(1, cfg.d_model)
        self.layers = nn.ModuleList(S4D(cfg) for _ in range(cfg.n_layers))
        self.norms = nn.ModuleList(nn.LayerNorm(cfg.d_model) for _ in range(cfg.n_layers))
        self.decoder = nn.Linear(cfg.d_model, 1)

    def forward(self, x):
        x = self.encoder(x)
        for layer, norm in zip(self.layers, self.norms):
            x = norm(x + layer(x.transpose(1, 2)).transpose(1, 2))
        return self.decoder(x[:, -1]).squeeze(-1)


def make_data(n, cfg, seed):
    g = torch.Generator().manual_seed(seed)
    level = torch.randn(n, 1, generator=g)
    x = level + 2.0 * torch.randn(n, cfg.length, generator=g)
    return TensorDataset(x.unsqueeze(-1), level.squeeze(-1))


def setup_optimizer(model, lr):
    slow = [p for n, p in model.named_parameters() if "kernel" in n and not n.endswith("C")]
    ids = {id(p) for p in slow}
    rest = [p for p in model.parameters() if id(p) not in ids]
    return torch.optim.AdamW([{"params": rest, "weight_decay": 0.01},
                              {"params": slow, "weight_decay": 0.0}], lr=lr)


@torch.no_grad()
def validate(model, loader):
    model.eval()
    losses = [F.mse_loss(model(x), y).item() for x, y in loader]
    model.train()
    return sum(losses) / len(losses)


def main(cfg=None):
    cfg = cfg or Config()
    torch.manual_seed(cfg.seed)
    model = Regressor(cfg)
    loader = DataLoader(make_data(cfg.train_size, cfg, 1), batch_size=cfg.batch, shuffle=True)
    val = DataLoader(make_data(128, cfg, 2), batch_size=64)
    optimizer = setup_optimizer(model, cfg.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, cfg.epochs)
    for epoch in range(cfg.epochs):
        for x, y in loader:
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        scheduler.step()
        score = validate(model, val)
        if epoch % 2 == 1:
            print(f"epoch {epoch} train {loss.item():.4f} val {score:.4f}")
    return {"model": model, "val": score}


if __name__ == "__main__":
    main()
