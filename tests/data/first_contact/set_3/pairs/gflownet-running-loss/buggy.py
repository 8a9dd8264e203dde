"""GFlowNet on a small grid, trained with trajectory balance."""
from dataclasses import dataclass, field

import torch
import torch.nn as nn
from torch.distributions import Categorical


@dataclass
class LogConfig:
    ema_alpha: float = 0.9
    every: int = 40


@dataclass
class Config:
    side: int = 5
    dims: int = 2
    hidden: int = 32
    lr: float = 3e-3
    lr_z: float = 5e-2
    batch_size: int = 16
    n_train_steps: int = 120
    seed: int = 4
    logging: LogConfig = field(default_factory=LogConfig)


class Grid:
    """Move along one axis, or stop; the reward is high in the corners."""

    def __init__(self, cfg):
        self.cfg = cfg
        self.n_actions = cfg.dims + 1

    def encode(self, state):
        return nn.functional.one_hot(state, self.cfg.side).float().flatten(1)

    def forward_mask(self, state):
        return torch.cat([state < self.cfg.side - 1, torch.ones(state.shape[0], 1, dtype=torch.bool)], dim=1)

    def log_reward(self, state):
        x = (2.0 * state / (self.cfg.side - 1) - 1).abs()
        return torch.log(0.05 + (x > 0.9).all(dim=1).float())


class Policy(nn.Module):
    def __init__(self, cfg, env):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(cfg.side * cfg.dims, cfg.hidden), nn.LeakyReLU(), nn.Linear(cfg.hidden, cfg.hidden), nn.LeakyReLU())
        self.forward_head = nn.Linear(cfg.hidden, env.n_actions)
        self.backward_head = nn.Linear(cfg.hidden, cfg.dims)

    def forward(self, x):
        h = self.trunk(x)
        return self.forward_head(h), self.backward_head(h)


class Logger:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rows = []

    def log(self, step, **values):
        if step % self.cfg.every == 0:
            row = {k: v.item() for k, v in values.items()}
            self.rows.append(row)
            print(f"step {step} " + " ".join(f"{k} {v:.3f}" for k, v in row.items()))


class GFlowNetAgent:
    def __init__(self, cfg):
        torch.manual_seed(cfg.seed)
        self.cfg = cfg
        self.env = Grid(cfg)
        self.policy = Policy(cfg, self.env)
        self.logZ = nn.Parameter(torch.zeros(()))
        self.opt = torch.optim.Adam(
            [{"params": self.policy.parameters(), "lr": cfg.lr}, {"params": [self.logZ], "lr": cfg.lr_z}]
        )
        self.lr_scheduler = torch.optim.lr_scheduler.StepLR(self.opt, step_size=60, gamma=0.5)
        self.logger = Logger(cfg.logging)
        self.loss_ema = None

    def sample_batch(self):
        n = self.cfg.batch_size
        state = torch.zeros(n, self.cfg.dims, dtype=torch.long)
        alive = torch.ones(n, dtype=torch.bool)
        log_pf, log_pb = torch.zeros(n), torch.zeros(n)
        while alive.any():
            fwd, _ = self.policy(self.env.encode(state))
            dist = Categorical(logits=fwd.masked_fill(~self.env.forward_mask(state), -1e9))
            action = dist.sample()
            log_pf = log_pf + dist.log_prob(action) * alive
            moving = alive & (action < self.cfg.dims)
            step = nn.functional.one_hot(action.clamp(max=self.cfg.dims - 1), self.cfg.dims)
            state = state + step * moving[:, None]
            _, bwd = self.policy(self.env.encode(state))
            parents = torch.log_softmax(bwd.masked_fill(state == 0, -1e9), dim=1)
            log_pb = log_pb + (parents * step).sum(1) * moving
            alive = moving
        return state, log_pf, log_pb

    def trajectorybalance_loss(self):
        state, log_pf, log_pb = self.sample_batch()
        log_r = self.env.log_reward(state)
        return (self.logZ + log_pf - log_r - log_pb).pow(2).mean(), log_r

    def update_ema(self, loss):
        alpha = self.cfg.logging.ema_alpha
        if self.loss_ema is None:
            self.loss_ema = loss
        else:
            self.loss_ema = alpha * self.loss_ema + (1.0 - alpha) * loss

    def train(self):
        for step in range(self.cfg.n_train_steps):
            loss, log_r = self.trajectorybalance_loss()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.lr_scheduler.step()
            self.update_ema(loss)
            self.logger.log(step, loss=loss, ema=self.loss_ema, logZ=self.logZ, reward=log_r.exp().mean())
        return self


def main():
    return GFlowNetAgent(Config()).train()


if __name__ == "__main__":
    main()
