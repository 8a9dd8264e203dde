"""First-order MAML: adapted copies are ordinary leaves, their query gradients are copied to the meta-model."""
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Regressor(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def forward(self, x):
        return self.net(x / 5)


class Tasks:
    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)

    def sample(self, shots=10):
        u = torch.rand(2, generator=self.gen)
        x = 10 * torch.rand(2 * shots, 1, generator=self.gen) - 5
        y = (0.5 + 3 * u[0]) * torch.sin(x + math.pi * u[1])
        return (x[:shots], y[:shots]), (x[shots:], y[shots:])


class FOMAML:
    def __init__(self, model, inner_lr=0.02, outer_lr=2e-3, steps=3):
        self.model, self.inner_lr, self.steps = model, inner_lr, steps
        self.optimizer = torch.optim.Adam(model.parameters(), lr=outer_lr)

    def adapt(self, support):
        learner = copy.deepcopy(self.model)
        opt = torch.optim.SGD(learner.parameters(), lr=self.inner_lr)
        for _ in range(self.steps):
            opt.zero_grad()
            F.mse_loss(learner(support[0]), support[1]).backward()
            opt.step()
        learner.zero_grad()
        return learner

    def meta_step(self, tasks):
        self.optimizer.zero_grad()
        total = 0.0
        for support, query in tasks:
            learner = self.adapt(support)
            loss = F.mse_loss(learner(query[0]), query[1])
            loss.backward()
            for meta, fast in zip(self.model.parameters(), learner.parameters()):
                g = fast.grad.detach() / len(tasks)
                meta.grad = g.clone() if meta.grad is None else meta.grad + g
            total += loss.item()
        self.optimizer.step()
        return total / len(tasks)

    def evaluate(self, tasks):
        total = 0.0
        for support, query in tasks:
            learner = self.adapt(support).eval()
            with torch.no_grad():
                total += F.mse_loss(learner(query[0]), query[1]).item()
        return total / len(tasks)


def main():
    torch.manual_seed(0)
    algo, train, test = FOMAML(Regressor()), Tasks(1), Tasks(2)
    for it in range(60):
        loss = algo.meta_step([train.sample() for _ in range(4)])
        if it % 20 == 0:
            print(f"iteration {it}: query loss {loss:.3f}")
    return algo.evaluate([test.sample() for _ in range(10)])


if __name__ == "__main__":
    main()
