"""TD3: twin critics, delayed actor, target networks updated in place."""
import copy
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    steps: int = 400
    batch_size: int = 64
    gamma: float = 0.9
    tau: float = 0.02
    policy_delay: int = 2
    noise: float = 0.2
    noise_clip: float = 0.4
    lr: float = 2e-3
    seed: int = 0


def mlp(i, o, h=32):
    return nn.Sequential(nn.Linear(i, h), nn.ReLU(), nn.Linear(h, o))


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp(3, 1)

    def forward(self, s):
        return torch.tanh(self.net(s))


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.q1, self.q2 = mlp(4, 1), mlp(4, 1)

    def forward(self, s, a):
        x = torch.cat([s, a], 1)
        return self.q1(x), self.q2(x)


class TD3:
    def __init__(self, cfg):
        self.cfg, self.it = cfg, 0
        self.actor, self.critic = Actor(), Critic()
        self.actor_target, self.critic_target = copy.deepcopy(self.actor), copy.deepcopy(self.critic)
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=cfg.lr)
        self.critic_opt = torch.optim.Adam(self.critic.parameters(), lr=cfg.lr)

    def soft_update(self, net, target):
        for p, tp in zip(net.parameters(), target.parameters()):
            tp.data.mul_(1 - self.cfg.tau).add_(p.data, alpha=self.cfg.tau)

    def train_step(self, s, a, r, s2):
        self.it += 1
        with torch.no_grad():
            eps = (torch.randn_like(a) * self.cfg.noise).clamp_(-self.cfg.noise_clip, self.cfg.noise_clip)
            a2 = (self.actor_target(s2) + eps).clamp_(-1, 1)
            target = r + self.cfg.gamma * torch.min(*self.critic_target(s2, a2))
        q1, q2 = self.critic(s, a)
        critic_loss = F.mse_loss(q1, target) + F.mse_loss(q2, target)
        self.critic_opt.zero_grad()
        critic_loss.backward()
        self.critic_opt.step()
        if self.it % self.cfg.policy_delay == 0:
            actor_loss = -self.critic(s, self.actor(s))[0].mean()
            self.actor_opt.zero_grad()
            actor_loss.backward()
            self.actor_opt.step()
            self.soft_update(self.critic, self.critic_target)
            self.soft_update(self.actor, self.actor_target)
        return critic_loss.item()


def batch(n, gen):
    s = torch.randn(n, 3, generator=gen)
    a = torch.rand(n, 1, generator=gen) * 2 - 1
    s2 = 0.8 * s + 0.4 * a
    return s, a, -(s2 ** 2).mean(1, keepdim=True), s2


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed)
    agent = TD3(cfg)
    for step in range(cfg.steps):
        loss = agent.train_step(*batch(cfg.batch_size, gen))
        if step % 100 == 0:
            print(f"step {step} critic loss {loss:.4f}")
    with torch.no_grad():
        s, _, _, _ = batch(500, gen)
        cost = ((0.8 * s + 0.4 * agent.actor(s)) ** 2).mean().item()
    result = {"critic_loss": round(loss, 4), "cost": round(cost, 4)}
    print(result)
    return result


if __name__ == "__main__":
    main()
