"""TRPO: conjugate gradients on Fisher products, a line search by hand, a value net with its own optimizer."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributions import Categorical, kl_divergence


@dataclass
class Config:
    iterations: int = 10
    batch: int = 160
    max_kl: float = 0.02
    damping: float = 0.05
    cg_steps: int = 6
    value_steps: int = 4
    seed: int = 37


def flatten(tensors):
    return torch.cat([t.reshape(-1) for t in tensors])


def set_flat(model, vector):
    at = 0
    for p in model.parameters():
        p.data.copy_(vector[at:at + p.numel()].view_as(p))
        at += p.numel()


def conjugate_gradient(product, b, steps):
    x, r, p = torch.zeros_like(b), b.clone(), b.clone()
    rr = r @ r
    for _ in range(steps):
        ap = product(p)
        alpha = rr / (p @ ap)
        x += alpha * p
        r -= alpha * ap
        new = r @ r
        if new < 1e-10:
            break
        p = r + (new / rr) * p
        rr = new
    return x


class Bandit:
    def __init__(self):
        self.table = torch.randn(5, 4)

    def play(self, policy, n):
        context = torch.randn(n, 5)
        with torch.no_grad():
            action = policy(context).sample()
        reward = (context @ self.table).gather(1, action[:, None])[:, 0] + context[:, 0]
        return context, action, reward


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 24), nn.Tanh(), nn.Linear(24, 4))

    def forward(self, x):
        return Categorical(logits=self.net(x))


def trpo_step(cfg, policy, context, action, advantage):
    params = list(policy.parameters())
    with torch.no_grad():
        old = policy(context)
        old_logp = old.log_prob(action)

    def surrogate():
        return (torch.exp(policy(context).log_prob(action) - old_logp) * advantage).mean()

    gradient = flatten(torch.autograd.grad(surrogate(), params))
    kl = kl_divergence(old, policy(context)).mean()
    kl_grad = flatten(torch.autograd.grad(kl, params, create_graph=True))

    def fisher(v):
        return flatten(torch.autograd.grad(kl_grad @ v, params, retain_graph=True)) + cfg.damping * v

    direction = conjugate_gradient(fisher, gradient, cfg.cg_steps)
    step = direction * (2 * cfg.max_kl / (direction @ fisher(direction))).sqrt()
    start = flatten(p.detach() for p in params)
    with torch.no_grad():
        before = surrogate()
        for shrink in (1.0, 0.5, 0.25, 0.125):
            set_flat(policy, start + shrink * step)
            if surrogate() > before and kl_divergence(old, policy(context)).mean() < 1.5 * cfg.max_kl:
                return shrink
        set_flat(policy, start)
    return 0.0


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    bandit, policy = Bandit(), Policy()
    value = nn.Sequential(nn.Linear(5, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer = torch.optim.Adam(value.parameters(), lr=1e-2)
    for iteration in range(cfg.iterations):
        context, action, reward = bandit.play(policy, cfg.batch)
        with torch.no_grad():
            advantage = reward - value(context)[:, 0]
        shrink = trpo_step(cfg, policy, context, action, (advantage - advantage.mean()) / advantage.std())
        for _ in range(cfg.value_steps):
            loss = (value(context)[:, 0] - reward).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if iteration % 3 == 0:
            print(f"{iteration} reward {reward.mean().item():.3f} step {shrink} value loss {loss.item():.3f}")
    return reward.mean().item()


if __name__ == "__main__":
    main()
