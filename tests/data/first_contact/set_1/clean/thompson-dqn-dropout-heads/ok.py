import copy
import random
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F


class BootstrappedQ(nn.Module):
    """A shared body, several heads; the gradient that the heads send into the body is scaled down by a hook."""

    def __init__(self, obs=3, actions=2, heads=4, hidden=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden, hidden), nn.ReLU())
        self.heads = nn.ModuleList(nn.Linear(hidden, actions) for _ in range(heads))

    def forward(self, x, head=None):
        h = self.body(x)
        if head is not None:
            return self.heads[head](h)
        if h.requires_grad:
            h.register_hook(lambda grad: grad / len(self.heads))
        return torch.stack([f(h) for f in self.heads], dim=1)


class Ring:
    def reset(self):
        self.x = torch.randn(3)
        return self.x

    def step(self, action):
        reward = float(self.x[0] > 0) if action == 1 else float(self.x[1] > 0.3)
        self.x = torch.roll(self.x, 1) + 0.3 * torch.randn(3)
        return self.x, reward


class Agent:
    def __init__(self, heads=4, gamma=0.8):
        self.q = BootstrappedQ(heads=heads)
        self.target = copy.deepcopy(self.q).eval()
        for p in self.target.parameters():
            p.requires_grad = False
        self.opt = torch.optim.RMSprop(self.q.parameters(), lr=1e-3)
        self.memory, self.heads, self.gamma = deque(maxlen=1000), heads, gamma
        self.td_errors = []

    @torch.no_grad()
    def act(self, obs, head):
        # dropout stays on: one sampled network per decision is the exploration
        return self.q(obs.unsqueeze(0), head).argmax(1).item()

    @torch.no_grad()
    def value(self, obs):
        self.q.eval()
        v = self.q(obs.unsqueeze(0)).mean(1).max().item()
        self.q.train()
        return v

    def learn(self, batch_size=32):
        s, a, r, s2, mask = (torch.stack(x) for x in zip(*random.sample(self.memory, batch_size)))
        with torch.no_grad():
            best = self.q(s2).argmax(2, keepdim=True)
            y = r[:, None] + self.gamma * self.target(s2).gather(2, best).squeeze(2)
        q = self.q(s).gather(2, a[:, None, None].expand(-1, self.heads, 1)).squeeze(2)
        td = (q - y) * mask
        loss = F.smooth_l1_loss(td, torch.zeros_like(td), reduction="none").sum(1).mean()
        self.td_errors.append(td.detach().abs().mean())
        self.opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(self.q.parameters(), 1.0)
        self.opt.step()
        return loss.item()


def main():
    random.seed(1), torch.manual_seed(1)
    env, agent = Ring(), Agent()
    obs, head = env.reset(), 0
    for t in range(600):
        if t % 10 == 0:
            head = random.randrange(agent.heads)
        action = agent.act(obs, head)
        nxt, reward = env.step(action)
        agent.memory.append((obs, torch.tensor(action), torch.tensor(reward), nxt, torch.bernoulli(torch.full((agent.heads,), 0.7))))
        obs = nxt
        if len(agent.memory) >= 64 and t % 2 == 0:
            loss = agent.learn()
        if (t + 1) % 100 == 0:
            agent.target.load_state_dict(agent.q.state_dict())
        if (t + 1) % 200 == 0:
            print(f"t {t + 1}  loss {loss:.4f}  value {agent.value(obs):.3f}  td {torch.stack(agent.td_errors[-50:]).mean().item():.3f}")
    return {"loss": loss}


if __name__ == "__main__":
    main()
