"""First-order MAML on linear-regression tasks, adapting the model in place and putting it back."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    inner_lr: float = 0.05
    inner_steps: int = 3
    meta_lr: float = 3e-3
    meta_batch: int = 5
    iterations: int = 120
    shots: int = 12
    seed: int = 1


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        return self.head(self.body(x)).squeeze(1)


class FOMAML:
    def __init__(self, cfg):
        self.cfg = cfg
        self.net = Net()
        self.params = list(self.net.parameters())
        self.meta_opt = torch.optim.Adam(self.params, lr=cfg.meta_lr)
        self.generator = torch.Generator().manual_seed(cfg.seed)

    def task(self, generator=None):
        g = generator or self.generator
        w = torch.randn(2, generator=g)
        shift = torch.randn(1, generator=g)

        def sample():
            x = torch.randn(self.cfg.shots, 2, generator=g)
            return x, torch.sin(x @ w + shift)

        return sample

    def snapshot(self):
        return [p.detach().clone() for p in self.params]

    @torch.no_grad()
    def restore(self, values):
        for p, v in zip(self.params, values):
            p.copy_(v)

    def adapt(self, sample):
        inner = torch.optim.SGD(self.params, lr=self.cfg.inner_lr)
        for _ in range(self.cfg.inner_steps):
            x, y = sample()
            inner.zero_grad()
            F.mse_loss(self.net(x), y).backward()
            inner.step()
        inner.zero_grad()

    def meta_step(self):
        start = self.snapshot()
        total = [torch.zeros_like(p) for p in self.params]
        query = 0.0
        for _ in range(self.cfg.meta_batch):
            sample = self.task()
            self.adapt(sample)
            x, y = sample()
            loss = F.mse_loss(self.net(x), y)
            grads = torch.autograd.grad(loss, self.params)
            for t, g in zip(total, grads):
                t.add_(g, alpha=1.0 / self.cfg.meta_batch)
            query += loss.item() / self.cfg.meta_batch
            self.restore(start)
        for p, t in zip(self.params, total):
            p.grad = t
        self.meta_opt.step()
        self.meta_opt.zero_grad()
        return query

    def evaluate(self, tasks=20):
        g = torch.Generator().manual_seed(77)
        start, losses = self.snapshot(), []
        for _ in range(tasks):
            sample = self.task(g)
            self.adapt(sample)
            with torch.no_grad():
                x, y = sample()
                losses.append(F.mse_loss(self.net(x), y).item())
            self.restore(start)
        return sum(losses) / len(losses)


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    learner = FOMAML(cfg)
    before = learner.evaluate()
    for it in range(cfg.iterations):
        query = learner.meta_step()
        if it % 40 == 0:
            print(f"iteration {it} query {query:.4f}")
    after = learner.evaluate()
    print(f"adapted loss {before:.4f} -> {after:.4f}")
    return {"before": before, "after": after}


if __name__ == "__main__":
    main()
