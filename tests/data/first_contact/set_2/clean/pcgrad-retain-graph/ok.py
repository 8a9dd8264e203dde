"""Multi-task learning with projected conflicting gradients."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    steps: int = 120
    batch: int = 32
    lr: float = 5e-3
    seed: int = 33


class MultiTaskNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.heads = nn.ModuleDict({"rating": nn.Linear(32, 1), "click": nn.Linear(32, 1), "dwell": nn.Linear(32, 1)})

    def forward(self, x):
        h = self.trunk(x)
        return {name: head(h).squeeze(-1) for name, head in self.heads.items()}


class PCGrad:
    def __init__(self, optimizer, generator):
        self.optimizer, self.generator = optimizer, generator
        self.params = [p for g in optimizer.param_groups for p in g["params"]]

    def flat_gradient(self, loss, keep):
        self.optimizer.zero_grad()
        loss.backward(retain_graph=keep)
        return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in self.params])

    def step(self, losses):
        grads = [self.flat_gradient(loss, i + 1 < len(losses)) for i, loss in enumerate(losses)]
        projected = []
        conflicts = 0
        for i, grad in enumerate(grads):
            grad = grad.clone()
            for j in torch.randperm(len(grads), generator=self.generator).tolist():
                dot = grad @ grads[j]
                if j != i and dot < 0:
                    grad -= dot / grads[j].pow(2).sum() * grads[j]
                    conflicts += 1
            projected.append(grad)
        merged = torch.stack(projected).sum(0)
        offset = 0
        for p in self.params:
            p.grad = merged[offset:offset + p.numel()].view_as(p).clone()
            offset += p.numel()
        self.optimizer.step()
        return conflicts


def batch(cfg, g):
    w = torch.randn(12, 3, generator=torch.Generator().manual_seed(4))
    x = torch.randn(cfg.batch, 12, generator=g)
    s = x @ w / 3
    return x, {"rating": torch.tanh(s[:, 0] - s[:, 1]), "click": (s[:, 1] > 0).float(), "dwell": (s[:, 2] - s[:, 0]).relu()}


def task_losses(out, target):
    return [F.mse_loss(out["rating"], target["rating"]),
            F.binary_cross_entropy_with_logits(out["click"], target["click"]),
            F.smooth_l1_loss(F.softplus(out["dwell"]), target["dwell"])]


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    g = torch.Generator().manual_seed(cfg.seed)
    model = MultiTaskNet()
    surgeon = PCGrad(torch.optim.Adam(model.parameters(), lr=cfg.lr), torch.Generator().manual_seed(1))
    conflicts = 0
    for step in range(cfg.steps):
        x, target = batch(cfg, g)
        losses = task_losses(model(x), target)
        conflicts += surgeon.step(losses)
        if step % 40 == 39:
            print(f"step {step + 1} " + " ".join(f"{loss.item():.4f}" for loss in losses) + f" conflicts {conflicts}")
    model.eval()
    with torch.no_grad():
        x, target = batch(cfg, g)
        total = sum(loss.item() for loss in task_losses(model(x), target))
    return {"total": total, "conflicts": conflicts}


if __name__ == "__main__":
    main()
