"""Soft actor critic with a delayed policy, a frozen critic in the actor's loss and a learned temperature."""
import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    steps: int = 260
    start: int = 60
    batch: int = 48
    gamma: float = 0.9
    tau: float = 0.02
    policy_frequency: int = 2
    lr: float = 3e-3
    seed: int = 33


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, obs):
        mean, log_std = self.net(obs).chunk(2, 1)
        dist = torch.distributions.Normal(mean, log_std.clamp(-4, 1).exp())
        raw = dist.rsample()
        act = torch.tanh(raw)
        return act, dist.log_prob(raw) - torch.log(1 - act.pow(2) + 1e-6)


class TwinQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.q1 = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 1))
        self.q2 = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, obs, act):
        x = torch.cat([obs, act], 1)
        return self.q1(x), self.q2(x)


class Buffer:
    def __init__(self, size):
        self.data, self.size, self.at = np.zeros((size, 6), dtype=np.float32), 0, 0

    def add(self, *row):
        self.data[self.at] = np.concatenate([np.atleast_1d(r) for r in row])
        self.at = (self.at + 1) % len(self.data)
        self.size = min(self.size + 1, len(self.data))

    def sample(self, n):
        rows = torch.from_numpy(self.data[np.random.randint(self.size, size=n)])
        return rows[:, :2], rows[:, 2:3], rows[:, 3:4], rows[:, 4:6]


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    np.random.seed(cfg.seed)
    actor, critic = Actor(), TwinQ()
    target = copy.deepcopy(critic).requires_grad_(False)
    log_alpha = torch.zeros(1, requires_grad=True)
    actor_opt = torch.optim.Adam(actor.parameters(), lr=cfg.lr)
    critic_opt = torch.optim.Adam(critic.parameters(), lr=cfg.lr)
    alpha_opt = torch.optim.Adam([log_alpha], lr=cfg.lr)
    buffer, obs = Buffer(1000), np.random.randn(2).astype(np.float32)
    rewards = []
    for step in range(cfg.steps):
        with torch.no_grad():
            act = actor(torch.from_numpy(obs).unsqueeze(0))[0].numpy()[0]
        reward = -abs(obs[0] + act[0] - obs[1])
        nxt = np.random.randn(2).astype(np.float32) if step % 5 == 4 else (obs + [0.5 * act[0], 0]).astype(np.float32)
        buffer.add(obs, act, reward, nxt)
        rewards.append(reward)
        obs = nxt
        if step < cfg.start:
            continue
        s, a, r, s2 = buffer.sample(cfg.batch)
        alpha = log_alpha.exp().item()
        with torch.no_grad():
            a2, logp2 = actor(s2)
            y = r + cfg.gamma * (torch.min(*target(s2, a2)) - alpha * logp2)
        critic_loss = sum(F.mse_loss(q, y) for q in critic(s, a))
        critic_opt.zero_grad()
        critic_loss.backward()
        critic_opt.step()

        if step % cfg.policy_frequency == 0:
            # The delayed policy makes up for the steps that it was left out of.
            for _ in range(cfg.policy_frequency):
                critic.requires_grad_(False)
                pi, logp = actor(s)
                actor_loss = (alpha * logp - torch.min(*critic(s, pi))).mean()
                actor_opt.zero_grad()
                actor_loss.backward()
                actor_opt.step()
                critic.requires_grad_(True)
                alpha_loss = -(log_alpha.exp() * (logp.detach() - 1.0)).mean()
                alpha_opt.zero_grad()
                alpha_loss.backward()
                alpha_opt.step()
                alpha = log_alpha.exp().item()
        for slow, fast in zip(target.parameters(), critic.parameters()):
            slow.data.mul_(1 - cfg.tau).add_(fast.data, alpha=cfg.tau)
        if step % 60 == 0:
            print(f"{step} critic {critic_loss.item():.4f} alpha {alpha:.3f} reward {np.mean(rewards[-40:]):.3f}")
    return float(np.mean(rewards[-40:]))


if __name__ == "__main__":
    main()
