"""Learning to weight noisy training samples: bilevel optimization with the finite-difference hypergradient."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    n_train: int = 240
    n_val: int = 60
    n_test: int = 400
    noise: float = 0.3
    hidden: int = 24
    inner_lr: float = 0.2
    outer_lr: float = 0.1
    radius: float = 0.02
    unroll: int = 3
    outer_steps: int = 150
    seed: int = 6


class Classifier(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, 2))

    def forward(self, x):
        return self.net(x)


class SampleWeights(nn.Module):
    """One logit for each training sample."""

    def __init__(self, n):
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(n))

    def forward(self):
        return torch.sigmoid(self.logits)


class Engine:
    def __init__(self, cfg, train, val):
        self.cfg, self.train_set, self.val_set = cfg, train, val
        self.classifier = Classifier(cfg.hidden)
        self.reweight = SampleWeights(cfg.n_train)
        self.inner_opt = torch.optim.SGD(self.classifier.parameters(), lr=cfg.inner_lr, momentum=0.9)
        self.outer_opt = torch.optim.Adam(self.reweight.parameters(), lr=cfg.outer_lr)
        self.drift = 0.0

    def train_loss(self):
        x, y = self.train_set
        losses = F.cross_entropy(self.classifier(x), y, reduction="none")
        return (self.reweight() * losses).mean()

    def val_loss(self):
        x, y = self.val_set
        return F.cross_entropy(self.classifier(x), y)

    def inner_loop(self):
        for _ in range(self.cfg.unroll):
            self.inner_opt.zero_grad()
            loss = self.train_loss()
            loss.backward()
            self.inner_opt.step()
        return loss.item()

    def hypergradient(self, vector):
        """Central difference of d train_loss / d meta along vector."""
        params = list(self.classifier.parameters())
        meta = list(self.reweight.parameters())
        norm = torch.cat([v.flatten() for v in vector]).norm()
        eps = self.cfg.radius / (norm.item() + 1e-12)

        for p, v in zip(params, vector):
            p.data.add_(v, alpha=eps)
        grad_p = torch.autograd.grad(self.train_loss(), meta)
        for p, v in zip(params, vector):
            p.data.add_(v, alpha=-2 * eps)
        grad_n = torch.autograd.grad(self.train_loss(), meta)
        return [-self.cfg.inner_lr * (gp - gn) / (2 * eps) for gp, gn in zip(grad_p, grad_n)]

    def outer_step(self):
        before = [p.detach().clone() for p in self.classifier.parameters()]
        val = self.val_loss()
        vector = torch.autograd.grad(val, list(self.classifier.parameters()))
        for p, g in zip(self.reweight.parameters(), self.hypergradient(vector)):
            p.grad = g
        self.outer_opt.step()
        self.outer_opt.zero_grad()
        self.drift += sum((p - b).norm().item() for p, b in zip(self.classifier.parameters(), before))
        return val.item()

    def fit(self):
        for step in range(self.cfg.outer_steps):
            train = self.inner_loop()
            val = self.outer_step()
            if step % 50 == 0:
                print(f"outer {step} train {train:.4f} val {val:.4f}")


def moons(n, noise, generator):
    angle = 3.1416 * torch.rand(n, generator=generator)
    y = torch.randint(0, 2, (n,), generator=generator)
    x = torch.stack([torch.cos(angle), torch.sin(angle)], 1)
    x[y == 1] = torch.tensor([1.0, 0.4]) - x[y == 1]
    x = x + 0.15 * torch.randn(n, 2, generator=generator)
    flip = torch.rand(n, generator=generator) < noise
    return x, torch.where(flip, 1 - y, y)


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    g = torch.Generator().manual_seed(cfg.seed)
    engine = Engine(cfg, moons(cfg.n_train, cfg.noise, g), moons(cfg.n_val, 0.0, g))
    engine.fit()
    with torch.no_grad():
        x, y = moons(cfg.n_test, 0.0, g)
        test = F.cross_entropy(engine.classifier(x), y).item()
    print(f"test loss {test:.4f}")
    return {"test_loss": test, "weights_moved_by_outer_steps": engine.drift}


if __name__ == "__main__":
    main()
