"""Dreamer-like agent: a world model, an actor that learns through it, and a critic with a slow copy."""
import contextlib
import copy
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import kl_divergence as kl, Independent, Normal, OneHotCategoricalStraightThrough


@dataclass
class Config:
    obs, act = 4, 2
    deter: int = 24
    seq: int = 8
    horizon: int = 5
    steps: int = 45


def mlp(i, o):
    return nn.Sequential(nn.Linear(i, 32), nn.ELU(), nn.Linear(32, o))


class WorldModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.stoch = 3 * 4
        self.cell = nn.GRUCell(self.stoch + cfg.act, cfg.deter)
        self.prior, self.post = mlp(cfg.deter, self.stoch), mlp(cfg.deter + cfg.obs, self.stoch)
        self.decoder, self.reward = mlp(cfg.deter + self.stoch, cfg.obs), mlp(cfg.deter + self.stoch, 1)

    def dist(self, logits):
        return Independent(OneHotCategoricalStraightThrough(logits=logits.view(-1, 3, 4)), 1)

    def img_step(self, state, action):
        prior = self.dist(self.prior(h := self.cell(torch.cat([state[1], action], -1), state[0])))
        return (h, prior.rsample().flatten(1)), prior

    def obs_step(self, state, action, obs):
        (h, _), prior = self.img_step(state, action)
        post = self.dist(self.post(torch.cat([h, obs], -1)))
        return (h, post.rsample().flatten(1)), prior, post


@contextlib.contextmanager
def freeze(*modules):
    params = [p for m in modules for p in m.parameters() if p.requires_grad]
    [p.requires_grad_(False) for p in params]
    yield
    [p.requires_grad_(True) for p in params]


class Agent:
    def __init__(self, cfg):
        torch.manual_seed(6)
        self.cfg = cfg
        self.wm = WorldModel(cfg)
        self.actor, self.critic = (mlp(cfg.deter + self.wm.stoch, n) for n in (2 * cfg.act, 1))
        self.slow = copy.deepcopy(self.critic).requires_grad_(False)
        self.opts = [torch.optim.Adam(m.parameters(), lr=lr) for m, lr in ((self.wm, 3e-3), (self.actor, 1e-3), (self.critic, 1e-3))]

    def policy(self, feat):
        mean, std = self.actor(feat).chunk(2, -1)
        return torch.tanh(Normal(mean, F.softplus(std) + 0.1).rsample())

    def optimize(self, i, loss, module):
        self.opts[i].zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 10.0)
        self.opts[i].step()

    def train_model(self, obs, act, rew):
        loss, states = 0.0, []
        state = torch.zeros(obs.shape[1], self.cfg.deter), torch.zeros(obs.shape[1], self.wm.stoch)
        for t in range(self.cfg.seq):
            state, prior, post = self.wm.obs_step(state, act[t], obs[t])
            feat = torch.cat(state, -1)
            stop_post, stop_prior = (self.wm.dist(d.base_dist.logits.detach()) for d in (post, prior))
            balance = 0.8 * kl(stop_post, prior).mean() + 0.2 * kl(post, stop_prior).mean()
            loss = loss + F.mse_loss(self.wm.decoder(feat), obs[t]) + F.mse_loss(self.wm.reward(feat).squeeze(-1), rew[t]) + 0.1 * balance
            states.append(tuple(s.detach() for s in state))
        self.optimize(0, loss / self.cfg.seq, self.wm)
        return tuple(torch.cat(s) for s in zip(*states)), loss.item() / self.cfg.seq

    def train_behaviour(self, state):
        feats = []
        with freeze(self.wm, self.critic):
            for _ in range(self.cfg.horizon):
                state, _ = self.wm.img_step(state, self.policy(torch.cat(state, -1).detach()))
                feats.append(torch.cat(state, -1))
            feats = torch.stack(feats)
            reward, value = (m(feats).squeeze(-1) for m in (self.wm.reward, self.critic))
            ret = [value[-1]]
            for t in reversed(range(self.cfg.horizon - 1)):
                ret.insert(0, reward[t] + 0.95 * (0.1 * value[t + 1] + 0.9 * ret[0]))
            returns = torch.stack(ret[:-1])
            self.optimize(1, -returns.mean(), self.actor)
        v = self.critic(feats := feats[:-1].detach()).squeeze(-1)
        self.optimize(2, F.mse_loss(v, returns.detach()) + 0.5 * F.mse_loss(v, self.slow(feats).squeeze(-1)), self.critic)
        with torch.no_grad():
            for s, p in zip(self.slow.parameters(), self.critic.parameters()):
                s.lerp_(p, 0.05)
        return returns.mean().item()


def main():
    agent = Agent(cfg := Config())
    for step in range(cfg.steps):
        act = torch.rand(cfg.seq, 16, cfg.act) * 2 - 1
        pos = act.cumsum(0) * 0.3
        start, model_loss = agent.train_model(torch.cat([pos, act], -1), act, -(pos - 0.5).pow(2).sum(-1))
        value = agent.train_behaviour(start)
        if step % 15 == 14:
            print(f"step {step + 1} model {model_loss:.3f} imagined return {value:.3f}")
    return value


if __name__ == "__main__":
    main()
