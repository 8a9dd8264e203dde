"""GradNorm: the weights of three regression tasks are learned from the gradient norms at a shared layer."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    dim: int = 8
    hidden: int = 24
    tasks: int = 3
    batch: int = 32
    steps: int = 90
    lr: float = 1e-2
    weight_lr: float = 2e-2
    alpha: float = 1.0
    seed: int = 4


class MultiTaskNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(cfg.dim, cfg.hidden), nn.Tanh(), nn.Linear(cfg.hidden, cfg.hidden))
        self.heads = nn.ModuleList(nn.Linear(cfg.hidden, 1) for _ in range(cfg.tasks))

    @property
    def shared_weight(self):
        return self.trunk[-1].weight

    def forward(self, x):
        h = torch.tanh(self.trunk(x))
        return [head(h).squeeze(-1) for head in self.heads]


class GradNormTrainer:
    def __init__(self, cfg):
        self.cfg = cfg
        torch.manual_seed(cfg.seed)
        self.gen = torch.Generator().manual_seed(cfg.seed)
        self.truth = 0.3 * torch.randn(cfg.tasks, cfg.dim, generator=self.gen)
        self.scales = torch.tensor([1.0, 5.0, 0.2])
        self.model = MultiTaskNet(cfg)
        self.task_weights = nn.Parameter(torch.ones(cfg.tasks))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)
        self.weight_optimizer = torch.optim.Adam([self.task_weights], lr=cfg.weight_lr)
        self.initial = None

    def batch(self):
        x = torch.randn(self.cfg.batch, self.cfg.dim, generator=self.gen)
        return x, [s * torch.sin(x @ w) for s, w in zip(self.scales, self.truth)]

    def step(self):
        x, targets = self.batch()
        losses = torch.stack([F.mse_loss(o, t) for o, t in zip(self.model(x), targets)])
        if self.initial is None:
            self.initial = losses.detach().clone()

        self.optimizer.zero_grad()
        (self.task_weights.detach() * losses).sum().backward(retain_graph=True)

        norms = []
        for weight, loss in zip(self.task_weights, losses):
            grad, = torch.autograd.grad(loss, self.model.shared_weight, retain_graph=True)
            norms.append(weight * grad.norm())
        norms = torch.stack(norms)
        ratio = losses.detach() / self.initial
        target = (norms.mean() * (ratio / ratio.mean()) ** self.cfg.alpha).detach()
        balance = (norms - target).abs().sum()
        self.weight_optimizer.zero_grad()
        self.task_weights.grad, = torch.autograd.grad(balance, self.task_weights)

        self.optimizer.step()
        self.weight_optimizer.step()
        with torch.no_grad():
            self.task_weights.clamp_(min=0.01)
            self.task_weights.mul_(self.cfg.tasks / self.task_weights.sum())
        return losses.detach()

    def fit(self):
        for i in range(self.cfg.steps):
            losses = self.step()
            if i % 30 == 0 or i == self.cfg.steps - 1:
                weights = [round(w, 3) for w in self.task_weights.tolist()]
                print(f"step {i} losses {[round(v, 4) for v in losses.tolist()]} weights {weights}")
        return losses


def main():
    return GradNormTrainer(Config()).fit()


if __name__ == "__main__":
    main()
