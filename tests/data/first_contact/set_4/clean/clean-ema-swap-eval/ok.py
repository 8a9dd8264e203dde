"""EMA of weights: the averaged weights are swapped in for validation in the middle of an epoch, and out again."""
import contextlib
import copy
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    steps: int = 120
    eval_every: int = 30
    batch: int = 32
    lr: float = 5e-3
    decay: float = 0.95
    seed: int = 0


class EMA:
    def __init__(self, model, decay):
        self.model, self.decay = model, decay
        self.shadow = {n: t.detach().clone() for n, t in model.state_dict().items()}

    @torch.no_grad()
    def update(self):
        for name, tensor in self.model.state_dict().items():
            if tensor.is_floating_point():
                self.shadow[name].lerp_(tensor, 1 - self.decay)
            else:
                self.shadow[name].copy_(tensor)

    @contextlib.contextmanager
    def average_weights(self):
        backup = copy.deepcopy(self.model.state_dict())
        self.model.load_state_dict(self.shadow)
        try:
            yield self.model
        finally:
            self.model.load_state_dict(backup)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1))
        self.mean, self.log_var = nn.Linear(32, 1), nn.Linear(32, 1)

    def forward(self, x):
        h = self.body(x)
        return self.mean(h).squeeze(-1), self.log_var(h.detach()).squeeze(-1)


def make(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 10, generator=g)
    noise = torch.randn(n, generator=g) * (0.1 + x[:, 0].abs())
    return x, x[:, 1] * x[:, 2] + noise


def losses(model, x, y):
    mean, log_var = model(x)
    squared = (mean - y) ** 2
    nll = 0.5 * (log_var + squared.detach() * torch.exp(-log_var))
    return squared.mean(), nll.mean()


@torch.no_grad()
def evaluate(model, x, y):
    was_training = model.training
    model.eval()
    mse, nll = losses(model, x, y)
    model.train(was_training)
    return mse.item(), nll.item()


def main(cfg=None):
    cfg = cfg or Config()
    torch.manual_seed(cfg.seed)
    x, y = make(512, 1)
    xv, yv = make(256, 2)
    model = Net()
    ema = EMA(model, cfg.decay)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2 * cfg.lr, total_steps=cfg.steps)
    best, best_state = float("inf"), None
    for step in range(1, cfg.steps + 1):
        idx = torch.randint(len(x), (cfg.batch,))
        mse, nll = losses(model, x[idx], y[idx])
        optimizer.zero_grad()
        (mse + nll).backward()
        optimizer.step()
        scheduler.step()
        ema.update()
        if step % cfg.eval_every == 0:
            with ema.average_weights() as averaged:
                val, val_nll = evaluate(averaged, xv, yv)
                if val < best:
                    best, best_state = val, copy.deepcopy(averaged.state_dict())
            print(f"step {step} mse {mse.item():.4f} ema mse {val:.4f} ema nll {val_nll:.4f}")
    model.load_state_dict(best_state)
    return {"best": best, "final": evaluate(model, xv, yv)[0]}


if __name__ == "__main__":
    main()
