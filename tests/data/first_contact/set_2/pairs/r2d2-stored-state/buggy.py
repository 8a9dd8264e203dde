"""Recurrent Q-learning with stored states and a burn-in, on a memory task."""
import copy
import random
from collections import deque
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    episodes: int = 50
    episode_len: int = 10
    sequence: int = 5
    capacity: int = 4000
    batch_size: int = 16
    updates_per_episode: int = 2
    gamma: float = 0.9
    lr: float = 3e-3
    target_period: int = 20
    eps_start: float = 1.0
    eps_end: float = 0.1
    seed: int = 14


class CueTask:
    """The cue is shown first; acting like the cue pays at every later step."""

    observations, actions = 4, 2

    def __init__(self, length):
        self.length = length

    def reset(self):
        self.cue, self.t = random.randrange(self.actions), 0
        return self.observe()

    def observe(self):
        obs = torch.zeros(self.observations)
        obs[self.cue if self.t == 0 else 2] = 1.0
        obs[3] = self.t / self.length
        return obs

    def step(self, action):
        reward = 1.0 if action == self.cue and self.t > 0 else 0.0
        self.t += 1
        return self.observe(), reward, self.t == self.length


class RecurrentQ(nn.Module):
    def __init__(self, observations, actions, hidden=24):
        super().__init__()
        self.hidden = hidden
        self.embed = nn.Linear(observations, hidden)
        self.cell = nn.LSTMCell(hidden, hidden)
        self.head = nn.Linear(hidden, actions)

    def initial_state(self, batch=1):
        return torch.zeros(batch, self.hidden), torch.zeros(batch, self.hidden)

    def forward(self, obs, state):
        h, c = self.cell(F.relu(self.embed(obs)), state)
        return self.head(h), (h, c)

    def unroll(self, obs, state):
        outputs = []
        for t in range(obs.shape[1]):
            q, state = self(obs[:, t], state)
            outputs.append(q)
        return torch.stack(outputs, dim=1)


class Experience:
    def __init__(self, capacity):
        self.rows = deque(maxlen=capacity)

    def add(self, obs, action, reward, done, state):
        self.rows.append({"obs": obs, "action": action, "reward": reward, "done": done, "state": state})

    def sample(self, batch, length):
        starts = random.sample(range(len(self.rows) - length), batch)
        return [[self.rows[s + k] for k in range(length)] for s in starts]


class Actor:
    def __init__(self, cfg, net):
        self.cfg, self.net = cfg, net

    def run_episode(self, env, buffer, epsilon):
        obs, state, total, done = env.reset(), self.net.initial_state(), 0.0, False
        while not done:
            q, next_state = self.net(obs.unsqueeze(0), state)
            action = q.argmax(dim=1).item()
            if random.random() < epsilon:
                action = random.randrange(env.actions)
            next_obs, reward, done = env.step(action)
            buffer.add(obs, action, reward, float(done), state)
            obs, state, total = next_obs, next_state, total + reward
        return total


class Learner:
    def __init__(self, cfg, net):
        self.cfg, self.net = cfg, net
        self.target = copy.deepcopy(net).requires_grad_(False)
        self.optimizer = torch.optim.Adam(net.parameters(), lr=cfg.lr)
        self.steps = 0

    def update(self, buffer):
        sequences = buffer.sample(self.cfg.batch_size, self.cfg.sequence)
        obs = torch.stack([torch.stack([r["obs"] for r in s]) for s in sequences])
        action = torch.tensor([[r["action"] for r in s] for s in sequences])
        reward = torch.tensor([[r["reward"] for r in s] for s in sequences])
        done = torch.tensor([[r["done"] for r in s] for s in sequences])
        state = tuple(torch.cat([s[0]["state"][k] for s in sequences]).detach() for k in range(2))
        q = self.net.unroll(obs, state).gather(2, action.unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            next_q = self.target.unroll(obs, state).amax(dim=2)[:, 1:]
        target = reward[:, :-1] + self.cfg.gamma * (1 - done[:, :-1]) * next_q
        loss = F.smooth_l1_loss(q[:, :-1], target)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 10.0)
        self.optimizer.step()
        self.steps += 1
        if self.steps % self.cfg.target_period == 0:
            self.target.load_state_dict(self.net.state_dict())
        return loss.item()


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    random.seed(cfg.seed)
    env, net = CueTask(cfg.episode_len), RecurrentQ(CueTask.observations, CueTask.actions)
    buffer, actor, learner = Experience(cfg.capacity), Actor(cfg, net), Learner(cfg, net)
    for episode in range(cfg.episodes):
        epsilon = max(cfg.eps_end, cfg.eps_start - episode / 30)
        total = actor.run_episode(env, buffer, epsilon)
        if episode >= 5:
            loss = [learner.update(buffer) for _ in range(cfg.updates_per_episode)][-1]
            if episode % 15 == 0:
                print(f"episode {episode} return {total:.1f} loss {loss:.4f}")
    return {"stored": len(buffer.rows), "buffer": buffer}


if __name__ == "__main__":
    main()
