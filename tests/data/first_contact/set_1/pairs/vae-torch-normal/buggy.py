from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split


@dataclass
class Config:
    data_dim: int = 24
    hidden: int = 64
    latent: int = 4
    epochs: int = 12
    batch_size: int = 64
    lr: float = 2e-3
    beta: float = 0.05
    patience: int = 6
    seed: int = 8


class Encoder(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(cfg.data_dim, cfg.hidden), nn.ReLU(), nn.Linear(cfg.hidden, cfg.hidden), nn.ReLU())
        self.mu = nn.Linear(cfg.hidden, cfg.latent)
        self.log_var = nn.Linear(cfg.hidden, cfg.latent)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x)
        return self.mu(h), self.log_var(h).clamp(-8.0, 8.0)


class Decoder(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(cfg.latent, cfg.hidden), nn.ReLU(), nn.Linear(cfg.hidden, cfg.data_dim))

    def forward(self, z: Tensor) -> Tensor:
        return self.net(z)


class VAE(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.cfg = cfg
        self.encoder, self.decoder = Encoder(cfg), Decoder(cfg)

    def sample_latent(self, mu: Tensor, log_var: Tensor) -> Tensor:
        if not self.training:
            return mu
        return torch.normal(mu, torch.exp(0.5 * log_var))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        mu, log_var = self.encoder(x)
        recon = self.decoder(self.sample_latent(mu, log_var))
        recon_loss = F.mse_loss(recon, x, reduction="none").sum(1).mean()
        kl = -0.5 * (1 + log_var - mu.pow(2) - log_var.exp()).sum(1).mean()
        return {"loss": recon_loss + self.cfg.beta * kl, "recon": recon_loss, "kl": kl}


class EarlyStopping:
    def __init__(self, patience: int, path: str):
        self.patience, self.path, self.best, self.bad = patience, path, float("inf"), 0

    def __call__(self, value: float, model: nn.Module) -> bool:
        if value < self.best:
            self.best, self.bad = value, 0
            torch.save(model.state_dict(), self.path)
        else:
            self.bad += 1
        return self.bad >= self.patience


def make_loaders(cfg: Config) -> tuple[DataLoader, DataLoader]:
    factors = torch.randn(1200, 3)
    mixing = torch.randn(3, cfg.data_dim)
    data = torch.tanh(factors @ mixing) + 0.05 * torch.randn(1200, cfg.data_dim)
    train, val = random_split(TensorDataset(data), [1000, 200])
    return DataLoader(train, cfg.batch_size, shuffle=True), DataLoader(val, 200)


def run_epoch(model: VAE, loader: DataLoader, optimizer: torch.optim.Optimizer | None = None) -> dict[str, float]:
    model.train(optimizer is not None)
    sums, count = {}, 0
    with torch.set_grad_enabled(optimizer is not None):
        for (x,) in loader:
            out = model(x)
            if optimizer is not None:
                optimizer.zero_grad()
                out["loss"].backward()
                optimizer.step()
            for k, v in out.items():
                sums[k] = sums.get(k, 0.0) + v.item() * len(x)
            count += len(x)
    return {k: v / count for k, v in sums.items()}


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    train_loader, val_loader = make_loaders(cfg)
    model = VAE(cfg)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(asdict(cfg), f)
        stopper = EarlyStopping(cfg.patience, os.path.join(folder, "best.pt"))
        for epoch in range(cfg.epochs):
            train = run_epoch(model, train_loader, optimizer)
            val = run_epoch(model, val_loader)
            if (epoch + 1) % 4 == 0:
                print(f"epoch {epoch + 1}  train {train['loss']:.3f}  val recon {val['recon']:.3f}  kl {val['kl']:.3f}")
            if stopper(val["recon"], model):
                break
        model.load_state_dict(torch.load(stopper.path))
    return run_epoch(model, val_loader)


if __name__ == "__main__":
    main()
