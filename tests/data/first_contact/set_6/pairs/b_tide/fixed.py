"""Dense encoder forecaster with one head per target and a multi-target loss."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class ResidualBlock(nn.Module):
    def __init__(self, in_dim, out_dim, hidden, dropout=0.1):
        super().__init__()
        self.dense = nn.Sequential(
            nn.Linear(in_dim, hidden), nn.ReLU(), nn.Linear(hidden, out_dim),
            nn.Dropout(dropout))
        self.skip = nn.Linear(in_dim, out_dim)
        self.norm = nn.LayerNorm(out_dim)

    def forward(self, x):
        return self.norm(self.dense(x) + self.skip(x))


class MultiLoss(nn.Module):
    def __init__(self, losses, weights=None):
        super().__init__()
        self.losses = losses
        self.weights = weights or [1.0] * len(losses)

    def forward(self, predictions, targets):
        return sum(w * fn(p, t) for w, fn, p, t in
                   zip(self.weights, self.losses, predictions, targets))


class TiDE(nn.Module):
    def __init__(self, lookback, horizon, n_targets, n_cov, hidden=48):
        super().__init__()
        self.horizon, self.n_targets = horizon, n_targets
        self.encoder = ResidualBlock(
            lookback * n_targets + horizon * n_cov, hidden, hidden)
        self.decoder = ResidualBlock(hidden, horizon * n_targets, hidden)
        self.lookback_skip = nn.Linear(lookback, horizon)

    def transform_output(self, prediction, scale):
        if isinstance(prediction, list):
            return [p * s[:, None] for p, s in zip(prediction, scale)]
        return prediction * scale[0][:, None]

    def forward(self, batch):
        past, cov = batch["past"], batch["cov"]
        scale = past.abs().mean(dim=1).clamp(min=1e-3)
        past = past / scale[:, None, :]
        x = torch.cat([past.flatten(1), cov.flatten(1)], dim=1)
        out = self.decoder(self.encoder(x))
        out = out.view(-1, self.horizon, self.n_targets)
        out = out + self.lookback_skip(past.transpose(1, 2)).transpose(1, 2)
        if self.n_targets > 1:
            prediction = [out[..., i] for i in range(self.n_targets)]
            prediction = [p.clone() for p in prediction]
            scales = [scale[:, i] for i in range(self.n_targets)]
        else:
            prediction, scales = out[..., 0], [scale[:, 0]]
        return self.transform_output(prediction, scales)


def make_batches(n_batches, lookback, horizon, batch=32, seed=0):
    g = torch.Generator().manual_seed(seed)
    steps = torch.arange(lookback + horizon).float()
    for _ in range(n_batches):
        phase = torch.rand(batch, 1, generator=g) * 6.28
        amp = torch.rand(batch, 1, generator=g) + 0.5
        a = amp * torch.sin(steps / 3 + phase) + 2
        b = amp * torch.cos(steps / 3 + phase) + 1
        series = torch.stack([a, b], dim=-1)
        series = series + 0.05 * torch.randn(series.shape, generator=g)
        cov = torch.stack([torch.sin(steps / 3), torch.cos(steps / 3)], dim=-1)
        yield {
            "past": series[:, :lookback],
            "cov": cov[lookback:].expand(batch, horizon, 2),
            "target": [series[:, lookback:, i] for i in range(2)],
        }


def main():
    torch.manual_seed(0)
    lookback, horizon = 24, 8
    model = TiDE(lookback, horizon, n_targets=2, n_cov=2)
    loss_fn = MultiLoss([F.l1_loss, F.mse_loss])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.95)
    losses = []
    for epoch in range(10):
        model.train()
        total = 0.0
        for batch in make_batches(15, lookback, horizon, seed=epoch):
            optimizer.zero_grad()
            loss = loss_fn(model(batch), batch["target"])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.item()
        scheduler.step()
        losses.append(total / 15)
        print(f"epoch {epoch}  train loss {losses[-1]:.4f}")
    return model, losses


if __name__ == "__main__":
    main()
