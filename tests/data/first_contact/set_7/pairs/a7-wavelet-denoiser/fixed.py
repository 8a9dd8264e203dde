import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import Function

DB2 = [-0.12940952255092145, 0.22414386804185735, 0.836516303737469, 0.48296291314459025]


def filter_bank(dec_lo):
    lo = torch.tensor(dec_lo, dtype=torch.float64)
    hi = torch.flip(lo, [0]) * torch.tensor([(-1.0) ** (k + 1) for k in range(len(dec_lo))], dtype=torch.float64)
    return torch.stack([lo, hi])


def pad_amount(filters):
    return filters.shape[-1] - 2


class DWT1DFunction(Function):
    """Single level analysis; the border is continued by replication."""

    @staticmethod
    def forward(ctx, x, filters):
        pad = pad_amount(filters)
        ctx.save_for_backward(filters)
        ctx.length = x.shape[-1]
        padded = F.pad(x, (pad, pad), mode="replicate")
        return F.conv1d(padded, filters.unsqueeze(1), stride=2)

    @staticmethod
    def backward(ctx, grad_output):
        (filters,) = ctx.saved_tensors
        pad, length = pad_amount(filters), ctx.length
        full = F.conv_transpose1d(grad_output, filters.unsqueeze(1), stride=2)
        full = F.pad(full, (0, length + 2 * pad - full.shape[-1]))
        grad = full[..., pad:pad + length].contiguous()
        grad[..., 0] += full[..., :pad].sum(-1)
        grad[..., -1] += full[..., pad + length:].sum(-1)
        return grad, None


def target(x):
    return DWT1DFunction.apply(x, filter_bank(DB2))


def make_inputs():
    g = torch.Generator().manual_seed(0)
    return (torch.randn(2, 1, 12, dtype=torch.float64, generator=g, requires_grad=True),)


class DWT1D(nn.Module):
    def __init__(self, wave=DB2):
        super().__init__()
        self.register_buffer("filters", filter_bank(wave).float())

    def forward(self, x):
        return DWT1DFunction.apply(x, self.filters)


class SubbandLoss(nn.Module):
    def __init__(self, levels=2, weight=0.5):
        super().__init__()
        self.dwt = DWT1D()
        self.levels, self.weight = levels, weight

    def forward(self, estimate, clean):
        loss = 0.0
        a, b = estimate, clean
        for level in range(self.levels):
            a, b = self.dwt(a), self.dwt(b)
            loss = loss + self.weight ** level * F.l1_loss(a, b)
            a, b = a[:, :1], b[:, :1]
        return loss + F.l1_loss(a, b)


class FrameDenoiser(nn.Module):
    def __init__(self, frame=24, hidden=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(frame, hidden), nn.Tanh(), nn.Linear(hidden, hidden),
                                 nn.Tanh(), nn.Linear(hidden, frame))

    def forward(self, x):
        return x + self.net(x)


def frames(n, length, generator):
    t = torch.arange(length) / 100.0
    f = 2 + 10 * torch.rand(n, 1, 1, generator=generator)
    phase = 2 * math.pi * torch.rand(n, 1, 1, generator=generator)
    clean = torch.sin(2 * math.pi * f * t + phase)
    return clean + 0.3 * torch.randn(clean.shape, generator=generator), clean


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = FrameDenoiser()
    criterion = SubbandLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    noisy_val, clean_val = frames(256, 24, generator)
    for step in range(1, 401):
        noisy, clean = frames(32, 24, generator)
        loss = criterion(model(noisy), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            with torch.no_grad():
                err = (model(noisy_val) - clean_val).abs().mean(dim=(0, 1))
            edge = torch.cat([err[:2], err[-2:]]).mean().item()
            print(f"step {step} loss {loss.item():.4f} mae {err.mean().item():.4f} edge {edge:.4f}")


if __name__ == "__main__":
    main()
