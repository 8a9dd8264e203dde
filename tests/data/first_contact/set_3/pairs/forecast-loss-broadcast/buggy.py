"""One-step-ahead forecasting with a diagonal state-space model and a pinball loss."""
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class Config:
    seq_len: int = 24
    pred_len: int = 1
    d_model: int = 8
    d_state: int = 6
    quantile: float = 0.5
    batch_size: int = 32
    epochs: int = 5
    lr: float = 1e-2
    patience: int = 3
    seed: int = 12


class DiagonalSSM(nn.Module):
    def __init__(self, d_model, d_state):
        super().__init__()
        self.A_log = nn.Parameter(torch.log(torch.linspace(1.0, 4.0, d_state)).repeat(d_model, 1))
        self.log_dt = nn.Parameter(torch.full((d_model,), -2.0))
        self.B = nn.Parameter(torch.randn(d_model, d_state) * 0.3)
        self.C = nn.Parameter(torch.randn(d_model, d_state) * 0.3)
        self.D = nn.Parameter(torch.ones(d_model))

    def forward(self, u):
        dt = self.log_dt.exp()[:, None]
        decay = torch.exp(-dt * self.A_log.exp())
        state = u.new_zeros(u.size(0), *decay.shape)
        outputs = []
        for t in range(u.size(1)):
            state = decay * state + dt * self.B * u[:, t, :, None]
            outputs.append((state * self.C).sum(-1) + self.D * u[:, t])
        return torch.stack(outputs, dim=1)


class Forecaster(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.proj_in = nn.Linear(1, cfg.d_model)
        self.ssm = DiagonalSSM(cfg.d_model, cfg.d_state)
        self.norm = nn.LayerNorm(cfg.d_model)
        self.head = nn.Linear(cfg.d_model, cfg.pred_len)

    def forward(self, x):
        h = self.proj_in(x)
        h = self.norm(h + self.ssm(h))
        return self.head(h[:, -1])


class QuantileLoss(nn.Module):
    def __init__(self, quantile):
        super().__init__()
        self.quantile = quantile

    def forward(self, pred, target):
        error = target - pred
        return torch.maximum(self.quantile * error, (self.quantile - 1) * error).mean()


class WindowDataset:
    def __init__(self, cfg, length, seed):
        gen = torch.Generator().manual_seed(seed)
        t = torch.arange(length, dtype=torch.float32)
        series = torch.sin(t / 3) + 0.5 * torch.sin(t / 7 + 1) + 0.05 * torch.randn(length, generator=gen)
        count = length - cfg.seq_len - cfg.pred_len + 1
        self.x = torch.stack([series[i:i + cfg.seq_len] for i in range(count)]).unsqueeze(-1)
        target = torch.stack([series[i + cfg.seq_len:i + cfg.seq_len + cfg.pred_len] for i in range(count)])
        self.y = target.squeeze(-1) if cfg.pred_len == 1 else target

    def batches(self, size, gen=None):
        order = torch.arange(len(self.x)) if gen is None else torch.randperm(len(self.x), generator=gen)
        for part in order.split(size):
            yield self.x[part], self.y[part]


@torch.no_grad()
def forecast(model, data, cfg):
    model.eval()
    pred = torch.cat([model(x) for x, _ in data.batches(cfg.batch_size)])
    return pred.flatten(), data.y.flatten()


def train(model, train_set, cfg, gen):
    criterion = QuantileLoss(cfg.quantile)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    for epoch in range(cfg.epochs):
        model.train()
        total, batches = 0.0, 0
        for x_batch, y_batch in train_set.batches(cfg.batch_size, gen):
            optimizer.zero_grad()
            pred = model(x_batch)
            loss = criterion(pred, y_batch)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total, batches = total + loss.item(), batches + 1
        scheduler.step()
        print(f"epoch {epoch} loss {total / batches:.4f}")


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed)
    train_set, test_set = WindowDataset(cfg, 400, 1), WindowDataset(cfg, 150, 2)
    model = Forecaster(cfg)
    train(model, train_set, cfg, gen)
    pred, truth = forecast(model, test_set, cfg)
    mae = (pred - truth).abs().mean().item()
    print(f"test MAE {mae:.4f} spread {pred.std().item():.4f} of {truth.std().item():.4f}")
    return {"mae": mae, "pred_std": pred.std().item()}


if __name__ == "__main__":
    main()
