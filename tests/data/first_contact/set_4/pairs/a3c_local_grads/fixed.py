"""Advantage actor-critic: several workers push gradients to one global network and pull its weights."""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Categorical


@dataclass
class Config:
    n_workers: int = 2
    updates: int = 200
    horizon: int = 10
    gamma: float = 0.9
    lr: float = 3e-3
    value_coef: float = 0.5
    entropy_coef: float = 0.01
    seed: int = 1


class LineWorld:
    """Walk on a line towards a goal whose side is shown in the observation."""

    def __init__(self, gen):
        self.gen = gen

    def reset(self):
        self.pos = 0.0
        self.goal = 1.0 if torch.rand((), generator=self.gen) < 0.5 else -1.0
        self.t = 0
        return self._obs()

    def _obs(self):
        return torch.tensor([self.pos, self.goal, math.cos(0.3 * self.t)])

    def step(self, action):
        self.pos += (-0.25, 0.0, 0.25)[action]
        self.t += 1
        reward = -abs(self.goal - self.pos)
        done = self.t >= 20 or abs(self.pos) > 2.0
        return self._obs(), reward, done


class ActorCritic(nn.Module):
    def __init__(self, obs_dim=3, n_actions=3, hidden=32):
        super().__init__()
        self.pi1 = nn.Linear(obs_dim, hidden)
        self.pi2 = nn.Linear(hidden, n_actions)
        self.v1 = nn.Linear(obs_dim, hidden)
        self.v2 = nn.Linear(hidden, 1)

    def forward(self, x):
        logits = self.pi2(torch.tanh(self.pi1(x)))
        value = self.v2(torch.tanh(self.v1(x))).squeeze(-1)
        return logits, value

    @torch.no_grad()
    def act(self, obs):
        return Categorical(logits=self(obs)[0]).sample().item()

    def loss(self, obs, actions, targets, cfg):
        logits, values = self(obs)
        td = targets - values
        dist = Categorical(logits=logits)
        policy_loss = -(dist.log_prob(actions) * td.detach()).mean()
        value_loss = td.pow(2).mean()
        return policy_loss + cfg.value_coef * value_loss - cfg.entropy_coef * dist.entropy().mean()


class Worker:
    def __init__(self, global_net, optimizer, cfg, idx):
        self.cfg, self.global_net, self.optimizer = cfg, global_net, optimizer
        self.local_net = ActorCritic()
        self.local_net.load_state_dict(global_net.state_dict())
        self.env = LineWorld(torch.Generator().manual_seed(100 + idx))
        self.obs = self.env.reset()

    def rollout(self):
        obs, actions, rewards, dones = [], [], [], []
        for _ in range(self.cfg.horizon):
            a = self.local_net.act(self.obs)
            nxt, r, done = self.env.step(a)
            obs.append(self.obs), actions.append(a), rewards.append(r), dones.append(done)
            self.obs = self.env.reset() if done else nxt
        with torch.no_grad():
            ret = self.local_net(self.obs)[1].item()
        targets = []
        for r, d in zip(reversed(rewards), reversed(dones)):
            ret = r + (0.0 if d else self.cfg.gamma * ret)
            targets.insert(0, ret)
        return torch.stack(obs), torch.tensor(actions), torch.tensor(targets)

    def push_and_pull(self):
        loss = self.local_net.loss(*self.rollout(), self.cfg)
        self.local_net.zero_grad()
        loss.backward()
        for lp, gp in zip(self.local_net.parameters(), self.global_net.parameters()):
            gp._grad = lp.grad
        norm = torch.stack([p.grad.norm() for p in self.global_net.parameters()]).norm().item()
        self.optimizer.step()
        self.local_net.load_state_dict(self.global_net.state_dict())
        return loss.item(), norm


@torch.no_grad()
def evaluate(net, episodes=20):
    env = LineWorld(torch.Generator().manual_seed(7))
    total = 0.0
    for _ in range(episodes):
        obs, done = env.reset(), False
        while not done:
            obs, r, done = env.step(net(obs)[0].argmax().item())
            total += r
    return total / episodes


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    global_net = ActorCritic()
    optimizer = torch.optim.Adam(global_net.parameters(), lr=cfg.lr, betas=(0.92, 0.999))
    workers = [Worker(global_net, optimizer, cfg, i) for i in range(cfg.n_workers)]
    norms = []
    for step in range(cfg.updates):
        for w in workers:
            loss, norm = w.push_and_pull()
            norms.append(norm)
        if step % 100 == 0:
            print(f"update {step} loss {loss:.3f} return {evaluate(global_net):.2f}")
    result = {"return": round(evaluate(global_net), 3), "mean_grad_norm": round(sum(norms[-100:]) / 100, 3)}
    print(result)
    return result


if __name__ == "__main__":
    main()
