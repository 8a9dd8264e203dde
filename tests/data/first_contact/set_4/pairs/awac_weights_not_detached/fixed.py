"""Advantage weighted actor-critic on a fixed dataset of a discrete control task."""
import copy
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Categorical


@dataclass
class Config:
    dataset_size: int = 3000
    steps: int = 400
    batch_size: int = 128
    gamma: float = 0.9
    temperature: float = 0.3
    weight_clip: float = 20.0
    lr: float = 2e-3
    target_period: int = 25
    max_grad_norm: float = 10.0
    seed: int = 11


def dynamics(state, action):
    push = (action - 2).float() * 0.3
    pos = state[:, 0] + 0.2 * state[:, 1]
    vel = 0.9 * state[:, 1] + push
    nxt = torch.stack([pos, vel], 1)
    return nxt, -(pos.abs() + 0.1 * vel.abs())


def make_dataset(cfg, gen):
    s = torch.rand(cfg.dataset_size, 2, generator=gen) * 4 - 2
    expert = (2 - torch.sign(s[:, 0] + s[:, 1]) * 1.0).long()
    noise = torch.randint(0, 5, (cfg.dataset_size,), generator=gen)
    a = torch.where(torch.rand(cfg.dataset_size, generator=gen) < 0.25, expert, noise)
    s2, r = dynamics(s, a)
    return {"s": s, "a": a, "r": r, "s2": s2}


class MLP(nn.Module):
    def __init__(self, out, hidden=48):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
                                 nn.Linear(hidden, out))

    def forward(self, x):
        return self.net(x)


class AWACAgent(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.actor, self.critic = MLP(5), MLP(5)
        self.target_critic = copy.deepcopy(self.critic)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=cfg.lr)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=cfg.lr)

    def policy(self, s):
        return Categorical(logits=self.actor(s))

    def compute_advantage(self, s, a):
        q = self.critic(s)
        q_taken = q.gather(1, a[:, None]).squeeze(1)
        v = (self.policy(s).probs * q).sum(1)
        return q_taken - v

    def actor_loss(self, s, a):
        log_prob = self.policy(s).log_prob(a)
        adv = self.compute_advantage(s, a)
        weights = torch.exp(adv / self.cfg.temperature).clamp(max=self.cfg.weight_clip).detach()
        return -(log_prob * weights).mean()

    def update_critic(self, s, a, r, s2):
        with torch.no_grad():
            next_v = (self.policy(s2).probs * self.target_critic(s2)).sum(1)
            target = r + self.cfg.gamma * next_v
        loss = F.mse_loss(self.critic(s).gather(1, a[:, None]).squeeze(1), target)
        self.critic_optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.critic.parameters(), self.cfg.max_grad_norm)
        self.critic_optimizer.step()
        return loss.item()

    def update_actor(self, s, a):
        loss = self.actor_loss(s, a)
        self.actor_optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.actor.parameters(), self.cfg.max_grad_norm)
        self.actor_optimizer.step()
        return loss.item()

    def update(self, batch, step):
        info = {"critic": self.update_critic(batch["s"], batch["a"], batch["r"], batch["s2"]),
                "actor": self.update_actor(batch["s"], batch["a"])}
        if step % self.cfg.target_period == 0:
            self.target_critic.load_state_dict(self.critic.state_dict())
        return info


@torch.no_grad()
def evaluate(agent, n=64, horizon=25):
    gen = torch.Generator().manual_seed(0)
    s = torch.rand(n, 2, generator=gen) * 4 - 2
    total = torch.zeros(n)
    for _ in range(horizon):
        probs = agent.policy(s).probs
        s, r = dynamics(s, torch.multinomial(probs, 1, generator=gen).squeeze(1))
        total += r
    return total.mean().item()


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed)
    data = make_dataset(cfg, gen)
    agent = AWACAgent(cfg)
    for step in range(cfg.steps):
        idx = torch.randint(0, cfg.dataset_size, (cfg.batch_size,), generator=gen)
        info = agent.update({k: v[idx] for k, v in data.items()}, step)
        if step % 200 == 0:
            print(f"step {step} critic {info['critic']:.3f} actor {info['actor']:.3f} return {evaluate(agent):.2f}")
    with torch.no_grad():
        bc = agent.policy(data["s"]).log_prob(data["a"]).mean().item()
    result = {"return": round(evaluate(agent), 3), "log_prob_of_data": round(bc, 3)}
    print(result)
    return result


if __name__ == "__main__":
    main()
