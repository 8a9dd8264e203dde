from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn


@dataclass
class SplatConfig:
    image_size: int = 20
    num_points: int = 60
    iterations: int = 120
    densify_every: int = 12
    densify_until: int = 100
    prune_opacity: float = 0.03
    base_lr: float = 0.02


class Gaussians(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.xy = nn.Parameter(torch.rand(n, 2))
        self.log_scale = nn.Parameter(torch.full((n, 1), -2.2))
        self.opacity = nn.Parameter(torch.zeros(n, 1))
        self.color = nn.Parameter(torch.rand(n, 3) - 0.5)

    def __len__(self):
        return self.xy.shape[0]

    def names(self):
        return ["xy", "log_scale", "opacity", "color"]


def render(gaussians, grid):
    d2 = (grid[:, None] - gaussians.xy[None]).pow(2).sum(-1)
    s2 = torch.exp(2 * gaussians.log_scale).T
    weight = torch.sigmoid(gaussians.opacity).T * torch.exp(-0.5 * d2 / s2)
    return weight @ torch.sigmoid(gaussians.color)


class OptimizerManager:
    def __init__(self, gaussians, config):
        self.gaussians = gaussians
        lrs = {"xy": 0.5, "log_scale": 1.0, "opacity": 2.0, "color": 2.0}
        groups = [{"params": [getattr(gaussians, n)], "lr": config.base_lr * lrs[n], "name": n}
                  for n in gaussians.names()]
        self.optimizer = torch.optim.Adam(groups, betas=(0.9, 0.99), eps=1e-15)

    def _replace(self, index, name, value, transform):
        group = self.optimizer.param_groups[index]
        old = group["params"][0]
        new = nn.Parameter(value)
        state = self.optimizer.state.pop(old, None)
        if state is not None:
            for key in ("exp_avg", "exp_avg_sq"):
                state[key] = transform(state[key])
            self.optimizer.state[new] = state
        group["params"][0] = new
        setattr(self.gaussians, name, new)

    def delete(self, keep):
        for index, name in enumerate(self.gaussians.names()):
            value = getattr(self.gaussians, name).detach()[keep].clone()
            self._replace(index, name, value, lambda s: s[keep])

    def duplicate(self, which, noise):
        for index, name in enumerate(self.gaussians.names()):
            value = getattr(self.gaussians, name).detach()
            extra = value[which].clone()
            if name == "xy":
                extra = extra + noise * torch.randn_like(extra)
            if name == "opacity":
                extra = extra - 1.0
            value = torch.cat([value, extra])
            self._replace(index, name, value, lambda s: torch.cat([s, torch.zeros_like(s[which])]))

    def reset_opacity(self):
        with torch.no_grad():
            self.gaussians.opacity.clamp_(max=1.0)


class SplatTrainer:
    def __init__(self, config, image, grid):
        self.config, self.image, self.grid = config, image, grid
        self.gaussians = Gaussians(config.num_points)
        self.manager = OptimizerManager(self.gaussians, config)
        self.grad_accum = torch.zeros(len(self.gaussians))

    def adaptive_density_control(self):
        keep = torch.sigmoid(self.gaussians.opacity.detach()).squeeze(1) > self.config.prune_opacity
        self.manager.delete(keep)
        grads = self.grad_accum[keep]
        if len(self.gaussians) < 110:
            which = grads.topk(max(1, len(grads) // 12)).indices
            self.manager.duplicate(which, 0.03)
        self.manager.reset_opacity()
        self.grad_accum = torch.zeros(len(self.gaussians))

    def train(self):
        optimizer = self.manager.optimizer
        for it in range(1, self.config.iterations + 1):
            pick = torch.randint(0, len(self.grid), (200,))
            loss = (render(self.gaussians, self.grid[pick]) - self.image[pick]).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.grad_accum += self.gaussians.xy.grad.norm(dim=1)
            if it % self.config.densify_every == 0 and it <= self.config.densify_until:
                self.adaptive_density_control()
            if it % 40 == 0:
                with torch.no_grad():
                    mse = (render(self.gaussians, self.grid) - self.image).pow(2).mean().item()
                print(f"iter {it} points {len(self.gaussians)} psnr {-10 * np.log10(mse):.2f}")


def make_target(size):
    axis = torch.linspace(0, 1, size)
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    r = (grid - 0.5).norm(dim=1)
    image = torch.stack([(r < 0.3).float(), grid[:, 0], 0.5 + 0.5 * torch.sin(9 * grid[:, 1])], 1)
    return grid, image


def main():
    torch.manual_seed(3)
    config = SplatConfig()
    grid, image = make_target(config.image_size)
    SplatTrainer(config, image, grid).train()


if __name__ == "__main__":
    main()
