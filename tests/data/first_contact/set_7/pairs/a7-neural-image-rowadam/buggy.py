import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.optimizer import Optimizer


class RowAdam(Optimizer):
    """Adam that touches only the rows of a table which received a gradient."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, amsgrad=False):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, amsgrad=amsgrad))

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if len(state) == 0:
                    state["step"] = 0
                    state["exp_avg"] = torch.zeros_like(p)
                    state["exp_avg_sq"] = torch.zeros_like(p)
                    if group["amsgrad"]:
                        state["max_exp_avg_sq"] = torch.zeros_like(p)
                state["step"] += 1
                grad = p.grad.coalesce() if p.grad.is_sparse else p.grad.to_sparse(1).coalesce()
                rows, values = grad.indices()[0], grad.values()
                if rows.numel() == 0:
                    continue
                exp_avg = state["exp_avg"][rows].mul_(beta1).add_(values, alpha=1 - beta1)
                exp_avg_sq = state["exp_avg_sq"][rows].mul_(beta2).addcmul_(values, values, value=1 - beta2)
                state["exp_avg"][rows] = exp_avg
                state["exp_avg_sq"][rows] = exp_avg_sq
                if group["amsgrad"]:
                    max_exp_avg_sq = state["max_exp_avg_sq"][rows]
                    torch.max(max_exp_avg_sq, exp_avg_sq, out=max_exp_avg_sq)
                    denom = max_exp_avg_sq.sqrt().add_(group["eps"])
                else:
                    denom = exp_avg_sq.sqrt().add_(group["eps"])
                bias1 = 1 - beta1 ** state["step"]
                bias2 = 1 - beta2 ** state["step"]
                step_size = group["lr"] * math.sqrt(bias2) / bias1
                p.index_add_(0, rows, exp_avg / denom, alpha=-step_size)
        return loss


class HashGrid(nn.Module):
    """Coordinates to feature rows at several resolutions, as neural fields do."""

    def __init__(self, levels=(4, 8, 16), dim=4):
        super().__init__()
        self.levels = levels
        self.tables = nn.ModuleList(nn.Embedding((n + 1) ** 2, dim, sparse=True) for n in levels)
        for table in self.tables:
            nn.init.uniform_(table.weight, -1e-2, 1e-2)

    def forward(self, xy):
        features = []
        for n, table in zip(self.levels, self.tables):
            cell = (xy * n).floor().clamp(0, n - 1).long()
            frac = xy * n - cell
            value = 0
            for dx in (0, 1):
                for dy in (0, 1):
                    wx = frac[:, 0] if dx else 1 - frac[:, 0]
                    wy = frac[:, 1] if dy else 1 - frac[:, 1]
                    idx = (cell[:, 0] + dx) * (n + 1) + cell[:, 1] + dy
                    value = value + (wx * wy).unsqueeze(-1) * table(idx)
            features.append(value)
        return torch.cat(features, -1)


class NeuralImage(nn.Module):
    def __init__(self):
        super().__init__()
        self.grid = HashGrid()
        self.mlp = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, xy):
        return self.mlp(self.grid(xy)).squeeze(-1)


def picture(xy):
    r = (xy - 0.5).pow(2).sum(-1).sqrt()
    return torch.sin(18 * r) + 0.6 * (xy[:, 0] > 0.55).float()


def main():
    torch.manual_seed(0)
    model = NeuralImage()
    sparse_opt = RowAdam(model.grid.parameters(), lr=2e-2, betas=(0.9, 0.9), amsgrad=True)
    dense_opt = torch.optim.Adam(model.mlp.parameters(), lr=5e-3, amsgrad=True)
    side = torch.linspace(0.01, 0.99, 40)
    full = torch.stack(torch.meshgrid(side, side, indexing="ij"), -1).reshape(-1, 2)
    for step in range(1, 301):
        xy = torch.rand(128, 2)
        target = picture(xy)
        if step % 25 == 0:
            target = target + 4.0 * torch.randn_like(target)
        loss = F.mse_loss(model(xy), target)
        sparse_opt.zero_grad()
        dense_opt.zero_grad()
        loss.backward()
        sparse_opt.step()
        dense_opt.step()
        if step % 100 == 0:
            with torch.no_grad():
                mse = F.mse_loss(model(full), picture(full)).item()
            print(f"iter {step} loss {loss.item():.4f} psnr {10 * math.log10(4 / mse):.2f}")


if __name__ == "__main__":
    main()
