import copy
import math

import torch
from torch import nn


class ReptileModel(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(1, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1)
        )

    def forward(self, x):
        return self.net(x)

    def point_grad_to(self, target):
        for p, target_p in zip(self.parameters(), target.parameters()):
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            p.grad.data.zero_()
            p.grad.data.add_(p.data - target_p.data)


class SineTasks:
    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def __iter__(self):
        while True:
            amplitude, phase = torch.rand(2, generator=self.generator).tolist()
            yield 0.5 + 2.5 * amplitude, math.pi * phase

    def sample(self, task, n):
        amplitude, phase = task
        x = 8 * torch.rand(n, 1, generator=self.generator) - 4
        return x, amplitude * torch.sin(x + phase)


def get_optimizer(net, lr, state=None):
    optimizer = torch.optim.Adam(net.parameters(), lr=lr, betas=(0.0, 0.999))
    if state is not None:
        optimizer.load_state_dict(state)
    return optimizer


def do_learning(net, optimizer, x, y, iterations):
    net.train()
    loss = torch.zeros(())
    for _ in range(iterations):
        loss = (net(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def evaluate(meta_net, tasks, state, n_tasks=20):
    total = 0.0
    for _, task in zip(range(n_tasks), tasks):
        net = copy.deepcopy(meta_net)
        optimizer = get_optimizer(net, 0.01, copy.deepcopy(state))
        x, y = tasks.sample(task, 10)
        do_learning(net, optimizer, x, y, iterations=5)
        with torch.no_grad():
            x, y = tasks.sample(task, 50)
            total += (net(x) - y).pow(2).mean().item()
    return total / n_tasks


def main():
    torch.manual_seed(0)
    train_tasks, test_tasks = SineTasks(1), SineTasks(2)
    meta_net = ReptileModel()
    meta_optimizer = torch.optim.SGD(meta_net.parameters(), lr=0.5)
    state = None
    for iteration, task in zip(range(200), train_tasks):
        for group in meta_optimizer.param_groups:
            group["lr"] = 0.5 * (1 - iteration / 200)
        net = copy.deepcopy(meta_net)
        optimizer = get_optimizer(net, 0.01, state)
        x, y = train_tasks.sample(task, 10)
        loss = do_learning(net, optimizer, x, y, iterations=5)
        state = optimizer.state_dict()

        meta_net.point_grad_to(net)
        meta_optimizer.step()
        if iteration % 50 == 49:
            print(f"iteration {iteration + 1} loss {loss:.4f} test {evaluate(meta_net, test_tasks, state):.4f}")


if __name__ == "__main__":
    main()
