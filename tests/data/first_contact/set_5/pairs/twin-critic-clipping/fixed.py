import itertools
from copy import deepcopy

import torch
import torch.nn as nn
from torch.optim import Adam


class QFunction(nn.Module):
    def __init__(self, obs_dim, act_dim, hidden=32):
        super().__init__()
        self.q = nn.Sequential(nn.Linear(obs_dim + act_dim, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, obs, act):
        return self.q(torch.cat([obs, act], dim=-1)).squeeze(-1)


class GaussianActor(nn.Module):
    def __init__(self, obs_dim, act_dim, hidden=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(obs_dim, hidden), nn.ReLU())
        self.mu, self.log_std = nn.Linear(hidden, act_dim), nn.Linear(hidden, act_dim)

    def forward(self, obs):
        h = self.net(obs)
        dist = torch.distributions.Normal(self.mu(h), self.log_std(h).clamp(-5, 1).exp())
        u = dist.rsample()
        logp = dist.log_prob(u).sum(-1) - (2 * (0.6931 - u - nn.functional.softplus(-2 * u))).sum(-1)
        return torch.tanh(u), logp


class ActorCritic(nn.Module):
    def __init__(self, obs_dim, act_dim):
        super().__init__()
        self.pi = GaussianActor(obs_dim, act_dim)
        self.q1, self.q2 = QFunction(obs_dim, act_dim), QFunction(obs_dim, act_dim)


class SAC:
    def __init__(self, obs_dim=4, act_dim=2, alpha=0.1, gamma=0.95, polyak=0.99, lr=3e-3, max_norm=1.0):
        self.ac = ActorCritic(obs_dim, act_dim)
        self.targ = deepcopy(self.ac).requires_grad_(False)
        self.alpha, self.gamma, self.polyak, self.max_norm = alpha, gamma, polyak, max_norm
        self.q_params = list(itertools.chain(self.ac.q1.parameters(), self.ac.q2.parameters()))
        self.pi_optimizer = Adam(self.ac.pi.parameters(), lr=lr)
        self.q_optimizer = Adam(self.q_params, lr=lr)
        self.norms = []

    def loss_q(self, o, a, r, o2):
        with torch.no_grad():
            a2, logp2 = self.ac.pi(o2)
            backup = r + self.gamma * (torch.min(self.targ.q1(o2, a2), self.targ.q2(o2, a2)) - self.alpha * logp2)
        return (self.ac.q1(o, a) - backup).pow(2).mean() + (self.ac.q2(o, a) - backup).pow(2).mean()

    def loss_pi(self, o):
        a, logp = self.ac.pi(o)
        return (self.alpha * logp - torch.min(self.ac.q1(o, a), self.ac.q2(o, a))).mean()

    def update(self, batch):
        self.q_optimizer.zero_grad()
        loss_q = self.loss_q(*batch)
        loss_q.backward()
        self.norms.append(float(nn.utils.clip_grad_norm_(self.q_params, self.max_norm)))
        self.q_optimizer.step()

        for p in self.q_params:
            p.requires_grad = False
        self.pi_optimizer.zero_grad()
        self.loss_pi(batch[0]).backward()
        self.pi_optimizer.step()
        for p in self.q_params:
            p.requires_grad = True

        with torch.no_grad():
            for p, p_targ in zip(self.ac.parameters(), self.targ.parameters()):
                p_targ.lerp_(p, 1 - self.polyak)
        return loss_q.item()


def batches(n, size=64, scale=10.0):
    for _ in range(n):
        o = torch.randn(size, 4)
        a = torch.rand(size, 2) * 2 - 1
        yield o, a, scale * (a * o[:, :2]).sum(-1), o + 0.1 * torch.randn(size, 4)


def main():
    torch.manual_seed(13)
    agent = SAC()
    losses = [agent.update(b) for b in batches(200)]
    print(f"q loss {losses[0]:.2f} -> {losses[-1]:.2f}")
    return {"agent": agent, "losses": losses}

if __name__ == "__main__":
    main()
