"""Second-order DARTS: an unrolled virtual step and a finite-difference Hessian product, in place."""
import copy
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    width: int = 12
    batch: int = 32
    steps: int = 40
    eta: float = 0.05
    alpha_lr: float = 2e-2
    seed: int = 7


class Mixed(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.stem = nn.Linear(6, cfg.width)
        self.ops = nn.ModuleList([nn.Identity(), nn.Sequential(nn.Linear(cfg.width, cfg.width), nn.Tanh()),
                                  nn.Sequential(nn.Linear(cfg.width, cfg.width), nn.ReLU())])
        self.head = nn.Linear(cfg.width, 2)
        self.alphas = nn.Parameter(1e-3 * torch.randn(3))

    def weights(self):
        return [p for name, p in self.named_parameters() if name != "alphas"]

    def loss(self, x, y):
        hidden = self.stem(x)
        mixed = sum(w * op(hidden) for w, op in zip(self.alphas.softmax(0), self.ops))
        return F.cross_entropy(self.head(mixed), y)


class Architect:
    def __init__(self, model, cfg):
        self.model, self.cfg = model, cfg
        self.optimizer = torch.optim.Adam([model.alphas], lr=cfg.alpha_lr, weight_decay=1e-3)

    def virtual(self, train):
        grads = torch.autograd.grad(self.model.loss(*train), self.model.weights())
        shadow = copy.deepcopy(self.model)
        with torch.no_grad():
            for weight, grad in zip(shadow.weights(), grads):
                weight.sub_(self.cfg.eta * grad)
        return shadow

    def shifted_gradient(self, train, direction, scale):
        with torch.no_grad():
            for weight, vector in zip(self.model.weights(), direction):
                weight.add_(vector, alpha=scale)
        (gradient,) = torch.autograd.grad(self.model.loss(*train), [self.model.alphas])
        with torch.no_grad():
            for weight, vector in zip(self.model.weights(), direction):
                weight.sub_(vector, alpha=scale)
        return gradient

    def step(self, train, valid):
        shadow = self.virtual(train)
        dalpha, *dweights = torch.autograd.grad(shadow.loss(*valid), [shadow.alphas, *shadow.weights()])
        radius = 1e-2 / torch.cat([d.flatten() for d in dweights]).norm().item()
        plus = self.shifted_gradient(train, dweights, radius)
        minus = self.shifted_gradient(train, dweights, -radius)
        self.model.alphas.grad = dalpha - self.cfg.eta * (plus - minus) / (2 * radius)
        self.optimizer.step()
        self.model.alphas.grad = None


def sample(cfg):
    x = torch.randn(cfg.batch, 6)
    return x, (torch.tanh(2 * x[:, 0]) + x[:, 1] > 0).long()


def main(cfg=Config()):
    torch.manual_seed(cfg.seed)
    model = Mixed(cfg)
    architect = Architect(model, cfg)
    optimizer = torch.optim.SGD(model.weights(), lr=cfg.eta, momentum=0.9)
    for step in range(1, cfg.steps + 1):
        train, valid = sample(cfg), sample(cfg)
        architect.step(train, valid)
        model.zero_grad()
        loss = model.loss(*train)
        loss.backward()
        nn.utils.clip_grad_norm_(model.weights(), 5.0)
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step}  loss {loss.item():.4f}  mix {[round(a, 3) for a in model.alphas.softmax(0).tolist()]}")
    return loss.item()


if __name__ == "__main__":
    main()
