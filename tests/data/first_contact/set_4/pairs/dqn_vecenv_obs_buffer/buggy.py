"""Double DQN over a small vectorised environment."""
import copy
import random
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    num_envs: int = 4
    steps: int = 400
    warmup: int = 50
    batch_size: int = 64
    gamma: float = 0.9
    lr: float = 2e-3
    sync_every: int = 50
    eps_end: float = 0.1
    buffer_size: int = 4000
    seed: int = 5


class CorridorVecEnv:
    """num_envs agents that balance a drifting pole; the observations live in one preallocated array."""

    def __init__(self, num_envs, seed):
        self.num_envs = num_envs
        self.rng = np.random.default_rng(seed)
        self.observations = np.zeros((num_envs, 3), dtype=np.float32)
        self.t = np.zeros(num_envs, dtype=np.int64)

    def _reset_rows(self, rows):
        self.observations[rows] = self.rng.uniform(-1, 1, (len(rows), 3))
        self.t[rows] = 0

    def reset(self):
        self._reset_rows(np.arange(self.num_envs))
        return self.observations.copy()

    def step(self, actions):
        o = self.observations
        force = (actions - 1).astype(np.float32)
        o[:, 0] += 0.2 * o[:, 1]
        o[:, 1] += 0.4 * force + 0.1 * o[:, 2]
        o[:, 2] *= 0.9
        rewards = -np.abs(o[:, 0]) - 0.05 * np.abs(o[:, 1])
        self.t += 1
        dones = (np.abs(o[:, 0]) > 3) | (self.t >= 30)
        self._reset_rows(np.flatnonzero(dones))
        return self.observations, rewards.astype(np.float32), dones


class ReplayBuffer:
    def __init__(self, size, obs_dim):
        self.obs = torch.zeros(size, obs_dim)
        self.next_obs = torch.zeros(size, obs_dim)
        self.actions = torch.zeros(size, dtype=torch.long)
        self.rewards, self.dones, self.size = torch.zeros(size), torch.zeros(size), size
        self.pos, self.full = 0, False

    def add(self, obs, next_obs, actions, rewards, dones):
        for i in range(len(actions)):
            self.obs[self.pos] = obs[i]
            self.next_obs[self.pos] = next_obs[i]
            self.actions[self.pos] = int(actions[i])
            self.rewards[self.pos], self.dones[self.pos] = float(rewards[i]), float(dones[i])
            self.pos = (self.pos + 1) % self.size
            self.full = self.full or self.pos == 0

    def sample(self, n):
        idx = torch.randint(0, self.size if self.full else self.pos, (n,))
        return self.obs[idx], self.next_obs[idx], self.actions[idx], self.rewards[idx], self.dones[idx]


class QNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.head = nn.Linear(48, 3)

    def forward(self, x):
        return self.head(self.body(x))


class DQN:
    def __init__(self, cfg):
        self.cfg, self.q = cfg, QNetwork()
        self.q_target = copy.deepcopy(self.q)
        self.optimizer = torch.optim.Adam(self.q.parameters(), lr=cfg.lr)
        self.replay = ReplayBuffer(cfg.buffer_size, 3)

    @torch.no_grad()
    def act(self, obs, eps):
        return np.array([random.randrange(3) if random.random() < eps else int(g) for g in self.q(obs).argmax(1)])

    def train_step(self):
        obs, next_obs, actions, rewards, dones = self.replay.sample(self.cfg.batch_size)
        with torch.no_grad():
            best = self.q(next_obs).argmax(1, keepdim=True)
            target = rewards + self.cfg.gamma * (1 - dones) * self.q_target(next_obs).gather(1, best).squeeze(1)
        pred = self.q(obs).gather(1, actions[:, None]).squeeze(1)
        loss = F.smooth_l1_loss(pred, target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def learn(self):
        cfg = self.cfg
        env = CorridorVecEnv(cfg.num_envs, cfg.seed)
        last_obs = torch.from_numpy(env.reset())
        for step in range(cfg.steps):
            eps = max(cfg.eps_end, 1 - step / 200)
            actions = self.act(last_obs, eps)
            new_obs, rewards, dones = env.step(actions)
            new_obs = torch.from_numpy(new_obs)
            self.replay.add(last_obs, new_obs, actions, rewards, dones)
            last_obs = new_obs
            if step >= cfg.warmup:
                loss = self.train_step()
                if step % cfg.sync_every == 0:
                    self.q_target.load_state_dict(self.q.state_dict())
                if step % 150 == 0:
                    print(f"step {step} loss {loss:.4f} return {self.evaluate():.2f}")

    def evaluate(self):
        env, total = CorridorVecEnv(8, 123), 0.0
        obs = env.reset()
        for _ in range(29):
            obs, rewards, _ = env.step(self.act(torch.tensor(obs), 0.0))
            total += rewards.mean()
        return float(total)


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed), random.seed(cfg.seed)
    agent = DQN(cfg)
    agent.learn()
    gap = (agent.replay.obs[: agent.replay.pos] - agent.replay.next_obs[: agent.replay.pos]).abs().mean()
    result = {"return": round(agent.evaluate(), 3), "obs_vs_next_obs": round(gap.item(), 4)}
    print(result)
    return result


if __name__ == "__main__":
    main()
