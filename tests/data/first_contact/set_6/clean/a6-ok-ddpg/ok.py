"""Twin-critic deterministic policy gradient on a point-mass task."""
import copy
import random
from collections import deque

import torch
from torch import nn
from torch.nn import functional as F


class MLP(nn.Sequential):
    def __init__(self, i, o, hidden=48, out=None):
        layers = [nn.Linear(i, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, o)]
        super().__init__(*layers, *([out] if out else []))


class PointMass:
    def __init__(self):
        self.reset()

    def reset(self):
        self.x = torch.rand(2) * 2 - 1
        self.t = 0
        return self.x.clone()

    def step(self, a):
        self.x = (self.x + 0.2 * a).clamp(-2, 2)
        self.t += 1
        return self.x.clone(), -self.x.norm().item(), self.t >= 20


class TD3:
    def __init__(self, gamma=0.95, tau=0.02, noise=0.2, delay=2):
        self.actor = MLP(2, 2, out=nn.Tanh())
        self.critic = nn.ModuleList([MLP(4, 1), MLP(4, 1)])
        self.actor_target = copy.deepcopy(self.actor).requires_grad_(False)
        self.critic_target = copy.deepcopy(self.critic).requires_grad_(False)
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=2e-3)
        self.critic_opt = torch.optim.Adam(self.critic.parameters(), lr=2e-3)
        self.gamma, self.tau, self.noise, self.delay = gamma, tau, noise, delay
        self.updates = 0

    @torch.no_grad()
    def act(self, obs, explore):
        action = self.actor(obs)
        if explore:
            action = (action + 0.3 * torch.randn_like(action)).clamp(-1, 1)
        return action

    def soft_update(self):
        with torch.no_grad():
            for net, target in ((self.actor, self.actor_target), (self.critic, self.critic_target)):
                for p, tp in zip(net.parameters(), target.parameters()):
                    tp.data.mul_(1 - self.tau)
                    tp.data.add_(self.tau * p.data)

    def update(self, batch):
        obs, action, reward, nxt, done = batch
        with torch.no_grad():
            eps = (self.noise * torch.randn_like(action)).clamp(-0.5, 0.5)
            na = (self.actor_target(nxt) + eps).clamp(-1, 1)
            nq = torch.min(*[c(torch.cat([nxt, na], 1)) for c in self.critic_target]).squeeze(1)
            target = reward + self.gamma * (1 - done) * nq
        q1, q2 = (c(torch.cat([obs, action], 1)).squeeze(1) for c in self.critic)
        critic_loss = F.mse_loss(q1, target) + F.mse_loss(q2, target)
        self.critic_opt.zero_grad()
        critic_loss.backward()
        self.critic_opt.step()

        self.updates += 1
        if self.updates % self.delay == 0:
            actor_loss = -self.critic[0](torch.cat([obs, self.actor(obs)], 1)).mean()
            self.actor_opt.zero_grad()
            actor_loss.backward()
            self.actor_opt.step()
            self.soft_update()
        return critic_loss.item()


def sample(buffer, n):
    columns = zip(*random.sample(buffer, n))
    return [torch.stack(c) if isinstance(c[0], torch.Tensor) else torch.tensor(c, dtype=torch.float32) for c in columns]


def main():
    torch.manual_seed(3)
    random.seed(3)
    env, agent, buffer = PointMass(), TD3(), deque(maxlen=2000)
    for episode in range(16):
        obs, done, total, losses = env.reset(), False, 0.0, []
        while not done:
            action = agent.act(obs, explore=True)
            nxt, reward, done = env.step(action)
            buffer.append((obs, action, reward, nxt, 0.0))
            obs = nxt
            total += reward
            if len(buffer) >= 64:
                losses.append(agent.update(sample(buffer, 64)))
        if episode % 4 == 3:
            print(f"episode {episode + 1} return {total:.2f} critic {sum(losses) / max(len(losses), 1):.4f}")
    obs, done, total = env.reset(), False, 0.0
    while not done:
        obs, reward, done = env.step(agent.act(obs, explore=False))
        total += reward
    print(f"greedy return {total:.2f}")


if __name__ == "__main__":
    main()
