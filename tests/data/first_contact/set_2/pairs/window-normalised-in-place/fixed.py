"""Forecasting electricity-like series with windows that are normalised one by one."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    history: int = 24
    horizon: int = 6
    hidden: int = 24
    epochs: int = 5
    batch_size: int = 32
    lr: float = 5e-3
    seed: int = 17


def make_series(length, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(length, dtype=torch.float32)
    level = 50 + 0.05 * t
    daily = 12 * torch.sin(2 * torch.pi * t / 24)
    weekly = 5 * torch.sin(2 * torch.pi * t / 168)
    return level + daily + weekly + 1.5 * torch.randn(length, generator=g)


class WindowDataset(Dataset):
    def __init__(self, series, cfg):
        self.series = series
        self.history, self.horizon = cfg.history, cfg.horizon

    def __len__(self):
        return len(self.series) - self.history - self.horizon + 1

    def __getitem__(self, i):
        window = self.series[i:i + self.history + self.horizon].clone()
        mean = window[:self.history].mean()
        std = window[:self.history].std() + 1e-5
        window -= mean
        window /= std
        return window[:self.history].unsqueeze(-1), window[self.history:]


class Forecaster(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.rnn = nn.GRU(1, cfg.hidden, batch_first=True)
        self.out = nn.Linear(cfg.hidden, cfg.horizon)

    def forward(self, x):
        _, h = self.rnn(x)
        return self.out(h[-1])


class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.best, self.bad = patience, float("inf"), 0

    def update(self, value):
        self.bad = 0 if value < self.best else self.bad + 1
        self.best = min(self.best, value)
        return self.bad >= self.patience


def run_epoch(model, loader, optimizer):
    model.train()
    total = 0.0
    for x, y in loader:
        loss = F.smooth_l1_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total += loss.item() * len(x)
    return total / len(loader.dataset)


@torch.no_grad()
def validate(model, series, cfg):
    model.eval()
    errors = []
    for start in range(0, len(series) - cfg.history - cfg.horizon, cfg.horizon):
        past = series[start:start + cfg.history]
        future = series[start + cfg.history:start + cfg.history + cfg.horizon]
        mean, std = past.mean(), past.std() + 1e-5
        forecast = model(((past - mean) / std).view(1, -1, 1)).squeeze(0) * std + mean
        errors.append((forecast - future).abs().mean())
    return torch.stack(errors).mean().item()


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    series = make_series(1000, cfg.seed)
    train, valid = series[:800], make_series(1200, cfg.seed + 1)[800:]
    loader = DataLoader(WindowDataset(train, cfg), cfg.batch_size, shuffle=True, generator=torch.Generator().manual_seed(1))
    model = Forecaster(cfg)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    stopper = EarlyStopping(patience=4)
    for epoch in range(cfg.epochs):
        train_loss, mae = run_epoch(model, loader, optimizer), validate(model, valid, cfg)
        print(f"epoch {epoch} train {train_loss:.4f} val MAE {mae:.3f}")
        if stopper.update(mae):
            break
    return {"best_mae": stopper.best, "last_mae": mae, "train_mean": train.mean().item(), "train_std": train.std().item()}


if __name__ == "__main__":
    main()
