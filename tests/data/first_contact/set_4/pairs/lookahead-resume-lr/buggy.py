"""Training that is stopped and resumed, with a Lookahead wrapper and a cosine schedule."""
import io
from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import nn
import torch.nn.functional as F
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR


@dataclass
class Config:
    lr: float = 0.12
    k: int = 5
    la_alpha: float = 0.5
    epochs: int = 12
    stop_at: int = 3
    batch_size: int = 32
    seed: int = 4


class Lookahead(Optimizer):
    """k steps forward, one step back, around any optimizer."""

    def __init__(self, optimizer, k=5, alpha=0.5):
        self.optimizer = optimizer
        self.k, self.alpha = k, alpha
        self.defaults = optimizer.defaults
        self.param_groups = optimizer.param_groups
        self.state = defaultdict(dict)
        self.counter = 0
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["slow"] = p.detach().clone()

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)

    @torch.no_grad()
    def step(self, closure=None):
        loss = self.optimizer.step(closure)
        self.counter += 1
        if self.counter % self.k == 0:
            for group in self.param_groups:
                for p in group["params"]:
                    slow = self.state[p]["slow"]
                    slow.add_(p - slow, alpha=self.alpha)
                    p.copy_(slow)
        return loss

    def state_dict(self):
        slow = [self.state[p]["slow"] for group in self.param_groups for p in group["params"]]
        return {"base": self.optimizer.state_dict(), "slow": slow, "counter": self.counter}

    def load_state_dict(self, state):
        self.optimizer.load_state_dict(state["base"])
        params = [p for group in self.param_groups for p in group["params"]]
        for p, slow in zip(params, state["slow"]):
            self.state[p]["slow"] = slow.clone()
        self.counter = state["counter"]


class Experiment:
    def __init__(self, cfg):
        self.cfg = cfg
        self.model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
        base = torch.optim.SGD(self.model.parameters(), lr=cfg.lr, momentum=0.9)
        self.optimizer = Lookahead(base, cfg.k, cfg.la_alpha)
        self.scheduler = CosineAnnealingLR(self.optimizer, cfg.epochs)
        self.epoch = 0

    def save(self):
        buffer = io.BytesIO()
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
                    "scheduler": self.scheduler.state_dict(), "epoch": self.epoch}, buffer)
        return buffer.getvalue()

    def load(self, blob):
        checkpoint = torch.load(io.BytesIO(blob))
        self.model.load_state_dict(checkpoint["model"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        self.scheduler.load_state_dict(checkpoint["scheduler"])
        self.epoch = checkpoint["epoch"]

    def train_epoch(self, data, generator):
        x, y = data
        self.model.train()
        for index in torch.randperm(len(x), generator=generator).split(self.cfg.batch_size):
            self.optimizer.zero_grad()
            loss = F.mse_loss(self.model(x[index]).squeeze(1), y[index])
            loss.backward()
            self.optimizer.step()
        self.scheduler.step()
        self.epoch += 1

    @torch.no_grad()
    def evaluate(self, data):
        x, y = data
        self.model.eval()
        return F.mse_loss(self.model(x).squeeze(1), y).item()


def make_data(seed, n):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 10, generator=g)
    y = torch.sin(x[:, 0] * 1.5) + x[:, 1] * x[:, 2] + 0.3 * torch.randn(n, generator=g)
    return x, y


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    train, test = make_data(1, 320), make_data(2, 320)
    generator = torch.Generator().manual_seed(cfg.seed)
    run = Experiment(cfg)
    while run.epoch < cfg.stop_at:
        run.train_epoch(train, generator)
    checkpoint = run.save()

    run = Experiment(cfg)
    run.load(checkpoint)
    while run.epoch < cfg.epochs:
        run.train_epoch(train, generator)
        if run.epoch % 3 == 0:
            print(f"epoch {run.epoch} lr {run.scheduler.get_last_lr()[0]:.4f} test {run.evaluate(test):.4f}")
    return {"test": run.evaluate(test), "train": run.evaluate(train),
            "used_lr": run.optimizer.optimizer.param_groups[0]["lr"]}


if __name__ == "__main__":
    main()
