"""A small RLlib-like learner: one backward for each named loss, then all optimizers apply."""
from collections import deque
from dataclasses import dataclass
import random

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class TQCConfig:
    obs_dim: int = 4
    act_dim: int = 2
    n_critics: int = 2
    n_quantiles: int = 5
    drop: int = 1
    gamma: float = 0.95
    tau: float = 0.02
    lr: float = 2e-3
    batch_size: int = 64
    warmup: int = 200
    train_steps: int = 250
    seed: int = 1


def mlp(inp, out, hidden=32):
    return nn.Sequential(nn.Linear(inp, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, out))


class TQCModule(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.pi = mlp(cfg.obs_dim, 2 * cfg.act_dim)
        self.qf = nn.ModuleList(mlp(cfg.obs_dim + cfg.act_dim, cfg.n_quantiles) for _ in range(cfg.n_critics))
        self.target_qf = nn.ModuleList(mlp(cfg.obs_dim + cfg.act_dim, cfg.n_quantiles) for _ in range(cfg.n_critics))
        self.target_qf.load_state_dict(self.qf.state_dict())
        self.target_qf.requires_grad_(False)
        self.log_alpha = nn.Parameter(torch.tensor(-2.0))

    def act(self, obs):
        mean, log_std = self.pi(obs).chunk(2, dim=-1)
        dist = torch.distributions.Normal(mean, log_std.clamp(-4, 1).exp())
        raw = dist.rsample()
        action = torch.tanh(raw)
        logp = (dist.log_prob(raw) - torch.log(1 - action.pow(2) + 1e-6)).sum(-1)
        return action, logp

    def quantiles(self, nets, obs, action):
        x = torch.cat([obs, action], dim=-1)
        return torch.stack([net(x) for net in nets], dim=1)

    def forward_train(self, batch):
        obs, action, reward, next_obs = batch
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            next_action, next_logp = self.act(next_obs)
            z = self.quantiles(self.target_qf, next_obs, next_action).flatten(1).sort(dim=1).values
            z = z[:, : z.shape[1] - self.cfg.drop * self.cfg.n_critics]
            target = reward[:, None] + self.cfg.gamma * (z - alpha * next_logp[:, None])
        current = self.quantiles(self.qf, obs, action)
        resampled, logp = self.act(obs)
        qf_curr = self.quantiles(self.qf, obs, resampled).mean(dim=(1, 2))
        return {"current": current, "target": target, "qf_curr": qf_curr, "logp": logp, "alpha": alpha}


def quantile_huber(current, target):
    n = current.shape[-1]
    taus = (torch.arange(n) + 0.5) / n
    delta = target[:, None, None, :] - current[:, :, :, None]
    huber = F.smooth_l1_loss(current[:, :, :, None].expand_as(delta), target[:, None, None, :].expand_as(delta), reduction="none")
    return ((taus[None, None, :, None] - (delta.detach() < 0).float()).abs() * huber).mean()


class Learner:
    def __init__(self, cfg):
        self.cfg = cfg
        self.module = TQCModule(cfg)
        groups = {"qf": list(self.module.qf.parameters()), "policy": list(self.module.pi.parameters()), "alpha": [self.module.log_alpha]}
        self.optimizers = {name: torch.optim.Adam(params, lr=cfg.lr) for name, params in groups.items()}
        self.groups = groups

    def losses(self, out):
        return {
            "qf": quantile_huber(out["current"], out["target"]),
            "policy": (out["alpha"] * out["logp"] - out["qf_curr"]).mean(),
            "alpha": -(self.module.log_alpha * (out["logp"].detach() - self.cfg.act_dim)).mean(),
        }

    def compute_gradients(self, losses):
        grads = {}
        for name, loss in losses.items():
            self.optimizers[name].zero_grad(set_to_none=True)
            loss.backward()
            grads.update({p: p.grad.clone() for p in self.groups[name]})
        return grads

    def apply_gradients(self, grads):
        for name, optimizer in self.optimizers.items():
            for p in self.groups[name]:
                p.grad = grads[p]
            optimizer.step()
        with torch.no_grad():
            for t, p in zip(self.module.target_qf.parameters(), self.module.qf.parameters()):
                t.lerp_(p, self.cfg.tau)

    def update(self, batch):
        losses = self.losses(self.module.forward_train(batch))
        self.apply_gradients(self.compute_gradients(losses))
        return {name: loss.item() for name, loss in losses.items()}


class Env:
    def reset(self):
        self.s = torch.randn(4)
        return self.s

    def step(self, a):
        self.s = (0.9 * self.s + 0.3 * torch.cat([a, -a])).clamp(-3, 3)
        return self.s, -self.s.pow(2).sum().item()


def main():
    cfg = TQCConfig()
    torch.manual_seed(cfg.seed)
    random.seed(cfg.seed)
    env, learner, buffer = Env(), Learner(cfg), deque(maxlen=2000)
    obs = env.reset()
    history = []
    for step in range(cfg.warmup + cfg.train_steps):
        with torch.no_grad():
            action = learner.module.act(obs[None])[0][0] if step >= cfg.warmup else torch.rand(2) * 2 - 1
        next_obs, reward = env.step(action)
        buffer.append((obs, action, torch.tensor(reward), next_obs))
        obs = env.reset() if step % 25 == 24 else next_obs
        if step >= cfg.warmup:
            batch = [torch.stack(x) for x in zip(*random.sample(buffer, cfg.batch_size))]
            history.append(learner.update(batch))
            if step % 50 == 0:
                print(f"step {step} qf {history[-1]['qf']:.3f} policy {history[-1]['policy']:.3f}")
    return learner, history


if __name__ == "__main__":
    main()
