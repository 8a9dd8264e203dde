"""Multi-task regression with gradient surgery (PCGrad) and learned task uncertainties."""
import random
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    tasks: int = 3
    hidden: int = 32
    lr: float = 5e-3
    sigma_lr: float = 1e-2
    steps: int = 150
    batch: int = 64
    seed: int = 18


class MultiTask(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, cfg.hidden), nn.ReLU(), nn.Linear(cfg.hidden, cfg.hidden), nn.ReLU())
        self.heads = nn.ModuleList(nn.Linear(cfg.hidden, 1) for _ in range(cfg.tasks))

    def forward(self, x):
        h = self.trunk(x)
        return [head(h).squeeze(1) for head in self.heads]


class PCGrad:
    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.params = [p for g in optimizer.param_groups for p in g["params"]]

    def step(self):
        self.optimizer.step()

    def pc_backward(self, losses):
        grads, present = [], []
        for i, loss in enumerate(losses):
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward(retain_graph=i < len(losses) - 1)
            grads.append(torch.cat([
                torch.zeros(p.numel()) if p.grad is None else p.grad.detach().clone().flatten()
                for p in self.params]))
            present.append([p.grad is not None for p in self.params])
        projected = [g.clone() for g in grads]
        for g in projected:
            for other in random.sample(grads, len(grads)):
                dot = torch.dot(g, other)
                if dot < 0:
                    g -= dot / other.norm().pow(2) * other
        self.assign(torch.stack(projected).sum(0), [any(c) for c in zip(*present)])

    def assign(self, flat, present):
        offset = 0
        for p, has in zip(self.params, present):
            n = p.numel()
            p.grad = flat[offset:offset + n].view_as(p).clone() if has else None
            offset += n


def targets(x):
    return [x[:, 0] * x[:, 1], -x[:, 0] * x[:, 1] + x[:, 2], torch.sin(2 * x[:, 3])]


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    random.seed(cfg.seed)
    model = MultiTask(cfg)
    log_sigma = nn.Parameter(torch.zeros(cfg.tasks))
    optimizer = PCGrad(torch.optim.Adam(model.parameters(), lr=cfg.lr))
    sigma_opt = torch.optim.SGD([log_sigma], lr=cfg.sigma_lr)
    for step in range(cfg.steps):
        x = torch.randn(cfg.batch, 6)
        raw = [F.mse_loss(o, t) for o, t in zip(model(x), targets(x))]
        weighted = [r * torch.exp(-s.detach()) for r, s in zip(raw, log_sigma)]
        optimizer.pc_backward(weighted)
        optimizer.step()

        sigma_opt.zero_grad()
        (torch.stack(raw).detach() * torch.exp(-log_sigma) + log_sigma).sum().backward()
        sigma_opt.step()
        if step % 50 == 0:
            print(f"step {step} losses {[round(r.item(), 3) for r in raw]}")
    model.eval()
    with torch.no_grad():
        x = torch.randn(512, 6)
        test = sum(F.mse_loss(o, t).item() for o, t in zip(model(x), targets(x)))
    return {"test": test, "sigma0": log_sigma[0].exp().item()}


if __name__ == "__main__":
    main()
