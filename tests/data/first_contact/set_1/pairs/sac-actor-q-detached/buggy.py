import copy
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

cfg = SimpleNamespace(seed=11, steps=520, start_steps=100, batch=48, gamma=0.9, tau=0.02, lr=2e-3, hidden=48, alpha_lr=1e-3)


class PointMass:
    obs_dim, act_dim = 3, 1

    def __init__(self, seed):
        self.rng = np.random.RandomState(seed)

    def reset(self):
        self.x, self.goal, self.t = self.rng.uniform(-1, 1), self.rng.uniform(-1, 1), 0
        return self.obs()

    def obs(self):
        return np.array([self.x, self.goal, self.goal - self.x], dtype=np.float32)

    def step(self, a):
        self.x = float(np.clip(self.x + 0.4 * float(a[0]), -2, 2))
        self.t += 1
        return self.obs(), -abs(self.goal - self.x), self.t >= 10


class Replay:
    def __init__(self, size, obs_dim, act_dim):
        self.arrays = dict(s=np.zeros((size, obs_dim), np.float32), a=np.zeros((size, act_dim), np.float32),
                           r=np.zeros((size, 1), np.float32), s2=np.zeros((size, obs_dim), np.float32))
        self.n = 0

    def add(self, **kw):
        for k, v in kw.items():
            self.arrays[k][self.n] = v
        self.n += 1

    def sample(self, rng, batch):
        idx = rng.randint(0, self.n, batch)
        return {k: torch.from_numpy(v[idx]) for k, v in self.arrays.items()}


class Actor(nn.Module):
    def __init__(self, obs_dim, act_dim, hidden):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(obs_dim, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.mu, self.log_std = nn.Linear(hidden, act_dim), nn.Linear(hidden, act_dim)

    def forward(self, s):
        h = self.net(s)
        std = self.log_std(h).clamp(-5, 1).exp()
        return TransformedDistribution(Normal(self.mu(h), std), [TanhTransform(cache_size=1)])

    def sample(self, s):
        dist = self(s)
        a = dist.rsample()
        return a, dist.log_prob(a).sum(-1, keepdim=True)


class QNet(nn.Module):
    def __init__(self, obs_dim, act_dim, hidden):
        super().__init__()
        self.q = nn.Sequential(nn.Linear(obs_dim + act_dim, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, s, a):
        return self.q(torch.cat([s, a], dim=-1))


class SACAgent:
    def __init__(self, env):
        self.actor = Actor(env.obs_dim, env.act_dim, cfg.hidden)
        self.q1, self.q2 = (QNet(env.obs_dim, env.act_dim, cfg.hidden) for _ in range(2))
        self.q1_target, self.q2_target = copy.deepcopy(self.q1).requires_grad_(False), copy.deepcopy(self.q2).requires_grad_(False)
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.target_entropy = -float(env.act_dim)
        self.actor_optim = torch.optim.Adam(self.actor.parameters(), lr=cfg.lr)
        self.q1_optim = torch.optim.Adam(self.q1.parameters(), lr=cfg.lr)
        self.q2_optim = torch.optim.Adam(self.q2.parameters(), lr=cfg.lr)
        self.alpha_optim = torch.optim.Adam([self.log_alpha], lr=cfg.alpha_lr)

    def update(self, b):
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            a2, logp2 = self.actor.sample(b["s2"])
            y = b["r"] + cfg.gamma * (torch.min(self.q1_target(b["s2"], a2), self.q2_target(b["s2"], a2)) - alpha * logp2)
        for q, optim in ((self.q1, self.q1_optim), (self.q2, self.q2_optim)):
            q_loss = F.mse_loss(q(b["s"], b["a"]), y)
            optim.zero_grad()
            q_loss.backward()
            optim.step()

        actions, log_prob = self.actor.sample(b["s"])
        q_actions = torch.min(self.q1(b["s"], actions), self.q2(b["s"], actions))
        actor_loss = (alpha * log_prob - q_actions.detach()).mean()
        self.actor_optim.zero_grad()
        actor_loss.backward()
        self.actor_optim.step()

        alpha_loss = -(self.log_alpha * (log_prob + self.target_entropy).detach()).mean()
        self.alpha_optim.zero_grad()
        alpha_loss.backward()
        self.alpha_optim.step()

        with torch.no_grad():
            for net, target in ((self.q1, self.q1_target), (self.q2, self.q2_target)):
                for p, tp in zip(net.parameters(), target.parameters()):
                    tp.lerp_(p, cfg.tau)
        return q_loss.item(), actor_loss.item()


def evaluate(agent, env, episodes=20):
    total = 0.0
    for _ in range(episodes):
        s, done = env.reset(), False
        while not done:
            with torch.no_grad():
                h = agent.actor.net(torch.from_numpy(s))
                s, r, done = env.step(torch.tanh(agent.actor.mu(h)).numpy())
            total += r
    return total / episodes


def main():
    torch.manual_seed(cfg.seed)
    rng = np.random.RandomState(cfg.seed)
    env = PointMass(cfg.seed)
    agent, replay = SACAgent(env), Replay(cfg.steps, env.obs_dim, env.act_dim)
    s = env.reset()
    for step in range(cfg.steps):
        with torch.no_grad():
            a = rng.uniform(-1, 1, env.act_dim) if step < cfg.start_steps else agent.actor.sample(torch.from_numpy(s))[0].numpy()
        s2, r, done = env.step(a)
        replay.add(s=s, a=a, r=r, s2=s2)
        s = env.reset() if done else s2
        if step >= cfg.start_steps:
            q_loss, actor_loss = agent.update(replay.sample(rng, cfg.batch))
            if (step + 1) % 200 == 0:
                print(f"step {step + 1}  q_loss {q_loss:.4f}  actor_loss {actor_loss:.3f}  alpha {agent.log_alpha.exp().item():.3f}")
    return {"eval_return": evaluate(agent, PointMass(99))}


if __name__ == "__main__":
    main()
