"""Soft actor-critic on a small continuous control task."""
import copy
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Normal


@dataclass
class Args:
    total_steps: int = 600
    start_steps: int = 200
    batch_size: int = 64
    gamma: float = 0.95
    tau: float = 0.02
    lr: float = 2e-3
    alpha_lr: float = 2e-3
    target_entropy: float = -1.0
    seed: int = 3


class PointMass:
    def __init__(self):
        self.horizon = 25

    def reset(self):
        self.x, self.t = torch.empty(2).uniform_(-1, 1), 0
        return self.x.clone()

    def step(self, a):
        self.x = torch.stack([self.x[0] + 0.1 * self.x[1], 0.95 * self.x[1] + 0.3 * a.squeeze()])
        self.t += 1
        cost = self.x[0] ** 2 + 0.1 * self.x[1] ** 2 + 0.01 * a.squeeze() ** 2
        return self.x.clone(), -cost.item(), self.t >= self.horizon


class Replay:
    def __init__(self, size=5000):
        self.s, self.a, self.r = torch.zeros(size, 2), torch.zeros(size, 1), torch.zeros(size, 1)
        self.s2, self.n, self.size = torch.zeros(size, 2), 0, size

    def add(self, s, a, r, s2):
        i = self.n % self.size
        self.s[i], self.a[i], self.r[i], self.s2[i] = s, a, r, s2
        self.n += 1

    def sample(self, k):
        idx = torch.randint(0, min(self.n, self.size), (k,))
        return self.s[idx], self.a[idx], self.r[idx], self.s2[idx]


def mlp(i, o, h=32):
    return nn.Sequential(nn.Linear(i, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, o))


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp(2, 2)

    def forward(self, s):
        mean, log_std = self.net(s).chunk(2, -1)
        return mean, log_std.clamp(-5, 1)

    def get_action(self, s):
        mean, log_std = self(s)
        dist = Normal(mean, log_std.exp())
        u = dist.rsample()
        a = torch.tanh(u)
        logp = dist.log_prob(u) - torch.log(1 - a.pow(2) + 1e-6)
        return a, logp.sum(-1, keepdim=True)


class SACAgent:
    def __init__(self, args):
        self.args = args
        self.actor, self.qf1, self.qf2 = Actor(), mlp(3, 1), mlp(3, 1)
        self.target1, self.target2 = copy.deepcopy(self.qf1), copy.deepcopy(self.qf2)
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.q_opt = torch.optim.Adam([*self.qf1.parameters(), *self.qf2.parameters()], lr=args.lr)
        self.pi_opt = torch.optim.Adam(self.actor.parameters(), lr=args.lr)
        self.alpha_opt = torch.optim.Adam([self.log_alpha], lr=args.alpha_lr)

    def update(self, s, a, r, s2):
        alpha = self.log_alpha.exp().item()
        with torch.no_grad():
            a2, logp2 = self.actor.get_action(s2)
            sa2 = torch.cat([s2, a2], -1)
            target = r + self.args.gamma * (torch.min(self.target1(sa2), self.target2(sa2)) - alpha * logp2)
        sa = torch.cat([s, a], -1)
        q_loss = F.mse_loss(self.qf1(sa), target) + F.mse_loss(self.qf2(sa), target)
        self.q_opt.zero_grad()
        q_loss.backward()
        self.q_opt.step()
        pi, log_pi = self.actor.get_action(s)
        sp = torch.cat([s, pi], -1)
        q_pi = torch.min(self.qf1(sp), self.qf2(sp))
        actor_loss = (alpha * log_pi - q_pi).mean()
        self.pi_opt.zero_grad()
        actor_loss.backward()
        self.pi_opt.step()
        alpha_loss = -(self.log_alpha * (log_pi.detach() + self.args.target_entropy)).mean()
        self.alpha_opt.zero_grad()
        alpha_loss.backward()
        self.alpha_opt.step()
        with torch.no_grad():
            for net, tgt in ((self.qf1, self.target1), (self.qf2, self.target2)):
                for p, tp in zip(net.parameters(), tgt.parameters()):
                    tp.lerp_(p, self.args.tau)
        return q_loss.item(), actor_loss.item()


@torch.no_grad()
def evaluate(agent, episodes=10):
    torch_state = torch.get_rng_state()
    torch.manual_seed(99)
    env, total = PointMass(), 0.0
    for _ in range(episodes):
        s, done = env.reset(), False
        while not done:
            s, r, done = env.step(torch.tanh(agent.actor(s)[0]))
            total += r
    torch.set_rng_state(torch_state)
    return total / episodes


def main():
    args = Args()
    torch.manual_seed(args.seed)
    env, agent, replay = PointMass(), SACAgent(args), Replay()
    s = env.reset()
    for step in range(args.total_steps):
        with torch.no_grad():
            a = torch.empty(1).uniform_(-1, 1) if step < args.start_steps else agent.actor.get_action(s)[0]
        s2, r, done = env.step(a)
        replay.add(s, a, r, s2)
        s = env.reset() if done else s2
        if step >= args.start_steps:
            q_loss, pi_loss = agent.update(*replay.sample(args.batch_size))
            if step % 200 == 0:
                print(f"step {step} q_loss {q_loss:.3f} pi_loss {pi_loss:.3f} return {evaluate(agent):.2f}")
    result = {"return": round(evaluate(agent), 3), "alpha": round(agent.log_alpha.exp().item(), 3)}
    print(result)
    return result


if __name__ == "__main__":
    main()
