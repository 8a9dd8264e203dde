"""PPO on a batch of point masses simulated in torch, with a stable-baselines-like rollout buffer."""
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.distributions import Normal


@dataclass
class PPOConfig:
    num_envs: int = 32
    n_steps: int = 16
    n_epochs: int = 4
    minibatches: int = 4
    gamma: float = 0.95
    gae_lambda: float = 0.9
    clip_range: float = 0.2
    vf_coef: float = 0.5
    lr: float = 3e-3
    iterations: int = 15
    seed: int = 7


class VecPointMass:
    obs_dim, act_dim = 4, 2

    def __init__(self, num_envs):
        self.num_envs = num_envs
        self.obs_buf = torch.zeros(num_envs, self.obs_dim)
        self.age = torch.zeros(num_envs, dtype=torch.long)

    def reset(self):
        self.reset_idx(torch.arange(self.num_envs))
        return self.obs_buf.clone()

    def reset_idx(self, idx):
        self.obs_buf[idx] = torch.cat([2 * torch.randn(len(idx), 2), torch.zeros(len(idx), 2)], dim=1)
        self.age[idx] = torch.randint(0, 8, (len(idx),))

    def step(self, actions):
        self.obs_buf[:, 2:].mul_(0.7).add_(actions.clamp(-1, 1))
        self.obs_buf[:, :2].add_(0.6 * self.obs_buf[:, 2:])
        reward = 1.0 - self.obs_buf[:, :2].pow(2).sum(-1).clamp(max=8.0)
        self.age += 1
        done = self.age >= 24
        self.reset_idx(done.nonzero().flatten())
        return self.obs_buf.clone(), reward, done.float()


class ActorCritic(nn.Module):
    def __init__(self, obs_dim, act_dim):
        super().__init__()
        self.pi = nn.Sequential(nn.Linear(obs_dim, 32), nn.Tanh(), nn.Linear(32, act_dim))
        self.vf = nn.Sequential(nn.Linear(obs_dim, 32), nn.Tanh(), nn.Linear(32, 1))
        self.log_std = nn.Parameter(torch.full((act_dim,), -0.5))

    def dist(self, obs):
        return Normal(self.pi(obs), self.log_std.exp())

    def value(self, obs):
        return self.vf(obs).squeeze(-1)


class RolloutBuffer:
    def __init__(self, cfg, obs_dim, act_dim):
        shape = (cfg.n_steps, cfg.num_envs)
        self.obs, self.actions = torch.zeros(*shape, obs_dim), torch.zeros(*shape, act_dim)
        self.logp, self.values, self.rewards, self.dones = (torch.zeros(shape) for _ in range(4))
        self.pos = 0

    def add(self, obs, action, logp, value, reward, done):
        self.obs[self.pos] = obs
        self.actions[self.pos] = action
        self.logp[self.pos], self.values[self.pos] = logp, value
        self.rewards[self.pos], self.dones[self.pos] = reward, done
        self.pos = (self.pos + 1) % self.obs.shape[0]

    def advantages(self, last_value, cfg):
        adv, gae = torch.zeros_like(self.rewards), 0.0
        for t in reversed(range(self.obs.shape[0])):
            next_value = last_value if t == self.obs.shape[0] - 1 else self.values[t + 1]
            alive = 1.0 - self.dones[t]
            delta = self.rewards[t] + cfg.gamma * next_value * alive - self.values[t]
            gae = delta + cfg.gamma * cfg.gae_lambda * alive * gae
            adv[t] = gae
        return adv


class PPO:
    def __init__(self, cfg):
        torch.manual_seed(cfg.seed)
        self.cfg = cfg
        self.env = VecPointMass(cfg.num_envs)
        self.policy = ActorCritic(self.env.obs_dim, self.env.act_dim)
        self.buffer = RolloutBuffer(cfg, self.env.obs_dim, self.env.act_dim)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=cfg.lr)
        self._last_obs = self.env.reset()
        self.first_ratio_error, self.rewards = [], []

    @torch.no_grad()
    def collect_rollouts(self):
        for _ in range(self.cfg.n_steps):
            dist = self.policy.dist(self._last_obs)
            action, value = dist.sample(), self.policy.value(self._last_obs)
            new_obs, reward, done = self.env.step(action)
            self.buffer.add(self._last_obs, action, dist.log_prob(action).sum(-1), value, reward, done)
            self._last_obs = new_obs
        self.rewards.append(self.buffer.rewards.mean().item())
        return self.buffer.advantages(self.policy.value(self._last_obs), self.cfg)

    def train(self, adv):
        b = self.buffer
        returns = (adv + b.values).flatten()
        obs, actions, old_logp, adv = b.obs.flatten(0, 1), b.actions.flatten(0, 1), b.logp.flatten(), adv.flatten()
        for epoch in range(self.cfg.n_epochs):
            for i, idx in enumerate(torch.randperm(len(adv)).chunk(self.cfg.minibatches)):
                ratio = (self.policy.dist(obs[idx]).log_prob(actions[idx]).sum(-1) - old_logp[idx]).exp()
                if epoch == 0 and i == 0:
                    self.first_ratio_error.append((ratio - 1).abs().mean().item())
                a = (adv[idx] - adv[idx].mean()) / (adv[idx].std() + 1e-8)
                clipped = ratio.clamp(1 - self.cfg.clip_range, 1 + self.cfg.clip_range)
                pi_loss = -torch.min(ratio * a, clipped * a).mean()
                loss = pi_loss + self.cfg.vf_coef * (self.policy.value(obs[idx]) - returns[idx]).pow(2).mean()
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.policy.parameters(), 0.5)
                self.optimizer.step()
        return loss.item()


def main():
    algo = PPO(PPOConfig())
    for it in range(algo.cfg.iterations):
        loss = algo.train(algo.collect_rollouts())
        if it % 5 == 4:
            print(f"iter {it + 1} loss {loss:.3f} reward {algo.rewards[-1]:.3f}")
    return algo


if __name__ == "__main__":
    main()
