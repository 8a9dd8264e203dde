"""A tiny latent world model; the actor learns by backpropagation through imagined steps."""
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    obs_dim: int = 4
    act_dim: int = 2
    latent: int = 16
    horizon: int = 5
    chunk: int = 6
    batch: int = 24
    steps: int = 100
    gamma: float = 0.95
    lam: float = 0.9
    seed: int = 3


@contextmanager
def frozen(*modules):
    params = list(chain.from_iterable(m.parameters() for m in modules))
    state = [p.requires_grad for p in params]
    for p in params:
        p.requires_grad = False
    try:
        yield
    finally:
        for p, s in zip(params, state):
            p.requires_grad = s


class WorldModel(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.encoder = nn.Linear(c.obs_dim, c.latent)
        self.cell = nn.GRUCell(c.latent + c.act_dim, c.latent)
        self.prior = nn.GRUCell(c.act_dim, c.latent)
        self.decoder = nn.Linear(c.latent, c.obs_dim)
        self.reward = nn.Linear(c.latent, 1)

    def observe(self, obs, act, h):
        states, prior_loss = [], 0.0
        for o, a in zip(obs, act):
            predicted = self.prior(a, h)
            h = self.cell(torch.cat([self.encoder(o), a], -1), h)
            prior_loss = prior_loss + F.mse_loss(predicted, h.detach())
            states.append(h)
        return torch.stack(states), prior_loss / len(states)


def episode(c, gen):
    obs, act, rew = [], [], []
    s = torch.randn(c.batch, c.obs_dim, generator=gen)
    for _ in range(c.chunk):
        a = torch.rand(c.batch, c.act_dim, generator=gen) * 2 - 1
        s = 0.9 * s + 0.3 * a.repeat(1, 2)
        obs.append(s), act.append(a), rew.append(-(s ** 2).mean(-1))
    return torch.stack(obs), torch.stack(act), torch.stack(rew)


def lambda_returns(reward, value, gamma, lam):
    out, last = [], value[-1]
    for t in reversed(range(len(reward) - 1)):
        last = reward[t] + gamma * ((1 - lam) * value[t + 1] + lam * last)
        out.append(last)
    return torch.stack(out[::-1])


def main():
    c = Config()
    torch.manual_seed(c.seed)
    gen = torch.Generator().manual_seed(c.seed)
    wm = WorldModel(c)
    actor = nn.Sequential(nn.Linear(c.latent, 32), nn.ELU(), nn.Linear(32, c.act_dim), nn.Tanh())
    critic = nn.Sequential(nn.Linear(c.latent, 32), nn.ELU(), nn.Linear(32, 1))
    opts = [torch.optim.Adam(m.parameters(), lr=3e-3) for m in (wm, actor, critic)]
    h = torch.zeros(c.batch, c.latent)
    for step in range(c.steps):
        obs, act, rew = episode(c, gen)
        states, prior_loss = wm.observe(obs, act, h)
        model_loss = F.mse_loss(wm.decoder(states), obs) + F.mse_loss(wm.reward(states).squeeze(-1), rew) + prior_loss
        opts[0].zero_grad()
        model_loss.backward()
        opts[0].step()
        h = states[-1].detach() if step % 10 else torch.zeros(c.batch, c.latent)

        with frozen(wm, critic):
            z, imagined = states.detach().flatten(0, 1), []
            for _ in range(c.horizon):
                z = wm.prior(actor(z), z)
                imagined.append(z)
            imagined = torch.stack(imagined)
            returns = lambda_returns(wm.reward(imagined).squeeze(-1), critic(imagined).squeeze(-1), c.gamma, c.lam)
        actor_loss = -returns.mean()
        opts[1].zero_grad()
        actor_loss.backward()
        opts[1].step()

        value_loss = F.mse_loss(critic(imagined[:-1].detach()).squeeze(-1), returns.detach())
        opts[2].zero_grad()
        value_loss.backward()
        opts[2].step()
        if step % 25 == 0:
            print(f"step {step} model {model_loss.item():.3f} actor {actor_loss.item():.3f} value {value_loss.item():.3f}")
    result = {"model": round(model_loss.item(), 4), "actor": round(actor_loss.item(), 4)}
    print(result)
    return result


if __name__ == "__main__":
    main()
