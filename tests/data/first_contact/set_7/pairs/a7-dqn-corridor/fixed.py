import copy
import random
from collections import deque, namedtuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

Transition = namedtuple("Transition", "state action reward next_state done")


class Corridor:
    def __init__(self, length=7, limit=20):
        self.length, self.limit = length, limit

    def observe(self):
        obs = np.zeros(self.length, dtype=np.float32)
        obs[self.pos] = 1.0
        return obs

    def reset(self):
        self.pos, self.t = 0, 0
        return self.observe()

    def step(self, action):
        move = 1 if action == 1 else -1
        self.pos = int(np.clip(self.pos + move, 0, self.length - 1))
        self.t += 1
        goal = self.pos == self.length - 1
        reward = 1.0 if goal else (0.05 if self.pos == 0 else 0.0)
        return self.observe(), reward, goal, goal or self.t >= self.limit


class Memory:
    def __init__(self, size):
        self.data = deque(maxlen=size)

    @property
    def counter(self):
        return len(self.data)

    def add(self, *args):
        self.data.append(Transition(*args))

    def sample(self, n):
        rows = random.sample(self.data, n)
        s, a, r, ns, d = (np.array(c) for c in zip(*rows))
        return (torch.from_numpy(s), torch.from_numpy(a).long(), torch.from_numpy(r).float(),
                torch.from_numpy(ns), torch.from_numpy(d).float())


class QNetwork(nn.Module):
    def __init__(self, n_obs, n_actions, hidden=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_obs, hidden), nn.ReLU(), nn.Linear(hidden, n_actions))

    def forward(self, x):
        return self.body(x)


class QPlayer:
    def __init__(self, n_obs, n_actions, gamma=0.95, batch_size=32, memory_size=256,
                 copy_interval=50, lr=5e-3):
        self.n_actions, self.gamma, self.batch_size = n_actions, gamma, batch_size
        self.copy_interval = copy_interval
        self.q = QNetwork(n_obs, n_actions)
        self.q_target = copy.deepcopy(self.q).requires_grad_(False)
        self.memory = Memory(memory_size)
        self.optimizer = torch.optim.Adam(self.q.parameters(), lr=lr)
        self.learn_counter = 0
        self.epsilon = 1.0

    def act(self, state):
        if random.random() < self.epsilon:
            return random.randrange(self.n_actions)
        with torch.no_grad():
            return self.q(torch.from_numpy(state)).argmax().item()

    def learn(self):
        if self.memory.counter < self.memory.data.maxlen // 2:
            return None
        self.learn_counter += 1
        if self.learn_counter % self.copy_interval == 1:
            self.q_target.load_state_dict(self.q.state_dict())
        s, a, r, ns, d = self.memory.sample(self.batch_size)
        with torch.no_grad():
            backup = r + self.gamma * (1 - d) * self.q_target(ns).max(1).values
        value = self.q(s).gather(1, a[:, None]).squeeze(1)
        loss = F.smooth_l1_loss(value, backup)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.epsilon = max(0.1, self.epsilon * 0.996)
        return loss.item()


def play(env, player, episodes):
    history = []
    for _ in range(episodes):
        state, total, over = env.reset(), 0.0, False
        while not over:
            action = player.act(state)
            nxt, reward, goal, over = env.step(action)
            player.memory.add(state, action, reward, nxt, goal)
            player.learn()
            state, total = nxt, total + reward
        history.append(total)
    return history


def main():
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    env = Corridor()
    player = QPlayer(env.length, 2)
    for block in range(4):
        rewards = play(env, player, 20)
        start = np.zeros(env.length, dtype=np.float32)
        start[0] = 1.0
        with torch.no_grad():
            q0 = player.q(torch.from_numpy(start)).tolist()
        print(f"block {block} reward {np.mean(rewards):.3f} updates {player.learn_counter} q(start) {q0[0]:.3f} {q0[1]:.3f}")


if __name__ == "__main__":
    main()
