import copy

import torch
from torch import nn


def mlp(sizes):
    layers = []
    for a, b in zip(sizes[:-1], sizes[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class ReplayBuffer:
    def __init__(self, size=2000, obs_dim=3, act_dim=1):
        g = torch.Generator().manual_seed(0)
        self.obs = torch.randn(size, obs_dim, generator=g)
        self.act = torch.rand(size, act_dim, generator=g) * 2 - 1
        self.next = self.obs * 0.9 + 0.1 * torch.randn(size, obs_dim, generator=g)
        self.rew = -(self.act[:, :1] - self.obs[:, :1].tanh()).pow(2)

    def sample(self, n):
        i = torch.randint(len(self.obs), (n,))
        return self.obs[i], self.act[i], self.rew[i], self.next[i]


class EnsembleAgent:
    def __init__(self, num_q=3, num_min=2, lr=1e-3, gamma=0.9, polyak=0.98, policy_delay=2):
        self.policy = nn.Sequential(mlp([3, 32, 1]), nn.Tanh())
        self.q_nets = [mlp([4, 32, 1]) for _ in range(num_q)]
        self.q_targets = copy.deepcopy(self.q_nets)
        self.policy_optimizer = torch.optim.Adam(self.policy.parameters(), lr=lr)
        self.q_optimizers = [torch.optim.Adam(q.parameters(), lr=lr) for q in self.q_nets]
        self.num_min, self.gamma, self.polyak, self.delay = num_min, gamma, polyak, policy_delay

    @torch.no_grad()
    def q_target(self, rew, nxt):
        chosen = torch.randperm(len(self.q_targets))[: self.num_min]
        pair = torch.cat([nxt, self.policy(nxt)], 1)
        preds = torch.cat([self.q_targets[int(i)](pair) for i in chosen], 1)
        return rew + self.gamma * preds.min(1, keepdim=True).values

    def train(self, step, obs, act, rew, nxt):
        target = self.q_target(rew, nxt)
        q_pred = torch.cat([q(torch.cat([obs, act], 1)) for q in self.q_nets], 1)
        q_loss = (q_pred - target.expand_as(q_pred)).pow(2).mean() * len(self.q_nets)
        for opt in self.q_optimizers:
            opt.zero_grad()
        q_loss.backward()

        update_policy = step % self.delay == 0
        if update_policy:
            self.policy_optimizer.zero_grad()
            new_act = self.policy(obs)
            q_new = torch.cat([q(torch.cat([obs, new_act], 1)) for q in self.q_nets], 1)
            (-q_new.mean()).backward()

        for opt in self.q_optimizers:
            opt.step()
        if update_policy:
            self.policy_optimizer.step()
        self.update_targets()
        return q_loss.item()

    @torch.no_grad()
    def update_targets(self):
        for q, t in zip(self.q_nets, self.q_targets):
            for p, tp in zip(q.parameters(), t.parameters()):
                tp.mul_(self.polyak).add_(p, alpha=1 - self.polyak)


def main():
    torch.manual_seed(4)
    agent, buffer = EnsembleAgent(), ReplayBuffer()
    losses = [agent.train(step, *buffer.sample(64)) for step in range(250)]
    obs, act, _, _ = buffer.sample(512)
    with torch.no_grad():
        value = torch.cat([q(torch.cat([obs, act], 1)) for q in agent.q_nets], 1).mean().item()
    print(f"q loss {losses[-1]:.4f}, mean value {value:.3f}")
    return {"agent": agent, "losses": losses, "value": value}

if __name__ == "__main__":
    main()
