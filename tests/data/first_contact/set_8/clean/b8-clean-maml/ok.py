"""Second-order MAML on sine waves with learned inner step sizes, and a Reptile run of the same network."""
import copy
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call


class Regressor(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, x):
        return self.net(x)


def sample_task(generator, shots=10):
    amplitude = 0.5 + 2 * torch.rand(1, generator=generator)
    phase = math.pi * torch.rand(1, generator=generator)
    x = torch.rand(2 * shots, 1, generator=generator) * 6 - 3
    y = amplitude * torch.sin(x + phase)
    return (x[:shots], y[:shots]), (x[shots:], y[shots:])


class MAML:
    def __init__(self, model, inner_lr=0.05, inner_steps=2, outer_lr=3e-3):
        self.model = model
        self.inner_steps = inner_steps
        self.log_lrs = {
            name: torch.full((), math.log(inner_lr), requires_grad=True) for name, _ in model.named_parameters()
        }
        self.optimizer = torch.optim.Adam(
            [{"params": model.parameters()}, {"params": list(self.log_lrs.values()), "lr": outer_lr * 3}], lr=outer_lr
        )

    def adapt(self, support, create_graph=True):
        fast = dict(self.model.named_parameters())
        x, y = support
        for _ in range(self.inner_steps):
            loss = F.mse_loss(functional_call(self.model, fast, (x,)), y)
            grads = torch.autograd.grad(loss, list(fast.values()), create_graph=create_graph)
            fast = {k: p - self.log_lrs[k].exp() * g for (k, p), g in zip(fast.items(), grads)}
        return fast

    def meta_step(self, tasks):
        self.optimizer.zero_grad()
        total = 0.0
        for support, (x, y) in tasks:
            fast = self.adapt(support)
            loss = F.mse_loss(functional_call(self.model, fast, (x,)), y) / len(tasks)
            loss.backward()
            total += loss.item()
        self.optimizer.step()
        return total

    def evaluate(self, tasks):
        errors = []
        for support, (x, y) in tasks:
            fast = {k: p.detach() for k, p in self.adapt(support, create_graph=False).items()}
            with torch.no_grad():
                errors.append(F.mse_loss(functional_call(self.model, fast, (x,)), y).item())
        return sum(errors) / len(errors)


def reptile(model, generator, steps=40, inner_steps=4, epsilon=0.3):
    for _ in range(steps):
        (x, y), _ = sample_task(generator)
        learner = copy.deepcopy(model)
        inner = torch.optim.SGD(learner.parameters(), lr=0.05)
        for _ in range(inner_steps):
            inner.zero_grad()
            F.mse_loss(learner(x), y).backward()
            inner.step()
        with torch.no_grad():
            for p, q in zip(model.parameters(), learner.parameters()):
                p.lerp_(q, epsilon)
    return model


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    held_out = [sample_task(torch.Generator().manual_seed(100 + i)) for i in range(10)]
    maml = MAML(Regressor())
    for step in range(1, 61):
        loss = maml.meta_step([sample_task(generator) for _ in range(4)])
        if step % 20 == 0:
            print(f"step {step} query loss {loss:.4f} held out {maml.evaluate(held_out):.4f}")
    other = MAML(reptile(Regressor(), generator))
    print(f"reptile held out {other.evaluate(held_out):.4f}")
    return maml


if __name__ == "__main__":
    main()
