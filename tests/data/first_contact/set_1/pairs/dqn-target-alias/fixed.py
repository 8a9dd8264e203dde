import copy
import math
import random
from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    seed: int = 3
    device: str = "cpu"
    train_eps: int = 50
    max_steps: int = 40
    gamma: float = 0.95
    epsilon_start: float = 0.95
    epsilon_end: float = 0.05
    epsilon_decay: int = 300
    lr: float = 2e-3
    memory_capacity: int = 2000
    batch_size: int = 32
    target_update: int = 8
    hidden_dim: int = 32


class Corridor:
    n_states = n_actions = 2

    def reset(self):
        self.pos, self.t = 0.0, 0
        return self.obs()

    def obs(self):
        return np.array([self.pos, math.sin(self.pos)], dtype=np.float32)

    def step(self, action):
        self.t += 1
        self.pos += (0.25 if action == 1 else -0.25) + random.gauss(0, 0.05)
        done = self.pos > 2.0 or self.pos < -1.0
        reward = 5.0 if self.pos > 2.0 else (-1.0 if self.pos < -1.0 else -0.1)
        return self.obs(), reward, done


class ReplayBuffer:
    def __init__(self, capacity):
        self.buffer = deque(maxlen=capacity)

    def push(self, *transition):
        self.buffer.append(transition)

    def sample(self, batch_size):
        return [np.array(x) for x in zip(*random.sample(self.buffer, batch_size))]


class MLP(nn.Module):
    def __init__(self, n_states, n_actions, hidden_dim=32):
        super().__init__()
        self.fc1 = nn.Linear(n_states, hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, hidden_dim)
        self.fc3 = nn.Linear(hidden_dim, n_actions)

    def forward(self, x):
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class DQN:
    def __init__(self, models, memory, cfg):
        self.cfg = cfg
        self.device = torch.device(cfg.device)
        self.sample_count = 0
        self.policy_net = models["Qnet"].to(self.device)
        self.target_net = copy.deepcopy(models["Qnet"]).to(self.device)
        for target_param, param in zip(self.target_net.parameters(), self.policy_net.parameters()):
            target_param.data.copy_(param.data)
        self.optimizer = torch.optim.Adam(self.policy_net.parameters(), lr=cfg.lr)
        self.memory = memory
        self.best = (-float("inf"), None)

    def sample_action(self, state):
        self.sample_count += 1
        cfg = self.cfg
        epsilon = cfg.epsilon_end + (cfg.epsilon_start - cfg.epsilon_end) * math.exp(-self.sample_count / cfg.epsilon_decay)
        return self.predict_action(state) if random.random() > epsilon else random.randrange(2)

    @torch.no_grad()
    def predict_action(self, state):
        state = torch.as_tensor(state, device=self.device).unsqueeze(0)
        return self.policy_net(state).argmax(dim=1).item()

    def update(self):
        if len(self.memory.buffer) < self.cfg.batch_size:
            return None
        s, a, r, s2, d = self.memory.sample(self.cfg.batch_size)
        s, s2, a = torch.from_numpy(s), torch.from_numpy(s2), torch.from_numpy(a).unsqueeze(1)
        r, d = torch.from_numpy(r).float(), torch.from_numpy(d).float()
        q_values = self.policy_net(s).gather(1, a).squeeze(1)
        with torch.no_grad():
            next_q = self.target_net(s2).max(1).values
            expected = r + self.cfg.gamma * next_q * (1 - d)
        loss = F.mse_loss(q_values, expected)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(self.policy_net.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()

    def keep_best(self, ep_return):
        if ep_return > self.best[0]:
            self.best = (ep_return, copy.deepcopy(self.policy_net.state_dict()))


def train(cfg, env, agent):
    lags = []
    for ep in range(cfg.train_eps):
        state, ep_return = env.reset(), 0.0
        for _ in range(cfg.max_steps):
            action = agent.sample_action(state)
            next_state, reward, done = env.step(action)
            agent.memory.push(state, action, reward, next_state, float(done))
            loss = agent.update()
            state, ep_return = next_state, ep_return + reward
            if done:
                break
        with torch.no_grad():
            probe = torch.linspace(-1, 2, 16).unsqueeze(1).repeat(1, 2)
            lags.append((agent.policy_net(probe) - agent.target_net(probe)).abs().mean().item())
        if (ep + 1) % cfg.target_update == 0:
            agent.target_net.load_state_dict(agent.policy_net.state_dict())
        agent.keep_best(ep_return)
        if (ep + 1) % 10 == 0 and loss is not None:
            print(f"episode {ep + 1}  return {ep_return:.2f}  loss {loss:.4f}")
    return lags


def main():
    cfg = Config()
    random.seed(cfg.seed), torch.manual_seed(cfg.seed)
    env = Corridor()
    models = {"Qnet": MLP(env.n_states, env.n_actions, cfg.hidden_dim)}
    agent = DQN(models, ReplayBuffer(cfg.memory_capacity), cfg)
    lags = train(cfg, env, agent)
    return {"mean_target_lag": sum(lags) / len(lags), "best": agent.best[0]}


if __name__ == "__main__":
    main()
