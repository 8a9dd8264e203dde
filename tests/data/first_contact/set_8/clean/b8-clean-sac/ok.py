"""Soft actor-critic with a learned temperature on a one-dimensional positioning task."""
import copy
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Actor(nn.Module):
    def __init__(self, obs_dim=2, width=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs_dim, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.mean = nn.Linear(width, 1)
        self.log_std = nn.Linear(width, 1)

    def forward(self, obs):
        h = self.body(obs)
        return self.mean(h), self.log_std(h).clamp(-5, 1)

    def sample(self, obs):
        mean, log_std = self(obs)
        normal = torch.distributions.Normal(mean, log_std.exp())
        raw = normal.rsample()
        action = torch.tanh(raw)
        log_prob = normal.log_prob(raw) - torch.log(1 - action.pow(2) + 1e-6)
        return action, log_prob.sum(1, keepdim=True)


class TwinCritic(nn.Module):
    def __init__(self, obs_dim=2, width=32):
        super().__init__()
        self.qs = nn.ModuleList(
            [nn.Sequential(nn.Linear(obs_dim + 1, width), nn.ReLU(), nn.Linear(width, 1)) for _ in range(2)]
        )

    def forward(self, obs, action):
        x = torch.cat([obs, action], 1)
        return [q(x) for q in self.qs]


class Env:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.x, self.goal, self.t = self.rng.uniform(-1, 1), self.rng.uniform(-1, 1), 0
        return self.obs()

    def obs(self):
        return np.array([self.x, self.goal], dtype=np.float32)

    def step(self, action):
        self.x = float(np.clip(self.x + 0.3 * action, -1.5, 1.5))
        self.t += 1
        return self.obs(), -abs(self.x - self.goal), self.t >= 15


class SAC:
    def __init__(self, gamma=0.9, tau=0.02, lr=3e-3):
        self.gamma, self.tau = gamma, tau
        self.actor, self.critic = Actor(), TwinCritic()
        self.target = copy.deepcopy(self.critic)
        for p in self.target.parameters():
            p.requires_grad = False
        self.log_alpha = torch.tensor(math.log(0.2), requires_grad=True)
        self.target_entropy = -1.0
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=lr)
        self.critic_opt = torch.optim.Adam(self.critic.parameters(), lr=lr)
        self.alpha_opt = torch.optim.Adam([self.log_alpha], lr=lr)

    def update(self, obs, action, reward, next_obs, done):
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            next_action, next_logp = self.actor.sample(next_obs)
            next_q = torch.min(*self.target(next_obs, next_action)) - alpha * next_logp
            backup = reward + self.gamma * (1 - done) * next_q
        critic_loss = sum(F.mse_loss(q, backup) for q in self.critic(obs, action))
        self.critic_opt.zero_grad()
        critic_loss.backward()
        self.critic_opt.step()

        for p in self.critic.parameters():
            p.requires_grad = False
        new_action, logp = self.actor.sample(obs)
        actor_loss = (alpha * logp - torch.min(*self.critic(obs, new_action))).mean()
        self.actor_opt.zero_grad()
        actor_loss.backward()
        self.actor_opt.step()
        for p in self.critic.parameters():
            p.requires_grad = True

        alpha_loss = -(self.log_alpha * (logp.detach() + self.target_entropy)).mean()
        self.alpha_opt.zero_grad()
        alpha_loss.backward()
        self.alpha_opt.step()
        with torch.no_grad():
            for p, q in zip(self.critic.parameters(), self.target.parameters()):
                q.data.mul_(1 - self.tau)
                q.data.add_(self.tau * p.data)
        return critic_loss.item(), actor_loss.item()


def main(steps=550, batch_size=64):
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    env, agent, memory = Env(0), SAC(), []
    obs, score, scores = env.reset(), 0.0, []
    for step in range(steps):
        if step < 150:
            action = float(rng.uniform(-1, 1))
        else:
            with torch.no_grad():
                action = agent.actor.sample(torch.from_numpy(obs).unsqueeze(0))[0].item()
        next_obs, reward, done = env.step(action)
        memory.append((obs, [action], [reward], next_obs, [float(done)]))
        score += reward
        obs = next_obs
        if done:
            scores.append(score)
            obs, score = env.reset(), 0.0
        if step >= 150:
            picked = [memory[i] for i in rng.integers(0, len(memory), batch_size)]
            agent.update(*(torch.tensor(np.array(column), dtype=torch.float32) for column in zip(*picked)))
    print(f"first episodes {np.mean(scores[:8]):.2f} last episodes {np.mean(scores[-8:]):.2f}")
    print(f"temperature {agent.log_alpha.exp().item():.3f}")
    return agent


if __name__ == "__main__":
    main()
