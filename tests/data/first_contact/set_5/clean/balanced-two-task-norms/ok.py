"""GradNorm: task weights are trained by a second optimizer on the norms of the gradients of a shared layer."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Options:
    steps: int = 60
    batch: int = 64
    alpha: float = 1.0
    lr: float = 3e-3
    lr_weights: float = 2.5e-2
    seed: int = 0


class MultiTaskNet(nn.Module):
    def __init__(self, n_in=10, hidden=32, tasks=2):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(n_in, hidden), nn.ReLU())
        self.shared = nn.Linear(hidden, hidden)
        self.heads = nn.ModuleList([nn.Linear(hidden, 1) for _ in range(tasks)])

    def forward(self, x):
        h = torch.relu(self.shared(self.trunk(x)))
        return [head(h).squeeze(-1) for head in self.heads]


class GradNormBalancer:
    def __init__(self, tasks, opt):
        self.weights = torch.ones(tasks, requires_grad=True)
        self.optimizer = torch.optim.Adam([self.weights], lr=opt.lr_weights)
        self.alpha = opt.alpha
        self.initial = None

    def weighted(self, losses):
        return torch.stack([w * l for w, l in zip(self.weights.detach(), losses)]).sum()

    def set_gradient(self, losses, layer):
        """Writes the gradient of the GradNorm objective into weights.grad; the network gets nothing of it."""
        values = torch.stack(losses).detach()
        if self.initial is None:
            self.initial = values
        raw = torch.stack([
            torch.autograd.grad(loss, layer.weight, retain_graph=True)[0].norm() for loss in losses
        ])
        norms = self.weights * raw.detach()
        ratio = values / self.initial
        target = (norms.mean() * (ratio / ratio.mean()) ** self.alpha).detach()
        objective = (norms - target).abs().sum()
        self.weights.grad = torch.autograd.grad(objective, self.weights)[0]

    def step(self):
        self.optimizer.step()
        with torch.no_grad():
            self.weights.clamp_(min=1e-2)
            self.weights.mul_(len(self.weights) / self.weights.sum())


def sample(n, g):
    x = torch.randn(n, 10, generator=g)
    return x, [torch.sin(x[:, 0]) + 0.1 * x[:, 1], 10 * torch.cos(x[:, 2]) * x[:, 3]]


def main():
    opt = Options()
    torch.manual_seed(opt.seed)
    g = torch.Generator().manual_seed(opt.seed)
    model = MultiTaskNet()
    balancer = GradNormBalancer(2, opt)
    optimizer = torch.optim.Adam(model.parameters(), lr=opt.lr)
    for step in range(opt.steps):
        x, targets = sample(opt.batch, g)
        losses = [F.mse_loss(p, t) for p, t in zip(model(x), targets)]
        balancer.set_gradient(losses, model.shared)
        optimizer.zero_grad()
        balancer.weighted(losses).backward()
        optimizer.step()
        balancer.step()
        if step % 20 == 0:
            print(step, [round(l.item(), 3) for l in losses], [round(w, 3) for w in balancer.weights.tolist()])
    return model, balancer


if __name__ == "__main__":
    main()
