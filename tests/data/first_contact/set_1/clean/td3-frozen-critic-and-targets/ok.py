import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class Mlp(nn.Module):
    def __init__(self, inp, out, hidden=32, squash=False):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(inp, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, out))
        self.squash = squash

    def forward(self, *xs):
        y = self.net(torch.cat(xs, dim=-1))
        return torch.tanh(y) if self.squash else y


class TwinCritic(nn.Module):
    def __init__(self, obs, act):
        super().__init__()
        self.q1, self.q2 = Mlp(obs + act, 1), Mlp(obs + act, 1)

    def forward(self, s, a):
        return self.q1(s, a), self.q2(s, a)


class TD3:
    def __init__(self, obs=3, act=1, gamma=0.9, tau=0.01, delay=2):
        self.actor, self.critic = Mlp(obs, act, squash=True), TwinCritic(obs, act)
        self.actor_target = copy.deepcopy(self.actor).requires_grad_(False)
        self.critic_target = copy.deepcopy(self.critic).requires_grad_(False)
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=1e-3)
        self.critic_opt = torch.optim.Adam(self.critic.parameters(), lr=1e-3)
        self.gamma, self.tau, self.delay, self.updates = gamma, tau, delay, 0

    def target(self, s2, r, d):
        with torch.no_grad():
            noise = (0.2 * torch.randn(len(s2), 1)).clamp(-0.5, 0.5)
            a2 = (self.actor_target(s2) + noise).clamp(-1, 1)
            return r + self.gamma * (1 - d) * torch.min(*self.critic_target(s2, a2))

    def train(self, s, a, r, s2, d):
        self.updates += 1
        y = self.target(s2, r, d)
        q1, q2 = self.critic(s, a)
        critic_loss = F.mse_loss(q1, y) + F.mse_loss(q2, y)
        self.critic_opt.zero_grad()
        critic_loss.backward()
        self.critic_opt.step()

        if self.updates % self.delay == 0:
            # the critic is only passed through here: no gradients of its own are wanted
            for p in self.critic.parameters():
                p.requires_grad_(False)
            actor_loss = -self.critic.q1(s, self.actor(s)).mean()
            self.actor_opt.zero_grad()
            actor_loss.backward()
            self.actor_opt.step()
            for p in self.critic.parameters():
                p.requires_grad_(True)
            for net, target in ((self.actor, self.actor_target), (self.critic, self.critic_target)):
                for p, tp in zip(net.parameters(), target.parameters()):
                    tp.data.mul_(1 - self.tau).add_(p.data, alpha=self.tau)
        return critic_loss.item()

    def state(self):
        return {k: getattr(self, k).state_dict() for k in ("actor", "critic", "actor_target", "critic_target", "actor_opt", "critic_opt")}


def transitions(n):
    s = torch.randn(n, 3)
    a = torch.rand(n, 1) * 2 - 1
    s2 = torch.cat([s[:, :1] + 0.3 * a, s[:, 1:]], dim=1)
    r = -(s2[:, :1] - s2[:, 1:2]).abs()
    return s, a, r, s2, (torch.rand(n, 1) < 0.1).float()


def main():
    torch.manual_seed(0)
    agent = TD3()
    for step in range(200):
        loss = agent.train(*transitions(64))
        if (step + 1) % 50 == 0:
            print(f"step {step + 1}  critic loss {loss:.4f}")
    snapshot = copy.deepcopy(agent.state())
    return {"loss": loss, "entries": len(snapshot)}


if __name__ == "__main__":
    main()
