"""Recurrent Q-learning with stored states, burn-in without gradient and a periodically copied target."""
import random
from collections import deque
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    obs: int = 3
    actions: int = 2
    hidden: int = 24
    burn_in: int = 4
    length: int = 12
    gamma: float = 0.9
    batch: int = 16
    lr: float = 3e-3
    copy_every: int = 20
    episodes: int = 60


class RecurrentQ(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.inp = nn.Linear(cfg.obs, cfg.hidden)
        self.gru = nn.GRUCell(cfg.hidden, cfg.hidden)
        self.value, self.advantage = nn.Linear(cfg.hidden, 1), nn.Linear(cfg.hidden, cfg.actions)

    def step(self, obs, h):
        h = self.gru(F.relu(self.inp(obs)), h)
        a = self.advantage(h)
        return self.value(h) + a - a.mean(-1, keepdim=True), h

    def unroll(self, obs, h):
        out = []
        for t in range(obs.shape[1]):
            q, h = self.step(obs[:, t], h)
            out.append(q)
        return torch.stack(out, dim=1), h


class Memory:
    """The reward asks for the action that was shown a few steps ago."""

    def reset(self):
        self.shown = deque([0, 0], maxlen=2)
        return self.observe()

    def observe(self):
        self.now = random.randrange(2)
        return torch.tensor([float(self.now == 0), float(self.now == 1), 1.0])

    def step(self, action):
        reward = float(action == self.shown[0])
        self.shown.append(self.now)
        return self.observe(), reward


class Agent:
    def __init__(self, cfg):
        random.seed(4)
        torch.manual_seed(4)
        self.cfg = cfg
        self.online, self.target = RecurrentQ(cfg), RecurrentQ(cfg)
        self.target.load_state_dict(self.online.state_dict())
        self.target.requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=cfg.lr)
        self.replay = deque(maxlen=400)
        self.updates = 0

    @torch.no_grad()
    def act_episode(self, env, eps):
        obs, h, rows, total = env.reset(), torch.zeros(1, self.cfg.hidden), [], 0.0
        for _ in range(self.cfg.burn_in + self.cfg.length):
            q, h_next = self.online.step(obs[None], h)
            action = random.randrange(2) if random.random() < eps else int(q.argmax())
            next_obs, reward = env.step(action)
            rows.append((obs, torch.tensor(action), torch.tensor(reward)))
            obs, h, total = next_obs, h_next, total + reward
        self.replay.append([torch.stack(x) for x in zip(*rows)])
        return total / (self.cfg.burn_in + self.cfg.length)

    def learn(self):
        obs, act, rew = (torch.stack(x) for x in zip(*random.sample(self.replay, self.cfg.batch)))
        k, h0 = self.cfg.burn_in, torch.zeros(self.cfg.batch, self.cfg.hidden)
        with torch.no_grad():
            _, h = self.online.unroll(obs[:, :k], h0)
            q_target, _ = self.target.unroll(obs[:, k:], self.target.unroll(obs[:, :k], h0)[1])
        q, _ = self.online.unroll(obs[:, k:], h)
        best = q.detach().argmax(-1)
        boot = q_target.gather(-1, best[..., None]).squeeze(-1)
        y = rew[:, k:-1] + self.cfg.gamma * boot[:, 1:]
        loss = F.smooth_l1_loss(q.gather(-1, act[:, k:, None]).squeeze(-1)[:, :-1], y)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.online.parameters(), 10.0)
        self.optimizer.step()
        self.updates += 1
        if self.updates % self.cfg.copy_every == 0:
            self.target.load_state_dict(self.online.state_dict())
        return loss.item()


def main():
    cfg = Config()
    agent, env = Agent(cfg), Memory()
    for episode in range(cfg.episodes):
        score = agent.act_episode(env, eps=max(0.1, 1 - episode / 30))
        if len(agent.replay) >= cfg.batch:
            losses = [agent.learn() for _ in range(2)]
            if episode % 20 == 19:
                print(f"episode {episode + 1} loss {losses[-1]:.4f} score {score:.2f}")
    return sum(agent.act_episode(env, 0.0) for _ in range(10)) / 10


if __name__ == "__main__":
    main()
