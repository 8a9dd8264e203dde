"""MAML with learned inner step sizes on sine waves; the outer gradient is collected task by task."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call


@dataclass
class MetaConfig:
    inner_lr: float = 0.02
    inner_steps: int = 2
    outer_lr: float = 3e-3
    tasks_per_step: int = 4
    shots: int = 10
    meta_steps: int = 80
    first_order_until: int = 20
    seed: int = 1


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, x):
        return self.layers(x)


class MetaLearner:
    def __init__(self, cfg):
        torch.manual_seed(cfg.seed)
        self.cfg = cfg
        self.net = Net()
        self.log_lr = nn.ParameterDict(
            {n.replace(".", "_"): nn.Parameter(torch.tensor(cfg.inner_lr).log()) for n, _ in self.net.named_parameters()}
        )
        self.optimizer = torch.optim.Adam([*self.net.parameters(), *self.log_lr.parameters()], lr=cfg.outer_lr)

    def adapt(self, x, y, create_graph, steps=None):
        weights = dict(self.net.named_parameters())
        for _ in range(steps or self.cfg.inner_steps):
            loss = F.mse_loss(functional_call(self.net, weights, (x,)), y)
            grads = torch.autograd.grad(loss, list(weights.values()), create_graph=create_graph)
            weights = {
                name: w - self.log_lr[name.replace(".", "_")].exp() * g
                for (name, w), g in zip(weights.items(), grads)
            }
        return weights

    def meta_step(self, step, sampler):
        self.optimizer.zero_grad()
        total = 0.0
        for _ in range(self.cfg.tasks_per_step):
            (xs, ys), (xq, yq) = sampler(self.cfg.shots)
            weights = self.adapt(xs, ys, create_graph=step >= self.cfg.first_order_until)
            loss = F.mse_loss(functional_call(self.net, weights, (xq,)), yq) / self.cfg.tasks_per_step
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(self.net.parameters(), 5.0)
        self.optimizer.step()
        return total

    def evaluate(self, sampler, tasks=10):
        losses = []
        for _ in range(tasks):
            (xs, ys), (xq, yq) = sampler(self.cfg.shots)
            weights = self.adapt(xs, ys, create_graph=False, steps=5)
            with torch.no_grad():
                losses.append(F.mse_loss(functional_call(self.net, weights, (xq,)), yq).item())
        return sum(losses) / len(losses)


def sine_task(shots):
    amplitude, phase = 0.5 + 2 * torch.rand(()), 3.14 * torch.rand(())

    def draw():
        x = torch.rand(shots, 1) * 6 - 3
        return x, amplitude * torch.sin(x + phase)

    return draw(), draw()


def main():
    learner = MetaLearner(MetaConfig())
    for step in range(learner.cfg.meta_steps):
        loss = learner.meta_step(step, sine_task)
        if step % 20 == 19:
            print(f"meta step {step + 1} query loss {loss:.3f}")
    return learner.evaluate(sine_task)


if __name__ == "__main__":
    main()
