"""Sinusoid regression with MAML: first-order at the beginning (derivative-order annealing), second-order later."""
import math
from dataclasses import dataclass

import torch
from torch import nn
import torch.nn.functional as F
from torch.func import functional_call


@dataclass
class Config:
    hidden: int = 24
    inner_steps: int = 2
    inner_lr: float = 0.05
    outer_lr: float = 3e-3
    tasks_per_step: int = 4
    iterations: int = 60
    second_order_from: int = 20
    seed: int = 21


class Regressor(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.head = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.head(self.body(x))


class Learner(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.net = Regressor(cfg.hidden)
        self.log_lr = nn.ParameterDict({
            n.replace(".", "_"): nn.Parameter(torch.tensor(math.log(cfg.inner_lr))) for n, _ in self.net.named_parameters()})

    def adapt(self, x, y, second_order, steps=None):
        fast = dict(self.net.named_parameters())
        for _ in range(self.cfg.inner_steps if steps is None else steps):
            loss = F.mse_loss(functional_call(self.net, fast, (x,)), y)
            grads = torch.autograd.grad(loss, list(fast.values()), create_graph=second_order)
            if not second_order:
                grads = [g.detach() for g in grads]
            fast = {n: w - self.log_lr[n.replace(".", "_")].exp() * g for (n, w), g in zip(fast.items(), grads)}
        return fast

    def query_loss(self, task, second_order):
        xs, ys, xq, yq = task
        return F.mse_loss(functional_call(self.net, self.adapt(xs, ys, second_order), (xq,)), yq)


def sample_task(generator):
    amplitude = 0.5 + 2 * torch.rand(1, generator=generator)
    phase = 3 * torch.rand(1, generator=generator)
    x = 6 * torch.rand(20, 1, generator=generator) - 3
    y = amplitude * torch.sin(x + phase)
    return x[:10], y[:10], x[10:], y[10:]


def evaluate(learner, tasks):
    """The adaptation of a test task needs gradients; nothing of it is kept."""
    learner.eval()
    total = 0.0
    for xs, ys, xq, yq in tasks:
        fast = learner.adapt(xs, ys, second_order=False)
        with torch.no_grad():
            total += F.mse_loss(functional_call(learner.net, fast, (xq,)), yq).item()
    learner.train()
    return total / len(tasks)


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    generator = torch.Generator().manual_seed(cfg.seed)
    learner = Learner(cfg)
    optimizer = torch.optim.Adam([{"params": learner.net.parameters()},
                                  {"params": learner.log_lr.parameters(), "lr": 1e-2}], lr=cfg.outer_lr)
    held_out = [sample_task(generator) for _ in range(20)]
    for iteration in range(cfg.iterations):
        second_order = iteration >= cfg.second_order_from
        optimizer.zero_grad()
        total = 0.0
        for _ in range(cfg.tasks_per_step):
            loss = learner.query_loss(sample_task(generator), second_order) / cfg.tasks_per_step
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(learner.parameters(), 5.0)
        optimizer.step()
        if iteration % 20 == 0:
            print(f"iteration {iteration} query {total:.4f} held out {evaluate(learner, held_out):.4f}")
    return evaluate(learner, held_out)


if __name__ == "__main__":
    main()
