"""MAML on sinusoid regression."""
import copy
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call


@dataclass
class MetaConfig:
    inner_lr: float = 0.02
    outer_lr: float = 5e-3
    inner_steps: int = 2
    meta_batch: int = 4
    shots: int = 10
    iterations: int = 160
    seed: int = 0


class SinusoidTasks:
    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)

    def sample(self, shots):
        u = torch.rand(2, generator=self.gen)
        amp, phase = 0.5 + 3.0 * u[0], math.pi * u[1]
        x = 10 * torch.rand(2 * shots, 1, generator=self.gen) - 5
        y = amp * torch.sin(x + phase)
        return (x[:shots], y[:shots]), (x[shots:], y[shots:])


class Regressor(nn.Module):
    def __init__(self, hidden=40):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.head = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.head(self.body(x / 5))


class MAML:
    def __init__(self, model, cfg):
        self.model, self.cfg = model, cfg
        self.meta_optimizer = torch.optim.Adam(model.parameters(), lr=cfg.outer_lr)
        self.criterion = F.mse_loss
        self.history = []

    def inner_update(self, support_x, support_y):
        fast = dict(self.model.named_parameters())
        for _ in range(self.cfg.inner_steps):
            loss = self.criterion(functional_call(self.model, fast, (support_x,)), support_y)
            grads = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
            fast = {name: param - self.cfg.inner_lr * grad for (name, param), grad in zip(fast.items(), grads)}
        return lambda x: functional_call(self.model, fast, (x,))

    def meta_train_step(self, tasks):
        self.meta_optimizer.zero_grad()
        meta_loss = 0.0
        for (sx, sy), (qx, qy) in tasks:
            adapted = self.inner_update(sx, sy)
            meta_loss = meta_loss + self.criterion(adapted(qx), qy)
        meta_loss = meta_loss / len(tasks)
        meta_loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 10.0)
        self.meta_optimizer.step()
        return meta_loss.item()

    def fit(self, sampler):
        for it in range(self.cfg.iterations):
            tasks = [sampler.sample(self.cfg.shots) for _ in range(self.cfg.meta_batch)]
            self.history.append(self.meta_train_step(tasks))
            if it % 40 == 0:
                recent = self.history[-20:]
                print(f"iteration {it}: query loss {sum(recent) / len(recent):.3f}")

    def evaluate(self, sampler, n_tasks=20):
        total = 0.0
        for _ in range(n_tasks):
            (sx, sy), (qx, qy) = sampler.sample(self.cfg.shots)
            adapted = self.inner_update(sx, sy)
            with torch.no_grad():
                total += self.criterion(adapted(qx), qy).item()
        return total / n_tasks


def main():
    cfg = MetaConfig()
    torch.manual_seed(cfg.seed)
    maml = MAML(Regressor(), cfg)
    start = [p.detach().clone() for p in maml.model.parameters()]
    maml.fit(SinusoidTasks(1))
    score = maml.evaluate(SinusoidTasks(2))
    moved = sum((a - b).norm().item() for a, b in zip(maml.model.parameters(), start))
    print(f"meta-test query loss {score:.3f}")
    return {"meta_test": score, "meta_params_moved": moved}


if __name__ == "__main__":
    main()
