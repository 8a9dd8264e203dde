import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd.function import once_differentiable


def as_rows(buf, n):
    return torch.as_strided(buf, (buf.numel() // n, n), (n, 1))


def rms_norm_kernel(x, w, eps):
    xr = as_rows(x, w.numel())
    inv_rms = torch.rsqrt(xr.square().mean(1, keepdim=True) + eps)
    return (xr * inv_rms * w).view(x.shape), inv_rms


def rms_norm_grad_dx_kernel(x, dy, inv_rms, w):
    n = w.numel()
    xr, dyr = as_rows(x, n), as_rows(dy, n)
    norm = xr * inv_rms
    wdy = dyr * w
    return (inv_rms * (wdy - norm * (norm * wdy).mean(1, keepdim=True))).view(x.shape)


def rms_norm_grad_dw_kernel(x, dy, inv_rms, n):
    return (as_rows(dy, n) * as_rows(x, n) * inv_rms).sum(0)


class RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        x = x.contiguous()
        weight = weight.contiguous()
        y, inv_rms = rms_norm_kernel(x, weight, eps)
        ctx.save_for_backward(x, inv_rms, weight)
        ctx.n = weight.numel()
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, inv_rms, weight = ctx.saved_tensors
        dx = rms_norm_grad_dx_kernel(x, dy, inv_rms, weight)
        dw = rms_norm_grad_dw_kernel(x, dy, inv_rms, ctx.n)
        return dx, dw, None


def rms_norm(x, weight, eps=1e-5):
    return RmsNorm.apply(x, weight, eps)


class ChannelNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return rms_norm(x, self.weight)


class TemporalMixer(nn.Module):
    def __init__(self, seq_len, dim, dropout=0.0):
        super().__init__()
        self.norm_t = ChannelNorm(dim)
        self.time = nn.Sequential(nn.Linear(seq_len, 2 * seq_len), nn.GELU(), nn.Linear(2 * seq_len, seq_len))
        self.norm_c = ChannelNorm(dim)
        self.channel = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        x = x + self.drop(self.time(self.norm_t(x).transpose(1, 2)).transpose(1, 2))
        return x + self.drop(self.channel(self.norm_c(x)))


class Forecaster(nn.Module):
    def __init__(self, n_series, lookback, horizon, dim=24, depth=2):
        super().__init__()
        self.embed = nn.Linear(n_series, dim)
        self.blocks = nn.ModuleList(TemporalMixer(lookback, dim) for _ in range(depth))
        self.norm = ChannelNorm(dim)
        self.horizon = nn.Linear(lookback, horizon)
        self.head = nn.Linear(dim, n_series)

    def forward(self, x):
        mean = x.mean(1, keepdim=True)
        z = self.embed(x - mean)
        for block in self.blocks:
            z = block(z)
        z = self.horizon(self.norm(z).transpose(1, 2)).transpose(1, 2)
        return self.head(z) + mean


def make_series(length, n_series, generator):
    t = torch.arange(length, dtype=torch.float32)[:, None]
    period = torch.tensor([8.0, 12.0, 16.0, 24.0])[:n_series]
    phase = 2 * math.pi * torch.rand(n_series, generator=generator)
    wave = torch.sin(2 * math.pi * t / period + phase)
    return wave + 0.5 * wave.roll(1, dims=1) + 0.05 * torch.randn(length, n_series, generator=generator)


def windows(series, lookback, horizon):
    n = len(series) - lookback - horizon
    x = torch.stack([series[i : i + lookback] for i in range(n)])
    y = torch.stack([series[i + lookback : i + lookback + horizon] for i in range(n)])
    return x, y


def target(x, weight):
    return rms_norm(x, weight)


def make_inputs():
    gen = torch.Generator().manual_seed(2)
    x = torch.randn(2, 3, 4, generator=gen, dtype=torch.float64).requires_grad_()
    w = (1 + 0.1 * torch.randn(4, generator=gen, dtype=torch.float64)).requires_grad_()
    return x, w


def main():
    torch.manual_seed(31)
    gen = torch.Generator().manual_seed(32)
    lookback, horizon = 32, 8
    x, y = windows(make_series(500, 4, gen), lookback, horizon)
    split = int(0.8 * len(x))
    model = Forecaster(4, lookback, horizon)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-3)
    for epoch in range(4):
        model.train()
        total = 0.0
        for idx in torch.randperm(split, generator=gen).split(32):
            loss = F.mse_loss(model(x[idx]), y[idx])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(idx)
        model.eval()
        with torch.no_grad():
            val = F.mse_loss(model(x[split:]), y[split:]).item()
        print(f"epoch {epoch}: train mse {total / split:.4f}, val mse {val:.4f}")


if __name__ == "__main__":
    main()
