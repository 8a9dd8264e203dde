"""Animate a vector sketch: local point offsets and one global transform per frame."""
import argparse
import math

import torch
from torch import nn


def parse(argv=()):
    parser = argparse.ArgumentParser()
    parser.add_argument("--frames", type=int, default=6)
    parser.add_argument("--points", type=int, default=12)
    parser.add_argument("--num_iter", type=int, default=120)
    parser.add_argument("--lr_local", type=float, default=2e-3)
    parser.add_argument("--lr_global", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=2)
    return parser.parse_args(list(argv))


class PointMLP(nn.Module):
    def __init__(self, frames, points, dim=32):
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(2, dim), nn.LeakyReLU(), nn.Linear(dim, dim), nn.LeakyReLU())
        self.local_head = nn.Linear(dim, frames * 2)
        self.global_head = nn.Sequential(nn.Linear(dim * points, dim), nn.LeakyReLU(), nn.Linear(dim, frames * 4))
        nn.init.zeros_(self.local_head.weight)
        nn.init.zeros_(self.local_head.bias)
        nn.init.zeros_(self.global_head[-1].weight)
        nn.init.zeros_(self.global_head[-1].bias)
        self.frames = frames

    def local_parameters(self):
        return list(self.shared.parameters()) + list(self.local_head.parameters())

    def global_parameters(self):
        return list(self.global_head.parameters())

    def forward(self, points):
        h = self.shared(points)
        delta = self.local_head(h).reshape(len(points), self.frames, 2).transpose(0, 1)
        g = self.global_head(h.reshape(-1)).reshape(self.frames, 4)
        angle, scale, shift = g[:, 0], 1 + g[:, 1], g[:, 2:]
        rot = torch.stack([torch.stack([angle.cos(), -angle.sin()], 1), torch.stack([angle.sin(), angle.cos()], 1)], 1)
        moved = torch.einsum("fij,pj->fpi", rot, points) * scale[:, None, None] + shift[:, None]
        return moved + delta


class Painter(nn.Module):
    def __init__(self, args, sketch):
        super().__init__()
        self.register_buffer("sketch", sketch)
        self.mlp_points = PointMLP(args.frames, args.points)

    def forward(self):
        return self.mlp_points(self.sketch)


class PainterOptimizer:
    def __init__(self, args, painter):
        self.painter = painter
        self.lr_local = args.lr_local
        self.lr_global = args.lr_global
        self.init_optimizers()

    def init_optimizers(self):
        mlp = self.painter.mlp_points
        self.points_delta_optimizer = torch.optim.Adam(mlp.local_parameters(), lr=self.lr_local)
        self.global_delta_optimizer = torch.optim.Adam(mlp.global_parameters(), lr=self.lr_global)

    def update_lr(self, step, total):
        factor = 0.5 * (1 + math.cos(math.pi * step / total))
        for group in self.points_delta_optimizer.param_groups:
            group["lr"] = self.lr_local * factor
        for group in self.global_delta_optimizer.param_groups:
            group["lr"] = self.lr_global * factor

    def zero_grad_(self):
        self.points_delta_optimizer.zero_grad()

    def step_(self):
        self.points_delta_optimizer.step()
        self.global_delta_optimizer.step()


def reference_motion(sketch, frames):
    out = []
    for f in range(frames):
        a = torch.tensor(0.25 * math.sin(2 * math.pi * f / frames))
        rot = torch.stack([torch.stack([a.cos(), -a.sin()]), torch.stack([a.sin(), a.cos()])])
        out.append(sketch @ rot.t() + torch.tensor([0.08 * f, 0.3 * math.sin(f)]))
    return torch.stack(out)


def main():
    args = parse()
    torch.manual_seed(args.seed)
    sketch = torch.rand(args.points, 2) * 2 - 1
    target = reference_motion(sketch, args.frames)
    painter = Painter(args, sketch)
    optimizer = PainterOptimizer(args, painter)
    losses = []
    for step in range(args.num_iter):
        optimizer.update_lr(step, args.num_iter)
        optimizer.zero_grad_()
        video = painter()
        noise = 0.02 * torch.randn_like(target)
        loss = (video - target + noise).pow(2).mean() + 0.1 * (video[1:] - video[:-1]).pow(2).mean()
        loss.backward()
        optimizer.step_()
        losses.append(loss.item())
        if step % 30 == 29:
            print(f"iteration {step + 1:4d} loss {losses[-1]:.5f}")
    return losses, painter


if __name__ == "__main__":
    main()
