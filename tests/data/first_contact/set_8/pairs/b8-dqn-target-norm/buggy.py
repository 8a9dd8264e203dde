"""Deep Q-learning on a small thermostat task, with normalised observations inside the network."""
import random
from collections import deque

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Thermostat:
    """State: temperature, outside temperature, hour. Actions: cool, idle, heat."""

    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.temp = self.rng.uniform(12, 30)
        self.outside = self.rng.uniform(5, 35)
        self.hour = 0
        return self._obs()

    def _obs(self):
        return np.array([self.temp, self.outside, self.hour], dtype=np.float32)

    def step(self, action):
        self.temp += (action - 1) * 1.5 + 0.05 * (self.outside - self.temp) + self.rng.normal(0, 0.2)
        self.hour += 1
        reward = 1.0 - abs(self.temp - 21.0) / 5.0
        return self._obs(), float(reward), self.hour >= 24


class QNetwork(nn.Module):
    def __init__(self, obs_dim=3, n_actions=3, width=32):
        super().__init__()
        self.features = nn.Sequential(nn.BatchNorm1d(obs_dim), nn.Linear(obs_dim, width), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, n_actions))

    def forward(self, obs):
        return self.head(self.features(obs))

    def set_training_mode(self, mode):
        self.train(mode)


class ReplayBuffer:
    def __init__(self, size):
        self.storage = deque(maxlen=size)

    def add(self, *transition):
        self.storage.append(transition)

    def sample(self, batch_size):
        obs, actions, rewards, next_obs, dones = zip(*random.sample(self.storage, batch_size))
        return (
            torch.from_numpy(np.stack(obs)),
            torch.tensor(actions).unsqueeze(1),
            torch.tensor(rewards).unsqueeze(1),
            torch.from_numpy(np.stack(next_obs)),
            torch.tensor(dones, dtype=torch.float32).unsqueeze(1),
        )


@torch.no_grad()
def polyak_update(params, target_params, tau):
    for param, target_param in zip(params, target_params):
        target_param.mul_(1 - tau).add_(param, alpha=tau)


class DQN:
    def __init__(self, env, gamma=0.9, lr=2e-3, batch_size=64, tau=1.0, target_update_interval=50):
        self.env = env
        self.gamma = gamma
        self.batch_size = batch_size
        self.tau = tau
        self.target_update_interval = target_update_interval
        self.q_net = QNetwork()
        self.q_net_target = QNetwork()
        self.q_net_target.load_state_dict(self.q_net.state_dict())
        self.q_net_target.set_training_mode(False)
        self.optimizer = torch.optim.Adam(self.q_net.parameters(), lr=lr)
        self.buffer = ReplayBuffer(5000)
        self.n_calls = 0
        self.exploration = 1.0

    def predict(self, obs, deterministic=False):
        if not deterministic and random.random() < self.exploration:
            return random.randrange(3)
        self.q_net.set_training_mode(False)
        with torch.no_grad():
            return int(self.q_net(torch.from_numpy(obs).unsqueeze(0)).argmax())

    def _on_step(self):
        self.n_calls += 1
        self.exploration = max(0.05, self.exploration - 1 / 700)
        if self.n_calls % self.target_update_interval == 0:
            polyak_update(self.q_net.parameters(), self.q_net_target.parameters(), self.tau)

    def train_step(self):
        self.q_net.set_training_mode(True)
        obs, actions, rewards, next_obs, dones = self.buffer.sample(self.batch_size)
        with torch.no_grad():
            next_q = self.q_net_target(next_obs).max(dim=1, keepdim=True).values
            target = rewards + (1 - dones) * self.gamma * next_q
        current = self.q_net(obs).gather(1, actions)
        loss = F.smooth_l1_loss(current, target)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.q_net.parameters(), 10)
        self.optimizer.step()
        return loss.item()

    def learn(self, total_steps):
        obs = self.env.reset()
        for _ in range(total_steps):
            action = self.predict(obs)
            next_obs, reward, done = self.env.step(action)
            self.buffer.add(obs, action, reward, next_obs, done)
            obs = self.env.reset() if done else next_obs
            self._on_step()
            if len(self.buffer.storage) > 200:
                self.train_step()

    def evaluate(self, episodes=10):
        env, total = Thermostat(seed=99), 0.0
        for _ in range(episodes):
            obs, done = env.reset(), False
            while not done:
                obs, reward, done = env.step(self.predict(obs, deterministic=True))
                total += reward
        return total / episodes


def main(total_steps=1200):
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    agent = DQN(Thermostat(seed=1))
    agent.learn(total_steps)
    print(f"mean return {agent.evaluate():.2f}")
    return agent


if __name__ == "__main__":
    main()
