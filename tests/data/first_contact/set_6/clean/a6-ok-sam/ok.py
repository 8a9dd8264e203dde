"""Sharpness-aware training of a small normalised network, with checkpoints that continue exactly."""
import io

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, adaptive=False, **kwargs):
        super().__init__(params, dict(rho=rho, adaptive=adaptive, **kwargs))
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups
        self.defaults.update(self.base_optimizer.defaults)
        self.old = {}

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        grad_norm = self._grad_norm()
        for group in self.param_groups:
            scale = group["rho"] / (grad_norm + 1e-12)
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.old[p] = p.data.clone()
                e_w = (p.pow(2) if group["adaptive"] else 1.0) * p.grad * scale
                p.add_(e_w)
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.data = self.old.pop(p)
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()

    def _grad_norm(self):
        return torch.norm(torch.stack([
            ((p.abs() if g["adaptive"] else 1.0) * p.grad).norm(p=2)
            for g in self.param_groups for p in g["params"] if p.grad is not None
        ]), p=2)

    def state_dict(self):
        return self.base_optimizer.state_dict()

    def load_state_dict(self, state_dict):
        self.base_optimizer.load_state_dict(state_dict)
        self.param_groups = self.base_optimizer.param_groups


def disable_running_stats(model):
    for m in model.modules():
        if isinstance(m, _BatchNorm):
            m.backup_momentum = m.momentum
            m.momentum = 0


def enable_running_stats(model):
    for m in model.modules():
        if isinstance(m, _BatchNorm) and hasattr(m, "backup_momentum"):
            m.momentum = m.backup_momentum


def build():
    model = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.BatchNorm1d(32),
                          nn.ReLU(), nn.Linear(32, 2))
    optimizer = SAM(model.parameters(), torch.optim.SGD, rho=0.05, adaptive=True, lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer.base_optimizer, T_max=80)
    return model, optimizer, scheduler


def train(model, optimizer, scheduler, batches):
    model.train()
    for x, y in batches:
        enable_running_stats(model)
        loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
        loss.backward()
        optimizer.first_step(zero_grad=True)

        disable_running_stats(model)
        F.cross_entropy(model(x), y, label_smoothing=0.1).backward()
        optimizer.second_step(zero_grad=True)
        scheduler.step()
    enable_running_stats(model)
    return loss.item()


def moons(n):
    y = torch.randint(0, 2, (n,))
    x = torch.randn(n, 10)
    x[:, 0] += torch.where(y == 0, -1.0, 1.0)
    x[:, 1] += x[:, 0].abs() * torch.where(y == 0, 1.0, -1.0)
    return x, y


def main():
    torch.manual_seed(2)
    batches = [moons(64) for _ in range(80)]
    test = moons(512)
    model, optimizer, scheduler = build()
    print(f"first half: {train(model, optimizer, scheduler, batches[:40]):.4f}")
    stream = io.BytesIO()
    torch.save([x.state_dict() for x in (model, optimizer, scheduler)], stream)
    stream.seek(0)

    model, optimizer, scheduler = build()
    for part, state in zip((model, optimizer, scheduler), torch.load(stream)):
        part.load_state_dict(state)
    print(f"second half: {train(model, optimizer, scheduler, batches[40:]):.4f}")
    model.eval()
    with torch.no_grad():
        print(f"accuracy {(model(test[0]).argmax(1) == test[1]).float().mean().item():.3f}")


if __name__ == "__main__":
    main()
