"""MAML with functional fast weights, learned inner rates and first-order warm-up."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F


@dataclass
class Config:
    ways: int = 3
    shots: int = 4
    hidden: int = 24
    inner_steps: int = 2
    inner_lr: float = 0.3
    outer_lr: float = 5e-3
    first_order_iterations: int = 15
    iterations: int = 40
    seed: int = 0


class Embedder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, cfg.hidden), nn.BatchNorm1d(cfg.hidden, track_running_stats=False), nn.ReLU())
        self.head = nn.Linear(cfg.hidden, cfg.ways)

    def forward(self, x):
        return self.head(self.body(x))


class Meta(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.net = Embedder(cfg)
        self.log_rates = nn.ParameterDict({
            name.replace(".", "_"): nn.Parameter(torch.tensor(cfg.inner_lr).log()) for name, _ in self.net.named_parameters()
        })

    def adapt(self, x, y, first_order, create_graph=True):
        weights = dict(self.net.named_parameters())
        for _ in range(self.cfg.inner_steps):
            loss = F.cross_entropy(functional_call(self.net, weights, (x,)), y)
            grads = torch.autograd.grad(loss, list(weights.values()), create_graph=create_graph and not first_order)
            grads = [g.detach() if first_order else g for g in grads]
            weights = {
                name: w - self.log_rates[name.replace(".", "_")].exp() * g
                for (name, w), g in zip(weights.items(), grads)
            }
        return weights

    def query_loss(self, task, first_order):
        (xs, ys), (xq, yq) = task
        return F.cross_entropy(functional_call(self.net, self.adapt(xs, ys, first_order), (xq,)), yq)


def sample_task(cfg):
    centers = 2 * torch.randn(cfg.ways, 6)
    y = torch.arange(cfg.ways).repeat(2 * cfg.shots)
    x = centers[y] + torch.randn(len(y), 6)
    half = len(y) // 2
    return (x[:half], y[:half]), (x[half:], y[half:])


def evaluate(meta, tasks):
    meta.eval()
    hits = []
    for (xs, ys), (xq, yq) in tasks:
        weights = meta.adapt(xs, ys, first_order=False, create_graph=False)
        with torch.no_grad():
            hits.append((functional_call(meta.net, weights, (xq,)).argmax(1) == yq).float().mean().item())
    meta.train()
    return sum(hits) / len(hits)


def main(cfg=Config()):
    torch.manual_seed(cfg.seed)
    meta = Meta(cfg)
    optimizer = torch.optim.Adam(meta.parameters(), lr=cfg.outer_lr)
    held_out = [sample_task(cfg) for _ in range(10)]
    for iteration in range(cfg.iterations):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(4):
            loss = meta.query_loss(sample_task(cfg), first_order=iteration < cfg.first_order_iterations) / 4
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(meta.parameters(), 5.0)
        optimizer.step()
        if iteration % 20 == 19:
            print(f"iter {iteration + 1}  query loss {total:.4f}  held-out acc {evaluate(meta, held_out):.3f}")
    return total


if __name__ == "__main__":
    main()
