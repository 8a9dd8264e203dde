"""Implicit graph diffusion layer: Z = (I - a S)^{-1} X W with a learned directed graph S."""
from dataclasses import dataclass

import torch
from torch import nn


class MatrixInverse(torch.autograd.Function):
    """Inverse with its own backward, so that only the result is kept."""

    @staticmethod
    def forward(ctx, a):
        inv = torch.linalg.inv(a)
        ctx.save_for_backward(inv)
        return inv

    @staticmethod
    def backward(ctx, grad):
        (inv,) = ctx.saved_tensors
        return -(inv @ grad @ inv)


def target(a):
    return MatrixInverse.apply(a)


def make_inputs():
    g = torch.Generator().manual_seed(1)
    a = torch.eye(4, dtype=torch.float64) * 2 + 0.4 * torch.randn(4, 4, generator=g, dtype=torch.float64)
    return (a.requires_grad_(True),)


@dataclass
class Config:
    nodes: int = 14
    features: int = 5
    hidden: int = 16
    classes: int = 3
    damping: float = 0.7
    lr: float = 2e-2
    steps: int = 250
    batch: int = 16
    seed: int = 2


class ImplicitDiffusion(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.logits = nn.Parameter(0.1 * torch.randn(cfg.nodes, cfg.nodes))
        self.weight = nn.Linear(cfg.features, cfg.hidden)
        self.damping = cfg.damping
        self.register_buffer("eye", torch.eye(cfg.nodes))

    def graph(self):
        return torch.softmax(self.logits, dim=1)

    def forward(self, x):
        resolvent = MatrixInverse.apply(self.eye - self.damping * self.graph())
        return resolvent @ self.weight(x)


class NodeClassifier(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.diffuse = ImplicitDiffusion(cfg)
        self.readout = nn.Sequential(nn.LayerNorm(cfg.hidden), nn.Tanh(), nn.Linear(cfg.hidden, cfg.features))

    def forward(self, x):
        return self.readout(self.diffuse(x))


class Trainer:
    def __init__(self, cfg, model, true_graph):
        self.cfg, self.model, self.true_graph = cfg, model, true_graph
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=1e-4)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, cfg.steps)

    def sample(self, n):
        x = torch.randn(n, self.cfg.nodes, self.cfg.features)
        system = torch.eye(self.cfg.nodes) - self.cfg.damping * self.true_graph
        return x, torch.linalg.solve(system, x)

    def fit(self):
        for step in range(self.cfg.steps):
            x, y = self.sample(self.cfg.batch)
            loss = nn.functional.mse_loss(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            if step % 80 == 0:
                print(f"step {step} loss {loss.item():.4f}")

    @torch.no_grad()
    def evaluate(self):
        x, y = self.sample(256)
        return nn.functional.mse_loss(self.model(x), y).item()


def ring(n):
    graph = torch.zeros(n, n)
    for i in range(n):
        graph[i, (i + 1) % n] = 0.8
        graph[i, (i + 3) % n] = 0.2
    return graph


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    trainer = Trainer(cfg, NodeClassifier(cfg), ring(cfg.nodes))
    trainer.fit()
    test = trainer.evaluate()
    learned = trainer.model.diffuse.graph().detach()
    distance = (learned - trainer.true_graph).norm().item()
    print(f"test {test:.4f} distance to the true graph {distance:.3f}")
    return {"test_loss": test, "graph_distance": distance}


if __name__ == "__main__":
    main()
